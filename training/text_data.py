"""Transitions of text games for training: made with the games themselves, or read from files, then as tokens.

Special: with ``collect`` and ``collect_drawer`` one of the few training files that know simulators. Variations of a
split are never those of another, one game is in no training file at all, and rows of one way through a game, and of
one search beside it, are thinned out so that many different ones fit. What is written is a function of the
configuration alone.

Absent: models and losses.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import Game, transitions
from training.provenance import weights_sha256
from training.text_mistaken import MistakenConfig, mistaken_rows
from training.text_searched import SearchedConfig, each_kind, searched_rows
from worldmodels.language.compact_answers import name_within, write_compact
from worldmodels.language.compact_questions import Question, Schema, ask
from worldmodels.language.json_lines import warn_left_out
from worldmodels.language.slot_world import SlotWorldModel
from worldmodels.language.transitions import (
    GameTransition,
    read_transitions,
    transition_files,
    write_transitions,
)
from worldmodels.language.words import Vocabulary

HELD_OUT_GAME = "measure-water"  # in no training or validation file
SPLITS = ("train", "posttrain", "validation", "test")
# Only these get lessons from a model's mistakes: it is measured on what it did not choose.
LEARNT_SPLITS = ("train", "posttrain")
TEST_VARIATION = 401_000
"""First variation of the test split. Those from 300,000 were the test once, and were looked at while recipes were
chosen; that of 400,000 served to try the commands. Bundled first states begin at 500,000, games that are planned at
700,000, trials of the search at 800,000."""
FIRST_VARIATION = {"train": 0, "posttrain": 100_000, "validation": 200_000, "test": TEST_VARIATION}
SEARCHED = 50_000  # variations are searched that are nobody's way
MISTAKEN = 75_000  # and a model is searched in others again


@dataclass(frozen=True, kw_only=True)
class TextCollectConfig:
    """What to collect.

    Attributes:
        variations: Ways through each game in the split ``train``, and as many searches in other variations of it;
            the other splits have their shares of it.
        random_shares: Way number n goes astray with probability ``random_shares[n % 4]`` at every step, see
            ``engine.transitions``; so does the way to where search number n begins.
        rows: Rows kept of each way besides its own steps, at most, see ``text_searched.each_kind``.
        search: How much of the true games is searched and kept.
        mistaken: How much of a model is searched and kept, see ``collect_mistaken``.
        held_out: The game that only the test split has.
    """

    variations: int = 500
    random_shares: tuple[float, float, float, float] = (0.0, 0.2, 0.5, 1.0)
    rows: int = 20
    search: SearchedConfig = field(default_factory=SearchedConfig)
    mistaken: MistakenConfig = field(default_factory=MistakenConfig)
    held_out: str = HELD_OUT_GAME

    def __post_init__(self) -> None:
        if not 1 <= self.variations <= MISTAKEN - SEARCHED:
            raise ValueError(
                f"variations is {self.variations}; it must be in [1, {MISTAKEN - SEARCHED:,}], or splits share some"
            )


_SHARES = {"train": 1.0, "posttrain": 0.25, "validation": 0.06, "test": 0.08}


def collect_text_games(folder: str | Path, config: TextCollectConfig) -> dict[str, int]:
    """Write one file of transitions per split; the number of rows of each. Files that are there stay."""
    folder = Path(folder)
    counts: dict[str, int] = {}
    for split in SPLITS:
        path = folder / f"{split}.jsonl.gz"
        if path.exists():
            continue
        rows = _split_rows(split, config)
        counts[split] = write_transitions(path, tqdm(rows, desc=split, unit="row", disable=None))
    return counts


def collect_mistaken(folder: str | Path, world: SlotWorldModel, config: TextCollectConfig) -> dict[str, int]:
    """Write what searches in a model ask, for the files that a model is trained on; the number of rows of each.

    The files lie beside the others and are named by the model's weights, and training reads all. Files that are there
    stay.
    """
    folder = Path(folder)
    model = weights_sha256(world.model)[:8]
    counts: dict[str, int] = {}
    for split in LEARNT_SPLITS:
        path = folder / f"{split}-mistaken-{model}.jsonl.gz"
        if path.exists():
            continue
        rows = _mistaken_rows(split, world, config)
        counts[path.name] = write_transitions(path, tqdm(rows, desc=path.stem, unit="row", disable=None))
    return counts


def _mistaken_rows(split: str, world: SlotWorldModel, config: TextCollectConfig) -> Iterator[GameTransition]:
    number = max(1, round(config.variations * _SHARES[split]))
    first = FIRST_VARIATION[split] + MISTAKEN
    for name, game in GAMES.items():
        if name == config.held_out:
            continue
        for variation in range(first, first + number):
            share = config.random_shares[variation % len(config.random_shares)]
            yield from mistaken_rows(game, variation, world, config.mistaken, random_share=share)


def _split_rows(split: str, config: TextCollectConfig) -> Iterator[GameTransition]:
    number = max(1, round(config.variations * _SHARES[split]))
    for name, game in GAMES.items():
        if name == config.held_out and split != "test":
            continue
        first = FIRST_VARIATION[split]
        for variation in range(first, first + number):
            yield from variation_rows(game, variation, config)
        for variation in range(first + SEARCHED, first + SEARCHED + number):
            share = config.random_shares[variation % len(config.random_shares)]
            yield from searched_rows(game, variation, config.search, random_share=share)


def variation_rows(game: Game, variation: int, config: TextCollectConfig) -> list[GameTransition]:
    """Rows of one way through a game: the steps of the way itself, and some of what else could have been done."""
    share = config.random_shares[variation % len(config.random_shares)]
    rows = [
        GameTransition(
            id=f"{game.name}/{variation}/{number}", game=game.name, before=before, action=action, after=after
        )
        for number, (before, action, after) in enumerate(transitions(game, variation, random_share=share))
    ]
    kept = _way(rows)
    others = [number for number in range(len(rows)) if number not in kept]
    generator = np.random.default_rng([variation, zlib.crc32(game.name.encode()), 2])
    chosen = each_kind([rows[number] for number in others], config.rows, generator)
    return [rows[number] for number in sorted([*kept, *(others[place] for place in chosen)])]


def _way(rows: Sequence[GameTransition]) -> set[int]:
    """Numbers of the rows on the way itself: the first of those that lead to the next state, or to the victory."""
    groups = [
        list(group) for _, group in groupby(range(len(rows)), key=lambda number: id(rows[number].before))
    ]
    found: set[int] = set()
    for group, following in zip_longest(groups, groups[1:]):
        goal = None if following is None else rows[following[0]].before
        for number in group:
            after = rows[number].after
            if (after.game_won if goal is None else after == goal) and after != rows[number].before:
                found.add(number)
                break
    return found


def split_files(folder: str | Path, split: str) -> list[Path]:
    """The files of a split: those whose names contain it as a word.

    Raises:
        FileNotFoundError: There are none.
    """
    found = _files_of(folder, split)
    if not found:
        raise FileNotFoundError(
            f"{folder} has no file of the split {split!r}; expected for example {split}.jsonl.gz"
        )
    return found


def _files_of(folder: str | Path, split: str) -> list[Path]:
    word = re.compile(rf"(?<![a-z]){split}(?![a-z])")
    return [path for path in transition_files(folder) if word.search(path.name)]


def load_rows(folder: str | Path, split: str) -> tuple[list[GameTransition], str]:
    """All transitions of a split, and a hash of the files they came from.

    Lines that cannot be used are left out, with a warning that names them.

    Raises:
        FileNotFoundError: The split has no file.
        ValueError: No line can be used, or an archive is damaged.
    """
    rows: list[GameTransition] = []
    broken: list[str] = []
    sha = hashlib.sha256()
    for path in split_files(folder, split):
        sha.update(path.read_bytes())
        rows += read_transitions(path, broken=broken)
    warn_left_out(broken)
    if not rows:
        raise ValueError(nothing_usable(folder, split, broken))
    return rows, sha.hexdigest()[:16]


def load_learnt(folder: str | Path) -> tuple[list[GameTransition], dict[str, str]]:
    """All transitions that models learn from, and the hash of each split of them.

    These are ``train`` and, where there is a file of it, ``posttrain``: what follows a base model learns from that.

    Raises:
        FileNotFoundError: There is no file of ``train``.
        ValueError: As for ``load_rows``.
    """
    rows, digest = load_rows(folder, "train")
    if not _files_of(folder, "posttrain"):
        return rows, {"train": digest}
    more, digest_of_more = load_rows(folder, "posttrain")
    return rows + more, {"train": digest, "posttrain": digest_of_more}


def nothing_usable(folder: str | Path, split: str, broken: Sequence[str]) -> str:
    """What is said of a split without a single usable line."""
    why = broken[0] if broken else "its files are empty"
    return f"{folder} holds nothing usable of the split {split!r}: {why}"


@dataclass(frozen=True, eq=False)
class TextRows:
    """Transitions as questions and answers.

    Attributes:
        rows: The transitions.
        questions: One each.
        answers: The tokens of the true answer to each.
        left_out: Transitions that the format cannot hold, or whose answer is too long.
    """

    rows: list[GameTransition]
    questions: list[Question]
    answers: list[list[int]]
    left_out: int

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, numbers: Sequence[int]) -> TextRows:
        """The rows of these numbers."""
        return TextRows(
            [self.rows[n] for n in numbers],
            [self.questions[n] for n in numbers],
            [self.answers[n] for n in numbers],
            self.left_out,
        )

    @classmethod
    def of(
        cls, rows: Sequence[GameTransition], vocabulary: Vocabulary, schema: Schema, *, max_answer: int
    ) -> TextRows:
        """Write all transitions down."""
        kept: list[GameTransition] = []
        questions: list[Question] = []
        answers: list[list[int]] = []
        for row in tqdm(rows, desc="encode", unit="row", disable=None, leave=False):
            try:
                answer = write_compact(row.before, row.after, vocabulary)
                question = ask(row.before, row.action, schema)
            except ValueError:
                continue
            if len(answer) <= max_answer:
                kept.append(row)
                questions.append(question)
                answers.append(answer)
        return cls(kept, questions, answers, len(rows) - len(kept))


def language_of(rows: Sequence[GameTransition], *, at_least: int = 3) -> tuple[Vocabulary, Schema]:
    """Words and varying properties of training transitions."""
    states = [state for row in rows for state in (row.before, row.after)]
    return Vocabulary.of(_texts(rows), at_least=at_least), Schema.of(states)


def _texts(rows: Iterable[GameTransition]) -> Iterator[str]:
    """Every text that an answer may have to write, as often as it may."""
    for row in rows:
        names = {item["name"] for item in row.before.objects.values()}  # these are pointers
        yield from _words(row.after.score if row.after.score != row.before.score else 0, names)
        for uuid, item in row.after.objects.items():
            old = row.before.objects.get(uuid)
            if old is item:
                continue
            if old is None:
                yield item["type"]
                yield from item["name"].rpartition(" (ID:")[0].split(" ")
            for key, value in item["properties"].items():
                if old is not None and old["properties"].get(key) == value:
                    continue
                yield key
                yield from _words(value, names)


def _words(value: Any, names: Collection[str]) -> Iterator[str]:
    """The texts in a value, as far as they are no pointers."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_words(key, names), *_words(inner, names))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner, names)
    elif isinstance(value, float) and value != int(value):
        yield repr(value)
    elif isinstance(value, str) and value not in names:
        parts = name_within(value, names)
        yield from (value, *value.split(" ")) if parts is None else (*parts[0], *parts[2])


