"""Bake bread: an oven that must be hot, closed and left in time, and a hot loaf that bare hands cannot take.

An oven that is on gets hotter each tick while it is closed, up to its maximum, and cools while it is open or off.
Dough in a closed oven counts a baking tick whenever the oven is at least as hot as the dough needs; it is bread
after its number of ticks and burnt some ticks later. Taking something that is in a hot oven needs the mitts in
hand.
"""

from __future__ import annotations

import numpy as np

from rlvr_envs.simulators.text_games.actions import (
    CLOSE,
    DROP,
    OPEN,
    PUT,
    TURN_OFF,
    TURN_ON,
    WAIT,
    bring,
    hold,
    reach,
    take,
)
from rlvr_envs.simulators.text_games.actions import TAKE as TAKE_ANYTHING
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

ROOM_DEGREES = 20
HOT_DEGREES = 60  # bare hands stand no more


def build(generator: np.random.Generator) -> World:
    """An oven, one or two doughs, mitts, a rack."""
    world = World.new(one_of(generator, ("bakery", "kitchen", "farmhouse")), game="bake-bread")
    stores, clutter = furnish(world, generator)
    colours = pick(generator, COLOURS, 4)
    warmth = 20 * whole(generator, 6, 11)
    doughs = [
        world.add(
            noun,
            "Dough",
            isMoveable=True,
            neededDegrees=warmth - 20 * whole(generator, 0, 2),
            ticksToBake=whole(generator, 2, 4),
            ticksToBurn=whole(generator, 7, 9),
            bakedTicks=0,
            isBaked=False,
            isBurnt=False,
        )
        for noun in pick(
            generator, ("rye dough", "wheat dough", "corn dough", "oat dough"), whole(generator, 1, 2)
        )
    ]
    mitts = world.add(f"{colours[0]} mitts", "Mitts", isMoveable=True)
    scatter(generator, world, [*doughs, mitts, *clutter], stores)
    world.add(f"{colours[1]} rack", "Rack", isMoveable=False, isContainer=True)
    world.add(
        f"{colours[2]} oven",
        "Oven",
        isMoveable=False,
        isContainer=True,
        isOpen=bool(generator.integers(2)),
        isOn=False,
        temperature=ROOM_DEGREES,
        maxTemperature=warmth + 20 * whole(generator, 0, 3),
        heatPerTick=10 * whole(generator, 4, 8),
        coolPerTick=10 * whole(generator, 1, 3),
    )
    world.shuffle(generator)
    world.task["goal"] = "put freshly baked bread on the rack"
    world.task["dough"] = doughs[0].name
    return world


def take_with_mitts(world: World, thing: Thing) -> str:
    """Like taking anything, but not out of a hot oven without mitts."""
    holder = thing.holder
    hot = holder is not None and holder.type == "Oven" and holder["temperature"] >= HOT_DEGREES
    if hot and world.agent.first("Mitts") is None:
        return f"The {thing.words} is too hot for bare hands."
    return take(world, thing)


TAKE = Action(form=TAKE_ANYTHING.form, options=TAKE_ANYTHING.options, do=take_with_mitts)


def tick(world: World) -> str:
    """Heat or cool the oven, then bake what is in it."""
    noticed = []
    oven = world.only("Oven")
    if oven["isOn"] and not oven["isOpen"]:
        oven["temperature"] = min(oven["temperature"] + oven["heatPerTick"], oven["maxTemperature"])
    else:
        oven["temperature"] = max(oven["temperature"] - oven["coolPerTick"], ROOM_DEGREES)
    for dough in oven.contents:
        if dough.type != "Dough" or oven["isOpen"] or oven["temperature"] < dough["neededDegrees"]:
            continue
        dough["bakedTicks"] += 1
        if dough["bakedTicks"] == dough["ticksToBake"]:
            dough["isBaked"] = True
            noticed.append(f"The {dough.words} smells of bread.")
        if dough["bakedTicks"] == dough["ticksToBurn"]:
            dough["isBurnt"] = True
            noticed.append(f"The {dough.words} burns.")
    return " ".join(noticed)


def _dough(world: World) -> Thing:
    dough = world.named(world.task["dough"])
    assert dough is not None  # nothing removes it
    return dough


def hot(world: World) -> bool:
    """The oven is hot enough for the task's dough."""
    return bool(world.only("Oven")["temperature"] >= _dough(world)["neededDegrees"])


def baked(world: World) -> bool:
    """The task's dough is bread."""
    return bool(_dough(world)["isBaked"])


def served(world: World) -> bool:
    """The bread lies on the rack."""
    holder = _dough(world).holder
    return baked(world) and holder is not None and holder.type == "Rack"


def lost(world: World) -> bool:
    """The task's dough is burnt."""
    return bool(_dough(world)["isBurnt"])


def advise(world: World) -> str:
    """Mitts first, then dough into the oven; heat it closed; take the bread to the rack."""
    dough, oven, mitts = _dough(world), world.only("Oven"), world.only("Mitts")
    if not dough["isBaked"]:
        if action := bring(world, dough, oven):
            return action
        if oven["isOpen"]:
            return f"close {oven.name}"
        if not oven["isOn"]:
            return f"turn on {oven.name}"
        if dough["bakedTicks"] == 0 and (action := hold(world, mitts)):
            return action
        return "wait"
    if dough.holder is oven and (action := reach(dough) or hold(world, mitts)):
        return action
    return bring(world, dough, world.only("Rack")) or "wait"


GAME = Game(
    name="bake-bread",
    build=build,
    actions=(TAKE, PUT, DROP, OPEN, CLOSE, TURN_ON, TURN_OFF, WAIT),
    tick=tick,
    milestones={"isOvenHot": hot, "isBaked": baked, "isServed": served},
    lost=lost,
    advise=advise,
)
