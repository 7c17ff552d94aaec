"""The blocks of PushT: what they look like, and how much of one lies inside another.

Special: plain polygons and numpy, so that the simulator, its drawing and the dream judge a block by the same
geometry.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
_Polygon = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """A block made of convex pieces.

    Attributes:
        pieces: One polygon per piece, vertices in px in the block's own frame.
        inertia_of: For each piece, the piece whose moment of inertia is counted for it. The published T
            counts its bar twice and never its stem, the plus its bar three times; changing that would change
            the dynamics.
    """

    pieces: tuple[tuple[tuple[float, float], ...], ...]
    inertia_of: tuple[int, ...]


def _box(x_low: float, y_low: float, x_high: float, y_high: float) -> tuple[tuple[float, float], ...]:
    return ((x_low, y_low), (x_low, y_high), (x_high, y_high), (x_high, y_low))


# The T is always built with a unit of 30 px, the other shapes with 40 px. The order of the pieces decides the
# order in which their contacts are solved.
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

    The pieces of a block touch without overlapping, so the areas of the pairwise intersections add up. Plain
    floats: for polygons of four corners they are several times faster than arrays, and environments ask at
    every step.
    """
    pieces: list[_Polygon] = [place(piece, pose).tolist() for piece in shape.pieces]
    goals: list[_Polygon] = [place(piece, goal_pose).tolist() for piece in shape.pieces]
    inside = sum(_area(_clip(piece, goal)) for piece in pieces for goal in goals)
    return inside / sum(_area(piece) for piece in pieces)


def _area(polygon: _Polygon) -> float:
    if len(polygon) < 3:
        return 0.0
    x0, y0 = polygon[0]  # relative to one corner: small numbers, less rounding
    twice = 0.0
    for (x1, y1), (x2, y2) in pairwise(polygon[1:]):
        twice += (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    return abs(twice) / 2


def _clip(subject: _Polygon, window: _Polygon) -> _Polygon:
    """Intersection of two convex polygons (Sutherland-Hodgman: cut by the window's edges in turn)."""
    (ax, ay), (bx, by), (cx, cy) = window[:3]
    orientation = 1.0 if (bx - ax) * (cy - ay) > (by - ay) * (cx - ax) else -1.0
    for (ax, ay), (bx, by) in zip(window, window[1:] + window[:1], strict=True):
        ex, ey = orientation * (bx - ax), orientation * (by - ay)
        sides = [ex * (y - ay) - ey * (x - ax) for x, y in subject]
        if all(side < 0 for side in sides):
            return []
        kept: _Polygon = []
        for k, (x, y) in enumerate(subject):
            side, next_side = sides[k], sides[(k + 1) % len(subject)]
            if side >= 0:
                kept.append([x, y])
            if (side >= 0) != (next_side >= 0):
                share = side / (side - next_side)
                next_x, next_y = subject[(k + 1) % len(subject)]
                kept.append([x + (next_x - x) * share, y + (next_y - y) * share])
        subject = kept
    return subject
