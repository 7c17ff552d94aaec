"""Convolutional encoder parts in the module names of diffusers' autoencoders, so that such checkpoints load.

Special: the parts that the published tokenizers share (residual, down, up, attention and middle blocks, one
encoder), with names and arithmetic of diffusers' ``AutoencoderKL`` family but no dependency on it. Fresh
weights come from a seed: torch's global generator is neither read nor moved.

Absent on purpose: decoders (the published tokenizers order theirs differently, see each tokenizer), time
embeddings, dropout, other norms and activations than GroupNorm and SiLU.

All images are ``(B, C, h, w)`` and must be contiguous: GroupNorm on CPU loses precision on channels-last
memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6
"""Of every GroupNorm here; the value of diffusers' autoencoders."""

RESIDUAL_SCALE = 0.1
"""Factor on the last fresh convolution of a residual block (ours): blocks that begin near the identity train faster."""


def conv2d(
    in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1, padding: int = 0
) -> nn.Conv2d:
    """A convolution whose weights have no values yet; see :func:`initialise`."""
    conv: nn.Conv2d = nn.utils.skip_init(
        nn.Conv2d,
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        device=torch.get_default_device(),
    )
    return conv


def linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer whose weights have no values yet; see :func:`initialise`."""
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, in_features, out_features, device=torch.get_default_device()
    )
    return layer


def normed_silu(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """SiLU of a normed map, in the norm's own memory where no gradient needs it.

    Fresh memory for a large map costs as much time as filling it.
    """
    normed: Tensor = norm(x)
    return F.silu(normed, inplace=not normed.requires_grad)


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Draw every convolution and linear layer from torch's default law, U(+-1/sqrt(fan in)), as a function of
    seed; residual blocks begin near their shortcuts.

    On the meta device nothing happens.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for layer in module.modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear) or layer.weight.is_meta:
            continue
        device = layer.weight.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        limit = 1 / math.sqrt(layer.weight[0].numel())
        for parameter in layer.parameters(recurse=False):
            parameter.uniform_(-limit, limit, generator=generators[device])
    for block in module.modules():
        if isinstance(block, ResnetBlock) and not block.conv2.weight.is_meta:
            for parameter in block.conv2.parameters():
                parameter.mul_(RESIDUAL_SCALE)


class ResnetBlock(nn.Module):
    """Two normalised 3x3 convolutions beside a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, norm_num_groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(norm_num_groups, in_channels, eps=NORM_EPS)
        self.conv1 = conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(norm_num_groups, out_channels, eps=NORM_EPS)
        self.conv2 = conv2d(out_channels, out_channels, 3, padding=1)
        self.conv_shortcut = conv2d(in_channels, out_channels, 1) if in_channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        """``(B, in, h, w)`` to ``(B, out, h, w)``."""
        residual = self.conv2(normed_silu(self.norm2, self.conv1(normed_silu(self.norm1, x))))
        shortcut = x if self.conv_shortcut is None else self.conv_shortcut(x)
        return shortcut + residual if residual.requires_grad else residual.add_(shortcut)


class Attention(nn.Module):
    """Self-attention over all positions, one head as wide as the channels, beside a shortcut."""

    def __init__(self, channels: int, norm_num_groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(norm_num_groups, channels, eps=NORM_EPS)
        self.to_q = linear(channels, channels)
        self.to_k = linear(channels, channels)
        self.to_v = linear(channels, channels)
        self.to_out = nn.ModuleList([linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to the same shape."""
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)
        out = F.scaled_dot_product_attention(self.to_q(tokens), self.to_k(tokens), self.to_v(tokens))
        return x + self.to_out[0](out).transpose(1, 2).reshape(x.shape)


class MidBlock(nn.Module):
    """Residual block, attention unless it is switched off, residual block, at the coarsest size."""

    def __init__(self, channels: int, norm_num_groups: int, *, attention: bool = True) -> None:
        super().__init__()
        self.attentions = nn.ModuleList([Attention(channels, norm_num_groups)] if attention else [])
        self.resnets = nn.ModuleList([ResnetBlock(channels, channels, norm_num_groups) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to the same shape."""
        x = self.resnets[0](x)
        for attention in self.attentions:
            x = attention(x)
        out: Tensor = self.resnets[1](x)
        return out


class Downsample(nn.Module):
    """Halves height and width by a strided convolution, padded on the right and at the bottom only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, h/2, w/2)``."""
        out: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return out


class Upsample(nn.Module):
    """Doubles height and width by repeating pixels, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, h, w)`` to ``(B, C, 2h, 2w)``."""
        out: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


def _resnets(in_channels: int, out_channels: int, num_layers: int, norm_num_groups: int) -> nn.ModuleList:
    return nn.ModuleList(
        ResnetBlock(in_channels if i == 0 else out_channels, out_channels, norm_num_groups)
        for i in range(num_layers)
    )


class DownBlock(nn.Module):
    """Residual blocks, then half the size if ``downsample``."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, norm_num_groups: int, *, downsample: bool
    ) -> None:
        super().__init__()
        self.resnets = _resnets(in_channels, out_channels, num_layers, norm_num_groups)
        self.downsamplers = nn.ModuleList([Downsample(out_channels)] if downsample else [])

    def forward(self, x: Tensor) -> Tensor:
        """``(B, in, h, w)`` to ``(B, out, h, w)`` or ``(B, out, h/2, w/2)``."""
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x)
        return x


class UpBlock(nn.Module):
    """Residual blocks, then twice the size if ``upsample``."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, norm_num_groups: int, *, upsample: bool
    ) -> None:
        super().__init__()
        self.resnets = _resnets(in_channels, out_channels, num_layers, norm_num_groups)
        self.upsamplers = nn.ModuleList([Upsample(out_channels)] if upsample else [])

    def forward(self, x: Tensor) -> Tensor:
        """``(B, in, h, w)`` to ``(B, out, h, w)`` or ``(B, out, 2h, 2w)``."""
        for layer in (*self.resnets, *self.upsamplers):
            x = layer(x)
        return x


class Encoder(nn.Module):
    """Down blocks, each but the last of which halves the size, and a middle block.

    Sub-modules may be called one by one by tokenizers that look in between (``conv_in``, ``down_blocks``,
    ``mid_block``, :meth:`head`).
    """

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        block_out_channels: Sequence[int],
        layers_per_block: int,
        norm_num_groups: int,
        mid_attention: bool = True,
    ) -> None:
        super().__init__()
        widths = [block_out_channels[0], *block_out_channels]
        last = len(block_out_channels) - 1
        self.conv_in = conv2d(in_channels, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            DownBlock(widths[i], widths[i + 1], layers_per_block, norm_num_groups, downsample=i < last)
            for i in range(len(block_out_channels))
        )
        self.mid_block = MidBlock(widths[-1], norm_num_groups, attention=mid_attention)
        self.conv_norm_out = nn.GroupNorm(norm_num_groups, widths[-1], eps=NORM_EPS)
        self.conv_out = conv2d(widths[-1], out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, in, h, w)`` to ``(B, out, h/2^(n-1), w/2^(n-1))`` for n blocks."""
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return self.head(self.mid_block(x))

    def head(self, x: Tensor) -> Tensor:
        """Last norm and convolution."""
        out: Tensor = self.conv_out(normed_silu(self.conv_norm_out, x))
        return out
