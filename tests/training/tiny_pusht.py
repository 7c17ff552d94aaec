"""Small real parts for tests of the PushT evaluation: a store of simulated episodes, and untrained tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.collect import CollectConfig, collect
from training.data import PushTData
from training.fit import seeded
from training.readers import PoseReader, PoseReaderConfig
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout


def tiny_data(folder: Path, *, episodes: int) -> PushTData:
    """The first training episodes of one block of scripted pushing."""
    config = CollectConfig(episodes=1, seed=3, steps=60, processes=1)
    return PushTData.load(collect(folder, config, kinds=("push",)), "train", limit=episodes)


def tiny_model(*, seed: int, tokenizer_seed: int = 0) -> ObjectWorldModel:
    tokenizer = seeded(
        lambda: GlobalTokenizer(GlobalTokenizerConfig(width=8, keypoints=4, hidden=32, decoder_width=8)),
        tokenizer_seed,
    )
    config = ObjectDynamicsConfig(hidden_size=32, layers=1, heads=2, intermediate_size=32, stem_width=32)
    dynamics = seeded(lambda: ObjectDynamics(config, SlotLayout()), seed)
    return ObjectWorldModel(tokenizer, dynamics)


def tiny_reader() -> PoseReader:
    return seeded(lambda: PoseReader(PoseReaderConfig(width=8, keypoints=4, hidden=32)), 0).eval()


def alex() -> Perceptual:
    try:
        return Perceptual("alex")
    except FileNotFoundError as error:
        pytest.skip(str(error))
