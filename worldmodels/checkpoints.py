"""Checkpoints: a folder with ``config.json``, ``model.safetensors`` and ``card.md``, loaded by name, path or hub
id.

Special: nothing is ever unpickled; every key and shape must match; weights may be stored in float16 and are
computed with in float32. A world model's config names its tokenizer, so one name loads everything, and holds
the protocol (history, frame skip, image size, units) that environments compare with their own.

Absent: training state, which lives in run folders.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from worldmodels.api import WorldModel
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer, CompressiveTokenizerConfig
from worldmodels.video.frame_tokenizer import WEIGHTS_NAME
from worldmodels.video.global_tokenizer import GlobalTokenizer, GlobalTokenizerConfig
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout

ASSETS = Path(__file__).parent / "assets"
_FORMAT = 1
_CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "card.md"


def bundled() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{_CONFIG}"))


def find(name: str | Path) -> Path:
    """The folder of a bundled name, a path, or a hub id ``owner/name`` (downloaded once, then cached).

    Raises:
        FileNotFoundError: Nothing of that name; lists the bundled ones with a did-you-mean.
    """
    path = Path(name)
    # A bundled name means the bundled checkpoint, whatever lies in the working folder.
    if str(name) in bundled():
        return ASSETS / str(name)
    if (path / _CONFIG).exists():
        return path
    if path.exists():
        raise FileNotFoundError(
            f"{path} has no {_CONFIG}; a checkpoint folder holds {_CONFIG} and {_WEIGHTS}"
        )
    known = bundled()
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if str(name).count("/") != 1 or str(name).startswith(("/", ".", "~")):
        raise FileNotFoundError(
            f"no checkpoint {str(name)!r}: it is neither a folder nor one of {', '.join(known) or 'none bundled'}{hint}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors", "*.md"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"cannot fetch {str(name)!r} from the model hub ({type(error).__name__}); check the name and the "
            f"network, or give a local folder. Bundled: {', '.join(known)}{hint}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.

    Raises:
        ValueError: Not JSON, or of another format.
    """
    try:
        config: dict[str, Any] = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / _CONFIG} cannot be read: {error}") from error
    if config.get("format") != _FORMAT or "kind" not in config:
        raise ValueError(
            f"{folder / _CONFIG} has format {config.get('format')!r} and kind {config.get('kind')!r}; "
            f"expected format {_FORMAT} and one of {', '.join(_LOADERS)}"
        )
    return config


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The folder's tensors, in float32.

    Raises:
        ValueError: Missing, truncated, or not the file that the config's hash names; names the file.
    """
    path = folder / _WEIGHTS
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != config.get("weights_sha256"):
            raise ValueError(
                f"{path} has sha256 {found[:12]}..., but {_CONFIG} says {str(config.get('weights_sha256'))[:12]}...; "
                "the file is damaged or was exchanged: copy or download the checkpoint again"
            )
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the checkpoint again") from error
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Load a state dict strictly.

    Raises:
        ValueError: A missing, unexpected or wrongly shaped key; names it.
    """
    wanted = module.state_dict()
    missing, extra = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    if missing or extra:
        raise ValueError(
            f"{where} does not fit {type(module).__name__}: missing keys {missing[:5]}, unexpected keys {extra[:5]}"
        )
    for key, value in wanted.items():
        if tensors[key].shape != value.shape:
            raise ValueError(
                f"{where}: {key} has shape {tuple(tensors[key].shape)}, expected {tuple(value.shape)}"
            )
    module.load_state_dict(dict(tensors))


