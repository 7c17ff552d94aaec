"""Reads RT-1's data as LeRobot folders of versions 2.0, 2.1 and 3.0: tables in Parquet, films in MP4.

Special: films are mostly AV1, which OpenCV's wheels cannot decode, and tables are Parquet; both need the
extra ``rt1`` (PyAV and PyArrow). Paths that a folder's own description gives are used only if they stay in it.

The RT-1 port keeps 7 of RT-1's 13 numbers (x, y, z, roll, pitch, yaw, gripper). They become the 13 by these
rules:

- ``world_vector`` and ``rotation_delta`` are x, y, z and roll, pitch, yaw, unchanged;
- ``gripper_closedness_action`` is relative in RT-1 (1 closes, -1 opens, 0 leaves it), and the port keeps what
  it adds up to (1 open, 0 closed): it is 1 or -1 at the step where that changes, else 0. A change at the
  very first step, and the size of partial movements, are lost;
- the base stands still (zeros), and ``terminate_episode`` is (0, 1, 0), RT-1's mode "arm": the port leaves
  both out, and the last action of an episode, the only one that can end it, has no next frame anyway.

Absent: frames kept inside the tables, other cameras, actions of other robots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodels.api import Episode
from worldmodels.recordings import Recording, episode_of_log
from worldmodels.video.rt1_actions import RT1_ACTION_SIZE, RT1_PARTS

INFO = PurePosixPath("meta/info.json")
PORT_ACTION = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
_CAMERA = "observation.images.image"  # preferred where there are several
_ARM_MODE = (0.0, 1.0, 0.0)
_PATH = re.compile(
    r"([\w./-]|\{(episode_chunk|episode_index|chunk_index|file_index|video_key)(:0?\d{1,2}d)?\})+"
)
_EXTRA = "pip install 'rlvr-world-envs[rt1]'"


@dataclass(kw_only=True)
class _Folder:
    """What a folder's ``meta/info.json`` says, and the table that was read last: many episodes share one."""

    root: Path
    version: int
    camera: str
    fps: float
    chunk_episodes: int
    data_path: str
    video_path: str
    table: tuple[Path, NDArray[np.int64], NDArray[np.float64]] | None = field(default=None, repr=False)


def read_lerobot(folder: str | Path) -> Iterator[Recording]:
    """The recordings of a folder, by episode index.

    Raises:
        FileNotFoundError: No such folder, or a file of its description is missing; names it.
        ImportError: The extra ``rt1`` is not installed.
        ValueError: Another version, another robot, or a damaged description; names the file.
    """
    opened = _open(Path(folder))
    for entry in _episodes(opened):
        episode_id = f"{opened.root.resolve().name}-{entry['episode_index']:06d}"
        yield Recording(episode_id, partial(_load, opened, entry, episode_id))


def _open(root: Path) -> _Folder:
    path = root / INFO
    info = _json(path)
    try:
        version, features = str(info["codebase_version"]), info["features"]
        cameras = [name for name, feature in features.items() if feature.get("dtype") == "video"]
        names = features.get("action", {}).get("names")
        fps, chunk = float(info["fps"]), int(info.get("chunks_size", 1000))
        paths = info["data_path"], info.get("video_path")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a LeRobot data set ({error!r}); copy it again") from error
    if not re.match(r"v[23]\.", version):
        raise ValueError(f"{path}: version {version!r}; this reader knows v2.0, v2.1 and v3.0")
    while isinstance(names, dict | list) and len(names) == 1:  # {"motors": [...]} or [[...]]
        names = next(iter(names.values())) if isinstance(names, dict) else names[0]
    if not isinstance(names, list) or tuple(names) != PORT_ACTION:
        raise ValueError(
            f"{path}: the action is {names}; this reader knows {', '.join(PORT_ACTION)} of RT-1's port"
        )
    if len(cameras) != 1 and _CAMERA not in cameras:
        raise ValueError(f"{path}: the films are {cameras}; this reader takes the only one, or {_CAMERA!r}")
    for template in paths:
        if not isinstance(template, str) or not _PATH.fullmatch(template):
            raise ValueError(
                f"{path}: cannot use the path {template!r}; films and tables have to lie in files"
            )
    if not (fps > 0 and chunk > 0):
        raise ValueError(f"{path}: fps is {fps}, chunks_size {chunk}; both must be positive")
    return _Folder(
        root=root,
        version=int(version[1]),
        camera=_CAMERA if _CAMERA in cameras else cameras[0],
        fps=fps,
        chunk_episodes=chunk,
        data_path=paths[0],
        video_path=paths[1],
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"no file {path}; give the folder that holds meta, data and videos") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); copy it again") from error


def _episodes(folder: _Folder) -> list[dict[str, Any]]:
    """One entry per episode: index, length, tasks, and from version 3 where its rows and frames are."""
    film = f"videos/{folder.camera}/"
    places = ["data/chunk_index", "data/file_index", film + "chunk_index", film + "file_index"]
    places.append(film + "from_timestamp")
    if folder.version == 2:
        path = folder.root / "meta" / "episodes.jsonl"
        if not path.exists():
            raise FileNotFoundError(f"no file {path}; copy the folder's meta again")
        lines = path.read_text(encoding="utf-8").splitlines()
        try:
            entries = [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); copy it again") from error
        places = []
    else:
        path = folder.root / "meta" / "episodes"
        tables = sorted(path.rglob("*.parquet"))
        wanted = ["episode_index", "length", "tasks", *places]
        entries = [entry for table in tables for entry in _table(table, wanted).to_pylist()]
    try:
        for entry in entries:
            entry |= {name: int(entry[name]) for name in ("episode_index", "length", *places[:4])}
            if entry["length"] < 1 or entry["episode_index"] < 0:
                raise ValueError(f"episode {entry['episode_index']} has length {entry['length']}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not list episodes ({error!r}); copy it again") from error
    if not entries:
        raise FileNotFoundError(f"{path} lists no episode; copy the folder's meta again")
    return sorted(entries, key=lambda entry: int(entry["episode_index"]))


