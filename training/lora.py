"""Low-rank adapters (LoRA) around causal language models, through the ``peft`` library.

Special: initial adapters are a function of the seed. Adapters are saved alone and loaded strictly, or merged into the
weights, after which the model is an ordinary one again (``worldmodels.language.causal_lm_files``).

Absent on purpose: dropout, which would draw from torch's global generator and make resumed runs differ, and other
kinds of adapters.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from worldmodels.language.causal_lm import CausalLM

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class LoRASettings:
    """Size and place of the adapters; defaults are the published ones.

    Attributes:
        rank: Of the two factors.
        alpha: Their product counts ``alpha / rank``.
        targets: Which linear layers get one: names, or ``"all-linear"`` for all but the output layer.
    """

    rank: int = 32
    alpha: int = 16
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(f"rank is {self.rank} and alpha {self.alpha}; both must be positive")


def add_lora(lm: CausalLM, settings: LoRASettings, *, seed: int) -> None:
    """Freeze the network and put fresh adapters around it, in place; they change no output yet.

    Raises:
        ImportError: ``peft`` is not installed.
        ValueError: There are adapters already, or no layer of the given names.
    """
    peft = _peft()
    _check_bare(lm)
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Inside the fork only: peft draws from the global generator.
        torch.manual_seed(seed)
        lm.net = peft.get_peft_model(lm.net, config)
    lm.eval()


def merge_lora(lm: CausalLM) -> None:
    """Add the adapters to the weights that they belong to, in place, if there are any."""
    if hasattr(lm.net, "peft_config"):
        lm.net = lm.net.merge_and_unload().requires_grad_(True)
        lm.eval()


def save_adapter(folder: str | Path, lm: CausalLM) -> Path:
    """Write the adapters alone in peft's layout; an existing folder is replaced.

    Raises:
        ValueError: There are none.
    """
    if not hasattr(lm.net, "peft_config"):
        raise ValueError("the network has no adapters; save it whole (causal_lm_files.save_causal_lm)")
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    lm.net.save_pretrained(partial)  # makes the folder
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


def load_adapter(folder: str | Path, lm: CausalLM) -> None:
    """Put the adapters of a folder in peft's layout around the network that they were made for, in place.

    They can be trained further, merged, or left as they are.

    Raises:
        FileNotFoundError: The folder holds no adapters in safetensors.
        ImportError: ``peft`` is not installed.
        ValueError: There are adapters already, or these are for another network; names weights that do not fit.
    """
    peft = _peft()
    folder = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} has no {name}; adapters are {_CONFIG} and {_WEIGHTS}")
    _check_bare(lm)
    saved = load_file(folder / _WEIGHTS)
    config = peft.PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False  # peft writes True, and would freeze the adapters
    with torch.random.fork_rng(devices=[]):  # peft draws weights before it replaces them
        net = peft.get_peft_model(lm.net, config)
    own = peft.get_peft_model_state_dict(net)
    wrong = sorted(own.keys() ^ saved.keys())
    wrong += [name for name in own.keys() & saved.keys() if own[name].shape != saved[name].shape]
    if wrong:
        net.unload()
        raise ValueError(
            f"{folder} holds adapters for another network: {wrong[:3]} ({len(wrong)}) do not fit"
        )
    peft.set_peft_model_state_dict(net, saved)
    lm.net = net
    lm.eval()


def _check_bare(lm: CausalLM) -> None:
    if hasattr(lm.net, "peft_config"):
        raise ValueError("the network has adapters already; merge them first (merge_lora)")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ImportError(
            "adapters need the package peft: pip install 'rlvr-world-envs[llm]', or train all weights (lora=None)"
        ) from error
    return peft
