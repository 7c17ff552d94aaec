"""``rlvr-world convert``: copy recorded episodes of any known format into our own store, cut to one length.

Special: the pieces of one recording end up in one split. A split is a function of an episode's id, so a
piece's id is the first of ``<id>-<k>``, ``<id>-<k>.1``, ``<id>-<k>.2``, ... that falls into the split of
``<id>``; otherwise a model would be tested on recordings that it was trained on.

An interrupted copy goes on: a recording whose first piece is in the store is not read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from training.commands.collect import show_splits
from training.commands.console import console, on_interrupt

if TYPE_CHECKING:
    from worldmodels.api import Episode
    from worldmodels.episodes import EpisodeWriter
    from worldmodels.recordings import Recording

_SHARD_BYTES = 256 * 2**20  # of frames: what an interruption can lose, and about half of what memory needs
_SETTINGS = "conversion.json"


def convert(
    source: Positional[Path],
    *,
    folder: Path,
    length: int | None = None,
    image_size: tuple[int, int] | None = None,
    limit: int | None = None,
    format: Literal["auto", "npz", "lerobot", "rlds"] = "auto",
) -> None:
    """Copy recorded RT-1 episodes into a store that 'rlvr-world train' reads. Interrupted, the same command goes on.

    Args:
        source: Folder of .npz episodes (image, action), a LeRobot folder, RLDS (TFRecord) files, or one of our stores.
        folder: Where to.
        length: Cut recordings into pieces of so many steps, as training needs them; what is left over at the end of
            one is not copied. None: whole recordings.
        image_size: Height and width of frames in px, for example 256 320; None: as recorded. Frames of other
            proportions get black bars.
        limit: Take the first so many recordings only. A larger number later adds to the same folder.
        format: Format of the source; auto finds out.
    """
    for name, value in (("--length", length), ("--limit", limit)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    from itertools import islice

    from worldmodels.episodes import EpisodeStore, EpisodeWriter
    from worldmodels.outside import open_recordings
    from worldmodels.recordings import check_reading

    check_reading(image_size, None)
    if folder.exists() and source.exists() and folder.resolve() == source.resolve():
        raise ValueError(f"--folder is the source itself, {folder}; give another one")
    # Only their places are listed here: a damaged folder is reported before anything is written.
    recordings = list(islice(open_recordings(source, format=format), limit))
    with EpisodeWriter(folder, shard_episodes=2**62) as writer:
        _keep_settings(folder, {"length": length, "image_size": image_size and list(image_size)})
        with on_interrupt(f"what was copied is kept in {folder}; run the same command again to go on"):
            short, left_over = _copy(recordings, writer, length=length, image_size=image_size)
    if not (folder / "index.jsonl").exists():
        raise ValueError(f"none of the {len(recordings)} recordings in {source} has {length or 1} steps")
    store = EpisodeStore(folder)
    _say_what_was_left_out(store, length, short, left_over)
    show_splits(store)
    console.print(f"data: {store.folder} ({len(store)} episodes, digest {store.digest()})")


def _copy(
    recordings: list[Recording],
    writer: EpisodeWriter,
    *,
    length: int | None,
    image_size: tuple[int, int] | None,
) -> tuple[int, int]:
    """Copy what is not there yet; how many recordings were too short, and how many steps were left over."""
    from tqdm import tqdm

    short = left_over = pending = 0
    size = _size_of_what_is_there(writer.folder)
    for recording in tqdm(recordings, unit="recording", desc="convert"):
        first = recording.id if length is None else piece_id(recording.id, 0)
        if first in writer:
            continue
        episode = recording.episode(image_size=image_size)
        if len(episode) < (length or 1):
            short += 1
            continue
        size = size or episode.observations.shape[1:]
        if episode.observations.shape[1:] != size:
            raise ValueError(
                f"{recording.id} has frames of {episode.observations.shape[1:3]} px, those before it {size[:2]}; give"
                " --image-size"
            )
        left_over += len(episode) % length if length else 0
        # The first piece comes last: where it is, all of them are, whenever the copying was interrupted.
        for piece in reversed(list(pieces(episode, length))):
            if piece.id not in writer:
                writer.add(piece)
        pending += episode.observations.nbytes
        if pending >= _SHARD_BYTES:
            writer.flush()
            pending = 0
    return short, left_over


def _size_of_what_is_there(folder: Path) -> tuple[int, ...] | None:
    """Shape of the frames in a store that is continued; None where nothing is stored yet."""
    from worldmodels.episodes import EpisodeStore

    if not (folder / "index.jsonl").exists():
        return None
    store = EpisodeStore(folder)
    shape: tuple[int, ...] = store.episode(store.ids()[0]).observations.shape[1:]
    return shape


def pieces(episode: Episode, length: int | None) -> Iterator[Episode]:
    """An episode as it is stored: cut into pieces of ``length`` steps (None: whole).

    Its instruction becomes ``(T+1,)`` texts. Neighbouring pieces share a frame, the last of one and the first of
    the next.
    """
    from worldmodels.api import Episode

    count = 1 if length is None else len(episode) // length
    for number in range(count):
        start = number * (length or 0)
        stop = start + (length or len(episode))
        ends = stop == len(episode)
        yield Episode(
            id=episode.id if length is None else piece_id(episode.id, number),
            observations=episode.observations[start : stop + 1],
            actions=episode.actions[start:stop],
            rewards=episode.rewards[start:stop],
            terminated=episode.terminated and ends,
            truncated=episode.truncated or not ends,
            info=_info(episode, start, stop),
        )


def _info(episode: Episode, start: int, stop: int) -> dict[str, Any]:
    import numpy as np

    parts: dict[str, Any] = {
        name: values[start : stop + 1] for name, values in episode.info.items() if name != "instruction"
    }
    return parts | {"instruction": np.full(stop + 1 - start, str(episode.info.get("instruction", "")))}


def piece_id(episode_id: str, number: int) -> str:
    """Id of a recording's piece, in the split of the recording; see the module."""
    from itertools import count

    from worldmodels.episodes import split_of

    name = f"{episode_id}-{number}"
    wanted = split_of(episode_id)
    tries = (name if attempt == 0 else f"{name}.{attempt}" for attempt in count())
    return next(attempt for attempt in tries if split_of(attempt) == wanted)


def _keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write down how the store is made; a store that is continued must be continued in the same way.

    Raises:
        ValueError: It holds other episodes, or was made in another way.
    """
    path = folder / _SETTINGS
    if (folder / "index.jsonl").exists():
        before = json.loads(path.read_text()) if path.exists() else "another command"
        if before != settings:
            raise ValueError(
                f"the episodes in {folder} were made with {before}, not with {settings}; use the same settings or"
                " another folder"
            )
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(settings))
    os.replace(temporary, path)


def _say_what_was_left_out(store: Any, length: int | None, short: int, left_over: int) -> None:
    if short:
        console.print(f"left out: {short} recordings of fewer than {length or 1} steps")
    if left_over:
        console.print(f"left out: {left_over} steps at the ends of recordings")
    lengths = {len(episode) for episode in store}
    if len(lengths) > 1:
        console.print(
            f"episodes have {min(lengths)} to {max(lengths)} steps; training needs one length, see --length"
        )
