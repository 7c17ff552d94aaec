"""Wash clothes: machines with doors that take several ticks, soap, wetness, and colours that run.

A washer starts only closed, loaded and with soap; while it runs its door stays locked. Afterwards everything in it
is clean and wet, but white things that were washed with coloured ones have taken on their colour. A dryer makes wet
things dry in its number of ticks.
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
    TURN_ON,
    WAIT,
    bring,
    hold,
    open_,
    turn_on,
)
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

MACHINES = ("Washer", "Dryer")


def build(generator: np.random.Generator) -> World:
    """Two to four clothes, some white, a washer and a dryer, soap, a basket."""
    world = World.new(one_of(generator, ("laundry", "bathroom", "basement")), game="wash-clothes")
    stores, clutter = furnish(world, generator, clutter=0)
    nouns = pick(generator, ("shirt", "sock", "towel", "scarf", "dress", "apron"), whole(generator, 2, 4))
    colours = [one_of(generator, ("white", "white", *COLOURS)) for _ in nouns]
    clothes = [
        world.add(noun, "Clothing", isMoveable=True, colour=colour, isDirty=True, isWet=False)
        for noun, colour in zip(nouns, colours, strict=True)
    ]
    soap = world.add("soap bottle", "Soap", isMoveable=True, doses=whole(generator, 1, 3))
    scatter(generator, world, [*clothes, soap, *clutter], stores)
    machines = pick(generator, COLOURS, 3)
    for colour, type_ in zip(machines, MACHINES, strict=False):
        machine = world.add(
            f"{colour} {type_.lower()}", type_, isMoveable=False, isContainer=True, isOpen=bool(generator.integers(2)),
            isOn=False, ticks=whole(generator, 2, 4), ticksLeft=0,
        )  # fmt: skip
        if type_ == "Washer":
            machine["hasSoap"] = bool(generator.integers(4) == 0)
    world.add(f"{machines[2]} basket", "Basket", isMoveable=False, isContainer=True)
    world.shuffle(generator)
    world.task["goal"] = "put the clothing into the basket, clean, dry and in its colour"
    world.task["clothing"] = clothes[0].name
    world.task["colour"] = clothes[0]["colour"]
    return world


def open_machine(world: World, thing: Thing) -> str:
    """Like opening anything, but not while it runs."""
    if thing.get("isOn"):
        return f"The {thing.words} is running."
    return open_(world, thing)


def start_machine(world: World, machine: Thing) -> str:
    """Closed and loaded, a washer with soap."""
    if machine.type not in MACHINES or machine["isOn"]:
        return turn_on(world, machine)
    if machine["isOpen"]:
        return f"The {machine.words} is open."
    if not machine.contents:
        return f"The {machine.words} is empty."
    if machine.get("hasSoap") is False:
        return f"The {machine.words} has no soap."
    machine["ticksLeft"] = machine["ticks"]
    return turn_on(world, machine)


def pour(world: World, soap: Thing, washer: Thing) -> str:
    """A dose from a bottle in hand."""
    if soap.type != "Soap" or washer.type != "Washer":
        return f"You can't pour the {soap.words} into the {washer.words}."
    if not world.carries(soap):
        return f"You don't have the {soap.words}."
    if washer["hasSoap"] or washer["isOn"]:
        return f"The {washer.words} takes no more soap."
    if soap["doses"] == 0:
        return f"The {soap.words} is empty."
    soap["doses"] -= 1
    washer["hasSoap"] = True
    return f"You pour soap into the {washer.words}."


def _pours(world: World) -> Iterator[tuple[Thing, Thing]]:
    things = world.visible()
    return (
        (soap, washer)
        for soap in things
        if soap.type == "Soap"
        for washer in things
        if washer.type == "Washer"
    )


def tick(world: World) -> str:
    """Machines run on, and stop by themselves."""
    noticed = []
    for machine in world.of_type(*MACHINES):
        if not machine["isOn"]:
            continue
        machine["ticksLeft"] -= 1
        if machine["ticksLeft"] > 0:
            noticed.append(f"The {machine.words} rumbles.")
            continue
        machine["isOn"] = False
        noticed.append(f"The {machine.words} stops.")
        clothes = [thing for thing in machine.contents if thing.type == "Clothing"]
        if machine.type == "Dryer":
            for thing in clothes:
                thing["isWet"] = False
            continue
        machine["hasSoap"] = False
        # Of several colours the one of the lowest uuid runs.
        running = next((thing["colour"] for thing in clothes if thing["colour"] != "white"), "white")
        for thing in clothes:
            thing["isDirty"], thing["isWet"] = False, True
            if thing["colour"] == "white":
                thing["colour"] = running
    return " ".join(noticed)


def _clothing(world: World) -> Thing:
    clothing = world.named(world.task["clothing"])
    assert clothing is not None  # nothing removes it
    return clothing


def clean(world: World) -> bool:
    """The task's piece is clean and has its colour."""
    clothing = _clothing(world)
    return not clothing["isDirty"] and bool(clothing["colour"] == world.task["colour"])


def dry(world: World) -> bool:
    """It is clean and dry."""
    return clean(world) and not _clothing(world)["isWet"]


def done(world: World) -> bool:
    """It is clean and dry in the basket."""
    holder = _clothing(world).holder
    return dry(world) and holder is not None and holder.type == "Basket"


def lost(world: World) -> bool:
    """It has another colour, or it is dirty and there is no soap."""
    clothing = _clothing(world)
    soap = any(bottle["doses"] for bottle in world.of_type("Soap")) or world.only("Washer")["hasSoap"]
    return bool(clothing["colour"] != world.task["colour"]) or (clothing["isDirty"] and not soap)


def advise(world: World) -> str:
    """Alone into the washer, into the dryer, into the basket."""
    clothing, washer, dryer = _clothing(world), world.only("Washer"), world.only("Dryer")
    if washer["isOn"] or dryer["isOn"]:
        return "wait"
    if clothing["isDirty"]:
        return _wash(world, clothing, washer)
    if clothing["isWet"]:
        return _run(world, clothing, dryer)
    return bring(world, clothing, world.only("Basket")) or "wait"


def _wash(world: World, clothing: Thing, washer: Thing) -> str:
    others = [thing for thing in washer.contents if thing is not clothing]
    if others:
        return hold(world, others[0]) or "wait"
    if not washer["hasSoap"]:
        soap = world.only("Soap")
        return hold(world, soap) or f"pour {soap.name} in {washer.name}"
    return _run(world, clothing, washer)


def _run(world: World, clothing: Thing, machine: Thing) -> str:
    if action := bring(world, clothing, machine):
        return action
    return f"close {machine.name}" if machine["isOpen"] else f"turn on {machine.name}"


GAME = Game(
    name="wash-clothes",
    build=build,
    actions=(
        TAKE,
        PUT,
        DROP,
        Action(form=OPEN.form, options=OPEN.options, do=open_machine),
        CLOSE,
        Action(form=TURN_ON.form, options=TURN_ON.options, do=start_machine),
        WAIT,
        Action(form="pour {} in {}", options=_pours, do=pour),
    ),
    tick=tick,
    milestones={"isClean": clean, "isDry": dry, "isDone": done},
    lost=lost,
    advise=advise,
)
