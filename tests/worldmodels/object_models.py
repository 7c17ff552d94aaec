"""Small random object world models for tests."""

import torch

from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout


def tiny_model(seed: int = 0, *, use_stem: bool = True) -> ObjectWorldModel:
    """A random model whose tokens really depend on everything: zero-initialised layers are disturbed."""
    layout = SlotLayout(
        num_codes=2,
        code_levels=(5, 4),
        position_bins=32,
        velocity_bins=16,
        position_low=0.0,
        position_high=512.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = GlobalTokenizer(
            GlobalTokenizerConfig(image_size=32, num_tokens=2, levels=(5, 4), width=8, keypoints=4, hidden=16)
        )
        dynamics = ObjectDynamics(
            ObjectDynamicsConfig(
                action_size=10,
                hidden_size=16,
                layers=2,
                heads=2,
                intermediate_size=32,
                stem_width=16,
                use_stem=use_stem,
            ),
            layout,
        )
        for parameter in dynamics.parameters():
            parameter.data += torch.randn_like(parameter) * 0.3
    return ObjectWorldModel(tokenizer, dynamics)


def random_window(
    model: ObjectWorldModel, batch: int, frames: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens ``(B, T, S)`` and actions ``(B, T-1, A)``."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [
        torch.randint(0, size, (batch, frames), generator=generator) for size in model.dynamics.layout.sizes
    ]
    actions = torch.randn(batch, frames - 1, 10, generator=generator) * 0.3
    return torch.stack(tokens, -1), actions
