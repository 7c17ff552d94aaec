"""A tiny random slot model and a few turns of real games."""

from __future__ import annotations

import torch

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import transitions
from worldmodels.language.compact_questions import Schema
from worldmodels.language.slot_model import SlotModel
from worldmodels.language.slot_world import SlotWorldModel
from worldmodels.language.transitions import GameTransition
from worldmodels.language.words import Vocabulary
from worldmodels.nets.slot_transformer import SlotTransformerConfig


def turns(game: str = "boil-water", variation: int = 3, limit: int = 40) -> list[GameTransition]:
    """The first transitions of one way through a game."""
    rows = []
    for number, (before, action, after) in enumerate(transitions(GAMES[game], variation)):
        if number == limit:
            break
        rows.append(
            GameTransition(
                id=f"{game}/{variation}/{number}", game=game, before=before, action=action, after=after
            )
        )
    return rows


def tiny_slot_model(words=("isOn", "temperature"), schema: Schema | None = None, seed: int = 0) -> SlotModel:
    """Random weights of the smallest useful size."""
    vocabulary = Vocabulary(words)
    config = SlotTransformerConfig(
        vocab_size=vocabulary.size,
        hidden_size=16,
        intermediate_size=32,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        max_answer=24,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SlotModel(config, vocabulary, schema or Schema()).eval()


def tiny_slot_world(seed: int = 0) -> SlotWorldModel:
    """The same as a world model."""
    return SlotWorldModel(tiny_slot_model(seed=seed))
