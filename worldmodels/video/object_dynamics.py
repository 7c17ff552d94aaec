"""The next frame's tokens, one after the other, by a Llama decoder that is told geometry and physics' units.

Special: the decoder is plain (Hugging Face weight layout); around it stand richer inputs and a richer head.
One frame is S positions, of which the first is the *action position*: it carries the action, all tokens of
the frame before and what a small *stem* makes of them in the object's own frame of reference. The other
positions carry the token just decided. Position s therefore predicts token s of the frame, and nothing else
than ids ever leaves the model. The head adds two terms: the decoder's free logits, and a normal distribution
over the digits of the code (or the bin) whose mean the stem proposes and the decoder corrects. Without the
stem and that second term, minutes of training learn to copy the last frame.

Absent: pictures. The tokenizer's code book and pose head come in as fixed tensors and a function.

Shapes: B batch, T transitions, S slots per frame, D width, A action numbers, G digits per code, V ids of a
slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.video.slots import SlotLayout


@dataclass(frozen=True, kw_only=True)
class ObjectDynamicsConfig:
    """Sizes of an ``ObjectDynamics``.

    Attributes:
        action_size: Numbers in one action.
        hidden_size, layers, heads, intermediate_size: The decoder.
        stem_width: Width of the stem's layers.
        use_stem: False gives the plain decoder with the action position only, for ablations.
        max_frames: Longest window in frames.
    """

    action_size: int = 10
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 384
    stem_width: int = 384
    use_stem: bool = True
    max_frames: int = 16
    init_sigma_levels: float = field(default=1.5)


@dataclass(frozen=True, kw_only=True)
class FrameContext:
    """What is known before a frame is predicted: computed once per frame, used at each of its positions.

    Attributes:
        inputs: ``(B, S, D)`` added to the input of every position.
        proposals: ``(B, S, G)`` the stem's mean digit for each slot, in levels; None without a stem.
        motion: ``(B, 4 + 4)`` the stem's prediction of next proprioception (normalised) and pose, for its own loss.
    """

    inputs: Tensor
    proposals: Tensor | None
    motion: Tensor | None


class ObjectDynamics(nn.Module):
    """Autoregressive dynamics over the slots of a ``SlotLayout``."""

    def __init__(self, config: ObjectDynamicsConfig, layout: SlotLayout) -> None:
        super().__init__()
        self.config = config
        self.layout = layout
        width, slots = config.hidden_size, layout.slots
        self.llama = Llama(
            LlamaConfig(
                vocab_size=layout.vocab_size,
                hidden_size=width,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                max_position_embeddings=config.max_frames * slots,
            )
        )
        self.slot = nn.Parameter(torch.zeros(slots, width))
        self.hint = nn.Linear(width, width, bias=False)
        self.before = nn.Linear(slots * layout.max_digits, width)
        self.action = nn.Sequential(nn.Linear(config.action_size, width), nn.SiLU(), nn.Linear(width, width))
        if config.use_stem:
            self.stem = _Stem(config, layout)
            # The decoder's correction of the proposed mean (levels) and log of the spread, per digit.
            self.shape_head = nn.Linear(width, 2 * layout.max_digits)
            nn.init.zeros_(self.shape_head.weight)
            nn.init.zeros_(self.shape_head.bias)
            self.log_sigma = nn.Parameter(
                torch.full((slots, layout.max_digits), config.init_sigma_levels).log()
            )

    def frame_context(self, previous_BS: Tensor, action_BA: Tensor, pose_B4: Tensor) -> FrameContext:
        """Everything about a frame that does not depend on its own tokens.

        Args:
            previous_BS: Tokens of the frame before (slot-local ids).
            action_BA: The action between.
            pose_B4: Pose of the object read from ``previous_BS`` by the tokenizer: x, y px, cosine, sine.
        """
        values_BSG = self.layout.values(previous_BS)
        embedded_BSD = self.llama.model.embed_tokens(self.layout.globalise(previous_BS))
        inputs = self.slot + self.hint(embedded_BSD)
        first = self.before(values_BSG.flatten(1)) + self.action(action_BA)
        inputs = inputs + first[:, None]
        if not self.config.use_stem:
            return FrameContext(inputs=inputs, proposals=None, motion=None)
        proprio_B4 = self.layout.proprio(previous_BS)
        features_BSD, proposals_BSG, motion = self.stem(values_BSG, proprio_B4, action_BA, pose_B4)
        return FrameContext(inputs=inputs + features_BSD, proposals=proposals_BSG, motion=motion)

    def token_inputs(self, tokens: Tensor, slots: slice) -> Tensor:
        """Embeddings of decided tokens ``(..., n)`` of the given slots, as the inputs of the *next* positions."""
        return self.llama.model.embed_tokens(self.layout.globalise(tokens, slots))

    def slot_logits(self, hidden: Tensor, slot: int, proposal: Tensor | None) -> Tensor:
        """Logits ``(..., V)`` over the ids of one slot.

        Args:
            hidden: ``(..., D)`` decoder output at the slot's position.
            slot: Which.
            proposal: ``(..., G)`` of the frame's context at that slot.
        """
        logits = self.llama.logits(hidden, self.layout.vocab(slot))
        if proposal is None:
            return logits
        levels = self.layout.levels[slot]
        digits = len(levels)
        shape = self.shape_head(hidden)
        mean = proposal[..., :digits] + 4 * shape[..., :digits]
        log_sigma = self.log_sigma[slot, :digits] + shape[..., self.layout.max_digits :][..., :digits]
        precision = 0.5 * torch.exp(-2 * log_sigma.clamp(-2.5, 4.0))
        total = None
        for digit, count in enumerate(levels):
            axis = torch.arange(count, device=hidden.device, dtype=hidden.dtype)
            away = (axis - mean[..., digit : digit + 1]).square() * precision[..., digit : digit + 1]
            # Digit 0 changes fastest in an id, so later digits go to the left.
            total = -away if total is None else (-away.unsqueeze(-1) + total.unsqueeze(-2)).flatten(-2)
        assert total is not None
        return logits + total

    def forward(
        self, tokens_BTS: Tensor, actions_BTA: Tensor, poses_BT4: Tensor
    ) -> tuple[Tensor, FrameContext]:
        """Teacher forcing over a window of T + 1 frames.

        Args:
            tokens_BTS: ``(B, T+1, S)`` slot-local ids.
            actions_BTA: ``(B, T, A)``.
            poses_BT4: ``(B, T+1, 4)`` poses read from the tokens.

        Returns:
            Decoder outputs ``(B, T, S, D)`` (feed each slot to ``slot_logits``) and the context of all frames,
            flattened to B*T rows.
        """
        _, frames, S = tokens_BTS.shape
        embeddings, context = self.window_inputs(tokens_BTS, actions_BTA, poses_BT4)
        hidden = self.llama.hidden(None, embeddings=embeddings)
        return hidden.unflatten(1, (frames - 1, S)), context

    def window_inputs(
        self, tokens_BTS: Tensor, actions_BTA: Tensor, poses_BT4: Tensor
    ) -> tuple[Tensor, FrameContext]:
        """Decoder inputs ``(B, T*S, D)`` of a window of T + 1 frames, and the context of its frames (B*T rows)."""
        B, frames, S = tokens_BTS.shape
        context = self.frame_context(
            tokens_BTS[:, :-1].flatten(0, 1), actions_BTA.flatten(0, 1), poses_BT4[:, :-1].flatten(0, 1)
        )
        shifted = self.token_inputs(tokens_BTS[:, 1:, : S - 1], slice(0, S - 1))
        inputs = context.inputs.unflatten(0, (B, frames - 1)) + F.pad(shifted, (0, 0, 1, 0))
        return inputs.flatten(1, 2), context


class _Stem(nn.Module):
    """Geometry: agent and action seen from the object -> features, and where everything goes next."""

    def __init__(self, config: ObjectDynamicsConfig, layout: SlotLayout) -> None:
        super().__init__()
        self.layout = layout
        width = config.stem_width
        relative = (
            2 + 2 + config.action_size
        )  # agent position and velocity, actions, all in the object's frame
        absolute = 4 + 4 + config.action_size
        self.first = nn.Linear(relative + absolute, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.motion = nn.Linear(width, 4 + 3)  # next proprioception; object shift and turn in its own frame
        self.to_codes = nn.Sequential(
            nn.Linear(4, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, layout.code_digits)
        )
        self.correct = nn.Linear(width, layout.code_digits)
        self.features = nn.Linear(width, layout.slots * config.hidden_size)
        for layer in (self.motion, self.correct):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def freeze_motion(self) -> None:
        """Keep what was learned about motion; only the features and the correction of the codes go on learning."""
        for part in (self.first, self.second, self.third, self.motion, self.to_codes):
            part.requires_grad_(False)

    def code_means(self, pose_B4: Tensor) -> Tensor:
        """Where the tokenizer would put a pose: digits in levels ``(B, code_digits)``."""
        half = self.layout.arena_px / 2
        unit = torch.cat([pose_B4[..., :2] / half - 1, pose_B4[..., 2:]], -1)
        middle = self.layout.code_middle.to(unit)
        return middle + middle * self.to_codes(unit)

    def forward(
        self, values_BSG: Tensor, proprio_B4: Tensor, action_BA: Tensor, pose_B4: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        layout = self.layout
        cosine, sine = pose_B4[:, 2:3], pose_B4[:, 3:4]

        def turned(vectors: Tensor, sign: float) -> Tensor:
            """Rotate ``(B, 2n)`` vectors by the object's angle (sign 1) or back (-1)."""
            pairs = vectors.unflatten(1, (-1, 2))
            x, y = pairs[..., 0], pairs[..., 1]
            return torch.stack([x * cosine - sign * y * sine, y * cosine + sign * x * sine], -1).flatten(1)

        half = layout.arena_px / 2
        position, velocity = proprio_B4[:, :2], proprio_B4[:, 2:]
        features = torch.cat(
            [
                turned(position - pose_B4[:, :2], -1) / layout.reach_px,
                turned(velocity, -1) / layout.speed_px,
                turned(action_BA, -1) * layout.action_gain,
                position / half - 1,
                velocity / layout.speed_px,
                action_BA * layout.action_gain,
                pose_B4[:, :2] / half - 1,
                pose_B4[:, 2:],
            ],
            1,
        )
        hidden = F.silu(self.first(features))
        hidden = hidden + F.silu(self.second(hidden))
        hidden = hidden + F.silu(self.third(hidden))
        motion = self.motion(hidden)
        shift = turned(motion[:, 4:6] * layout.reach_px, 1)
        turn = motion[:, 6:7]
        cos_turn, sin_turn = turn.cos(), turn.sin()
        pose = torch.cat(
            [
                pose_B4[:, :2] + shift,
                cosine * cos_turn - sine * sin_turn,
                sine * cos_turn + cosine * sin_turn,
            ],
            1,
        )
        scale = torch.tensor([half, half, layout.speed_px, layout.speed_px]).to(motion)
        proprio = proprio_B4 + motion[:, :4] * scale
        codes = self.code_means(pose) + self.correct(hidden)
        proposals = layout.join_digits(layout.proprio_digits(proprio), codes)
        moved = torch.cat([proprio, pose], 1)
        return self.features(hidden).unflatten(1, (layout.slots, -1)), proposals, moved
