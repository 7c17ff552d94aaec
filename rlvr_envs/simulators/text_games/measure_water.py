"""Measure water: jugs without marks, a tap, and a bowl that must get exactly so many litres.

Jugs can only be filled to the brim, emptied, or poured until one is empty or the other full; what is in the bowl
stays there. One jug may leak a litre each tick. More than the asked litres in the bowl lose the game.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from rlvr_envs.simulators.text_games.actions import CLOSE, DROP, OPEN, TAKE, WAIT, hold
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

MAX_PLAN = 9  # pours and fillings of the shortest way
Plan = tuple[tuple[str, int, int], ...]


def build(generator: np.random.Generator) -> World:
    """Two sound jugs, perhaps a third that leaks, tap, sink, bowl."""
    sizes: list[int] = []
    litres, plan = 0, None
    while plan is None or len(plan) < 3:
        sizes = pick(generator, range(2, 12), 2)
        litres = whole(generator, 1, 12)
        plan = shortest_plan(tuple(sizes), (0, 0), 0, litres)
    world = World.new(one_of(generator, ("kitchen", "dairy", "laboratory", "cellar")), game="measure-water")
    stores, clutter = furnish(world, generator, clutter=1)
    if generator.integers(2):
        sizes.append(whole(generator, 3, 12))
    colours = pick(generator, COLOURS, len(sizes) + 1)
    jugs = [
        world.add(
            f"{colour} jug",
            "Jug",
            isMoveable=True,
            capacityLitres=size,
            litres=0,
            leakPerTick=int(place == 2),
        )
        for place, (colour, size) in enumerate(zip(colours, sizes, strict=False))
    ]
    scatter(generator, world, [*jugs, *clutter], stores)
    world.add("tap", "Tap", isMoveable=False)
    world.add("sink", "Sink", isMoveable=False)
    world.add(f"{colours[-1]} bowl", "Bowl", isMoveable=False, litres=0)
    world.shuffle(generator)
    world.task["goal"] = "measure litres into the bowl"
    world.task["litres"] = litres
    return world


def shortest_plan(
    sizes: tuple[int, ...], litres: tuple[int, ...], bowl: int, wanted: int, *, longest: int = MAX_PLAN
) -> Plan | None:
    """Fewest moves that bring the bowl to ``wanted`` litres, or None if there are none so short.

    A move is ``("fill", i, i)``, ``("empty", i, i)``, ``("pour", i, j)`` or ``("bowl", i, i)``.
    """
    first = (litres, bowl)
    ways: dict[tuple[tuple[int, ...], int], Plan] = {first: ()}
    queue = deque([first])
    while queue:
        now, inside = queue.popleft()
        way = ways[now, inside]
        if inside == wanted:
            return way
        if len(way) == longest:
            continue
        for move in _moves(sizes, now):
            (kind, one, other), after, poured = move
            reached = (after, inside + poured)
            if reached[1] <= wanted and reached not in ways:
                ways[reached] = (*way, (kind, one, other))
                queue.append(reached)
    return None


def _moves(
    sizes: tuple[int, ...], now: tuple[int, ...]
) -> Iterator[tuple[tuple[str, int, int], tuple[int, ...], int]]:
    for one, amount in enumerate(now):
        if amount < sizes[one]:
            yield ("fill", one, one), (*now[:one], sizes[one], *now[one + 1 :]), 0
        if amount == 0:
            continue
        emptied = (*now[:one], 0, *now[one + 1 :])
        yield ("bowl", one, one), emptied, amount
        yield ("empty", one, one), emptied, 0
        for other in range(len(now)):
            flow = min(amount, sizes[other] - now[other])
            if other != one and flow:
                after = list(now)
                after[one] -= flow
                after[other] += flow
                yield ("pour", one, other), tuple(after), 0


def fill(world: World, jug: Thing, tap: Thing) -> str:
    """A jug in hand, to the brim."""
    if jug.type != "Jug" or tap.type != "Tap":
        return f"You can't fill the {jug.words} at the {tap.words}."
    if not world.carries(jug):
        return f"You don't have the {jug.words}."
    jug["litres"] = jug["capacityLitres"]
    return f"You fill the {jug.words}."


def pour(world: World, jug: Thing, other: Thing) -> str:
    """A jug in hand, all of it into bowl or sink, or as much as another jug takes."""
    if jug.type != "Jug" or other.type not in ("Jug", "Bowl", "Sink") or jug is other:
        return f"You can't pour the {jug.words} into the {other.words}."
    if not world.carries(jug):
        return f"You don't have the {jug.words}."
    flow = jug["litres"]
    if other.type == "Jug":
        flow = min(flow, other["capacityLitres"] - other["litres"])
    if flow == 0:
        return "Nothing flows."
    jug["litres"] -= flow
    if other.type != "Sink":
        other["litres"] += flow
    return f"{flow} litres flow into the {other.words}."


def _fillings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((jug, tap) for jug in world.seen("Jug") for tap in world.seen("Tap"))


def _pours(world: World) -> Iterator[tuple[Thing, Thing]]:
    targets = world.seen("Jug", "Bowl", "Sink")
    return ((jug, other) for jug in world.seen("Jug") for other in targets if other is not jug)


def tick(world: World) -> str:
    """Leaks."""
    noticed = []
    for jug in world.of_type("Jug"):
        if jug["leakPerTick"] and jug["litres"]:
            jug["litres"] = max(0, jug["litres"] - jug["leakPerTick"])
            noticed.append(f"The {jug.words} drips.")
    return " ".join(noticed)


def begun(world: World) -> bool:
    """Some jug that does not leak holds water, but is not full."""
    return any(
        0 < jug["litres"] < jug["capacityLitres"] for jug in world.of_type("Jug") if not jug["leakPerTick"]
    )


def measured(world: World) -> bool:
    """The bowl holds just what is asked for."""
    return bool(world.only("Bowl")["litres"] == world.task["litres"])


def lost(world: World) -> bool:
    """The bowl holds too much."""
    return bool(world.only("Bowl")["litres"] > world.task["litres"])


def advise(world: World) -> str:
    """The sound jugs in hand, then the shortest plan."""
    jugs = [jug for jug in world.of_type("Jug") if not jug["leakPerTick"]]
    for jug in jugs:
        if action := hold(world, jug):
            return action
    plan = shortest_plan(
        tuple(jug["capacityLitres"] for jug in jugs),
        tuple(jug["litres"] for jug in jugs),
        world.only("Bowl")["litres"],
        world.task["litres"],
        longest=3 * MAX_PLAN,
    )
    if not plan:
        return "wait"
    kind, one, other = plan[0]
    if kind == "fill":
        return f"fill {jugs[one].name} in {world.only('Tap').name}"
    target = {"pour": jugs[other], "bowl": world.only("Bowl"), "empty": world.only("Sink")}[kind]
    return f"pour {jugs[one].name} in {target.name}"


GAME = Game(
    name="measure-water",
    build=build,
    actions=(
        TAKE,
        DROP,
        OPEN,
        CLOSE,
        WAIT,
        Action(form="fill {} in {}", options=_fillings, do=fill),
        Action(form="pour {} in {}", options=_pours, do=pour),
    ),
    tick=tick,
    milestones={"isPartFilled": begun, "isMeasured": measured},
    lost=lost,
    advise=advise,
)
