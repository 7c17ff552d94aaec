"""A causal language model as the training loops see it: the weights that are trained, and the model before them.

Special: checkpoints hold trained weights and no others, so those of adapters are small. Where adapters are trained, the
KL reference is the same network with them switched off: no second copy in memory, and its numbers are those of a
frozen copy. The network stays in evaluation mode, as dropout would draw from torch's global generator.

Absent: adapters themselves (``lora``), tasks and losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from worldmodels.language.causal_lm import CausalLM


class TrainedWeights(nn.Module):
    """A model whose checkpoints hold the weights that are trained: those that want gradients.

    Args:
        lm: The model.
        rows_per_pass: Answers that are looked at together when gradients are wanted; what a pass computes is computed
            again going backward, so memory is that of one pass. None looks at all together, once. The gradient does
            not depend on it.

    Raises:
        ValueError: Nothing is trained, or ``rows_per_pass`` is not positive.
    """

    def __init__(self, lm: CausalLM, *, rows_per_pass: int | None = None) -> None:
        super().__init__()
        if rows_per_pass is not None and rows_per_pass < 1:
            raise ValueError(f"rows_per_pass is {rows_per_pass}; use None or at least 1")
        self.lm, self.rows_per_pass = lm.eval(), rows_per_pass
        if not self.state_dict():
            raise ValueError(
                "no weight of the model is trained: add adapters (training.lora), or unfreeze it"
            )

    def train(self, mode: bool = True) -> TrainedWeights:
        """Stays in evaluation mode."""
        super().train(False)
        return self

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """The trained weights by name."""
        return {name: weight.detach() for name, weight in self.lm.named_parameters() if weight.requires_grad}

    def load_state_dict(self, state_dict: Any, *_: Any, **__: Any) -> Any:
        """Replace the trained weights.

        Raises:
            ValueError: The names or shapes are others.
        """
        own = self.state_dict()
        differing = sorted(own.keys() ^ state_dict.keys())
        differing += [
            name for name in own.keys() & state_dict.keys() if own[name].shape != state_dict[name].shape
        ]
        if differing:
            raise ValueError(
                f"the checkpoint is of other weights than are trained now; they differ in {differing[:5]}"
            )
        for name, weight in own.items():  # detached, but the same memory
            weight.copy_(state_dict[name])

    def logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: Tensor,
        mask: Tensor,
        *,
        temperature: float = 1.0,
        with_entropies: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``CausalLM.logprobs``."""
        if self.rows_per_pass is None:
            return self.lm.logprobs(
                prompts, tokens, mask, temperature=temperature, with_entropies=with_entropies
            )
        group = len(tokens) // len(prompts)
        asked = [prompts[row // group] for row in range(len(tokens))]

        def one(first: int) -> tuple[Tensor, Tensor | None]:
            rows = slice(first, first + self.rows_per_pass)  # type: ignore[operator]
            return self.lm.logprobs(
                asked[rows],
                tokens[rows],
                mask[rows],
                temperature=temperature,
                with_entropies=with_entropies,
            )

        parts = [
            checkpoint(one, first, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else one(first)
            for first in range(0, len(tokens), self.rows_per_pass)
        ]
        entropies = [part[1] for part in parts if part[1] is not None]
        return torch.cat([part[0] for part in parts]), torch.cat(entropies) if entropies else None


class BeforeTraining(nn.Module):
    """The model of some trained adapters with these switched off: the frozen reference of a KL.

    Args:
        trained: Has adapters, and no trained weight outside of them.

    Raises:
        ValueError: It has none, or trains more than them.
    """

    def __init__(self, trained: TrainedWeights) -> None:
        super().__init__()
        names = list(trained.state_dict())
        if not hasattr(trained.lm.net, "disable_adapter") or not all("lora_" in name for name in names):
            raise ValueError("weights that are no adapters are trained; the reference must be a frozen copy")
        self._trained = (trained,)  # in a tuple: not a part of this module

    def logprobs(self, *arguments: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
        """See ``CausalLM.logprobs``; without gradients."""
        (trained,) = self._trained
        off: AbstractContextManager[Any] = trained.lm.net.disable_adapter()
        with torch.no_grad(), off:
            return trained.logprobs(*arguments, **settings)


def reference_of(trained: TrainedWeights) -> BeforeTraining | None:
    """The reference that needs no copy, or None where there are no adapters to switch off."""
    return BeforeTraining(trained) if hasattr(trained.lm.net, "disable_adapter") else None
