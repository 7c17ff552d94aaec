"""Boil water: heat that builds up tick by tick, water that appears from a tap and boils away.

A tap that is on fills every empty vessel in its sink. A stove that is on heats what stands on it by its own
number of degrees a tick, up to the boiling point that holds at this altitude; everywhere else water goes towards
room temperature. Boiling water loses one cup a tick. An empty vessel survives two ticks on a hot stove and cracks
in the third.
"""

from __future__ import annotations

import numpy as np

from rlvr_envs.simulators.text_games.actions import (
    CLOSE,
    DROP,
    OPEN,
    PUT,
    TAKE,
    TURN_OFF,
    TURN_ON,
    WAIT,
    bring,
    reach,
)
from rlvr_envs.simulators.text_games.engine import Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

ROOM_DEGREES = 20
DRY_TICKS = 3  # on a hot stove; then a vessel cracks


def build(generator: np.random.Generator) -> World:
    """Two or three vessels, two stoves of which one may be broken, and a sink."""
    world = World.new(one_of(generator, ("kitchen", "camp", "laboratory", "cabin")), game="boil-water")
    boiling_point = 100 - 3 * whole(generator, 0, 10)
    stores, clutter = furnish(world, generator)
    colours = pick(generator, COLOURS, 5)
    nouns = pick(generator, ("kettle", "pot", "pan", "beaker", "can"), whole(generator, 2, 3))
    vessels = [
        world.add(
            f"{colour} {noun}",
            "Vessel",
            isMoveable=True,
            isContainer=True,
            dryTicks=0,
            isCracked=False,
            cups=whole(generator, 2, 5),
        )
        for colour, noun in zip(colours, nouns, strict=False)
    ]
    scatter(generator, world, [*vessels, *clutter], stores)
    broken = whole(generator, 0, 2)  # 2: none is
    for place, colour in enumerate(colours[3:]):
        world.add(
            f"{colour} stove",
            "Stove",
            isMoveable=False,
            isContainer=True,
            capacity=1,
            isOn=False,
            isBroken=place == broken,
            heatPerTick=whole(generator, 11, 30),
        )
    world.add(
        "sink",
        "Sink",
        isMoveable=False,
        isContainer=True,
        isOn=False,
        waterTemperature=whole(generator, 5, 40),
        boilingPoint=boiling_point,
    )
    world.shuffle(generator)
    world.task["goal"] = "boil water in the vessel"
    world.task["vessel"] = vessels[0].name
    return world


def water_in(vessel: Thing) -> Thing | None:
    """The water in a vessel."""
    return vessel.first("Water")


def tick(world: World) -> str:
    """Fill, heat, cool, boil away, crack."""
    noticed = []
    for vessel in world.of_type("Vessel"):
        place = vessel.holder
        water = water_in(vessel)
        heat = place["heatPerTick"] if place is not None and place.type == "Stove" and place["isOn"] else 0
        if vessel["isCracked"]:
            continue
        if water is None:
            vessel["dryTicks"] = vessel["dryTicks"] + 1 if heat else 0
            if vessel["dryTicks"] >= DRY_TICKS:
                vessel["isCracked"] = True
                noticed.append(f"The {vessel.words} cracks.")
            elif place is not None and place.type == "Sink" and place["isOn"]:
                world.add(
                    "water",
                    "Water",
                    holder=vessel,
                    isMoveable=False,
                    temperature=place["waterTemperature"],
                    boilingPoint=place["boilingPoint"],
                    cups=vessel["cups"],
                    isBoiling=False,
                )
                noticed.append(f"Water runs into the {vessel.words}.")
            continue
        vessel["dryTicks"] = 0
        if heat:
            water["temperature"] = min(water["temperature"] + heat, water["boilingPoint"])
        else:
            apart = ROOM_DEGREES - water["temperature"]
            water["temperature"] += max(-2, min(2, apart))
        if water["isBoiling"] and heat:
            water["cups"] -= 1
        water["isBoiling"] = water["temperature"] >= water["boilingPoint"]
        if water["cups"] == 0:
            world.remove(water)
            noticed.append(f"The {vessel.words} has boiled dry.")
        elif water["isBoiling"]:
            noticed.append(f"The water in the {vessel.words} boils.")
    return " ".join(noticed)


def _vessel(world: World) -> Thing | None:
    return world.named(world.task["vessel"])


def filled(world: World) -> bool:
    """There is water in the task's vessel."""
    vessel = _vessel(world)
    return vessel is not None and water_in(vessel) is not None


def heated(world: World) -> bool:
    """It stands on a stove that is on."""
    vessel = _vessel(world)
    stove = vessel.holder if vessel is not None else None
    return filled(world) and stove is not None and stove.type == "Stove" and bool(stove["isOn"])


def boiled(world: World) -> bool:
    """It boils."""
    vessel = _vessel(world)
    water = None if vessel is None else water_in(vessel)
    return water is not None and bool(water["isBoiling"])


def lost(world: World) -> bool:
    """The task's vessel is cracked."""
    vessel = _vessel(world)
    return vessel is not None and bool(vessel["isCracked"])


def advise(world: World) -> str:
    """Fill the vessel at the sink, put it on a stove that works, turn that on, wait."""
    vessel, sink = _vessel(world), world.only("Sink")
    assert vessel is not None
    if water_in(vessel) is None:
        if action := reach(vessel) or bring(world, vessel, sink):
            return action
        return f"turn on {sink.name}"
    stove = next(stove for stove in world.of_type("Stove") if not stove["isBroken"])
    if action := bring(world, vessel, stove):
        return action
    return "wait" if stove["isOn"] else f"turn on {stove.name}"


GAME = Game(
    name="boil-water",
    build=build,
    actions=(TAKE, PUT, DROP, OPEN, CLOSE, TURN_ON, TURN_OFF, WAIT),
    tick=tick,
    milestones={"isFilled": filled, "isHeated": heated, "isBoiled": boiled},
    lost=lost,
    advise=advise,
)
