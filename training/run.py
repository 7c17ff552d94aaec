"""One training run in one folder: what was asked for, what happened, and where to go on from.

```
runs/<name>/manifest.json                            config, seed, data hash, versions, hardware; first of all
runs/<name>/metrics.jsonl                            one line per step
runs/<name>/checkpoints/step-00000100/state.json     step, the caller's numbers, and the names of the parts
runs/<name>/checkpoints/step-00000100/<part>.safetensors
```

Special: a checkpoint is complete or absent (written beside, then renamed), never a pickle
(:func:`flatten_optimiser` turns optimiser state into tensors and JSON), and resuming gives the numbers of a
run that was never stopped: the log is cut back to the checkpoint, so nothing is counted twice. A crash loses
at most the steps since the last checkpoint.

Absent on purpose: git, logging services, and anything that knows what is being trained.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from training.provenance import hardware, now, versions

logger = logging.getLogger(__name__)

Tensors = Mapping[str, Tensor]

_KEPT_CHECKPOINTS = 2  # the one before the newest is a spare for a damaged disk


class RunInterrupted(KeyboardInterrupt):
    """The user stopped a run; its state is saved and the message says where."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that is needed to go on.

    Attributes:
        tensors: State dicts by part, for example ``{"model": ..., "optimiser": ...}``; one file each.
        state: Numbers, texts, lists and dicts of those (JSON).
    """

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any] = field(default_factory=dict)


class Run:
    """A run folder.

    Args:
        folder: Where to write, for example ``runs/pusht-grpo``; made if absent.
        config: A dataclass or a mapping, JSON-like; compared when resuming.
        seed: The run's seed; compared when resuming.
        data_hash: Identifies the training data; compared when resuming.
        resume: Go on from the newest checkpoint if the folder holds this run; start it if the folder is
            empty.

    Raises:
        FileExistsError: The folder holds a run and ``resume`` is False.
        ValueError: Resuming with another config, seed or data; names the differing keys.
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        config: Any,
        seed: int,
        *,
        data_hash: str | None = None,
        resume: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._manifest_path = self.folder / "manifest.json"
        self._metrics_path = self.folder / "metrics.jsonl"
        self._checkpoints = self.folder / "checkpoints"
        try:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".write-test-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise type(error)(
                error.errno,
                f"cannot write to the run folder {self.folder} ({error.strerror}): give one you may write to",
            ) from error
        asked = {"config": to_json(config), "seed": seed, "data_hash": data_hash}
        if self._manifest_path.exists():
            if not resume:
                raise FileExistsError(
                    f"{self.folder} already holds a run: pass resume=True, or choose another folder"
                )
            self.manifest = json.loads(self._manifest_path.read_text(encoding="utf-8"))
            if differences := _differences(self.manifest, asked):
                raise ValueError(
                    f"cannot resume {self.folder} with other settings: {'; '.join(differences)}."
                    " Use the recorded ones, or start a new run in another folder"
                )
            self.manifest["resumed"].append(now())
        else:
            self.manifest = {
                **asked,
                "started": now(),
                "resumed": [],
                "versions": versions(),
                "hardware": hardware(),
            }
        write_json(self._manifest_path, self.manifest)

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest, for example when the test split was read."""
        self.manifest.setdefault("notes", {}).update(to_json(facts))
        write_json(self._manifest_path, self.manifest)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line ``{"step": ..., **metrics}`` to ``metrics.jsonl``."""
        line = json.dumps({"step": step, **to_json(metrics)}) + "\n"
        with self._metrics_path.open("a", encoding="utf-8") as file:
            file.write(line)

    def metrics(self) -> list[dict[str, Any]]:
        """All logged lines."""
        return read_metrics(self._metrics_path)

    def save(self, step: int, snapshot: Snapshot) -> Path:
        """Write a checkpoint of the state after ``step`` steps; returns its folder. Keeps the two newest."""
        final = self._checkpoints / f"step-{step:08d}"
        partial = self._checkpoints / ".partial"
        shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
        partial.mkdir()
        for part, tensors in snapshot.tensors.items():
            # safetensors refuses shared memory (tied weights) and views: store plain copies.
            plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
            save_file(plain, partial / f"{part}.safetensors")
            with (partial / f"{part}.safetensors").open("rb") as file:
                os.fsync(file.fileno())
        state = {"step": step, "parts": sorted(snapshot.tensors), "state": to_json(snapshot.state)}
        write_json(partial / "state.json", state)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in self.checkpoints()[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        return final

    def checkpoints(self) -> list[Path]:
        """Folders of complete checkpoints, oldest first."""
        return sorted(path for path in self._checkpoints.glob("step-*") if (path / "state.json").exists())

    def load(self) -> tuple[int, Snapshot] | None:
        """The newest checkpoint as (steps done, snapshot), or None. Cuts the log back to it.

        Raises:
            ValueError: The checkpoint is damaged; names it and what to do.
        """
        if not self.checkpoints():
            self._cut_log(0)
            return None
        newest = self.checkpoints()[-1]
        try:
            content = json.loads((newest / "state.json").read_text(encoding="utf-8"))
            tensors = {part: load_file(newest / f"{part}.safetensors") for part in content["parts"]}
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"the checkpoint {newest} is damaged ({error}): remove that folder and resume from the one before"
            ) from error
        self._cut_log(content["step"])
        return content["step"], Snapshot(tensors=tensors, state=content["state"])

    def loop(
        self,
        steps: int,
        body: Callable[[int], Mapping[str, Any]],
        snapshot: Callable[[], Snapshot],
        *,
        first: int = 0,
        checkpoint_every: int = 50,
    ) -> None:
        """Run ``body(step)`` for step = first .. steps-1, log what it returns, and write checkpoints.

        Ctrl-C lets the step finish, saves and raises :class:`RunInterrupted`; a second Ctrl-C stops at once.

        Args:
            steps: Total number of steps of the run.
            body: Does one step and returns its metrics; a step with none is not logged.
            snapshot: The state after the last finished step.
            first: Steps already done (what :meth:`load` returned).
            checkpoint_every: Steps between checkpoints; the last step is always saved.
        """
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every is {checkpoint_every}; it must be at least 1")
        bar = tqdm(
            total=steps, initial=first, desc=self.folder.name, unit="step", disable=None, dynamic_ncols=True
        )
        with _finish_step_on_interrupt() as interrupted, bar:
            for step in range(first, steps):
                if metrics := body(step):
                    self.log(step, metrics)
                bar.update()
                done, stop = step + 1, interrupted.is_set()
                if done % checkpoint_every == 0 or done == steps or stop:
                    where = self.save(done, snapshot())
                    logger.info("step %d of %d saved in %s", done, steps, where)
                if stop and done < steps:
                    raise RunInterrupted(
                        f"stopped after step {done} of {steps}; saved in {where}; resume to go on"
                    )

    def _cut_log(self, steps_done: int) -> None:
        """Drop what was logged by steps that the checkpoint does not contain."""
        kept = [line for line in self.metrics() if line.get("step", -1) < steps_done]
        write_text(self._metrics_path, "".join(json.dumps(line) + "\n" for line in kept))


