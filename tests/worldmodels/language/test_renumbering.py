"""States with other numbers for their objects mean the same."""

import pytest

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import step, transitions
from worldmodels.language.renumbering import another_numbering, renumbered, renumbered_text


@pytest.mark.parametrize("name", sorted(GAMES))
def test_a_game_goes_on_alike_whatever_its_numbers(name):
    checked = 0
    for number, (before, action, after) in enumerate(transitions(GAMES[name], 4, random_share=0.3)):
        if number % 7:
            continue
        numbers = another_numbering(before, number)
        other = renumbered(before, numbers)
        assert list(other.objects) == sorted(before.objects)
        assert step(GAMES[name], other, renumbered_text(action, numbers)).state == renumbered(after, numbers)
        checked += other != before
    assert checked > 10


def test_numbers_change_places_but_those_of_the_first_three():
    before = next(iter(transitions(GAMES["boil-water"], 4)))[0]
    numbers = another_numbering(before, 0)
    assert sorted(numbers) == sorted(numbers.values()) == sorted(before.objects)[3:]
    assert another_numbering(before, 0) == numbers != another_numbering(before, 1)
    back = {new: old for old, new in numbers.items()}
    assert renumbered(renumbered(before, numbers), back) == before


def test_only_marked_numbers_are_numbers_of_objects():
    assert renumbered_text("pour 3 cups of tea (ID: 3) into pot (ID: 5)", {3: 5, 5: 3}) == (
        "pour 3 cups of tea (ID: 5) into pot (ID: 3)"
    )
    assert renumbered_text("take it (ID: 9)", {3: 5, 5: 3}) == "take it (ID: 9)"
