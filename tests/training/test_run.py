import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from training.provenance import hardware
from training.run import (
    Run,
    RunInterrupted,
    Snapshot,
    flatten_optimiser,
    read_metrics,
    restore_optimiser,
    to_json,
    write_text,
)


@dataclass(frozen=True)
class Config:
    learning_rate: float = 1e-3
    sizes: tuple[int, ...] = (1, 2)


def snapshot(value: float) -> Snapshot:
    return Snapshot(tensors={"model": {"w": torch.tensor([value])}}, state={"value": value})


def test_the_manifest_records_what_was_asked_and_on_what(tmp_path):
    run = Run(tmp_path / "deep" / "run", Config(), 7, data_hash="abc")
    run.note(test_read_at=np.int64(3))
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["config"] == {"learning_rate": 1e-3, "sizes": [1, 2]}
    assert (manifest["seed"], manifest["data_hash"]) == (7, "abc")
    assert manifest["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert manifest["hardware"]["cpus"] == os.cpu_count()
    assert manifest["notes"] == {"test_read_at": 3}


def test_a_folder_is_not_overwritten_and_resuming_names_what_differs(tmp_path):
    Run(tmp_path, Config(), 7, data_hash="abc")
    with pytest.raises(FileExistsError, match="resume=True"):
        Run(tmp_path, Config(), 7, data_hash="abc")
    with pytest.raises(ValueError, match=r"config.learning_rate was 0.001, now 0.1; seed was 7, now 8"):
        Run(tmp_path, replace(Config(), learning_rate=0.1), 8, data_hash="abc", resume=True)
    with pytest.raises(ValueError, match="data_hash was 'abc', now None"):
        Run(tmp_path, Config(), 7, resume=True)
    with pytest.raises(ValueError, match=r"config.sizes was \[1, 2\], now '\(absent\)'; config.new was"):
        Run(tmp_path, {"learning_rate": 1e-3, "new": 1}, 7, data_hash="abc", resume=True)
    assert len(Run(tmp_path, Config(), 7, data_hash="abc", resume=True).manifest["resumed"]) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write to the run folder"):
        Run(tmp_path / "file" / "run", Config(), 0)


def test_checkpoints_come_back_exactly_and_two_are_kept(tmp_path):
    run = Run(tmp_path, Config(), 0)
    assert run.load() is None
    shared = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    tensors = {"model": {"a": shared, "tied": shared, "view": shared.T, "n": torch.tensor(3)}, "empty": {}}
    for step in (5, 10, 15):
        run.save(step, Snapshot(tensors=tensors, state={"step_size": 0.1 + 0.2, "nested": {"x": [1, None]}}))
    assert [path.name for path in run.checkpoints()] == ["step-00000010", "step-00000015"]
    step, loaded = run.load()
    assert step == 15
    assert loaded.state == {"step_size": 0.1 + 0.2, "nested": {"x": [1, None]}}
    assert loaded.tensors["empty"] == {}
    for name, tensor in tensors["model"].items():
        assert torch.equal(loaded.tensors["model"][name], tensor)
    assert not list(Path(tmp_path).rglob("*.pt")) + list(Path(tmp_path).rglob("*.pkl"))


def test_a_half_written_checkpoint_is_ignored_and_replaced(tmp_path):
    run = Run(tmp_path, Config(), 0)
    run.save(1, snapshot(1.0))
    partial = tmp_path / "checkpoints" / ".partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    assert run.load()[0] == 1
    run.save(2, snapshot(2.0))
    assert run.load()[1].state == {"value": 2.0}
    assert not partial.exists()


def test_a_damaged_checkpoint_is_named_and_the_one_before_can_be_used(tmp_path):
    run = Run(tmp_path, Config(), 0)
    run.save(1, snapshot(1.0))
    newest = run.save(2, snapshot(2.0))
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:20])
    with pytest.raises(ValueError, match=r"step-00000002 is damaged.*remove that folder"):
        run.load()
    shutil.rmtree(newest)
    assert run.load()[0] == 1


