"""Draws the drawer world: a camera over the robot's shoulder, and another look for every episode.

Special: a look (camera, lamp, colours) is plain data, so a snapshot can hold it and a frame is a function of
world and look. The arm is drawn here, from the shoulder to the wrist by a formula for two links; physics
knows nothing of it. No shadows: in software they cost more than all the rest.

The OpenGL library is the one that MUJOCO_GL names. Where it is unset, Linux uses EGL, which needs no display,
or OSMesa where only that is installed; other systems use MuJoCo's default. The variable is never changed.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib
import os
import platform
import weakref
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from rlvr_envs.simulators.drawer import GL_HELP, FloatArray, mujoco

Triple: TypeAlias = tuple[float, float, float]

# Where the camera looks, in m, and from where, in degrees and m. Azimuth 0 looks along x, at the cabinet.
LOOK_AT_M: Triple = (0.48, 0.0, 0.44)
AZIMUTH_DEG, ELEVATION_DEG, DISTANCE_M = -35.0, -28.0, 1.30

# Body, front, handle; and whether body and front show a wood grain. The handle always contrasts.
PALETTE: tuple[tuple[Triple, Triple, Triple, bool], ...] = (
    ((0.80, 0.80, 0.79), (0.90, 0.90, 0.88), (0.15, 0.15, 0.17), False),  # white
    ((0.45, 0.47, 0.50), (0.56, 0.59, 0.62), (0.92, 0.92, 0.94), False),  # grey
    ((0.72, 0.54, 0.33), (0.82, 0.63, 0.40), (0.14, 0.13, 0.13), True),  # oak
    ((0.34, 0.21, 0.13), (0.44, 0.28, 0.17), (0.90, 0.84, 0.66), True),  # walnut
    ((0.20, 0.30, 0.42), (0.27, 0.40, 0.55), (0.92, 0.90, 0.80), False),  # blue
    ((0.34, 0.42, 0.33), (0.44, 0.54, 0.42), (0.93, 0.92, 0.88), False),  # green
)
FLOORS: tuple[Triple, ...] = ((0.52, 0.50, 0.47), (0.38, 0.36, 0.34), (0.60, 0.55, 0.48))
WALLS: tuple[Triple, ...] = ((0.78, 0.78, 0.76), (0.66, 0.70, 0.73), (0.80, 0.75, 0.67))

# The drawn arm.
SHOULDER_M = np.array([-0.30, -0.32, 0.76])
LINK_M = 0.58
ELBOW_SIDE = np.array([0.0, -0.5, 1.0])  # the elbow points up and away from the camera
ARM_RGBA, JOINT_RGBA = (0.86, 0.88, 0.90, 1.0), (0.30, 0.32, 0.36, 1.0)
MAX_GEOMS = 100
# Each pixel is the mean of 2 x 2 drawn ones: this shows movements of less than a pixel, and costs less in
# software than multisampling.
OVERSAMPLING = 2


@dataclass(frozen=True, kw_only=True)
class Look:
    """What an episode looks like.

    Attributes:
        azimuth_deg, elevation_deg, distance_m, look_at_m: The camera.
        lamp_m: Where the lamp's light comes from (a direction).
        lamp, ambient: Brightness of the lamp's and of the surrounding light, about 0.3 to 0.7.
        palette, floor, wall: Which colours.
        tint: Factors on the cabinet's red, green and blue.
    """

    azimuth_deg: float = AZIMUTH_DEG
    elevation_deg: float = ELEVATION_DEG
    distance_m: float = DISTANCE_M
    look_at_m: Triple = LOOK_AT_M
    lamp_m: Triple = (-0.4, 0.6, 1.5)
    lamp: float = 0.5
    ambient: float = 0.38
    palette: int = 0
    floor: int = 0
    wall: int = 0
    tint: Triple = (1.0, 1.0, 1.0)


def sample_look(generator: np.random.Generator) -> Look:
    """A random look: the camera within 4 degrees, 5 cm and 3 cm of its usual place; any colours."""
    turn = generator.uniform(-4, 4, size=2)
    target = np.array(LOOK_AT_M) + generator.uniform(-0.03, 0.03, size=3)
    lamp = np.array([-0.4, 0.6, 1.5]) + generator.uniform(-0.4, 0.4, size=3)
    return Look(
        azimuth_deg=AZIMUTH_DEG + float(turn[0]),
        elevation_deg=ELEVATION_DEG + float(turn[1]),
        distance_m=DISTANCE_M + float(generator.uniform(-0.05, 0.05)),
        look_at_m=_triple(target),
        lamp_m=_triple(lamp),
        lamp=float(generator.uniform(0.35, 0.6)),
        ambient=float(generator.uniform(0.32, 0.46)),
        palette=int(generator.integers(len(PALETTE))),
        floor=int(generator.integers(len(FLOORS))),
        wall=int(generator.integers(len(WALLS))),
        tint=_triple(generator.uniform(0.9, 1.1, size=3)),
    )


class DrawerCamera:
    """Draws frames of one size.

    Args:
        model: The drawn world's own model; its colours and lamp are repainted with every frame.
        height, width: Frame size in px.

    Raises:
        RuntimeError: No usable OpenGL; names the Debian packages.
    """

    def __init__(self, model: mujoco.MjModel, *, height: int, width: int) -> None:
        self.height, self.width = height, width
        self._model = model
        self._camera = mujoco.MjvCamera()
        self._option = mujoco.MjvOption()
        self._scene = mujoco.MjvScene(model, maxgeom=MAX_GEOMS)
        # Floor and wall fill the picture.
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = 0
        self._scene.flags[mujoco.mjtRndFlag.mjRND_HAZE] = 0
        drawn_width, drawn_height = width * OVERSAMPLING, height * OVERSAMPLING
        self._rect = mujoco.MjrRect(0, 0, drawn_width, drawn_height)
        _paint_grain(model)
        model.vis.global_.offwidth, model.vis.global_.offheight = drawn_width, drawn_height
        self._gl = _gl_context(drawn_width, drawn_height)
        try:
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        except (mujoco.FatalError, RuntimeError) as error:
            raise RuntimeError(f"{GL_HELP} ({error})") from error
        # Freeing with another camera's context current would free that camera's objects; a finalizer keeps both
        # alive until it has run, whatever order the garbage collector takes.
        self._release = weakref.finalize(self, _free, self._gl, self._context)
        self._release.atexit = False

    def frame(self, data: mujoco.MjData, look: Look) -> NDArray[np.uint8]:
        """The world as ``(height, width, 3)`` uint8 RGB; the array is the caller's own."""
        if not self._release.alive:
            raise RuntimeError("the camera is closed; make a new one")
        _paint(self._model, data, look)
        camera = self._camera
        camera.azimuth, camera.elevation, camera.distance = (
            look.azimuth_deg,
            look.elevation_deg,
            look.distance_m,
        )
        camera.lookat[:] = look.look_at_m
        mujoco.mjv_updateScene(
            self._model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        _draw_arm(self._scene, data)
        pixels = np.empty((self._rect.height, self._rect.width, 3), dtype=np.uint8)
        self._gl.make_current()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, self._rect, self._context)
        smaller = cv2.resize(pixels, (self.width, self.height), interpolation=cv2.INTER_AREA)
        return np.asarray(smaller[::-1].copy())

    def close(self) -> None:
        """Give the OpenGL context back; a second call does nothing."""
        self._release()


