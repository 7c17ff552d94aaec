"""Prompts of text games: the published one, byte for byte, and a compact one of our own.

Special: none of the published wording is here. A ``PromptTemplate`` is read off material that the user has: one
official prompt record (of the data set of RLVR-World), the transition that it was made of, and the human-written
rules (of a checkout of GPT-simulator). What changes from prompt to prompt is located in the example; what stands
between is the template. Extract once, ``save``, and build the prompt of any ByteSized32 transition from then on::

    rules = read_rules("GPT-simulator/rules/human_written_rules")
    template = PromptTemplate.extract(example, transition, rules)
    template.save("data/text_game_prompt.json")

Quirks of the published prompt that are kept: states are Python ``repr`` although the text calls them JSON, the
score is the last element of a state, the last section of the object rules is left out, and rules are stripped.

Absent on purpose: torch, chat templates and tokenizers; the answers (see ``answers``); other published prompt
variants (whole states, separate action and tick, generated rules).
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worldmodels.language.game_state import OBJECT_KEYS, GameState

RULE_FILES = {"object": "object_rules.json", "action": "action_rules.json", "score": "score_rules.json"}
"""Kind of rules -> its file of the published checkout: JSON, game to text."""

PARTS = ("task description", "object rules", "action rules", "score rules", "state", "UUID base", "action")
"""What differs between prompts, in the order in which a prompt shows it."""

_SECTION_LINE = "=" * 10
_FORMAT = "text-game prompt template 1"
_FIELDS = ("format", "data_source", "ability", "pieces", "rules")


@dataclass(frozen=True, kw_only=True)
class GameRules:
    """The rules of one game as a prompt shows them: about its objects, its actions and its score."""

    object: str
    action: str
    score: str


def read_rules(folder: str | Path) -> dict[str, GameRules]:
    """The rules of every game that all three ``RULE_FILES`` in a folder speak of.

    Raises:
        FileNotFoundError: The folder lacks one of the files.
        ValueError: A file is not a JSON object of texts, or object rules have no sections.
    """
    folder = Path(folder)
    texts: dict[str, Any] = {}
    for kind, name in RULE_FILES.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}; the {kind} rules are in rules/human_written_rules of GPT-simulator"
            )
        texts[kind] = _parse_json((folder / name).read_bytes(), str(folder / name))
    return rules_by_game(texts)


def rules_by_game(texts: Mapping[str, Mapping[str, str]]) -> dict[str, GameRules]:
    """The same from kind (``object``, ``action``, ``score``) -> game -> text as it was written.

    Raises:
        ValueError: A kind is missing or holds something else, or object rules have no line of ten ``=``.
    """
    for kind in RULE_FILES:
        found = texts.get(kind)
        if not isinstance(found, Mapping) or not all(isinstance(text, str) for text in found.values()):
            raise ValueError(f"the {kind} rules are not a dict from game to text: {reprlib.repr(found)}")
    rules: dict[str, GameRules] = {}
    for game, written in texts["object"].items():
        if game not in texts["action"] or game not in texts["score"]:
            continue
        *sections, _ = written.split(_SECTION_LINE)  # the last section, often about the world, is not shown
        if not sections:
            raise ValueError(
                f"the object rules of {game!r} have no line of ten '='; nothing of them would be shown"
            )
        rules[game] = GameRules(
            object="".join(sections).strip(),
            action=texts["action"][game].strip(),
            score=texts["score"][game].strip(),
        )
    return rules


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """The published prompt for the whole transition (action, tick, score), answered by a difference.

    Attributes:
        pieces: The fixed texts before, between and after the seven ``PARTS``: eight.
        rules: By game, as shown.
        data_source: What official records name as their source; reward functions are chosen by it.
        ability: What they name as the ability that is asked for.
    """

    pieces: tuple[str, ...]
    rules: Mapping[str, GameRules]
    data_source: str
    ability: str

    def __post_init__(self) -> None:
        if len(self.pieces) != len(PARTS) + 1:
            raise ValueError(
                f"a template has {len(PARTS) + 1} fixed pieces around its parts {list(PARTS)}; "
                f"this one has {len(self.pieces)}"
            )
        shown = (text for own in self.rules.values() for text in (own.object, own.action, own.score))
        if not all(isinstance(text, str) for text in (*self.pieces, self.data_source, self.ability, *shown)):
            raise ValueError("a template consists of texts only; something in this one is none")

    @classmethod
    def extract(
        cls, example: Mapping[str, Any], transition: Mapping[str, Any], rules: Mapping[str, GameRules]
    ) -> PromptTemplate:
        """Read the template off one official record.

        Args:
            example: ``data_source``, ``prompt`` (one message), ``ability`` and ``extra_info`` with ``data_state`` and
                ``data_action``; of any game and either split.
            transition: The ByteSized32 record that it was made of: line ``extra_info["index"]``, counted from 0, of
                the file of its split.
            rules: See ``read_rules``; all are kept for later prompts.

        Raises:
            ValueError: The two are not records, do not belong together, or a part is not where it should be.
        """
        text = _field(example, "prompt", 0, "content", what="example", kind=str)
        state = _field(example, "extra_info", "data_state", what="example", kind=str)
        action = _field(example, "extra_info", "data_action", what="example", kind=str)
        parts = _parts(transition, rules)
        if action != parts[-1]:
            raise ValueError(
                f"the example and the transition do not belong together: 'data_action' of the example is {action!r}, "
                f"'lastAction' of the transition's 'action_state' {parts[-1]!r}"
            )
        if _parse_json(state, "'data_state' of the example") != _states(transition)[0]:
            raise ValueError(
                "the example and the transition do not belong together: 'data_state' of the example is not "
                "'current_state' and 'current_score_state' of the transition"
            )
        return cls(
            pieces=_pieces(text, parts),
            rules=dict(rules),
            data_source=_field(example, "data_source", what="example", kind=str),
            ability=_field(example, "ability", what="example", kind=str),
        )

    def build(self, record: Mapping[str, Any]) -> str:
        """The prompt of a ByteSized32 transition record.

        Raises:
            ValueError: A field is missing or of the wrong type, or the template has no rules for the game.
        """
        text = [self.pieces[0]]
        for part, piece in zip(_parts(record, self.rules), self.pieces[1:], strict=True):
            text += (part, piece)
        return "".join(text)

    def official_record(self, record: Mapping[str, Any], *, split: str, index: int) -> dict[str, Any]:
        """The whole record of the published data set, for published trainers and reward functions.

        Args:
            record: A ByteSized32 transition record.
            split: ``"train"`` or ``"test"``.
            index: Line of the record in the file of its split, from 0.

        Raises:
            ValueError: As for ``build``.
        """
        before, after = _states(record)
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": self.build(record)}],
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": json.dumps(after)},
            "extra_info": {
                "split": split,
                "index": index,
                "data_state": json.dumps(before),
                "data_action": _action(record),
            },
        }

    def save(self, path: str | Path) -> None:
        """Write the template as a JSON file, which appears when it is whole; folders are made where needed."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | Path) -> PromptTemplate:
        """Read what ``save`` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: It is something else.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"no template at {path}; PromptTemplate.extract and save make one")
        value = _parse_json(path.read_bytes(), str(path))
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT or value.keys() != set(_FIELDS):
            raise ValueError(f"{path} is not a {_FORMAT!r}: expected the fields {list(_FIELDS)}")
        try:
            rules = {game: GameRules(**texts) for game, texts in value["rules"].items()}
            labels = {key: value[key] for key in ("data_source", "ability")}
            return cls(pieces=tuple(value["pieces"]), rules=rules, **labels)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def compact_prompt(state: GameState, action: str, game: str = "", *, uuid_base: int | None = None) -> str:
    """A short prompt in our own words for any causal language model, answered in the published format.

    An object is a line: uuid, then name, type, properties and contents as JSON, in the order of the state. Nothing of
    the state is lost, and a newline occurs only at the end of a line. ``answers.read_answer`` reads the reply.

    Args:
        state: Where the game stands.
        action: What is done, in words.
        game: Not shown: the prompt is about whatever the state holds.
        uuid_base: The uuid of the next new object; None: one more than the largest of the state.

    Raises:
        ValueError: An object of the state has ``uuid_base`` or a larger uuid.
    """
    largest = max(state.objects, default=-1)
    base = largest + 1 if uuid_base is None else uuid_base
    if base <= largest:
        raise ValueError(
            f"uuid_base is {base}, but the state has an object {largest}; give {largest + 1} or more"
        )
    lines = [
        " ".join([str(uuid), *(_json(item[key]) for key in OBJECT_KEYS if key != "uuid")])
        for uuid, item in state.objects.items()
    ]
    return "\n".join(
        [
            "Things in a text game, one per line: uuid, name, type, properties, names of what it holds.",
            *lines,
            f"Points: {_json(state.scores())}",
            f"The player does: {_json(action)}",
            "A moment later, what is different? Reply with JSON only, in this form:",
            '{"modified": [..], "removed": [..], "score": {..}}',
            'modified: every thing that is new or different, complete, as {"name": .., "uuid": .., "type": .., '
            f'"properties": {{..}}, "contains": [..]}}; new uuids are {base}, {base + 1} and so on.',
            "removed: uuids of things that are gone. score: the points if they are different.",
            "Leave empty what does not apply.",
            "",
        ]
    )


def _pieces(text: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """What stands around the parts: found from the end, since the worked examples at the front look alike."""
    found: list[str] = []
    stop, landmark = len(text), "end"
    for name, part in zip(reversed(PARTS), reversed(parts), strict=True):
        opening = " " if name == "UUID base" else "\n"  # it ends its line; the others are whole lines
        start = text.rfind(f"{opening}{part}\n", 0, stop) + 1 if part else 0  # an empty part is nowhere
        if not start:
            shown = repr(part if len(part) <= 80 else part[:80] + "..")
            raise ValueError(
                f"{name} not found in the example's prompt: looked for {shown} at the end of a line in the {stop} of "
                f"{len(text)} characters before the {landmark}; expected a record of the prompt for whole transitions "
                "answered by a difference, and the human-written rules of the same release"
            )
        found.append(text[start + len(part) : stop])
        stop, landmark = start, name
    return (text[:stop], *reversed(found))


def _parts(record: Mapping[str, Any], rules: Mapping[str, GameRules]) -> tuple[str, ...]:
    """The seven ``PARTS`` of a transition as a prompt shows them."""
    game = _field(record, "game", what="transition", kind=str)
    if game not in rules:
        raise ValueError(f"no rules for the game {game!r}; there are rules for {', '.join(sorted(rules))}")
    own = rules[game]
    return (
        _field(record, "current_state", "taskDesc", what="transition", kind=str),
        own.object,
        own.action,
        own.score,
        repr(_states(record)[0]),
        str(_field(record, "current_state", "max_UUID", what="transition", kind=int)),
        _action(record),
    )


def _states(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states before and after, objects as recorded and the score last."""
    before, after = (
        {
            "game_state": [
                *_field(record, objects, "objects", what="transition", kind=list),
                _field(record, score, what="transition", kind=dict),
            ]
        }
        for objects, score in (("current_state", "current_score_state"), ("tick_state", "next_score_state"))
    )
    return before, after


def _action(record: Mapping[str, Any]) -> str:
    action: str = _field(record, "action_state", "lastAction", what="transition", kind=str)
    return action


def _field(record: Any, *path: str | int, what: str, kind: type) -> Any:
    """What a record holds at a path; a message that names the path if it is missing or not of that kind."""
    value = record
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            keys = list(record)[:8] if isinstance(record, Mapping) else type(record).__name__
            raise ValueError(f"the {what} has no {list(path)}; it has {keys}") from error
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{list(path)} of the {what} is {reprlib.repr(value)}, not of type {kind.__name__}")
    return value


def _parse_json(source: str | bytes, what: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON ({error})") from error


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
