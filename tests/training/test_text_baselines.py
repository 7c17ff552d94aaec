"""Answers that need no model, among them what a neighbour's change does to a state."""

import dataclasses

from tests.worldmodels.language.tiny_slots import turns
from training.text_baselines import TrainingTable, nothing_changes, perfect
from worldmodels.language.game_state import build_state
from worldmodels.language.transitions import GameTransition

ROWS = turns("boil-water", 3, 60)


def test_the_perfect_row_is_perfect_and_doing_nothing_is_not():
    numbers = range(len(ROWS))
    right = [row.after for row in ROWS]
    assert perfect(ROWS, numbers) == right
    assert nothing_changes(ROWS, numbers) == [row.before for row in ROWS]
    assert nothing_changes(ROWS, numbers) != right


def test_looking_up_what_was_seen():
    table = TrainingTable(ROWS[:30])
    numbers = range(len(ROWS))
    found = table.lookup(ROWS, numbers)
    for row, said in zip(ROWS[:30], found[:30], strict=True):
        assert said == row.after
        assert table.twin(row) == row.after
        assert table.knows_action(row)
    for row, said in zip(ROWS[30:], found[30:], strict=True):
        assert said == (table.twin(row) or row.before)


def test_a_neighbour_repeats_its_change():
    first = next(row for row in ROWS if row.after != row.before and "take" in row.action)
    table = TrainingTable([first])
    assert table.neighbour([first], [0]) == [first.after]
    aside = dataclasses.replace(first, action="do something unheard of")
    assert table.neighbour([aside], [0]) == [aside.before]
    fewer = dict(list(first.before.objects.items())[:3])
    cut = dataclasses.replace(first, before=dataclasses.replace(first.before, objects=fewer))
    assert set(table.neighbour([cut], [0])[0].objects) >= set(fewer)


def test_other_games_do_not_count():
    table = TrainingTable(ROWS)
    stranger = GameTransition(
        id="x/0/0",
        game="x",
        before=ROWS[0].before,
        action=ROWS[0].action,
        after=ROWS[0].after,
    )
    assert table.twin(stranger) is None
    assert not table.knows_action(stranger)
    assert all(table.twin(row) is not None for row in ROWS)


def kitchen(*things, score=0):
    """A state of things, each as (uuid, name, properties, names of what it holds)."""
    objects = [
        {"uuid": uuid, "name": name, "type": "Thing", "properties": properties, "contains": contains}
        for uuid, name, properties, contains in things
    ]
    return build_state(objects, {"score": score, "gameOver": False, "gameWon": False})


def said_by_a_neighbour(before, after, state):
    """What follows on ``state`` if all that is known of the action is how it made ``before`` into ``after``."""
    known = GameTransition(id="k/0/0", game="k", before=before, action="act", after=after)
    asked = GameTransition(id="k/1/0", game="k", before=state, action="act", after=state)
    return TrainingTable([known]).neighbour([asked], [0])[0]


def test_what_moves_there_moves_here_and_what_else_is_held_stays():
    table, agent = (1, "table", {}), (2, "agent", {})
    cup, egg, pan = (3, "cup", {}, []), (4, "egg", {}, []), (5, "pan", {}, [])
    before = kitchen((*table, ["cup", "pan"]), (*agent, []), cup, pan)
    after = kitchen((*table, ["pan"]), (*agent, ["cup"]), cup, pan)
    here = kitchen((*table, ["cup", "egg"]), (*agent, ["pan"]), cup, egg, pan)
    assert said_by_a_neighbour(before, after, here) == kitchen(
        (*table, ["egg"]), (*agent, ["pan", "cup"]), cup, egg, pan
    )
    elsewhere = kitchen((*table, ["egg"]), (*agent, []), (3, "cup", {}, []), (4, "egg", {}, ["cup"]))
    assert said_by_a_neighbour(before, after, elsewhere) == kitchen(
        (*table, ["egg"]), (*agent, ["cup"]), (3, "cup", {}, []), (4, "egg", {}, [])
    )
    without_agent = kitchen((*table, ["cup", "egg"]), cup, egg)
    assert said_by_a_neighbour(before, after, without_agent) == without_agent
    without_cup = kitchen((*table, ["egg"]), (*agent, []), egg)
    assert said_by_a_neighbour(before, after, without_cup) == without_cup


def test_what_comes_goes_and_is_renamed_there_does_so_here():
    before = kitchen((1, "table", {}, ["egg", "cup"]), (3, "egg", {}, []), (4, "cup", {"full": True}, []))
    after = kitchen(
        (1, "table", {}, ["shell", "dirty cup"]),
        (4, "dirty cup", {"full": False}, ["yolk"]),
        (6, "shell", {}, []),
        (7, "yolk", {}, []),
        score=1,
    )
    here = kitchen(
        (1, "table", {}, ["pan", "nobody knows"]),
        (3, "egg", {}, []),
        (4, "cup", {"full": True, "hot": True}, ["spoon"]),
        (5, "pan", {}, ["egg", "cup"]),
        (8, "spoon", {}, []),
        score=3,
    )
    assert said_by_a_neighbour(before, after, here) == kitchen(
        (1, "table", {}, ["pan", "nobody knows", "shell"]),
        (4, "dirty cup", {"full": False, "hot": True}, ["spoon", "yolk"]),
        (5, "pan", {}, ["dirty cup"]),
        (6, "shell", {}, []),
        (7, "yolk", {}, []),
        (8, "spoon", {}, []),
        score=1,
    )


def test_a_twin_is_the_nearest_neighbour_though_names_be_doubtful():
    before = kitchen((1, "agent", {}, []), (2, "pot", {}, ["water"]), (3, "water", {}, []))
    after = kitchen(
        (1, "agent", {}, ["water"]), (2, "pot", {}, ["water"]), (3, "water", {}, []), (4, "water", {}, [])
    )
    assert said_by_a_neighbour(before, after, before) == after
