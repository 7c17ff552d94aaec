"""What a tree search sees in a text: a canonical form, what it says fact by fact, and whether it is a victory.

Special: novelty is counted on facts, so it needs no rules: a state is as new as the smallest set of facts that no
earlier state had together (Lipovetzky and Geffner 2012, there called width).

Absent on purpose: sets of more than two facts, whose number explodes, and facts that somebody chose for a game.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from worldmodels.api import Observation
from worldmodels.language.game_state import GameState, parse_state


@dataclass(frozen=True, kw_only=True)
class TextReading:
    """What a search sees in one observation.

    Attributes:
        text: Equal for equal states, and only for those.
        facts: What the state says, in small parts.
        won: Whether it is a victory.
        names: Names of things, as actions say them, by the first part of the facts about them.
        actor: The first part of facts about whoever acts.
    """

    text: str
    facts: Collection[tuple[Hashable, ...]]
    won: bool = False
    names: Mapping[Hashable, str] = field(default_factory=dict)
    actor: Hashable = None


ReadText: TypeAlias = Callable[[Observation], TextReading]
"""Raises ValueError where an observation cannot be read."""


def read_game_state(observation: Observation) -> TextReading:
    """A state of a text game, as JSON text or as a ``GameState``.

    Its facts are the value of each property of each object, what each object holds, and that it is there. The score
    is none of them: a search counts it anyway.

    Raises:
        ValueError: It is no state.
    """
    state = observation if isinstance(observation, GameState) else parse_state(observation)
    facts: list[tuple[Hashable, ...]] = [
        *(
            (uuid, key, repr(value))
            for uuid, item in state.objects.items()
            for key, value in item["properties"].items()
        ),
        *((uuid, name) for uuid, item in state.objects.items() for name in item["contains"]),
        *((uuid,) for uuid in state.objects),
    ]
    return TextReading(
        text=state.to_text(),
        facts=frozenset(facts),
        won=state.game_won,
        names={uuid: item["name"] for uuid, item in state.objects.items()},
        actor=next((uuid for uuid, item in state.objects.items() if item["type"] == "Agent"), None),
    )


@dataclass(kw_only=True)
class Novelty:
    """What was seen so far.

    Attributes:
        width: 1 or 2: the size of the largest sets of facts that are looked at.
    """

    width: int
    _facts: set[int] = field(default_factory=set)
    _pairs: set[int] = field(default_factory=set)

    def rank(self, facts: Collection[int], known: Collection[int] = ()) -> int:
        """1 if a fact is new, 2 if a pair is (with ``width`` 2), else ``width + 1``; remembers what it sees.

        Args:
            facts: Numbers below 2**32 that stand for a state's facts.
            known: Facts of a state that was ranked before: their pairs cannot be new.
        """
        fresh = not self._facts.issuperset(facts)
        self._facts.update(facts)
        if self.width == 1:
            return 1 if fresh else 2
        before = len(self._pairs)
        changed = set(facts).difference(known)
        self._pairs.update((a << 32) + b if a < b else (b << 32) + a for a in changed for b in facts)
        return 1 if fresh else 2 if len(self._pairs) > before else 3
