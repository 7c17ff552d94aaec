"""The prediction table: how close predicted frames are to recorded ones, one and seven steps ahead.

Special: *the metric in a table is the reward function* (``training.rewards.frames``), applied to what an
environment would return, 8-bit frames. Beside it stands a measure that no reward contains: where the block is
in the decoded frame, read by a pose reader that was trained on true frames, and apart for cases in which it
moved. Windows are computed in fixed blocks, so the numbers depend on nothing but protocol, weights and data;
finished blocks are kept, and a repeated call skips them.

Absent: choosing checkpoints. Give the test split once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from training.data import PushTData, pose_errors, pose_of, to_float
from training.evaluate_tables import (
    HEADLINES,
    BestOf,
    best_of_table,
    difference_table,
    gate_losses,
    gate_table,
    prediction_tables,
)
from training.predictors import (
    Answers,
    Predictor,
    copy_last,
    recorded,
    rollout,
    tokenizer_floor,
    window_seeds,
)
from training.provenance import weights_sha256
from training.readers import PoseReader
from training.report import Report, RowLog, manifest, model_sha256, source_of
from training.rewards.frames import FrameRewardConfig, frame_scores
from training.rows import Row, blocks, computed_row, mean_row, six_digits
from training.windows import MOVED_DEG, MOVED_PX, Windows, choose_windows
from worldmodels.api import WorldModel
from worldmodels.episodes import split_of
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.object_world import ObjectWorldModel

_PICTURE = FrameRewardConfig(
    mae=1.0, mse=1.0, psnr=1.0, ssim=1.0, lpips=1.0
)  # every part is wanted, none weighed
_BLOCK = 50  # windows computed and kept together
_BEST_OF_BLOCK = 5


@dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """The protocol.

    Attributes:
        windows: Number of windows.
        window_seed: Of their choice.
        history_frames: Observed frames before the first prediction.
        horizon_steps: Predicted frames.
        sampling_seeds: A row at temperature 1 is the mean over these.
        best_of: Sizes N of best-of-N, one step ahead; each must divide the largest. Empty for none.
        best_of_windows: So many windows, the first of the list, are used for that.
        vgg_windows: So many, the first of the list, get LPIPS with VGG too, one step ahead.
        reward: Says which of N samples is best, and which metrics count as rewarded.
        bootstrap_seed: Of the intervals.
    """

    windows: int = 500
    window_seed: int = 0
    history_frames: int = 3
    horizon_steps: int = 7
    sampling_seeds: tuple[int, ...] = (0, 1, 2)
    best_of: tuple[int, ...] = (1, 5, 10, 100)
    best_of_windows: int = 100
    vgg_windows: int = 0
    reward: FrameRewardConfig = field(default_factory=FrameRewardConfig)
    bootstrap_seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be shown."""
        if self.best_of and (self.reward.lpips <= 0 or any(max(self.best_of) % n for n in self.best_of)):
            raise ValueError(
                f"best_of is {self.best_of} and reward.lpips {self.reward.lpips}: every N must divide the largest one,"
                " and the reward must contain LPIPS, which the best-of-N table shows"
            )


@dataclass(frozen=True)
class Instruments:
    """What measures answers.

    Attributes:
        reader: Judges decoded frames.
        perceptual: LPIPS.
        vgg: LPIPS with another backbone, one step ahead, or None.
    """

    reader: PoseReader
    perceptual: Perceptual
    vgg: Perceptual | None = None

    @torch.no_grad()
    def measure(
        self, answers: Answers, windows: Windows, *, vgg_windows: int = 0
    ) -> dict[str, NDArray[np.float64]]:
        """Each metric ``(N, H)``; of ``repetition``, whether a frame equals the predicted one before it.

        ``vgg`` is ``(vgg_windows, 1)``, for the first windows and the first step.
        """
        where = (windows.history, windows.horizon)
        predicted, target = (to_float(x).flatten(0, 1) for x in (answers.image, windows.images(*where)))
        states = torch.from_numpy(windows.states(*where)).flatten(0, 1)
        _, parts = frame_scores(
            predicted[:, None], target[:, None], config=_PICTURE, perceptual=self.perceptual
        )
        read = [self.reader(part) for part in predicted.split(256)]
        agent, pose = (torch.cat(part) for part in zip(*read, strict=True))
        block_px, angle_deg = pose_errors(pose, pose_of(states))
        own = pose_of(torch.from_numpy(answers.states).flatten(0, 1))
        token_block_px, token_angle_deg = pose_errors(own, pose_of(states))
        place = torch.from_numpy(answers.proprio).flatten(0, 1)[:, :2]
        values: dict[str, Tensor] = {
            **parts,
            "proprio_px": (place - states[:, :2]).norm(dim=-1),
            "agent_px": (agent - states[:, :2]).norm(dim=-1),
            "block_px": block_px,
            "angle_deg": angle_deg,
            "token_block_px": token_block_px,
            "token_angle_deg": token_angle_deg,
        }
        shape = (len(windows), windows.horizon)
        measured = {name: value.double().numpy().reshape(shape) for name, value in values.items()}
        same = (answers.image[:, 1:] == answers.image[:, :-1]).all(axis=(2, 3, 4))
        measured["repetition"] = np.pad(same.astype(np.float64), ((0, 0), (1, 0)))
        if self.vgg is not None and vgg_windows:
            few = (to_float(x[:vgg_windows, 0]) for x in (answers.image, windows.images(*where)))
            measured["vgg"] = self.vgg.distance(*few).double().numpy()[:, None]
        return measured


