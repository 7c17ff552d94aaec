"""What an action is likely to do, by what it did one state earlier: so that a search asks the promising ones first.

Special: most actions in a text game change nothing, or lead by another order to where the search has been. Neither
needs a model to be guessed: what an action did in the state before it is taken to do again. One that did nothing may
do something now if what has changed in between concerns it: it names a thing that changed, or the actor has got hold
of something, which may matter to all.

Absent on purpose: skipping anything. A guess only decides what is asked later.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from planners.novelty import TextReading

Facts: TypeAlias = frozenset[tuple[Hashable, ...]]


@dataclass(frozen=True)
class Effect:
    """What an action did: facts that are gone, and facts that have come."""

    gone: Facts
    come: Facts

    @classmethod
    def between(cls, before: TextReading, after: TextReading) -> Effect:
        """From one state to the next."""
        first, then = frozenset(before.facts), frozenset(after.facts)
        return cls(first - then, then - first)

    def on(self, facts: Facts) -> Facts | None:
        """The facts after the same change; None where it cannot be the same."""
        return (facts - self.gone) | self.come if self.gone <= facts else None


def promising(
    actions: Sequence[str],
    before: TextReading,
    now: TextReading,
    effects: Mapping[str, Effect],
    known: Collection[Facts],
) -> list[str]:
    """The actions that may lead to a state that is not known yet, in their order.

    Args:
        actions: What can be done now.
        before: The state before.
        now: The present state.
        effects: What actions did in the state before; of an action that is not in it nothing can be guessed.
        known: The facts of all states that a search has seen.
    """
    facts = frozenset(now.facts)
    concerning = _names(Effect.between(before, now), now)

    def may_be_new(action: str) -> bool:
        effect = effects.get(action)
        if effect is None or effect.on(facts) not in known:
            return True
        idle = not effect.gone and not effect.come
        return idle and (concerning is None or any(name in action for name in concerning))

    return [action for action in actions if may_be_new(action)]


def _names(change: Effect, now: TextReading) -> set[str] | None:
    """Names of the things that changed; None where every action may be concerned."""
    found: set[str] = set()
    for fact in change.gone | change.come:
        holding = len(fact) == 2  # a thing, and the name of one that it holds
        if fact[0] not in now.names or (holding and fact[0] == now.actor and fact in change.come):
            return None
        found.add(now.names[fact[0]])
        if holding:
            found.add(str(fact[1]))
    return found
