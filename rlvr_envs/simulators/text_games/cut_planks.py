"""Cut planks: tools that wear out, lengths that add up, pieces that are new things.

A plank must lie in the vise to be sawn, and the saw must be in hand; every cut takes one point of sharpness and
leaves a shorter plank and a new piece. A dull saw is sharpened on the whetstone. The frame takes pieces of the
lengths that it needs, two nails each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlvr_envs.simulators.text_games.actions import CLOSE, DROP, OPEN, PUT, TAKE, WAIT, bring, hold
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

NAILS_PER_PIECE = 2


def build(generator: np.random.Generator) -> World:
    """One or two planks, a saw more or less sharp, hammer, nails, vise and frame."""
    world = World.new(one_of(generator, ("workshop", "shed", "garage", "barn")), game="cut-planks")
    stores, clutter = furnish(world, generator, clutter=1)
    lengths = pick(generator, range(20, 61, 5), 2)
    colours = pick(generator, COLOURS, 5)
    planks = [
        world.add(f"{wood} plank", "Plank", isMoveable=True, length=sum(lengths) + 5 * whole(generator, 1, 8))
        for wood in pick(generator, ("oak", "pine", "birch", "beech"), whole(generator, 1, 2))
    ]
    sharpest = whole(generator, 2, 4)
    saw = world.add(
        f"{colours[0]} saw",
        "Saw",
        isMoveable=True,
        sharpness=whole(generator, 0, sharpest),
        sharpest=sharpest,
    )
    hammer = world.add(f"{colours[1]} hammer", "Hammer", isMoveable=True)
    nails = world.add("nail box", "Nails", isMoveable=True, nails=whole(generator, 4, 9))
    scatter(generator, world, [*planks, saw, hammer, nails, *clutter], stores)
    world.add("whetstone", "Whetstone", isMoveable=False)
    world.add(f"{colours[2]} vise", "Vise", isMoveable=False, isContainer=True, capacity=1)
    world.add(
        f"{colours[3]} frame", "Frame", isMoveable=False, isContainer=False, top=lengths[0], side=lengths[1],
        isTopDone=False, isSideDone=False,
    )  # fmt: skip
    world.shuffle(generator)
    world.task["goal"] = "nail top and side to the frame"
    return world


def saw(world: World, number: int, plank: Thing, tool: Thing) -> str:
    """Cut a piece of a given length off."""
    if plank.type != "Plank" or tool.type != "Saw":
        return f"You can't saw the {plank.words} with the {tool.words}."
    if not world.carries(tool):
        return f"You don't have the {tool.words}."
    if plank.holder is None or plank.holder.type != "Vise":
        return f"The {plank.words} wobbles; it must be in the vise."
    if tool["sharpness"] == 0:
        return f"The {tool.words} is dull."
    if not 0 < number < plank["length"]:
        return f"The {plank.words} is {plank['length']} cm long."
    tool["sharpness"] -= 1
    plank["length"] -= number
    world.add(plank.words, "Plank", isMoveable=True, length=number)
    return f"A piece of {number} cm falls to the floor."


def sharpen(world: World, tool: Thing, stone: Thing) -> str:
    """Make a saw as sharp as it can be."""
    if tool.type != "Saw" or stone.type != "Whetstone":
        return f"You can't sharpen the {tool.words} on the {stone.words}."
    if not world.carries(tool):
        return f"You don't have the {tool.words}."
    tool["sharpness"] = tool["sharpest"]
    return f"The {tool.words} is sharp."


def nail(world: World, plank: Thing, frame: Thing) -> str:
    """A plank of a needed length onto the frame, with hammer and nails in hand."""
    nails, hammer = world.agent.first("Nails"), world.agent.first("Hammer")
    if plank.type != "Plank" or frame.type != "Frame":
        return f"You can't nail the {plank.words} to the {frame.words}."
    if plank.holder is frame:
        return f"The {plank.words} is nailed down already."
    if nails is None or hammer is None:
        return "You need hammer and nails in hand."
    if nails["nails"] < NAILS_PER_PIECE:
        return "There are not enough nails."
    for side, done in (("top", "isTopDone"), ("side", "isSideDone")):
        if plank["length"] == frame[side] and not frame[done]:
            frame[done] = True
            nails["nails"] -= NAILS_PER_PIECE
            plank["isMoveable"] = False
            world.move(plank, frame)
            return f"The {plank.words} is the {side} of the frame."
    return f"The frame has no place for {plank['length']} cm."


def _cuts(world: World) -> Iterator[tuple[int, Thing, Thing]]:
    frame = world.only("Frame")
    for plank in world.seen("Plank"):
        if plank.holder is frame:
            continue
        for tool in world.seen("Saw"):
            for length in (frame["top"], frame["side"]):
                yield length, plank, tool


def _sharpenings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((tool, stone) for tool in world.seen("Saw") for stone in world.seen("Whetstone"))


def _nailings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((plank, frame) for plank in world.seen("Plank") for frame in world.seen("Frame"))


def cut(world: World) -> bool:
    """There is a piece of a length that the frame needs."""
    frame = world.only("Frame")
    return any(plank["length"] in (frame["top"], frame["side"]) for plank in world.of_type("Plank"))


def half_done(world: World) -> bool:
    """Top or side is nailed."""
    frame = world.only("Frame")
    return bool(frame["isTopDone"] or frame["isSideDone"])


def done(world: World) -> bool:
    """Top and side are nailed."""
    frame = world.only("Frame")
    return bool(frame["isTopDone"] and frame["isSideDone"])


def lost(world: World) -> bool:
    """What is left of nails or of the longest plank does not suffice."""
    frame = world.only("Frame")
    open_ends = [
        frame[side] for side, key in (("top", "isTopDone"), ("side", "isSideDone")) if not frame[key]
    ]
    loose = [plank["length"] for plank in world.of_type("Plank") if plank.holder is not frame]
    too_short = bool(open_ends) and max(loose, default=0) < max(open_ends)
    return too_short or world.only("Nails")["nails"] < NAILS_PER_PIECE * len(open_ends)


def advise(world: World) -> str:
    """Longest need first: take a piece that fits, or cut one."""
    frame, tool, vise = world.only("Frame"), world.only("Saw"), world.only("Vise")
    needs = [frame[side] for side, key in (("top", "isTopDone"), ("side", "isSideDone")) if not frame[key]]
    planks = [plank for plank in world.of_type("Plank") if plank.holder is not frame]
    fitting = next((plank for plank in planks if plank["length"] in needs), None)
    if fitting is not None:
        return (
            hold(world, world.only("Hammer"))
            or hold(world, world.only("Nails"))
            or hold(world, fitting)
            or f"nail {fitting.name} in {frame.name}"
        )
    longest = max(planks, key=lambda plank: int(plank["length"]))
    if action := bring(world, longest, vise) or hold(world, tool):
        return action
    if tool["sharpness"] == 0:
        return f"sharpen {tool.name} on {world.only('Whetstone').name}"
    return f"saw {max(needs)} cm off {longest.name} with {tool.name}"


GAME = Game(
    name="cut-planks",
    build=build,
    actions=(
        TAKE,
        PUT,
        DROP,
        OPEN,
        CLOSE,
        WAIT,
        Action(form="saw {number} cm off {} with {}", options=_cuts, do=saw),
        Action(form="sharpen {} on {}", options=_sharpenings, do=sharpen),
        Action(form="nail {} in {}", options=_nailings, do=nail),
    ),
    tick=lambda world: "",
    milestones={"isCut": cut, "isHalfDone": half_done, "isDone": done},
    lost=lost,
    advise=advise,
)
