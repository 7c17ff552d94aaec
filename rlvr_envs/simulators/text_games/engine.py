"""What all games share: a turn (action, then tick, then score), the valid actions, starts and transitions.

Special: a turn is a pure function of the record and the action's text; there is no hidden state, no clock and no
chance. Points are given once for each milestone, and the reached ones are written in the task, so that the score
never falls and the record alone tells what it will do.

Absent on purpose: any rule of any game (one module each) and rendering.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np

from rlvr_envs.simulators.text_games.world import Thing, World
from worldmodels.language.game_state import GameState

Argument: TypeAlias = "Thing | int | str"
SCHEMA_VARIATIONS = 30  # enough to see every type and kind; a test compares with many more
_SLOTS = {"{}": r"(.+)", "{number}": r"(\d{1,6})", "{word}": r"(\w+)"}


@dataclass(frozen=True, kw_only=True)
class Action:
    """One kind of action.

    Attributes:
        form: Its text; ``{}`` stands for a thing in reach, ``{number}`` for a whole number, ``{word}`` for a word.
        options: The arguments worth trying in a world: those that change something, and near misses.
        do: Carries it out with any arguments of the right kinds, and says what happened or why nothing did.
    """

    form: str
    options: Callable[[World], Iterable[tuple[Argument, ...]]]
    do: Callable[..., str]

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The placeholders, in order."""
        return tuple(re.findall(r"\{\w*\}", self.form))

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches a text of this form, in lower case."""
        pieces = re.split(r"(\{\w*\})", self.form)
        return re.compile("".join(_SLOTS.get(piece) or re.escape(piece.lower()) for piece in pieces))

    @cached_property
    def _template(self) -> str:
        return re.sub(r"\{\w*\}", "{}", self.form)

    def text(self, arguments: Sequence[Argument]) -> str:
        """The action as text."""
        return self._template.format(
            *[argument.name if type(argument) is Thing else argument for argument in arguments]
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """The rules of one game.

    Attributes:
        name: For example ``"boil-water"``.
        build: A start, drawn from a generator.
        actions: What can be done; a text is read by the first form that fits.
        tick: Time passes by one step, after every understood action; says what was noticed.
        milestones: Names of the task's own true-or-false properties, and when they are reached. Each gives one
            point, once. Reaching the last one wins.
        lost: Whether the game can no longer be won, and ends.
        advise: The next action of a player who knows the rules; raises StopIteration or ValueError where it
            misses something.
    """

    name: str
    build: Callable[[np.random.Generator], World]
    actions: Sequence[Action]
    tick: Callable[[World], str]
    milestones: Mapping[str, Callable[[World], bool]]
    lost: Callable[[World], bool]
    advise: Callable[[World], str]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What an action led to: the next state, and what the game says."""

    state: GameState
    message: str


def start(game: Game, variation: int) -> GameState:
    """The first state of a variation: names, numbers, layout and uuids are drawn from it.

    Raises:
        ValueError: ``variation`` is not a whole number of at least 0.
    """
    if isinstance(variation, bool) or not isinstance(variation, int | np.integer) or variation < 0:
        raise ValueError(f"variation is {variation!r}; it must be a whole number of at least 0")
    world = game.build(np.random.default_rng([int(variation), zlib.crc32(game.name.encode())]))
    for milestone in game.milestones:
        world.task[milestone] = False
    return world.write()


def checked_start(game: Game, state: GameState) -> GameState:
    """A state that somebody gives, if the game can go on from it.

    Its objects need the properties, of the same kinds, that objects of their types have in the game.

    Raises:
        ValueError: Names the object and what it lacks, or says what makes the containment unsound.
    """
    world = World.read(state)
    kinds, needed = _schema(game)
    for type_ in needed:
        world.only(type_)
    for thing in world.things.values():
        above, depth = thing.holder, 0
        while above is not None and depth <= len(world.things):
            above, depth = above.holder, depth + 1
        if above is not None:
            raise ValueError(f"{thing.name!r} is within itself")
        for key, allowed in kinds.get(thing.type, {}).items():
            if type(thing.get(key)) not in allowed:
                wanted = " or ".join(sorted(kind.__name__ for kind in allowed))
                given = repr(thing[key])[:80] if key in thing.properties else "missing"
                raise ValueError(f"{thing.name!r}: property {key!r} is {given}; {game.name} needs {wanted}")
    if world.task["game"] != game.name:
        raise ValueError(f"the state's task is of the game {world.task['game']!r}; expected {game.name!r}")
    for key, value in world.task.properties.items():
        if " (ID: " in str(value) and world.named(value) is None:
            raise ValueError(f"the task's {key!r} is {value!r}, which is no object of the state")
    if world.agent.holder is not world.room:
        raise ValueError(f"the agent is not in {world.room.name!r}")
    return state


def step(game: Game, state: GameState, text: str) -> Turn:
    """Carry out an action given as text.

    A text that is no action, or names something out of reach, changes nothing and takes no time; an action that
    fails takes its time. After the end nothing changes.

    Raises:
        ValueError: The state's containment is not sound.
    """
    if state.game_over:
        return Turn(state=state, message="The game is over.")
    world = World.read(state)
    understood = _understand(game, world, text)
    if isinstance(understood, str):
        return Turn(state=state, message=understood)
    action, arguments = understood
    message = action.do(world, *arguments)
    noticed = game.tick(world)
    _judge(game, world)
    return Turn(state=world.write(), message=f"{message} {noticed}" if noticed else message)