def evaluate_prediction(
    models: Mapping[str, ObjectWorldModel],
    data: PushTData,
    reader: PoseReader,
    perceptual: Perceptual,
    config: PredictionConfig,
    *,
    vgg: Perceptual | None = None,
    compare: Sequence[tuple[str, str]] = (),
    folder: str | Path | None = None,
    progress: bool = True,
) -> Report:
    """Prediction of trivial rows and of world models on the same windows.

    Args:
        models: World models by name.
        data: The split to predict.
        reader: Judges decoded frames.
        perceptual: LPIPS of the tables and of the reward.
        config: The protocol.
        vgg: LPIPS with another backbone, for ``config.vgg_windows``.
        compare: Pairs of models whose difference is tested, the hoped-for better one first.
        folder: Run folder for finished blocks of windows; None keeps nothing.
        progress: Whether to show progress bars.

    Raises:
        ValueError: Too many windows asked for, a name in ``compare`` is not a model, or ``vgg`` does not fit the
            config.
    """
    if (vgg is None) != (config.vgg_windows == 0):
        raise ValueError(
            f"config.vgg_windows is {config.vgg_windows}, but vgg is {'absent' if vgg is None else 'given'};"
            " give vgg=Perceptual('vgg') exactly where vgg_windows is positive"
        )
    if unknown := {name for pair in compare for name in pair} - set(models):
        raise ValueError(f"compare names {sorted(unknown)}, but the models are {sorted(models)}")
    windows = choose_windows(
        data,
        count=config.windows,
        history=config.history_frames,
        horizon=config.horizon_steps,
        seed=config.window_seed,
    )
    hashes = {name: model_sha256(model) for name, model in models.items()}
    instrument_hashes = {"pose reader": weights_sha256(reader), "LPIPS": weights_sha256(perceptual)}
    if vgg is not None:
        instrument_hashes["LPIPS (VGG)"] = weights_sha256(vgg)
    # What decides the numbers of every row: the list is there because a window's draws depend on its number.
    shared = {
        "data": data.store.digest(),
        "windows": windows.to_protocol(),
        "frames": [config.history_frames, config.horizon_steps],
        "instruments": instrument_hashes,
        "vgg_windows": config.vgg_windows,
    }
    instruments = Instruments(reader, perceptual, vgg)

    def row(name: str, kind: str, predictor: Predictor, weights: str | None = None) -> Row:
        def measure(answers: Answers, numbers: list[int]) -> dict[str, NDArray[np.float64]]:
            few = sum(number < config.vgg_windows for number in numbers)
            return instruments.measure(answers, windows.take(numbers), vgg_windows=few)

        return computed_row(
            RowLog(folder, f"predict {name} {kind}", {**shared, "kind": kind, "weights": weights}),
            lambda numbers: predictor(windows.take(numbers), numbers),
            measure,
            count=len(windows),
            block=_BLOCK,
            title=f"{name} {kind}".strip(),
            progress=progress,
        )

    rows = {
        "recorded frame": row("recorded frame", "", recorded),
        "copy last frame": row("copy last frame", "", copy_last),
    }
    for name, model in _distinct_tokenizers(models).items():
        rows[name] = row(name, "floor", tokenizer_floor(model), weights_sha256(model.tokenizer))
    for name, model in models.items():
        sampled = [
            row(name, f"seed {seed}", rollout(model, seed=seed, temperature=1.0), hashes[name])
            for seed in config.sampling_seeds
        ]
        rows[f"{name}, sampled"] = mean_row(sampled, config.sampling_seeds)
        rows[f"{name}, greedy"] = row(name, "greedy", rollout(model, seed=0, temperature=0.0), hashes[name])
    tables = [*prediction_tables(rows, windows, seed=config.bootstrap_seed)]
    if config.best_of:
        chosen = windows.take(range(min(config.best_of_windows, len(windows))))
        best = {}
        for name, model in models.items():
            identity = {
                **shared,
                "weights": hashes[name],
                "samples": max(config.best_of),
                "reward": config.reward,
            }
            log = RowLog(folder, f"predict {name} best of n", identity)
            best[name] = _best_of(log, chosen, model, perceptual, config, f"{name} best of N", progress)
        tables.append(best_of_table(best, config.best_of, chosen.units, seed=config.bootstrap_seed))
    if compare:
        differences = difference_table(rows, windows, compare, config.reward, seed=config.bootstrap_seed)
        endpoint = (
            "the endpoint is LPIPS of sampled frames; the other rows are not corrected for their number"
        )
        headline = differences.headline("PushT prediction: what changed", HEADLINES, (endpoint,))
        tables += [headline, differences]
    losses = {}
    for name, model in models.items():
        log = RowLog(
            folder, f"predict {name} gates", {"data": [shared["data"], data.ids], "weights": hashes[name]}
        )
        if log.missing(["losses"]):
            log.add("losses", gate_losses(model, data))
        losses[name] = log.parts["losses"]
    tables.append(gate_table(losses, rows, windows, seed=config.bootstrap_seed))
    (split,) = {split_of(name) for name in data.ids}
    protocol = {
        "task": "pusht: prediction of recorded frames from recorded histories and actions",
        "moved": f"block moved > {MOVED_PX} px or > {MOVED_DEG} degrees since the last history frame",
        "config": config,
        "windows": windows.to_protocol(),
    }
    weights = {**hashes, **instrument_hashes}
    return Report(
        name="pusht-prediction",
        tables=tuple(tables),
        manifest=manifest(protocol=protocol, weights=weights, data=source_of(data.store, split)),
    )


