"""What a small model sees of a game state and an action: a position per object, one for the score, one per word of
the action, one per entry of a chart.

Special: a position is a bag of hashed facts (words of the name, property and value, digits of numbers) and of
relations to other objects (where it is, whom a property names), so a state of 15 objects costs 15 positions however
much it says. Objects are named by their place only: other names and uuids change nothing but hashes of words.
A property that never varied in training is left out for types that training knew, and shown for others. A property
whose name is several words ("blue + red") is an entry of a chart, which as a single fact would have to be learned by
heart.

Absent: torch and the network (``worldmodels.nets.slot_transformer``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worldmodels.language.compact_answers import name_within, parents, places
from worldmodels.language.game_state import GameObject, GameState, same_value

NUM_FEATURES = 8192  # buckets of hashed facts
NUM_RELATIONS = 256  # buckets of hashed kinds of relation
MAX_ACTION_WORDS = 24
MAX_CHART_ENTRIES = 24
MAX_ACTION_CHARS = 1000
_ID_SUFFIX = re.compile(r" \(ID: \d+\)$")
_MARK = "\0"


@dataclass(frozen=True, eq=False)
class Question:
    """A state and an action as numbers. Positions: objects by uuid, the score, the action's words, entries of charts.

    Attributes:
        objects: Number of objects, the first positions.
        starts: ``(P + 1,)`` int64: the facts of position p are ``facts[starts[p]:starts[p + 1]]``.
        facts: int64 in [0, NUM_FEATURES).
        relations: ``(M, 3)`` int64: position, kind in [0, NUM_RELATIONS), place of the object that it is about.
    """

    objects: int
    starts: NDArray[np.int64]
    facts: NDArray[np.int64]
    relations: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of positions P."""
        return len(self.starts) - 1


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Which properties say something, by type of object; those of unknown types all do.

    Attributes:
        varied: Type -> properties that had more than one value in training.
    """

    varied: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Iterable[GameState]) -> Schema:
        """What varies between the objects of a type in these states."""
        first: dict[tuple[str, str], Any] = {}
        known: dict[str, set[str]] = {}
        seen: dict[str, set[frozenset[str]]] = {}
        done: set[int] = set()
        kept: list[GameObject] = []  # so that an id stays that of one object
        for state in states:
            for item in state.objects.values():
                if id(item) in done:
                    continue
                done.add(id(item))
                kept.append(item)
                type_, properties = item["type"], item["properties"]
                varied = known.setdefault(type_, set())
                seen.setdefault(type_, set()).add(frozenset(properties))
                for key, value in properties.items():
                    if key not in varied and not same_value(first.setdefault((type_, key), value), value):
                        varied.add(key)
        for type_, sets in seen.items():  # a property that comes and goes varies too
            known[type_] |= frozenset.union(*sets) - frozenset.intersection(*sets)
        return cls(varied={type_: frozenset(keys) for type_, keys in known.items()})

    def shows(self, type_: str, key: str) -> bool:
        """Whether a property of a type is worth looking at."""
        varied = self.varied.get(type_)
        return varied is None or key in varied


def ask(state: GameState, action: str, schema: Schema) -> Question:
    """A state and an action as a question.

    Raises:
        ValueError: More objects than a compact question holds.
    """
    order = places(state)
    place_of = {uuid: place for place, uuid in enumerate(order)}
    by_name = {state.objects[uuid]["name"]: place for place, uuid in reversed(list(enumerate(order)))}
    holders = parents(state.objects)
    words, mentioned = _action_words(action, state, order)
    form = " ".join("..." if isinstance(word, int) else word for word in words)
    facts: list[list[int]] = []
    relations: list[tuple[int, int, int]] = []
    for place, uuid in enumerate(order):
        item = state.objects[uuid]
        own, about = _object_facts(item, schema, by_name)
        if uuid in holders:
            about = [*about, ("in", place_of[holders[uuid]])]
        for number in mentioned.get(place, ()):
            own = [*own, f"acted {number}", f"acted {number} {form}"]
        facts.append([_bucket(fact) for fact in own])
        relations += [(place, _kind(kind), other) for kind, other in about]
    facts.append([_bucket(fact) for fact in ("the score", f"action {form}", *_score_facts(state))])
    for number, word in enumerate(words[:MAX_ACTION_WORDS]):
        at = f"word {number}"
        if isinstance(word, int):
            relations.append((len(facts), _kind("mentions"), word))
            facts.append([_bucket(at), _bucket("a mention")])
        else:
            digits = _number_facts("word", int(word)) if word.isdecimal() and len(word) < 7 else ()
            facts.append([_bucket(fact) for fact in (at, f"word={word}", *digits)])
    for own, about in _chart_entries(state, order, schema, by_name):
        relations += [(len(facts), _kind(kind), other) for kind, other in about]
        facts.append([_bucket(fact) for fact in own])
    return Question(
        objects=len(order),
        starts=np.cumsum([0, *map(len, facts)]),
        facts=np.array([bucket for own in facts for bucket in own], dtype=np.int64),
        relations=np.array(relations, dtype=np.int64).reshape(-1, 3),
    )


def _object_facts(
    item: GameObject, schema: Schema, by_name: Mapping[str, int]
) -> tuple[list[str], list[tuple[str, int]]]:
    """Facts about an object alone, and its relations to others as (kind, place)."""
    facts = ["an object", f"type={item['type']}"]
    facts += [f"name {word}" for word in _ID_SUFFIX.sub("", item["name"]).split(" ")]
    relations: list[tuple[str, int]] = []
    for key, value in item["properties"].items():
        if not schema.shows(item["type"], key):
            continue
        for path, leaf in _leaves(key, value):
            if isinstance(leaf, str) and leaf in by_name:
                relations.append((path, by_name[leaf]))
                facts.append(f"{path} names one")
            elif isinstance(leaf, str) and (parts := name_within(leaf, by_name)) is not None:
                left, name, right = parts
                around = " ".join((*left, "...", *right))
                relations.append((f"{path} {around}", by_name[name]))
                facts.append(f"{path} is {around}")
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
                facts += _number_facts(path, leaf)
            else:
                facts.append(f"{path}={leaf}")
                if isinstance(leaf, str) and " " in leaf:
                    facts += [f"{path} has {word}" for word in leaf.split(" ")[:12]]
    return facts, relations


def _chart_entries(
    state: GameState, order: Sequence[int], schema: Schema, by_name: Mapping[str, int]
) -> list[tuple[list[str], list[tuple[str, int]]]]:
    """Facts and relations of the properties whose names are several words, the first so many of all objects."""
    entries: list[tuple[list[str], list[tuple[str, int]]]] = []
    for place, uuid in enumerate(order):
        item = state.objects[uuid]
        for key, value in item["properties"].items():
            if (
                " " not in key
                or not schema.shows(item["type"], key)
                or not isinstance(value, str | int | float)
            ):
                continue
            facts = ["an entry", *(f"entry of {word}" for word in dict.fromkeys(key.split(" ")))]
            about = [("entry in", place)]
            if isinstance(value, str) and value in by_name:
                about.append(("entry", by_name[value]))
            elif isinstance(value, str | bool):
                facts.append(f"entry={value}")
            else:
                facts += _number_facts("entry", value)
            entries.append((facts, about))
    return entries[:MAX_CHART_ENTRIES]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _leaves(f"{path}.{key}", value[key])
    elif isinstance(value, list | tuple):
        yield f"{path} count", len(value)
        for number, item in enumerate(value):
            yield from _leaves(f"{path}.{number}" if len(value) <= 3 else path, item)
    else:
        yield path, value


def _number_facts(path: str, value: float) -> list[str]:
    """A number as a whole, and digit by digit, so that unseen ones are made of seen parts."""
    facts = [f"{path}={value:g}"]
    if value == int(value) and abs(value) < 1e9:
        written = str(abs(int(value)))
        facts += [f"{path}#{place}={digit}" for place, digit in enumerate(reversed(written))]
        facts.append(f"{path}{'-' if value < 0 else '+'}{len(written)}")
    return facts


def _score_facts(state: GameState) -> list[str]:
    return [*_number_facts("score", state.score), f"over={state.game_over}", f"won={state.game_won}"]


def _action_words(
    action: str, state: GameState, order: Sequence[int]
) -> tuple[list[str | int], dict[int, list[int]]]:
    """The words of an action, objects among them as places; and which mentions (first, second, ..) each has."""
    text = " ".join(action[:MAX_ACTION_CHARS].replace(_MARK, " ").lower().split())
    names: dict[str, int | None] = {}
    for place, uuid in enumerate(order):
        full = state.objects[uuid]["name"].lower()
        short = _ID_SUFFIX.sub("", state.objects[uuid]["name"]).lower()
        names[full] = place
        if short != full:
            names[short] = None if short in names else place
    for name in sorted(names, key=len, reverse=True):
        found = names[name]
        if found is not None and name and name in text:
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", f" {_MARK}{found} ", text)
    words: list[str | int] = []
    mentioned: dict[int, list[int]] = {}
    for word in text.split():
        if not word.startswith(_MARK):
            words.append(word)
            continue
        place = int(word[1:])
        mentioned.setdefault(place, []).append(sum(isinstance(w, int) for w in words))
        words.append(place)
    return words, mentioned


@lru_cache(maxsize=1 << 16)
def _bucket(fact: str) -> int:
    return zlib.crc32(fact.encode("utf-8", "surrogatepass")) % NUM_FEATURES


@lru_cache(maxsize=1 << 12)
def _kind(relation: str) -> int:
    return zlib.crc32(relation.encode("utf-8", "surrogatepass")) % NUM_RELATIONS
