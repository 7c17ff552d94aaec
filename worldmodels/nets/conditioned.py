"""Encoders and decoders in pairs: one for a context frame, one for frames that look at what the first one saw.

Special: module names and layer order of the published compressive tokenizer. The networks of the context
return the features of their blocks; the other two turn these into keys and values (``context_maps``) once, and
look at them as often as frames come.

Absent on purpose: quantisation and the cutting of latents into patches (see the compressive tokenizer).

Shapes: B contexts, R = n * B frames (n consecutive ones look at each context), D latent channels, h, w latents,
H, W pixels. A *place* is the number of the block whose output looks at the context; -1 is the decoder's
middle block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from worldmodels.nets.conv import NORM_EPS, Encoder, MidBlock, UpBlock, conv2d, normed_silu
from worldmodels.nets.cross_attention import CrossAttentions, KeysValues


class ContextEncoder(Encoder):
    """The encoder of context frames, which also returns what its blocks saw."""

    def features(self, frames: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Latents ``(B, D, h, w)`` of frames ``(B, 3, H, W)``, and the output of every down block by place."""
        seen = {}
        x = self.conv_in(frames)
        for place, block in enumerate(self.down_blocks):
            x = seen[place] = block(x)
        return self.head(self.mid_block(x)), seen


class ConditionedEncoder(Encoder):
    """The encoder of all other frames.

    Args:
        positions: Height times width of the map at every place that looks at the context.
        attention_groups: Of the norms of the attention to the context.
        attention_dropout: Share of its weights that is dropped in training mode.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        block_out_channels: Sequence[int],
        layers_per_block: int,
        norm_num_groups: int,
        positions: Mapping[int, int],
        attention_groups: int,
        attention_dropout: float,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            out_channels=out_channels,
            block_out_channels=block_out_channels,
            layers_per_block=layers_per_block,
            norm_num_groups=norm_num_groups,
        )
        self.cross_att_blocks = CrossAttentions(
            {place: (block_out_channels[place], count) for place, count in positions.items()},
            groups=attention_groups,
            dropout=attention_dropout,
        )

    def context_maps(self, seen: Mapping[int, Tensor]) -> tuple[KeysValues, ...]:
        """What this network looks at, of what a :class:`ContextEncoder` saw."""
        return self.cross_att_blocks.keys_values(seen)

    def conditioned(self, frames: Tensor, maps: Sequence[KeysValues]) -> Tensor:
        """Latents ``(R, D, h, w)`` of frames ``(R, 3, H, W)`` and the maps of B contexts."""
        x = self.conv_in(frames)
        for place, block in enumerate(self.down_blocks):
            x = self.cross_att_blocks.look(place, block(x), maps)
        return self.head(self.mid_block(x))


class Decoder(nn.Module):
    """Middle block and up blocks, each but the last of which doubles the size: what both decoders share."""

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        block_out_channels: Sequence[int],
        layers_per_block: int,
        norm_num_groups: int,
        mid_attention: bool,
    ) -> None:
        super().__init__()
        widths = [block_out_channels[-1], *reversed(block_out_channels)]
        last = len(block_out_channels) - 1
        self.conv_in = conv2d(in_channels, widths[0], 3, padding=1)
        self.mid_block = MidBlock(widths[0], norm_num_groups, attention=mid_attention)
        self.up_blocks = nn.ModuleList(
            # One more residual block than in the encoder, as in diffusers' autoencoders.
            UpBlock(widths[i], widths[i + 1], layers_per_block + 1, norm_num_groups, upsample=i < last)
            for i in range(last + 1)
        )
        self.conv_norm_out = nn.GroupNorm(norm_num_groups, widths[-1], eps=NORM_EPS)
        self.conv_out = conv2d(widths[-1], out_channels, 3, padding=1)

    def head(self, x: Tensor) -> Tensor:
        """Last norm and convolution."""
        out: Tensor = self.conv_out(normed_silu(self.conv_norm_out, x))
        return out


class ContextDecoder(Decoder):
    """The decoder of context frames, which also returns what its blocks saw."""

    def features(self, latents: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Frames ``(B, 3, H, W)`` of latents ``(B, D, h, w)``, and the output of every block by place."""
        x = self.mid_block(self.conv_in(latents))
        seen = {-1: x}
        for place, block in enumerate(self.up_blocks):
            x = seen[place] = block(x)
        return self.head(x), seen


class ConditionedDecoder(Decoder):
    """The decoder of all other frames.

    Args:
        positions: Height times width of the map at every place that looks at the context.
        attention_groups: Of the norms of the attention to the context.
        attention_dropout: Share of its weights that is dropped in training mode.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        out_channels: int,
        block_out_channels: Sequence[int],
        layers_per_block: int,
        norm_num_groups: int,
        positions: Mapping[int, int],
        attention_groups: int,
        attention_dropout: float,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            out_channels=out_channels,
            block_out_channels=block_out_channels,
            layers_per_block=layers_per_block,
            norm_num_groups=norm_num_groups,
            mid_attention=True,
        )
        widths = [block_out_channels[-1], *reversed(block_out_channels)]
        self.cross_att_blocks = CrossAttentions(
            {place: (widths[place + 1], count) for place, count in positions.items()},
            groups=attention_groups,
            dropout=attention_dropout,
        )

    def context_maps(self, seen: Mapping[int, Tensor]) -> tuple[KeysValues, ...]:
        """What this network looks at, of what a :class:`ContextDecoder` saw."""
        return self.cross_att_blocks.keys_values(seen)

    def conditioned(self, latents: Tensor, maps: Sequence[KeysValues]) -> Tensor:
        """Frames ``(R, 3, H, W)`` of latents ``(R, D, h, w)`` and the maps of B contexts."""
        x = self.cross_att_blocks.look(-1, self.mid_block(self.conv_in(latents)), maps)
        for place, block in enumerate(self.up_blocks):
            x = self.cross_att_blocks.look(place, block(x), maps)
        return self.head(x)
