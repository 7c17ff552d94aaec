"""Actions that several games share, and the steps of a player who wants something to be somewhere."""

from __future__ import annotations

from collections.abc import Iterator

from rlvr_envs.simulators.text_games.engine import Action
from rlvr_envs.simulators.text_games.world import AGENT, ROOM, Thing, World


def _visible(world: World) -> Iterator[tuple[Thing]]:
    return ((thing,) for thing in world.visible())


def _containers(world: World) -> Iterator[tuple[Thing]]:
    return ((thing,) for thing in world.visible() if thing.get("isContainer"))


def _devices(world: World) -> Iterator[tuple[Thing]]:
    return ((thing,) for thing in world.visible() if thing.get("isOn") is not None)


def take(world: World, thing: Thing) -> str:
    """Into the agent's hands."""
    if world.carries(thing):
        return f"You already have the {thing.words}."
    if not thing.get("isMoveable"):
        return f"You can't take the {thing.words}."
    world.move(thing, world.agent)
    return f"You take the {thing.words}."


def _puttable(world: World) -> Iterator[tuple[Thing, Thing]]:
    places = [place for place in world.visible() if place.get("isContainer")]
    for thing in world.agent.contents:
        for place in places:
            if place is not thing and not place.is_in(thing):
                yield thing, place


def put(world: World, thing: Thing, place: Thing) -> str:
    """From the agent's hands into or onto something, as far as ``capacity`` allows."""
    if not world.carries(thing):
        return f"You don't have the {thing.words}."
    if not place.get("isContainer") or place is thing or place.is_in(thing):
        return f"Nothing can be put into the {place.words}."
    if not place.get("isOpen", True):
        return f"The {place.words} is closed."
    if len(place.contents) >= place.get("capacity", 99):
        return f"There is no room left in the {place.words}."
    world.move(thing, place)
    return f"You put the {thing.words} into the {place.words}."


def drop(world: World, thing: Thing) -> str:
    """From the agent's hands onto the floor."""
    if not world.carries(thing):
        return f"You don't have the {thing.words}."
    world.move(thing, world.room)
    return f"You drop the {thing.words}."


def _switch(thing: Thing, property_: str, to: bool, verb: str, done: str, state: str) -> str:
    """Set a property that is either so or so already, where there is one."""
    if thing.get(property_) is None:
        return f"The {thing.words} can't be {done}."
    if thing[property_] == to:
        return f"The {thing.words} is already {state}."
    thing[property_] = to
    return f"You {verb} the {thing.words}."


def open_(world: World, thing: Thing) -> str:
    """Unless it is locked."""
    if thing.get("isOpen") is False and thing.get("isLocked"):
        return f"The {thing.words} is locked."
    return _switch(thing, "isOpen", True, "open", "opened", "open")


def close(world: World, thing: Thing) -> str:
    """What can be opened can be closed."""
    return _switch(thing, "isOpen", False, "close", "closed", "closed")


def turn_on(world: World, thing: Thing) -> str:
    """A device that is not broken."""
    if thing.get("isOn") is False and thing.get("isBroken"):
        return f"The {thing.words} is broken and stays off."
    return _switch(thing, "isOn", True, "turn on", "turned on", "on")


def turn_off(world: World, thing: Thing) -> str:
    """Any device."""
    return _switch(thing, "isOn", False, "turn off", "turned off", "off")


TAKE = Action(form="take {}", options=_visible, do=take)
PUT = Action(form="put {} in {}", options=_puttable, do=put)
DROP = Action(form="drop {}", options=lambda world: ((thing,) for thing in world.agent.contents), do=drop)
OPEN = Action(form="open {}", options=_containers, do=open_)
CLOSE = Action(form="close {}", options=_containers, do=close)
TURN_ON = Action(form="turn on {}", options=_devices, do=turn_on)
TURN_OFF = Action(form="turn off {}", options=_devices, do=turn_off)
WAIT = Action(form="wait", options=lambda world: ((),), do=lambda world: "You wait.")


def reach(thing: Thing) -> str | None:
    """A player's next action towards reaching a thing: open what it is in; None when it is within reach."""
    closed = None
    above = thing.holder
    while above is not None:
        if not above.get("isOpen", True):
            closed = above  # the outermost one first
        above = above.holder
    return None if closed is None else f"open {closed.name}"


def hold(world: World, thing: Thing) -> str | None:
    """A player's next action towards having a thing in hand; None when it is there."""
    if world.carries(thing):
        return None
    return reach(thing) or f"take {thing.name}"


def bring(world: World, thing: Thing, place: Thing) -> str | None:
    """A player's next action towards having a thing in a place; None when it is there.

    What fills the place up is taken out first.
    """
    if thing.holder is place:
        return None
    if action := hold(world, thing):
        return action
    if action := reach(place):
        return action
    if not place.get("isOpen", True):
        return f"open {place.name}"
    if place.type not in (AGENT, ROOM) and len(place.contents) >= place.get("capacity", 99):
        return f"take {place.contents[0].name}"
    return f"put {thing.name} in {place.name}"
