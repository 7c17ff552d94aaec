"""Where numbers come from: the time, the versions, the machine and its command, and the weights by their hash.

Absent on purpose: git, host names, and folders outside of the working folder: they are the user's own business.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

_PACKAGES = (
    "rlvr-world-envs",
    "torch",
    "numpy",
    "gymnasium",
    "safetensors",
    "transformers",
    "peft",
    "lpips",
    "pymunk",
    "mujoco",
)


def now() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """The machine, and the command that was given, without folders outside of the working folder."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": [Path(sys.argv[0]).name, *map(_without_outer_folders, sys.argv[1:])],
    }


def _without_outer_folders(word: str) -> str:
    """Of a path that leads out of the working folder only the last part: the rest is the user's own business."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    return f"{option}{equals}{path.name}" if path.is_absolute() or ".." in path.parts else word


def weights_sha256(*modules: nn.Module) -> str:
    """Hash of all tensors of some modules, by name, shape and content as they are in memory, in any precision."""
    sha = hashlib.sha256()
    for module in modules:
        # The state dict lacks buffers that are not stored, and those are all that LPIPS consists of.
        for name, tensor in sorted({**module.state_dict(), **dict(module.named_buffers())}.items()):
            kept = tensor.detach().cpu().contiguous()
            sha.update(f"{name} {str(kept.dtype).removeprefix('torch.')} {tuple(kept.shape)}".encode())
            sha.update(kept.view(-1).view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
    return sha.hexdigest()
