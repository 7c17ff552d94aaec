"""Recorded episodes of robots from any folder: which format it has is found out, then its reader reads it.

Special: one function for users who have data and do not care how it lies on their disk. Nothing is decoded
before it is asked for.

Absent: PushT's outside data (``dino_wm``); copying into our own format (``rlvr-world convert``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from worldmodels.api import Episode
from worldmodels.episodes import EpisodeStore
from worldmodels.lerobot import INFO, read_lerobot
from worldmodels.recordings import Recording, check_frames, check_reading
from worldmodels.rlds import read_rlds, tfrecord_files
from worldmodels.rt1_npz import read_rt1_npz

OutsideFormat = Literal["auto", "store", "npz", "lerobot", "rlds"]
_LOOKS = {
    "store": "our own store (index.jsonl and shards)",
    "npz": ".npz files with image and action, one for each episode",
    "lerobot": f"a LeRobot folder of version 2 or 3 ({INFO})",
    "rlds": "RLDS (TFRecord files)",
}


def format_of(path: str | Path) -> OutsideFormat:
    """The format of a folder, or of a single file of one.

    Raises:
        FileNotFoundError: No such path.
        ValueError: None of the formats; names them.
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"no folder {place}; give one with recorded episodes")
    if (place / "index.jsonl").is_file():
        return "store"
    if (place / INFO).is_file():
        return "lerobot"
    if next(tfrecord_files(place), None):
        return "rlds"
    if (place.is_file() and place.suffix == ".npz") or (place.is_dir() and next(place.rglob("*.npz"), None)):
        return "npz"
    raise ValueError(f"{place} holds no recorded episodes; known are {'; '.join(_LOOKS.values())}")


def open_recordings(path: str | Path, *, format: OutsideFormat = "auto") -> Iterator[Recording]:
    """The recordings of a folder (or of a single file), in a fixed order; each is read when it is asked for.

    Raises:
        FileNotFoundError: No such path, or a file of it is missing.
        ImportError: The format needs the extra ``rt1``.
        ValueError: An unknown format, or a damaged folder; names what is wrong.
    """
    if format not in get_args(OutsideFormat):
        raise ValueError(f"unknown format {format!r}; choose one of {', '.join(get_args(OutsideFormat))}")
    found = format_of(path) if format == "auto" else format
    if found == "store":
        return _stored(EpisodeStore(path))
    readers = {"npz": read_rt1_npz, "lerobot": read_lerobot, "rlds": read_rlds}
    return readers[found](path)


def open_episodes(
    path: str | Path,
    *,
    format: OutsideFormat = "auto",
    image_size: tuple[int, int] | None = None,
    limit: int | None = None,
    max_steps: int | None = None,
) -> Iterator[Episode]:
    """The episodes of a folder (or of a single file), read one by one.

    Args:
        path: An ``EpisodeStore`` of frames, a folder of ``.npz`` files, a LeRobot folder, or RLDS files.
        format: Which of them; ``"auto"`` finds out.
        image_size: Height and width of frames in px; None: as recorded. Other proportions get black bars.
        limit: At most so many episodes.
        max_steps: At most so many steps of each; 0 reads first frames alone, which needs no actions.

    Returns:
        Episodes as :meth:`worldmodels.recordings.Recording.episode` gives them.

    Raises:
        FileNotFoundError: No such path, or a file of it is missing.
        ImportError: The format needs the extra ``rt1``.
        ValueError: A bad argument, no known format, or a damaged file; names what is wrong.
    """
    check_reading(image_size, max_steps)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; give at least 1, or None for all")
    recordings = islice(open_recordings(path, format=format), limit)
    return (recording.episode(image_size=image_size, max_steps=max_steps) for recording in recordings)


def first_frames(
    path: str | Path, *, image_size: tuple[int, int], limit: int | None = 1000
) -> tuple[NDArray[np.uint8], list[str]]:
    """Where the episodes of a folder begin: frames ``(N, H, W, 3)`` RGB and N instructions ("" if not known).

    Args and errors as in :func:`open_episodes`.
    """
    frames, instructions = [], []
    for episode in open_episodes(path, image_size=image_size, limit=limit, max_steps=0):
        frames.append(episode.observations[0])
        instructions.append(str(episode.info.get("instruction", "")))
    if not frames:
        raise ValueError(f"{path} holds no episode; give a folder of recorded episodes")
    return np.stack(frames), instructions


def _stored(store: EpisodeStore) -> Iterator[Recording]:
    for episode_id in store.ids():
        yield Recording(episode_id, partial(_load_stored, store, episode_id))


def _load_stored(store: EpisodeStore, episode_id: str, max_steps: int | None) -> Episode:
    """A stored episode of frames, cut; its instruction, stored once for each frame, becomes one text."""
    episode = store.episode(episode_id)
    if isinstance(episode.observations, dict):
        raise ValueError(
            f"{store.folder}: an observation has the parts {', '.join(episode.observations)}; expected a frame alone"
        )
    steps = len(episode) if max_steps is None else min(len(episode), max_steps)
    check_frames(f"{store.folder}, episode {episode_id}", episode.observations)
    info = {name: values[: steps + 1] for name, values in episode.info.items()}
    if "instruction" in info:
        info["instruction"] = str(info["instruction"][0])
    whole = steps == len(episode)
    return replace(
        episode,
        observations=np.asarray(episode.observations[: steps + 1]),
        actions=np.asarray(episode.actions[:steps]),
        rewards=np.asarray(episode.rewards[:steps]),
        terminated=episode.terminated and whole,
        truncated=episode.truncated or not whole,
        info=info,
    )
