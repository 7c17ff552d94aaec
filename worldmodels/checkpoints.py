"""Checkpoints: world models and tokenizers, loaded by name, path or hub id, and what is stored of each.

Special: a world model's config names its tokenizer, so one name loads everything, and holds the protocol
(history, frame skip, image size, units) that environments compare with their own. Checkpoints released by
others (see ``released``) load through the same functions; transformers of RT-1 world models are saved so that
the ``transformers`` library loads their folder, too. Files are the business of ``folders``.

Absent: training state, which lives in run folders.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from worldmodels.api import WorldModel
from worldmodels.folders import (
    ASSETS,
    CONFIG,
    WEIGHTS,
    bundled,
    complete,
    find,
    read_config,
    read_json,
    read_weights,
    save,
)
from worldmodels.language.causal_lm_files import load_causal_lm
from worldmodels.language.causal_lm_world import CausalLMWorldModel
from worldmodels.language.prompts import compact_prompt
from worldmodels.language.slot_world import SlotWorldModel, slot_model
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.nets.weights import fill
from worldmodels.released import (
    is_language_model,
    is_released_tokenizer,
    is_released_transformer,
    load_released_tokenizer,
    load_released_world,
    tokenizer_wanted,
)
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig
from worldmodels.video.layouts import MultiStepLayout, SingleStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.single_step_world import SingleStepWorldModel
from worldmodels.video.slots import SlotLayout
from worldmodels.video.state_reader import StateReader, StateReaderConfig

__all__ = [
    "ASSETS",
    "bundled",
    "find",
    "load",
    "load_compressive_tokenizer",
    "load_global_tokenizer",
    "load_state_reader",
    "load_tokenizer",
    "read_config",
    "read_weights",
    "save",
    "tokenizer_config",
    "tokenizer_sha256",
    "world_config",
]

Tokenizer: TypeAlias = GlobalTokenizer | CompressiveTokenizer | FrameTokenizer
RT1WorldModel: TypeAlias = MultiStepWorldModel | SingleStepWorldModel


def load(name: str | Path, *, tokenizer: str | Path | None = None) -> WorldModel:
    """A world model, ready to roll out.

    A folder of the Hugging Face layout with a tokenizer of texts holds a causal language model; it is asked about text
    games by ``prompts.compact_prompt``, and ``CausalLMWorldModel.asked_by`` words its questions otherwise.

    Args:
        name: A bundled name, a folder, or a hub id ``owner/name``.
        tokenizer: Likewise. A released transformer does not say which tokenizer it belongs to and needs this;
            otherwise it is looked for here instead of where the config says.

    Raises:
        FileNotFoundError: Nothing of that name.
        ValueError: The folder holds something else, or its files are damaged or do not fit.
    """
    folder = find(name)
    content = read_json(folder)
    if is_language_model(folder, content):
        if tokenizer is not None:
            raise ValueError(f"{folder} has its own tokenizer; leave out tokenizer={str(tokenizer)!r}")
        return CausalLMWorldModel(load_causal_lm(folder), compact_prompt)
    if is_released_transformer(content):
        if tokenizer is None:
            raise tokenizer_wanted(folder, content)
        found = load_tokenizer(tokenizer)
        if isinstance(found, GlobalTokenizer):
            raise ValueError(f"{tokenizer} is no tokenizer of RT-1 frames; it does not fit {folder}")
        return load_released_world(folder, content, found)
    if is_released_tokenizer(content):
        raise ValueError(
            f"{folder} holds a tokenizer ({content['_class_name']}), which is not a world model; load the transformer "
            "and give this as tokenizer=, or load it alone with worldmodels.checkpoints.load_tokenizer"
        )
    config = read_config(folder)
    if (kind := config["kind"]) not in _LOADERS:
        loader = (
            "load_tokenizer"
            if kind in _TOKENIZERS
            else "load_state_reader"
            if kind == "state_reader"
            else None
        )
        own = f"worldmodels.checkpoints.{loader} loads it; or " if loader else ""
        raise ValueError(
            f"{folder} holds a {kind!r}, which is not a world model; {own}load one of kind {', '.join(_LOADERS)}"
        )
    return _LOADERS[kind](folder, config, None if tokenizer is None else str(tokenizer))


def load_tokenizer(name: str | Path) -> Tokenizer:
    """A tokenizer of any kind, in our layout or in the released one; errors as for ``load``."""
    folder = find(name)
    content = read_json(folder)
    if is_released_tokenizer(content):
        return load_released_tokenizer(folder, content)
    if is_released_transformer(content):
        raise ValueError(
            f"{folder} holds a transformer ({content['model_type']}), which is not a tokenizer; give its tokenizer"
        )
    config = read_config(folder)
    if config["kind"] not in _TOKENIZERS:
        raise ValueError(f"{folder} holds a {config['kind']!r}, expected one of {', '.join(_TOKENIZERS)}")
    make, make_config = _TOKENIZERS[config["kind"]]
    with complete(folder):
        tokenizer: Tokenizer = make(make_config(**_tuples(config["tokenizer"])))
    fill(tokenizer, read_weights(folder, config), folder / WEIGHTS)
    return tokenizer.eval()


def load_global_tokenizer(name: str | Path) -> GlobalTokenizer:
    """A ``GlobalTokenizer``; errors as for ``load``."""
    tokenizer = load_tokenizer(name)
    if not isinstance(tokenizer, GlobalTokenizer):
        raise ValueError(f"{name} holds a {type(tokenizer).__name__}, expected a 'global_tokenizer'")
    return tokenizer


def load_compressive_tokenizer(name: str | Path) -> CompressiveTokenizer:
    """A ``CompressiveTokenizer``, in our layout or in the released one; errors as for ``load``."""
    tokenizer = load_tokenizer(name)
    if not isinstance(tokenizer, CompressiveTokenizer):
        raise ValueError(f"{name} holds a {type(tokenizer).__name__}, expected a 'compressive_tokenizer'")
    return tokenizer


def load_state_reader(name: str | Path) -> StateReader:
    """A ``StateReader``; errors as for ``load``."""
    folder = find(name)
    config = read_config(folder)
    if config["kind"] != "state_reader":
        raise ValueError(f"{folder} holds a {config['kind']!r}, expected a 'state_reader'")
    with complete(folder):
        reader = StateReader(StateReaderConfig(**_tuples(config["reader"])))
    fill(reader, read_weights(folder, config), folder / WEIGHTS)
    return reader.eval()


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """What ``save`` needs to know of a tokenizer."""
    kinds = {make: kind for kind, (make, _) in _TOKENIZERS.items()}
    return {"kind": kinds[type(tokenizer)], "tokenizer": dataclasses.asdict(tokenizer.config)}


def tokenizer_sha256(tokenizer: nn.Module) -> str:
    """Hash of the tensors in memory: which tokenizer a world model belongs to, however it is stored."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tokenizer.state_dict().items()):
        sha.update(name.encode() + tensor.cpu().half().contiguous().numpy().tobytes())
    return sha.hexdigest()


