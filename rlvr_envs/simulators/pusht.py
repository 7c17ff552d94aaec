"""PushT physics: a round pusher and a block on a table, seen from above (pymunk, no torch, no drawing).

Special: the rules are those of the dino_wm variant of PushT (relative actions, kinematic agent, goal
*states*), kept in the same order of operations, so recorded trajectories are reproduced to the last digit.
Continuing from a ``snapshot`` is exact, because it replays the actions since the last reset: the engine
warm-starts its solver from earlier contacts, which no state vector holds and which the engine's own copy of a
space does not keep faithfully.

Absent: images (``pusht_drawing``), many worlds at once (``pusht_batch``), Gymnasium (``pusht_env``).

State vector (7 numbers): agent x, y; block x, y; block angle; agent velocity x, y. Lengths in px of a 512 px
arena with y pointing down, angles in rad, velocities in px/s. The block's x, y is the origin of its shape
(the top middle of the T), not its centre of mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pymunk
from numpy.typing import ArrayLike

from rlvr_envs.block_shapes import BLOCK_SHAPES as BLOCK_SHAPES
from rlvr_envs.block_shapes import BlockShape, FloatArray, block_shape, coverage
from rlvr_envs.block_shapes import place as place
from rlvr_envs.tasks import ANGLE_TOLERANCE_RAD as ANGLE_TOLERANCE_RAD
from rlvr_envs.tasks import ARENA_PX as ARENA_PX
from rlvr_envs.tasks import COVERAGE_THRESHOLD as COVERAGE_THRESHOLD
from rlvr_envs.tasks import GOAL_POSE, STATE_SIZE, check_finite
from rlvr_envs.tasks import POSITION_TOLERANCE_PX as POSITION_TOLERANCE_PX
from rlvr_envs.tasks import angle_difference as angle_difference
from rlvr_envs.tasks import covered_goal as covered_goal
from rlvr_envs.tasks import reached_state as reached_state

AGENT_RADIUS_PX = 15.0
ACTION_SCALE_PX = 100.0  # an action of 1 moves the target by 100 px
SUBSTEPS = 10  # physics steps of one action: 10 Hz control of 100 Hz physics
SUBSTEP_SECONDS = 0.01
GAIN_POSITION = 100.0  # 1/s^2
GAIN_VELOCITY = 20.0  # 1/s
WALL_LOW_PX, WALL_HIGH_PX, WALL_RADIUS_PX = 5.0, 506.0, 2.0


def add_block(
    space: pymunk.Space, shape: BlockShape, offset: tuple[float, float] = (0.0, 0.0)
) -> pymunk.Body:
    """Add a block of mass 1 at ``offset`` with angle 0 and return its body."""
    moments = [pymunk.moment_for_poly(1, list(piece)) for piece in shape.pieces]
    body = pymunk.Body(1, sum(moments[i] for i in shape.inertia_of))
    pieces = [pymunk.Poly(body, list(piece)) for piece in shape.pieces]
    centres = [piece.center_of_gravity for piece in pieces]
    total = centres[0]
    for centre in centres[1:]:
        total = total + centre
    body.center_of_gravity = total / len(pieces)
    body.position = offset
    space.add(body, *pieces)
    return body


def add_agent(space: pymunk.Space, offset: tuple[float, float] = (0.0, 0.0)) -> pymunk.Body:
    """Add the kinematic agent: it goes through walls and pushes with any force, and nothing pushes it."""
    body = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
    body.position = offset
    space.add(body, pymunk.Circle(body, AGENT_RADIUS_PX))
    return body


def add_walls(space: pymunk.Space, offset: tuple[float, float] = (0.0, 0.0)) -> None:
    """Add the four walls of one arena."""
    low, high = WALL_LOW_PX, WALL_HIGH_PX
    corners = [(low, high), (low, low), (high, low), (high, high)]
    corners = [(x + offset[0], y + offset[1]) for x, y in corners]
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        space.add(pymunk.Segment(space.static_body, start, end, WALL_RADIUS_PX))


def new_space() -> pymunk.Space:
    """A space without gravity in which a block keeps no velocity from one substep to the next (quasi-static)."""
    space = pymunk.Space()
    space.gravity = (0, 0)
    space.damping = 0
    return space


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A moment of a world: where it started (with or without the settling substep) and what was done since."""

    start: tuple[float, ...]
    settled: bool
    actions: tuple[tuple[float, float], ...]


