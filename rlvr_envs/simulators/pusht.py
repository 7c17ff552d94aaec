"""PushT physics: a round pusher and a block on a table, seen from above (pymunk, no torch, no drawing).

Special: the rules are those of the dino_wm variant of PushT (relative actions, kinematic agent, goal *states*), kept in
the same order of operations, so recorded trajectories are reproduced to the last digit. Continuing from a ``snapshot``
is exact, because it replays the actions since the last reset: the engine warm-starts its solver from earlier contacts,
which no state vector holds and which the engine's own copy of a space does not keep faithfully.

Absent: images (``pusht_drawing``), many worlds at once (``pusht_batch``), Gymnasium (``pusht_env``).

State vector (7 numbers): agent x, y; block x, y; block angle; agent velocity x, y. Lengths in px of a 512 px arena with
y pointing down, angles in rad, velocities in px/s. The block's x, y is the origin of its shape (the top middle of the
T), not its centre of mass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pymunk
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

ARENA_PX = 512.0
AGENT_RADIUS_PX = 15.0
ACTION_SCALE_PX = 100.0  # an action of 1 moves the target by 100 px
SUBSTEPS = 10  # physics steps of one action: 10 Hz control of 100 Hz physics
SUBSTEP_SECONDS = 0.01
GAIN_POSITION = 100.0  # 1/s^2
GAIN_VELOCITY = 20.0  # 1/s
WALL_LOW_PX, WALL_HIGH_PX, WALL_RADIUS_PX = 5.0, 506.0, 2.0
GOAL_POSE = (256.0, 256.0, float(np.pi / 4))  # where the green goal picture is drawn
STATE_SIZE = 7

POSITION_TOLERANCE_PX = 20.0
ANGLE_TOLERANCE_RAD = float(np.pi / 9)
COVERAGE_THRESHOLD = 0.95


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """A block made of convex pieces.

    Attributes:
        pieces: One polygon per piece, vertices in px in the block's own frame.
        inertia_of: For each piece, the piece whose moment of inertia is counted for it. The published T counts its bar
            twice and never its stem, the plus its bar three times; changing that would change the dynamics.
    """

    pieces: tuple[tuple[tuple[float, float], ...], ...]
    inertia_of: tuple[int, ...]


def _box(x_low: float, y_low: float, x_high: float, y_high: float) -> tuple[tuple[float, float], ...]:
    return ((x_low, y_low), (x_low, y_high), (x_high, y_high), (x_high, y_low))


# The T is always built with a unit of 30 px, the other shapes with 40 px. The order of the pieces decides the order in
# which their contacts are solved.
BLOCK_SHAPES: dict[str, BlockShape] = {
    "T": BlockShape(pieces=(_box(-60, 0, 60, 30), _box(-15, 30, 15, 120)), inertia_of=(0, 0)),
    "L": BlockShape(pieces=(_box(0, -40, 80, 0), _box(0, 0, 40, 80)), inertia_of=(0, 1)),
    "Z": BlockShape(pieces=(_box(0, 0, 80, 40), _box(-40, -40, 40, 0)), inertia_of=(0, 1)),
    "square": BlockShape(pieces=(_box(-40, -40, 40, 40),), inertia_of=(0,)),
    "I": BlockShape(pieces=(_box(-20, -80, 20, 80),), inertia_of=(0,)),
    "small_tee": BlockShape(pieces=(_box(-60, 0, 60, 40), _box(-20, 40, 20, 80)), inertia_of=(0, 1)),
    "+": BlockShape(
        pieces=(_box(-60, -20, 60, 20), _box(-20, 20, 20, 60), _box(-20, -60, 20, -20)), inertia_of=(0, 0, 0)
    ),
}


def block_shape(name: str) -> BlockShape:
    """The shape of that name.

    Raises:
        ValueError: Unknown name; the message lists what exists.
    """
    if name not in BLOCK_SHAPES:
        raise ValueError(f"unknown block shape {name!r}; choose one of {', '.join(BLOCK_SHAPES)}")
    return BLOCK_SHAPES[name]


def add_block(space: pymunk.Space, shape: BlockShape, offset: tuple[float, float] = (0.0, 0.0)) -> pymunk.Body:
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


def check_finite(name: str, values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """``values`` as float64 of that shape.

    Raises:
        ValueError: Wrong shape or a value that is not finite; names both.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a value that is not finite: {array.tolist()}; give finite numbers")
    return array


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
        self.space = new_space()
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
            acceleration = GAIN_POSITION * (target - self.agent.position) - GAIN_VELOCITY * self.agent.velocity
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


