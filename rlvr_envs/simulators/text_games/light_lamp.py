"""Light a lamp: a circuit of wires, a switch, batteries and lamps that stand so many volts and no more.

Every part but the wires has two poles, ``left`` and ``right``, every wire two ends, ``one`` and ``two``; a pole
takes one wire end. A ring through a charged battery whose wires are sound and whose switches are closed carries
current: its lamps are lit if the battery has at least their volts, burn out if it has more than they stand, and a
ring without a lamp empties the battery. A lit ring takes one unit of charge a tick.
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
)
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

POLES, ENDS = ("left", "right"), ("one", "two")
PARTS = ("Battery", "Lamp", "Switch")


def build(generator: np.random.Generator) -> World:
    """Two batteries of which one suits the lamp, one or two lamps, a switch, four or five wires, one of them bad."""
    world = World.new(one_of(generator, ("shed", "laboratory", "cellar", "attic")), game="light-lamp")
    stores, clutter = furnish(world, generator, clutter=1)
    colours = pick(generator, COLOURS, 11)
    needed = whole(generator, 3, 12)
    stands = needed + whole(generator, 1, 6)
    poles = {"left": None, "right": None}
    lamps = [
        world.add(
            f"{colours[place]} lamp", "Lamp", isMoveable=True, volts=needed + place, maxVolts=stands + place,
            isLit=False, isBurnt=False, **poles,
        )
        for place in range(whole(generator, 1, 2))
    ]  # fmt: skip
    wrong = one_of(generator, (whole(generator, 1, needed - 1), stands + whole(generator, 1, 6)))
    batteries = [
        world.add(
            f"{colour} battery",
            "Battery",
            isMoveable=True,
            volts=volts,
            charge=whole(generator, 3, 9),
            **poles,
        )
        for colour, volts in zip(colours[2:], (whole(generator, needed, stands), wrong), strict=False)
    ]
    switch = world.add(
        f"{colours[4]} switch", "Switch", isMoveable=True, isOn=bool(generator.integers(2)), **poles
    )
    number = whole(generator, 4, 5)
    bad = whole(generator, 0, number - 1)
    wires = [
        world.add(f"{colour} wire", "Wire", isMoveable=True, isBroken=place == bad, one=None, two=None)
        for place, colour in enumerate(colours[5 : 5 + number])
    ]
    scatter(generator, world, [*lamps, *batteries, switch, *wires, *clutter], stores)
    world.shuffle(generator)
    pole = one_of(generator, POLES)
    for wire in wires[: whole(generator, 0, 2)]:  # somebody has tried before
        _join(wire, "one", one_of(generator, (*lamps, *batteries)), pole)
    world.task["goal"] = "light the lamp"
    world.task["lamp"] = lamps[0].name
    return world


def connect(world: World, end: str, wire: Thing, pole: str, part: Thing) -> str:
    """A free end of a wire in hand to a free pole."""
    if wire.type != "Wire" or part.type not in PARTS or end not in ENDS or pole not in POLES:
        return f"You can't connect {end} of the {wire.words} to {pole} of the {part.words}."
    if not world.carries(wire):
        return f"You don't have the {wire.words}."
    if wire[end] is not None:
        return f"End {end} of the {wire.words} is connected already."
    if part[pole] is not None:
        return f"The {pole} pole of the {part.words} is taken."
    _join(wire, end, part, pole)
    return f"You connect the {wire.words} to the {part.words}."


def _join(wire: Thing, end: str, part: Thing, pole: str) -> None:
    if part[pole] is None:
        wire[end] = f"{pole} {part.name}"
        part[pole] = f"{end} {wire.name}"


def disconnect(world: World, end: str, wire: Thing) -> str:
    """A wire end from its pole."""
    if wire.type != "Wire" or end not in ENDS or wire[end] is None:
        return f"Nothing is connected to {end} of the {wire.words}."
    pole, name = wire[end].split(" ", 1)
    part = world.named(name)
    if part is not None:
        part[pole] = None
    wire[end] = None
    return f"You disconnect the {wire.words}."


def _connections(world: World) -> Iterator[tuple[str, Thing, str, Thing]]:
    parts = world.seen(*PARTS)
    for wire in world.seen("Wire"):
        # The two ends of a wire that hangs free do the same; one of them is enough.
        for end in ENDS[:1] if wire["one"] is None else ENDS[1:]:
            for part in parts:
                # All fail with a wire that is not in hand; one is enough.
                for pole in POLES if world.carries(wire) else POLES[:1]:
                    yield end, wire, pole, part


def _disconnections(world: World) -> Iterator[tuple[str, Thing]]:
    return ((end, wire) for wire in world.seen("Wire") for end in ENDS if wire[end] is not None)


def ring(world: World, battery: Thing) -> list[Thing] | None:
    """All parts and wires on the way from a battery's left pole to its right one; None if it does not close."""
    names = {thing.name: thing for thing in world.things.values()}
    passed: list[Thing] = []
    part: Thing | None = battery
    pole = "left"
    for _ in names:  # a bound for records in which the two sides of a connection do not agree
        if part is None or part[pole] is None:
            return None
        end, name = part[pole].split(" ", 1)
        wire = names.get(name)
        away = None if wire is None else wire["two" if end == "one" else "one"]
        if wire is None or away is None:
            return None
        pole, name = away.split(" ", 1)
        part = names.get(name)
        passed.append(wire)
        if part is None:
            return None
        if part is battery:
            return passed if pole == "right" else None
        passed.append(part)
        pole = "left" if pole == "right" else "right"
    return None


