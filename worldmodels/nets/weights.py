"""Weights from files into modules, strictly: every key and shape must agree, and nothing is unpickled.

Absent: where files come from (``worldmodels.folders``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_SHOWN = 5


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, floats in float32.

    Raises:
        ValueError: Absent, damaged, or another kind of file; names it.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path} is damaged or not a safetensors file ({error}); copy or download it again"
        ) from error
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Give a module these tensors; one that is still on the meta device takes them for its own.

    Raises:
        ValueError: A missing, unexpected or wrongly shaped key; names it.
    """
    wanted = module.state_dict()
    problems = [f"{key} is missing" for key in sorted(wanted.keys() - tensors.keys())]
    problems += [f"{key} is unexpected" for key in sorted(tensors.keys() - wanted.keys())]
    problems += [
        f"{key} has shape {tuple(tensors[key].shape)}, not {tuple(wanted[key].shape)}"
        for key in sorted(wanted.keys() & tensors.keys())
        if tensors[key].shape != wanted[key].shape
    ]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(
            f"{where} does not fit {type(module).__name__}: {'; '.join(problems[:_SHOWN])}{more}"
        )
    module.load_state_dict(dict(tensors), assign=any(value.is_meta for value in wanted.values()))