def test_the_recorded_command_names_no_folder_outside(monkeypatch):
    words = [
        "/a/bin/rlvr-world",
        "train",
        "x",
        "--data",
        "/a/b/pusht",
        "--folder=../c/run",
        "--base",
        "runs/d",
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert hardware()["command"] == [
        *("rlvr-world", "train", "x", "--data", "pusht", "--folder=run", "--base", "runs/d")
    ]


def test_a_torn_last_line_of_the_log_is_left_out_but_a_broken_middle_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2, "los')
    assert read_metrics(path) == [{"step": 0}, {"step": 1}]
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)
    assert read_metrics(tmp_path / "absent") == []


def test_loading_cuts_the_log_back_to_the_checkpoint(tmp_path):
    run = Run(tmp_path, Config(), 0)
    for step in range(5):
        run.log(step, {"loss": np.float32(step)})
        if step == 2:
            run.save(3, snapshot(0.0))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    again = Run(tmp_path, Config(), 0, resume=True)
    again.load()
    again.log(3, {"loss": 9.0})
    assert again.metrics() == [{"step": i, "loss": i} for i in range(3)] + [{"step": 3, "loss": 9.0}]


def test_the_loop_logs_every_step_and_saves_at_intervals_and_at_the_end(tmp_path):
    run = Run(tmp_path, Config(), 0)
    saved = []
    state = {"done": 0}

    def body(step):
        state["done"] = step + 1
        return {"square": step**2}

    def take():
        saved.append(state["done"])
        return snapshot(state["done"])

    run.loop(7, body, take, checkpoint_every=3)
    assert saved == [3, 6, 7]
    assert [line["square"] for line in run.metrics()] == [step**2 for step in range(7)]
    run.loop(7, body, take, first=7)
    assert saved == [3, 6, 7]
    with pytest.raises(ValueError, match="checkpoint_every is 0"):
        run.loop(7, body, take, checkpoint_every=0)


def test_the_first_interrupt_finishes_the_step_and_the_second_stops_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    run = Run(tmp_path / "one", Config(), 0)
    finished = []

    def once(step):
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        finished.append(step)
        return {}

    with pytest.raises(RunInterrupted, match=r"after step 2 of 9.*step-00000002"):
        run.loop(9, once, lambda: snapshot(2.0), checkpoint_every=100)
    assert finished == [0, 1]
    assert run.load()[0] == 2
    assert signal.getsignal(signal.SIGINT) is before

    def twice(step):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt) as stopped:
        Run(tmp_path / "two", Config(), 0).loop(9, twice, lambda: snapshot(0.0))
    assert not isinstance(stopped.value, RunInterrupted)
    assert signal.getsignal(signal.SIGINT) is before


OPTIMISERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "Adam in two groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}]),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_go_on_exactly_after_a_trip_through_the_disk(name, tmp_path):
    def model_and_optimiser():
        model = torch.nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        return model, OPTIMISERS[name](list(model.parameters()))

    def steps(model, optimiser, count):
        for i in range(count):
            optimiser.zero_grad()
            (model(torch.full((1, 3), i + 0.5)) ** 2).sum().backward()
            optimiser.step()

    straight, straight_optimiser = model_and_optimiser()
    steps(straight, straight_optimiser, 3)
    tensors, extra = flatten_optimiser(straight_optimiser)
    run = Run(tmp_path, Config(), 0)
    run.save(3, Snapshot(tensors={"model": straight.state_dict(), "optimiser": tensors}, state=extra))
    steps(straight, straight_optimiser, 3)

    resumed, resumed_optimiser = model_and_optimiser()
    _, loaded = run.load()
    resumed.load_state_dict(loaded.tensors["model"])
    restore_optimiser(resumed_optimiser, loaded.tensors["optimiser"], loaded.state)
    steps(resumed, resumed_optimiser, 3)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    other = OPTIMISERS[name](list(torch.nn.Sequential(straight, torch.nn.Linear(2, 2)).parameters()))
    with pytest.raises(ValueError, match="resume with the model that was trained"):
        restore_optimiser(other, loaded.tensors["optimiser"], loaded.state)


def test_values_without_a_json_form_are_named():
    assert to_json({"a": (1, np.float64(0.5), torch.tensor(2)), "p": Path("x")}) == {
        "a": [1, 0.5, 2],
        "p": "x",
    }
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json({"a": object()})


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
