from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import training.evaluate as evaluate
from tests.training.tiny_pusht import alex, tiny_data, tiny_model, tiny_reader
from training.data import pose_errors, pose_of, to_float
from training.evaluate import PredictionConfig, evaluate_prediction
from training.evaluate_tables import BestOf, best_of_table, case_values, difference_table
from training.predictors import copy_last, rollout
from training.rewards.frames import FrameRewardConfig
from training.rewards.image_metrics import mse
from training.rows import Row, mean_row
from training.windows import Windows, choose_windows
from worldmodels.api import History

CONFIG = PredictionConfig(
    windows=6, horizon_steps=3, sampling_seeds=(0, 1), best_of=(1, 2, 4), best_of_windows=2
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_data(tmp_path_factory.mktemp("store"), episodes=8)


@pytest.fixture(scope="module")
def models():
    return {"base": tiny_model(seed=0), "rlvr": tiny_model(seed=1)}


@pytest.fixture(scope="module")
def report(data, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    made = evaluate_prediction(
        models,
        data,
        tiny_reader(),
        alex(),
        CONFIG,
        compare=[("rlvr", "base")],
        folder=folder,
        progress=False,
    )
    return made, folder


def some_windows(data, count=6, horizon=3):
    return choose_windows(data, count=count, history=3, horizon=horizon, seed=0)


def test_windows_are_different_and_inside_their_episodes(data):
    every = 8 * (13 - 6 + 1)
    windows = some_windows(data, every)
    assert len({(e, s) for e, s in windows.to_protocol()}) == every
    assert windows.starts.max() + 6 == 13
    assert windows.to_protocol()[:5] == some_windows(data, 5).to_protocol()
    with pytest.raises(ValueError, match=f"hold {every}; ask for fewer"):
        some_windows(data, every + 1)


def test_windows_line_up_frames_states_and_actions(data):
    windows = some_windows(data)
    row, start = int(windows.episodes[1]), int(windows.starts[1])
    episode = data.store.episode(data.ids[row])
    np.testing.assert_array_equal(
        windows.images(3, 3)[1], episode.observations["image"][start + 3 : start + 6]
    )
    np.testing.assert_array_equal(windows.states(2, 1)[1, 0], episode.info["state"][start + 2])
    np.testing.assert_array_equal(windows.actions(2, 3)[1], episode.actions[start + 2 : start + 5])
    history = windows.histories()[1]
    assert isinstance(history, History)
    np.testing.assert_array_equal(
        np.stack([o["proprio"] for o in history.observations]),
        episode.observations["proprio"][start : start + 3],
    )
    np.testing.assert_array_equal(np.stack(history.actions), episode.actions[start : start + 2])


def test_moved_is_since_the_last_history_frame(data):
    windows = some_windows(data, 40)
    now, later = windows.states(2, 1), windows.states(3, 3)
    shift = np.linalg.norm(later[..., 2:4] - now[..., 2:4], axis=-1)
    turn = np.degrees(np.abs((later[..., 4] - now[..., 4] + np.pi) % (2 * np.pi) - np.pi))
    np.testing.assert_array_equal(windows.moved(), (shift > 10) | (turn > 10))
    assert 0 < windows.moved().mean() < 1


def test_trivial_rows_have_known_numbers(report, data):
    made, _ = report
    windows = some_windows(data)
    one = made.table("picture-1").rows
    assert one["recorded frame"]["lpips"].value == pytest.approx(0, abs=1e-6)
    assert one["recorded frame"]["psnr"].value == pytest.approx(80, abs=1e-3)
    copied = mse(to_float(windows.images(2, 1)[:, 0]), to_float(windows.images(3, 1)[:, 0]))
    assert one["copy last frame"]["mse"].value == pytest.approx(float(copied.mean()), rel=1e-4)
    pose, tokens = (made.table(name).rows for name in ("pose-3", "tokens-3"))
    assert tokens["recorded frame"]["token_block_px"].value == pytest.approx(0, abs=1e-4)
    assert pose["recorded frame"]["block_px"].value > 1  # the reader is not trained
    far = pose_errors(*(pose_of(torch.from_numpy(windows.states(t, 1)[:, 0])) for t in (2, 5)))
    assert tokens["copy last frame"]["token_block_px"].value == pytest.approx(float(far[0].mean()), rel=1e-4)
    assert tokens["copy last frame"]["token_angle_deg"].value == pytest.approx(float(far[1].mean()), rel=1e-4)
    moved = windows.moved()[:, 2]
    cells = tokens["copy last frame"]["token_block_px/moved"]
    assert cells.value == pytest.approx(float(far[0][torch.from_numpy(moved)].mean()), rel=1e-4)
    assert cells.n == len({unit for unit, m in zip(windows.units, moved, strict=True) if m})
    assert made.table("picture-3").rows["copy last frame"]["repetition"].value == 1
    assert pose["tokenizer floor"]["proprio_px"].value < 2  # half a bin


def test_every_row_says_what_it_cost(report):
    made, _ = report
    rows = made.table("pose-1").rows
    assert list(rows) == [
        "recorded frame",
        "copy last frame",
        "tokenizer floor",
        *(f"{name}, {mode}" for name in ("base", "rlvr") for mode in ("sampled", "greedy")),
    ]
    assert rows["base, sampled"]["tokens"] == 2 * 6 * 3 * 8
    assert rows["base, greedy"]["tokens"] == 6 * 3 * 8
    assert rows["base, sampled"]["seed"] == "0, 1"
    episodes = len({episode for episode, _ in made.manifest["protocol"]["windows"]})
    assert all(cells["windows"] == 6 and cells["n"] == episodes for cells in rows.values())
    assert made.manifest["protocol"]["config"]["sampling_seeds"] == [0, 1]
    assert set(made.manifest["weights_sha256"]) == {"base", "rlvr", "pose reader", "LPIPS"}
    made.markdown()


def test_a_repeated_call_computes_nothing_and_gives_the_same(report, data, models, monkeypatch):
    made, folder = report
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(evaluate, "_PICTURE", None)  # measuring anything would fail
    again = evaluate_prediction(
        models,
        data,
        tiny_reader(),
        alex(),
        CONFIG,
        compare=[("rlvr", "base")],
        folder=folder,
        progress=False,
    )
    assert again.tables == made.tables
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_an_interrupted_row_goes_on(report, data, models, monkeypatch):
    made, folder = report
    lost = next(path for path in folder.iterdir() if path.name.startswith("predict-base-greedy"))
    lost.write_text(lost.read_text().splitlines(keepends=True)[0])
    measured = []
    original = evaluate.Instruments.measure

    def counting(self, answers, windows, **options):
        measured.append(len(windows))
        return original(self, answers, windows, **options)

    monkeypatch.setattr(evaluate.Instruments, "measure", counting)
    again = evaluate_prediction(
        models,
        data,
        tiny_reader(),
        alex(),
        CONFIG,
        compare=[("rlvr", "base")],
        folder=folder,
        progress=False,
    )
    assert measured == [6]
    assert (
        again.table("picture-1").rows["base, greedy"]["lpips"]
        == (made.table("picture-1").rows["base, greedy"]["lpips"])
    )


def test_scores_do_not_depend_on_the_batch(report, data, models, monkeypatch):
    made, _ = report
    monkeypatch.setattr(evaluate, "_BLOCK", 4)
    monkeypatch.setattr(evaluate, "_BEST_OF_BLOCK", 1)
    other = evaluate_prediction(models, data, tiny_reader(), alex(), CONFIG, progress=False)
    for name in ("picture-1", "pose-1", "tokens-1", "picture-3", "pose-3", "best-of-n"):
        for row, cells in made.table(name).rows.items():
            for key, cell in other.table(name).rows[row].items():
                if key != "seconds" and hasattr(cell, "value"):
                    assert cell.value == pytest.approx(cells[key].value, rel=1e-4, abs=1e-6), (name, row, key)


def test_a_rollout_is_its_single_steps(data, models):
    windows = some_windows(data, 3)
    answers = rollout(models["base"], seed=5, temperature=1.0)(windows, [0, 1, 2])
    alone = rollout(models["base"], seed=5, temperature=1.0)(windows.take([1]), [1])
    np.testing.assert_array_equal(answers.proprio[1], alone.proprio[0])
    model = models["base"]
    state = model.start(windows.histories(), seeds=evaluate.window_seeds(5, [0, 1, 2]))
    for step in range(3):
        state, predictions = model.step(state, windows.actions(2 + step, 1)[:, 0])
        np.testing.assert_array_equal(predictions.observations()["image"], answers.image[:, step])
    assert answers.tokens == 3 * 3 * 8
    np.testing.assert_array_equal(copy_last(windows, [0, 1, 2]).image[:, 2], windows.images(2, 1)[:, 0])


def test_best_of_n_takes_the_highest_reward_of_disjoint_groups():
    reward = np.array([[1.0, 3.0, 2.0, 0.0], [0.0, 1.0, 5.0, 4.0]])
    lpips = np.array([[0.1, 0.3, 0.2, 0.4], [0.5, 0.6, 0.7, 0.8]])
    table = best_of_table({"m": BestOf(reward, lpips, 8.0, 8)}, (1, 2, 4), ["a", "b"], seed=0)
    found = [table.rows[f"m, best of {n}"] for n in (1, 2, 4)]
    assert [cells["lpips"].value for cells in found] == pytest.approx([lpips.mean(), (0.25 + 0.65) / 2, 0.5])
    assert [cells["reward"].value for cells in found] == pytest.approx([2.0, (2.5 + 3) / 2, 4.0])
    assert [cells["tokens"] for cells in found] == [16, 32, 64]
    assert [cells["seconds"] for cells in found] == [2.0, 4.0, 8.0]


def test_more_samples_are_never_worse(report):
    made, _ = report
    rows = made.table("best-of-n").rows
    rewards = [rows[f"base, best of {n}"]["reward"].value for n in (1, 2, 4)]
    assert rewards == sorted(rewards)
    assert rewards[0] < rewards[2]


def rows_of(windows, **metrics):
    return Row({key: np.asarray(value, dtype=float) for key, value in metrics.items()}, 0.0, 0)


def test_differences_are_paired_and_know_which_way_is_better(data):
    windows: Windows = some_windows(data, 30, horizon=2)
    noise = np.random.default_rng(0).normal(size=(30, 2)) * 5
    base = rows_of(windows, lpips=noise, psnr=noise, block_px=noise)
    better = rows_of(windows, lpips=noise - 0.1, psnr=noise + 0.1, block_px=noise + 0.1)
    rows = {"a, sampled": better, "a, greedy": base, "b, sampled": base, "b, greedy": base}
    reward = FrameRewardConfig()
    table = difference_table(rows, windows, [("a", "b")], reward, seed=0)
    cells = {key: table.rows[f"a - b, 2 steps, sampled: {key}"] for key in ("lpips", "psnr", "block_px")}
    assert {key: of["verdict"] for key, of in cells.items()} == {
        "lpips": "better",
        "psnr": "better",
        "block_px": "worse",
    }
    assert {key: of["rewarded"] for key, of in cells.items()} == {
        "lpips": "yes",
        "psnr": "no",
        "block_px": "no",
    }
    assert cells["lpips"]["difference"].value == pytest.approx(-0.1)
    assert table.rows["a - b, 1 step, greedy: lpips"]["verdict"] == "not distinguishable"


def test_what_the_reward_decides_through_proprioception_counts_as_rewarded(data):
    windows: Windows = some_windows(data, 4, horizon=1)
    keys = ("proprio_px", "agent_px", "block_px", "lpips")
    row = rows_of(windows, **{key: np.zeros((4, 1)) for key in keys})
    rows = {f"{name}, {mode}": row for name in "ab" for mode in ("sampled", "greedy")}

    def rewarded(reward):
        table = difference_table(rows, windows, [("a", "b")], reward, seed=0)
        return {key for key in keys if table.rows[f"a - b, 1 step, sampled: {key}"]["rewarded"] == "yes"}

    assert rewarded(FrameRewardConfig()) == {"lpips"}
    with_proprio = FrameRewardConfig(lpips=0.0, proprio=1.0, proprio_scale=(1.0,) * 4)
    assert rewarded(with_proprio) == {"proprio_px", "agent_px"}


def test_pictures_are_averaged_over_steps_and_poses_are_of_the_last(data):
    windows = some_windows(data, 4)
    values = np.arange(12.0).reshape(4, 3)
    row = rows_of(windows, lpips=values, block_px=values, repetition=values, vgg=values[:2, :1])
    assert case_values(row, windows, "lpips", 3)[0].tolist() == [1, 4, 7, 10]
    assert case_values(row, windows, "block_px", 3)[0].tolist() == [2, 5, 8, 11]
    assert case_values(row, windows, "repetition", 3)[0].tolist() == [1.5, 4.5, 7.5, 10.5]
    assert case_values(row, windows, "vgg", 1)[0].tolist() == [0, 3]
    assert case_values(row, windows, "vgg", 1)[1] == windows.units[:2]
    assert case_values(row, windows, "vgg", 3) is None
    assert case_values(row, windows, "ssim", 1) is None


def test_sampling_runs_are_averaged_window_by_window(data):
    windows, values = some_windows(data, 4), np.arange(12.0).reshape(4, 3)
    runs = [Row({"lpips": values + shift}, seconds=2.0, tokens=5) for shift in (0, 2)]
    mean = mean_row(runs, (0, 1))
    np.testing.assert_array_equal(case_values(mean, windows, "lpips", 3)[0], [2, 5, 8, 11])
    assert (mean.seconds, mean.tokens, mean.seeds) == (4.0, 10, (0, 1))


def test_gates_compare_with_copying_and_with_shuffled_actions(report):
    made, _ = report
    rows = made.table("gates").rows
    assert list(rows) == ["copy last frame", "base", "rlvr"]
    assert {"changed_nll", "gap", "block-1", "angle-1"} <= set(rows["base"])
    assert "block-5" not in rows["base"]  # three steps were predicted
    assert np.isfinite(rows["base"]["gap"])


def test_the_protocol_hash_names_windows_and_settings(data, models):
    def digest(config):
        made = evaluate_prediction({}, data, tiny_reader(), alex(), config, progress=False)
        return made.manifest["protocol_sha256"]

    plain = replace(CONFIG, windows=2, best_of=())
    assert digest(plain) == digest(plain)
    assert len({digest(plain), digest(replace(plain, window_seed=1)), digest(replace(plain, windows=3))}) == 3


def test_bad_settings_are_refused(data, models):
    with pytest.raises(ValueError, match=r"best_of is \(3, 10\)"):
        PredictionConfig(best_of=(3, 10))
    with pytest.raises(ValueError, match="reward must contain LPIPS"):
        PredictionConfig(reward=FrameRewardConfig(lpips=0.0))
    arguments = (models, data, tiny_reader(), alex())
    with pytest.raises(ValueError, match=r"compare names \['x'\]"):
        evaluate_prediction(*arguments, CONFIG, compare=[("x", "base")], progress=False)
    with pytest.raises(ValueError, match="vgg is absent"):
        evaluate_prediction(*arguments, replace(CONFIG, vgg_windows=3), progress=False)
