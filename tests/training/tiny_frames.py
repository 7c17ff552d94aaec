"""An untrained world model of the toy frames, small enough for fast tests."""

from __future__ import annotations

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel

TOKENIZER = CompressiveTokenizerConfig(
    image_size=(16, 32),
    block_out_channels=(32, 32),
    layers_per_block=1,
    latent_channels=8,
    norm_num_groups=4,
    patch_size=4,
    max_att_resolution=8,
    context_levels=(4, 4),
    dynamic_levels=(5, 4),
)
BINS = ActionBins(low=[-3.0] * 13, high=[3.0] * 13, num_bins=8)


def tiny_layout(tokenizer: CompressiveTokenizer, *, num_frames: int = 4) -> MultiStepLayout:
    return MultiStepLayout(
        context_tokens=tokenizer.context_tokens,
        dynamic_tokens=tokenizer.dynamic_tokens,
        action_dim=13,
        num_frames=num_frames,
        dynamic_vocab=tokenizer.dynamic_codebook_size,
        context_vocab=tokenizer.context_codebook_size,
        action_bins=BINS.num_bins,
    )


def tiny_model(*, seed: int = 0, num_frames: int = 4) -> MultiStepWorldModel:
    tokenizer = CompressiveTokenizer(TOKENIZER, seed=seed).eval()
    layout = tiny_layout(tokenizer, num_frames=num_frames)
    config = LlamaConfig(
        vocab_size=layout.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=layout.response.stop,
        initializer_range=0.2,  # far from uniform, so that likelihoods have something to tell
    )
    return MultiStepWorldModel(tokenizer, Llama(config, seed=seed), layout, BINS)