def _free(gl: Any, context: mujoco.MjrContext) -> None:
    gl.make_current()
    context.free()
    gl.free()


def _triple(values: FloatArray) -> Triple:
    return float(values[0]), float(values[1]), float(values[2])


def _gl_context(width: int, height: int) -> Any:
    """A context of the chosen library."""
    # Mesa and Triton, which torch imports for its compiler, each bring a copy of LLVM: whoever imports Triton after
    # Mesa crashes without a word. The other order works, and torch need not be there.
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")
    try:
        if os.environ.get("MUJOCO_GL") or platform.system() != "Linux":
            return mujoco.GLContext(width, height)
        # Looked for first: an import of EGL that fails leaves PyOpenGL unable to load OSMesa.
        if ctypes.util.find_library("EGL") or not ctypes.util.find_library("OSMesa"):
            from mujoco.egl import GLContext
        else:
            from mujoco.osmesa import GLContext
        return GLContext(width, height)
    except (ImportError, AttributeError, RuntimeError, mujoco.FatalError) as error:
        raise RuntimeError(f"{GL_HELP} ({type(error).__name__}: {error})") from error


def _paint_grain(model: mujoco.MjModel) -> None:
    """Fill the texture "grain" with stripes that waver like wood, before it goes to OpenGL."""
    texture = model.texture("grain")
    height, width, channels = int(texture.height[0]), int(texture.width[0]), int(texture.nchannel[0])
    row, column = np.mgrid[0:height, 0:width] / np.array([height, width])[:, None, None]
    waver = 0.06 * np.sin(2 * np.pi * (column + 0.3 * np.sin(2 * np.pi * row)))
    bright = (
        0.86 + 0.09 * np.sin(2 * np.pi * 5 * (row + waver)) + 0.05 * np.sin(2 * np.pi * 13 * (row - waver))
    )
    pixels = np.repeat((255 * np.clip(bright, 0, 1)).astype(np.uint8)[..., None], channels, axis=2)
    start = int(texture.adr[0])
    model.tex_data[start : start + pixels.size] = pixels.reshape(-1)