def _distinct_tokenizers(models: Mapping[str, ObjectWorldModel]) -> dict[str, ObjectWorldModel]:
    """One model for each tokenizer, by the name of its row."""
    named: dict[str, tuple[str, ObjectWorldModel]] = {}
    for name, model in models.items():
        named.setdefault(weights_sha256(model.tokenizer), (name, model))
    several = len(named) > 1
    return {
        f"tokenizer floor ({name})" if several else "tokenizer floor": model for name, model in named.values()
    }


def _best_of(
    log: RowLog,
    windows: Windows,
    model: ObjectWorldModel,
    perceptual: Perceptual,
    config: PredictionConfig,
    title: str,
    progress: bool,
) -> BestOf:
    """Rewards and LPIPS of many one-step samples of each window."""
    samples, world = max(config.best_of), cast(WorldModel, model)
    numbered = blocks(len(windows), _BEST_OF_BLOCK)
    for block in tqdm(
        log.missing(list(numbered)), desc=title, unit="block", disable=None if progress else True
    ):
        part = windows.take(numbered[block])
        started = time.perf_counter()
        state = world.start(part.histories(), seeds=window_seeds(0, numbered[block])).fork(samples)
        actions = np.repeat(part.actions(part.history - 1, 1)[:, 0], samples, axis=0)
        _, predictions = world.step(state, actions, temperature=1.0)
        seen = predictions.observations()
        seconds = time.perf_counter() - started
        rewards, parts = frame_scores(
            to_float(seen["image"])[:, None],
            to_float(part.images(part.history, 1)),
            config=config.reward,
            perceptual=perceptual,
            predicted_proprio=torch.from_numpy(seen["proprio"])[:, None],
            target_proprio=torch.from_numpy(part.proprio(part.history, 1)),
        )
        shape = (len(part), samples)
        values = {"reward": rewards.mean(1), "lpips": parts["lpips"]}
        plain = {name: six_digits(value.double().numpy().reshape(shape)) for name, value in values.items()}
        log.add(block, {**plain, "seconds": seconds})
    parts_of = [log.parts[block] for block in numbered]
    reward, lpips = (np.concatenate([np.array(p[key]) for p in parts_of]) for key in ("reward", "lpips"))
    return BestOf(reward, lpips, sum(p["seconds"] for p in parts_of), model.dynamics.layout.slots)
