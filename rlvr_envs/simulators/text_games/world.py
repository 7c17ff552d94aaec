"""A game's world while it changes: things that hold things, read from a state's record and written back.

Special: it keeps nothing but what the record says, so a world read from a record goes on exactly like the world
that wrote it. Things that did not change are written back as the very same objects.

Absent on purpose: rules. What things do is said by the games.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodels.language.game_state import GameObject, GameState

ROOM, AGENT, TASK = "World", "Agent", "Task"


class Thing:
    """One object: ``properties`` are flat JSON values, ``contents`` the things directly in or on it."""

    __slots__ = ("contents", "holder", "name", "properties", "type", "uuid")

    def __init__(self, uuid: int, name: str, type_: str, properties: dict[str, Any]) -> None:
        self.uuid = uuid
        self.name = name
        self.type = type_
        self.properties = properties
        self.contents: list[Thing] = []
        self.holder: Thing | None = None

    def __getitem__(self, key: str) -> Any:
        return self.properties[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.properties[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """A property, or ``default`` where the thing has none of that name."""
        return self.properties.get(key, default)

    @property
    def words(self) -> str:
        """The name without its number."""
        return self.name.partition(" (ID: ")[0]

    def is_in(self, holder: Thing) -> bool:
        """Whether it is in ``holder``, directly or not."""
        above: Thing | None = self.holder
        while above is not None and above is not holder:
            above = above.holder
        return above is holder

    def first(self, type_: str) -> Thing | None:
        """The first thing of a type directly in this one."""
        return next((thing for thing in self.contents if thing.type == type_), None)


class World:
    """All things of a game, the score, and whether it is over.

    Attributes:
        things: By uuid. One each of type ``World`` (the room), ``Agent`` (whose contents are carried) and
            ``Task`` (what is to be done, and which milestones are reached).
    """

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.score: float = 0
        self.game_over = False
        self.game_won = False
        self._written: Mapping[int, GameObject] = {}
        self._next_uuid = 0
        self._visible: list[Thing] | None = None

    @classmethod
    def new(cls, room: str, *, game: str) -> World:
        """A room with the agent and the task in it, and nothing else."""
        world = cls()
        world.add("agent", AGENT, holder=None, isContainer=True)
        place = world.add(room, ROOM, holder=None, isContainer=True)
        world.add("task", TASK, isMoveable=False, game=game)
        world.move(world.agent, place)
        return world

    @classmethod
    def read(cls, state: GameState) -> World:
        """The world of a record.

        Raises:
            ValueError: Names are not unique, or something lies in two places or in nothing that exists, or
                there is not exactly one room, agent and task.
        """
        world = cls()
        world.score = state.score
        world.game_over, world.game_won = state.game_over, state.game_won
        world._written = state.objects
        world._next_uuid = max(state.objects, default=-1) + 1
        by_name: dict[str, Thing] = {}
        for uuid, item in sorted(state.objects.items()):
            thing = Thing(uuid, item["name"], item["type"], dict(item["properties"]))
            world.things[uuid] = by_name[thing.name] = thing
        if len(by_name) != len(world.things):
            raise ValueError("two objects of the state have the same name; names are unique in a game")
        for uuid, item in state.objects.items():
            holder = world.things[uuid]
            for name in item["contains"]:
                inner = by_name.get(name)
                if inner is None:
                    raise ValueError(f"{holder.name!r} contains {name!r}, which is no object of the state")
                if inner.holder is not None:
                    raise ValueError(f"{name!r} is in {holder.name!r} and in {inner.holder.name!r}")
                inner.holder = holder
                holder.contents.append(inner)
            if len(holder.contents) > 1:  # the order of a record says nothing, so it must decide nothing
                holder.contents.sort(key=_uuid)
        return world

    def write(self) -> GameState:
        """The record of this moment; the world must not be used after it."""
        objects: dict[int, GameObject] = {}
        for uuid, thing in self.things.items():
            contains = [inner.name for inner in thing.contents]
            before = self._written.get(uuid)
            if (
                before is not None
                and before["name"] == thing.name
                and before["contains"] == contains
                and before["properties"] == thing.properties
            ):
                objects[uuid] = before
            else:
                objects[uuid] = {
                    "name": thing.name,
                    "uuid": uuid,
                    "type": thing.type,
                    "properties": thing.properties,
                    "contains": contains,
                }
        return GameState(objects=objects, score=self.score, game_over=self.game_over, game_won=self.game_won)

    @property
    def agent(self) -> Thing:
        """Who acts."""
        return self.only(AGENT)

    @property
    def room(self) -> Thing:
        """What everything is in."""
        return self.only(ROOM)

    @property
    def task(self) -> Thing:
        """What is to be done."""
        return self.only(TASK)

    def only(self, type_: str) -> Thing:
        """The first thing of a type.

        Raises:
            ValueError: There is none.
        """
        for thing in self.things.values():
            if thing.type == type_:
                return thing
        raise ValueError(f"the state has no object of type {type_!r}, which this game needs")

    def of_type(self, *types: str) -> list[Thing]:
        """All things of these types."""
        return [thing for thing in self.things.values() if thing.type in types]

    def named(self, name: str | None) -> Thing | None:
        """The thing with this full name, or None."""
        return next((thing for thing in self.things.values() if thing.name == name), None)

    def add(self, words: str, type_: str, *, holder: Thing | str | None = "room", **properties: Any) -> Thing:
        """A new thing, in the room unless a holder is given.

        Its uuid is one above the highest of the record and of what came after: what goes in a turn does not give
        its number to what comes.
        """
        uuid = self._next_uuid
        self._next_uuid += 1
        thing = Thing(uuid, f"{words} (ID: {uuid})", type_, properties)
        self.things[uuid] = thing
        if holder == "room":
            holder = self.room
        if isinstance(holder, Thing):
            self.move(thing, holder)
        return thing

    def move(self, thing: Thing, holder: Thing) -> None:
        """Put a thing into another, whatever the rules say."""
        if thing.holder is not None:
            thing.holder.contents.remove(thing)
        thing.holder = holder
        holder.contents.append(thing)

    def remove(self, thing: Thing) -> None:
        """Take a thing out of the world; what is in it goes too."""
        for inner in tuple(thing.contents):
            self.remove(inner)
        if thing.holder is not None:
            thing.holder.contents.remove(thing)
        del self.things[thing.uuid]

    def visible(self) -> list[Thing]:
        """What can be reached: all but room, agent and task, and not what is in something closed."""
        if self._visible is not None:
            return self._visible
        found: list[Thing] = []
        _gather(self.room, found)
        return found

    def seen(self, *types: str) -> list[Thing]:
        """What can be reached of these types."""
        return [thing for thing in self.visible() if thing.type in types]

    def hold_still(self) -> None:
        """Promise that nothing changes any more: what is visible is looked up only once."""
        self._visible = self.visible()

    def carries(self, thing: Thing) -> bool:
        """Whether the agent holds it directly."""
        return thing.holder is not None and thing.holder.type == AGENT

    def shuffle(self, generator: np.random.Generator) -> None:
        """Deal the uuids out anew (agent, room and task keep theirs): before names are used anywhere."""
        fixed = [thing for thing in self.things.values() if thing.type in (AGENT, ROOM, TASK)]
        others = [thing for thing in self.things.values() if thing.type not in (AGENT, ROOM, TASK)]
        dealt = [others[place] for place in generator.permutation(len(others))]
        self.things = {}
        for uuid, thing in enumerate(fixed + dealt):
            thing.name = f"{thing.words} (ID: {uuid})"
            thing.uuid = uuid
            self.things[uuid] = thing


def _uuid(thing: Thing) -> int:
    return thing.uuid


def _gather(holder: Thing, found: list[Thing]) -> None:
    for thing in holder.contents:
        if thing.type == TASK:
            continue
        if thing.type != AGENT:
            found.append(thing)
        if thing.contents and thing.properties.get("isOpen", True):
            _gather(thing, found)
