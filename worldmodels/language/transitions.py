"""Recorded transitions of text games: JSON lines in, states before and after an action out.

Special: two line formats are read, this project's own (``write_transitions``) and that of
ByteSized32-State-Prediction; a broken line is named by file and line and costs that line only.

Absent: the data themselves, and which split a transition belongs to.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldmodels.language.game_state import (
    GameObject,
    GameState,
    parse_state,
    record_states,
    same_object,
)
from worldmodels.language.json_lines import read_json_lines

SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class GameTransition:
    """One turn of a game.

    Attributes:
        id: Unique in its file, for example ``"boil-water/17/4"``. Up to the last ``/`` it names the episode.
        game: Name of the game.
        before: The state that is acted in.
        action: The action's text.
        after: The state after action and time tick.
    """

    id: str
    game: str
    before: GameState
    action: str
    after: GameState

    @property
    def episode(self) -> str:
        """What rows that are not independent of each other have in common."""
        return self.id.rpartition("/")[0]


def transition_files(path: str | Path) -> list[Path]:
    """The files of JSON lines in a folder, by name, or the file itself.

    Raises:
        FileNotFoundError: There is nothing there, or no such file in the folder.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    found = sorted(p for p in path.glob("*") if p.name.endswith(SUFFIXES)) if path.is_dir() else []
    if not found:
        raise FileNotFoundError(
            f"{path} holds no transitions; expected a file or a folder with {' or '.join(SUFFIXES)} files"
        )
    return found


def read_transitions(path: str | Path, *, broken: list[str] | None = None) -> Iterator[GameTransition]:
    """The transitions of a file, or of all files of a folder, one by one.

    Args:
        path: See ``transition_files``.
        broken: Collects what is wrong with each line that cannot be used (``"file:line: why"``); None: the first
            such line raises.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: A line is no transition and ``broken`` is None; or an archive is damaged.
    """
    last: GameTransition | None = None

    def read(record: Any, place: str) -> GameTransition:
        nonlocal last
        last = _transition(record, place, last)
        return last

    for file in transition_files(path):
        yield from read_json_lines(file, read, broken=broken)


def write_transitions(path: str | Path, transitions: Iterable[GameTransition]) -> int:
    """Write gzipped JSON lines in this project's own format; the number written. The file appears when it is whole."""
    path = Path(path)
    if not path.name.endswith(".jsonl.gz"):
        raise ValueError(f"{path} does not end in .jsonl.gz; transitions are written as gzipped JSON lines")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = 0
    with (
        partial.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, filename="", mode="wb", mtime=0, compresslevel=6) as file,
    ):
        for turn in transitions:
            line = {
                "id": turn.id,
                "game": turn.game,
                "action": turn.action,
                "before": _listed(turn.before),
                "after": _listed(turn.after),
            }
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            count += 1
    os.replace(partial, path)
    return count


def _transition(record: Any, place: str, last: GameTransition | None) -> GameTransition:
    if not isinstance(record, Mapping):
        raise ValueError(f"a transition is a JSON object, not a {type(record).__name__}")
    game = record.get("game")
    if not isinstance(game, str):
        raise ValueError(f"'game' is {game!r}; expected a text")
    if (
        "current_state" in record
    ):  # ByteSized32-State-Prediction; one file holds one row for each state id and action
        before, after = record_states(record)
        acted = record.get("action_state")
        action = acted.get("lastAction") if isinstance(acted, Mapping) else None
        name = f"{game}/{record.get('state_id')}/{place}"
    else:
        before, after = parse_state(record.get("before") or {}), parse_state(record.get("after") or {})
        action, name = record.get("action"), str(record.get("id") or place)
    if not isinstance(action, str):
        raise ValueError(f"the action is {action!r}; expected a text")
    # Most objects stay as they are, from line to line and in a transition: keep them once.
    if last is not None:
        before = _shared(before, last.before)
    same = {uuid: old for uuid, old in before.objects.items() if _stays(old, after.objects.get(uuid))}
    after = replace(after, objects={uuid: same.get(uuid, item) for uuid, item in after.objects.items()})
    return GameTransition(id=name, game=game, before=before, action=action, after=after)


def _shared(state: GameState, other: GameState) -> GameState:
    """The same state, of the other's objects as far as they are equal to its own."""
    objects = {
        uuid: known if (known := other.objects.get(uuid)) == item else item
        for uuid, item in state.objects.items()
    }
    unchanged = list(objects) == list(other.objects) and all(
        item is other.objects[uuid] for uuid, item in objects.items()
    )
    if unchanged and state.scores() == other.scores():
        return other
    return replace(state, objects=objects)


def _stays(old: GameObject, new: GameObject | None) -> bool:
    return new is not None and same_object(old, new)


def _listed(state: GameState) -> dict[str, Any]:
    return {"objects": list(state.objects.values()), **state.scores()}
