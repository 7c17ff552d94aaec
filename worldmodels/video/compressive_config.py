"""Sizes of a compressive tokenizer, and how to read them from a published ``config.json``.

Absent: the network (``compressive_tokenizer``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldmodels.nets.cross_attention import NUM_GROUPS
from worldmodels.nets.fsq import LEVELS_BY_BITS


@dataclass(frozen=True, kw_only=True)
class CompressiveTokenizerConfig:
    """Sizes; the defaults are the published full size.

    Attributes:
        image_size: Height and width of frames, px.
        block_out_channels: Width of each of the n blocks; n - 1 of them halve the size.
        layers_per_block: Residual blocks in each (one more in the decoders).
        latent_channels: Width between encoder and quantiser.
        norm_num_groups: Groups of every GroupNorm outside cross attention.
        patch_size: Side of the square of latents that becomes one id of a frame that is not the context.
        max_att_resolution: Feature maps of at most this height look at the context.
        attention_groups: Groups of the norms in that attention.
        attention_dropout: Share of that attention's weights that is dropped in training mode, in [0, 1); published with
            0.1. It changes nothing in use.
        context_levels, dynamic_levels: Levels of the two code books.
    """

    image_size: tuple[int, int] = (256, 320)
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512)
    layers_per_block: int = 2
    latent_channels: int = 64
    norm_num_groups: int = 32
    patch_size: int = 4
    max_att_resolution: int = 32
    attention_groups: int = NUM_GROUPS
    attention_dropout: float = 0.0
    context_levels: tuple[int, ...] = LEVELS_BY_BITS[12]
    dynamic_levels: tuple[int, ...] = LEVELS_BY_BITS[12]

    def __post_init__(self) -> None:
        side = self.downscale * self.patch_size
        if any(size < side or size % side for size in self.image_size):
            raise ValueError(
                f"image_size is {self.image_size}; height and width must be multiples of {side} px "
                f"({len(self.block_out_channels)} blocks, patch_size {self.patch_size})"
            )
        if self.latent_size[0] > self.max_att_resolution:
            raise ValueError(
                f"max_att_resolution is {self.max_att_resolution}, but the smallest map of {self.image_size} px "
                f"has {self.latent_size[0]} rows: no frame would see its context; give at least that number"
            )
        if not 0 <= self.attention_dropout < 1:
            raise ValueError(
                f"attention_dropout is {self.attention_dropout}; give a share in [0, 1), 0 for none"
            )

    @property
    def downscale(self) -> int:
        """Pixels per latent along each side."""
        return 2 ** (len(self.block_out_channels) - 1)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of the latents."""
        return self.image_size[0] // self.downscale, self.image_size[1] // self.downscale

    @property
    def dynamic_size(self) -> tuple[int, int]:
        """Rows and columns of the ids of a frame that is not the context."""
        return self.latent_size[0] // self.patch_size, self.latent_size[1] // self.patch_size

    def encoder_positions(self) -> dict[int, int]:
        """Height times width of the encoder's maps that look at the context, by block."""
        last = len(self.block_out_channels) - 1
        return self._positions({block: min(block + 1, last) for block in range(last + 1)})

    def decoder_positions(self) -> dict[int, int]:
        """Height times width of the decoder's maps that look at the context, by block (-1 is the middle one)."""
        last = len(self.block_out_channels) - 1
        return self._positions({-1: last} | {block: max(last - block - 1, 0) for block in range(last + 1)})

    def _positions(self, halvings: Mapping[int, int]) -> dict[int, int]:
        height, width = self.image_size
        return {
            place: (height >> n) * (width >> n)
            for place, n in halvings.items()
            if height >> n <= self.max_att_resolution
        }

    @classmethod
    def from_diffusers(
        cls, config: Mapping[str, Any], image_size: tuple[int, int] = (256, 320)
    ) -> CompressiveTokenizerConfig:
        """Read a published ``config.json``, which does not tell the frame's size.

        Of its other entries, ``lookup_from_codebook``, ``force_upcast``, ``sample_size``, ``scaling_factor`` and
        ``resolution`` change nothing in what is computed here (the published full-size configuration sets the
        first two, the small golden one does not).

        Raises:
            ValueError: It asks for anything that this tokenizer does not do.
        """
        widths = tuple(config.get("block_out_channels", cls.block_out_channels))
        plain = {
            "_class_name": "CompressiveVQModelFSQ",
            "act_fn": "silu",
            "norm_type": "group",
            "context_length": 1,
            "in_channels": 3,
            "out_channels": 3,
            "mid_block_add_attention": False,
            "down_block_types": ["DownEncoderBlock2D"] * len(widths),
            "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        }
        for name, value in plain.items():
            found = config.get(name, value)
            if (list(found) if isinstance(found, list | tuple) else found) != value:
                raise ValueError(
                    f"config.json has {name} = {found!r}; the compressive tokenizer needs {value!r}"
                )
        levels: dict[str, Any] = {}
        for name, key in (("context_levels", "vq_fsq_levels"), ("dynamic_levels", "dyn_fsq_levels")):
            bits = config.get(key, 12)
            if not isinstance(bits, int) or bits not in LEVELS_BY_BITS:
                raise ValueError(f"config.json has {key} = {bits!r}; known bits are {sorted(LEVELS_BY_BITS)}")
            levels[name] = LEVELS_BY_BITS[bits]
        numbers = (
            "layers_per_block",
            "latent_channels",
            "norm_num_groups",
            "patch_size",
            "max_att_resolution",
        )
        return cls(
            image_size=image_size,
            block_out_channels=widths,
            **levels,
            **{name: config[name] for name in numbers if name in config},
        )
