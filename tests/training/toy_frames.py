"""A toy of the RT-1 family for fast tests: a dark square on a light ground that an action moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from worldmodels.api import Episode
from worldmodels.episodes import EpisodeStore, split_of, write_all

HEIGHT, WIDTH, STEPS = 16, 32, 10
ACTIONS = 13


def draw(places: np.ndarray) -> np.ndarray:
    """Frames ``(T, H, W, 3)`` of a 4 px square at columns ``(T,)``."""
    frames = np.full((len(places), HEIGHT, WIDTH, 3), 220, np.uint8)
    for frame, place in zip(frames, places, strict=True):
        frame[6:10, int(place) : int(place) + 4] = (30, 60, 160)
    return frames


def episode(name: str, seed: int, *, steps: int = STEPS) -> Episode:
    """Number 10 of an action (world_vector x) moves the square by that many px, at most 3."""
    generator = np.random.default_rng(seed)
    actions = np.zeros((steps, ACTIONS), np.float32)
    places = [int(generator.integers(4, WIDTH - 8))]
    for step in range(steps):
        shift = int(generator.integers(-3, 4))
        actions[step, 10] = shift
        places.append(int(np.clip(places[-1] + shift, 0, WIDTH - 4)))
    state = np.array(places, np.float64)[:, None]
    return Episode(
        id=name,
        observations=draw(state[:, 0]),
        actions=actions,
        rewards=np.zeros(steps),
        info={"state": state},
    )


def toy_store(folder: Path, *, train: int = 24, validation: int = 3) -> EpisodeStore:
    """So many episodes of both splits."""
    wanted, number, kept = {"train": train, "validation": validation, "test": 0}, 0, []
    while any(wanted.values()):
        name = f"toy-{number}"
        if wanted[split_of(name)] > 0:
            wanted[split_of(name)] -= 1
            kept.append(episode(name, number))
        number += 1
    return write_all(folder, kept)
