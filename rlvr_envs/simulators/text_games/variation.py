"""What a game draws for its variations: names, whole numbers, places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from rlvr_envs.simulators.text_games.world import Thing, World

Choice = TypeVar("Choice")

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "grey", "pink", "orange", "purple")
CLUTTER = (
    "book",
    "spoon",
    "apple",
    "candle",
    "coin",
    "feather",
    "marble",
    "pencil",
    "shell",
    "button",
    "cork",
)
STORES = ("cupboard", "cabinet", "chest", "drawer", "crate", "trunk")


def pick(generator: np.random.Generator, choices: Sequence[Choice], number: int) -> list[Choice]:
    """``number`` different ones, in random order."""
    return [choices[place] for place in generator.permutation(len(choices))[:number]]


def one_of(generator: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    """One of them."""
    return choices[int(generator.integers(len(choices)))]


def whole(generator: np.random.Generator, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return int(generator.integers(low, high + 1))


def furnish(
    world: World, generator: np.random.Generator, *, stores: int = 1, clutter: int = 2
) -> tuple[list[Thing], list[Thing]]:
    """Openable stores, open or closed, and small things to no purpose; gives the stores and the clutter."""
    colours = pick(generator, COLOURS, stores + clutter)
    made = [
        world.add(
            f"{colour} {noun}",
            "Store",
            isMoveable=False,
            isContainer=True,
            isOpen=bool(generator.integers(2)),
        )
        for colour, noun in zip(colours, pick(generator, STORES, stores), strict=False)
    ]
    small = [
        world.add(f"{colour} {noun}", "Clutter", isMoveable=True)
        for colour, noun in zip(colours[stores:], pick(generator, CLUTTER, clutter), strict=False)
    ]
    return made, small


def scatter(
    generator: np.random.Generator, world: World, things: Sequence[Thing], places: Sequence[Thing]
) -> None:
    """Each thing into one of the places, into the room or into the agent's hands."""
    choices = [*places, world.room, world.room, world.agent]
    for thing in things:
        world.move(thing, one_of(generator, choices))
