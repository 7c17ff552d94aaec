"""The published prompt for states that come without their record: in an environment, in a rollout, in a table.

Special: a prompt shows more than a state holds. Of that, rules come from ``prompt.json`` (``prompts.PromptTemplate``),
the task's text is the same in all records of a game, and new objects are numbered after the largest uuid. A state that
stands in canonical order, by uuid, is shown as games list it: the world, then what it holds, each thing followed by its
contents, properties in the order that records have, and with a decimal point where records always have one.
What it cannot know is in which order things came to be where they are, and whether one has vanished: 1,745 of the 2,954
official test states so get the very prompt that their records give, most others the same words in another order.

Absent: rules and records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldmodels.language.game_state import GameObject, GameState
from worldmodels.language.json_lines import read_json_lines
from worldmodels.language.prompts import PromptTemplate
from worldmodels.language.transitions import transition_files

TEMPLATE = "prompt.json"
"""What a folder of ByteSized32 records calls what ``PromptTemplate.save`` wrote."""


@dataclass(frozen=True, kw_only=True)
class PublishedPrompt:
    """Words questions as published; a ``causal_lm_world.Prompt``.

    Attributes:
        template: Everything that is the same for all states.
        tasks: Game -> the text that says what is to be done in it.
        order: (Game, type of object) -> its properties as records list them.
        decimal: (Game, type of object, property) of numbers that always have a decimal point.
    """

    template: PromptTemplate
    tasks: Mapping[str, str]
    order: Mapping[tuple[str, str], tuple[str, ...]]
    decimal: frozenset[tuple[str, str, str]]

    @classmethod
    def read(cls, folder: str | Path) -> PublishedPrompt:
        """From a folder with ``prompt.json`` and ByteSized32 records; lines that are no records are passed over.

        Raises:
            FileNotFoundError: One of them is missing.
            ValueError: The template is damaged, or no line is a record.
        """
        template = PromptTemplate.load(Path(folder) / TEMPLATE)
        tasks: dict[str, str] = {}
        order: dict[tuple[str, str], tuple[str, ...]] = {}
        written: dict[type, set[tuple[str, str, str]]] = {float: set(), int: set()}
        for record in _records(folder):
            try:
                game, present = record["game"], record["current_state"]
                tasks.setdefault(game, str(present["taskDesc"]))
                for item in present["objects"]:
                    order.setdefault((game, item["type"]), tuple(item["properties"]))
                    for key, value in item["properties"].items():
                        if type(value) in written:
                            written[type(value)].add((game, item["type"], key))
            except (KeyError, TypeError):
                continue
        if not tasks:
            raise ValueError(
                f"{folder} has {TEMPLATE}, but no ByteSized32 record that says what a game's task is"
            )
        decimal = frozenset(written[float] - written[int])
        return cls(template=template, tasks=tasks, order=order, decimal=decimal)

    def __call__(self, state: GameState, action: str, game: str) -> str:
        """The prompt.

        Raises:
            ValueError: Nobody said which game it is, or nothing is known of it.
        """
        if game not in self.tasks:
            raise ValueError(
                f"the published prompt shows a game's rules and task; there are none for {game[:80]!r}, only for"
                f" {', '.join(sorted(self.tasks))}"
            )
        return self.template.build(
            {
                "game": game,
                "current_state": {
                    "taskDesc": self.tasks[game],
                    "objects": [self._listed(item, game) for item in _in_order(state)],
                    "max_UUID": max(state.objects, default=-1) + 1,
                },
                "current_score_state": state.scores(),
                "action_state": {"lastAction": action},
                "tick_state": {"objects": []},  # the answer, which no prompt shows
                "next_score_state": {},
            }
        )

    def _listed(self, item: GameObject, game: str) -> dict[str, Any]:
        own, kind = item["properties"], item["type"]
        known = [key for key in self.order.get((game, kind), ()) if key in own]
        shown = {
            key: float(own[key]) if type(own[key]) is int and (game, kind, key) in self.decimal else own[key]
            for key in dict.fromkeys([*known, *own])
        }
        return {**item, "properties": shown}


def _in_order(state: GameState) -> list[GameObject]:
    """Objects as games list them, if they stand by uuid; else as they stand."""
    if list(state.objects) != sorted(state.objects):
        return list(state.objects.values())
    by_name = {item["name"]: item for item in state.objects.values()}
    held = {name for item in state.objects.values() for name in item["contains"]}
    found: dict[int, GameObject] = {}

    def add(item: GameObject) -> None:
        if item["uuid"] in found:  # a model may put a thing into itself
            return
        inner = sorted(
            (by_name[name] for name in item["contains"] if name in by_name), key=lambda other: other["uuid"]
        )
        unknown = [name for name in item["contains"] if name not in by_name]
        found[item["uuid"]] = {**item, "contains": [*(other["name"] for other in inner), *unknown]}
        for other in inner:
            add(other)

    free = [item for item in state.objects.values() if item["name"] not in held]
    for item in sorted(free, key=lambda item: -len(item["contains"])):  # the world first
        add(item)
    for item in state.objects.values():
        add(item)
    return list(found.values())


def _records(folder: str | Path) -> Iterator[Any]:
    for file in transition_files(folder):
        yield from read_json_lines(file, lambda record, _: record, broken=[])