def flatten_optimiser(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors named ``"<parameter index>.<name>"``, plus JSON for the rest."""
    content = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in content["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = to_json(value)
    return tensors, {"groups": to_json(content["param_groups"]), "numbers": numbers}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Tensors, extra: Mapping[str, Any]) -> None:
    """Inverse of :func:`flatten_optimiser` on an optimiser over the same parameters.

    Raises:
        ValueError: The optimiser has other parameter groups than the saved one.
    """
    current, saved = optimiser.state_dict()["param_groups"], extra["groups"]
    if [group["params"] for group in current] != [group["params"] for group in saved]:
        raise ValueError(
            f"the saved optimiser holds {[len(g['params']) for g in saved]} parameters by group, this one"
            f" {[len(g['params']) for g in current]}: resume with the model that was trained"
        )
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in extra["numbers"].items()
    }
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    # JSON turns tuples (Adam's betas) into lists: take the kind from the fresh optimiser.
    groups = [
        {key: tuple(value) if isinstance(fresh.get(key), tuple) else value for key, value in group.items()}
        for group, fresh in zip(saved, current, strict=True)
    ]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``; a torn last line (killed while writing) is left out.

    Raises:
        ValueError: A line other than the last is not JSON.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                logger.warning("%s: left out the torn last line", path)
                break
            raise ValueError(
                f"{path} line {number} is not JSON ({error}): repair or remove that line"
            ) from error
    return entries


def to_json(value: Any) -> Any:
    """Dataclasses, tuples, paths and NumPy or torch scalars as plain JSON values.

    Raises:
        TypeError: The value has no JSON form.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry) for entry in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        return value.item()  # a scalar of NumPy or torch; raises for more than one element
    raise TypeError(
        f"{value!r} of type {type(value).__name__} has no JSON form; use numbers, texts, lists or dicts"
    )


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one move, so that a reader or a crash never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, content: Any) -> None:
    """:func:`write_text` of indented JSON."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextmanager
def _finish_step_on_interrupt() -> Iterator[threading.Event]:
    """The event is set by the first Ctrl-C; the second is an ordinary KeyboardInterrupt."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # only the main thread may handle signals
        return
    previous = signal.getsignal(signal.SIGINT)

    def handle(*_: Any) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning("stopping after this step; press Ctrl-C again to stop now and lose it")

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def _differences(recorded: Any, asked: Any, where: str = "") -> list[str]:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        keys = asked if not where else {**recorded, **asked}  # the manifest holds more than what was asked
        missing = "(absent)"
        return [
            difference
            for key in keys
            for difference in _differences(
                recorded.get(key, missing), asked.get(key, missing), f"{where}.{key}"
            )
        ]
    return [] if recorded == asked else [f"{where.lstrip('.')} was {recorded!r}, now {asked!r}"]
