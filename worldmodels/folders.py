"""Checkpoint folders: ``config.json``, ``model.safetensors`` and ``card.md``; found, read and written.

Special: nothing is ever unpickled; every key and shape must match; weights may be stored in float16 and are
read as float32; a folder is written whole or not at all.

Absent: what is in a folder (``checkpoints``), and training state, which lives in run folders.
"""

from __future__ import annotations

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
from safetensors.torch import save_file
from torch import Tensor, nn

from worldmodels.nets.weights import read_tensors

ASSETS = Path(__file__).parent / "assets"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "card.md"
_FORMAT = 1
_WANTED = [
    "*.json",
    "*.safetensors",
    "*.md",
    "*.txt",
    "tokenizer.model",
]  # of a hub's repository; never pickles


def bundled() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob(f"*/{CONFIG}"))


def find(name: str | Path) -> Path:
    """The folder of a bundled name, a path, or a hub id ``owner/name`` (downloaded once, then cached).

    Raises:
        FileNotFoundError: Nothing of that name; lists the bundled ones with a did-you-mean.
    """
    path = Path(name)
    # A bundled name means the bundled checkpoint, whatever lies in the working folder.
    if str(name) in bundled():
        return ASSETS / str(name)
    if (path / CONFIG).exists():
        return path
    if path.exists():
        raise FileNotFoundError(f"{path} has no {CONFIG}; a checkpoint folder holds {CONFIG} and {WEIGHTS}")
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
        return Path(snapshot_download(str(name), allow_patterns=_WANTED))
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
    config = read_json(folder)
    if config.get("format") != _FORMAT or "kind" not in config:
        raise ValueError(
            f"{folder / CONFIG} has format {config.get('format')!r} and kind {config.get('kind')!r}; "
            f"expected format {_FORMAT} and a kind"
        )
    return config


def read_json(folder: Path) -> dict[str, Any]:
    """The folder's ``config.json``, whether ours or not.

    Raises:
        ValueError: Not JSON, or no object.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(
            f"{folder / CONFIG} holds a {type(config).__name__}, expected an object with entries"
        )
    return config


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The folder's tensors, in float32.

    Raises:
        ValueError: Missing, truncated, or not the file that the config's hash names; names the file.
    """
    path = folder / WEIGHTS
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != config.get("weights_sha256"):
            raise ValueError(
                f"{path} has sha256 {found[:12]}..., but {CONFIG} says {str(config.get('weights_sha256'))[:12]}...; "
                "the file is damaged or was exchanged: copy or download the checkpoint again"
            )
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); copy or download the checkpoint again") from error
    return read_tensors(path)


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
    save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})  # transformers looks for this entry
    sha = hashlib.sha256((partial / WEIGHTS).read_bytes()).hexdigest()
    content = {"format": _FORMAT, **config, "weights_sha256": sha}
    (partial / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (partial / CARD).write_text(card, encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    return folder


@contextmanager
def complete(folder: Path) -> Iterator[None]:
    """Turn a missing or unknown entry of a config into an error that names the file."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / CONFIG} is incomplete or of another version: {error!r}") from error
