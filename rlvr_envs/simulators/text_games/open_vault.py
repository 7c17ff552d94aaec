"""Open a vault: keys that fit by number, a lock that needs oil, a dial whose wrong codes are counted.

A key opens the locks with its number; a rusty lock turns only after oiling. The safe's dial takes one digit at a
time. After as many digits as the code has, the safe unlocks or forgets them and counts a failure; after the third
it is blocked for good.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlvr_envs.simulators.text_games.actions import CLOSE, DROP, OPEN, PUT, TAKE, WAIT, hold, reach
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import CLUTTER, COLOURS, STORES, one_of, pick, whole
from rlvr_envs.simulators.text_games.world import Thing, World

MAX_FAILURES = 3


def build(generator: np.random.Generator) -> World:
    """Two locked boxes, of which one holds the other's key; the safe's code is on a note in the second."""
    world = World.new(one_of(generator, ("vault", "study", "cellar", "library")), game="open-vault")
    colours = pick(generator, COLOURS, 9)
    numbers = pick(generator, range(10, 100), 3)
    code = "".join(str(whole(generator, 0, 9)) for _ in range(whole(generator, 2, 3)))
    rusty = whole(generator, 0, 2)  # 2: none
    boxes = [
        world.add(
            f"{colour} {noun}",
            "LockedBox",
            isMoveable=False,
            isContainer=True,
            isOpen=False,
            isLocked=True,
            lockNumber=number,
            isRusty=rusty == place,
        )
        for place, (colour, noun, number) in enumerate(
            zip(colours, pick(generator, STORES, 2), numbers, strict=False)
        )
    ]
    keys = [
        world.add(f"{colour} key", "Key", isMoveable=True, keyNumber=number)
        for colour, number in zip(colours[2:5], numbers, strict=True)
    ]
    note = world.add(f"{colours[5]} note", "Note", isMoveable=True, text=code)
    oil = world.add(f"{colours[6]} oil can", "OilCan", isMoveable=True, drops=whole(generator, 1, 3))
    safe = world.add(
        f"{colours[7]} safe",
        "Safe",
        isMoveable=False,
        isContainer=True,
        isOpen=False,
        isLocked=True,
        code=code,
        dialled="",
        failures=0,
    )
    treasure = world.add(one_of(generator, ("crown", "ring", "medal", "pearl")), "Treasure", isMoveable=True)
    mat = world.add(f"{colours[8]} basket", "Basket", isMoveable=True, isContainer=True)
    clutter = world.add(f"{colours[8]} {one_of(generator, CLUTTER)}", "Clutter", isMoveable=True)
    for thing in (keys[0], keys[2], oil, clutter):
        world.move(thing, one_of(generator, (world.room, mat, world.room, world.agent)))
    world.move(keys[1], boxes[0])
    world.move(note, boxes[1])
    world.move(treasure, safe)
    world.shuffle(generator)
    world.task["goal"] = "get the treasure out of the safe"
    return world


def unlock(world: World, lock: Thing, key: Thing) -> str:
    """With a key in hand that has the lock's number."""
    if lock.type != "LockedBox" or key.type != "Key":
        return f"You can't unlock the {lock.words} with the {key.words}."
    if not world.carries(key):
        return f"You don't have the {key.words}."
    if not lock["isLocked"]:
        return f"The {lock.words} is not locked."
    if lock["lockNumber"] != key["keyNumber"]:
        return f"The {key.words} does not fit."
    if lock["isRusty"]:
        return "The lock is too rusty to turn."
    lock["isLocked"] = False
    return f"You unlock the {lock.words}."


def oil(world: World, lock: Thing, can: Thing) -> str:
    """One drop takes the rust off."""
    if lock.type != "LockedBox" or can.type != "OilCan":
        return f"You can't oil the {lock.words} with the {can.words}."
    if not world.carries(can):
        return f"You don't have the {can.words}."
    if can["drops"] == 0:
        return f"The {can.words} is empty."
    can["drops"] -= 1
    lock["isRusty"] = False
    return f"You oil the {lock.words}."