def save(
    folder: str | Path,
    module: nn.Module,
    config: Mapping[str, Any],
    *,
    card: str,
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write a checkpoint folder, whole or not at all; an existing one is replaced.

    Args:
        folder: Where.
        module: Its state dict is stored, floats as ``dtype``.
        config: ``kind`` and what that kind needs.
        card: The card's text: recipe, data, metrics, licence.
        dtype: Storage type of floats.
    """
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {
        key: (value.to(dtype) if value.is_floating_point() else value).cpu().contiguous()
        for key, value in module.state_dict().items()
    }
    save_file(tensors, partial / _WEIGHTS)
    sha = hashlib.sha256((partial / _WEIGHTS).read_bytes()).hexdigest()
    content = {"format": _FORMAT, **config, "weights_sha256": sha}
    (partial / _CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (partial / _CARD).write_text(card, encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


def load(name: str | Path) -> WorldModel:
    """A world model, ready to roll out.

    Raises:
        FileNotFoundError: Nothing of that name.
        ValueError: The folder holds something else, or its files are damaged or do not fit.
    """
    folder = find(name)
    config = read_config(folder)
    if config["kind"] not in _LOADERS:
        raise ValueError(
            f"{folder} holds a {config['kind']!r}, which is not a world model; load one of kind {', '.join(_LOADERS)}"
        )
    return _LOADERS[config["kind"]](folder, config)


def load_global_tokenizer(name: str | Path) -> GlobalTokenizer:
    """A ``GlobalTokenizer``; errors as for ``load``."""
    folder = find(name)
    config = read_config(folder)
    if config["kind"] != "global_tokenizer":
        raise ValueError(f"{folder} holds a {config['kind']!r}, expected a 'global_tokenizer'")
    with _complete(folder):
        sizes = dict(config["tokenizer"])
        sizes["levels"], sizes["object_centre_px"] = tuple(sizes["levels"]), tuple(sizes["object_centre_px"])
        tokenizer = GlobalTokenizer(GlobalTokenizerConfig(**sizes))
    fill(tokenizer, read_weights(folder, config), folder / _WEIGHTS)
    return tokenizer.eval()


def load_compressive_tokenizer(name: str | Path) -> CompressiveTokenizer:
    """A ``CompressiveTokenizer``, in our layout or in the released one; errors as for ``load``."""
    folder = find(name)
    if (folder / WEIGHTS_NAME).exists():
        return CompressiveTokenizer.from_folder(folder)
    config = read_config(folder)
    if config["kind"] != "compressive_tokenizer":
        raise ValueError(f"{folder} holds a {config['kind']!r}, expected a 'compressive_tokenizer'")
    with _complete(folder):
        sizes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in config["tokenizer"].items()
        }
        tokenizer = CompressiveTokenizer(CompressiveTokenizerConfig(**sizes))
    fill(tokenizer, read_weights(folder, config), folder / _WEIGHTS)
    return tokenizer.eval()


def tokenizer_config(tokenizer: GlobalTokenizer | CompressiveTokenizer) -> dict[str, Any]:
    """What ``save`` needs to know of a tokenizer."""
    kind = "global_tokenizer" if isinstance(tokenizer, GlobalTokenizer) else "compressive_tokenizer"
    return {"kind": kind, "tokenizer": dataclasses.asdict(tokenizer.config)}


def tokenizer_sha256(tokenizer: nn.Module) -> str:
    """Hash of the tensors in memory: which tokenizer a world model belongs to, however it is stored."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tokenizer.state_dict().items()):
        sha.update(name.encode() + tensor.cpu().half().contiguous().numpy().tobytes())
    return sha.hexdigest()


def world_config(model: ObjectWorldModel, *, tokenizer: str, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What ``save`` needs to know of an object world model; ``tokenizer`` is the name or path of its tokenizer."""
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


def _load_object_world(folder: Path, config: dict[str, Any]) -> ObjectWorldModel:
    with _complete(folder):
        name, protocol = str(config["tokenizer"]), dict(config["protocol"])
        layout = SlotLayout(**{**config["layout"], "code_levels": tuple(config["layout"]["code_levels"])})
        dynamics = ObjectDynamics(ObjectDynamicsConfig(**config["dynamics"]), layout)
        history_length, window_frames = int(config["history_length"]), int(config["window_frames"])
        expected = str(config["tokenizer_sha256"])
    tokenizer = load_global_tokenizer(folder / name if (folder / name / _CONFIG).exists() else name)
    if (layout.num_codes, layout.code_levels) != (
        tokenizer.config.num_tokens,
        tuple(tokenizer.config.levels),
    ):
        raise ValueError(
            f"{folder} was trained on {layout.num_codes} tokens of levels {layout.code_levels}, but its tokenizer "
            f"{name!r} gives {tokenizer.config.num_tokens} of levels {tokenizer.config.levels}"
        )
    if tokenizer_sha256(tokenizer) != expected:
        raise ValueError(
            f"{folder} was trained on another tokenizer than the {name!r} found here, and the same ids would mean "
            "other pictures; use the tokenizer that came with it"
        )
    fill(dynamics, read_weights(folder, config), folder / _WEIGHTS)
    return ObjectWorldModel(
        tokenizer, dynamics, history_length=history_length, window_frames=window_frames, protocol=protocol
    )


@contextmanager
def _complete(folder: Path) -> Iterator[None]:
    """Turn a missing or unknown entry of a config into an error that names the file."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / _CONFIG} is incomplete or of another version: {error!r}") from error


_LOADERS = {"object_world": _load_object_world}
