"""Mix paint: two substances become a third, by a chart that is different in every variation.

A tube squeezed into a jar, or a jar poured into another, mixes two paints at once: both go, and the colour that
the chart names is there instead, or mud where the chart has no answer. A tube must be in hand, and lasts for a few
squeezes. Painting the board needs a brush in hand and uses the paint up.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlvr_envs.simulators.text_games.actions import CLOSE, DROP, OPEN, TAKE, WAIT, hold, reach
from rlvr_envs.simulators.text_games.engine import Action, Game
from rlvr_envs.simulators.text_games.variation import COLOURS, furnish, one_of, pick, scatter, whole
from rlvr_envs.simulators.text_games.world import Thing, World

MUD = "mud"


def build(generator: np.random.Generator) -> World:
    """Three or four tubes, a brush, two or three jars, a chart of four mixtures, a board."""
    world = World.new(one_of(generator, ("studio", "workshop", "garage")), game="mix-paint")
    colours = pick(generator, COLOURS, 8)
    base, mixed = colours[: whole(generator, 3, 4)], colours[4:]
    # A mixture of two tubes, one of that and a third tube, and two that lead nowhere.
    pairs = [(base[0], base[1]), (mixed[0], base[2]), (base[1], base[2]), (mixed[0], base[0])]
    recipes = dict(zip(map(_pair, pairs), mixed, strict=True))
    tubes = [
        world.add(f"{colour} tube", "Tube", isMoveable=True, colour=colour, uses=whole(generator, 2, 4))
        for colour in base
    ]
    stores, clutter = furnish(world, generator, clutter=1)
    jars = [
        world.add(f"{material} jar", "Jar", isMoveable=True, isContainer=False)
        for material in pick(generator, ("glass", "clay", "steel", "paper"), whole(generator, 2, 3))
    ]
    brush = world.add(f"{one_of(generator, base)} brush", "Brush", isMoveable=True)
    scatter(generator, world, [*tubes, brush, *clutter], stores)
    scatter(generator, world, jars, [])
    if generator.integers(2):  # a jar that is not clean
        world.add("paint", "Paint", holder=jars[-1], isMoveable=False, colour=one_of(generator, base))
    world.add(
        "chart", "Chart", isMoveable=False, **{key: recipes[key] for key in pick(generator, [*recipes], 4)}
    )
    world.add("board", "Board", isMoveable=False, colour="none")
    world.add("sink", "Sink", isMoveable=False)
    world.shuffle(generator)
    world.task["goal"] = "paint the board"
    world.task["colour"] = mixed[1]
    world.task["firstColour"] = mixed[0]
    return world


def _pair(colours: tuple[str, str]) -> str:
    return " + ".join(sorted(colours))


def _add_paint(world: World, jar: Thing, colour: str) -> str:
    """Into an empty jar as it is, onto other paint mixed."""
    old = jar.first("Paint")
    if old is not None:
        if old["colour"] != colour:
            colour = world.only("Chart").get(_pair((old["colour"], colour)), MUD)
        world.remove(old)
    world.add("paint", "Paint", holder=jar, isMoveable=False, colour=colour)
    return f"There is {colour} paint in the {jar.words}."


def squeeze(world: World, tube: Thing, jar: Thing) -> str:
    """One use of a tube in hand."""
    if tube.type != "Tube" or jar.type != "Jar":
        return f"You can't squeeze the {tube.words} into the {jar.words}."
    if not world.carries(tube):
        return f"You don't have the {tube.words}."
    if tube["uses"] == 0:
        return f"The {tube.words} is empty."
    tube["uses"] -= 1
    return _add_paint(world, jar, tube["colour"])


def pour(world: World, jar: Thing, other: Thing) -> str:
    """All paint of one jar into another, or into the sink."""
    if jar.type != "Jar" or other.type not in ("Jar", "Sink") or jar is other:
        return f"You can't pour the {jar.words} into the {other.words}."
    paint = jar.first("Paint")
    if paint is None:
        return f"The {jar.words} is empty."
    colour = paint["colour"]
    world.remove(paint)
    if other.type == "Sink":
        return f"The {colour} paint runs down the sink."
    return _add_paint(world, other, colour)


def paint(world: World, board: Thing, jar: Thing) -> str:
    """The board, with what is in a jar and with a brush in hand."""
    if jar.type != "Jar" or board.type != "Board":
        return f"You can't paint the {board.words} with the {jar.words}."
    if world.agent.first("Brush") is None:
        return "You need a brush in hand."
    inside = jar.first("Paint")
    if inside is None:
        return f"The {jar.words} is empty."
    board["colour"] = inside["colour"]
    world.remove(inside)
    return f"The {board.words} is {board['colour']} now."


def _squeezes(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((tube, jar) for tube in world.seen("Tube") for jar in world.seen("Jar"))


def _pours(world: World) -> Iterator[tuple[Thing, Thing]]:
    targets = world.seen("Jar", "Sink")
    return ((jar, other) for jar in world.seen("Jar") for other in targets if other is not jar)


def _paintings(world: World) -> Iterator[tuple[Thing, Thing]]:
    return ((board, jar) for board in world.seen("Board") for jar in world.seen("Jar"))


def first_mixed(world: World) -> bool:
    """There is paint of the colour on the way."""
    return any(thing["colour"] == world.task["firstColour"] for thing in world.of_type("Paint"))


def mixed(world: World) -> bool:
    """There is paint of the task's colour."""
    return any(thing["colour"] == world.task["colour"] for thing in world.of_type("Paint"))


def painted(world: World) -> bool:
    """The board has the task's colour."""
    return bool(world.only("Board")["colour"] == world.task["colour"])


def advise(world: World) -> str:
    """Look both mixtures up in the chart, clean jars that hold anything else."""
    wanted, way = world.task["colour"], world.task["firstColour"]
    chart, jars = world.only("Chart"), world.of_type("Jar")
    holding = {paint["colour"]: paint.holder for paint in world.of_type("Paint")}
    if jar := holding.get(wanted):
        return (
            reach(jar)
            or hold(world, world.only("Brush"))
            or f"paint {world.only('Board').name} with {jar.name}"
        )
    recipe = {colour: key.split(" + ") for key, colour in chart.properties.items() if " + " in key}
    jar = holding.get(way)
    if jar is not None:
        missing = next(colour for colour in recipe[wanted] if colour != way)
        return _squeeze_into(world, missing, jar)
    for colour in recipe[way]:
        if jar := holding.get(colour):
            missing = next(other for other in recipe[way] if other != colour)
            return _squeeze_into(world, missing, jar)
    empty = next((jar for jar in jars if jar.first("Paint") is None), None)
    if empty is None:
        return f"pour {jars[0].name} in {world.only('Sink').name}"
    return _squeeze_into(world, recipe[way][0], empty)


def _squeeze_into(world: World, colour: str, jar: Thing) -> str:
    tube = next(tube for tube in world.of_type("Tube") if tube["colour"] == colour)
    return hold(world, tube) or reach(jar) or f"squeeze {tube.name} in {jar.name}"


GAME = Game(
    name="mix-paint",
    build=build,
    actions=(
        TAKE,
        DROP,
        OPEN,
        CLOSE,
        WAIT,
        Action(form="squeeze {} in {}", options=_squeezes, do=squeeze),
        Action(form="pour {} in {}", options=_pours, do=pour),
        Action(form="paint {} with {}", options=_paintings, do=paint),
    ),
    tick=lambda world: "",
    milestones={"isFirstColourMixed": first_mixed, "isMixed": mixed, "isPainted": painted},
    lost=lambda world: False,
    advise=advise,
)