def angle_difference(a: ArrayLike, b: ArrayLike) -> FloatArray:
    """Smallest absolute difference of two angles in rad, in [0, pi], for any number of turns in either."""
    difference = (np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)) % (2 * np.pi)
    return np.minimum(difference, 2 * np.pi - difference)


def reached_state(state: ArrayLike, goal: ArrayLike) -> NDArray[np.bool_]:
    """dino_wm's success rule: agent *and* block within 20 px together, and the block's angle within 20 degrees.

    The distance is the norm over the four position numbers; both bounds are strict; velocities do not count. The
    published rule subtracts angles of more than one turn wrongly and then accepts any angle; here they are wrapped.

    Args:
        state: ``(..., >=5)`` state vectors.
        goal: ``(..., >=5)`` goal states.

    Returns:
        ``(...)`` booleans.
    """
    state, goal = np.asarray(state, dtype=np.float64), np.asarray(goal, dtype=np.float64)
    near = np.linalg.norm(state[..., :4] - goal[..., :4], axis=-1) < POSITION_TOLERANCE_PX
    turned = angle_difference(state[..., 4], goal[..., 4]) < ANGLE_TOLERANCE_RAD
    return near & turned


def covered_goal(state: ArrayLike, goal_pose: ArrayLike = GOAL_POSE) -> bool:
    """gym-pusht's success rule: more than 95 % of the block lies in the goal area, wherever the agent is."""
    values = np.asarray(state, dtype=np.float64)
    return coverage(values[2:5], goal_pose) > COVERAGE_THRESHOLD


def place(piece: ArrayLike, pose: ArrayLike) -> FloatArray:
    """Vertices ``(V, 2)`` of a piece at a pose (x, y, angle), in px."""
    x, y, angle = np.asarray(pose, dtype=np.float64)
    cosine, sine = np.cos(angle), np.sin(angle)
    vertices = np.asarray(piece, dtype=np.float64)
    return np.stack(
        [
            vertices[:, 0] * cosine - vertices[:, 1] * sine + x,
            vertices[:, 0] * sine + vertices[:, 1] * cosine + y,
        ],
        axis=-1,
    )


def coverage(pose: ArrayLike, goal_pose: ArrayLike, *, shape: BlockShape = BLOCK_SHAPES["T"]) -> float:
    """Area of the block at ``pose`` inside the block at ``goal_pose``, divided by the block's area.

    The pieces of a block touch without overlapping, so the areas of the pairwise intersections add up.
    """
    inside = sum(
        _area(_clip(place(piece, pose), place(goal_piece, goal_pose)))
        for piece in shape.pieces
        for goal_piece in shape.pieces
    )
    return float(inside / sum(_area(np.asarray(piece, dtype=np.float64)) for piece in shape.pieces))


def _area(polygon: FloatArray) -> float:
    if len(polygon) < 3:
        return 0.0
    x, y = polygon[:, 0] - polygon[0, 0], polygon[:, 1] - polygon[0, 1]
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def _clip(subject: FloatArray, window: FloatArray) -> FloatArray:
    """Intersection of two convex polygons (Sutherland-Hodgman: cut by one edge of the window after another)."""
    edges = np.roll(window, -1, axis=0) - window
    signed = np.sum(window[:, 0] * np.roll(window[:, 1], -1) - window[:, 1] * np.roll(window[:, 0], -1))
    orientation = 1.0 if signed > 0 else -1.0
    for corner, edge in zip(window, edges, strict=True):
        if len(subject) == 0:
            break
        side = orientation * (edge[0] * (subject[:, 1] - corner[1]) - edge[1] * (subject[:, 0] - corner[0]))
        kept: list[FloatArray] = []
        for i in range(len(subject)):
            j = (i + 1) % len(subject)
            if side[i] >= 0:
                kept.append(subject[i])
            if (side[i] >= 0) != (side[j] >= 0):
                kept.append(subject[i] + (subject[j] - subject[i]) * (side[i] / (side[i] - side[j])))
        subject = np.array(kept).reshape(-1, 2)
    return subject


def sample_state(generator: np.random.Generator) -> FloatArray:
    """A random start: agent anywhere 50 to 450 px, block 100 to 400 px and at any angle, agent at rest.

    The ranges are those of the published environments' seeded reset.
    """
    agent = generator.uniform(50, 450, size=2)
    block = generator.uniform(100, 400, size=2)
    return np.array([*agent, *block, generator.uniform(-np.pi, np.pi), 0.0, 0.0])
