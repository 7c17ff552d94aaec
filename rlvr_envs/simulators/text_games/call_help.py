"""Call for help: a generator that burns fuel, outlets, a fuse that blows, a radio that must be charged.

A generator that is on and has fuel burns some of it each tick and gives power to the strip. Devices that are
plugged in and on draw their watts; together more than the fuse stands blow it. With power, the radio charges by its
own amount a tick; it draws its watts while it is plugged in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlvr_envs.simulators.text_games.actions import (
    CLOSE,
    DROP,
    OPEN,
    TAKE,
    TURN_OFF,
    TURN_ON,
    WAIT,
    hold,
    reach,
    turn_on,
)
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

APPLIANCES = ("lamp", "heater", "fan", "pump", "cooler")


def build(generator: np.random.Generator) -> World:
    """Generator, fuel, strip, spare fuse, radio, and two appliances that draw too much together with it."""
    world = World.new(one_of(generator, ("hut", "bunker", "station", "cabin")), game="call-help")
    stores, clutter = furnish(world, generator, clutter=1)
    colours = pick(generator, COLOURS, 7)
    needed = whole(generator, 10, 25)
    radio = world.add(
        f"{colours[0]} radio", "Radio", isMoveable=True, isPlugged=False, isAnswered=False, charge=0,
        watts=10 * whole(generator, 2, 6),
        chargeNeeded=needed, chargePerTick=whole(generator, 4, 9),
    )  # fmt: skip
    burn = whole(generator, 1, 3)
    can = world.add(f"{colours[1]} fuel can", "FuelCan", isMoveable=True, fuel=burn * whole(generator, 9, 14))
    fuse = world.add(f"{colours[2]} fuse", "Fuse", isMoveable=True)
    scatter(generator, world, [radio, can, fuse, *clutter], stores)
    plugged = [bool(generator.integers(2)) for _ in range(2)]
    for colour, noun, isplugged in zip(colours[3:], pick(generator, APPLIANCES, 2), plugged, strict=False):
        world.add(
            f"{colour} {noun}", "Appliance", isMoveable=False, isPlugged=isplugged, isOn=bool(generator.integers(2)),
            watts=10 * whole(generator, 4, 9),
        )  # fmt: skip
    world.add(
        f"{colours[5]} strip", "Strip", isMoveable=False, outlets=2, isFuseBlown=bool(generator.integers(3) == 0),
        hasPower=False, maxWatts=radio["watts"] + 10 * whole(generator, 0, 3),
    )  # fmt: skip
    world.add(
        f"{colours[6]} generator", "Generator", isMoveable=False, isOn=False, fuel=burn * whole(generator, 0, 2),
        fuelPerTick=burn,
    )  # fmt: skip
    world.shuffle(generator)
    world.task["goal"] = "charge the radio and call for help"
    return world


def plug(world: World, device: Thing, strip: Thing) -> str:
    """A device into a free outlet."""
    if device.get("isPlugged") is None or strip.type != "Strip":
        return f"You can't plug the {device.words} into the {strip.words}."
    if device["isPlugged"]:
        return f"The {device.words} is plugged in already."
    if len(_plugged(world)) >= strip["outlets"]:
        return f"The {strip.words} has no free outlet."
    device["isPlugged"] = True
    return f"You plug in the {device.words}."


def unplug(world: World, device: Thing) -> str:
    """A device out of its outlet."""
    if not device.get("isPlugged"):
        return f"The {device.words} is not plugged in."
    device["isPlugged"] = False
    return f"You unplug the {device.words}."


def refuel(world: World, generator: Thing, can: Thing) -> str:
    """All fuel of a can in hand, into a generator that stands still."""
    if generator.type != "Generator" or can.type != "FuelCan":
        return f"You can't refuel the {generator.words} with the {can.words}."
    if not world.carries(can):
        return f"You don't have the {can.words}."
    if generator["isOn"]:
        return f"The {generator.words} is running."
    if can["fuel"] == 0:
        return f"The {can.words} is empty."
    generator["fuel"] += can["fuel"]
    can["fuel"] = 0
    return f"You refuel the {generator.words}."


def replace_fuse(world: World, strip: Thing, fuse: Thing) -> str:
    """A blown fuse by one in hand, which is used up."""
    if strip.type != "Strip" or fuse.type != "Fuse":
        return f"You can't mend the {strip.words} with the {fuse.words}."
    if not world.carries(fuse):
        return f"You don't have the {fuse.words}."
    if not strip["isFuseBlown"]:
        return f"The fuse of the {strip.words} is good."
    strip["isFuseBlown"] = False
    world.remove(fuse)
    return f"You mend the {strip.words}."


def start_generator(world: World, thing: Thing) -> str:
    """Like turning on anything, but a generator needs fuel."""
    if thing.type == "Generator" and not thing["isOn"] and thing["fuel"] < thing["fuelPerTick"]:
        return f"The {thing.words} coughs and stays off."
    return turn_on(world, thing)


def call(world: World, radio: Thing) -> str:
    """With a charged radio."""
    if radio.type != "Radio":
        return f"You can't call for help with the {radio.words}."
    if radio["charge"] < radio["chargeNeeded"]:
        return f"The {radio.words} is silent."
    radio["isAnswered"] = True
    return "Help is on its way."


def _plugged(world: World) -> list[Thing]:
    return [thing for thing in world.things.values() if thing.get("isPlugged")]


def _plugs(world: World) -> Iterator[tuple[Thing, Thing]]:
    devices = [thing for thing in world.visible() if thing.get("isPlugged") is not None]
    return ((device, strip) for device in devices for strip in world.seen("Strip"))


def _unplugs(world: World) -> Iterator[tuple[Thing]]:
    return ((thing,) for thing in world.visible() if thing.get("isPlugged") is not None)


def _refuels(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((device, can) for device in world.seen("Generator") for can in world.seen("FuelCan"))


def _mendings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((strip, fuse) for strip in world.seen("Strip") for fuse in world.seen("Fuse"))


def _calls(world: World) -> Iterator[tuple[Thing]]:
    return ((radio,) for radio in world.seen("Radio"))


def load(world: World) -> int:
    """Watts that are drawn with power on: the radio's while plugged in, an appliance's while also on."""
    return sum(int(thing["watts"]) for thing in _plugged(world) if thing.get("isOn", True))


def tick(world: World) -> str:
    """Burn fuel, blow the fuse, charge."""
    noticed = []
    strip, generator = world.only("Strip"), world.only("Generator")
    if generator["isOn"]:
        if generator["fuel"] >= generator["fuelPerTick"]:
            generator["fuel"] -= generator["fuelPerTick"]
        else:
            generator["isOn"] = False
            noticed.append(f"The {generator.words} stops.")
    if generator["isOn"] and not strip["isFuseBlown"] and load(world) > strip["maxWatts"]:
        strip["isFuseBlown"] = True
        noticed.append(f"The fuse of the {strip.words} blows.")
    strip["hasPower"] = generator["isOn"] and not strip["isFuseBlown"]
    for radio in world.of_type("Radio"):
        if strip["hasPower"] and radio["isPlugged"] and radio["charge"] < radio["chargeNeeded"]:
            radio["charge"] = min(radio["charge"] + radio["chargePerTick"], radio["chargeNeeded"])
            noticed.append(f"The {radio.words} charges.")
    return " ".join(noticed)


def powered(world: World) -> bool:
    """The strip has power."""
    return bool(world.only("Strip")["hasPower"])


def charged(world: World) -> bool:
    """The radio has all the charge that it needs."""
    radio = world.only("Radio")
    return bool(radio["charge"] >= radio["chargeNeeded"])


def answered(world: World) -> bool:
    """The call was made."""
    return bool(world.only("Radio")["isAnswered"])


def lost(world: World) -> bool:
    """The radio is not charged, and the fuel or the last fuse is gone."""
    if charged(world):
        return False
    generator, strip = world.only("Generator"), world.only("Strip")
    fuel = generator["fuel"] + sum(can["fuel"] for can in world.of_type("FuelCan"))
    return bool(fuel < generator["fuelPerTick"]) or (bool(strip["isFuseBlown"]) and not world.of_type("Fuse"))


def advise(world: World) -> str:
    """Only the radio in the strip, a good fuse, fuel, power, then the call."""
    radio, strip, generator = world.only("Radio"), world.only("Strip"), world.only("Generator")
    if action := reach(radio):
        return action
    if charged(world):
        return f"call with {radio.name}"
    if others := [thing for thing in _plugged(world) if thing is not radio]:
        return f"unplug {others[0].name}"
    if strip["isFuseBlown"]:
        fuse = world.only("Fuse")
        return hold(world, fuse) or f"mend {strip.name} with {fuse.name}"
    if not radio["isPlugged"]:
        return f"plug {radio.name} in {strip.name}"
    can = world.only("FuelCan")
    ticks = -(-(radio["chargeNeeded"] - radio["charge"]) // radio["chargePerTick"])
    if generator["fuel"] < ticks * generator["fuelPerTick"] and can["fuel"]:
        if generator["isOn"]:
            return f"turn off {generator.name}"
        return hold(world, can) or f"refuel {generator.name} with {can.name}"
    return "wait" if generator["isOn"] else f"turn on {generator.name}"


GAME = Game(
    name="call-help",
    build=build,
    actions=(
        TAKE,
        DROP,
        OPEN,
        CLOSE,
        Action(form=TURN_ON.form, options=TURN_ON.options, do=start_generator),
        TURN_OFF,
        WAIT,
        Action(form="plug {} in {}", options=_plugs, do=plug),
        Action(form="unplug {}", options=_unplugs, do=unplug),
        Action(form="refuel {} with {}", options=_refuels, do=refuel),
        Action(form="mend {} with {}", options=_mendings, do=replace_fuse),
        Action(form="call with {}", options=_calls, do=call),
    ),
    tick=tick,
    milestones={"isPowered": powered, "isCharged": charged, "isHelpCalled": answered},
    lost=lost,
    advise=advise,
)
