"""A tokenizer for scenes with one moving object and an agent whose position is known: a few tokens per frame.

Special: tokens are *global* (no grid) and carry the object only. The agent's position is observed anyway, so
the decoder takes it from the proprioception, and training swaps frames in which only the agent differs;
tokens therefore stay still while the object does. The decoder is a function of coordinates (in the object's
frame, relative to the agent) painted over the scene's fixed background, so edges are sharp and decoding costs
little.

Absent: anything that learns several objects or a moving camera; the per-frame tokenizer of the released
models (``frame_tokenizer``) handles those with hundreds of tokens.

Shapes: B batch, S tokens per frame, D digits per token, P pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.nets.fsq import FSQ
from worldmodels.nets.keypoints import KeypointEncoder


@dataclass(frozen=True, kw_only=True)
class GlobalTokenizerConfig:
    """Sizes of a ``GlobalTokenizer``.

    Attributes:
        image_size: Height and width of a frame in px.
        num_tokens: Tokens per frame.
        levels: FSQ levels of one token; few digits with many levels place more thresholds along a pose than many
            digits with few levels.
        arena_px: Size of the scene in the units of proprioception and pose.
        object_px: Unit in which the decoder sees coordinates around the object.
        agent_px: The same around the agent.
        object_centre_px: Middle of the object in its own frame; the PushT block's origin is the top of the T.
        object_window: Side in pixels of the square that is painted around the object's middle.
        agent_window: The same around the agent.
        width, keypoints, hidden: Encoder sizes.
        decoder_width: Width of the per-pixel layers.
        frequencies: Sine features per coordinate around the object.
    """

    image_size: int = 64
    num_tokens: int = 4
    levels: tuple[int, ...] = (32, 32)
    arena_px: float = 512.0
    object_px: float = 60.0
    agent_px: float = 15.0
    object_centre_px: tuple[float, float] = (0.0, 45.0)
    object_window: int = 24
    agent_window: int = 6
    width: int = 48
    keypoints: int = 24
    hidden: int = 256
    decoder_width: int = 48
    frequencies: int = 3


class _Painter(nn.Module):
    """Coordinates ``(B, P, F)`` and codes ``(B, C)`` -> colour and opacity ``(B, P, 4)`` in [0, 1]."""

    def __init__(self, features: int, codes: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.look = nn.Linear(codes, width)  # what else than a pose the codes say
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.paint = nn.Linear(width, 4)

    def forward(self, features_BPF: Tensor, codes_BC: Tensor) -> Tensor:
        hidden = F.silu(self.first(features_BPF) + self.look(codes_BC)[:, None])
        hidden = F.silu(self.third(F.silu(self.second(hidden))))
        paint: Tensor = self.paint(hidden).sigmoid()
        return paint


def _composite(canvas_B3P: Tensor, index_BW: Tensor, paint_BW4: Tensor) -> Tensor:
    """Paint over the canvas at some of its pixels."""
    index_B3W = index_BW[:, None].expand(-1, 3, -1)
    opacity_B1W = paint_BW4[..., 3][:, None]
    under = canvas_B3P.gather(2, index_B3W)
    over = paint_BW4[..., :3].transpose(1, 2)
    return canvas_B3P.scatter(2, index_B3W, under * (1 - opacity_B1W) + over * opacity_B1W)


class GlobalTokenizer(nn.Module):
    """Frame <-> ``num_tokens`` ids of ``codebook_size`` codes."""

    background: Tensor

    def __init__(self, config: GlobalTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.fsq = FSQ(config.levels)
        self.codebook_size = self.fsq.codebook_size
        code_size = config.num_tokens * len(config.levels)
        self.encoder = KeypointEncoder(
            image_size=config.image_size,
            width=config.width,
            keypoints=config.keypoints,
            hidden=config.hidden,
        )
        self.to_codes = nn.Linear(config.hidden, code_size)
        self.pose_head = nn.Sequential(
            nn.Linear(code_size, config.hidden),
            nn.SiLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.SiLU(),
            nn.Linear(config.hidden, 4),
        )
        self.object_paint = _Painter(2 + 4 * config.frequencies, code_size, config.decoder_width)
        self.agent_paint = _Painter(3, code_size, config.decoder_width // 2)
        side = config.image_size
        self.register_buffer("background", torch.ones(3, side, side))

    def prequantised(self, images_B3HW: Tensor) -> Tensor:
        """Encoder output before rounding, ``(B, S, D)``."""
        shape = (-1, self.config.num_tokens, len(self.config.levels))
        return self.to_codes(self.encoder(images_B3HW)).reshape(shape)

    def encode(self, images_B3HW: Tensor) -> Tensor:
        """Ids ``(B, S)`` int64 of frames in [0, 1].

        Raises:
            ValueError: Frames of another size; names both.
        """
        side = self.config.image_size
        if images_B3HW.ndim != 4 or images_B3HW.shape[1:] != (3, side, side):
            raise ValueError(f"frames have shape {tuple(images_B3HW.shape)}, expected (B, 3, {side}, {side})")
        _, ids = self.fsq(self.prequantised(images_B3HW))
        return ids

    def codes(self, ids_BS: Tensor) -> Tensor:
        """Codes ``(B, S*D)`` in [-1, 1] of ids."""
        return self.fsq.indices_to_codes(ids_BS).flatten(-2)

    def pose(self, codes: Tensor) -> Tensor:
        """Pose ``(..., 4)`` read from codes: x, y in px, cosine and sine of the angle (unit length)."""
        raw = self.pose_head(codes)
        position = (raw[..., :2] + 1) * (self.config.arena_px / 2)
        return torch.cat([position, F.normalize(raw[..., 2:], dim=-1, eps=1e-4)], -1)

    def decode_codes(self, codes_BC: Tensor, agent_B2: Tensor) -> Tensor:
        """Frames ``(B, 3, H, W)`` in [0, 1] of codes and agent positions in px."""
        config = self.config
        pose = self.pose(codes_BC)
        position_B2, cosine_B1, sine_B1 = pose[:, :2], pose[:, 2:3], pose[:, 3:4]
        centre_x, centre_y = config.object_centre_px
        centre_B2 = position_B2 + torch.cat(
            [centre_x * cosine_B1 - centre_y * sine_B1, centre_x * sine_B1 + centre_y * cosine_B1], 1
        )
        canvas = self._canvas(len(codes_BC))
        index_BP, away_BP2 = self._window(centre_B2, config.object_window, position_B2)
        x_BP, y_BP = away_BP2.unbind(-1)
        own_BP2 = torch.stack([x_BP * cosine_B1 + y_BP * sine_B1, y_BP * cosine_B1 - x_BP * sine_B1], -1)
        own_BP2 = (own_BP2 / config.object_px).clamp(-3, 3)
        waves = [own_BP2 * (1.5 * 2.0**k) for k in range(config.frequencies)]
        features = torch.cat([own_BP2, *(w.sin() for w in waves), *(w.cos() for w in waves)], -1)
        canvas = _composite(canvas, index_BP, self.object_paint(features, codes_BC))
        index_BP, away_BP2 = self._window(agent_B2, config.agent_window, agent_B2)
        away_BP2 = away_BP2 / config.agent_px
        features = torch.cat([away_BP2, away_BP2.square().sum(-1, keepdim=True)], -1).clamp(-9, 9)
        canvas = _composite(canvas, index_BP, self.agent_paint(features, codes_BC))
        margin, side = self._margin(), config.image_size
        canvas = canvas.unflatten(2, (side + 2 * margin, side + 2 * margin))
        return canvas[:, :, margin : margin + side, margin : margin + side]

    def _margin(self) -> int:
        """The canvas is so much wider on each side that a window around a thing at the rim still fits."""
        return self.config.object_window

    def _canvas(self, batch: int) -> Tensor:
        margin = self._margin()
        padded = F.pad(self.background, (margin, margin, margin, margin))
        return padded.flatten(1).expand(batch, -1, -1)

    def _window(self, centre_B2: Tensor, window: int, origin_B2: Tensor) -> tuple[Tensor, Tensor]:
        """Canvas indices ``(B, P)`` of the square around a point, and its pixels' offsets from ``origin`` in px."""
        config, margin = self.config, self._margin()
        pixel_px = config.arena_px / config.image_size
        low, high = window // 2 - margin, config.image_size + margin - window // 2 - window % 2
        middle = (centre_B2.detach() / pixel_px).round().clamp(low, high).long()
        axis = torch.arange(window, device=middle.device) - window // 2
        columns_BW = middle[:, :1] + axis
        rows_BW = middle[:, 1:] + axis
        index_BWW = (
            (rows_BW[:, :, None] + margin) * (config.image_size + 2 * margin) + columns_BW[:, None] + margin
        )
        x_BW = (columns_BW + 0.5) * pixel_px - origin_B2[:, :1]
        y_BW = (rows_BW + 0.5) * pixel_px - origin_B2[:, 1:]
        away = torch.stack(torch.broadcast_tensors(x_BW[:, None, :], y_BW[:, :, None]), -1)
        return index_BWW.flatten(1), away.flatten(1, 2)

    def decode(self, ids_BS: Tensor, agent_B2: Tensor) -> Tensor:
        """Frames ``(B, 3, H, W)`` in [0, 1] of ids and agent positions in px.

        Raises:
            ValueError: An id outside the code book.
        """
        return self.decode_codes(self.codes(ids_BS), agent_B2)

    def forward(self, images_B3HW: Tensor, agent_B2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For training: (reconstruction, codes ``(B, S*D)`` with straight-through gradients, pre-quantised)."""
        z = self.prequantised(images_B3HW)
        codes, _ = self.fsq(z)
        codes = codes.flatten(1)
        return self.decode_codes(codes, agent_B2), codes, z
