"""Recipes: named training runs, from a run folder and a data folder to a checkpoint folder."""

from __future__ import annotations

from training.drawer_recipes import DRAWER_RECIPES
from training.drawer_world_recipes import DRAWER_WORLD_RECIPES
from training.jobs import Recipe
from training.paper_recipes import PAPER_RECIPES
from training.paper_single_recipes import PAPER_SINGLE_RECIPES
from training.paper_text_recipes import PAPER_TEXT_RECIPES
from training.pusht_recipes import PUSHT_RECIPES
from training.textgame_recipes import TEXTGAME_RECIPES

RECIPES: dict[str, Recipe] = {
    **PUSHT_RECIPES,
    **DRAWER_RECIPES,
    **DRAWER_WORLD_RECIPES,
    **TEXTGAME_RECIPES,
    **PAPER_RECIPES,
    **PAPER_SINGLE_RECIPES,
    **PAPER_TEXT_RECIPES,
}
