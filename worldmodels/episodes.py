"""Episodes on disk: one folder of memory-mapped arrays that training can sample at random.

Special: a shard is a set of ``.npy`` files in which many episodes lie end to end, so reading a window costs
no decompression and no unpickling; ``index.jsonl`` gets an episode's line only after its shard is complete,
so an interrupted collection loses at most the shard being written and never shows a half-written one. Train,
validation and test are a function of the episode's id.

Absent: outside formats; their readers stand beside this file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from worldmodels.api import Episode

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

_INDEX = "index.jsonl"
_FORMAT = 1


def split_of(episode_id: str) -> Split:
    """The split an episode belongs to: 96 % train, 2 % validation, 2 % test, decided by a hash of its id."""
    number = int.from_bytes(hashlib.sha256(episode_id.encode()).digest()[:8], "big") % 100
    return "test" if number < 2 else "validation" if number < 4 else "train"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    id: str
    shard: str
    frame_start: int  # first row in the shard's per-observation arrays
    step_start: int  # first row in the shard's per-step arrays
    steps: int
    terminated: bool
    truncated: bool


def _per_observation(episode: Episode) -> dict[str, NDArray[Any]]:
    """Arrays with T + 1 rows: the observation's parts and the recorded info of the same length."""
    observations = episode.observations
    parts = observations if isinstance(observations, dict) else {"observation": observations}
    arrays = {f"observation.{key}": np.asarray(value) for key, value in parts.items()}
    arrays |= {f"info.{key}": np.asarray(value) for key, value in episode.info.items()}
    for key, value in arrays.items():
        if value.ndim == 0 or len(value) != len(episode) + 1:
            raise ValueError(
                f"episode {episode.id!r}: {key} has shape {value.shape}, expected {len(episode) + 1} rows"
            )
    return arrays


