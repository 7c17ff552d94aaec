"""The tables of the drawer world models: one window of 7 frames on recorded test episodes, and 112 frames beside
the simulator.

Special: *the metric in a table is the reward function*; beside it stand where gripper and drawers are in the
predicted frame, whether actions are followed, and whether other actions lead elsewhere as they do in truth.
Finished blocks are kept, and a repeated call skips them.

Absent: choosing checkpoints. Give the test split once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rlvr_envs.drawer_rules import HAND
from training.drawer_differences import HEADLINES, difference_table, gate_table
from training.drawer_metrics import DrawerInstruments
from training.drawer_tables import COPY, TRUTH, long_table, window_table, with_distance
from training.drawer_truth import TrueRollouts, true_rollouts, with_shuffled_actions
from training.frame_data import FrameData
from training.frame_rollouts import (
    FrameCases,
    FramePredictor,
    copy_last_frame,
    dream,
    recorded_frames,
    tokenizer_floor,
)
from training.provenance import weights_sha256
from training.report import Report, RowLog, manifest, source_of
from training.rewards.frames import FrameRewardConfig
from training.rows import Row, computed_row, mean_row
from worldmodels.episodes import split_of
from worldmodels.video.multi_step_world import MultiStepWorldModel

_BLOCK = 25  # cases computed and kept together


@dataclass(frozen=True, kw_only=True)
class DrawerTableConfig:
    """The protocol.

    Attributes:
        windows: Number of recorded windows, of 7 frames.
        window_seed: Of their choice.
        window_frames: Frames of a window that are predicted.
        long_episodes: Number of simulated episodes for the long table.
        long_seed: Of them.
        horizons: Frames after which the long table looks; the last is the length.
        sampling_seeds: A row at temperature 1 is the mean over these.
        bootstrap_seed: Of the intervals.
    """

    windows: int = 300
    window_seed: int = 0
    window_frames: int = 7
    long_episodes: int = 32
    long_seed: int = 0
    horizons: tuple[int, ...] = (1, 7, 28, 112)
    sampling_seeds: tuple[int, ...] = (0, 1, 2)
    bootstrap_seed: int = 0


def choose_windows(data: FrameData, config: DrawerTableConfig) -> FrameCases:
    """Different windows of a split, seen from the first frame of their episodes.

    Raises:
        ValueError: The split has fewer.
    """
    length = config.window_frames
    per_episode = data.steps - length + 1
    if config.windows > per_episode * len(data) or per_episode < 1:
        raise ValueError(
            f"{config.windows} windows of {length} frames asked for, but {len(data)} episodes of {data.steps} steps"
            f" hold {max(per_episode, 0) * len(data)}; ask for fewer, or collect more"
        )
    if data.states is None:
        raise ValueError(f"{data.store.folder} holds no states; the table compares with the simulator's")
    order = np.random.default_rng([config.window_seed, 3]).permutation(per_episode * len(data))
    rows, starts = np.divmod(order[: config.windows], per_episode)
    times = starts[:, None] + np.arange(length + 1)
    frames = data.pixels(rows[:, None], times)
    return FrameCases(
        contexts=data.pixels(rows, np.zeros_like(rows)),
        present=frames[:, 0],
        actions=data.actions[rows[:, None], times[:, :-1]],
        future=frames[:, 1:],
        states=data.states[rows[:, None], times],
        units=tuple(data.ids[row] for row in rows),
    )


def long_cases(truth: TrueRollouts) -> FrameCases:
    """Whole simulated episodes from their first frame."""
    return FrameCases(
        contexts=truth.frames[:, 0],
        present=truth.frames[:, 0],
        actions=truth.actions,
        future=truth.frames[:, 1:],
        states=truth.states,
        units=tuple(f"simulated-{row}" for row in range(len(truth))),
    )


def evaluate_drawer(
    models: Mapping[str, MultiStepWorldModel],
    data: FrameData,
    instruments: DrawerInstruments,
    config: DrawerTableConfig,
    *,
    reject: Sequence[str] = (),
    compare: Sequence[tuple[str, str]] = (),
    rewards: Mapping[str, FrameRewardConfig] = MappingProxyType({}),
    hours: Mapping[str, float] = MappingProxyType({}),
    folder: str | Path | None = None,
    progress: bool = True,
) -> Report:
    """Trivial rows and world models on the same cases.

    Args:
        models: World models by name.
        data: The split to predict.
        instruments: What measures.
        config: The protocol.
        reject: Models that get another row with repetition rejection.
        compare: Pairs of models whose difference is tested, the hoped-for better one first.
        rewards: What models were rewarded for; the published reward where they are not named.
        hours: What the training runs of models took, as far as it is known, for the manifest: whether two that are
            compared had equal compute.
        folder: Run folder for finished blocks; None keeps nothing.
        progress: Whether to show progress bars.
    """
    truth = true_rollouts(config.long_episodes, config.horizons[-1], seed=config.long_seed)
    hashes = {name: model_hash(model) for name, model in models.items()}
    tools = {
        "state reader": weights_sha256(instruments.reader),
        "action reader": weights_sha256(instruments.inverse),
        "LPIPS": weights_sha256(instruments.perceptual),
    }
    bench = _Bench(
        windows=choose_windows(data, config),
        whole=long_cases(truth),
        elsewhere=long_cases(with_shuffled_actions(truth)),
        instruments=instruments,
        identity={"data": data.store.digest(), "config": config, "instruments": tools},
        folder=folder,
        progress=progress,
    )
    short: dict[str, Row] = {}
    long: dict[str, Row] = {}
    for name, predictor in ((TRUTH, recorded_frames), (COPY, copy_last_frame)):
        short[name], long[name] = bench.window(name, "", predictor), bench.long(name, "", predictor)
    floors = {weights_sha256(model.tokenizer): model for model in models.values()}
    for number, (sha, model) in enumerate(floors.items()):
        name = "tokenizer floor" + (f" {number + 1}" if len(floors) > 1 else "")
        floor = tokenizer_floor(model)
        short[name], long[name] = bench.window(name, "", floor, sha), bench.long(name, "", floor, sha)
    for name, model in models.items():
        for rejecting in (False, True) if name in reject else (False,):
            title = f"{name} + rejection" if rejecting else f"{name}, sampled"
            short[title], long[title] = bench.sampled(
                name, model, config.sampling_seeds, hashes[name], rejecting=rejecting
            )
        greedy = dream(model, seed=0, temperature=0.0)
        short[f"{name}, greedy"] = bench.window(name, ", greedy", greedy, hashes[name])
        long[f"{name}, greedy"] = bench.long(name, ", greedy", greedy, hashes[name])
    seed = config.bootstrap_seed
    tables = [
        window_table(short, bench.windows, 1, seed=seed),
        gate_table(short, bench.windows, seed=seed),
        window_table(short, bench.windows, config.window_frames, seed=seed),
        *(long_table(long, bench.whole, horizon, seed=seed) for horizon in config.horizons),
    ]
    if compare:
        differences = difference_table(short, bench.windows, compare, rewards, seed=seed)
        tables += [differences.headline("Drawer prediction: what changed", HEADLINES), differences]
    (split,) = {split_of(name) for name in data.ids}
    protocol = {
        "task": "drawer: prediction of recorded windows, and of simulated episodes under the same actions",
        "config": config,
        "windows": list(bench.windows.units),
    }
    origin = manifest(protocol=protocol, weights={**hashes, **tools}, data=source_of(data.store, split))
    return Report(
        name="drawer-prediction",
        tables=tuple(tables),
        manifest={**origin, "training_hours": dict(hours)},
    )


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """The cases that all rows share, and what measures them."""

    windows: FrameCases
    whole: FrameCases
    elsewhere: FrameCases  # the starts of ``whole`` under the actions of the next episode
    instruments: DrawerInstruments
    identity: Mapping[str, Any]
    folder: str | Path | None
    progress: bool

    def window(self, name: str, kind: str, predictor: FramePredictor, weights: str = "") -> Row:
        """Recorded windows."""
        return self._row(self.windows, name, f"window{kind}", predictor, weights)

    def long(self, name: str, kind: str, predictor: FramePredictor, weights: str = "") -> Row:
        """Whole episodes, under their own actions and under those of the next one."""
        own = self._row(self.whole, name, f"long{kind}", predictor, weights)
        aside = self._row(self.elsewhere, name, f"long, shuffled{kind}", predictor, weights)
        return with_distance(own, aside, self.instruments.reader.config.names[HAND])

    def sampled(
        self, name: str, model: MultiStepWorldModel, seeds: tuple[int, ...], weights: str, *, rejecting: bool
    ) -> tuple[Row, Row]:
        """The means over sampling seeds of windows and of whole episodes."""
        of_seed = []
        for seed in seeds:
            predictor = dream(model, seed=seed, temperature=1.0, reject_repeats=rejecting)
            kind = f", seed {seed}" + ", rejection" * rejecting
            of_seed.append(
                (self.window(name, kind, predictor, weights), self.long(name, kind, predictor, weights))
            )
        short, long = zip(*of_seed, strict=True)
        return mean_row(short, seeds), mean_row(long, seeds)

    def _row(self, cases: FrameCases, name: str, kind: str, predictor: FramePredictor, weights: str) -> Row:
        return computed_row(
            RowLog(self.folder, f"{name} {kind}", {**self.identity, "kind": kind, "weights": weights}),
            lambda numbers: predictor(cases.take(numbers), numbers),
            lambda answers, numbers: self.instruments.measure(answers, cases.take(numbers)),
            count=len(cases),
            block=_BLOCK,
            title=f"{name} {kind}",
            progress=self.progress,
        )


def model_hash(model: MultiStepWorldModel) -> str:
    """Hash of a world model's weights."""
    return weights_sha256(model.tokenizer, model.llama)
