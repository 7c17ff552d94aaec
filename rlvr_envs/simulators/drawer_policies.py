"""Scripted behaviour in the drawer world: an expert for each task, and failures on purpose.

Special: a script is a Python generator that is sent states and yields actions, so that it reads from top to
bottom like the motion it makes. Scripts know the state. A world model that has seen nothing but success
imagines success everywhere; the failures in :data:`KINDS` show it what else can happen.

Absent: perception; Gymnasium.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.drawer_rules import (
    DRAWERS,
    GAP,
    HAND,
    HANDLE_HEIGHTS_M,
    MAX_GAP_M,
    OPEN_AT_LEAST_M,
    OPENINGS,
    TASKS,
    TURN,
    DrawerTask,
    FloatArray,
    handle_position,
)

Action: TypeAlias = NDArray[np.float32]
# What a script yields, is sent, and returns.
Script: TypeAlias = Generator[Action, FloatArray, FloatArray]

# All behaviours, and the share of each in training data.
KINDS: dict[str, float] = {
    "expert": 0.35,  # does the task, tries again if the drawer did not come along, then ends the episode
    "play": 0.10,  # opens and shuts drawers one after the other, without end
    "miss": 0.12,  # aims 6 to 16 cm beside the handle, or stops short of the drawer; does not notice
    "slip": 0.08,  # lets go on the way and moves on without the drawer
    "half": 0.10,  # stops half-way and stays
    "wrong": 0.08,  # does the same with another drawer
    "hover": 0.05,  # wavers about where it is
    "smooth": 0.06,  # random slow motion anywhere, contacts included
    "noise": 0.03,  # independent random actions
    "early": 0.03,  # an expert that ends the episode too soon
}

CLEAR_M = 0.09  # a hand this far in front of a handle touches nothing
ARRIVED_M = 0.012
STOP, GO_ON = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


def drawer_action(shift: FloatArray, turn: FloatArray, closing: float, *, stop: bool = False) -> Action:
    """RT-1's 13 numbers of a motion; the base stands still."""
    return np.concatenate([(0, 0, 0, closing), turn, STOP if stop else GO_ON, shift]).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class _Manner:
    """How one episode's hand moves, and what goes wrong in it.

    Attributes:
        generator: Source of all randomness.
        speed_m, noise_m: Longest displacement and its standard deviation per step.
        aim_m: ``(3,)``: where the hand goes, seen from the middle of the handle.
        goal_m: Opening at which the script is content.
        let_go_m: Opening at which the fingers slip, or None.
        stay: Stop at the goal without letting go.
        retries: Further attempts.
        short_m: A push ends this far in front of the handle; 0 pushes the drawer.
    """

    generator: np.random.Generator
    speed_m: float
    noise_m: float
    aim_m: FloatArray
    goal_m: float
    let_go_m: float | None = None
    stay: bool = False
    retries: int = 2
    short_m: float = 0.0


class DrawerPolicy:
    """Runs one script for one episode, then hovers.

    Args:
        script: Makes the script from the first state.
        generator: Source of the hovering.
        stops: The script's end ends the episode (the action's flag); else hovering just follows.
        stop_after: Cut the script after this many steps.
    """

    def __init__(
        self,
        script: Callable[[FloatArray], Script],
        generator: np.random.Generator,
        *,
        stops: bool,
        stop_after: int | None = None,
    ) -> None:
        self._make, self._generator = script, generator
        self._stops, self._stop_after = stops, stop_after
        self._script: Script | None = None
        self._steps = 0

    def act(self, state: FloatArray) -> Action:
        """The action ``(13,)`` float32 in a state ``(10,)``."""
        self._steps += 1
        if self._script is None:
            self._script = self._whole(state)
            return next(self._script)
        return self._script.send(state)

    def _whole(self, state: FloatArray) -> Script:
        script = self._make(state)
        try:
            action = next(script)
            while self._stop_after is None or self._steps <= self._stop_after:
                state = yield action
                action = script.send(state)
        except StopIteration as end:
            state = end.value
        if self._stops:
            state = yield drawer_action(np.zeros(3), np.zeros(3), 0.0, stop=True)
        return (yield from _waver(state, self._generator, reach_m=0.03))


