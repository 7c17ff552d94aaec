"""Token layouts of the released RT-1 world models: which id stands where, and which positions are trained.

Special: ids and labels equal those of the published processors; the defaults are the published sizes.

Absent on purpose: attention masks and position ids (all ones, and 0, 1, 2, ...), binning of actions (see
``action_bins``), any change of the caller's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""Label of positions without a loss; the value that torch and transformers ignore."""


@dataclass(frozen=True)
class Sequences:
    """Ready for the decoder: ``input_ids`` and ``labels``, both ``(B, N)`` int64, labels not yet shifted."""

    input_ids: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class SingleStepLayout:
    """``history`` x [visual, action], then for each predicted frame [bos, visual], then eos.

    Vocabulary: visual ids, then action bins, then bos and eos.

    Attributes:
        visual_tokens: Ids of a frame.
        action_dim: Bins of an action.
        history: Frames before the first predicted one, each followed by its action.
        predicted: Frames to predict.
        visual_vocab: Size of the visual code book.
        action_bins: Bins per action dimension.
    """

    visual_tokens: int = 320
    action_dim: int = 13
    history: int = 4
    predicted: int = 1
    visual_vocab: int = 4375
    action_bins: int = 256

    @property
    def visual(self) -> slice:
        """Part of the vocabulary with visual ids."""
        return slice(0, self.visual_vocab)

    @property
    def bos(self) -> int:
        """Id before a predicted frame."""
        return self.visual_vocab + self.action_bins

    @property
    def eos(self) -> int:
        """Last id of a sequence."""
        return self.bos + 1

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.eos + 1

    @property
    def prompt(self) -> slice:
        """Positions up to and with the first bos."""
        return slice(0, self.history * (self.visual_tokens + self.action_dim) + 1)

    @property
    def response(self) -> slice:
        """Positions to generate; the last is eos."""
        return slice(self.prompt.stop, self.prompt.stop + self.predicted * (self.visual_tokens + 1))

    def build(self, visual: Tensor, actions: Tensor) -> Sequences:
        """Lay out episodes; everything from the first bos on (bos included) is trained.

        Args:
            visual: ``(B, history + predicted, ...)`` integers, ``visual_tokens`` in the trailing axes.
            actions: ``(B, history, action_dim)`` bins.

        Raises:
            ValueError: on wrong shapes or ids out of range.
        """
        frames = _checked(
            visual.flatten(2), (self.history + self.predicted, self.visual_tokens), self.visual_vocab
        )
        bins = _checked(actions, (self.history, self.action_dim), self.action_bins)
        rows = len(frames)
        past = torch.cat([frames[:, : self.history], bins + self.visual_vocab], dim=2)
        future = torch.cat(
            [frames.new_full((rows, self.predicted, 1), self.bos), frames[:, self.history :]], dim=2
        )
        ids = torch.cat([past.flatten(1), future.flatten(1), frames.new_full((rows, 1), self.eos)], dim=1)
        labels = ids.clone()
        labels[:, : self.prompt.stop - 1] = IGNORED
        return Sequences(ids, labels)

    def frames(self, response: Tensor) -> Tensor:
        """Visual part ``(R, predicted, visual_tokens)`` of responses ``(R, response length)``."""
        return response.unflatten(1, (self.predicted, self.visual_tokens + 1))[:, :, :-1]


@dataclass(frozen=True, kw_only=True)
class MultiStepLayout:
    """The context frame's ids, then ``frames`` x [dynamic, action]: the action follows the frame it is taken
    in.

    Vocabulary: dynamic ids, then context ids, then action bins, then bos and eos (which no sequence uses).

    Attributes:
        context_tokens: Ids of the context frame.
        dynamic_tokens: Ids of every other frame.
        action_dim: Bins of an action.
        num_frames: Frames after the context; the first of them is given, the others are predicted.
        dynamic_vocab: Size of the dynamic code book.
        context_vocab: Size of the context code book.
        action_bins: Bins per action dimension.
    """

    context_tokens: int = 1280
    dynamic_tokens: int = 80
    action_dim: int = 13
    num_frames: int = 8
    dynamic_vocab: int = 4375
    context_vocab: int = 4375
    action_bins: int = 256

    @property
    def dynamic(self) -> slice:
        """Part of the vocabulary with dynamic ids."""
        return slice(0, self.dynamic_vocab)

    @property
    def action_offset(self) -> int:
        """Id of action bin 0."""
        return self.dynamic_vocab + self.context_vocab

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.action_offset + self.action_bins + 2

    @property
    def prompt(self) -> slice:
        """Context, first frame and its action."""
        return slice(0, self.context_tokens + self.dynamic_tokens + self.action_dim)

    @property
    def response(self) -> slice:
        """The other frames, each with the action that follows it."""
        length = (self.num_frames - 1) * (self.dynamic_tokens + self.action_dim)
        return slice(self.prompt.stop, self.prompt.stop + length)

    def build(self, context: Tensor, dynamic: Tensor, actions: Tensor) -> Sequences:
        """Lay out episodes; the dynamic ids of all frames but the first are trained.

        Args:
            context: ``(B, 1, context_tokens)`` ids of the context code book, without offset.
            dynamic: ``(B, num_frames, dynamic_tokens)`` ids.
            actions: ``(B, num_frames, action_dim)`` bins; the action of the context frame is left out.

        Raises:
            ValueError: on wrong shapes or ids out of range.
        """
        first = _checked(context, (1, self.context_tokens), self.context_vocab)
        frames = _checked(dynamic, (self.num_frames, self.dynamic_tokens), self.dynamic_vocab)
        bins = _checked(actions, (self.num_frames, self.action_dim), self.action_bins)
        steps = torch.cat([frames, bins + self.action_offset], dim=2)
        ids = torch.cat([first.flatten(1) + self.dynamic_vocab, steps.flatten(1)], dim=1)
        trained = torch.full_like(steps, IGNORED)
        trained[:, 1:, : self.dynamic_tokens] = frames[:, 1:]
        labels = torch.cat([torch.full_like(first.flatten(1), IGNORED), trained.flatten(1)], dim=1)
        return Sequences(ids, labels)

    def frames(self, response: Tensor) -> Tensor:
        """Dynamic part ``(R, num_frames - 1, dynamic_tokens)`` of responses ``(R, response length)``."""
        steps = response.unflatten(1, (self.num_frames - 1, self.dynamic_tokens + self.action_dim))
        return steps[:, :, : self.dynamic_tokens]


def _checked(ids: Tensor, shape: tuple[int, int], limit: int) -> Tensor:
    """``ids`` as int64, after checking that they are ``(B, *shape)`` in [0, limit)."""
    if ids.shape[1:] != shape or ids.is_floating_point():
        raise ValueError(
            f"need integers of shape (B, {shape[0]}, {shape[1]}), got {ids.dtype} {tuple(ids.shape)}"
        )
    if ids.numel():
        low, high = (int(x) for x in torch.aminmax(ids))
        if low < 0 or high >= limit:
            raise ValueError(f"ids must be in [0, {limit}) and without vocabulary offset, got {low}..{high}")
    return ids.long()
