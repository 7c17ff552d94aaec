"""What an action is likely to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planners import TreeConfig, TreeSearch
from planners.locality import Effect, promising
from planners.novelty import TextReading, read_game_state
from rlvr_envs.simulators.text_game_world import TextGameWorld
from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import start, valid_actions
from worldmodels.api import History
from worldmodels.language.game_state import parse_state

NAMES = {0: "you", 1: "room", 2: "cup", 3: "oven", 4: "lamp"}


def reading(*facts: tuple, names: dict[int, str] = NAMES) -> TextReading:
    return TextReading(text=repr(sorted(map(repr, facts))), facts=facts, names=names, actor=0)


OFF = (3, "isOn", "False")
ON = (3, "isOn", "True")
DARK = (4, "isOn", "False")
LIT = (4, "isOn", "True")
HELD, LAID = (0, "cup"), (1, "cup")


def asked(
    before: TextReading, now: TextReading, effects: dict[str, Effect], *others: TextReading
) -> list[str]:
    known = {frozenset(seen.facts) for seen in (before, now, *others)}
    return promising(list(effects), before, now, effects, known)


def test_an_effect_is_what_went_and_what_came():
    effect = Effect.between(reading(OFF, DARK), reading(ON, DARK))
    assert effect == Effect(frozenset({OFF}), frozenset({ON}))
    assert effect.on(frozenset({OFF, LIT})) == {ON, LIT}
    assert effect.on(frozenset({ON, LIT})) is None  # it is on already


def test_what_did_nothing_is_promising_only_after_a_change_that_concerns_it():
    idle = Effect(frozenset(), frozenset())
    effects = {"open oven": idle, "rub lamp": idle, "put cup in oven": idle}
    assert asked(reading(OFF, DARK), reading(ON, DARK), effects) == ["open oven", "put cup in oven"]
    assert asked(reading(HELD, OFF), reading(LAID, OFF), effects) == ["put cup in oven"]


def test_what_the_actor_got_hold_of_concerns_every_action():
    effects = {"rub lamp": Effect(frozenset(), frozenset())}
    assert asked(reading(LAID, DARK), reading(HELD, DARK), effects) == ["rub lamp"]
    assert asked(reading(HELD, DARK), reading(LAID, DARK), effects) == []


def test_another_order_to_a_known_state_is_not_promising():
    start_, oven, lamp, both = reading(OFF, DARK), reading(ON, DARK), reading(OFF, LIT), reading(ON, LIT)
    effects = {"light lamp": Effect.between(start_, lamp)}
    assert asked(start_, oven, effects) == ["light lamp"]
    assert asked(start_, oven, effects, both) == []


def test_of_what_was_never_done_and_of_things_without_a_name_nothing_is_guessed():
    before, now = reading(OFF, DARK), reading(ON, DARK)
    known = {frozenset(before.facts), frozenset(now.facts)}
    assert promising(["rub lamp"], before, now, {}, known) == ["rub lamp"]
    idle = {"rub lamp": Effect(frozenset(), frozenset())}
    assert asked(before, now, idle) == []
    assert asked(before, replace(now, names={}), idle) == ["rub lamp"]


def test_a_game_state_knows_its_things_and_who_acts():
    seen = read_game_state(start(GAMES["boil-water"], 3))
    assert seen.names[seen.actor].startswith("agent")
    assert {fact[0] for fact in seen.facts} == set(seen.names)


@pytest.mark.parametrize("postpone", [0, 1, 2])
def test_postponing_skips_nothing(postpone: int):
    """A search that ends for want of actions has seen the same states, whatever it asked first."""
    first = start(GAMES["measure-water"], 5)
    config = TreeConfig(budget_steps=3000, max_depth=2, sure=1.0, postpone=postpone)

    def candidates(text: str) -> list[str]:
        return valid_actions(GAMES["measure-water"], parse_state(text))

    plan = TreeSearch(config).plan(TextGameWorld(), History(observations=[first.to_text()]), candidates)
    whole = TreeSearch(replace(config, order="depth")).plan(
        TextGameWorld(), History(observations=[first.to_text()]), candidates
    )
    assert plan.model_steps < config.budget_steps
    assert (plan.states, plan.expanded, plan.model_steps) == (
        whole.states,
        whole.expanded,
        whole.model_steps,
    )


def test_with_a_small_budget_more_games_are_won_by_asking_the_promising_first():
    won = {}
    for postpone in (0, 2):
        search = TreeSearch(TreeConfig(budget_steps=1500, postpone=postpone))
        won[postpone] = 0
        for name in ("bake-bread", "boil-water", "call-help", "balance-scale"):
            for variation in range(3):
                first = start(GAMES[name], variation).to_text()
                plan = search.plan(
                    TextGameWorld(),
                    History(observations=[first]),
                    lambda text, name=name: valid_actions(GAMES[name], parse_state(text)),
                )
                won[postpone] += plan.won
    assert won[2] > won[0]
