"""Per-frame FSQ tokenizer: a picture becomes a small grid of ids, each frame by itself.

Special: module names, layer order and arithmetic are those of the published single-step RT-1 tokenizer
(``CNNFSQModel256`` of RLVR-World), so that its checkpoints load as they are; the full-size defaults turn
256x320 pixels into 16x20 ids of a code book of 4,375.

Absent on purpose: losses and discriminators (training), clamping of decoded pixels to [0, 1] (what to do with
values outside is the caller's business), context frames (see the compressive tokenizer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldmodels.nets.conv import NORM_EPS, Encoder, MidBlock, UpBlock, conv2d, initialise, normed_silu
from worldmodels.nets.fsq import FSQ, LEVELS_BY_BITS
from worldmodels.nets.weights import fill, read_tensors

WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class FrameTokenizerConfig:
    """Sizes, under the names of the published ``config.json``; the defaults are the published full size.

    Attributes:
        in_channels: Colours of a frame.
        out_channels: Colours of a decoded frame.
        block_out_channels: Width of each of the n blocks; n - 1 of them halve the size.
        layers_per_block: Residual blocks in each.
        latent_channels: Width between encoder and quantiser.
        norm_num_groups: Groups of every GroupNorm; must divide every width.
        fsq_levels: Bits of the code book (a key of ``LEVELS_BY_BITS``), or the levels themselves.
    """

    in_channels: int = 3
    out_channels: int = 3
    block_out_channels: tuple[int, ...] = (128, 256, 256, 512, 768)
    layers_per_block: int = 2
    latent_channels: int = 64
    norm_num_groups: int = 32
    fsq_levels: int | tuple[int, ...] = 12

    def __post_init__(self) -> None:
        if isinstance(self.fsq_levels, int) and self.fsq_levels not in LEVELS_BY_BITS:
            raise ValueError(
                f"fsq_levels {self.fsq_levels} is not one of the bits {sorted(LEVELS_BY_BITS)}; other code "
                "books are given as a tuple of levels"
            )

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels of each code channel."""
        return LEVELS_BY_BITS[self.fsq_levels] if isinstance(self.fsq_levels, int) else self.fsq_levels

    @property
    def downscale(self) -> int:
        """Pixels per id along each side."""
        return 2 ** (len(self.block_out_channels) - 1)

    @classmethod
    def from_diffusers(cls, config: Mapping[str, Any]) -> FrameTokenizerConfig:
        """Read a ``config.json`` of the published code.

        Raises:
            ValueError: if it asks for anything that this tokenizer does not do.
        """
        widths = tuple(config.get("block_out_channels", cls.block_out_channels))
        plain = {
            "_class_name": "CNNFSQModel256",
            "act_fn": "silu",
            "norm_type": "group",
            "down_block_types": ["DownEncoderBlock2D"] * len(widths),
            "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        }
        for name, value in plain.items():
            found = config.get(name, value)
            if (list(found) if isinstance(found, list | tuple) else found) != value:
                raise ValueError(f"config.json has {name} = {found!r}; the frame tokenizer needs {value!r}")
        levels = config.get("fsq_levels", cls.fsq_levels)
        numbers = ("in_channels", "out_channels", "layers_per_block", "latent_channels", "norm_num_groups")
        return cls(
            block_out_channels=widths,
            fsq_levels=levels if isinstance(levels, int) else tuple(levels),
            **{name: config[name] for name in numbers if name in config},
        )


class Decoder(nn.Module):
    """Middle block and up blocks; the first of these does not upsample, all others double the size."""

    def __init__(self, config: FrameTokenizerConfig) -> None:
        super().__init__()
        widths = [*reversed(config.block_out_channels), config.block_out_channels[0]]
        groups = config.norm_num_groups
        self.conv_in = conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid_block = MidBlock(widths[0], groups)
        self.up_blocks = nn.ModuleList(
            UpBlock(widths[i], widths[i + 1], config.layers_per_block, groups, upsample=i > 0)
            for i in range(len(config.block_out_channels))
        )
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=NORM_EPS)
        self.conv_out = conv2d(widths[-1], config.out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, latent_channels, h, w)`` to ``(B, out_channels, H, W)``."""
        x = self.mid_block(self.conv_in(x))
        for block in self.up_blocks:
            x = block(x)
        out: Tensor = self.conv_out(normed_silu(self.conv_norm_out, x))
        return out


class FrameTokenizer(nn.Module):
    """Frames to ids and back."""

    def __init__(self, config: FrameTokenizerConfig, *, seed: int = 0) -> None:
        """Fresh weights are a function of ``seed``."""
        super().__init__()
        self.config = config
        self.fsq = FSQ(config.levels)
        self.encoder = Encoder(
            in_channels=config.in_channels,
            out_channels=config.latent_channels,
            block_out_channels=config.block_out_channels,
            layers_per_block=config.layers_per_block,
            norm_num_groups=config.norm_num_groups,
        )
        self.decoder = Decoder(config)
        self.quant_linear = conv2d(config.latent_channels, len(config.levels), 1)
        self.post_quant_linear = conv2d(len(config.levels), config.latent_channels, 1)
        initialise(self, seed)

    @classmethod
    def from_folder(cls, folder: str | Path) -> FrameTokenizer:
        """Load ``config.json`` and ``diffusion_pytorch_model.safetensors``; half precision becomes float32.

        Raises:
            FileNotFoundError: if either file is absent.
            ValueError: if the config is another model's, the weight file is damaged, or a key is missing,
                unexpected or of another shape; the message names it.
        """
        folder = Path(folder)
        config_path, weights_path = folder / "config.json", folder / WEIGHTS_NAME
        for path in (config_path, weights_path):
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} does not exist: a tokenizer folder holds config.json and {WEIGHTS_NAME}"
                )
        config = FrameTokenizerConfig.from_diffusers(json.loads(config_path.read_text(encoding="utf-8")))
        with torch.device("meta"):
            tokenizer = cls(config)
        fill(tokenizer, read_tensors(weights_path), weights_path)
        return tokenizer.eval()

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Ids of frames.

        Args:
            pixels: ``(..., C, H, W)`` float in [0, 1]; H and W multiples of ``config.downscale``.

        Returns:
            ``(..., h, w)`` int64 in [0, code book size).

        Raises:
            ValueError: on integer pixels, wrong shapes, or pixels that are not finite.
        """
        latents = self.latents(pixels)
        if not torch.isfinite(latents).all():
            raise ValueError("the frames hold NaN or infinite pixels (or the tokenizer such weights)")
        _, ids = self.fsq.forward_image(latents)
        return ids.view(*pixels.shape[:-3], *ids.shape[-2:])

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Frames ``(..., C, H, W)`` float, not clamped, of ids ``(..., h, w)``.

        Raises:
            ValueError: if an id is not in the code book.
        """
        codes = self.fsq.indices_to_codes_image(ids, self.post_quant_linear.weight.dtype)
        frames = self.decode_codes(codes.flatten(0, -4) if codes.ndim > 3 else codes[None])
        return frames.view(*ids.shape[:-2], *frames.shape[1:])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """For training: reconstruct ``(B, C, H, W)`` frames, gradients passing straight through the rounding.

        Returns:
            the reconstruction ``(B, C, H, W)``, and the codes ``(B, D, h, w)`` in [-1, 1] it was made from
            (``fsq.codes_to_indices(codes.movedim(1, -1))`` are their ids).
        """
        codes, _ = self.fsq.forward_image(self.latents(pixels))
        return self.decode_codes(codes), codes

    def latents(self, pixels: Tensor) -> Tensor:
        """Numbers ``(N, D, h, w)`` before quantisation, the leading axes of ``pixels`` flattened into N."""
        channels, side = self.config.in_channels, self.config.downscale
        if not pixels.is_floating_point():
            raise ValueError(f"pixels must be floats in [0, 1], got {pixels.dtype}; divide bytes by 255")
        if (
            pixels.ndim < 3
            or pixels.shape[-3] != channels
            or pixels.shape[-1] % side
            or pixels.shape[-2] % side
        ):
            raise ValueError(
                f"pixels must be (..., {channels}, H, W) with H and W multiples of {side}, "
                f"got {tuple(pixels.shape)}"
            )
        # Contiguous: frames are often permuted from (H, W, C), and that memory order costs GroupNorm its
        # precision.
        frames = pixels.reshape(-1, *pixels.shape[-3:]).contiguous()
        latents: Tensor = self.quant_linear(self.encoder(frames))
        return latents

    def decode_codes(self, codes: Tensor) -> Tensor:
        """Frames ``(B, C, H, W)``, not clamped, of codes ``(B, D, h, w)``."""
        frames: Tensor = self.decoder(self.post_quant_linear(codes.contiguous()))
        return frames
