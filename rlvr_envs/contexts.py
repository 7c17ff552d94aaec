"""Where dreams begin: real first frames, bundled so that a learned environment needs no simulator to start.

The file is made by ``python -m rlvr_envs.simulators.pusht_starts``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.block_shapes import FloatArray

ASSETS = Path(__file__).parent / "assets"
PUSHT_STARTS = ASSETS / "pusht_starts.npz"


@dataclass(frozen=True, kw_only=True)
class PushTStarts:
    """Frames and the states they show.

    Attributes:
        images: ``(N, 64, 64, 3)`` uint8: random starts, which also serve as goals of the state rule.
        states: ``(N, 7)`` float64.
        covered_images: ``(M, 64, 64, 3)`` uint8: goals of the coverage rule, the block on the green T.
        covered_states: ``(M, 7)`` float64.
    """

    images: NDArray[np.uint8]
    states: FloatArray
    covered_images: NDArray[np.uint8]
    covered_states: FloatArray


@lru_cache(maxsize=1)
def load_pusht_starts(path: Path = PUSHT_STARTS) -> PushTStarts:
    """Read starts; the bundled ones by default.

    Raises:
        FileNotFoundError: No such file; says how to make it.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"no start frames at {path}; make them with: python -m rlvr_envs.simulators.pusht_starts"
        )
    with np.load(path, allow_pickle=False) as file:
        return PushTStarts(**{key: file[key] for key in PushTStarts.__dataclass_fields__})


def save_pusht_starts(starts: PushTStarts, path: Path = PUSHT_STARTS) -> None:
    """Write starts, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial.npz")
    np.savez_compressed(temporary, **vars(starts))
    os.replace(temporary, path)
