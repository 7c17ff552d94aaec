"""The drawer tokenizer's recipes fit together, and are those that the bundled one was trained by."""

import json
import re

import pytest

from training.drawer_recipes import DRAWER_RECIPES, TOKENIZER, TOKENIZER_AGAIN, TOKENIZER_MORE
from training.jobs import Job
from training.run import to_json
from worldmodels.folders import ASSETS


def test_later_recipes_go_on_with_the_same_network_and_smaller_steps():
    for recipe in (TOKENIZER_AGAIN, TOKENIZER_MORE):
        assert recipe.tokenizer == TOKENIZER.tokenizer
        assert recipe.lessons.soft_until == 0
        assert recipe.lessons.fit.learning_rate < TOKENIZER.lessons.fit.learning_rate
        assert recipe.losses.fit.learning_rate < TOKENIZER.losses.fit.learning_rate
    for recipe in (TOKENIZER, TOKENIZER_AGAIN, TOKENIZER_MORE):
        assert recipe.cases.segment == recipe.lessons.cases.segment
        assert not recipe.cases.whole_segments  # episodes are not longer than a segment
        assert not recipe.lessons.cases.whole_segments
    # The state weighs more in the last run only, which is longer, too.
    weights = [recipe.lessons.state_weight for recipe in (TOKENIZER, TOKENIZER_AGAIN, TOKENIZER_MORE)]
    assert weights == [1, 1, 4]
    assert TOKENIZER_AGAIN.lessons.fit.steps == TOKENIZER_AGAIN.losses.fit.steps == 3000


def test_the_bundled_tokenizer_is_of_the_last_recipe():
    card = (ASSETS / "drawer-tokenizer" / "card.md").read_text(encoding="utf-8")
    recorded = json.loads(re.search("- recipe: `(.*)`", card)[1])["recipe"]

    def contained(known, asked):
        """Whether all that was recorded is asked for still; a recipe may have got more settings since."""
        if not isinstance(known, dict):
            return known == asked
        return all(contained(value, asked.get(key)) for key, value in known.items())

    assert contained(recorded, to_json(TOKENIZER_MORE))


@pytest.mark.parametrize("name", ["drawer-tokenizer-again", "drawer-tokenizer-more"])
def test_later_recipes_need_a_base(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} .* name it with --base"):
        DRAWER_RECIPES[name].run(Job(folder=tmp_path, data=tmp_path))
