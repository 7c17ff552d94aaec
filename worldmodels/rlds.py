"""Reads RT-1's data as it was published: RLDS episodes in TFRecord files (``fractal20220817_data``).

Special: neither TensorFlow nor tensorflow_datasets is needed, see ``tfrecord``. A file's records are found
without being read; a picture is decoded when its frame is wanted. TensorFlow decodes JPEG with a faster, coarser
transform unless told otherwise: on robot frames its pixels are 1.2 levels away from these on average, at
most 16 (with its accurate transform there is no difference).

A record is an episode of T steps whose features lie end to end::

    steps/observation/image                          T JPEG or PNG files
    steps/observation/natural_language_instruction   T texts, all the same
    steps/action/<part>                              T x size numbers, parts and sizes as in ``RT1_PARTS``

Absent: the other features, and data sets of other robots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from worldmodels.api import Episode
from worldmodels.recordings import Recording, episode_of_log
from worldmodels.tfrecord import features, numbers, records, texts
from worldmodels.video.rt1_actions import RT1_ACTION_SIZE, RT1_PARTS

_IMAGE = "steps/observation/image"
_INSTRUCTION = "steps/observation/natural_language_instruction"
_ACTION = "steps/action/"


def tfrecord_files(path: Path) -> Iterator[Path]:
    """The TFRecord files of a folder (and the folders in it), or the file itself. Unordered."""
    found = [path] if path.is_file() else path.rglob("*.tfrecord*")
    return (file for file in found if ".tfrecord" in file.name and file.suffix != ".json" and file.is_file())


def read_rlds(path: str | Path) -> Iterator[Recording]:
    """The recordings of a folder (and the folders in it), file after file, or of one file.

    Raises:
        FileNotFoundError: No such file or folder, or no TFRecord file in it; names it.
        ValueError: A file is damaged; names it.
    """
    root = Path(path)
    files = sorted(tfrecord_files(root))
    if not files:
        raise FileNotFoundError(
            f"no TFRecord file in {root}; give the folder that holds files like"
            " fractal20220817_data-train.tfrecord-00000-of-01024"
        )
    for file in files:
        # Files of two versions or splits may have one name.
        name = file.name if root.is_file() else "-".join(file.relative_to(root).parts)
        for number, (start, length) in enumerate(records(file)):
            episode_id = f"{name}-{number:05d}"
            yield Recording(episode_id, partial(_load, file, start, length, episode_id))


def _load(file: Path, start: int, length: int, episode_id: str, max_steps: int | None) -> Episode:
    with file.open("rb") as opened:
        opened.seek(start)
        record = opened.read(length)
    try:
        found = features(record)
        pictures = texts(_feature(found, _IMAGE))
        frames = _decode(pictures if max_steps is None else pictures[: max_steps + 1])
        actions = None if max_steps == 0 else _actions(found, len(pictures))
        said = [text for text in texts(found.get(_INSTRUCTION, memoryview(b""))) if text]
    except ValueError as error:
        raise ValueError(
            f"{file}, record {episode_id.rsplit('-', 1)[-1]}, is not an RT-1 episode: {error}; copy the file again, or"
            " give a folder of RT-1's data"
        ) from error
    instruction = said[0].decode(errors="replace") if said else None
    return episode_of_log(
        str(file), episode_id=episode_id, frames=frames, actions=actions, instruction=instruction
    )


def _feature(found: Mapping[str, memoryview], name: str) -> memoryview:
    if name not in found:
        near = sorted(key for key in found if key.startswith(name.rsplit("/", 1)[0]))
        raise ValueError(f"it has no feature {name!r}, only {', '.join(near or sorted(found)) or 'none'}")
    return found[name]


def _decode(pictures: list[bytes]) -> NDArray[np.uint8]:
    """Encoded pictures of one size as frames ``(K, H, W, 3)`` RGB."""
    if not pictures:
        raise ValueError(f"{_IMAGE} holds no picture")
    frames: list[NDArray[np.uint8]] = []
    for step, picture in enumerate(pictures):
        try:
            content = np.frombuffer(picture, np.uint8)
            frame = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error as error:  # an empty or a huge one
            raise ValueError(f"the picture at step {step} cannot be decoded ({error.err})") from error
        if frame is None:
            raise ValueError(f"the picture at step {step} cannot be decoded")
        if frames and frame.shape != frames[0].shape:
            raise ValueError(f"the picture at step {step} is {frame.shape}, the first one {frames[0].shape}")
        frames.append(np.asarray(frame, np.uint8))
    return np.ascontiguousarray(np.stack(frames)[..., ::-1])


def _actions(found: Mapping[str, memoryview], steps: int) -> NDArray[np.float32]:
    """The parts side by side, ``(steps, 13)``; those of the base may be absent and are then 0."""
    actions = np.zeros((steps, RT1_ACTION_SIZE), np.float32)
    for part, where in RT1_PARTS.items():
        name = _ACTION + part
        if part.startswith("base_") and name not in found:
            continue
        try:
            values = numbers(_feature(found, name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        size = where.stop - where.start
        if len(values) != steps * size:
            raise ValueError(f"{name} holds {len(values)} numbers; expected {size} for each of {steps} steps")
        actions[:, where] = values.reshape(steps, size)
    return actions
