"""What a search asks of the true games, as training rows."""

from collections import Counter

import numpy as np
import pytest

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import start, step, transitions
from training.text_searched import SearchedConfig, each_kind, kind_of, searched_rows
from worldmodels.language.transitions import GameTransition

SMALL = SearchedConfig(budget=60, rows=12)


@pytest.mark.parametrize("name", sorted(GAMES))
def test_searched_rows_are_true_and_few_and_the_same_again(name):
    rows = searched_rows(GAMES[name], 3, SMALL, random_share=0.2)
    assert 0 < len(rows) <= SMALL.rows
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.after == step(GAMES[name], row.before, row.action).state
        assert row.episode == f"{name}/3-searched"
    again = searched_rows(GAMES[name], 3, SMALL, random_share=0.2)
    assert [(row.id, row.before, row.action) for row in again] == [
        (row.id, row.before, row.action) for row in rows
    ]


def test_a_search_visits_states_that_the_way_does_not():
    game = GAMES["open-vault"]
    rows = searched_rows(game, 5, SearchedConfig(budget=200, rows=200, moments=1))
    visited = {before.to_text() for before, _, _ in transitions(game, 5, random_share=0)}
    assert len({row.before.to_text() for row in rows} - visited) > 1
    assert len(rows) == 200  # nothing is left out where all is asked for


def test_searches_begin_at_different_moments():
    game = GAMES["boil-water"]
    scores = {
        min(row.before.score for row in searched_rows(game, variation, SMALL)) for variation in range(12)
    }
    assert len(scores) > 1


def test_rare_kinds_come_before_common_ones():
    rows = all_rows("boil-water", 1)
    kinds = Counter(kind_of(row) for row in rows)
    most = len(kinds) + 3
    assert most < len(rows)
    chosen = each_kind(rows, most, np.random.default_rng(0))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == most
    assert {kind_of(rows[number]) for number in chosen} == set(kinds)
    few = each_kind(rows, 4, np.random.default_rng(0))
    rarest = sorted(kinds.values())[:4]
    assert sorted(kinds[kind_of(rows[number])] for number in few) == rarest


def test_points_and_side_effects_are_kinds_of_their_own():
    game = GAMES["boil-water"]
    rows = all_rows("boil-water", 1)
    for row in rows:
        same = [other for other in rows if kind_of(other) == kind_of(row)]
        assert {other.after.score - other.before.score for other in same} == {
            row.after.score - row.before.score
        }
        assert {other.after == other.before for other in same} == {row.after == row.before}
    first = start(game, 1)
    nothing = GameTransition(id="x/0", game=game.name, before=first, action="wait", after=first)
    assert kind_of(nothing) != kind_of(
        GameTransition(id="x/1", game=game.name, before=first, action="take it", after=first)
    )


def all_rows(name, variation):
    return [
        GameTransition(
            id=f"{name}/{variation}/{number}", game=name, before=before, action=action, after=after
        )
        for number, (before, action, after) in enumerate(
            transitions(GAMES[name], variation, random_share=0.2)
        )
    ]
