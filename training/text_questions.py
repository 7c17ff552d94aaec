"""Questions to language models about text games: a prompt, the state that it asks about, and the true next state.

Special: one type for imitation, rejection sampling and GRPO. It is made of transitions with any function that words a
question, or of ByteSized32 records with any function of a whole record (the published prompt shows rules and texts
that a bare state does not have). What is held out is decided by names alone, so imitation, rejection sampling and GRPO
hold out the same games and turns whatever part of the data they see.

Absent: prompts themselves, tokens and models.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from training.rewards.states import published_state
from training.text_data import load_rows, nothing_usable, split_files
from worldmodels.language.causal_lm_world import Prompt
from worldmodels.language.game_state import GameState, record_states
from worldmodels.language.json_lines import read_json_lines, warn_left_out
from worldmodels.language.prompts import PromptTemplate, compact_prompt
from worldmodels.language.published_prompt import TEMPLATE
from worldmodels.language.transitions import GameTransition, transition_files

_HELD_OUT_TURNS = 20  # one of so many episodes


@dataclass(frozen=True, kw_only=True, eq=False)
class TextQuestion:
    """One question.

    Attributes:
        id: Unique among those that are asked together.
        game: Name of the game.
        prompt: The question as text.
        before: The state that it asks about.
        after: The true next state.
    """

    id: str
    game: str
    prompt: str
    before: GameState
    after: GameState

    @cached_property
    def changed(self) -> bool:
        """Whether the true next state is another one."""
        return self.after != self.before

    @cached_property
    def data_state(self) -> str:
        """The state before as JSON of the published form: what rewards by text want."""
        return published_state(self.before)

    @cached_property
    def ground_truth(self) -> str:
        """The true next state, likewise."""
        return published_state(self.after)


def questions_of(rows: Iterable[GameTransition], prompt: Prompt) -> list[TextQuestion]:
    """A question for each transition."""
    return [
        TextQuestion(
            id=row.id,
            game=row.game,
            prompt=prompt(row.before, row.action, row.game),
            before=row.before,
            after=row.after,
        )
        for row in rows
    ]


def record_questions(
    path: str | Path, build: Callable[[Mapping[str, Any]], str], *, broken: list[str] | None = None
) -> list[TextQuestion]:
    """A question for each ByteSized32 record of a file, or of all files of a folder.

    Args:
        path: JSON lines, maybe gzipped.
        build: Words the question, for example ``PromptTemplate.build``.
        broken: Collects what is wrong with records that cannot be used (``"file:line: why"``); None: the first
            such record raises.

    Raises:
        FileNotFoundError: There is nothing to read.
        ValueError: A record is no transition or cannot be worded, and ``broken`` is None; or an archive is damaged.
    """
    read = partial(_record_question, build=build)
    return [one for file in transition_files(path) for one in read_json_lines(file, read, broken=broken)]


def read_questions(folder: str | Path, split: str) -> tuple[list[TextQuestion], str]:
    """The questions of a split: with the published prompt where the folder holds ``prompt.json``, else a compact one.

    Lines that cannot be used are left out, with a warning that names them.

    Args:
        folder: Transitions as JSON lines, split by file name (``train.jsonl.gz``); with ``prompt.json`` they have to
            be ByteSized32 records.
        split: Word in the names of the files that are read; no others are opened.

    Returns:
        Questions, and a hash of all that they were made of.

    Raises:
        FileNotFoundError: The split has no file.
        ValueError: No line can be used, or an archive is damaged.
    """
    template = Path(folder) / TEMPLATE
    if not template.is_file():
        rows, rows_hash = load_rows(folder, split)
        return questions_of(rows, compact_prompt), f"{rows_hash} compact"
    build = PromptTemplate.load(template).build
    files = split_files(folder, split)
    sha = hashlib.sha256(template.read_bytes())
    for file in files:
        sha.update(file.read_bytes())
    broken: list[str] = []
    found = [question for file in files for question in record_questions(file, build, broken=broken)]
    warn_left_out(broken)
    if not found:
        raise ValueError(nothing_usable(folder, split, broken))
    return found, f"{sha.hexdigest()[:16]} published"


def held_out(question_id: str, game: str, games: Collection[str]) -> bool:
    """Whether a turn is kept for validation: of one of ``games``, or of one twentieth of all episodes.

    Args:
        question_id: Up to the last ``/`` it names the episode.
        game: Name of the turn's game.
        games: Of which nothing is trained on.
    """
    episode = question_id.rpartition("/")[0]
    return game in games or zlib.crc32(episode.encode()) % _HELD_OUT_TURNS == 0


def balanced(changed: Sequence[bool], unchanged_per_100: int | None) -> list[int]:
    """Places with so many unchanged ones for every 100 changed ones, in order.

    Of whichever kind there are too many, some are left out, evenly spread; of the other kind none.

    Args:
        changed: What each place is.
        unchanged_per_100: None keeps all places.
    """
    if unchanged_per_100 is None:
        return list(range(len(changed)))
    if unchanged_per_100 < 0:
        raise ValueError(
            f"unchanged_per_100 is {unchanged_per_100}; it must be at least 0, or None to keep all"
        )
    kinds = {
        kind: [place for place, mine in enumerate(changed) if bool(mine) is kind] for kind in (True, False)
    }
    wanted = round(len(kinds[True]) * unchanged_per_100 / 100)
    if wanted <= len(kinds[False]):
        kinds[False] = _spread(kinds[False], wanted)
    elif kinds[False]:
        kinds[True] = _spread(kinds[True], max(1, round(len(kinds[False]) * 100 / unchanged_per_100)))
    return sorted(kinds[True] + kinds[False])


def _spread(places: list[int], count: int) -> list[int]:
    return [places[n] for n in np.linspace(0, len(places) - 1, count).astype(int)] if count else []


def _record_question(record: Any, place: str, build: Callable[[Mapping[str, Any]], str]) -> TextQuestion:
    if not isinstance(record, Mapping) or not isinstance(record.get("game"), str):
        raise ValueError("a record is a JSON object with the name of its 'game'")
    before, after = record_states(record)
    game = record["game"]
    name = f"{game}/{record.get('state_id')}/{place}"
    return TextQuestion(id=name, game=game, prompt=build(record), before=before, after=after)