def world_config(
    model: ObjectWorldModel | RT1WorldModel,
    *,
    tokenizer: str,
    protocol: Mapping[str, Any],
    reader: str | None = None,
) -> dict[str, Any]:
    """What ``save`` needs to know of a world model.

    ``tokenizer`` and ``reader`` are names or paths; a multi-step model has a reader of states, or none.

    The module to save is ``model.dynamics`` of an object world model and ``model.llama`` of an RT-1 one.
    """
    if not isinstance(model, ObjectWorldModel):
        return _rt1_world_config(model, tokenizer, protocol, reader)
    return {
        "kind": "object_world",
        "tokenizer": tokenizer,
        "tokenizer_sha256": tokenizer_sha256(model.tokenizer),
        "dynamics": dataclasses.asdict(model.dynamics.config),
        "layout": dataclasses.asdict(model.dynamics.layout),
        "history_length": model.history_length,
        "window_frames": model.window_frames,
        "protocol": dict(protocol),
    }


def _rt1_world_config(
    model: RT1WorldModel, tokenizer: str, protocol: Mapping[str, Any], reader: str | None
) -> dict[str, Any]:
    own: dict[str, Any]
    if isinstance(model, MultiStepWorldModel):
        own = {
            "kind": "multi_step_world",
            "repetition_penalty": model.repetition_penalty,
            "reader": reader,
        }
    else:
        own = {"kind": "single_step_world", "image_size": list(model.image_size)}
    bins = model.action_bins
    return {
        **model.llama.config.to_hf(),
        **own,
        "tokenizer": tokenizer,
        "tokenizer_sha256": tokenizer_sha256(model.tokenizer),
        "layout": dataclasses.asdict(model.layout),
        "action_bins": {
            "low": [float(x) for x in bins.low],
            "high": [float(x) for x in bins.high],
            "num_bins": bins.num_bins,
        },
        "top_k": model.top_k,
        "protocol": dict(protocol),
    }


