"""The spaces that truth and dream share, and the checks of what users put in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW

PUSHT_IMAGE_PX = 64
PUSHT_FRAME_SKIP = 5  # environment steps of 0.1 s per step of the world model, as published
RT1_HEIGHT_PX, RT1_WIDTH_PX = 64, 80  # a quarter of RT-1's 256 x 320


def pusht_observation_space(*, image_size: int = PUSHT_IMAGE_PX) -> spaces.Dict:
    """``image`` ``(S, S, 3)`` uint8 RGB and ``proprio`` ``(4,)`` float32: agent x, y (px), velocity (px/s).

    The agent goes through walls and may leave the arena, so ``proprio`` has no bounds.
    """
    return spaces.Dict(
        {
            "image": spaces.Box(0, 255, (image_size, image_size, 3), np.uint8),
            "proprio": spaces.Box(-np.inf, np.inf, (4,), np.float32),
        }
    )


def pusht_action_space(*, frame_skip: int = PUSHT_FRAME_SKIP) -> spaces.Box:
    """``(2 * frame_skip,)`` float32 in [-1, 1]: displacements x, y of consecutive steps of 0.1 s, in 100 px.

    Raises:
        ValueError: ``frame_skip`` is not a positive whole number.
    """
    if not isinstance(frame_skip, int | np.integer) or frame_skip < 1:
        raise ValueError(f"frame_skip is {frame_skip!r}; it must be a whole number of at least 1")
    return spaces.Box(-1.0, 1.0, (2 * int(frame_skip),), np.float32)


def rt1_action_space() -> spaces.Box:
    """``(13,)`` float32: RT-1's action, its parts in alphabetical order, within the ranges of its data.

    Base displacement (2) and base turn (1); ``gripper_closedness_action`` (1) in [-1, 1]; ``rotation_delta``
    (3) in rad; ``terminate_episode`` (3) in [0, 1], where 1, 0, 0 ends the episode; ``world_vector`` (3) in
    m. ``worldmodels.video.rt1_actions`` has their slices and the way from and to RT-1's dict.
    """
    return spaces.Box(RT1_LOW, RT1_HIGH, dtype=np.float32)


def frame_observation_space(height: int, width: int) -> spaces.Box:
    """``(height, width, 3)`` uint8 RGB.

    Raises:
        ValueError: A size that is not a positive whole number.
    """
    for name, size in (("height", height), ("width", width)):
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
            raise ValueError(f"image {name} is {size!r}; it must be a whole number of at least 1")
    return spaces.Box(0, 255, (int(height), int(width), 3), np.uint8)


def checked_action(space: spaces.Space[Any], action: Any) -> tuple[Any, int]:
    """An action that the space allows, and how many of its numbers had to be clipped to the bounds.

    Numbers come back as float64, so that clipping is the only change; other spaces' actions come back as they
    are.

    Raises:
        ValueError: Wrong shape, not numbers, not finite, or outside a space without numbers.
    """
    if not isinstance(space, spaces.Box):
        if not space.contains(action):
            raise ValueError(f"action {action!r} is not in {space}")
        return action, 0
    try:
        values = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"action is {action!r}; expected {space.shape} numbers") from error
    if values.shape != space.shape:
        raise ValueError(
            f"action has shape {values.shape}; expected {space.shape} with numbers in"
            f" [{space.low.min():g}, {space.high.max():g}]"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"action holds a value that is not finite: {values.tolist()}; give finite numbers")
    clipped = np.clip(values, space.low, space.high)
    return clipped, int(np.count_nonzero(clipped != values))


def holds(space: spaces.Space[Any], observation: Any) -> bool:
    """Whether an observation is in a space; unlike ``contains``, a list does not pass for an array."""
    if isinstance(space, spaces.Dict):
        return (
            isinstance(observation, Mapping)
            and observation.keys() == space.keys()
            and all(holds(part, observation[key]) for key, part in space.items())
        )
    if isinstance(space, spaces.Box) and not isinstance(observation, np.ndarray):
        return False
    return bool(space.contains(observation))


def checked_observation(name: str, space: spaces.Space[Any], observation: Any) -> Any:
    """The observation itself, if the space holds it.

    Raises:
        ValueError: It does not; says for each part what was given and what is expected.
    """
    if holds(space, observation):
        return observation
    given = _describe(observation)
    if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
        given = str({key: _describe(value) for key, value in observation.items()})
    raise ValueError(f"{name} is {given}; expected {space}")


def checked_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """The reset options as a dict.

    Raises:
        ValueError: An unknown key; lists the known ones.
    """
    options = dict(options or {})
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"unknown reset option {unknown[0]!r}; the options are {', '.join(known)}")
    return options


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        bad = value.dtype.kind == "f" and not np.isfinite(value).all()
        return f"{value.dtype} {value.shape}" + (" with values that are not finite" if bad else "")
    return repr(value)[:80]
