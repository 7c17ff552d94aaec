"""Supervised fine-tuning of causal language models on prompts and answers, with or without thinking before them.

Special: the loss is the mean over all answer tokens of a batch, however it is cut into smaller ones to fit into
memory: gradients are gathered piece by piece and handed to the loop (``training.fit``) as those of one loss. Held-out
examples select the weights.
Checkpoints hold what is trained, so those of adapters are small; a resumed run equals an uninterrupted one.

Absent: where answers come from (``rejection``), packing of several examples into one row, and dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.best_weights import BestWeights
from training.fit import FitConfig, fit
from training.run import Run
from training.text_data import LengthBatches
from training.trained_weights import TrainedWeights
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.json_lines import read_json_lines, warn_left_out

_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class SFTRecipe:
    """One training run.

    Attributes:
        fit: Optimisation.
        batch: Examples per step.
        microbatch: Examples per forward and backward pass; the gradient does not depend on it.
        max_length: Tokens of prompt and answer together, at most; longer examples are left out.
        validation_rows: Examples of an evaluation.
    """

    fit: FitConfig
    batch: int = 16
    microbatch: int = 1
    max_length: int = 11_384
    validation_rows: int = 256


@dataclass(frozen=True, kw_only=True)
class SFTExample:
    """What is imitated.

    Attributes:
        prompt: The question.
        target: The text that should follow.
        id: Names the turn and, up to the last ``/``, its episode.
        game: Name of the game.
    """

    prompt: str
    target: str
    id: str = ""
    game: str = ""


@dataclass(frozen=True, eq=False)
class SFTRows:
    """Examples in tokens.

    Attributes:
        prompts, targets: int32 arrays; every target ends with the end-of-text token.
        left_out: Examples that were too long.
    """

    prompts: list[np.ndarray]
    targets: list[np.ndarray]
    left_out: int

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def of(cls, lm: CausalLM, examples: Sequence[SFTExample], *, max_length: int) -> SFTRows:
        """Encode all examples.

        Raises:
            ValueError: None is left.
        """
        prompts, targets = [], []
        for example in examples:
            prompt = lm.encode(example.prompt)
            text = example.target
            # Some chat templates begin the answer's thinking themselves.
            if text.startswith(_THINK) and lm.tokenizer.decode(prompt[-8:]).rstrip().endswith(_THINK):
                text = text.removeprefix(_THINK).removeprefix("\n")
            target = [*lm.tokenizer(text, add_special_tokens=False)["input_ids"], lm.end_id]
            if len(prompt) + len(target) <= max_length:
                prompts.append(np.asarray(prompt, dtype=np.int32))
                targets.append(np.asarray(target, dtype=np.int32))
        if not targets:
            raise ValueError(
                f"none of {len(examples)} examples is left: give some, of at most {max_length} tokens (max_length)"
            )
        return cls(prompts, targets, len(examples) - len(targets))


def think_then_answer(reasoning: str | None, answer: str) -> str:
    """The text to imitate: the thinking in its marks, then the answer; the answer alone where there was none."""
    return answer if not reasoning else f"{_THINK}\n{reasoning.strip()}\n{_THOUGHT}\n\n{answer}"


def read_examples(path: str | Path) -> list[SFTExample]:
    """Examples from JSON lines with ``prompt``, ``answer`` and maybe ``reasoning``, ``id`` and ``game``.

    ``training.rejection`` writes such a file. Lines that are something else are left out, with a warning that names
    them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: No line is an example, or the archive is damaged; names the first line, or the archive.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no examples at {path}; training.rejection writes accepted.jsonl")
    broken: list[str] = []
    found = list(read_json_lines(path, _example, broken=broken))
    warn_left_out(broken)
    if not found:
        raise ValueError(f"{path} holds no example: {broken[0] if broken else 'it is empty'}")
    return found


