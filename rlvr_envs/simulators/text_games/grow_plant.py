"""Grow a plant: a seed becomes a plant, the plant bears a fruit, if soil and light are right all the while.

The soil in a pot dries each tick. A plant grows one step in a tick in which its pot is moist enough, not too wet
and in the light; it loses a point of health in a tick with dry or soaked soil, and dies without any. When it has
grown its full size it bears a fruit.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    hold,
    reach,
)
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

CROPS = ("tomato", "pepper", "melon", "pea", "bean", "pumpkin", "cucumber")


def build(generator: np.random.Generator) -> World:
    """One or two seeds, one or two pots, a can, a lamp over a shelf, a sunny or a shady sill."""
    world = World.new(one_of(generator, ("greenhouse", "balcony", "garden", "attic")), game="grow-plant")
    stores, clutter = furnish(world, generator, clutter=1)
    colours = pick(generator, COLOURS, 5)
    seeds = [
        world.add(
            f"{crop} seed",
            "Seed",
            isMoveable=True,
            crop=crop,
            size=0,
            fullSize=whole(generator, 3, 6),
            minMoisture=whole(generator, 2, 4),
            maxMoisture=whole(generator, 12, 16),
            health=whole(generator, 2, 3),
        )
        for crop in pick(generator, CROPS, whole(generator, 1, 2))
    ]
    can = world.add(
        f"{colours[0]} can",
        "WateringCan",
        isMoveable=True,
        pourAmount=whole(generator, 5, 7),
        pours=0,
        capacityPours=whole(generator, 1, 3),
    )
    pots = [
        world.add(
            f"{colour} pot",
            "Pot",
            isMoveable=True,
            isContainer=True,
            capacity=1,
            moisture=whole(generator, 0, 3),
            dryPerTick=whole(generator, 1, 2),
        )
        for colour in colours[1 : 2 + whole(generator, 0, 1)]
    ]
    scatter(generator, world, [*seeds, can, *clutter], stores)
    world.add("tap", "Tap", isMoveable=False)
    sunny = bool(generator.integers(2))
    sill = world.add("sill", "Sill", isMoveable=False, isContainer=True, isLit=sunny)
    shelf = world.add(
        f"{colours[3]} lamp shelf", "LampShelf", isMoveable=False, isContainer=True, isOn=False, isLit=False
    )
    for pot in pots:
        world.move(pot, one_of(generator, (sill, shelf, world.room)))
    world.shuffle(generator)
    world.task["goal"] = "pick a fruit of the crop"
    world.task["crop"] = seeds[0]["crop"]
    return world


def fill(world: World, can: Thing, tap: Thing) -> str:
    """A watering can, to the brim."""
    if can.type != "WateringCan" or tap.type != "Tap":
        return f"You can't fill the {can.words} at the {tap.words}."
    if not world.carries(can):
        return f"You don't have the {can.words}."
    can["pours"] = can["capacityPours"]
    return f"You fill the {can.words}."


def water(world: World, pot: Thing, can: Thing) -> str:
    """One pour from a can in hand onto a pot's soil."""
    if can.type != "WateringCan" or pot.type != "Pot":
        return f"You can't water the {pot.words} with the {can.words}."
    if not world.carries(can):
        return f"You don't have the {can.words}."
    if can["pours"] == 0:
        return f"The {can.words} is empty."
    can["pours"] -= 1
    pot["moisture"] += can["pourAmount"]
    return f"You water the {pot.words}."


def plant(world: World, seed: Thing, pot: Thing) -> str:
    """A seed in hand becomes a plant in a free pot."""
    if seed.type != "Seed" or pot.type != "Pot":
        return f"You can't plant the {seed.words} in the {pot.words}."
    if not world.carries(seed):
        return f"You don't have the {seed.words}."
    if pot.contents:
        return f"There is no room in the {pot.words}."
    properties = {**seed.properties, "isMoveable": False, "hasFruit": False, "isDead": False}
    world.remove(seed)
    world.add(f"{properties['crop']} plant", "Plant", holder=pot, **properties)
    return f"You plant the {seed.words} in the {pot.words}."


def _fillings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((can, tap) for can in world.seen("WateringCan") for tap in world.seen("Tap"))


def _waterings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((pot, can) for pot in world.seen("Pot") for can in world.seen("WateringCan"))


