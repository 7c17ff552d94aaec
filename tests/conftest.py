"""Shared fixtures: one torch thread, and the folder with golden data of the published code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # small models on two busy cores: two threads are slower than one

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def conformance() -> Callable[[str], Path]:
    """``conformance("video/fsq.npz")`` is that file's path; the test is skipped where the file is absent."""
    folder = Path(os.environ.get("RLVR_CONFORMANCE", ROOT.parent / "shared" / "conformance"))

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"no golden data at {path}; set RLVR_CONFORMANCE to the folder that holds {name}")
        return path

    return find