def _paint(model: mujoco.MjModel, data: mujoco.MjData, look: Look) -> None:
    """Put a look's colours and lamp into the model."""
    body, front, handle, wooden = PALETTE[look.palette]
    tint = np.array(look.tint)
    for part, colour in (("body", body), ("front", front)):
        plain, wood = model.material(f"look_{part}"), model.material(f"look_{part}_wood")
        shown, hidden = (wood, plain) if wooden else (plain, wood)
        model.geom_matid[model.geom_matid == hidden.id] = shown.id
        shown.rgba[:3] = np.clip(np.array(colour) * tint, 0, 1)
    for name, fixed in (("handle", handle), ("floor", FLOORS[look.floor]), ("wall", WALLS[look.wall])):
        model.material(f"look_{name}").rgba[:3] = fixed
    direction = -np.array(look.lamp_m)
    model.light("lamp").dir[:] = direction / np.linalg.norm(direction)
    model.light("lamp").diffuse[:] = look.lamp
    model.vis.headlight.ambient[:] = look.ambient
    mujoco.mj_camlight(model, data)


def _draw_arm(scene: mujoco.MjvScene, data: mujoco.MjData) -> None:
    """Two links and three joints from the shoulder to the wrist's end; straight where it is out of reach."""
    wrist = data.site("wrist_end").xpos
    reach = wrist - SHOULDER_M
    length = float(np.linalg.norm(reach))
    side = ELBOW_SIDE - reach * (ELBOW_SIDE @ reach) / length**2
    bend = np.sqrt(max(LINK_M**2 - (length / 2) ** 2, 0.0))
    elbow = SHOULDER_M + reach / 2 + bend * side / np.linalg.norm(side)
    for start, end, radius in ((SHOULDER_M, elbow, 0.055), (elbow, wrist, 0.042)):
        geom = _next_geom(scene, mujoco.mjtGeom.mjGEOM_CAPSULE, ARM_RGBA)
        mujoco.mjv_connector(geom, mujoco.mjtGeom.mjGEOM_CAPSULE, radius, start, end)
    for place, radius in ((SHOULDER_M, 0.085), (elbow, 0.065), (wrist, 0.05)):
        geom = _next_geom(scene, mujoco.mjtGeom.mjGEOM_SPHERE, JOINT_RGBA)
        geom.size[:] = radius
        geom.pos[:] = place


def _next_geom(scene: mujoco.MjvScene, kind: mujoco.mjtGeom, rgba: tuple[float, ...]) -> mujoco.MjvGeom:
    geom = scene.geoms[scene.ngeom]
    mujoco.mjv_initGeom(
        geom, kind, np.zeros(3), np.zeros(3), np.eye(3).reshape(-1), np.array(rgba, np.float32)
    )
    scene.ngeom += 1
    return geom
