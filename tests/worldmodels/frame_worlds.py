"""Small random RT-1 world models for tests: 16x16 frames, 16 + 4 ids, windows of 4 frames."""

from typing import Any

import numpy as np
import torch

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.layouts import MultiStepLayout, SingleStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW
from worldmodels.video.single_step_world import SingleStepWorldModel

SIDE = 16
PROTOCOL = {"environment": "test", "image_size": [SIDE, SIDE]}
BINS = ActionBins(low=RT1_LOW.tolist(), high=RT1_HIGH.tolist(), num_bins=8)
MULTI = MultiStepLayout(
    context_tokens=16, dynamic_tokens=4, num_frames=4, dynamic_vocab=20, context_vocab=20, action_bins=8
)
SINGLE = SingleStepLayout(visual_tokens=16, visual_vocab=20, action_bins=8)


def tiny_llama(vocab_size: int, seed: int = 0) -> Llama:
    """Weights so large that every id depends on all before it."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return Llama(config, seed=seed)


def compressive_tokenizer(seed: int = 0) -> CompressiveTokenizer:
    config = CompressiveTokenizerConfig(
        image_size=(SIDE, SIDE),
        block_out_channels=(32, 32, 32),
        layers_per_block=1,
        latent_channels=8,
        patch_size=2,
        max_att_resolution=8,
        context_levels=(5, 4),
        dynamic_levels=(5, 4),
    )
    return sensitive(CompressiveTokenizer(config, seed=seed))


def frame_tokenizer(seed: int = 0) -> FrameTokenizer:
    config = FrameTokenizerConfig(
        block_out_channels=(32, 32, 32),
        layers_per_block=1,
        latent_channels=8,
        fsq_levels=(5, 4),
    )
    return sensitive(FrameTokenizer(config, seed=seed))


def sensitive(tokenizer: Any) -> Any:
    """Fresh quantisers hardly leave their middle level; these use them all."""
    with torch.no_grad():
        for name in ("quant_conv", "quant_linear"):
            if hasattr(tokenizer, name):
                getattr(tokenizer, name).weight.mul_(8)
    return tokenizer.eval()


def multi_step_world(seed: int = 0, **options: Any) -> MultiStepWorldModel:
    return MultiStepWorldModel(
        compressive_tokenizer(seed),
        tiny_llama(MULTI.vocab_size, seed),
        MULTI,
        BINS,
        protocol=PROTOCOL,
        **options,
    )


def single_step_world(seed: int = 0, **options: Any) -> SingleStepWorldModel:
    return SingleStepWorldModel(
        frame_tokenizer(seed),
        tiny_llama(SINGLE.vocab_size, seed),
        SINGLE,
        BINS,
        image_size=(SIDE, SIDE),
        protocol=PROTOCOL,
        **options,
    )


def random_frames(count: int, seed: int = 0) -> np.ndarray:
    """``(count, 16, 16, 3)`` uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


def random_actions(*shape: int, seed: int = 0) -> np.ndarray:
    """``(*shape, 13)`` float32 in RT-1's ranges."""
    generator = np.random.default_rng(seed)
    return generator.uniform(RT1_LOW, RT1_HIGH, (*shape, 13)).astype(np.float32)