def _load_object_world(folder: Path, config: dict[str, Any], elsewhere: str | None) -> ObjectWorldModel:
    with complete(folder):
        name, protocol = elsewhere or str(config["tokenizer"]), dict(config["protocol"])
        layout = SlotLayout(**{**config["layout"], "code_levels": tuple(config["layout"]["code_levels"])})
        dynamics = ObjectDynamics(ObjectDynamicsConfig(**config["dynamics"]), layout)
        history_length, window_frames = int(config["history_length"]), int(config["window_frames"])
        expected = str(config["tokenizer_sha256"])
    tokenizer = load_global_tokenizer(_beside(folder, name))
    if (layout.num_codes, layout.code_levels) != (
        tokenizer.config.num_tokens,
        tuple(tokenizer.config.levels),
    ):
        raise ValueError(
            f"{folder} was trained on {layout.num_codes} tokens of levels {layout.code_levels}, but its tokenizer "
            f"{name!r} gives {tokenizer.config.num_tokens} of levels {tokenizer.config.levels}"
        )
    _check_tokenizer(folder, name, tokenizer, expected)
    fill(dynamics, read_weights(folder, config), folder / WEIGHTS)
    return ObjectWorldModel(
        tokenizer, dynamics, history_length=history_length, window_frames=window_frames, protocol=protocol
    )


def _load_rt1_world(folder: Path, config: dict[str, Any], elsewhere: str | None) -> RT1WorldModel:
    several = config["kind"] == "multi_step_world"
    with complete(folder):
        name, expected = elsewhere or str(config["tokenizer"]), str(config["tokenizer_sha256"])
        layout = (MultiStepLayout if several else SingleStepLayout)(**config["layout"])
        bins = ActionBins(**config["action_bins"])
        names = ("protocol", "top_k", "repetition_penalty" if several else "image_size")
        options = {key: config[key] for key in names}
        llama = Llama(LlamaConfig.from_hf(config))
        reads = config["reader"] if several else None
    tokenizer = load_tokenizer(_beside(folder, name))
    reader = None if reads is None else load_state_reader(_beside(folder, reads))
    _check_tokenizer(folder, name, tokenizer, expected)
    fill(llama, read_weights(folder, config), folder / WEIGHTS)
    if isinstance(layout, MultiStepLayout) and isinstance(tokenizer, CompressiveTokenizer):
        return MultiStepWorldModel(tokenizer, llama, layout, bins, reader=reader, **options)
    if isinstance(layout, SingleStepLayout) and isinstance(tokenizer, FrameTokenizer):
        return SingleStepWorldModel(tokenizer, llama, layout, bins, **_tuples(options))
    raise ValueError(
        f"{folder} holds a {config['kind']!r}, whose tokenizer cannot be a {type(tokenizer).__name__}"
    )


def _load_slot_world(folder: Path, config: dict[str, Any], elsewhere: str | None) -> SlotWorldModel:
    if elsewhere is not None:
        raise ValueError(f"{folder} has its own words; leave out tokenizer={elsewhere!r}")
    with complete(folder):
        model, protocol = slot_model(config), dict(config["protocol"])
    fill(model, read_weights(folder, config), folder / WEIGHTS)
    return SlotWorldModel(model, protocol=protocol)


def _beside(folder: Path, name: str) -> str | Path:
    """A tokenizer inside a world model's folder, or elsewhere."""
    return folder / name if (folder / name / CONFIG).exists() else name


def _check_tokenizer(folder: Path, name: str, tokenizer: Tokenizer, expected: str) -> None:
    if tokenizer_sha256(tokenizer) != expected:
        raise ValueError(
            f"{folder} was trained on another tokenizer than the {name!r} found here, and the same ids would mean "
            "other pictures; use the tokenizer that came with it"
        )


def _tuples(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as they were before JSON made lists of tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in sizes.items()}


_LOADERS: dict[str, Callable[[Path, dict[str, Any], str | None], WorldModel]] = {
    "object_world": _load_object_world,
    "multi_step_world": _load_rt1_world,
    "single_step_world": _load_rt1_world,
    "slot_world": _load_slot_world,
}
_TOKENIZERS: dict[str, tuple[type[Any], type[Any]]] = {
    "global_tokenizer": (GlobalTokenizer, GlobalTokenizerConfig),
    "compressive_tokenizer": (CompressiveTokenizer, CompressiveTokenizerConfig),
    "frame_tokenizer": (FrameTokenizer, FrameTokenizerConfig),
}
