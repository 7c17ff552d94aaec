"""Differences of states as short token sequences, for small models: write them, read them, apply them.

Special: one statement per thing that changes (``object property value``, ``object in object``, ``object gone``, a new
object, the score), a whole number as its old value plus something where that is shorter, containment as one parent
per object, so that moving a thing is one statement. Writing is exact: what is written reads back as the same
next state, or it is refused. Reading never raises.

Absent: the wording for large language models (``answers``, ``prompts``) and what a model sees of the question
(``compact_questions``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worldmodels.language.answers import Answer
from worldmodels.language.compact_reader import Reader, Unreadable
from worldmodels.language.game_state import GameObject, GameState, check_object, check_scores, same_value
from worldmodels.language.state_diff import difference
from worldmodels.language.words import FIRST_DIGIT, FIRST_NEW, MAX_NEW, MAX_OBJECTS, Sign, Vocabulary

_SCORES = {Sign.SCORE: "score", Sign.OVER: "gameOver", Sign.WON: "gameWon"}


def places(state: GameState) -> list[int]:
    """The uuids of a state in the order in which pointers count them.

    Raises:
        ValueError: More objects than pointers reach.
    """
    if len(state.objects) > MAX_OBJECTS:
        raise ValueError(
            f"the state has {len(state.objects)} objects; compact questions hold at most {MAX_OBJECTS}"
        )
    return sorted(state.objects)


def parents(objects: Mapping[int, GameObject]) -> dict[int, int]:
    """Which object holds which, by uuid, where one name says it without doubt."""
    uuids: dict[str, int | None] = {}
    for uuid, item in objects.items():
        uuids[item["name"]] = None if item["name"] in uuids else uuid
    found: dict[int, int] = {}
    doubtful: set[int] = set()
    for holder, item in objects.items():
        for name in item["contains"]:
            held = uuids.get(name)
            if held is not None and (held in found or held == holder):
                doubtful.add(held)
            elif held is not None:
                found[held] = holder
    return {held: holder for held, holder in found.items() if held not in doubtful}


def name_within(text: str, names: Collection[str]) -> tuple[list[str], str, list[str]] | None:
    """The longest name of an object inside a text such as ``"left red lamp (ID: 3)"``, and the words around it.

    None where there is none: names without an ``(ID: ...)`` are not looked for.
    """
    if " (ID: " not in text:
        return None
    padded = f" {text} "
    for name in sorted((name for name in names if f" {name} " in padded), key=len, reverse=True):
        left, _, right = padded.partition(f" {name} ")
        words = left.split(" ")[1:], right.split(" ")[:-1]
        if all(word for side in words for word in side):
            return words[0], name, words[1]
    return None


def write_compact(before: GameState, after: GameState, vocabulary: Vocabulary) -> list[int]:
    """The tokens that say how ``before`` becomes ``after``, with :attr:`Sign.END`.

    Raises:
        ValueError: More objects than the format holds, or a state that it cannot express.
    """
    writer = _Writer(before, after, vocabulary)
    for by_parents in (True, False):
        tokens = writer.write(by_parents=by_parents)
        if read_compact(tokens, before, vocabulary).state == after:
            return tokens
    raise ValueError("the next state cannot be written as a compact answer")


def read_compact(tokens: Sequence[int], before: GameState, vocabulary: Vocabulary) -> Answer:
    """The next state that tokens say, or why they say none. Never raises.

    Args:
        tokens: Up to and with :attr:`Sign.END`; what follows it is ignored.
        before: The state that was asked about.
        vocabulary: Of the tokens.
    """
    try:
        return Answer(state=_Applied(before, vocabulary).read(tokens))
    except (Unreadable, ValueError, RecursionError) as error:
        return Answer(error=str(error))


class _Writer:
    def __init__(self, before: GameState, after: GameState, vocabulary: Vocabulary) -> None:
        self.before, self.after, self.vocabulary = before, after, vocabulary
        self.change = difference(before, after)
        self.pointers = {uuid: vocabulary.size + place for place, uuid in enumerate(places(before))}
        self.names = {before.objects[uuid]["name"]: self.pointers[uuid] for uuid in reversed(places(before))}
        added = sorted(item["uuid"] for item in self.change.added)
        if len(added) > MAX_NEW:
            raise ValueError(f"{len(added)} objects are added; a compact answer holds at most {MAX_NEW}")
        self.new = {uuid: FIRST_NEW + number for number, uuid in enumerate(added)}

    def write(self, *, by_parents: bool) -> list[int]:
        before, after = self.before.objects, self.after.objects
        old, new = parents(before), parents(after)
        tokens: list[int] = []
        for uuid, pointer in self.pointers.items():
            if uuid not in after:
                tokens += [pointer, Sign.GONE]
                continue
            if by_parents and old.get(uuid) != new.get(uuid):
                tokens += [pointer, Sign.IN, self._target(new.get(uuid))]
            tokens += self._facts(pointer, before[uuid], after[uuid], by_parents=by_parents)
        base = max(before, default=-1) + 1
        for number, uuid in enumerate(self.new):
            tokens += self._added(after[uuid], base + number)
            tokens += [Sign.IN, self._target(new.get(uuid) if by_parents else None)]
            if not by_parents and after[uuid]["contains"]:
                tokens += [self.new[uuid], Sign.HOLDS, *self._value(list(after[uuid]["contains"]))]
        for sign, key in _SCORES.items():
            had, has = self.before.scores()[key], self.after.scores()[key]
            if not same_value(had, has):
                tokens += [sign, *self._value(has, had)]
        return [*tokens, Sign.END]

    def _facts(self, pointer: int, had: GameObject, has: GameObject, *, by_parents: bool) -> list[int]:
        tokens: list[int] = []
        for sign, key in ((Sign.NAME, "name"), (Sign.TYPE, "type")):
            if had[key] != has[key]:
                tokens += [pointer, sign, *self._text(has[key])]
        if not by_parents and (had["contains"] or has["contains"]):  # names may be doubtful: say all of it
            tokens += [pointer, Sign.HOLDS, *self._value(list(has["contains"]))]
        old, new = had["properties"], has["properties"]
        for key in sorted(new):
            if key not in old or not same_value(old[key], new[key]):
                tokens += self._property(pointer, key, new[key], old.get(key))
        for key in sorted(old):
            if key not in new:
                tokens += [pointer, Sign.DROP, *self.vocabulary.write(key)]
        return tokens

    def _property(self, pointer: int, key: str, value: Any, old: Any) -> list[int]:
        about = [pointer, *self.vocabulary.write(key)]
        if isinstance(value, Mapping) and isinstance(old, Mapping) and old.keys() <= value.keys():
            entries = [
                [*about, Sign.AT, *self._text(inner), *self._value(value[inner], old.get(inner))]
                for inner in sorted(value)
                if inner not in old or not same_value(old[inner], value[inner])
            ]
            if len(entries) < len(value):
                return [token for entry in entries for token in entry]
        return [*about, *self._value(value, old)]

    def _added(self, item: GameObject, expected: int) -> list[int]:
        uuid, name = item["uuid"], item["name"]
        suffix = f" (ID: {uuid})"
        tokens = [int(Sign.NEW)]
        if uuid != expected:
            tokens += [Sign.UUID, *self._value(uuid)]
        if name.endswith(suffix):
            tokens += [Sign.NAMED, *self._text(name.removesuffix(suffix))]
        else:
            tokens += self._text(name)
        tokens += self._text(item["type"])
        for key in sorted(item["properties"]):
            tokens += [*self.vocabulary.write(key), *self._value(item["properties"][key])]
        return tokens

    def _target(self, uuid: int | None) -> int:
        if uuid is None:
            return Sign.ROOT
        return self.new[uuid] if uuid in self.new else self.pointers[uuid]

    def _text(self, text: str) -> list[int]:
        if text in self.names:
            return [self.names[text]]
        parts = name_within(text, self.names)
        if parts is None:
            return self.vocabulary.write(text)
        left, name, right = parts
        around = [[token for word in side for token in self.vocabulary.write(word)] for side in (left, right)]
        return [Sign.WORDS, *around[0], self.names[name], *around[1], Sign.WORDS_END]

    def _value(self, value: Any, old: Any = None) -> list[int]:
        if value is None or isinstance(value, bool):
            return [Sign.NULL if value is None else Sign.TRUE if value else Sign.FALSE]
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            inner = [t for key in sorted(value) for t in (*self._text(key), *self._value(value[key]))]
            return [Sign.DICT, *inner, Sign.DICT_END]
        if isinstance(value, list | tuple):
            return [Sign.LIST, *(t for item in value for t in self._value(item)), Sign.LIST_END]
        if value != int(value) or abs(value) > 1e15:
            return [Sign.FLOAT, *self.vocabulary.write(repr(float(value)))]
        value = int(value)
        if isinstance(old, int | float) and not isinstance(old, bool) and old == int(old):
            apart = value - int(old)
            if abs(apart) < abs(value):
                return [Sign.PLUS if apart > 0 else Sign.MINUS, *_digits(abs(apart))]
        return [Sign.EQUALS, *([Sign.MINUS] if value < 0 else []), *_digits(abs(value))]


def _digits(number: int) -> list[int]:
    return [FIRST_DIGIT + int(digit) for digit in str(number)]


@dataclass
class _Draft:
    """An object that is being changed."""

    name: str
    type: str
    properties: dict[str, Any]
    contains: list[str]


@dataclass
class _Applied:
    """Reads statements and carries them out, then checks what came out."""

    before: GameState
    vocabulary: Vocabulary
    edited: dict[int, _Draft] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    moved: dict[int, int | None] = field(default_factory=dict)
    held: dict[int, list[str]] = field(default_factory=dict)
    new: list[int] = field(default_factory=list)
    scores: dict[str, Any] = field(default_factory=dict)

    def read(self, tokens: Sequence[int]) -> GameState:
        order = places(self.before)
        reader = Reader(tokens, self.vocabulary, [self.before.objects[uuid]["name"] for uuid in order])
        while not reader.at_end():
            token = reader.take()
            if token in _SCORES:
                key = _SCORES[Sign(token)]
                self.scores[key] = reader.value(self.before.scores()[key])
            elif token == Sign.NEW:
                self._create(reader, order)
            else:
                self._change(reader, self._object(token, order), order)
        return self._result()

    def _object(self, token: int, order: Sequence[int]) -> int:
        place = self.vocabulary.pointed(token)
        if place is not None and place < len(order):
            return order[place]
        if FIRST_NEW <= token < FIRST_NEW + len(self.new):
            return self.new[token - FIRST_NEW]
        raise Unreadable(f"{self.vocabulary.show([token])} stands where an object is expected")

    def _draft(self, uuid: int) -> _Draft:
        if uuid in self.gone:
            raise Unreadable(f"object {uuid} is changed after it is gone")
        if uuid not in self.edited:
            item = self.before.objects[uuid]
            self.edited[uuid] = _Draft(item["name"], item["type"], dict(item["properties"]), [])
        return self.edited[uuid]

    def _change(self, reader: Reader, uuid: int, order: Sequence[int]) -> None:
        sign = reader.peek()
        draft = self._draft(uuid)
        if sign not in (Sign.IN, Sign.GONE, Sign.DROP, Sign.NAME, Sign.TYPE, Sign.HOLDS):
            self._set(reader, draft)
            return
        reader.take()
        if sign == Sign.IN:
            self.moved[uuid] = self._holder(reader.take(), order)
        elif sign == Sign.GONE:
            if uuid in self.new:
                raise Unreadable(f"the new object {uuid} is gone at once")
            self.gone.add(uuid)
        elif sign == Sign.DROP:
            key = reader.text()
            if key not in draft.properties:
                raise Unreadable(f"object {uuid} has no property {key[:40]!r} to drop")
            del draft.properties[key]
        elif sign == Sign.NAME:
            draft.name = reader.text()
        elif sign == Sign.TYPE:
            draft.type = reader.text()
        else:
            names = reader.value(None)
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise Unreadable(f"what object {uuid} holds is not a list of names")
            self.held[uuid] = names

    def _set(self, reader: Reader, draft: _Draft) -> None:
        key = reader.text()
        old = draft.properties.get(key)
        if reader.peek() != Sign.AT:
            draft.properties[key] = reader.value(old)
            return
        reader.take()
        if not isinstance(old, Mapping):
            raise Unreadable(f"property {key[:40]!r} is {str(old)[:40]!r}, which has no entries")
        inner = reader.text()
        draft.properties[key] = {**old, inner: reader.value(old.get(inner))}

    def _create(self, reader: Reader, order: Sequence[int]) -> None:
        if len(self.new) == MAX_NEW:
            raise Unreadable(f"more than {MAX_NEW} objects are added")
        uuid = max(self.before.objects, default=-1) + 1 + len(self.new)
        if reader.peek() == Sign.UUID:
            reader.take()
            uuid = reader.value(None)
            if type(uuid) is not int:
                raise Unreadable(f"the uuid of a new object is {str(uuid)[:40]!r}")
        if uuid in self.before.objects or uuid in self.new:
            raise Unreadable(f"object {uuid} is added, but exists")
        named = reader.peek() == Sign.NAMED
        if named:
            reader.take()
        name = reader.text() + (f" (ID: {uuid})" if named else "")
        draft = _Draft(name, reader.text(), {}, [])
        while reader.peek() != Sign.IN:
            key = reader.text()
            draft.properties[key] = reader.value(None)
        reader.take()
        self.new.append(uuid)
        self.edited[uuid] = draft
        self.moved[uuid] = self._holder(reader.take(), order)

    def _holder(self, token: int, order: Sequence[int]) -> int | None:
        return None if token == Sign.ROOT else self._object(token, order)

    def _result(self) -> GameState:
        old = parents(self.before.objects)
        drafts: dict[int, _Draft] = {}
        for uuid, item in self.before.objects.items():
            if uuid not in self.gone:
                drafts[uuid] = self.edited.get(uuid) or _Draft(
                    item["name"], item["type"], item["properties"], []
                )
        drafts.update((uuid, self.edited[uuid]) for uuid in self.new)
        children = self._children(old, drafts)
        objects: dict[int, GameObject] = {}
        for uuid, draft in drafts.items():
            was = self.before.objects.get(uuid)
            contains = self.held.get(uuid, children[uuid])
            if was is not None and uuid not in self.edited and list(was["contains"]) == contains:
                objects[uuid] = was  # states share what does not change
                continue
            item = {
                "name": draft.name,
                "uuid": uuid,
                "type": draft.type,
                "properties": draft.properties,
                "contains": contains,
            }
            objects[uuid] = check_object(item, where=f"object {uuid}")
        scores = check_scores({**self.before.scores(), **self.scores})
        return GameState(
            objects=objects, score=scores["score"], game_over=scores["gameOver"], game_won=scores["gameWon"]
        )

    def _children(self, old: Mapping[int, int], drafts: Mapping[int, _Draft]) -> dict[int, list[str]]:
        """What each object holds: what it held, less what left, and what came."""
        uuids = {item["name"]: uuid for uuid, item in self.before.objects.items() if uuid in old}
        found: dict[int, list[str]] = {uuid: [] for uuid in drafts}
        for holder, item in self.before.objects.items():
            if holder not in drafts:
                continue
            for name in item["contains"]:
                uuid = uuids.get(name)
                if uuid is None or old[uuid] != holder:
                    found[holder].append(name)  # the name of no object, or of several
                elif uuid in drafts and self.moved.get(uuid, holder) == holder:
                    found[holder].append(drafts[uuid].name)
        for uuid, target in self.moved.items():
            if uuid in self.gone or target is None or old.get(uuid) == target:
                continue
            if target not in drafts:
                raise Unreadable(f"object {uuid} moves into object {target}, which is gone")
            found[target].append(drafts[uuid].name)
        return found