def _example(value: Any, place: str) -> SFTExample:
    try:
        texts = {key: value[key] for key in ("prompt", "answer")}
        texts |= {key: value.get(key) or "" for key in ("reasoning", "id", "game")}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no example ({error!r}): 'prompt' and 'answer' are needed") from error
    if wrong := [key for key, text in texts.items() if not isinstance(text, str)]:
        raise ValueError(f"{wrong} must be texts")
    target = think_then_answer(texts["reasoning"], texts["answer"])
    (texts["prompt"] + target).encode()  # raises at lone surrogates, which no tokenizer takes
    return SFTExample(prompt=texts["prompt"], target=target, id=texts["id"], game=texts["game"])


def train_sft(
    run: Run, lm: CausalLM, train: SFTRows, validation: SFTRows | None, recipe: SFTRecipe, *, seed: int
) -> dict[str, float]:
    """Train ``lm`` in place, all weights that want gradients; an interrupted run goes on from its newest checkpoint.

    Returns:
        Validation metrics of the weights that it ends with: of all evaluations those with the least ``nll``. Without
        validation it ends with the last weights and says nothing.
    """
    lengths = [len(p) + len(t) for p, t in zip(train.prompts, train.targets, strict=True)]
    batches = LengthBatches(lengths, batch=recipe.batch, seed=seed)
    trained = TrainedWeights(lm)
    weights = [weight for weight in lm.parameters() if weight.requires_grad]

    def loss(step: int, generator: np.random.Generator) -> tuple[Tensor, dict[str, float | Tensor]]:
        rows = batches.rows(step)
        total = sum(len(train.targets[row]) for row in rows)
        value, gradients = torch.zeros((), device=lm.device), [torch.zeros_like(w) for w in weights]
        for first in range(0, len(rows), recipe.microbatch):
            part = answer_nll(lm, train, rows[first : first + recipe.microbatch]) / total
            found = torch.autograd.grad(part, weights, allow_unused=True)
            for kept, more in zip(gradients, found, strict=True):
                if more is not None:
                    kept += more
            value += part.detach()
        return _Gathered.apply(value, gradients, *weights), {"tokens": float(total)}

    if validation is None:
        fit(run, trained, loss, recipe.fit, seed=seed)
        return {}
    held_out = validation

    def evaluate(_: TrainedWeights) -> dict[str, float]:
        return {"nll": mean_nll(lm, held_out, count=recipe.validation_rows)}

    best = BestWeights(run, evaluate, "nll", less=True)
    fit(run, trained, loss, recipe.fit, seed=seed, evaluate=lambda: best(trained))
    return best.restore(trained)


def answer_nll(lm: CausalLM, rows: SFTRows, numbers: Sequence[int]) -> Tensor:
    """Negative log-likelihood of the answers of some rows, summed over their tokens."""
    targets = [rows.targets[row] for row in numbers]
    tokens = np.zeros((len(targets), max(map(len, targets))), dtype=np.int64)
    mask = np.zeros(tokens.shape, dtype=bool)
    for line, target in enumerate(targets):
        tokens[line, : len(target)], mask[line, : len(target)] = target, True
    logprobs, _ = lm.logprobs(
        [rows.prompts[row].tolist() for row in numbers],
        torch.from_numpy(tokens).to(lm.device),
        torch.from_numpy(mask).to(lm.device),
    )
    return -logprobs.sum()


@torch.no_grad()
def mean_nll(lm: CausalLM, rows: SFTRows, *, count: int, batch: int = 4) -> float:
    """Negative log-likelihood per answer token, over evenly spread rows."""
    chosen = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int).tolist()
    total = sum(
        float(answer_nll(lm, rows, chosen[first : first + batch])) for first in range(0, len(chosen), batch)
    )
    return total / sum(len(rows.targets[row]) for row in chosen)


class _Gathered(torch.autograd.Function):
    """A loss whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *_: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(gradient * upstream[0] for gradient in ctx.gradients))