def dial(world: World, number: int, safe: Thing) -> str:
    """One digit of the code."""
    if safe.type != "Safe" or number > 9:
        return f"The {safe.words} has no dial that shows {number}."
    if not safe["isLocked"]:
        return f"The {safe.words} is not locked."
    if safe["failures"] >= MAX_FAILURES:
        return f"The {safe.words} is blocked."
    safe["dialled"] += str(number)
    if len(safe["dialled"]) < len(safe["code"]):
        return f"The dial clicks at {number}."
    right = safe["dialled"] == safe["code"]
    safe["dialled"] = ""
    if right:
        safe["isLocked"] = False
        return f"The {safe.words} unlocks."
    safe["failures"] += 1
    return f"The {safe.words} buzzes."


def _unlockings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((lock, key) for lock in world.seen("LockedBox") for key in world.seen("Key"))


def _oilings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((lock, can) for lock in world.seen("LockedBox") for can in world.seen("OilCan"))


def _dials(world: World) -> Iterator[tuple[int, Thing]]:
    return ((number, safe) for safe in world.seen("Safe") for number in range(10))


def box_open(world: World) -> bool:
    """A locked box is open."""
    return any(box["isOpen"] for box in world.of_type("LockedBox"))


def note_held(world: World) -> bool:
    """The agent holds the note with the code."""
    return world.agent.first("Note") is not None


def safe_unlocked(world: World) -> bool:
    """The safe is unlocked."""
    return not world.only("Safe")["isLocked"]


def treasure_held(world: World) -> bool:
    """The agent holds the treasure."""
    return world.agent.first("Treasure") is not None


def lost(world: World) -> bool:
    """The safe is blocked, or a rusty lock is still shut and there is no oil."""
    dry = world.only("OilCan")["drops"] == 0
    rusted = any(box["isLocked"] and box["isRusty"] for box in world.of_type("LockedBox"))
    return bool(world.only("Safe")["failures"] >= MAX_FAILURES) or (dry and rusted)


def advise(world: World) -> str:
    """Box, key, box, note, code, treasure."""
    safe, note, treasure = world.only("Safe"), world.only("Note"), world.only("Treasure")
    if not safe["isLocked"]:
        return hold(world, treasure) or "wait"
    if not world.carries(note):
        return _unlock_way(world, note) or hold(world, note) or "wait"
    dialled = safe["dialled"]
    return f"dial {note['text'][len(dialled)]} on {safe.name}"


def _unlock_way(world: World, thing: Thing) -> str | None:
    """The next action towards unlocking what a thing is in."""
    box = thing.holder
    if box is None or box.type != "LockedBox" or not box["isLocked"]:
        return None
    key = next(key for key in world.of_type("Key") if key["keyNumber"] == box["lockNumber"])
    if action := _unlock_way(world, key) or hold(world, key):
        return action
    if box["isRusty"]:
        can = world.only("OilCan")
        return hold(world, can) or f"oil {box.name} with {can.name}"
    return reach(box) or f"unlock {box.name} with {key.name}"


GAME = Game(
    name="open-vault",
    build=build,
    actions=(
        TAKE,
        PUT,
        DROP,
        OPEN,
        CLOSE,
        WAIT,
        Action(form="unlock {} with {}", options=_unlockings, do=unlock),
        Action(form="oil {} with {}", options=_oilings, do=oil),
        Action(form="dial {number} on {}", options=_dials, do=dial),
    ),
    tick=lambda world: "",
    milestones={
        "isBoxOpen": box_open,
        "isNoteHeld": note_held,
        "isSafeUnlocked": safe_unlocked,
        "isTreasureHeld": treasure_held,
    },
    lost=lost,
    advise=advise,
)
