"""The tables of the drawer world models: one window of 7 frames on recorded test episodes, and 112 frames beside
the simulator.

Special: *the metric in a table is the reward function*; beside it stand where gripper and drawers are in the
predicted frame, whether actions are followed, and whether other actions lead elsewhere as they do in truth.
Finished blocks are kept, and a repeated call skips them.

Absent: choosing checkpoints. Give the test split once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from tqdm import tqdm

from rlvr_envs.drawer_rules import HAND
from training.drawer_metrics import DrawerInstruments, Floats
from training.drawer_tables import (
    Measured,
    difference_table,
    long_table,
    window_table,
    with_distance,
)
from training.drawer_truth import TrueRollouts, true_rollouts, with_shuffled_actions
from training.frame_data import FrameData
from training.frame_rollouts import (
    FrameAnswers,
    FrameCases,
    FramePredictor,
    copy_last_frame,
    dream,
    recorded_frames,
    tokenizer_floor,
)
from training.report import Report, RowLog, manifest, source_of, weights_sha256
from training.rewards.frames import FrameRewardConfig
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
        folder: Run folder for finished blocks; None keeps nothing.
        progress: Whether to show progress bars.
    """
    windows = choose_windows(data, config)
    truth = true_rollouts(config.long_episodes, config.horizons[-1], seed=config.long_seed)
    other = with_shuffled_actions(truth)
    whole, elsewhere = long_cases(truth), long_cases(other)
    hashes = {name: model_hash(model) for name, model in models.items()}
    tools = {
        "state reader": weights_sha256(instruments.reader),
        "action reader": weights_sha256(instruments.inverse),
        "LPIPS": weights_sha256(instruments.perceptual),
    }
    shared = {"data": data.store.digest(), "config": config, "instruments": tools}

    def row(
        cases: FrameCases, name: str, kind: str, predictor: FramePredictor, weights: str = ""
    ) -> Measured:
        log = RowLog(folder, f"{name} {kind}", {**shared, "kind": kind, "weights": weights})
        return _computed(log, cases, predictor, instruments, f"{name} {kind}", progress)

    floors = {weights_sha256(model.tokenizer): model for model in models.values()}
    short: dict[str, Measured] = {
        "recorded frames": row(windows, "recorded frames", "window", recorded_frames),
        "copy last frame": row(windows, "copy last frame", "window", copy_last_frame),
    }
    for number, (sha, model) in enumerate(floors.items()):
        name = "tokenizer floor" + (f" {number + 1}" if len(floors) > 1 else "")
        short[name] = row(windows, name, "window", tokenizer_floor(model), sha)
    places = instruments.reader.config.names[HAND]

    def lived(name: str, kind: str, predictor: FramePredictor, weights: str = "") -> Measured:
        """Whole episodes, under their own actions and under those of the next one."""
        own = row(whole, name, f"long{kind}", predictor, weights)
        return with_distance(own, row(elsewhere, name, f"long, shuffled{kind}", predictor, weights), places)

    long: dict[str, Measured] = {
        "recorded frames": lived("recorded frames", "", recorded_frames),
        "copy last frame": lived("copy last frame", "", copy_last_frame),
    }
    for name, model in models.items():
        seeds = config.sampling_seeds
        for rejecting in (False, True) if name in reject else (False,):
            title = f"{name} + rejection" if rejecting else f"{name}, sampled"
            suffix = ", rejection" * rejecting
            dreams = [dream(model, seed=s, temperature=1.0, reject_repeats=rejecting) for s in seeds]
            short[title] = _mean(
                [
                    row(windows, name, f"window, seed {s}{suffix}", dreamt, hashes[name])
                    for s, dreamt in zip(seeds, dreams, strict=True)
                ],
                seeds,
            )
            long[title] = _mean(
                [
                    lived(name, f", seed {s}{suffix}", dreamt, hashes[name])
                    for s, dreamt in zip(seeds, dreams, strict=True)
                ],
                seeds,
            )
        greedy = dream(model, seed=0, temperature=0.0)
        short[f"{name}, greedy"] = row(windows, name, "window, greedy", greedy, hashes[name])
        long[f"{name}, greedy"] = lived(name, ", greedy", greedy, hashes[name])
    seed = config.bootstrap_seed
    tables = [
        window_table(short, windows, 1, seed=seed),
        window_table(short, windows, config.window_frames, seed=seed),
        *(long_table(long, whole, horizon, seed=seed) for horizon in config.horizons),
    ]
    if compare:
        tables.append(difference_table(short, windows, compare, rewards, seed=seed))
    (split,) = {split_of(name) for name in data.ids}
    protocol = {
        "task": "drawer: prediction of recorded windows, and of simulated episodes under the same actions",
        "config": config,
        "windows": list(windows.units),
    }
    return Report(
        name="drawer-prediction",
        tables=tuple(tables),
        manifest=manifest(protocol=protocol, weights={**hashes, **tools}, data=source_of(data.store, split)),
    )


def model_hash(model: MultiStepWorldModel) -> str:
    """Hash of a world model's weights."""
    return weights_sha256(model.tokenizer, model.llama)


def _computed(
    log: RowLog,
    cases: FrameCases,
    predictor: FramePredictor,
    instruments: DrawerInstruments,
    title: str,
    progress: bool,
) -> Measured:
    blocks = {
        str(first): list(range(first, min(first + _BLOCK, len(cases))))
        for first in range(0, len(cases), _BLOCK)
    }
    todo = log.missing(list(blocks))
    for block in tqdm(todo, desc=title, unit="block", disable=None if progress else True):
        part = cases.take(blocks[block])
        started = time.perf_counter()
        answers: FrameAnswers = predictor(part, blocks[block])
        seconds = time.perf_counter() - started
        measured = instruments.measure(answers, part)
        plain = {name: _six_digits(values) for name, values in measured.items()}
        log.add(block, {"metrics": plain, "seconds": seconds, "tokens": answers.tokens})
    parts = [log.parts[block] for block in blocks]
    metrics = {
        key: np.concatenate([np.array(p["metrics"][key]) for p in parts]) for key in parts[0]["metrics"]
    }
    return Measured(metrics, sum(p["seconds"] for p in parts), sum(p["tokens"] for p in parts))


def _six_digits(values: Floats) -> list[list[float]]:
    return [[float(f"{x:.6g}") for x in line] for line in values.tolist()]


def _mean(rows: Sequence[Measured], seeds: tuple[int, ...]) -> Measured:
    """The mean of several sampling runs, case by case; seconds and tokens are those of all."""
    metrics = {key: np.mean([row.metrics[key] for row in rows], axis=0) for key in rows[0].metrics}
    return Measured(metrics, sum(row.seconds for row in rows), sum(row.tokens for row in rows), seeds)
