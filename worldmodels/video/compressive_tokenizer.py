"""Compressive FSQ tokenizer: a context frame in many ids, every other frame in few, seen from that context.

Special: module names, layer order and arithmetic are those of the published multi-step RT-1 tokenizer
(``CompressiveVQModelFSQ`` of RLVR-World), so that its checkpoints load as they are: 256x320 pixels become 1,280
ids of the context frame and 80 of every other. Those look at the context's features through cross attention;
what they look at is computed once per context (:class:`ContextFeatures`) and shared by all frames. Weights may
be half precision (``tokenizer.to(torch.bfloat16)``): frames are cast to it, rounding to codes is in float32.

Absent on purpose: losses (training), clamping of decoded pixels to [0, 1], vocabulary offsets (see
``layouts``), and ids that wrap: one outside the code book is an error.

Shapes: B contexts, T frames of each, R frames in all, H, W pixels, Nc and Nd ids of a context and another frame.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldmodels.nets.conditioned import (
    ConditionedDecoder,
    ConditionedEncoder,
    ContextDecoder,
    ContextEncoder,
)
from worldmodels.nets.conv import conv2d, initialise, linear
from worldmodels.nets.cross_attention import ContextFeatures
from worldmodels.nets.fsq import FSQ
from worldmodels.nets.weights import fill, read_tensors
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.frame_tokenizer import WEIGHTS_NAME

ENCODERS = ("encoder.", "cond_encoder.", "quant_conv.", "quant_linear.")
"""How the names of the weights begin that decide ids; all others paint them."""
CODE_SPREAD = 5.0
"""Factor on fresh weights before rounding (ours): without it nearly every frame begins as the same few codes."""


class CompressiveTokenizer(nn.Module):
    """Frames to ids and back, given the context frame."""

    def __init__(self, config: CompressiveTokenizerConfig, *, seed: int = 0) -> None:
        """Fresh weights are a function of ``seed``."""
        super().__init__()
        self.config = config
        self.context_fsq, self.dynamic_fsq = FSQ(config.context_levels), FSQ(config.dynamic_levels)
        patch = config.latent_channels * config.patch_size**2
        sizes: dict[str, Any] = {
            "block_out_channels": config.block_out_channels,
            "layers_per_block": config.layers_per_block,
            "norm_num_groups": config.norm_num_groups,
        }
        encoder = {"in_channels": 3, "out_channels": config.latent_channels, **sizes}
        decoder = {"in_channels": config.latent_channels, "out_channels": 3, **sizes}
        attention: dict[str, Any] = {
            "attention_groups": config.attention_groups,
            "attention_dropout": config.attention_dropout,
        }
        self.cond_encoder = ConditionedEncoder(**encoder, positions=config.encoder_positions(), **attention)
        self.encoder = ContextEncoder(**encoder, mid_attention=False)
        self.quant_conv = conv2d(config.latent_channels, len(config.context_levels), 1)
        self.post_quant_conv = conv2d(len(config.context_levels), config.latent_channels, 1)
        self.quant_linear = linear(patch, len(config.dynamic_levels))
        self.post_quant_linear = linear(len(config.dynamic_levels), patch)
        self.cond_decoder = ConditionedDecoder(**decoder, positions=config.decoder_positions(), **attention)
        self.decoder = ContextDecoder(**decoder, mid_attention=False)
        initialise(self, seed)
        weight = self.quant_linear.weight
        if not weight.is_meta:
            with torch.no_grad():
                for layer in (self.quant_conv, self.quant_linear):
                    layer.weight.mul_(CODE_SPREAD)
            generator = torch.Generator(weight.device).manual_seed(seed + 1)
            for attend in (*self.cond_encoder.cross_att_blocks, *self.cond_decoder.cross_att_blocks):
                attend.initialise(generator)

    @classmethod
    def from_folder(
        cls, folder: str | Path, image_size: tuple[int, int] = (256, 320)
    ) -> CompressiveTokenizer:
        """Load a published ``config.json`` and its weights; half precision becomes float32.

        Raises:
            FileNotFoundError: Either file is absent.
            ValueError: The config is another model's, the weight file is damaged, or a key is missing,
                unexpected or of another shape; the message names it.
        """
        folder = Path(folder)
        for path in (folder / "config.json", folder / WEIGHTS_NAME):
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} does not exist: a tokenizer folder holds config.json and {WEIGHTS_NAME}"
                )
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        with torch.device("meta"):
            tokenizer = cls(CompressiveTokenizerConfig.from_diffusers(content, image_size))
        fill(tokenizer, read_tensors(folder / WEIGHTS_NAME), folder / WEIGHTS_NAME)
        return tokenizer.eval()

    @property
    def context_tokens(self) -> int:
        """Ids of a context frame (1,280 at full size)."""
        return self.config.latent_size[0] * self.config.latent_size[1]

    @property
    def dynamic_tokens(self) -> int:
        """Ids of every other frame (80 at full size)."""
        return self.config.dynamic_size[0] * self.config.dynamic_size[1]

    @property
    def context_codebook_size(self) -> int:
        """Number of ids of context frames."""
        return self.context_fsq.codebook_size

    @property
    def dynamic_codebook_size(self) -> int:
        """Number of ids of all other frames."""
        return self.dynamic_fsq.codebook_size

    @torch.no_grad()
    def encode_context(self, frames: Tensor) -> tuple[Tensor, ContextFeatures]:
        """Ids of context frames and what :meth:`encode` sees of them.

        Args:
            frames: ``(B, 3, H, W)`` float in [0, 1].

        Returns:
            ``(B, Nc)`` int64 in [0, ``context_codebook_size``), and features of the B contexts' pixels.

        Raises:
            ValueError: Integer pixels, another size, or pixels that are not finite.
        """
        latents, seen = self.context_latents(self._checked(frames, 4))
        _, ids = self.context_fsq.forward_image(_finite(latents))
        return ids.flatten(1), ContextFeatures(self.cond_encoder.context_maps(seen))

    @torch.no_grad()
    def encode(self, features: ContextFeatures, frames: Tensor) -> Tensor:
        """Ids of frames, seen from their contexts.

        Args:
            features: B rows, from :meth:`encode_context`.
            frames: ``(B, T, 3, H, W)`` or ``(B, 3, H, W)`` float in [0, 1].

        Returns:
            ``(B, T, Nd)`` or ``(B, Nd)`` int64 in [0, ``dynamic_codebook_size``).

        Raises:
            ValueError: Integer pixels, another size or number of rows, pixels that are not finite, or features
                of :meth:`decode_context`.
        """
        frames = self._checked(frames, 5 if frames.ndim == 5 else 4)
        self._check_maps(features, self.cond_encoder, "encode_context")
        if len(features) != len(frames):
            raise ValueError(
                f"{len(frames)} rows of frames for {len(features)} contexts; select or repeat the contexts first"
            )
        leading = frames.shape[:-3]
        latents = self.dynamic_latents(frames.reshape(-1, *frames.shape[-3:]), features)
        _, ids = self.dynamic_fsq(_finite(latents))
        return ids.view(*leading, self.dynamic_tokens)

    @torch.no_grad()
    def decode_context(self, ids: Tensor) -> tuple[Tensor, ContextFeatures]:
        """Frames of context ids and what :meth:`decode` sees of them.

        Args:
            ids: ``(B, Nc)`` integers without vocabulary offset.

        Returns:
            ``(B, 3, H, W)``, not clamped, and features of the B contexts' ids.

        Raises:
            ValueError: Another number of ids, or one that is not in the code book.
        """
        self._check_ids(ids, self.context_tokens)
        grid = ids.view(-1, *self.config.latent_size)
        codes = self.context_fsq.indices_to_codes_image(grid, self._dtype)
        frames, seen = self.decoder.features(self.post_quant_conv(codes))
        return frames, ContextFeatures(self.cond_decoder.context_maps(seen))

    @torch.no_grad()
    def decode(self, features: ContextFeatures, ids: Tensor, *, rows: Tensor | None = None) -> Tensor:
        """Frames of ids, seen from their contexts.

        Args:
            features: From :meth:`decode_context`.
            ids: ``(R, Nd)`` integers without vocabulary offset.
            rows: ``(R,)`` integers, the context of each frame; None where there are R contexts, or one for all.
                Where frames of one context lie together, equally many of each, its features are not copied.

        Returns:
            ``(R, 3, H, W)``, not clamped.

        Raises:
            ValueError: Another number of ids, one that is not in the code book, rows that do not fit, or
                features of :meth:`encode_context`.
        """
        self._check_ids(ids, self.dynamic_tokens)
        self._check_maps(features, self.cond_decoder, "decode_context")
        if (len(features) not in (1, len(ids))) if rows is None else len(rows) != len(ids):
            raise ValueError(
                f"{len(ids)} frames for {len(features)} contexts and "
                f"{'no' if rows is None else len(rows)} rows; give rows, the context of each frame"
            )
        codes = self.dynamic_fsq.indices_to_codes(ids, self._dtype)
        return self.decode_codes(codes, features if rows is None else features.for_frames(rows))

    def forward(
        self, context_frames: Tensor, frames: Tensor, *, train_encoders: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For training: reconstruct, gradients passing straight through the rounding.

        Args:
            context_frames: ``(B, 3, H, W)`` float in [0, 1].
            frames: ``(B, T, 3, H, W)``, likewise.
            train_encoders: False: whatever decides ids gets no gradient.

        Returns:
            the context frames ``(B, 3, H, W)`` and the frames ``(B, T, 3, H, W)`` again, not clamped, and the
            codes ``(B, T, Nd, D)`` of the latter.
        """
        if len(context_frames) != len(frames):
            raise ValueError(
                f"{len(frames)} rows of frames for {len(context_frames)} contexts; give equally many"
            )
        with torch.set_grad_enabled(train_encoders and torch.is_grad_enabled()):
            context_codes, codes = self.codes(context_frames, frames)
        context, decoded = self.decoder.features(self.post_quant_conv(context_codes.to(self._dtype)))
        features = ContextFeatures(self.cond_decoder.context_maps(decoded))
        again = self.decode_codes(codes.flatten(0, 1).to(self._dtype), features)
        return context, again.unflatten(0, frames.shape[:2]), codes

    def codes(self, context_frames: Tensor, frames: Tensor, *, soft: bool = False) -> tuple[Tensor, Tensor]:
        """For training: codes ``(B, D, h, w)`` of contexts and ``(B, T, Nd, D)`` of frames, both float32.

        Args:
            context_frames: As for :meth:`forward`.
            frames: Likewise.
            soft: Leave out the rounding, for the first steps of a training.
        """
        latents, seen = self.context_latents(self._checked(context_frames, 4))
        maps = ContextFeatures(self.cond_encoder.context_maps(seen))
        dynamic = self.dynamic_latents(self._checked(frames, 5).flatten(0, 1), maps)
        round_context, round_dynamic = (
            fsq.soft if soft else fsq.quantize for fsq in (self.context_fsq, self.dynamic_fsq)
        )
        context_codes = round_context(latents.movedim(-3, -1)).movedim(-1, -3).contiguous()
        return context_codes, round_dynamic(dynamic).unflatten(0, frames.shape[:2])

    def context_latents(self, frames: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Numbers ``(B, D, h, w)`` float32 before quantisation, and what the encoder's blocks saw."""
        latents, seen = self.encoder.features(frames)
        return self.quant_conv(latents).float(), seen

    def dynamic_latents(self, frames: Tensor, features: ContextFeatures) -> Tensor:
        """Numbers ``(R, Nd, D)`` float32 before quantisation; R / B consecutive frames see each context."""
        latents = self.cond_encoder.conditioned(frames, features.maps)
        side = self.config.patch_size
        # (R, C, rows, side, columns, side) -> one vector per patch, channels fastest.
        patches = latents.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 3, 5, 1)
        out: Tensor = self.quant_linear(patches.flatten(3).flatten(1, 2))
        return out.float()

    def decode_codes(self, codes: Tensor, features: ContextFeatures) -> Tensor:
        """Frames ``(R, 3, H, W)`` of codes ``(R, Nd, D)``; R / B consecutive frames see each context."""
        return self.cond_decoder.conditioned(self.code_latents(codes), features.maps)

    def code_latents(self, codes: Tensor) -> Tensor:
        """Latents ``(R, C, h, w)`` of codes ``(R, Nd, D)``."""
        side, (rows, columns) = self.config.patch_size, self.config.dynamic_size
        patches = self.post_quant_linear(codes).view(len(codes), rows, columns, side, side, -1)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(
            len(codes), self.config.latent_channels, rows * side, columns * side
        )

    @property
    def _dtype(self) -> torch.dtype:
        return self.quant_linear.weight.dtype

    def _checked(self, frames: Tensor, ndim: int) -> Tensor:
        expected = (3, *self.config.image_size)
        if not frames.is_floating_point():
            raise ValueError(f"frames must be floats in [0, 1], got {frames.dtype}; divide bytes by 255")
        if frames.ndim != ndim or tuple(frames.shape[-3:]) != expected:
            shape = "(B, T, " if ndim == 5 else "(B, "
            raise ValueError(
                f"frames must be {shape}{', '.join(map(str, expected))}), got {tuple(frames.shape)}"
            )
        # Frames are often permuted from (H, W, C), and that memory order costs GroupNorm its precision.
        return frames.to(self._dtype).contiguous()

    def _check_ids(self, ids: Tensor, count: int) -> None:
        if ids.ndim != 2 or ids.shape[1] != count or ids.is_floating_point() or not len(ids):
            raise ValueError(f"ids must be (rows, {count}) integers, got {ids.dtype} {tuple(ids.shape)}")

    def _check_maps(
        self, features: ContextFeatures, network: ConditionedEncoder | ConditionedDecoder, source: str
    ) -> None:
        # The two networks never look at equally many maps, see the config.
        if len(features.maps) != len(network.cross_att_blocks):
            raise ValueError(
                f"the context's features have {len(features.maps)} maps instead of "
                f"{len(network.cross_att_blocks)}; give those that {source} of the same tokenizer returned"
            )


def _finite(latents: Tensor) -> Tensor:
    if not torch.isfinite(latents).all():
        raise ValueError("the frames hold NaN or infinite pixels (or the tokenizer such weights)")
    return latents