def make_policy(kind: str, task: DrawerTask, generator: np.random.Generator) -> DrawerPolicy:
    """A policy for one episode.

    Args:
        kind: One of :data:`KINDS`.
        task: What to do; the kinds without a purpose ignore it.
        generator: Source of all randomness.

    Raises:
        ValueError: Unknown kind; lists all and suggests the nearest.
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f" did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown kind {kind!r};{hint} the kinds are {', '.join(KINDS)}")
    if kind == "hover":
        return DrawerPolicy(lambda state: _waver(state, generator, reach_m=0.06), generator, stops=False)
    if kind == "smooth":
        return DrawerPolicy(lambda state: _drift(state, generator), generator, stops=False)
    if kind == "noise":
        return DrawerPolicy(lambda _: _noise(generator), generator, stops=False)
    if kind == "play":
        return DrawerPolicy(lambda state: _play(state, generator), generator, stops=False)
    if kind == "wrong":
        others = [name for name in DRAWERS if name != task.drawer]
        verb = "open" if task.opens else "close"
        task = TASKS[f"{verb}_{others[int(generator.integers(2))]}_drawer"]
    manner = _manner(kind, task, generator)
    return DrawerPolicy(
        lambda state: _do(state, task, manner),
        generator,
        stops=kind != "half",
        stop_after=int(generator.integers(3, 16)) if kind == "early" else None,
    )


def _manner(kind: str, task: DrawerTask, generator: np.random.Generator) -> _Manner:
    uniform = generator.uniform
    aim = np.array([0.008, uniform(-0.04, 0.04), uniform(-0.006, 0.006)])
    goal = uniform(0.18, 0.26) if task.opens else uniform(0.0, 0.02)
    let_go, short, retries = None, 0.0, 2
    if kind == "miss":
        retries = 0
        sign = 1.0 if generator.uniform() < 0.5 else -1.0
        if not task.opens:
            short = uniform(0.03, 0.08)
        elif generator.uniform() < 0.5:
            aim[1] = sign * uniform(0.12, 0.16)  # beside the bar, which ends at 0.09
        else:
            aim[2] = sign * uniform(0.065, 0.10)  # over or under it
            aim[0] = -0.01
    if kind == "slip":
        let_go, retries = (uniform(0.03, 0.12) if task.opens else uniform(0.08, 0.14)), 0
    if kind == "half":
        goal, retries = (uniform(0.04, 0.13) if task.opens else uniform(0.07, 0.12)), 0
    return _Manner(
        generator=generator,
        speed_m=uniform(0.03, 0.06),
        noise_m=uniform(0.0, 0.008),
        aim_m=aim,
        goal_m=goal,
        let_go_m=let_go,
        stay=kind == "half",
        retries=retries,
        short_m=short,
    )


def _do(state: FloatArray, task: DrawerTask, manner: _Manner) -> Script:
    return _open(state, task, manner) if task.opens else _close(state, task, manner)


def _play(state: FloatArray, generator: np.random.Generator) -> Script:
    """Open a drawer that is shut or shut one that is open, for ever."""
    while True:
        number = int(generator.integers(len(DRAWERS)))
        verb = "close" if state[OPENINGS][number] > OPEN_AT_LEAST_M / 2 else "open"
        task = TASKS[f"{verb}_{DRAWERS[number]}_drawer"]
        state = yield from _do(state, task, _manner("play", task, generator))


def _open(state: FloatArray, task: DrawerTask, manner: _Manner) -> Script:
    """Open the fingers, go before the handle, over it, close, pull, let go, step back."""
    for _ in range(1 + manner.retries):
        state = yield from _travel(state, lambda s: _before(s, task, manner), manner, gap=MAX_GAP_M)
        state = yield from _travel(state, lambda s: _aim(s, task, manner), manner, gap=MAX_GAP_M)
        for _ in range(2):
            state = yield _towards(state, state[HAND], manner, gap=0.0)
        grip_m = state[0] - handle_position(state, task.drawer)[0]
        for _ in range(25):
            slipped = manner.let_go_m is not None and state[task.column] >= manner.let_go_m
            behind = state[0] - handle_position(state, task.drawer)[0] - grip_m
            if slipped or state[task.column] >= manner.goal_m or behind < -0.10:
                break
            target = state[HAND] - (manner.speed_m, 0, 0)
            target[2] = HANDLE_HEIGHTS_M[task.drawer] + manner.aim_m[2]
            state = yield _towards(state, target, manner, gap=0.0)
        if state[task.column] >= manner.goal_m - 0.02 or manner.retries == 0:
            break
    if manner.stay:
        return (yield from _still())
    for _ in range(2):
        state = yield _towards(state, state[HAND], manner, gap=MAX_GAP_M)
    back = state[HAND] - (0.09, 0, 0)
    return (yield from _travel(state, lambda _: back, manner, gap=MAX_GAP_M))


def _close(state: FloatArray, task: DrawerTask, manner: _Manner) -> Script:
    """Close the fingers, go before the handle, push until the drawer is shut, step back."""
    for _ in range(1 + manner.retries):
        state = yield from _travel(state, lambda s: _before(s, task, manner), manner, gap=0.0)
        stop_x = handle_position(state, task.drawer)[0] - manner.short_m - 0.03
        for _ in range(25):
            slipped = manner.let_go_m is not None and state[task.column] <= manner.let_go_m
            if slipped or state[task.column] <= manner.goal_m or (manner.short_m and state[0] >= stop_x):
                break
            target = _aim(state, task, manner) + np.array([manner.speed_m, 0, 0])
            state = yield _towards(state, target, manner, gap=0.0)
        if state[task.column] <= manner.goal_m + 0.02 or manner.retries == 0:
            break
    if manner.stay:
        return (yield from _still())
    back = state[HAND] - (0.10, 0, 0)
    return (yield from _travel(state, lambda _: back, manner, gap=None))


def _before(state: FloatArray, task: DrawerTask, manner: _Manner) -> FloatArray:
    """A point before the aimed one that is clear of every drawer."""
    target = _aim(state, task, manner)
    target[0] = min(handle_position(state, drawer)[0] for drawer in DRAWERS) - CLEAR_M
    return target


def _aim(state: FloatArray, task: DrawerTask, manner: _Manner) -> FloatArray:
    return handle_position(state, task.drawer) + manner.aim_m


def _towards(state: FloatArray, target: FloatArray, manner: _Manner, *, gap: float | None) -> Action:
    """One step towards a place, levelling the hand; ``gap`` is what the fingers shall have between them."""
    offset = target - state[HAND]
    shift = offset * min(1.0, manner.speed_m / max(float(np.linalg.norm(offset)), 1e-9))
    shift = shift + manner.generator.normal(size=3) * manner.noise_m
    turn = np.clip(-state[TURN], -0.12, 0.12)
    closing = 0.0 if gap is None else float(np.clip((state[GAP] - gap) / MAX_GAP_M, -1, 1))
    return drawer_action(shift, turn, closing if abs(closing) > 0.02 else 0.0)


def _travel(
    state: FloatArray, target: Callable[[FloatArray], FloatArray], manner: _Manner, *, gap: float | None
) -> Script:
    """Go to a place that may move, for at most 30 steps."""
    for _ in range(30):
        if float(np.linalg.norm(target(state) - state[HAND])) < ARRIVED_M + manner.noise_m:
            break
        state = yield _towards(state, target(state), manner, gap=gap)
    return state


def _still() -> Script:
    """Do nothing, for ever."""
    while True:
        yield drawer_action(np.zeros(3), np.zeros(3), 0.0)


def _waver(state: FloatArray, generator: np.random.Generator, *, reach_m: float) -> Script:
    """Waver about the present place, for ever, and rarely open or close the fingers."""
    anchor, velocity = state[HAND].copy(), np.zeros(3)
    while True:
        velocity = 0.7 * velocity + generator.normal(size=3) * reach_m / 4
        shift = velocity + 0.3 * (anchor - state[HAND])
        closing = float(generator.choice((-1.0, 1.0))) if generator.uniform() < 0.04 else 0.0
        state = yield drawer_action(shift, generator.normal(size=3) * 0.02, closing)


def _drift(state: FloatArray, generator: np.random.Generator) -> Script:
    """Slow random motion, drawn to one random place after another before and at the cabinet, for ever."""
    velocity, turn = np.zeros(3), np.zeros(3)
    while True:
        target = generator.uniform((0.15, -0.2, 0.12), (0.68, 0.2, 0.75))
        closing = float(generator.uniform(-1, 1))
        for _ in range(12):
            pull = np.clip(target - state[HAND], -0.3, 0.3)
            velocity = 0.6 * velocity + 0.12 * pull + generator.normal(size=3) * 0.015
            turn = 0.6 * turn - 0.1 * state[TURN] + generator.normal(size=3) * 0.05
            state = yield drawer_action(velocity, turn, closing)
            closing *= 0.5


def _noise(generator: np.random.Generator) -> Script:
    """Independent actions of one random size, for ever."""
    size = generator.uniform(0.02, 0.08)
    while True:
        yield drawer_action(
            generator.normal(size=3) * size, generator.normal(size=3) * 0.15, float(generator.uniform(-1, 1))
        )
