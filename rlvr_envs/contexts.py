"""Where dreams begin: real first frames, bundled so that a learned environment needs no simulator to start.

The files are made by ``python -m rlvr_envs.simulators.pusht_starts``, ``... .drawer_starts`` and ``... .text_starts``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.block_shapes import FloatArray

ASSETS = Path(__file__).parent / "assets"
PUSHT_STARTS = ASSETS / "pusht_starts.npz"
DRAWER_STARTS = ASSETS / "drawer_starts.npz"
TEXT_STARTS = ASSETS / "text_starts.jsonl.gz"


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


@dataclass(frozen=True, kw_only=True)
class DrawerStarts:
    """First frames of the drawer world.

    Attributes:
        images: ``(N, 64, 80, 3)`` uint8.
        states: ``(N, 10)`` float64, see ``rlvr_envs.drawer_rules``.
        tasks: ``(N,)`` int64, the number of each start's task in ``drawer_rules.TASKS``.
    """

    images: NDArray[np.uint8]
    states: FloatArray
    tasks: NDArray[np.int64]


Starts = TypeVar("Starts", PushTStarts, DrawerStarts)


def load_pusht_starts() -> PushTStarts:
    """The bundled starts of PushT; errors as for ``load_starts``."""
    return load_starts(PushTStarts, PUSHT_STARTS)


def load_drawer_starts() -> DrawerStarts:
    """The bundled starts of the drawer world; errors as for ``load_starts``."""
    return load_starts(DrawerStarts, DRAWER_STARTS)


@lru_cache(maxsize=4)
def load_starts(kind: type[Starts], path: Path) -> Starts:
    """Read starts.

    Raises:
        FileNotFoundError: No such file; says how to make it.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"no start frames at {path}; make them with: python -m rlvr_envs.simulators.{path.stem}"
        )
    with np.load(path, allow_pickle=False) as file:
        return kind(**{key: file[key] for key in kind.__dataclass_fields__})


def save_starts(starts: PushTStarts | DrawerStarts, path: Path) -> None:
    """Write starts, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial.npz")
    np.savez_compressed(temporary, **vars(starts))
    os.replace(temporary, path)
