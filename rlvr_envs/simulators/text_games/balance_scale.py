"""Balance a scale: weights that add up on two pans, and a beam that breaks.

The beam tilts to the heavier pan after each
action; more than its limit on one pan breaks it. Won when the statue lies on a pan and the beam is level.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from rlvr_envs.simulators.text_games.actions import CLOSE, DROP, OPEN, PUT, TAKE, WAIT, bring, hold
from rlvr_envs.simulators.text_games.engine import Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World


def build(generator: np.random.Generator) -> World:
    """Four or five stones of which two or three weigh as much as the statue, and a scale."""
    world = World.new(one_of(generator, ("museum", "market", "laboratory", "temple")), game="balance-scale")
    stores, clutter = furnish(world, generator, clutter=1)
    number = whole(generator, 4, 5)
    weights = pick(generator, range(1, 30), number)
    colours = pick(generator, COLOURS, 6)
    stones = [
        world.add(f"{colour} stone", "Stone", isMoveable=True, weight=weight)
        for colour, weight in zip(colours, weights, strict=False)
    ]
    statue = world.add(
        one_of(generator, ("cat statue", "lion statue", "owl statue")),
        "Statue",
        isMoveable=True,
        weight=sum(weights[: whole(generator, 2, 3)]),
    )
    world.add(
        "scale",
        "Scale",
        isMoveable=False,
        tilt="level",
        maxWeight=statue["weight"] + whole(generator, 5, 15),
        isBroken=False,
    )
    pans = [
        world.add(f"{side} pan", "Pan", isMoveable=False, isContainer=True, side=side)
        for side in ("left", "right")
    ]
    scatter(generator, world, [*stones, statue, *clutter], [*stores])
    if generator.integers(2):  # somebody has tried before, with a stone that is lighter than the statue
        world.move(one_of(generator, stones[:2]), one_of(generator, pans))
    world.shuffle(generator)
    world.task["goal"] = "balance the statue"
    return world


def load(pan: Thing) -> int:
    """What lies on a pan weighs this much; clutter weighs nothing."""
    return sum(int(thing.get("weight", 0)) for thing in pan.contents)


def tick(world: World) -> str:
    """The beam tilts or breaks."""
    scale = world.only("Scale")
    loads = {pan["side"]: load(pan) for pan in world.of_type("Pan")}
    if scale["isBroken"]:
        return ""
    if max(loads.values()) > scale["maxWeight"]:
        scale["isBroken"] = True
        return "The beam breaks."
    tilt = "level" if loads["left"] == loads["right"] else max(loads, key=lambda side: loads[side])
    if tilt == scale["tilt"]:
        return ""
    scale["tilt"] = tilt
    return "The beam is level." if tilt == "level" else f"The beam tilts to the {tilt}."


def statue_laid(world: World) -> bool:
    """The statue lies on a pan."""
    holder = world.only("Statue").holder
    return holder is not None and holder.type == "Pan"


def both_laden(world: World) -> bool:
    """The statue lies on a pan, and something heavy on the other."""
    return statue_laid(world) and all(load(pan) for pan in world.of_type("Pan"))


def level(world: World) -> bool:
    """The statue lies on a pan and the beam is level and whole."""
    scale = world.only("Scale")
    return both_laden(world) and bool(scale["tilt"] == "level") and not scale["isBroken"]


def lost(world: World) -> bool:
    """The beam is broken."""
    return bool(world.only("Scale")["isBroken"])


def advise(world: World) -> str:
    """The statue on a pan, nothing else there, the right stones on the other."""
    statue = world.only("Statue")
    pans = world.of_type("Pan")
    if not statue_laid(world):
        return bring(world, statue, min(pans, key=load)) or "wait"
    mine = next(pan for pan in pans if pan is statue.holder)
    other = next(pan for pan in pans if pan is not mine)
    for thing in mine.contents:
        if thing is not statue and thing.get("weight"):
            return hold(world, thing) or "wait"
    chosen = _chosen(world.of_type("Stone"), statue["weight"])
    for thing in other.contents:
        if thing.type == "Stone" and thing not in chosen:
            return hold(world, thing) or "wait"
    return next((action for stone in chosen if (action := bring(world, stone, other))), "wait")


def _chosen(stones: list[Thing], weight: int) -> list[Thing]:
    """The fewest stones that weigh so much."""
    for number in range(1, len(stones) + 1):
        for some in combinations(stones, number):
            if sum(stone["weight"] for stone in some) == weight:
                return list(some)
    return []


GAME = Game(
    name="balance-scale",
    build=build,
    actions=(TAKE, PUT, DROP, OPEN, CLOSE, WAIT),
    tick=tick,
    milestones={"isStatueLaid": statue_laid, "areBothLaden": both_laden, "isLevel": level},
    lost=lost,
    advise=advise,
)
