"""The text games: winnable, deterministic, and nothing outside the record."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rlvr_envs.simulators.text_games.actions import WAIT
from rlvr_envs.simulators.text_games.catalogue import GAMES, game_named
from rlvr_envs.simulators.text_games.engine import (
    Game,
    advise,
    checked_start,
    solve,
    start,
    step,
    transitions,
    valid_actions,
)
from rlvr_envs.simulators.text_games.world import World
from worldmodels.language.game_state import GameState, parse_state
from worldmodels.language.state_diff import apply, difference

NUM_VARIATIONS = 100
every_game = pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)


def named(state: GameState, type_: str) -> list[dict]:
    return [
        dict(item["properties"], name=item["name"])
        for item in state.objects.values()
        if item["type"] == type_
    ]


def one_of_type(state: GameState, type_: str) -> dict:
    (found,) = named(state, type_)
    return found


def play(game: Game, state: GameState, *actions: str) -> GameState:
    for action in actions:
        state = step(game, state, action).state
    return state


def with_properties(state: GameState, name: str, **properties: object) -> GameState:
    objects = {
        uuid: {**item, "properties": {**item["properties"], **properties}} if item["name"] == name else item
        for uuid, item in state.objects.items()
    }
    return replace(state, objects=objects)


def random_walk(game: Game, variation: int, steps: int) -> list[tuple[GameState, str, GameState, str]]:
    generator = np.random.default_rng(variation)
    state, walk = start(game, variation), []
    for _ in range(steps):
        if state.game_over:
            break
        actions = valid_actions(game, state)
        action = actions[int(generator.integers(len(actions)))]
        turn = step(game, state, action)
        walk.append((state, action, turn.state, turn.message))
        state = turn.state
    return walk


def test_eleven_games_with_names_of_their_own():
    assert len(GAMES) == 11
    for name, game in GAMES.items():
        assert game.name == name
        assert one_of_type(start(game, 0), "Task")["game"] == name
    with pytest.raises(ValueError, match=r"no game 'boil-milk'; the games are bake-bread, "):
        game_named("boil-milk")


@every_game
def test_the_solver_wins_every_variation(game):
    lengths = [len(solve(game, variation)) for variation in range(NUM_VARIATIONS)]
    assert max(lengths) <= 30  # well within the horizon of 50


@every_game
def test_the_solver_wins_after_a_detour(game):
    won = 0
    for variation in range(NUM_VARIATIONS):
        state = random_walk(game, variation, 4)[-1][2]
        for _ in range(60):
            action = None if state.game_over else advise(game, state)
            if action is None:
                break
            state = step(game, state, action).state
        won += state.game_won
    assert won >= 0.6 * NUM_VARIATIONS


@every_game
def test_score_counts_milestones_and_never_falls(game):
    for variation in range(10):
        state = start(game, variation)
        assert state.score == 0
        world = World.read(state)
        assert not any(reached(world) for reached in game.milestones.values())
        for action in solve(game, variation):
            after = step(game, state, action).state
            task = one_of_type(after, "Task")
            assert after.score == sum(task[name] for name in game.milestones)
            assert after.score >= state.score
            state = after
        assert state.game_over
        assert state.game_won
        assert one_of_type(state, "Task")[list(game.milestones)[-1]]
        for before, _, after, _ in random_walk(game, variation, 30):
            assert after.score >= before.score


@every_game
def test_the_record_alone_decides(game):
    """A state that went through JSON, its objects and properties in another order, goes on the same."""
    for variation in range(5):
        for before, action, after, message in random_walk(game, variation, 25):
            text = before.to_text()
            read = parse_state(text)
            assert read == before
            assert read.to_text() == text
            again = step(game, read, action)
            assert again.state == after
            assert again.message == message
            assert valid_actions(game, read) == valid_actions(game, before)
            assert apply(difference(before, after), before) == after


@every_game
def test_a_turn_leaves_the_old_state_as_it_was(game):
    for variation in range(3):
        state = start(game, variation)
        for action in solve(game, variation):
            text = state.to_text()
            for other in valid_actions(game, state):
                step(game, state, other)
            assert state.to_text() == text
            state = step(game, state, action).state


@every_game
def test_valid_actions_are_understood_and_change_or_explain(game):
    changed = total = 0
    for variation in range(4):
        for state, action, after in transitions(game, variation):
            turn = step(game, state, action)
            assert turn.state == after
            assert turn.message
            assert not turn.message.startswith("I do not understand")
            assert "within reach" not in turn.message
            changed += after != state
            total += 1
    assert 0.2 < changed / total < 0.9


@every_game
def test_every_word_of_the_solver_is_a_valid_action(game):
    for variation in range(5):
        state = start(game, variation)
        for action in solve(game, variation):
            assert action in valid_actions(game, state)
            state = step(game, state, action).state


@every_game
def test_records_are_well_formed(game):
    for variation in range(10):
        for state, _, _, _ in random_walk(game, variation, 20):
            names = [item["name"] for item in state.objects.values()]
            held = [name for item in state.objects.values() for name in item["contains"]]
            assert len(set(names)) == len(names)
            assert len(set(held)) == len(held)
            assert set(held) <= set(names)
            assert [name for name in names if name not in held] == [World.read(state).room.name]
            assert all(item["name"].endswith(f" (ID: {uuid})") for uuid, item in state.objects.items())
            assert all(
                isinstance(value, bool | int | str | None)
                for item in state.objects.values()
                for value in item["properties"].values()
            )


@every_game
def test_variations_differ_and_are_reproducible(game):
    texts = [start(game, variation).to_text() for variation in range(100)]
    assert len(set(texts)) == 100
    assert texts == [start(game, variation).to_text() for variation in range(100)]
    plans = {tuple(solve(game, variation)) for variation in range(30)}
    assert len(plans) >= 29


@every_game
def test_a_table_of_other_variations_does_not_play_the_game(game):
    """Replaying what the solver did in the most similar start of 40 others hardly ever wins."""
    starts = {variation: set(start(game, variation).to_text().split()) for variation in range(60)}
    won = 0
    for variation in range(40, 60):
        nearest = max(range(40), key=lambda other: len(starts[other] & starts[variation]))
        won += play(game, start(game, variation), *solve(game, nearest)).game_won
    assert won <= 2


@every_game
def test_after_the_end_nothing_changes(game):
    state = play(game, start(game, 3), *solve(game, 3))
    assert valid_actions(game, state) == []
    turn = step(game, state, "wait")
    assert turn.state is state
    assert turn.message == "The game is over."


def test_unknown_texts_change_nothing_and_are_answered():
    game = GAMES["boil-water"]
    state = start(game, 0)
    for text, answer in (
        ("", "I do not understand"),
        ("dance", "Things to do: take ..., put ... in ..."),
        ("take moon (ID: 99)", "There is no 'moon (id: 99)' within reach."),
        ("take " + "x" * 900, "There is no 'xxx"),
        ("öffne 冷蔵庫 {}", "I do not understand"),
        ("put\nwater", "I do not understand"),
    ):
        turn = step(game, state, text)
        assert turn.state is state
        assert answer in turn.message
        assert len(turn.message) < 400


def test_names_work_without_number_and_in_any_case():
    game = GAMES["boil-water"]
    state = start(game, 0)
    sink = one_of_type(state, "Sink")["name"]
    wanted = step(game, state, f"turn on {sink}").state
    assert wanted != state
    assert step(game, state, "turn on sink").state == wanted
    assert step(game, state, "  Turn  ON Sink ").state == wanted


def test_what_is_in_something_closed_is_out_of_reach():
    game = GAMES["open-vault"]
    state = start(game, 1)
    note = one_of_type(state, "Note")["name"]
    assert "within reach" in step(game, state, f"take {note}").message
    assert f"take {note}" not in valid_actions(game, state)


def test_water_heats_by_the_stoves_own_number():
    game = GAMES["boil-water"]
    state = start(game, 5)
    for action in solve(game, 5):
        before, state = state, step(game, state, action).state
    stoves = [stove for stove in named(before, "Stove") if stove["isOn"]]
    water_before, water = one_of_type(before, "Water"), one_of_type(state, "Water")
    assert water["temperature"] == min(
        water_before["temperature"] + stoves[0]["heatPerTick"], water["boilingPoint"]
    )
    assert water["isBoiling"]


def test_an_empty_vessel_cracks_on_a_hot_stove():
    game = GAMES["boil-water"]
    state = start(game, 0)
    vessel = one_of_type(state, "Task")["vessel"]
    stove = next(stove["name"] for stove in named(state, "Stove") if not stove["isBroken"])
    state = play(game, state, f"take {vessel}", f"put {vessel} in {stove}", f"turn on {stove}", "wait")
    assert not state.game_over
    state = step(game, state, "wait").state
    assert state.game_over
    assert not state.game_won


def test_bread_burns_and_hot_bread_needs_mitts():
    game = GAMES["bake-bread"]
    plan = solve(game, 0)
    state = start(game, 0)
    for action in plan:
        if one_of_type(state, "Task")["isBaked"] and action.startswith("take"):
            break
        state = step(game, state, action).state
    mitts = one_of_type(state, "Mitts")["name"]
    bare = step(game, step(game, state, f"drop {mitts}").state, action)
    assert "too hot for bare hands" in bare.message
    oven = one_of_type(state, "Oven")["name"]
    state = play(game, state, f"close {oven}", *["wait"] * 12)
    assert state.game_over
    assert not state.game_won


def test_a_sawn_plank_keeps_its_length_in_sum_and_the_saw_gets_dull():
    game = GAMES["cut-planks"]
    state = start(game, 0)
    for action in solve(game, 0):
        before, state = state, step(game, state, action).state
        if action.startswith("saw"):
            break
    total = [sum(plank["length"] for plank in named(moment, "Plank")) for moment in (before, state)]
    assert total[0] == total[1]
    assert len(named(state, "Plank")) == len(named(before, "Plank")) + 1
    assert one_of_type(state, "Saw")["sharpness"] == one_of_type(before, "Saw")["sharpness"] - 1
    dull = with_properties(before, one_of_type(before, "Saw")["name"], sharpness=0)
    assert "is dull" in step(game, dull, action).message


def test_three_wrong_codes_block_the_safe():
    game = GAMES["open-vault"]
    state = start(game, 2)
    safe = one_of_type(state, "Safe")
    wrong = str((int(safe["code"][0]) + 1) % 10)
    state = play(game, state, *[f"dial {wrong} on {safe['name']}"] * (3 * len(safe["code"])))
    assert one_of_type(state, "Safe")["failures"] == 3
    assert state.game_over
    assert not state.game_won


def test_paint_mixes_by_the_chart_and_else_to_mud():
    game = GAMES["mix-paint"]
    state = start(game, 0)
    chart = one_of_type(state, "Chart")
    before, action = state, ""
    for action in solve(game, 0):
        before, state = state, step(game, state, action).state
        if one_of_type(state, "Task")["isFirstColourMixed"]:
            break

    def new_colour(after: GameState) -> str:
        (uuid,) = after.objects.keys() - before.objects.keys()
        return after.objects[uuid]["properties"]["colour"]

    recipes = {colour: key for key, colour in chart.items() if " + " in key}
    mixed = one_of_type(state, "Task")["firstColour"]
    assert new_colour(state) == mixed
    assert len(state.objects) == len(before.objects)  # two went into one
    other = with_properties(before, chart["name"], **{recipes[mixed]: "beige"})
    assert new_colour(step(game, other, action).state) == "beige"
    tube = next(tube["name"] for tube in named(before, "Tube") if tube["name"] in action)
    odd = with_properties(before, tube, colour="beige")
    assert new_colour(step(game, odd, action).state) == "mud"


def test_too_much_water_in_the_bowl_loses():
    game = GAMES["measure-water"]
    for variation in range(30):
        state = start(game, variation)
        wanted = one_of_type(state, "Task")["litres"]
        big = [jug["name"] for jug in named(state, "Jug") if jug["capacityLitres"] > wanted + 1]
        tap, bowl = one_of_type(state, "Tap")["name"], one_of_type(state, "Bowl")["name"]
        if big and f"take {big[0]}" in valid_actions(game, state):
            state = play(game, state, f"take {big[0]}", f"fill {big[0]} in {tap}", f"pour {big[0]} in {bowl}")
            assert state.game_over
            assert not state.game_won
            return
    pytest.fail("no variation has such a jug in reach")


def test_a_lamp_burns_out_at_too_many_volts():
    game = GAMES["light-lamp"]
    state = start(game, 0)
    lamp = one_of_type(state, "Task")["lamp"]
    plan = solve(game, 0)
    battery = next(action for action in plan if "battery" in action).rpartition(" of ")[2]
    before = play(game, state, *plan[:-1])
    hot = with_properties(before, battery, volts=99)
    after = step(game, hot, plan[-1]).state
    assert next(item for item in named(after, "Lamp") if item["name"] == lamp)["isBurnt"]
    assert after.game_over
    assert not after.game_won
    dark = with_properties(before, battery, charge=0)
    assert not step(game, dark, plan[-1]).state.game_won


def test_a_plant_without_water_dies():
    game = GAMES["grow-plant"]
    state = start(game, 0)
    for action in solve(game, 0):
        state = step(game, state, action).state
        if action.startswith("plant"):
            break
    state = play(game, state, *["wait"] * 30)
    assert state.game_over
    assert not state.game_won


def test_too_many_watts_blow_the_fuse():
    game = GAMES["call-help"]
    state = start(game, 0)
    plan = solve(game, 0)
    running = next(place for place, action in enumerate(plan) if action.startswith("turn on"))
    before = play(game, state, *plan[:running])
    radio = one_of_type(before, "Radio")["name"]
    after = step(game, with_properties(before, radio, watts=10_000), plan[running]).state
    assert one_of_type(after, "Strip")["isFuseBlown"]
    assert not one_of_type(after, "Strip")["hasPower"]


def test_colours_run_in_the_wash():
    game = GAMES["wash-clothes"]
    for variation in range(60):
        state = start(game, variation)
        clothes = named(state, "Clothing")
        if clothes and one_of_type(state, "Task")["colour"] == "white":
            break
    wanted = one_of_type(state, "Task")["clothing"]
    other = next(item["name"] for item in clothes if item["name"] != wanted)
    state = with_properties(state, other, colour="red")
    washer = one_of_type(state, "Washer")["name"]
    world = World.read(state)
    machine = world.named(washer)
    for name in (wanted, other):
        world.move(world.named(name), machine)
    machine["hasSoap"], machine["isOpen"] = True, False
    state = play(game, world.write(), f"turn on {washer}", *["wait"] * 4)
    assert {item["colour"] for item in named(state, "Clothing") if item["name"] in (wanted, other)} == {"red"}
    assert state.game_over
    assert not state.game_won


def test_the_beam_breaks():
    game = GAMES["balance-scale"]
    state = start(game, 0)
    plan = solve(game, 0)
    heavy = with_properties(state, one_of_type(state, "Statue")["name"], weight=10_000)
    after = play(game, heavy, *plan)
    assert one_of_type(after, "Scale")["isBroken"]
    assert after.game_over
    assert not after.game_won


def test_transitions_are_the_same_each_time_and_leave_the_shortest_path():
    game = GAMES["cut-planks"]
    once = [(s.to_text(), a, n.to_text()) for s, a, n in transitions(game, 3)]
    assert once == [(s.to_text(), a, n.to_text()) for s, a, n in transitions(game, 3)]
    straight = {s.to_text() for s, _, _ in transitions(game, 3, random_share=0)}
    assert len(straight) == len(solve(game, 3))
    assert {s for s, _, _ in once} - straight
    with pytest.raises(ValueError, match=r"random_share is 2; it is a probability in \[0, 1\]"):
        next(transitions(game, 3, random_share=2))
    with pytest.raises(ValueError, match="variation is -1; it must be a whole number"):
        start(game, -1)


def test_new_things_get_the_number_above_the_highest():
    game = GAMES["boil-water"]
    state = start(game, 0)
    highest = max(state.objects)
    for action in solve(game, 0):
        state = step(game, state, action).state
    assert state.objects[highest + 1]["name"] == f"water (ID: {highest + 1})"


def broken(state: GameState, change: str) -> dict:
    record = json.loads(state.to_text())
    items = {item["type"]: item for item in record["objects"]}
    if change == "missing property":
        del items["Stove"]["properties"]["heatPerTick"]
    elif change == "wrong kind":
        items["Sink"]["properties"]["isOn"] = "yes"
    elif change == "in nothing":
        items["World"]["contains"].append("ghost (ID: 99)")
    elif change == "in two places":
        items["Sink"]["contains"].append(items["Stove"]["name"])
    elif change == "in itself":
        items["World"]["contains"].remove(items["Sink"]["name"])
        items["Sink"]["contains"].append(items["Sink"]["name"])
    elif change == "no sink":
        items["World"]["contains"].remove(items["Sink"]["name"])
        record["objects"].remove(items["Sink"])
    elif change == "no vessel":
        items["Task"]["properties"]["vessel"] = "ghost (ID: 99)"
    elif change == "other game":
        items["Task"]["properties"]["game"] = "bake-bread"
    elif change == "twins":
        items["Sink"]["name"] = items["Stove"]["name"]
    return record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing property", r"'.* stove .*': property 'heatPerTick' is missing; boil-water needs int"),
        ("wrong kind", r"'sink .*': property 'isOn' is 'yes'; boil-water needs bool"),
        ("in nothing", r"contains 'ghost \(ID: 99\)', which is no object"),
        ("in two places", r"stove .* is in '.*' and in '"),
        ("in itself", r"'sink .*' is within itself"),
        ("no sink", r"no object of type 'Sink'"),
        ("no vessel", r"the task's 'vessel' is 'ghost \(ID: 99\)', which is no object"),
        ("other game", r"of the game 'bake-bread'; expected 'boil-water'"),
        ("twins", r"two objects of the state have the same name"),
    ],
)
def test_a_state_that_the_game_cannot_go_on_from_is_refused(change, message):
    game = GAMES["boil-water"]
    state = start(game, 0)
    assert checked_start(game, state) is state
    with pytest.raises(ValueError, match=message):
        checked_start(game, parse_state(broken(state, change)))


@every_game
def test_every_state_of_a_game_is_one_to_go_on_from(game):
    for variation in range(100, 120):
        for state, _, after, _ in random_walk(game, variation, 15):
            checked_start(game, state)
            checked_start(game, after)


@every_game
def test_advice_from_anywhere_is_an_action_or_none(game):
    for variation in range(60, 75):
        for _, _, state, _ in random_walk(game, variation, 25):
            action = None if state.game_over else advise(game, state)
            assert action is None or not step(game, state, action).message.startswith("I do not understand")


def test_ways_go_on_at_random_where_the_solver_gives_up():
    game = GAMES["mix-paint"]
    empty = start(game, 0)
    for tube in named(empty, "Tube"):
        empty = with_properties(empty, tube["name"], colour="beige")
    assert advise(game, empty) is None
    for variation in range(3):
        assert len({before.to_text() for before, _, _ in transitions(game, variation, random_share=1.0)}) > 5


def test_waiting_is_always_possible():
    assert all(WAIT.text(()) in valid_actions(game, start(game, 0)) for game in GAMES.values())
