"""Reads the published PushT data of dino_wm (``pusht_noise``) as episodes of this package.

Special: nothing is unpickled freely. Tensors go through ``torch.load(weights_only=True)`` and the two pickles
through a reader that knows lists, numbers, texts and integer arrays and imports nothing that the file names.
Films are read forwards and only as far as they are needed.

Layout of a split's folder (n trajectories of at most T steps of 0.1 s, T' those of one trajectory)::

    states.pth        (n, T, 5)  agent x, y; block x, y; block angle (px of a 512 px arena, rad)
    velocities.pth    (n, T, 2)  agent velocity (px/s)
    rel_actions.pth   (n, T, 2)  displacement of the agent's target (px); or abs_actions.pth, the target itself
    seq_lengths.pkl   n lengths T'
    shapes.pkl        n names of block shapes; all "T" where it is absent
    obses/episode_000.mp4, ...   T' frames each

Absent: the validation split of dino_wm stays what the caller makes of it; ``EpisodeStore`` splits by episode
id.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from worldmodels.api import Episode

logger = logging.getLogger(__name__)

ACTION_SCALE_PX = 100.0  # an action of 1 moves the target by 100 px
_STATES, _VELOCITIES, _LENGTHS, _SHAPES = "states.pth", "velocities.pth", "seq_lengths.pkl", "shapes.pkl"
_RELATIVE, _ABSOLUTE = "rel_actions.pth", "abs_actions.pth"


def read_pusht_noise(
    folder: str | Path,
    split: str,
    *,
    frame_skip: int = 5,
    image_size: int = 64,
    limit: int | None = None,
    shape: str = "T",
) -> Iterator[Episode]:
    """Trajectories of ``folder/split`` one by one, cut to every ``frame_skip``-th frame.

    An episode has K = (T' - 1) // ``frame_skip`` steps: observations ``image`` ``(K+1, S, S, 3)`` uint8 RGB (resized by
    area) and ``proprio`` ``(K+1, 4)`` float32, actions ``(K, 2 * frame_skip)`` float32 in units of 100 px, and
    ``info["state"]`` ``(K+1, 7)`` float64. Trajectories of fewer than ``frame_skip`` + 1 frames hold no step and are
    passed over, as are those of other block shapes.

    Args:
        folder: The ``pusht_noise`` folder.
        split: ``"train"`` or ``"val"``, the name of a folder in it.
        frame_skip: Environment steps per step, at least 1.
        image_size: Width and height S of frames in px.
        limit: Read the first so many trajectories only.
        shape: The block shape to keep.

    Raises:
        ValueError: A bad argument, a damaged file, or files that do not fit each other; names the file.
        FileNotFoundError: A missing folder, file or film; names it.
    """
    if frame_skip < 1 or image_size < 1 or (limit is not None and limit < 1):
        raise ValueError(
            f"frame_skip is {frame_skip}, image_size {image_size}, limit {limit}; each must be at least 1"
        )
    where = Path(folder) / split
    if not where.is_dir():
        raise FileNotFoundError(f"no folder {where}; give the pusht_noise folder, which holds train and val")
    states, actions, lengths, shapes = _read_tables(where)
    for number in range(min(len(lengths), limit or len(lengths))):
        steps = (lengths[number] - 1) // frame_skip
        if steps < 1 or shapes[number] != shape:
            logger.info("%s: passed over trajectory %d (%s)", where, number, shapes[number])
            continue
        kept = states[number, : steps * frame_skip + 1 : frame_skip]
        images = _film(
            where / "obses" / f"episode_{number:03d}.mp4", steps + 1, every=frame_skip, size=image_size
        )
        yield Episode(
            id=f"{Path(folder).name}-{split}-{number:05d}",
            observations={"image": images, "proprio": kept[:, [0, 1, 5, 6]].astype(np.float32)},
            actions=actions[number, : steps * frame_skip].reshape(steps, 2 * frame_skip).astype(np.float32),
            rewards=np.zeros(steps),
            info={"state": kept},
        )


def _read_tables(
    where: Path,
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int], list[str]]:
    """States ``(n, T, 7)``, relative actions ``(n, T, 2)`` in units of 100 px, n lengths and n shape names."""
    places = _table(where / _STATES, 5)
    count, longest = places.shape[:2]
    states = np.concatenate([places, _table(where / _VELOCITIES, 2, like=places)], axis=-1)
    if (where / _RELATIVE).exists():
        actions = _table(where / _RELATIVE, 2, like=places)
    elif (where / _ABSOLUTE).exists():
        actions = _table(where / _ABSOLUTE, 2, like=places) - places[..., :2]
    else:
        raise FileNotFoundError(f"{where} has neither {_RELATIVE} nor {_ABSOLUTE}")
    lengths = _read_list(where / _LENGTHS, count, int)
    for number, length in enumerate(lengths):
        if not 1 <= length <= longest:
            raise ValueError(
                f"{where / _LENGTHS}: trajectory {number} has length {length}, but {_STATES} holds 1 to"
                f" {longest} steps each; the files do not belong together"
            )
    shapes = _read_list(where / _SHAPES, count, str) if (where / _SHAPES).exists() else ["T"] * count
    return states, actions / ACTION_SCALE_PX, lengths, shapes


def _table(path: Path, size: int, *, like: NDArray[Any] | None = None) -> NDArray[np.float64]:
    """A tensor file ``(n, T, size)``, with the n and T of another table."""
    if not path.exists():
        raise FileNotFoundError(f"no file {path}; dino_wm's pusht_noise layout has one in every split")
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        raise ValueError(f"{path} is not a plain tensor file ({first}); copy it again") from error
    expected = "(n, T, {size})" if like is None else str((*like.shape[:2], size))
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{path} holds a {type(tensor).__name__}, expected a tensor {expected}")
    good = tensor.ndim == 3 and tensor.shape[2] == size and 0 not in tensor.shape
    if not good or (like is not None and tuple(tensor.shape[:2]) != like.shape[:2]):
        raise ValueError(f"{path} has shape {tuple(tensor.shape)}, expected {expected.format(size=size)}")
    return tensor.to(torch.float64).numpy()


def _film(path: Path, count: int, *, every: int, size: int) -> NDArray[np.uint8]:
    """Frames 0, ``every``, 2 * ``every``, ... of a film, ``(count, size, size, 3)`` uint8 RGB."""
    if not path.exists():
        raise FileNotFoundError(f"no film {path}; there is one for every trajectory in {_STATES}")
    capture = cv2.VideoCapture(str(path))
    frames: list[NDArray[np.uint8]] = []
    try:
        for index in range((count - 1) * every + 1):
            more = capture.grab()
            if not more:
                raise ValueError(
                    f"{path} ends after {index} frames, but its trajectory needs {(count - 1) * every + 1};"
                    " the film is damaged or does not belong to it"
                )
            if index % every == 0:
                _, frame = capture.retrieve()
                small = cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA)
                frames.append(np.ascontiguousarray(small[..., ::-1]).astype(np.uint8))
    finally:
        capture.release()
    return np.stack(frames)


def _read_list(path: Path, count: int, kind: type[Any]) -> list[Any]:
    """A pickle of ``count`` whole numbers (list, tuple or integer array) or texts."""
    if not path.exists():
        raise FileNotFoundError(f"no file {path}; dino_wm's pusht_noise layout has one in every split")
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
    ) as error:
        raise ValueError(
            f"{path} cannot be read safely ({error}); store it as a plain list, for example with"
            " pickle.dump([int(n) for n in lengths], file)"
        ) from error
    values = content.values() if isinstance(content, _IntegerArray) else content
    if not isinstance(values, Sequence) or not all(type(value) is kind for value in values):
        raise ValueError(f"{path} holds {type(content).__name__}, expected a list of {kind.__name__}")
    if len(values) != count:
        raise ValueError(f"{path} has {len(values)} entries, but {_STATES} holds {count} trajectories")
    return list(values)


class _PlainUnpickler(pickle.Unpickler):
    """Reads built-in containers, numbers, texts and integer NumPy values; every other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            if name == "scalar":
                return _integer
            if name == "_reconstruct":
                return _IntegerArray
        if (module, name) == ("numpy", "dtype"):
            return _IntegerType
        if (module, name) == ("numpy", "ndarray"):
            return "ndarray"  # an argument of _reconstruct, never called
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _IntegerType:
    """Stands for the file's ``numpy.dtype``: 1 to 8 byte integers."""

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        if code not in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
            raise pickle.UnpicklingError(f"it holds numbers of type {code!r}, expected integers")
        self.code = code
        self.order = "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def read(self, data: bytes) -> list[int]:
        return [int(value) for value in np.frombuffer(data, dtype=np.dtype(self.order + self.code))]


class _IntegerArray:
    """Stands for the file's ``numpy.ndarray`` of one axis."""

    def __init__(self, *_: Any) -> None:
        self._values: list[int] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, _, data = state
        if len(shape) != 1 or not isinstance(kind, _IntegerType) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array that is not one row of integers")
        self._values = kind.read(data)

    def values(self) -> list[int]:
        return self._values


def _integer(kind: _IntegerType, data: bytes) -> int:
    """Stands for ``numpy.core.multiarray.scalar``."""
    (value,) = kind.read(data)
    return value
