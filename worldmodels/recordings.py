"""Outside data in one shape: recordings that are episodes of RT-1's kind once they are read.

Special: a recording knows its id before anything is decoded, so a caller skips what he has, reads the first
frame alone, or reads everything, and pays for just that.

A robot's log holds T frames and T actions, action t chosen on seeing frame t. An episode of T - 1 steps
comes of it: T observations and the first T - 1 actions. The last action has no next frame and is left out.

A frame of another shape is never stretched: it keeps its proportions between black bars.

Absent: files (the readers beside this module know them), and clipping of actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodels.api import Episode
from worldmodels.video.rt1_actions import RT1_ACTION_SIZE, is_terminal


@dataclass(frozen=True)
class Recording:
    """One episode that has not been read yet.

    Attributes:
        id: Unique name inside its data set.
        load: Reads it, at most so many steps (None: all); frames have the size they were recorded with.
    """

    id: str
    load: Callable[[int | None], Episode]

    def episode(self, *, image_size: tuple[int, int] | None = None, max_steps: int | None = None) -> Episode:
        """Read it.

        Args:
            image_size: Height and width of frames in px, see :func:`resized`; None: as recorded.
            max_steps: Read at most so many steps; 0 reads the first frame alone, for which no action is needed.

        Returns:
            Observations ``(T+1, H, W, 3)`` uint8 RGB, actions ``(T, 13)`` float32 in the order of ``RT1_PARTS``,
            rewards (0 where none were recorded), and ``info["instruction"]``, a text, where it is known.

        Raises:
            ValueError: A bad argument, a damaged file, or one that holds something else; names it.
            FileNotFoundError: A file is missing; names it.
        """
        check_reading(image_size, max_steps)
        episode = self.load(max_steps)
        if image_size is None:
            return episode
        return replace(episode, observations=resized(episode.observations, image_size))


def check_reading(image_size: tuple[int, int] | None, max_steps: int | None) -> None:
    """Check how much is to be read.

    Raises:
        ValueError: Not a size, or less than nothing.
    """
    if image_size is not None and (len(image_size) != 2 or min(image_size) < 1):
        raise ValueError(
            f"image_size is {image_size}; give height and width in px, or None for frames as recorded"
        )
    if max_steps is not None and max_steps < 0:
        raise ValueError(
            f"max_steps is {max_steps}; give at least 0 (the first frame alone), or None for all"
        )


def episode_of_log(
    where: str,
    *,
    episode_id: str,
    frames: NDArray[Any],
    actions: NDArray[Any] | None,
    instruction: str | None = None,
) -> Episode:
    """K frames and at least K - 1 actions of a robot's log as an episode of K - 1 steps.

    Args:
        where: What was read, for errors.
        episode_id: The episode's id.
        frames: ``(K, H, W, 3)`` uint8 RGB, K >= 1.
        actions: ``(at least K - 1, 13)`` numbers; None where there is one frame alone.
        instruction: What the robot was told, or None where it is not known.

    Raises:
        ValueError: Other shapes or dtypes, or an action that is not finite.
    """
    check_frames(where, frames)
    steps = len(frames) - 1
    taken = np.zeros((0, RT1_ACTION_SIZE)) if actions is None else actions
    if taken.ndim != 2 or taken.shape[1] != RT1_ACTION_SIZE or len(taken) < steps:
        raise ValueError(
            f"{where}: actions have shape {taken.shape}; expected {RT1_ACTION_SIZE} numbers for each of its frames, in"
            " RT-1's alphabetical order"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold is told of below
        numbers = np.ascontiguousarray(taken[:steps], dtype=np.float32)
    if not np.isfinite(numbers).all():
        step = int(np.flatnonzero(~np.isfinite(numbers).all(axis=1))[0])
        raise ValueError(f"{where}: the action at step {step} is not finite: {numbers[step].tolist()}")
    terminated = steps > 0 and is_terminal(numbers[-1])
    return Episode(
        id=episode_id,
        observations=frames,
        actions=numbers,
        rewards=np.zeros(steps),
        terminated=terminated,
        truncated=not terminated,
        info={} if instruction is None else {"instruction": instruction},
    )


def check_frames(where: str, frames: NDArray[Any]) -> None:
    """Check that an array holds pictures.

    Raises:
        ValueError: Another shape or dtype.
    """
    if frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape or frames.dtype != np.uint8:
        raise ValueError(
            f"{where}: frames have shape {frames.shape} and dtype {frames.dtype}; expected (T, height, width, 3) uint8"
        )


def resized(frames: NDArray[np.uint8], image_size: tuple[int, int]) -> NDArray[np.uint8]:
    """Frames ``(K, H, W, 3)`` at another height and width: as large as fits, in the middle, the rest black.

    Places and sizes are those of RT-1's own preprocessing (TensorFlow's ``resize_with_pad``). Larger frames are
    bilinear as there; smaller ones are averaged over areas: at a quarter of the size bilinear samples miss most pixels.
    """
    height, width = image_size
    rows, columns = frames.shape[1:3]
    if (rows, columns) == (height, width):
        return frames
    # The largest whole size of the same proportions.
    if columns * height >= rows * width:
        inner = max(1, rows * width // columns), width
    else:
        inner = height, max(1, columns * height // rows)
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    method = cv2.INTER_LINEAR if inner[0] > rows or inner[1] > columns else cv2.INTER_AREA
    out = np.zeros((len(frames), height, width, 3), np.uint8)
    for frame, picture in zip(frames, out, strict=True):
        picture[top : top + inner[0], left : left + inner[1]] = cv2.resize(
            np.ascontiguousarray(frame), inner[::-1], interpolation=method
        )
    return out
