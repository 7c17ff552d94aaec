"""Held-out selection: of all evaluations of a run, keep the weights with the best validation metric.

Special: metrics and weights are one file that appears when it is whole, so an interrupted and resumed run selects what
an uninterrupted one does; of equal values the first stays.

Absent: test data, and stopping early.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from training.run import Run

_FILE = "best.safetensors"


class BestWeights:
    """An evaluation that remembers; give it to ``training.grpo_task.train_task`` as ``evaluate``.

    Args:
        run: Whose folder keeps the file.
        evaluate: Validation metrics of a model.
        metric: The one that decides.
        less: Whether less of it is better, as of a loss.
    """

    def __init__(
        self, run: Run, evaluate: Callable[[Any], Mapping[str, float]], metric: str, *, less: bool = False
    ) -> None:
        self.path = run.folder / _FILE
        self._evaluate, self._metric, self._sign = evaluate, metric, -1 if less else 1

    @property
    def metrics(self) -> dict[str, float] | None:
        """What the best evaluation so far found; None before the first."""
        if not self.path.exists():
            return None
        with safe_open(self.path, framework="pt") as file:
            found: dict[str, float] = json.loads(file.metadata()["metrics"])
        return found

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """Evaluate, and keep the weights if they are better than all before.

        Raises:
            KeyError: The evaluation has no such metric.
        """
        metrics = self._evaluate(model)
        value, best = self._sign * metrics[self._metric], self.metrics
        if best is None or value > self._sign * best[self._metric]:
            partial = self.path.with_name(_FILE + ".partial")
            weights = {
                name: weight.detach().cpu().contiguous() for name, weight in model.state_dict().items()
            }
            save_file(weights, partial, metadata={"metrics": json.dumps(dict(metrics))})
            os.replace(partial, self.path)
        return metrics

    def restore(self, model: nn.Module) -> dict[str, float]:
        """Give a model the best weights; what their evaluation found.

        Raises:
            FileNotFoundError: There was no evaluation.
        """
        metrics = self.metrics
        if metrics is None:
            raise FileNotFoundError(f"no {self.path}: nothing was evaluated, so nothing can be selected")
        model.load_state_dict(load_file(self.path))
        return metrics