class PushTWorld:
    """One PushT table.

    Args:
        shape: Name of the block's shape, one of ``BLOCK_SHAPES``.
    """

    def __init__(self, *, shape: str = "T") -> None:
        self.shape = block_shape(shape)
        self.reset(np.array([256.0, 400.0, 256.0, 300.0, 0.0, 0.0, 0.0]))

    def reset(self, state: ArrayLike) -> FloatArray:
        """Build the world anew at ``state`` (7 numbers) as the published environment does, and return the state.

        One physics substep of 0.01 s follows, in which the agent already moves and overlapping bodies start to
        separate.
        """
        self.set_state(state)
        self.space.step(SUBSTEP_SECONDS)
        self._settled = True
        return self.state()

    def set_state(self, state: ArrayLike) -> None:
        """Build the world anew exactly at ``state`` (7 numbers), without a physics step."""
        values = check_finite("state", state, (STATE_SIZE,))
        self._start, self._settled = tuple(values.tolist()), False
        self._actions: list[tuple[float, float]] = []
        self.space: pymunk.Space = new_space()
        add_walls(self.space)
        self.agent = add_agent(self.space)
        self.block = add_block(self.space, self.shape)
        self.agent.velocity = (values[5], values[6])
        self.agent.position = (values[0], values[1])
        # Angle before position: setting the angle turns the block about its centre of mass and moves its origin.
        self.block.angle = values[4]
        self.block.position = (values[2], values[3])
        self.space.reindex_shapes_for_body(self.agent)
        self.space.reindex_shapes_for_body(self.block)

    def step(self, action: ArrayLike) -> FloatArray:
        """Move the target to agent + 100 px * ``action`` (2 numbers, unbounded) for 0.1 s; return the new state."""
        values = check_finite("action", action, (2,))
        target = self.agent.position + pymunk.Vec2d(values[0], values[1]) * ACTION_SCALE_PX
        for _ in range(SUBSTEPS):
            acceleration = (
                GAIN_POSITION * (target - self.agent.position) - GAIN_VELOCITY * self.agent.velocity
            )
            self.agent.velocity += acceleration * SUBSTEP_SECONDS
            self.space.step(SUBSTEP_SECONDS)
        self._actions.append((float(values[0]), float(values[1])))
        return self.state()

    def raw(self) -> FloatArray:
        """10 numbers: agent x, y; block x, y; block angle *not wrapped*; agent v; block v; block angular velocity."""
        agent, block = self.agent, self.block
        return np.array(
            [
                *agent.position,
                *block.position,
                block.angle,
                *agent.velocity,
                *block.velocity,
                block.angular_velocity,
            ]
        )

    def state(self) -> FloatArray:
        """The 7 numbers of the state vector, with the angle wrapped to [0, 2 pi)."""
        raw = self.raw()
        return np.array([*raw[:4], raw[4] % (2 * np.pi), *raw[5:7]])

    def snapshot(self) -> Snapshot:
        """Everything that leads here; ``restore`` continues from it exactly."""
        return Snapshot(start=self._start, settled=self._settled, actions=tuple(self._actions))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot by replaying it (about 0.15 ms per action); it stays valid."""
        if snapshot.settled:
            self.reset(snapshot.start)
        else:
            self.set_state(snapshot.start)
        for action in snapshot.actions:
            self.step(action)

    def coverage(self, goal_pose: ArrayLike = GOAL_POSE) -> float:
        """Share of the block that lies inside the same block at ``goal_pose`` (x, y, angle), in [0, 1]."""
        state = self.state()
        return coverage(state[2:5], goal_pose, shape=self.shape)
