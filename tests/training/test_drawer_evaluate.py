"""The drawer tables on a tiny untrained model: trivial rows are right, rejection counts, nothing is computed twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rlvr_envs.drawer_rules import STATE_NAMES
from training.collect_drawer import DrawerCollectConfig, collect_drawer
from training.drawer_differences import difference_table, gate_table
from training.drawer_evaluate import DrawerTableConfig, choose_windows, evaluate_drawer, long_cases
from training.drawer_metrics import DrawerInstruments, drawer_moved, gripper_moved
from training.drawer_recipes import ACTION_NAMES
from training.drawer_truth import live, true_rollouts, with_shuffled_actions
from training.frame_data import FrameData
from training.frame_rollouts import MAX_TRIES, copy_last_frame, dream, recorded_frames
from training.rewards.frames import FrameRewardConfig
from training.rows import Row
from worldmodels.episodes import EpisodeStore
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.state_reader import StateReader, StateReaderConfig

pytestmark = pytest.mark.gl

CONFIG = DrawerTableConfig(
    windows=4, window_frames=3, long_episodes=2, horizons=(1, 4), sampling_seeds=(0, 1)
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> FrameData:
    folder = tmp_path_factory.mktemp("drawer")
    collect_drawer(folder, DrawerCollectConfig(episodes=32, steps=6, processes=1))
    return FrameData.load(EpisodeStore(folder), "train", limit=8)


@pytest.fixture(scope="module")
def model() -> MultiStepWorldModel:
    sizes = CompressiveTokenizerConfig(
        image_size=(64, 80),
        block_out_channels=(32, 32, 32, 32),
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=4,
        patch_size=2,
        max_att_resolution=8,
        context_levels=(4, 4),
        dynamic_levels=(3, 2),
    )
    tokenizer = CompressiveTokenizer(sizes).eval()
    bins = ActionBins(low=[-1.0] * 13, high=[1.0] * 13, num_bins=4)
    layout = MultiStepLayout(
        context_tokens=80, dynamic_tokens=20, num_frames=4, dynamic_vocab=6, context_vocab=16, action_bins=4
    )
    config = LlamaConfig(
        vocab_size=layout.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=layout.response.stop,
    )
    return MultiStepWorldModel(tokenizer, Llama(config), layout, bins)


@pytest.fixture(scope="module")
def instruments() -> DrawerInstruments:
    def reader(names: tuple[str, ...], frames: int) -> StateReader:
        unit = (1.0,) * len(names)
        config = StateReaderConfig(
            names=names, centre=(0.0,) * len(names), scale=unit, frames=frames, width=8
        )
        return StateReader(config).eval()

    readers = [reader(STATE_NAMES, 1), reader(ACTION_NAMES, 2)]
    return DrawerInstruments(readers[0], readers[1], Perceptual("alex"))


def test_the_same_actions_lead_to_the_same_truth_and_others_elsewhere():
    truth = true_rollouts(3, 8, seed=5)
    again = live(truth.states[:, 0], truth.looks, truth.actions)
    np.testing.assert_array_equal(truth.frames, again.frames)
    np.testing.assert_array_equal(truth.states, again.states)
    other = with_shuffled_actions(truth)
    np.testing.assert_array_equal(other.frames[:, 0], truth.frames[:, 0])
    np.testing.assert_array_equal(other.actions[0], truth.actions[1])
    assert (truth.actions[:, :, 7:10] == (0, 1, 0)).all()
    assert np.abs(other.states[:, -1, :3] - truth.states[:, -1, :3]).max() > 0.02
    different = true_rollouts(3, 2, seed=6)
    assert not np.array_equal(different.frames[:, 0], truth.frames[:, 0])


def test_trivial_rows_are_measured_as_they_are(data, instruments):
    cases = choose_windows(data, CONFIG)
    perfect = instruments.measure(recorded_frames(cases, []), cases)
    still = instruments.measure(copy_last_frame(cases, []), cases)
    assert perfect["mae"].max() == perfect["lpips"].max() == 0
    assert perfect["ssim"].min() == pytest.approx(1)
    assert (still["repetition"][:, 1:] == 1).all()
    assert (still["repetition"][:, 0] == 0).all()
    expected = np.abs(cases.future.astype(float) - cases.present[:, None]).mean(axis=(2, 3, 4)) / 255
    np.testing.assert_allclose(still["mae"], expected, atol=1e-6)
    # What readers say of one frame does not depend on which row showed it.
    alone = instruments.read(torch.from_numpy(cases.present[:1]).movedim(-1, 1).float() / 255)[0]
    names = [f"read_{name}" for name in STATE_NAMES]
    np.testing.assert_allclose([still[name][0, 0] for name in names], alone, atol=1e-4)


def test_rejection_draws_repeated_frames_anew_and_counts_its_tokens(data, model):
    cases = choose_windows(data, CONFIG)

    def repeats(frames: np.ndarray) -> int:
        return int((frames[:, 1:] == frames[:, :-1]).all(axis=(2, 3, 4)).sum())

    # The likeliest ids repeat themselves however often they are asked for: every repeat costs all further tries.
    plain = dream(model, seed=0, temperature=0.0)(cases, range(4))
    stubborn = dream(model, seed=0, temperature=0.0, reject_repeats=True)(cases, range(4))
    assert plain.tokens == 4 * 3 * 20
    assert repeats(plain.frames) > 0
    assert stubborn.tokens == plain.tokens + repeats(plain.frames) * (MAX_TRIES - 1) * 20
    np.testing.assert_array_equal(stubborn.frames, plain.frames)
    # Random ones practically never do: nothing is drawn twice.
    random = dream(model, seed=0, temperature=1.0)(cases, range(4))
    rejecting = dream(model, seed=0, temperature=1.0, reject_repeats=True)(cases, range(4))
    assert repeats(random.frames) == 0
    assert rejecting.tokens == random.tokens
    np.testing.assert_array_equal(rejecting.frames, random.frames)


def test_rejection_keeps_what_did_not_repeat(data, model, monkeypatch):
    cases = choose_windows(data, CONFIG)
    plain = dream(model, seed=0, temperature=1.0)(cases, range(4))
    step, calls = model.step, []

    def repeating(state, actions, *, temperature):
        """At the second frame case 1 claims to repeat the first one, once."""
        later, predictions = step(state, actions, temperature=temperature)
        calls.append((len(actions), predictions.tokens.clone()))
        if len(calls) == 2:
            predictions.observations()  # decoded as drawn
            predictions.tokens[1] = calls[0][1][1]
        return later, predictions

    monkeypatch.setattr(model, "step", repeating)
    rejecting = dream(model, seed=0, temperature=1.0, reject_repeats=True)(cases, range(4))
    assert [rows for rows, _ in calls] == [4, 4, 1, 4]
    assert rejecting.tokens == plain.tokens + 20
    others = [0, 2, 3]
    assert np.abs(rejecting.frames[others].astype(int) - plain.frames[others]).max() <= 1
    assert not torch.equal(calls[2][1][0], calls[1][1][1])  # another draw of the same frame


def test_cases_are_what_they_are_alone(data, model):
    cases = choose_windows(data, CONFIG)
    """Their numbers decide their draws."""
    first = dream(model, seed=0, temperature=1.0)(cases, range(4))
    alone = dream(model, seed=0, temperature=1.0)(cases.take([2]), [2])
    assert np.abs(first.frames[2].astype(int) - alone.frames[0]).max() <= 1


def test_the_report_has_every_row_and_is_computed_once(data, model, instruments, tmp_path: Path):
    arguments = {
        **{"reject": ["tiny"], "compare": [("twin", "tiny")], "hours": {"tiny": 1.5}},
        **{"folder": tmp_path, "progress": False},
    }
    models = {"tiny": model, "twin": model}
    report = evaluate_drawer(models, data, instruments, CONFIG, **arguments)
    assert [table.name for table in report.tables] == [
        "window-1",
        "gate",
        "window-3",
        "long-1",
        "long-4",
        "headline",
        "differences",
    ]
    rows = report.table("window-3").rows
    assert list(rows) == [
        "recorded frames",
        "copy last frame",
        "tokenizer floor",
        "tiny, sampled",
        "tiny + rejection",
        "tiny, greedy",
        "twin, sampled",
        "twin, greedy",
    ]
    assert rows["tiny, sampled"]["tokens"] == 2 * 4 * 3 * 20
    assert rows["copy last frame"]["repetition"].value == 1
    assert report.manifest["training_hours"] == {"tiny": 1.5}
    long = report.table("long-4").rows
    assert list(long) == list(rows)
    assert list(report.table("long-4").to_json()["columns"]) == [  # no drawer has moved so soon
        *("repetition", "lpips", "mse", "psnr", "ssim", "gripper_cm", "drawer_mm", "following_cm"),
        *("apart_cm", "sensitivity", "n", "seed", "seconds", "tokens"),
    ]
    assert "repetition" not in report.table("long-1").to_json()["columns"]  # there is no frame before
    assert long["copy last frame"]["repetition"].value == 1
    assert long["recorded frames"]["mse"].value == 0
    assert long["recorded frames"]["ssim"].value == pytest.approx(1)
    assert long["tokenizer floor"]["mse"].value > 0
    assert long["tokenizer floor"]["tokens"] == 0
    assert long["recorded frames"]["sensitivity"].low == long["recorded frames"]["sensitivity"].high == 1
    assert long["recorded frames"]["lpips"].value == 0
    assert long["copy last frame"]["sensitivity"].value == 0
    headlines, everything = (report.table(name).rows for name in ("headline", "differences"))
    assert 0 < len(headlines) < len(everything)
    assert {name.rsplit(": ")[1] for name in headlines} <= {
        *("lpips", "repetition", "gripper_cm/moved", "drawer_mm/moved")
    }
    assert all(everything[name] == cells for name, cells in headlines.items())
    gates = report.table("gate").rows
    assert set(gates) == set(rows) - {"recorded frames", "copy last frame"}
    verdicts = {cells["verdict"] for cells in report.table("differences").rows.values()}
    assert verdicts == {"not distinguishable"}  # both are the same model
    stamps = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    again = evaluate_drawer(models, data, instruments, CONFIG, **arguments)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == stamps
    assert again.table("window-3").to_json() == report.table("window-3").to_json()
    with pytest.raises(ValueError, match="100000 windows of 3 frames"):
        choose_windows(data, DrawerTableConfig(windows=100_000, window_frames=3))


def test_differences_say_which_is_better_and_what_was_rewarded(data):
    cases = choose_windows(data, CONFIG)

    def measured(level: float) -> Row:
        names = (
            *("lpips", "mae", "mse", "psnr", "ssim"),
            *("gripper_cm", "drawer_mm", "following_cm", "repetition"),
        )
        return Row({name: np.full((4, 3), level) for name in names}, 1.0, 1)

    rows = {
        f"{name}, {mode}": measured(level)
        for name, level in (("low", 1.0), ("high", 2.0))
        for mode in ("sampled", "greedy")
    }
    rewards = {"low": FrameRewardConfig(repetition=1)}
    table = difference_table(rows, cases, [("low", "high"), ("high", "low")], rewards, seed=0).rows
    for first, second, lpips, psnr in (
        ("low", "high", "better", "worse"),
        ("high", "low", "worse", "better"),
    ):
        name = f"{first} - {second}, 3 frames, sampled"
        assert table[f"{name}: lpips"]["verdict"] == lpips
        assert table[f"{name}: psnr"]["verdict"] == psnr
        assert table[f"{name}: gripper_cm"]["rewarded"] == "no"
        assert table[f"{name}: lpips"]["rewarded"] == "yes"
        assert table[f"{name}: repetition"]["rewarded"] == ("yes" if first == "low" else "no")
    assert "low - high, 1 frame, sampled: repetition" not in table


def test_the_gate_counts_errors_against_a_copy(data):
    cases = choose_windows(data, CONFIG)
    errors = {"copy last frame": 3.0, "recorded frames": 1.0, "model, greedy": 2.0, "worse, greedy": 4.0}
    rows = {
        name: Row({metric: np.full((4, 3), level) for metric in ("gripper_cm", "drawer_mm")}, 1.0, 1)
        for name, level in errors.items()
    }
    gates = gate_table(rows, cases, seed=0).rows
    assert set(gates) == {"model, greedy", "worse, greedy"}
    for metric in ("gripper_cm", "drawer_mm"):
        assert gates["model, greedy"][metric].value == -1
        assert gates["worse, greedy"][metric].value == 1


def test_moved_cases_are_those_in_which_a_drawer_or_the_gripper_moved():
    truth = true_rollouts(6, 30, seed=1)
    cases = long_cases(truth)
    for moved, columns in ((drawer_moved, slice(7, 10)), (gripper_moved, slice(0, 3))):
        chosen, parts = moved(cases), truth.states[:, :, columns]
        assert chosen.any()
        apart = np.abs(parts[:, 1:] - parts[:, :1])
        size = apart.max(-1) if moved is drawer_moved else np.linalg.norm(apart, axis=-1)
        np.testing.assert_array_equal(chosen, size > 0.02)
