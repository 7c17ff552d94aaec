"""PushT pictures, drawn without a window.

Special: shapes are rasterised by pygame on a 512 x 512 surface with corners rounded to whole pixels and then
resized with OpenCV, because that is how the published frames were made: at 224 px they come out equal. Small
frames (the 64 px of the bundled world model) are drawn at 256 px and averaged, four times less work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import cv2
import numpy as np
import pygame
import pymunk
from numpy.typing import ArrayLike, NDArray

from rlvr_envs.simulators.pusht import (
    AGENT_RADIUS_PX,
    ARENA_PX,
    BLOCK_SHAPES,
    GOAL_POSE,
    WALL_HIGH_PX,
    WALL_LOW_PX,
    WALL_RADIUS_PX,
    FloatArray,
    PushTWorld,
    place,
)

Colour = tuple[int, int, int]
BACKGROUND: Colour = (255, 255, 255)
WALL: Colour = (211, 211, 211)
GOAL: Colour = (144, 238, 144)
AGENT: Colour = (65, 105, 225)
BLOCK: Colour = (119, 136, 153)
OUTLINE_RADIUS_PX = 2.0
AGENT_RIM_PX = 4.0
SMALL_CANVAS_PX = 256  # frames of up to 64 px are drawn at this size first


class PushTDrawing:
    """Draws states as RGB frames.

    Args:
        size: Width and height of a frame in px.
        shape: The block's shape.
        goal_pose: Where the green goal is painted (x, y, angle), or None for none.
    """

    def __init__(
        self, *, size: int = 64, shape: str = "T", goal_pose: Sequence[float] | None = GOAL_POSE
    ) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; a frame needs at least 1 px")
        self.size = size
        self._pieces = BLOCK_SHAPES[shape].pieces
        canvas = SMALL_CANVAS_PX if size <= SMALL_CANVAS_PX // 4 else int(ARENA_PX)
        self._scale = canvas / ARENA_PX
        self._area = size <= SMALL_CANVAS_PX // 4
        self._surface = pygame.Surface((canvas, canvas), depth=32)
        self._background = pygame.Surface((canvas, canvas), depth=32)
        self._background.fill(BACKGROUND)
        if goal_pose is not None:
            for piece in self._pieces:
                pygame.draw.polygon(self._background, GOAL, self._corners(place(piece, goal_pose)))
        self._walls()

    def frame(self, state: ArrayLike) -> NDArray[np.uint8]:
        """The frame ``(size, size, 3)`` uint8 of a state (agent x, y, block x, y, angle, ...)."""
        values = np.asarray(state, dtype=np.float64)
        self._surface.blit(self._background, (0, 0))
        for piece in self._pieces:
            self._block(place(piece, values[2:5]))
        self._agent(values[:2])
        return self._resized()

    def engine_frame(self, world: PushTWorld) -> NDArray[np.uint8]:
        """The frame ``(size, size, 3)`` uint8 as the published environments show a live world.

        The physics engine then decides which shape covers which, and marks its contact points in red, so this is not a
        function of the state; ``frame`` is, and is what the environments of this package observe.
        """
        self._surface.blit(self._background, (0, 0))
        world.space.debug_draw(_EngineDrawing(self))
        return self._resized()

    def frames(self, states: FloatArray) -> NDArray[np.uint8]:
        """Frames ``(N, size, size, 3)`` uint8 of ``(N, >=5)`` states."""
        return np.stack([self.frame(state) for state in states])

    def _resized(self) -> NDArray[np.uint8]:
        # 32 bits a pixel, blue first; resizing before the channels are picked saves a strided copy of the big canvas.
        raw = np.frombuffer(self._surface.get_buffer().raw, dtype=np.uint8)
        canvas = raw.reshape(*self._surface.get_size(), 4)
        interpolation = cv2.INTER_AREA if self._area else cv2.INTER_LINEAR
        frame = cv2.resize(canvas, (self.size, self.size), interpolation=interpolation)
        return np.ascontiguousarray(frame[..., 2::-1])

    def _corners(self, points: FloatArray) -> list[tuple[int, int]]:
        return [(round(x * self._scale), round(y * self._scale)) for x, y in points.tolist()]

    def _thick_line(
        self, colour: Colour, start: tuple[int, int], end: tuple[int, int], radius: float
    ) -> None:
        """A line with round ends; pygame's own thick lines have gaps at the corners."""
        width = round(max(1, radius * 2))
        pygame.draw.lines(self._surface, colour, False, [start, end], width)
        if width <= 2:
            return
        across = np.array([abs(end[1] - start[1]), abs(end[0] - start[0])], dtype=np.float64)
        length = float(np.hypot(*across))
        if length == 0:
            return
        dx, dy = (round(v) for v in across * radius / length)
        corners = [
            (start[0] - dx, start[1] - dy),
            (start[0] + dx, start[1] + dy),
            (end[0] + dx, end[1] + dy),
            (end[0] - dx, end[1] - dy),
        ]
        pygame.draw.polygon(self._surface, colour, corners)
        for point in (start, end):
            pygame.draw.circle(self._surface, colour, point, round(radius))

    def _walls(self) -> None:
        low, high = WALL_LOW_PX, WALL_HIGH_PX
        corners = self._corners(np.array([(low, high), (low, low), (high, low), (high, high)]))
        surface, self._surface = self._surface, self._background
        for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
            self._thick_line(WALL, start, end, WALL_RADIUS_PX * self._scale)
        self._surface = surface

    def _agent(self, position: FloatArray) -> None:
        (centre,) = self._corners(position[None])
        pygame.draw.circle(self._surface, AGENT, centre, round(AGENT_RADIUS_PX * self._scale))
        inner = round((AGENT_RADIUS_PX - AGENT_RIM_PX) * self._scale)
        pygame.draw.circle(self._surface, _lighter(AGENT), centre, inner)

    def _block(self, corners: FloatArray) -> None:
        points = self._corners(corners)
        pygame.draw.polygon(self._surface, _lighter(BLOCK), points)
        for start, end in zip(points, points[1:] + points[:1], strict=True):
            self._thick_line(BLOCK, start, end, OUTLINE_RADIUS_PX * self._scale)


class _EngineDrawing(pymunk.SpaceDebugDrawOptions):
    """Takes the engine's drawing calls; shapes get the colour of what they are, whatever the engine suggests."""

    def __init__(self, drawing: PushTDrawing) -> None:
        super().__init__()
        self._drawing = drawing

    def draw_circle(self, pos: Any, angle: float, radius: float, outline_color: Any, fill_color: Any) -> None:
        self._drawing._agent(np.array(pos))

    def draw_polygon(self, verts: Any, radius: float, outline_color: Any, fill_color: Any) -> None:
        self._drawing._block(np.array(verts))

    def draw_fat_segment(self, a: Any, b: Any, radius: float, outline_color: Any, fill_color: Any) -> None:
        start, end = self._drawing._corners(np.array([a, b]))
        self._drawing._thick_line(WALL, start, end, radius * self._drawing._scale)

    def draw_segment(self, a: Any, b: Any, color: Any) -> None:
        points = self._drawing._corners(np.array([a, b]))
        pygame.draw.aalines(self._drawing._surface, color.as_int(), False, points)

    def draw_dot(self, size: float, pos: Any, color: Any) -> None:
        (point,) = self._drawing._corners(np.array([pos]))
        pygame.draw.circle(self._drawing._surface, color.as_int(), point, round(size * self._drawing._scale))


def _lighter(colour: Colour) -> Colour:
    red, green, blue = (min(int(1.2 * channel), 255) for channel in colour)
    return red, green, blue
