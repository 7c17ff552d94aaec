"""GRPO on decoded PushT frames: the three callables that tie the generic loop to the object world model.

Special: the reward looks at *frames* (and proprioception), through a frozen tokenizer, and compares with the
recorded next observations; nothing about poses or simulator states enters it. Sampling is the rollout that
environments and planners use; log-probabilities are recomputed by teacher forcing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from training.data import PushTData
from training.grpo_config import GRPOConfig
from training.grpo_loop import Rollout
from training.grpo_task import validation_answers
from training.mle import TokenData, gates, token_losses
from training.rewards.frames import FrameRewardConfig, frame_scores
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.object_dynamics import ObjectDynamics
from worldmodels.video.object_world import FramePredictions, ObjectWorldModel

# Standard deviations of proprioception in the collected data (px, px, px/s, px/s), rounded.
PROPRIO_SCALE = (110.0, 110.0, 85.0, 85.0)


@dataclass(frozen=True, kw_only=True)
class RLVRRecipe:
    """One post-training run.

    Attributes:
        grpo: The loop.
        reward: Weights of the frame reward.
        horizon: Predicted frames per question, H.
        history: Observed frames per question.
        network: Backbone of the LPIPS reward.
        validation_windows: Windows of the periodic validation.
    """

    grpo: GRPOConfig = field(
        default_factory=lambda: GRPOConfig(
            group_size=16, prompts_per_step=64, minibatches=2, learning_rate=1e-4, steps=200, eval_every=20
        )
    )
    reward: FrameRewardConfig = field(
        default_factory=lambda: FrameRewardConfig(
            mae=1.0, lpips=1.0, proprio=1.0, proprio_scale=PROPRIO_SCALE
        )
    )
    horizon: int = 1
    history: int = 3
    network: Literal["alex", "vgg"] = "alex"
    validation_windows: int = 256


@dataclass(frozen=True)
class Question:
    """A place in the data: the frames before it are known, those from it on are asked for."""

    episode: int
    time: int  # index of the first predicted frame


def questions(data: TokenData, *, history: int, horizon: int) -> list[Question]:
    """All places with ``history`` frames before and ``horizon`` frames from there."""
    frames = data.tokens.shape[1]
    return [
        Question(episode, time)
        for episode in range(len(data))
        for time in range(history, frames - horizon + 1)
    ]


class FrameTask:
    """Questions, answers and scores over one split.

    Args:
        model: Gives tokenizer and rollout; its dynamics is replaced by the one under training at each call.
        frames: The split with its pictures.
        tokens: The same split tokenised.
        recipe: Horizon, history and reward.
    """

    def __init__(
        self,
        model: ObjectWorldModel,
        frames: PushTData,
        tokens: TokenData,
        recipe: RLVRRecipe,
        perceptual: Perceptual | None,
    ) -> None:
        if recipe.history + recipe.horizon > model.window_frames:
            raise ValueError(
                f"history {recipe.history} + horizon {recipe.horizon} exceed the model's window of "
                f"{model.window_frames} frames: sampling would restart its window where teacher "
                "forcing does not; ask for fewer"
            )
        self.model, self.frames, self.tokens, self.recipe = model, frames, tokens, recipe
        model.tokenizer.requires_grad_(False)
        self.perceptual = perceptual
        self.questions = questions(tokens, history=recipe.history, horizon=recipe.horizon)

    def _window(self, asked: Sequence[Question]) -> tuple[Tensor, Tensor]:
        """Episode rows ``(P, 1)`` and times ``(P, history + horizon)``."""
        rows = torch.tensor([[q.episode] for q in asked])
        span = torch.arange(-self.recipe.history, self.recipe.horizon)
        return rows, torch.tensor([[q.time] for q in asked]) + span

    def sample(
        self,
        model: Any,
        prompts: Sequence[Question],
        *,
        group_size: int,
        seeds: Sequence[int],
        temperature: float,
    ) -> Rollout:
        """G futures of every question."""
        world = ObjectWorldModel(
            self.model.tokenizer,
            model,
            history_length=self.model.history_length,
            window_frames=self.model.window_frames,
        )
        rows, times = self._window(prompts)
        known = self.recipe.history
        history = self.tokens.tokens[rows, times[:, :known]]
        actions = self.tokens.actions[rows, times[:, :-1]]
        start = world.start_tokens(
            history, actions[:, : known - 1], torch.zeros(len(prompts), dtype=torch.int64)
        )
        state = start.fork(group_size).reseeded(torch.tensor(list(seeds), dtype=torch.int64))
        tokens, logprobs = [], []
        for step in range(self.recipe.horizon):
            action = actions[:, known - 1 + step].repeat_interleave(group_size, 0)
            state, predictions = world.step(state, action.cpu().numpy(), temperature=temperature)
            tokens.append(predictions.tokens)
            logprobs.append(predictions.logprobs)
        drawn = torch.cat(tokens, 1)
        return Rollout(
            tokens=drawn, logprobs=torch.cat(logprobs, 1), mask=torch.ones_like(drawn, dtype=torch.bool)
        )

    def score(self, prompts: Sequence[Question], rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Rewards of decoded frames."""
        group = len(rollout.tokens) // len(prompts)
        layout, horizon = self.model.dynamics.layout, self.recipe.horizon
        tokens = rollout.tokens.unflatten(1, (horizon, layout.slots))
        # Samples of a sharp model often agree: decode and compare every distinct one once.
        where = torch.arange(len(prompts)).repeat_interleave(group)
        keyed = torch.cat([where[:, None], rollout.tokens], 1)
        distinct, inverse = torch.unique(keyed, dim=0, return_inverse=True)
        asked, tokens = distinct[:, 0], distinct[:, 1:].unflatten(1, (horizon, layout.slots))
        frames = FramePredictions(
            self.model.tokenizer, self.model.dynamics, tokens.flatten(0, 1), torch.zeros(0)
        ).frames()
        rows, times = self._window(prompts)
        ahead = times[:, self.recipe.history :]
        flat_rows = rows.expand_as(ahead).flatten().cpu().numpy()
        targets = self.frames.images(flat_rows, ahead.flatten().cpu().numpy()).unflatten(0, ahead.shape)
        rewards, parts = frame_scores(
            frames.unflatten(0, (len(distinct), horizon)),
            targets[asked],
            config=self.recipe.reward,
            perceptual=self.perceptual,
            predicted_proprio=layout.proprio(tokens),
            target_proprio=self.tokens.proprio[rows, ahead][asked],
        )
        return rewards[inverse], {name: part[inverse] for name, part in parts.items()}

    def logprobs(
        self, model: Any, prompts: Sequence[Question], rollout: Rollout, *, temperature: float
    ) -> Tensor:
        """Teacher-forced log-probabilities ``(R, H * S)``."""
        if temperature != 1.0:
            raise ValueError(f"temperature is {temperature}; this task trains at temperature 1")
        group = len(rollout.tokens) // len(prompts)
        rows, times = self._window(prompts)
        known, horizon = self.recipe.history, self.recipe.horizon
        history = self.tokens.tokens[rows, times[:, :known]].repeat_interleave(group, 0)
        answer = rollout.tokens.unflatten(1, (horizon, model.layout.slots))
        window = torch.cat([history, answer], 1)
        actions = self.tokens.actions[rows, times[:, :-1]].repeat_interleave(group, 0)
        hidden, context = model(window, actions, self.model.pose(window))
        losses = token_losses(model, hidden, context, window)
        return -losses[:, known - 1 :].flatten(1)

    @torch.no_grad()
    def validate(self, dynamics: ObjectDynamics) -> dict[str, float]:
        """Reward parts at temperature 1 and greedy on evenly spread questions, with fixed seeds."""
        results: dict[str, float] = {}
        count = self.recipe.validation_windows
        for name, asked, rollout, means in validation_answers(self, dynamics, count=count):
            results |= means
            answer = rollout.tokens.unflatten(1, (self.recipe.horizon, -1))[:, -1]
            pose = self.model.pose(answer)
            rows = torch.tensor([q.episode for q in asked])
            times = torch.tensor([q.time for q in asked])
            truth = self.tokens.true_poses[rows, times + self.recipe.horizon - 1]
            before = self.tokens.true_poses[rows, times - 1]
            moved = (truth[:, :2] - before[:, :2]).norm(dim=-1) > 10
            distance = (pose[:, :2] - truth[:, :2]).norm(dim=-1)
            results[f"{name}_block_px"] = float(distance.mean())
            if moved.any():
                results[f"{name}_moved_px"] = float(distance[moved].mean())
        results |= {
            f"nll_{key}": value
            for key, value in gates(dynamics, self.tokens, window_frames=self.model.window_frames).items()
            if key in ("code_nll", "changed_nll", "proprio_nll")
        }
        return results