class LengthBatches:
    """Which rows a step trains on: every row once per epoch, rows of similar answers together.

    A batch is a function of (seed, step) alone.

    Args:
        lengths: Of all answers.
        batch: Rows per batch.
        seed: Of the order.
    """

    _POOL = 24  # batches that are sorted by length together

    def __init__(self, lengths: Sequence[int], *, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed = np.asarray(lengths), batch, seed
        self._epoch, self._order = -1, np.zeros((0, 0), dtype=np.int64)

    def rows(self, step: int) -> list[int]:
        """Row numbers of a step's batch."""
        per_epoch = max(1, len(self._lengths) // self._batch)
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch, per_epoch)
        return [int(row) for row in self._order[place]]

    def _shuffled(self, epoch: int, per_epoch: int) -> np.ndarray:
        generator = np.random.default_rng([self._seed, epoch, 4])
        order = generator.permutation(len(self._lengths))[: per_epoch * self._batch]
        pools = [
            pool[np.argsort(self._lengths[pool], kind="stable")]
            for pool in np.array_split(order, range(0, len(order), self._POOL * self._batch)[1:])
        ]
        batches = np.concatenate(pools).reshape(-1, self._batch) if len(order) >= self._batch else order[None]
        return batches[generator.permutation(len(batches))]