def _load(folder: _Folder, entry: Mapping[str, Any], episode_id: str, max_steps: int | None) -> Episode:
    length = entry["length"] if max_steps is None else min(entry["length"], max_steps + 1)
    index = entry["episode_index"]
    values = {"episode_index": index, "episode_chunk": index // folder.chunk_episodes}
    film, start = dict(values), 0.0
    if folder.version > 2:
        key = f"videos/{folder.camera}/"
        values |= {"chunk_index": entry["data/chunk_index"], "file_index": entry["data/file_index"]}
        film |= {"chunk_index": entry[key + "chunk_index"], "file_index": entry[key + "file_index"]}
        start = float(entry[key + "from_timestamp"])
    film_path = _inside(folder, folder.video_path, film)
    actions = None
    if max_steps != 0:
        path = _inside(folder, folder.data_path, values)
        actions = _actions(folder, path, index)
        if len(actions) != entry["length"]:
            raise ValueError(
                f"{path} has {len(actions)} rows of episode {index}, whose length is {entry['length']}; copy it again"
            )
    tasks = entry.get("tasks") or [None]
    return episode_of_log(
        str(film_path),
        episode_id=episode_id,
        frames=_film(film_path, start, length, folder.fps),
        actions=None if actions is None else to_rt1(actions),
        instruction=tasks[0] if isinstance(tasks[0], str) else None,
    )


def _inside(folder: _Folder, template: str, values: Mapping[str, Any]) -> Path:
    """A path of the folder's description, which must not lead out of the folder, and has to exist."""
    try:
        relative = PurePosixPath(template.format(**values, video_key=folder.camera))
    except KeyError as error:
        raise ValueError(f"{folder.root / INFO}: nothing says what {error} is in {template!r}") from error
    if relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{folder.root / INFO}: {relative} leads out of the folder")
    path = folder.root / relative
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}, though {INFO} names it; copy the folder again")
    return path


def _table(path: Path, columns: list[str]) -> Any:
    """Columns of a Parquet file as a ``pyarrow.Table``."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(f"LeRobot's tables need PyArrow ({error}): {_EXTRA}") from error
    try:
        with parquet.ParquetFile(path) as file:
            if missing := set(columns) - set(file.schema_arrow.names):
                raise ValueError(f"it has no column {', '.join(sorted(missing))}")
            return file.read(columns=columns)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a readable table ({error}); copy it again") from error


def _actions(folder: _Folder, path: Path, index: int) -> NDArray[np.float64]:
    """The actions ``(T, 7)`` of one episode."""
    if folder.table is None or folder.table[0] != path:
        table = _table(path, ["episode_index", "action"])
        try:
            flat = table["action"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            actions = np.asarray(flat, np.float64).reshape(table.num_rows, len(PORT_ACTION))
            indices = np.asarray(table["episode_index"].to_numpy(), np.int64)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: column 'action' does not hold {len(PORT_ACTION)} numbers a row ({error})"
            ) from error
        folder.table = path, indices, actions
    return folder.table[2][folder.table[1] == index]


def to_rt1(actions: NDArray[Any]) -> NDArray[np.float32]:
    """The port's actions ``(T, 7)`` of one whole episode as RT-1's ``(T, 13)``; see the module for the rules."""
    closed = (np.asarray(actions[:, 6]) <= 0.5).astype(np.float32)
    converted = np.zeros((len(actions), RT1_ACTION_SIZE), np.float32)
    converted[:, RT1_PARTS["world_vector"]] = actions[:, :3]
    converted[:, RT1_PARTS["rotation_delta"]] = actions[:, 3:6]
    converted[1:, RT1_PARTS["gripper_closedness_action"].start] = np.diff(closed)
    converted[:, RT1_PARTS["terminate_episode"]] = _ARM_MODE
    return converted


def _film(path: Path, start: float, count: int, fps: float) -> NDArray[np.uint8]:
    """``count`` frames of a film from ``start`` (s) on, ``(count, H, W, 3)`` RGB."""
    try:
        import av
    except ImportError as error:
        raise ImportError(f"LeRobot's films need PyAV ({error}): {_EXTRA}") from error
    frames: list[NDArray[Any]] = []
    try:
        # The format is named, so that a file that only looks like a film cannot make FFmpeg open others.
        with av.open(str(path.resolve()), format="mp4") as container:
            stream = container.streams.video[0]
            if start > 0 and stream.time_base:
                container.seek(int(start / stream.time_base), stream=stream, backward=True)
            for frame in container.decode(stream):
                if frame.time is None or frame.time < start - 0.5 / fps:
                    continue
                expected = start + len(frames) / fps
                if abs(frame.time - expected) > 0.5 / fps:
                    raise ValueError(f"a frame is at {frame.time:.3f} s, expected at {expected:.3f} s")
                frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    break
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a readable film ({error}); copy it again") from error
    if len(frames) < count:
        raise ValueError(
            f"{path} ends after {len(frames)} of the {count} frames from {start:.3f} s on; copy it again"
        )
    return np.stack(frames)
