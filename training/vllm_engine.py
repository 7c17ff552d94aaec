"""Rollouts through vLLM: the base weights are loaded once, and each call hands over the adapters as they are now.

Written after vLLM's documented interface (``LLM.generate`` with token prompts and a ``LoRARequest``) and tested only
against a stand-in: this project has had no machine with vLLM to run it on. It shares the GPU with training
(``memory_share``). Draws are functions of the seeds as far as vLLM's are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.lora import save_adapter
from worldmodels.language.causal_lm import CausalLM


class VLLMEngine:
    """See ``training.text_engines.TextEngine``.

    Raises:
        ImportError: vLLM is not installed.
    """

    name = "vllm"

    def __init__(self, model: str | Path, *, rank: int, memory_share: float = 0.4) -> None:
        try:
            import vllm
            from vllm.lora.request import LoRARequest
        except ImportError as error:
            raise ImportError("vLLM is not installed: pip install vllm, or use OwnEngine") from error
        self._settings, self._request, self._calls = vllm.SamplingParams, LoRARequest, 0
        sizes = {"max_lora_rank": rank, "max_loras": 1, "gpu_memory_utilization": memory_share}
        self._llm: Any = vllm.LLM(model=str(model), enable_lora=True, **sizes)

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
        """Tokens and mask ``(R, N)``."""
        common = {"temperature": temperature, "max_tokens": max_new_tokens, "stop_token_ids": [*lm.end_ids]}
        settings = [self._settings(seed=seed, detokenize=False, **common) for seed in seeds.tolist()]
        asked = [{"prompt_token_ids": [*prompt]} for prompt in prompts for _ in range(num_samples)]
        self._calls += 1  # vLLM keeps adapters by number
        with tempfile.TemporaryDirectory() as folder:
            adapter = self._request("now", self._calls, str(save_adapter(Path(folder) / "now", lm)))
            said = [one.outputs[0] for one in self._llm.generate(asked, settings, lora_request=adapter)]
        rows = [list(one.token_ids) for one in said]
        mask = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.bool, device=lm.device)
        tokens = torch.zeros_like(mask, dtype=torch.int64)
        for place, row in enumerate(rows):
            mask[place, : len(row)], tokens[place, : len(row)] = True, torch.tensor(row, device=lm.device)
        return tokens, mask
