"""Who draws the answers of a rollout: the model that is trained, or vLLM with its adapters where that is installed.

Special: an engine gives tokens only. Their log-probabilities are those of the trained model, whoever drew them, so the
first ratio of a policy step is 1 and rounding in another engine moves no gradient.

Absent: prompts, rewards, and engines on other machines.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from training.vllm_engine import VLLMEngine
from worldmodels.language.causal_lm import CausalLM


class TextEngine(Protocol):
    """Draws answers."""

    @property
    def name(self) -> str:
        """For the manifest: a run is resumed with the engine that it was started with."""
        ...

    def __call__(
        self,
        lm: CausalLM,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Tensor,
        num_samples: int,
        temperature: float,
        max_new_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        """Tokens and mask of the answers, as in ``worldmodels.language.causal_lm.LMAnswers``."""
        ...


class OwnEngine:
    """The model answers itself (``CausalLM.answer``), on any device."""

    name = "transformers"

    def __call__(
        self,
        lm: CausalLM,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Tensor,
        num_samples: int,
        temperature: float,
        max_new_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        """See ``TextEngine``."""
        said = lm.answer(
            prompts,
            seeds=seeds,
            num_samples=num_samples,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )
        return said.tokens, said.mask


def best_engine(lm: CausalLM, model: str | Path) -> TextEngine:
    """VLLM where it is installed, on a GPU, for a model with adapters; otherwise the model itself.

    Args:
        lm: Asks.
        model: Folder or hub id of its weights without adapters.
    """
    if importlib.util.find_spec("vllm") and lm.device.type == "cuda" and hasattr(lm.net, "peft_config"):
        return VLLMEngine(model, rank=max(adapter.r for adapter in lm.net.peft_config.values()))
    return OwnEngine()
