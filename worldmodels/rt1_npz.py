"""Reads the published code's episodes: one ``.npz`` file each, with ``image`` and ``action``.

Special: an array is read from its zip member's start and only as far as it is needed, after its header has
been checked, so a first frame costs one frame. Nothing is unpickled: arrays of objects are refused.

Layout, as its converter of ``fractal20220817_data`` writes it (T frames at 3 Hz)::

    train_eps_00000000.npz     image   (T, H, W, 3) uint8 RGB
                               action  (T, 13)      numbers, the parts of RT-1's action in alphabetical order

An older converter wrote ``image`` alone; such files give first frames and nothing else.

Absent: instructions, which the format does not keep; the published split by file number: ``EpisodeStore``
splits by id.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from worldmodels.api import Episode
from worldmodels.recordings import Recording, episode_of_log

_IMAGE, _ACTION = "image", "action"


def read_rt1_npz(path: str | Path) -> Iterator[Recording]:
    """The recordings of a folder (and the folders in it), in the order of their names, or of one file.

    Raises:
        FileNotFoundError: No such file or folder, or none in it; names it.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted(root.rglob("*.npz"))
    if not files:
        raise FileNotFoundError(
            f"no .npz file in {root}; give the folder that holds one file for each episode"
        )
    name = root.resolve().stem if root.is_file() else root.resolve().name
    for file in files:
        inside = "" if root.is_file() else "-" + "-".join(file.relative_to(root).with_suffix("").parts)
        yield Recording(name + inside, partial(_load, file, name + inside))


def _load(file: Path, episode_id: str, max_steps: int | None) -> Episode:
    try:
        with zipfile.ZipFile(file) as archive:
            frames, total = _array(archive, _IMAGE, None if max_steps is None else max_steps + 1)
            actions = None
            if max_steps != 0:
                actions, count = _array(archive, _ACTION, None)
                if count != total:
                    raise ValueError(f"it holds {total} frames and {count} actions; expected as many of both")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a readable episode: {error}; copy it again or delete it") from error
    return episode_of_log(str(file), episode_id=episode_id, frames=frames, actions=actions)


def _array(archive: zipfile.ZipFile, key: str, rows: int | None) -> tuple[NDArray[Any], int]:
    """At most the first ``rows`` rows of an array, and how many rows it has."""
    names = archive.namelist()
    if f"{key}.npy" not in names:
        raise ValueError(f"it has no array {key!r}, only {', '.join(names) or 'nothing'}")
    with archive.open(f"{key}.npy") as member:
        header = npy.read_array_header_1_0 if npy.read_magic(member) == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = header(member)
        if dtype.kind not in "uif" or fortran_order or not shape:
            raise ValueError(f"array {key!r} has dtype {dtype} and shape {shape}; expected numbers in rows")
        taken = shape[0] if rows is None else min(rows, shape[0])
        size = taken * math.prod(shape[1:]) * dtype.itemsize
        content = member.read(size)
        if len(content) != size:
            raise ValueError(f"array {key!r} ends after {len(content)} of {size} bytes")
    # A copy, because a view into bytes cannot be written to.
    return np.frombuffer(content, dtype).reshape(taken, *shape[1:]).copy(), int(shape[0])