class EpisodeWriter:
    """Appends episodes to a folder; use it as a context manager.

    Args:
        folder: Created if absent. An existing store is continued; leftovers of an interrupted shard are removed.
        shard_episodes: Episodes per shard: what an interruption can lose.

    Raises:
        PermissionError: The folder cannot be written; the message names it.
    """

    def __init__(self, folder: str | Path, *, shard_episodes: int = 500) -> None:
        self.folder = Path(folder)
        self.shard_episodes = shard_episodes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise PermissionError(
                f"cannot write episodes to {self.folder}: {error}; choose another folder"
            ) from error
        for leftover in self.folder.glob("*.partial"):
            shutil.rmtree(leftover)
        self._known = {entry.id for entry in _read_index(self.folder)}
        self._pending: list[Episode] = []

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        # After an error the pending episodes are still whole: keep them.
        self.flush()

    def __contains__(self, episode_id: str) -> bool:
        """Whether the store already holds an episode of that id: how a resumed collection skips what is done."""
        return episode_id in self._known

    def add(self, episode: Episode) -> None:
        """Append one episode.

        Raises:
            ValueError: Its id is already there, or an array has the wrong number of rows.
        """
        if episode.id in self._known:
            raise ValueError(f"episode id {episode.id!r} is already in {self.folder}; ids must be unique")
        _per_observation(episode)
        self._known.add(episode.id)
        self._pending.append(episode)
        if len(self._pending) >= self.shard_episodes:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one shard, then its index lines."""
        if not self._pending:
            return
        name = f"shard-{len(list(self.folder.glob('shard-*'))):05d}"
        partial = self.folder / f"{name}.partial"
        partial.mkdir()
        columns = [_per_observation(episode) for episode in self._pending]
        for key in columns[0]:
            np.save(partial / f"{key}.npy", np.concatenate([column[key] for column in columns]))
        np.save(partial / "actions.npy", np.concatenate([np.asarray(e.actions) for e in self._pending]))
        np.save(partial / "rewards.npy", np.concatenate([np.asarray(e.rewards) for e in self._pending]))
        os.replace(partial, self.folder / name)
        lines, frame, step = [], 0, 0
        for episode in self._pending:
            entry = _Entry(
                id=episode.id,
                shard=name,
                frame_start=frame,
                step_start=step,
                steps=len(episode),
                terminated=episode.terminated,
                truncated=episode.truncated,
            )
            lines.append(json.dumps({"format": _FORMAT, **entry.__dict__}))
            frame, step = frame + len(episode) + 1, step + len(episode)
        index = self.folder / _INDEX
        whole = (index.read_text() if index.exists() else "") + "\n".join(lines) + "\n"
        temporary = index.with_suffix(".tmp")
        temporary.write_text(whole)
        os.replace(temporary, index)
        self._pending = []


def _read_index(folder: Path) -> list[_Entry]:
    index = folder / _INDEX
    if not index.exists():
        return []
    entries = []
    for number, line in enumerate(index.read_text().splitlines(), start=1):
        try:
            fields = json.loads(line)
            if fields.pop("format") != _FORMAT:
                raise ValueError("unknown format number")
            entries.append(_Entry(**fields))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{index}, line {number}, is not an episode: {error}; delete the line to use the rest"
            ) from error
    return entries


class EpisodeStore:
    """Read access to a folder of episodes.

    Args:
        folder: Written by ``EpisodeWriter``.

    Raises:
        FileNotFoundError: No index in the folder, or a shard of the index is missing; says what to run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._entries = {entry.id: entry for entry in _read_index(self.folder)}
        if not self._entries:
            raise FileNotFoundError(
                f"no episodes in {self.folder} ({_INDEX} is missing or empty); collect some first, for example: "
                f"rlvr-world collect pusht --episodes 1000 --folder {self.folder}"
            )
        self._arrays: dict[str, dict[str, NDArray[Any]]] = {}
        for shard in {entry.shard for entry in self._entries.values()}:
            files = sorted((self.folder / shard).glob("*.npy"))
            if not files:
                raise FileNotFoundError(
                    f"{self.folder / shard} is named in {_INDEX} but is missing; copy the store "
                    "again or delete its lines"
                )
            try:
                self._arrays[shard] = {
                    file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files
                }
            except ValueError as error:
                raise ValueError(
                    f"{self.folder / shard} is damaged: {error}; collect or copy it again"
                ) from error

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(episode_id) for episode_id in self._entries)

    def ids(self, split: Split | None = None) -> list[str]:
        """Ids in the order they were written, of one split or of all.

        Raises:
            ValueError: Unknown split.
        """
        if split is not None and split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
        return [name for name in self._entries if split is None or split_of(name) == split]

    def episode(self, episode_id: str) -> Episode:
        """One episode; its arrays are read-only views into the files.

        Raises:
            KeyError: No such id.
        """
        if episode_id not in self._entries:
            raise KeyError(f"no episode {episode_id!r} in {self.folder}, which holds {len(self)} episodes")
        entry = self._entries[episode_id]
        arrays = self._arrays[entry.shard]
        frames = slice(entry.frame_start, entry.frame_start + entry.steps + 1)
        steps = slice(entry.step_start, entry.step_start + entry.steps)
        observations: dict[str, Any] = {}
        info: dict[str, Any] = {}
        for key, array in arrays.items():
            group, _, name = key.partition(".")
            if group == "observation":
                observations[name] = array[frames]
            elif group == "info":
                info[name] = array[frames]
        single = list(observations) == ["observation"]
        return Episode(
            id=episode_id,
            observations=observations["observation"] if single else observations,
            actions=arrays["actions"][steps],
            rewards=arrays["rewards"][steps],
            terminated=entry.terminated,
            truncated=entry.truncated,
            info=info,
        )

    def stack(self, key: str, episode_ids: Sequence[str]) -> NDArray[Any]:
        """One array of many episodes of equal length, stacked ``(N, T+1 or T, ...)``.

        ``key`` is ``"actions"``, ``"rewards"``, ``"observation.<part>"`` or ``"info.<name>"``.

        Raises:
            KeyError: Unknown key; lists what exists.
        """
        rows = []
        for episode_id in episode_ids:
            entry = self._entries[episode_id]
            arrays = self._arrays[entry.shard]
            if key not in arrays:
                raise KeyError(f"no array {key!r} in {self.folder}; there are {', '.join(sorted(arrays))}")
            if key in ("actions", "rewards"):
                rows.append(arrays[key][entry.step_start : entry.step_start + entry.steps])
            else:
                rows.append(arrays[key][entry.frame_start : entry.frame_start + entry.steps + 1])
        return np.stack(rows)

    def digest(self) -> str:
        """16 hex digits that name the content: a hash of the index and of every shard's first and last bytes."""
        sha = hashlib.sha256((self.folder / _INDEX).read_bytes())
        for shard in sorted(self._arrays):
            for key in sorted(self._arrays[shard]):
                array = self._arrays[shard][key]
                sha.update(f"{shard} {key} {array.shape} {array.dtype}".encode())
                sha.update(
                    np.ascontiguousarray(array[:1]).tobytes() + np.ascontiguousarray(array[-1:]).tobytes()
                )
        return sha.hexdigest()[:16]


def write_all(folder: str | Path, episodes: Iterable[Episode]) -> EpisodeStore:
    """Write episodes to a folder and open it."""
    with EpisodeWriter(folder) as writer:
        for episode in episodes:
            writer.add(episode)
    return EpisodeStore(folder)
