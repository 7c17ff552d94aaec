"""The drawer tokenizer's two recipes fit together."""

import pytest

from training.drawer_recipes import DRAWER_RECIPES, TOKENIZER, TOKENIZER_MORE
from training.jobs import Job


def test_the_second_recipe_goes_on_with_the_same_network_and_smaller_steps():
    assert TOKENIZER_MORE.tokenizer == TOKENIZER.tokenizer
    assert TOKENIZER_MORE.lessons.soft_until == 0
    for recipe in (TOKENIZER, TOKENIZER_MORE):
        assert recipe.cases.segment == recipe.lessons.cases.segment
    assert TOKENIZER_MORE.lessons.fit.learning_rate < TOKENIZER.lessons.fit.learning_rate
    assert TOKENIZER_MORE.losses.fit.learning_rate < TOKENIZER.losses.fit.learning_rate


def test_the_second_recipe_needs_a_base(tmp_path):
    with pytest.raises(ValueError, match="name it with --base"):
        DRAWER_RECIPES["drawer-tokenizer-more"].run(Job(folder=tmp_path, data=tmp_path))
