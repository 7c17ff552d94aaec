"""The released RT-1 checkpoints, as they are: transformers in Hugging Face's layout, tokenizers in diffusers'.

Special: the files say neither which token layout they were trained with nor the ranges of actions. The first
follows from the tokenizer and is held against the transformer's vocabulary, the second is RT-1's. Nothing is
unpickled; every key and shape must match; half precision becomes float32.

Absent: finding and downloading (``checkpoints``), transformers whose head is tied to the embeddings, weights
in several files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.nets.weights import fill, read_tensors
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.frame_tokenizer import FrameTokenizer
from worldmodels.video.layouts import MultiStepLayout, SingleStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW
from worldmodels.video.single_step_world import SingleStepWorldModel

IMAGE_SIZE = (256, 320)
RT1_BINS = ActionBins(low=RT1_LOW.tolist(), high=RT1_HIGH.tolist(), num_bins=256)
COMPRESSIVE_TOKENIZER, FRAME_TOKENIZER = "thuml/rt1-compressive-tokenizer", "thuml/rt1-frame-tokenizer"

_WEIGHTS = "model.safetensors"
_TEXT_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_TOKENIZERS: dict[str, Callable[[Path], CompressiveTokenizer | FrameTokenizer]] = {
    "CompressiveVQModelFSQ": CompressiveTokenizer.from_folder,
    "CNNFSQModel256": FrameTokenizer.from_folder,
}


def is_released_tokenizer(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a diffusers model."""
    return "_class_name" in config


def is_released_transformer(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a Hugging Face model, and not ours."""
    return "model_type" in config and "kind" not in config


def is_language_model(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a Hugging Face model speaks: the released RT-1 transformers come without a tokenizer of texts."""
    return is_released_transformer(config) and any((folder / name).exists() for name in _TEXT_TOKENIZERS)


def load_released_tokenizer(folder: Path, config: Mapping[str, Any]) -> CompressiveTokenizer | FrameTokenizer:
    """A tokenizer, computing in float32.

    Raises:
        FileNotFoundError: There are no weights.
        ValueError: Another model, damaged weights, or a key that is missing, unexpected or of another shape.
    """
    name = config["_class_name"]
    if name not in _TOKENIZERS:
        raise ValueError(f"{folder} holds a {name!r}; known are {', '.join(_TOKENIZERS)}")
    return _TOKENIZERS[name](folder)


def tokenizer_wanted(folder: Path, config: Mapping[str, Any]) -> ValueError:
    """The error for a transformer that was given without its tokenizer."""
    known = {
        MultiStepLayout().vocab_size: COMPRESSIVE_TOKENIZER,
        SingleStepLayout().vocab_size: FRAME_TOKENIZER,
    }
    name = known.get(config.get("vocab_size", 0))
    which = repr(name) if name else f"{COMPRESSIVE_TOKENIZER!r} (multi-step) or {FRAME_TOKENIZER!r}"
    return ValueError(
        f"{folder} holds a transformer alone; give tokenizer=, the name or folder of the tokenizer that it was "
        f"trained with, here {which}"
    )


def load_released_world(
    folder: Path, config: Mapping[str, Any], tokenizer: CompressiveTokenizer | FrameTokenizer
) -> MultiStepWorldModel | SingleStepWorldModel:
    """A multi-step world model for a compressive tokenizer, a single-step one for a frame tokenizer.

    Raises:
        FileNotFoundError: There are no weights, or only pickled ones.
        ValueError: No plain Llama, a vocabulary that does not fit the tokenizer, damaged weights, or a key that is
            missing, unexpected or of another shape.
    """
    sizes = LlamaConfig.from_hf(config)
    layout = _layout(tokenizer)
    if sizes.vocab_size != layout.vocab_size:
        raise ValueError(
            f"the transformer in {folder} has {sizes.vocab_size} ids, but a {type(layout).__name__} on this tokenizer"
            f" has {layout.vocab_size}: give tokenizer= that it was trained with; the released ones with 9008 ids "
            f"take {COMPRESSIVE_TOKENIZER!r}, those with 4633 {FRAME_TOKENIZER!r}"
        )
    if not (folder / _WEIGHTS).is_file():
        raise FileNotFoundError(
            f"{folder} has no {_WEIGHTS}; weights that are pickled or in several files are not loaded: store them as"
            " one safetensors file first"
        )
    with torch.device("meta"):
        llama = Llama(sizes)
    fill(llama, read_tensors(folder / _WEIGHTS), folder / _WEIGHTS)
    if isinstance(tokenizer, CompressiveTokenizer):
        assert isinstance(layout, MultiStepLayout)
        protocol = _protocol(tokenizer.config.image_size)
        return MultiStepWorldModel(tokenizer, llama, layout, RT1_BINS, protocol=protocol)
    assert isinstance(layout, SingleStepLayout)
    return SingleStepWorldModel(
        tokenizer, llama, layout, RT1_BINS, image_size=IMAGE_SIZE, protocol=_protocol(IMAGE_SIZE)
    )


def _layout(tokenizer: CompressiveTokenizer | FrameTokenizer) -> MultiStepLayout | SingleStepLayout:
    """What the tokenizer decides of a layout; the rest is as published."""
    if isinstance(tokenizer, CompressiveTokenizer):
        return MultiStepLayout(
            context_tokens=tokenizer.context_tokens,
            dynamic_tokens=tokenizer.dynamic_tokens,
            dynamic_vocab=tokenizer.dynamic_codebook_size,
            context_vocab=tokenizer.context_codebook_size,
        )
    side = tokenizer.config.downscale
    return SingleStepLayout(
        visual_tokens=(IMAGE_SIZE[0] // side) * (IMAGE_SIZE[1] // side),
        visual_vocab=tokenizer.fsq.codebook_size,
    )


def _protocol(image_size: tuple[int, int]) -> dict[str, Any]:
    return {"environment": "RT1", "image_size": list(image_size)}