def _plantings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((seed, pot) for seed in world.seen("Seed") for pot in world.seen("Pot"))


def tick(world: World) -> str:
    """Lamps light, soil dries, plants grow or suffer."""
    noticed = []
    for shelf in world.of_type("LampShelf"):
        shelf["isLit"] = shelf["isOn"]
    for pot in world.of_type("Pot"):
        pot["moisture"] = max(0, pot["moisture"] - pot["dryPerTick"])
        growing = pot.first("Plant")
        if growing is None or growing["isDead"]:
            continue
        lit = pot.holder is not None and bool(pot.holder.get("isLit"))
        if pot["moisture"] == 0 or pot["moisture"] > growing["maxMoisture"]:
            growing["health"] -= 1
            noticed.append(f"The {growing.words} droops.")
            if growing["health"] == 0:
                growing["isDead"] = True
                noticed.append(f"The {growing.words} is dead.")
        elif lit and pot["moisture"] >= growing["minMoisture"] and growing["size"] < growing["fullSize"]:
            growing["size"] += 1
            noticed.append(f"The {growing.words} grows.")
            if growing["size"] == growing["fullSize"]:
                growing["hasFruit"] = True
                world.add(growing["crop"], "Fruit", holder=growing, isMoveable=True, crop=growing["crop"])
                noticed.append(f"The {growing.words} bears a {growing['crop']}.")
    return " ".join(noticed)


def _plant(world: World) -> Thing | None:
    return next((thing for thing in world.of_type("Plant") if thing["crop"] == world.task["crop"]), None)


def planted(world: World) -> bool:
    """The task's seed is in a pot."""
    return _plant(world) is not None


def half_grown(world: World) -> bool:
    """The plant has half its full size."""
    growing = _plant(world)
    return growing is not None and bool(2 * growing["size"] >= growing["fullSize"])


def picked(world: World) -> bool:
    """The agent holds the fruit."""
    return any(
        thing.type == "Fruit" and thing["crop"] == world.task["crop"] for thing in world.agent.contents
    )


def lost(world: World) -> bool:
    """The task's plant is dead and bears no fruit."""
    growing = _plant(world)
    return growing is not None and bool(growing["isDead"]) and not growing["hasFruit"]


def advise(world: World) -> str:
    """Pot into the light, seed into the pot, water before it gets dry, pick."""
    growing, can = _plant(world), world.only("WateringCan")
    fruit = next((thing for thing in world.of_type("Fruit") if thing["crop"] == world.task["crop"]), None)
    if fruit is not None:
        return hold(world, fruit) or "wait"
    sill, shelf = world.only("Sill"), world.only("LampShelf")
    light = sill if sill["isLit"] else shelf
    if can["pours"] == 0:
        return hold(world, can) or f"fill {can.name} in {world.only('Tap').name}"
    if growing is None:
        seed = next(thing for thing in world.of_type("Seed") if thing["crop"] == world.task["crop"])
        free = [pot for pot in world.of_type("Pot") if not pot.contents]
        if not free:
            return f"take {world.of_type('Pot')[0].contents[0].name}"
        if action := hold(world, seed) or bring(world, free[0], light):
            return action
        if light is shelf and not shelf["isOn"]:
            return f"turn on {shelf.name}"
        if action := hold(world, can):
            return action
        if free[0]["moisture"] < 4:
            return f"water {free[0].name} with {can.name}"
        return f"plant {seed.name} in {free[0].name}"
    pot = growing.holder
    assert pot is not None
    if action := reach(pot):
        return action
    if pot["moisture"] < growing["minMoisture"] + pot["dryPerTick"]:
        return hold(world, can) or f"water {pot.name} with {can.name}"
    if action := bring(world, pot, light):
        return action
    return "wait" if light["isLit"] else f"turn on {light.name}"


GAME = Game(
    name="grow-plant",
    build=build,
    actions=(
        TAKE,
        PUT,
        DROP,
        OPEN,
        CLOSE,
        TURN_ON,
        TURN_OFF,
        WAIT,
        Action(form="fill {} in {}", options=_fillings, do=fill),
        Action(form="water {} with {}", options=_waterings, do=water),
        Action(form="plant {} in {}", options=_plantings, do=plant),
    ),
    tick=tick,
    milestones={"isPlanted": planted, "isHalfGrown": half_grown, "isPicked": picked},
    lost=lost,
    advise=advise,
)