def valid_actions(game: Game, state: GameState) -> list[str]:
    """The texts of all actions worth trying, in a fixed order; empty when the game is over."""
    if state.game_over:
        return []
    world = World.read(state)
    world.hold_still()
    return [action.text(arguments) for action in game.actions for arguments in action.options(world)]


def advise(game: Game, state: GameState) -> str | None:
    """The solver's next action; None where something that it needs is gone for good."""
    try:
        return game.advise(World.read(state))
    except (StopIteration, ValueError):  # it looks for a thing that is no longer there
        return None


def solve(game: Game, variation: int, *, max_steps: int = 60) -> list[str]:
    """The actions with which the solver wins a variation.

    Raises:
        ValueError: It does not win within ``max_steps``.
    """
    state = start(game, variation)
    plan: list[str] = []
    while not state.game_over and len(plan) < max_steps:
        action = advise(game, state)
        if action is None:
            break
        plan.append(action)
        state = step(game, state, action).state
    if not state.game_won:
        raise ValueError(f"{game.name} variation {variation} is not won after {len(plan)} steps")
    return plan


def transitions(
    game: Game, variation: int, *, random_share: float = 0.25, max_steps: int = 40
) -> Iterator[tuple[GameState, str, GameState]]:
    """State, action and next state, for all valid actions in every state along one way through the game.

    Args:
        game: The rules.
        variation: The start; it also seeds the way.
        random_share: Probability in [0, 1] that the way goes on with a random valid action; otherwise with the
            solver's, so that most ways end with a win and many leave the shortest path. Where the solver knows
            no way any more, all is random.
        max_steps: Where the way ends at the latest.

    Raises:
        ValueError: ``random_share`` is not in [0, 1].
    """
    if not 0 <= random_share <= 1:
        raise ValueError(f"random_share is {random_share!r}; it is a probability in [0, 1]")
    generator = np.random.default_rng([variation, zlib.crc32(game.name.encode()), 1])
    state = start(game, variation)
    for _ in range(max_steps):
        if state.game_over:
            return
        actions = valid_actions(game, state)
        for action in actions:
            yield state, action, step(game, state, action).state
        astray = generator.random() < random_share
        choice = actions[int(generator.integers(len(actions)))]
        advice = None if astray else advise(game, state)
        state = step(game, state, choice if advice is None else advice).state


@cache
def _schema(game: Game) -> tuple[dict[str, dict[str, set[type]]], set[str]]:
    """Per type the properties that all its objects have, with their kinds; and the types no state lacks.

    Read off the solver's ways through some variations, so that no game has to say it twice.
    """
    kinds: dict[str, dict[str, set[type]]] = {}
    shared: dict[str, set[str]] = {}
    needed: set[str] | None = None
    for variation in range(SCHEMA_VARIATIONS):
        state = start(game, variation)
        while not state.game_over:
            present = {item["type"] for item in state.objects.values()}
            needed = present if needed is None else needed & present
            for item in state.objects.values():
                keys = item["properties"].keys()
                shared[item["type"]] = shared.get(item["type"], set(keys)) & keys
                for key, value in item["properties"].items():
                    kinds.setdefault(item["type"], {}).setdefault(key, set()).update(_kinds_like(value))
            state = step(game, state, game.advise(World.read(state))).state
    required = {type_: {key: kinds[type_][key] for key in keys} for type_, keys in shared.items() if keys}
    return required, needed or set()


def _kinds_like(value: Any) -> set[type]:
    """Where there is no name now, there may be one later."""
    return {str, type(None)} if value is None else {type(value)}


def _understand(game: Game, world: World, text: str) -> tuple[Action, list[Argument]] | str:
    """The action that a text means, or what the game answers when there is none."""
    lowered = " ".join(text.lower().split())
    reach: dict[str, Thing] | None = None
    unseen = ""
    for action in game.actions:
        match = action.pattern.fullmatch(lowered)
        if match is None:
            continue
        if reach is None:
            reach = _names(world)
        arguments: list[Argument] = []
        for slot, words in zip(action.slots, match.groups(), strict=True):
            if slot == "{}" and words not in reach:
                unseen = words
                break
            arguments.append(reach[words] if slot == "{}" else int(words) if slot == "{number}" else words)
        else:
            return action, arguments
    if unseen:
        return f"There is no {unseen[:80]!r} within reach."
    forms = ", ".join(re.sub(r"\{\w*\}", "...", action.form) for action in game.actions)
    return f"I do not understand {text[:80]!r}. Things to do: {forms}."


def _names(world: World) -> dict[str, Thing]:
    """Things in reach by full name, and without its number where that is enough."""
    names: dict[str, Thing] = {}
    short: dict[str, list[Thing]] = {}
    for thing in world.visible():
        names[thing.name.lower()] = thing
        short.setdefault(thing.words.lower(), []).append(thing)
    return {**{words: things[0] for words, things in short.items() if len(things) == 1}, **names}


def _judge(game: Game, world: World) -> None:
    task = world.task
    reached = False
    for milestone, is_reached in game.milestones.items():
        reached = bool(task[milestone])
        if not reached and is_reached(world):
            task[milestone] = reached = True
            world.score += 1
    world.game_won = reached
    world.game_over = reached or game.lost(world)
