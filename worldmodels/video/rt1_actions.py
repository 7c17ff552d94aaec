"""RT-1's action as 13 numbers: which is which, the ranges of its data, and the way from and to its dictionary.

Special: the parts stand in the alphabetical order of their names, as the published world models were trained.
Numpy only.

Absent: bins (``action_bins``), and what a robot makes of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RT1_ACTION_SIZE = 13
RT1_PARTS: dict[str, slice] = {
    "base_displacement_vector": slice(0, 2),
    "base_displacement_vertical_rotation": slice(2, 3),
    "gripper_closedness_action": slice(3, 4),
    "rotation_delta": slice(4, 7),
    "terminate_episode": slice(7, 10),
    "world_vector": slice(10, 13),
}
"""Where each part of the action stands."""

RT1_LOW: NDArray[np.float32] = np.array(
    [
        *(-0.39600884914398193, -0.009631033055484295),
        -0.4000452756881714,
        -1.0,
        *(-1.569917917251587, -1.569892168045044, -1.570419430732727),
        *(0.0, 0.0, 0.0),
        *(-2.0204520225524902, -5.497899532318115, -2.031663417816162),
    ],
    np.float32,
)
RT1_HIGH: NDArray[np.float32] = np.array(
    [
        *(0.39600181579589844, 0.003676734399050474),
        0.39991137385368347,
        1.0,
        *(1.570636510848999, 1.5321086645126343, 1.5691522359848022),
        *(1.0, 1.0, 1.0),
        *(2.9984593391418457, 22.09052848815918, 2.7507524490356445),
    ],
    np.float32,
)
"""Least and largest number of each dimension in RT-1's data, between which the published models count 256 bins."""

TERMINATE = (1, 0, 0)
"""``terminate_episode`` of an action that ends the episode."""


def is_terminal(action: ArrayLike) -> bool:
    """Whether an action ``(13,)`` ends the episode: its flags round to 1, 0, 0."""
    flags = np.asarray(action, dtype=np.float64)[RT1_PARTS["terminate_episode"]]
    return bool(np.array_equal(np.round(flags), TERMINATE))


def from_dict(parts: Mapping[str, Any]) -> NDArray[np.float32]:
    """RT-1's dictionary as ``(13,)`` float32; the three numbers of the base may be absent and are then 0.

    Raises:
        ValueError: A part is missing, unknown, of another size, or not finite.
    """
    if unknown := sorted(set(parts) - set(RT1_PARTS)):
        raise ValueError(f"unknown action parts {unknown}; RT-1's are {', '.join(RT1_PARTS)}")
    action = np.zeros(RT1_ACTION_SIZE, np.float32)
    for name, where in RT1_PARTS.items():
        if name not in parts:
            if name.startswith("base_"):
                continue
            raise ValueError(f"the action has no {name!r}; RT-1's parts are {', '.join(RT1_PARTS)}")
        values = np.asarray(parts[name], dtype=np.float64).ravel()
        if len(values) != where.stop - where.start or not np.isfinite(values).all():
            raise ValueError(f"{name} is {parts[name]!r}; expected {where.stop - where.start} finite numbers")
        action[where] = values
    return action


def to_dict(action: ArrayLike) -> dict[str, NDArray[np.float32]]:
    """``(13,)`` numbers as RT-1's dictionary; ``terminate_episode`` is rounded to int32, as RT-1 gives it.

    Raises:
        ValueError: Another shape.
    """
    values = np.asarray(action, dtype=np.float32)
    if values.shape != (RT1_ACTION_SIZE,):
        raise ValueError(f"action has shape {values.shape}; expected ({RT1_ACTION_SIZE},)")
    parts: dict[str, Any] = {name: values[where].copy() for name, where in RT1_PARTS.items()}
    parts["terminate_episode"] = np.round(parts["terminate_episode"]).astype(np.int32)
    return parts