def tick(world: World) -> str:
    """Current flows where it can."""
    noticed = []
    lit: set[int] = set()
    for battery in world.of_type("Battery"):
        if battery["charge"] == 0:
            continue
        passed = ring(world, battery)
        if passed is None or any(
            thing.get("isBroken") or thing.get("isBurnt") or thing.get("isOn") is False for thing in passed
        ):
            continue
        lamps = [thing for thing in passed if thing.type == "Lamp"]
        others = sum(thing["volts"] for thing in passed if thing.type == "Battery")
        volts = battery["volts"] + others
        if not lamps:
            battery["charge"] = 0
            noticed.append(f"The {battery.words} gets hot and dies.")
            continue
        battery["charge"] -= 1
        for lamp in lamps:
            if volts > lamp["maxVolts"]:
                lamp["isBurnt"] = True
                noticed.append(f"The {lamp.words} burns out.")
            elif volts >= lamp["volts"]:
                lit.add(lamp.uuid)
    for lamp in world.of_type("Lamp"):
        if lamp["isLit"] != (lamp.uuid in lit):
            lamp["isLit"] = lamp.uuid in lit
            noticed.append(f"The {lamp.words} {'lights up' if lamp['isLit'] else 'goes out'}.")
    return " ".join(noticed)


def _lamp(world: World) -> Thing:
    lamp = world.named(world.task["lamp"])
    assert lamp is not None  # nothing removes it
    return lamp


def lamp_wired(world: World) -> bool:
    """Both poles of the task's lamp are connected."""
    lamp = _lamp(world)
    return lamp["left"] is not None and lamp["right"] is not None


def battery_wired(world: World) -> bool:
    """So are those of a battery that suits it."""
    lamp = _lamp(world)
    return any(
        battery["left"] is not None
        and battery["right"] is not None
        and lamp["volts"] <= battery["volts"] <= lamp["maxVolts"]
        for battery in world.of_type("Battery")
    )


def lamp_lit(world: World) -> bool:
    """The task's lamp is lit."""
    return bool(_lamp(world)["isLit"])


def lost(world: World) -> bool:
    """The task's lamp is burnt out, or no charged battery suits it."""
    lamp = _lamp(world)
    return bool(lamp["isBurnt"]) or not any(
        battery["charge"] > 0 and lamp["volts"] <= battery["volts"] <= lamp["maxVolts"]
        for battery in world.of_type("Battery")
    )


def advise(world: World) -> str:
    """A ring of the right battery and the lamp with two sound wires; whatever is in the way is disconnected."""
    lamp = _lamp(world)
    battery = next(
        battery
        for battery in world.of_type("Battery")
        if battery["charge"] > 0 and lamp["volts"] <= battery["volts"] <= lamp["maxVolts"]
    )
    sound = [wire for wire in world.of_type("Wire") if not wire["isBroken"]]
    for pole, other in (("left", "right"), ("right", "left")):
        if action := _wire_up(world, battery, pole, lamp, other, sound):
            return action
    return "wait"


def _wire_up(world: World, one: Thing, pole: str, two: Thing, other: str, wires: list[Thing]) -> str | None:
    """The next action towards a sound wire from one part's pole to another's; None when it is there."""
    if action := reach(one) or reach(two):
        return action
    ends = (f"{pole} {one.name}", f"{other} {two.name}")
    for wire in wires:
        if (wire["one"], wire["two"]) in (ends, ends[::-1]):
            return None
    for part, place in ((one, pole), (two, other)):
        if part[place] is None:
            continue
        end, name = part[place].split(" ", 1)
        wire = next(wire for wire in world.of_type("Wire") if wire.name == name)
        away = wire["two" if end == "one" else "one"]
        if wire["isBroken"] or (away is not None and away not in ends):
            return reach(wire) or f"disconnect {end} of {wire.name}"
        target, spot = (two, other) if part is one else (one, pole)
        if target[spot] is None:
            return (
                hold(world, wire)
                or f"connect {'two' if end == 'one' else 'one'} of {wire.name} to {spot} of {target.name}"
            )
    if one[pole] is not None:  # two wires, each from one of the two poles into the air
        end, name = one[pole].split(" ", 1)
        wire = next(wire for wire in world.of_type("Wire") if wire.name == name)
        return reach(wire) or f"disconnect {end} of {wire.name}"
    free = [wire for wire in wires if wire["one"] is None and wire["two"] is None]
    if not free:
        busy = next(wire for wire in wires if not {wire["one"], wire["two"]} & set(_poles(one, two)))
        return reach(busy) or f"disconnect {'one' if busy['one'] is not None else 'two'} of {busy.name}"
    free.sort(key=lambda wire: reach(wire) is not None)
    return hold(world, free[0]) or f"connect one of {free[0].name} to {pole} of {one.name}"


def _poles(*parts: Thing) -> list[str]:
    return [f"{pole} {part.name}" for part in parts for pole in POLES]


GAME = Game(
    name="light-lamp",
    build=build,
    actions=(
        TAKE,
        DROP,
        OPEN,
        CLOSE,
        TURN_ON,
        TURN_OFF,
        WAIT,
        Action(form="disconnect {word} of {}", options=_disconnections, do=disconnect),
        Action(form="connect {word} of {} to {word} of {}", options=_connections, do=connect),
    ),
    tick=tick,
    milestones={"isLampWired": lamp_wired, "isBatteryWired": battery_wired, "isLampLit": lamp_lit},
    lost=lost,
    advise=advise,
)
