"""Causal language models in folders of the Hugging Face layout: read strictly, written whole or not at all.

Special: weights come from safetensors files only, no code comes with them, and a weight that is missing or left over
is an error: ``transformers`` would go on with random numbers. The tokenizer is ``tokenizer.json`` as it is.

Absent: adapters (merge them first), quantised weights, and this project's own checkpoint format (``folders``).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from worldmodels.language.causal_lm import CausalLM

CARD = "README.md"  # what hubs show as a model's card


def load_causal_lm(name: str | Path, *, dtype: torch.dtype = torch.float32, **settings: Any) -> CausalLM:
    """A model on torch's default device, in evaluation mode.

    Args:
        name: A folder, or a hub id ``owner/name`` (downloaded once, then cached).
        dtype: Of the weights in memory.
        **settings: As for ``CausalLM``.

    Raises:
        FileNotFoundError: Nothing of that name, or no safetensors files in it.
        ValueError: Weights are missing, left over or of another shape, or they want code of their own.
    """
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        tokenizer = _load_tokenizer(str(name))
        net, info = load(str(name), use_safetensors=True, output_loading_info=True, trust_remote_code=False)
    except OSError as error:
        raise FileNotFoundError(
            f"cannot load a language model from {str(name)!r}: give a folder with config.json, a tokenizer and "
            f"safetensors files, or a hub id. {str(error).splitlines()[0]}"
        ) from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if keys := sorted(map(str, info[what])):
            raise ValueError(
                f"{str(name)!r} does not fit its config: {what.replace('_', ' ')} {keys[:5]} ({len(keys)} in all)"
            )
    return CausalLM(net.to(torch.get_default_device(), dtype).eval(), tokenizer, **settings)


def save_causal_lm(folder: str | Path, lm: CausalLM, *, card: str) -> Path:
    """Write network, tokenizer and card; an existing folder is replaced.

    Raises:
        ValueError: The network has adapters around it, which must be merged first.
    """
    if hasattr(lm.net, "peft_config"):
        raise ValueError(
            "the network has adapters; merge them (training.lora.merge_lora) before saving it whole"
        )
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    lm.net.save_pretrained(partial)
    lm.tokenizer.save_pretrained(partial)
    (partial / CARD).write_text(card, encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


def _load_tokenizer(name: str) -> Any:
    """``tokenizer.json`` as it is: ``AutoTokenizer`` may cut texts by the rules of the model's family instead."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import cached_file

    if cached_file(name, "tokenizer.json", _raise_exceptions_for_missing_entries=False) is None:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    return PreTrainedTokenizerFast.from_pretrained(name)
