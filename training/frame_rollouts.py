"""Who answers in the tables of frame world models: trivial rows, dreams, and dreams that refuse to repeat.

Special: an answer is what an environment would show, 8-bit frames, whatever the model. Repetition rejection
draws a frame anew, with a derived seed, as long as it equals the predicted one before it, at most 8 times in all;
its extra tokens are counted.

Absent: metrics and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from training.data import to_float
from worldmodels.api import History
from worldmodels.sampling import derive
from worldmodels.video.multi_step_world import MultiStepWorldModel

MAX_TRIES = 8  # of repetition rejection, per frame


@dataclass(frozen=True)
class FrameAnswers:
    """What a row predicts: ``frames`` ``(N, H, h, w, 3)`` uint8, and how many tokens it generated."""

    frames: NDArray[np.uint8]
    tokens: int = 0


@dataclass(frozen=True)
class FrameCases:
    """N questions, H frames each.

    Attributes:
        contexts, present: ``(N, h, w, 3)`` uint8: first frame of the episode, and the last known one.
        actions: ``(N, H, A)`` float32.
        future: ``(N, H, h, w, 3)`` uint8: what really followed.
        states: ``(N, H+1, S)`` float64: of the present frame and of those that followed.
        units: Episode of each, the unit of a bootstrap.
    """

    contexts: NDArray[np.uint8]
    present: NDArray[np.uint8]
    actions: NDArray[np.float32]
    future: NDArray[np.uint8]
    states: NDArray[np.float64]
    units: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: Sequence[int]) -> FrameCases:
        """Some of them."""
        index = list(rows)
        return FrameCases(
            self.contexts[index],
            self.present[index],
            self.actions[index],
            self.future[index],
            self.states[index],
            tuple(self.units[row] for row in index),
        )


FramePredictor = Callable[[FrameCases, Sequence[int]], FrameAnswers]
"""Cases, and their numbers in the whole list (for seeds) -> answers."""


def copy_last_frame(cases: FrameCases, _: Sequence[int]) -> FrameAnswers:
    """Nothing moves."""
    return FrameAnswers(np.repeat(cases.present[:, None], cases.future.shape[1], axis=1))


def recorded_frames(cases: FrameCases, _: Sequence[int]) -> FrameAnswers:
    """The truth: what remains is the error of the readers."""
    return FrameAnswers(cases.future)


def tokenizer_floor(model: MultiStepWorldModel) -> FramePredictor:
    """The true ids, decoded: what a perfect model on this tokenizer would give."""

    @torch.no_grad()
    def predict(cases: FrameCases, numbers: Sequence[int]) -> FrameAnswers:
        shown = []
        for context, future in zip(cases.contexts, cases.future, strict=True):
            ids, seen = model.tokenizer.encode_context(to_float(context[None]))
            codes = model.tokenizer.encode(seen, to_float(future[None]))[0]
            _, features = model.tokenizer.decode_context(ids)
            shown.append(to_uint8(model.tokenizer.decode(features, codes)))
        return FrameAnswers(np.stack(shown))

    return predict


def to_uint8(frames: torch.Tensor) -> NDArray[np.uint8]:
    """``(N, 3, h, w)`` in about [0, 1] to ``(N, h, w, 3)``."""
    shown: NDArray[np.uint8] = (frames.clamp(0, 1) * 255).round().to(torch.uint8).movedim(1, -1).numpy()
    return shown


def dream(
    model: MultiStepWorldModel, *, seed: int, temperature: float, reject_repeats: bool = False
) -> FramePredictor:
    """A world model; a case's draws depend on its number and ``seed`` only."""

    def predict(cases: FrameCases, numbers: Sequence[int]) -> FrameAnswers:
        first = derive(torch.tensor(seed), torch.tensor(list(numbers)) + 1)
        histories = [
            History(observations=[context, present], actions=[np.zeros(cases.actions.shape[-1], np.float32)])
            for context, present in zip(cases.contexts, cases.present, strict=True)
        ]
        state = model.start(histories, seeds=first.tolist())
        ids_of_frame, generated = model.layout.dynamic_tokens, 0
        shown, before = [], None
        for step in range(cases.actions.shape[1]):
            taken = cases.actions[:, step]
            old = state
            state, predictions = model.step(old, taken, temperature=temperature)
            generated += len(taken) * ids_of_frame
            frames, ids = np.array(predictions.observations()), predictions.tokens.clone()
            for attempt in range(1, MAX_TRIES if reject_repeats and before is not None else 0):
                assert before is not None
                again = (ids == before).all(dim=1).nonzero().squeeze(1).tolist()
                if not again:
                    break
                retried = old.select(again).reseeded(derive(first[again], 1_000 * (step + 1) + attempt))
                part, redrawn = model.step(retried, taken[again], temperature=temperature)
                generated += len(again) * ids_of_frame
                frames[again], ids[again] = redrawn.observations(), redrawn.tokens
                rows = np.arange(len(taken))
                rows[again] = len(taken) + np.arange(len(again))
                # Redrawn rows go on with their own seeds of before, so that later draws stay comparable.
                state = state.append(part.reseeded(first[again])).select(rows.tolist())
            shown.append(frames)
            before = ids
        return FrameAnswers(np.stack(shown, axis=1), generated)

    return predict
