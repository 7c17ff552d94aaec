"""The drawer world's physics and rules; nothing here draws."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from ctypes.util import find_library

import numpy as np
import pytest

from rlvr_envs.drawer_rules import (
    CLOSED_AT_MOST_M,
    DRAWERS,
    HANDLE_HEIGHTS_M,
    HANDLE_X_M,
    MAX_GAP_M,
    OPEN_AT_LEAST_M,
    STATE_NAMES,
    STATE_SIZE,
    TASKS,
    TRAVEL_M,
    drawer_reward,
    drawer_task,
    handle_position,
    succeeded,
)
from rlvr_envs.simulators.drawer import MAX_SHIFT_M, DrawerWorld, sample_state

STILL = np.zeros(3)


def state_of(**numbers: float) -> np.ndarray:
    """A state with the hand before the middle drawer, all shut, but for what is named."""
    values = dict(zip(STATE_NAMES, [0.25, 0, 0.39, 0, 0, 0, MAX_GAP_M, 0, 0, 0], strict=True)) | numbers
    return np.array(list(values.values()))


def world_at(**numbers: float) -> DrawerWorld:
    world = DrawerWorld()
    world.reset(state_of(**numbers))
    return world


def move(world: DrawerWorld, steps: int, x: float = 0.0, z: float = 0.0, closing: float = 0.0) -> np.ndarray:
    """The state after some equal steps."""
    for _ in range(steps):
        world.step(np.array([x, 0.0, z]), STILL, closing)
    return world.state()


def test_the_rules_know_the_model() -> None:
    world = world_at(top=0.05, middle=0.10, bottom=0.15)
    for drawer in DRAWERS:
        bar = world.data.geom(f"{drawer}_bar").xpos
        np.testing.assert_allclose(bar, handle_position(world.state(), drawer), atol=1e-9)
        np.testing.assert_allclose(world.model.joint(f"{drawer}_drawer").range, [0, TRAVEL_M])
    assert handle_position(np.zeros((4, STATE_SIZE)), "top").shape == (4, 3)
    np.testing.assert_allclose(handle_position(state_of(), "top"), [HANDLE_X_M, 0, HANDLE_HEIGHTS_M["top"]])
    fingers = [world.model.joint(f"{side}_finger").range[1] for side in ("upper", "lower")]
    assert sum(fingers) == pytest.approx(MAX_GAP_M)


def test_states_come_back() -> None:
    generator = np.random.default_rng(0)
    world = DrawerWorld()
    for task in TASKS.values():
        state = sample_state(task, generator)
        world.reset(world.checked_state("start", state))
        np.testing.assert_allclose(world.state(), state, atol=1e-12)
        np.testing.assert_allclose(move(world, 1), state, atol=2e-3)  # and they are at rest


def test_rough_handling_stays_within_the_stops() -> None:
    generator = np.random.default_rng(0)
    world = DrawerWorld()
    for task in TASKS.values():
        world.reset(sample_state(task, generator))
        for _ in range(4):
            target = generator.uniform((0.15, -0.3, 0.08), (0.7, 0.3, 0.85))
            for _ in range(8):
                offset = target - world.state()[:3]
                world.step(offset, generator.uniform(-0.4, 0.4, 3), float(generator.uniform(-1, 1)))
                state = world.checked_state("a state that was reached", world.state())
                assert (state[7:] < TRAVEL_M + 0.005).all()
                assert (state[7:] > -0.005).all()
    assert not world.data.warning.number.any()


@pytest.mark.parametrize("drawer", DRAWERS)
def test_a_gripped_handle_is_pulled_and_pushed(drawer: str) -> None:
    world = world_at(z=HANDLE_HEIGHTS_M[drawer], x=0.60)
    column = STATE_NAMES.index(drawer)
    move(world, 1, x=0.045)
    state = move(world, 2, closing=1.0)
    assert state[6] == pytest.approx(0.02, abs=0.003)  # the bar is between the fingers
    state = move(world, 4, x=-0.05)
    assert state[column] == pytest.approx(0.20, abs=0.02)
    others = np.delete(state[7:], column - 7)
    np.testing.assert_allclose(others, 0, atol=1e-3)
    state = move(world, 1, closing=-1.0)
    state = move(world, 2, x=-0.1)
    assert state[column] == pytest.approx(0.20, abs=0.02)  # let go, it stays
    move(world, 1, closing=1.0)
    state = move(world, 6, x=0.1)
    assert state[column] == pytest.approx(0, abs=0.005)
    assert state[0] < HANDLE_X_M  # the hand stalls at a shut drawer


@pytest.mark.parametrize(
    ("start", "moves"),
    [
        (state_of(x=0.60), [(5, -0.1, 0)]),  # open fingers leave the bar
        (state_of(x=0.60, gap=0), [(3, 0, 1), (4, -0.1, 0)]),  # closed before it
        (state_of(x=0.60, z=0.49), [(1, 0.02, 0), (2, 0, 1), (4, -0.1, 0)]),  # closed over it
    ],
)
def test_a_drawer_does_not_move_without_contact(
    start: np.ndarray, moves: list[tuple[int, float, float]]
) -> None:
    world = DrawerWorld()
    world.reset(start)
    for steps, x, closing in moves:
        move(world, steps, x=x, closing=closing)
    np.testing.assert_allclose(world.state()[7:], 0, atol=1e-3)


def test_the_hand_follows_its_commands() -> None:
    world = world_at()
    world.step(np.array([0.05, -0.04, 0.06]), np.array([0.1, -0.2, 0.3]), 0.25)
    expected = state_of(x=0.30, y=-0.04, z=0.45, roll=0.1, pitch=-0.2, yaw=0.3, gap=0.075)
    np.testing.assert_allclose(world.state()[:3], expected[:3], atol=2e-3)
    np.testing.assert_allclose(world.state()[3:], expected[3:], atol=0.012)
    world = world_at()
    assert move(world, 1, x=5.0)[0] == pytest.approx(0.25 + MAX_SHIFT_M, abs=5e-3)
    state = move(world_at(), 12, x=-0.1, z=0.1)
    np.testing.assert_allclose(state[[0, 2]], [0.10, 0.85], atol=5e-3)  # its reach ends


def test_a_blocked_hand_does_not_wind_up() -> None:
    world = world_at(x=0.55, gap=0.0)
    blocked = move(world, 8, x=0.1)[0]
    assert blocked < HANDLE_X_M
    assert move(world, 1, x=-0.1)[0] < blocked - 0.04


def test_snapshots_go_on_bit_for_bit() -> None:
    world, other = world_at(x=0.60), DrawerWorld()
    move(world, 2, closing=1.0)
    move(world, 2, x=-0.03)
    snapshot = world.snapshot()
    generator = np.random.default_rng(0)
    commands = generator.uniform(-0.08, 0.08, (10, 7))

    def run(target: DrawerWorld) -> np.ndarray:
        target.restore(snapshot)
        states = [target.state()]
        for command in commands:
            target.step(command[:3], command[3:6], command[6] * 5)
            states.append(target.state())
        return np.stack(states)

    expected = run(world)
    assert np.ptp(expected[:, 8]) > 0.01  # in contact
    np.testing.assert_array_equal(run(world), expected)
    move(other, 3, x=0.1, closing=1.0)
    np.testing.assert_array_equal(run(other), expected)
    with pytest.raises(ValueError, match="snapshot has shape"):
        world.restore(snapshot[:-1])


def test_starts_are_unsolved_and_clear() -> None:
    generator = np.random.default_rng(1)
    for task in TASKS.values():
        states = np.stack([sample_state(task, generator) for _ in range(60)])
        assert not succeeded(states, task).any()
        assert len(np.unique(states[:, 0])) == 60
        openings = states[:, 7:]
        assert (openings >= 0).all()
        assert (openings < TRAVEL_M).all()
        # No drawer's handle is within reach of a fingertip.
        assert (HANDLE_X_M - openings.max(1) - states[:, 0]).min() > 0.03


def test_success_has_simplers_bounds() -> None:
    opens, closes = drawer_task("open_middle_drawer"), drawer_task("close middle drawer")
    assert (OPEN_AT_LEAST_M, CLOSED_AT_MOST_M) == (0.15, 0.05)
    openings = [0.0, 0.05, 0.051, 0.149, 0.15, 0.28, np.nan]
    states = np.stack([state_of(middle=opening) for opening in openings])
    np.testing.assert_array_equal(succeeded(states, opens), [0, 0, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal(succeeded(states, closes), [1, 1, 0, 0, 0, 0, 0])
    assert not succeeded(state_of(top=0.2, bottom=0.2), opens)


def test_rewards() -> None:
    opens, closes = drawer_task("open_top_drawer"), drawer_task("close_top_drawer")
    at_handle = {"x": HANDLE_X_M, "z": HANDLE_HEIGHTS_M["top"]}
    assert drawer_reward(state_of(top=0.2), opens, "sparse") == 1
    assert drawer_reward(state_of(top=0.2), opens, "dense") == 0
    assert drawer_reward(state_of(**at_handle), opens, "dense") == pytest.approx(-0.5)
    halfway = state_of(**at_handle | {"x": HANDLE_X_M - 0.075}, top=0.075)
    assert drawer_reward(halfway, opens, "dense") == pytest.approx(-0.25)
    assert drawer_reward(state_of(x=-9, top=TRAVEL_M), closes, "dense") == pytest.approx(-1)
    assert drawer_reward(state_of(top=np.nan), opens, "dense") == -1
    assert drawer_reward(state_of(top=np.nan), opens, "sparse") == 0


def test_unknown_tasks_list_the_known() -> None:
    assert [task.instruction for task in TASKS.values()][:2] == ["open top drawer", "open middle drawer"]
    with pytest.raises(
        ValueError, match=r"'open_midle_drawer'; did you mean 'open_middle_drawer'\?.*close_top"
    ):
        drawer_task("open_midle_drawer")
    with pytest.raises(ValueError, match="unknown task 7; the tasks are open_top_drawer"):
        drawer_task(7)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([0, 1, 2], r"shape \(3,\); expected 10 numbers \(x, y, z"),
        ("here", "'here'; expected 10 numbers"),
        (state_of(x=np.nan), "not finite"),
        (state_of(top=0.5), r"top = 0.5; it must be in \[0, 0.28\]"),
        (state_of(gap=0.2), r"gap = 0.2; it must be in \[0, 0.1\]"),
    ],
)
def test_impossible_states_are_named(state: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"the start.*{message}"):
        DrawerWorld().checked_state("the start", state)


def test_physics_are_fast() -> None:
    world = world_at(x=0.60)
    move(world, 2, closing=1.0)
    start = time.process_time()
    for sign in (1, -1) * 20:
        move(world, 1, x=0.03 * sign)
    # 0.6 ms a step on an idle core; five times that is a mistake in the model.
    assert (time.process_time() - start) / 40 < 3e-3


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(
            {"MUJOCO_GL": "osmesa"},
            marks=pytest.mark.skipif(bool(find_library("OSMesa")), reason="OSMesa is installed"),
        ),
        {"MUJOCO_GL": "", "__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"},
        {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"},
        {"MUJOCO_GL": "disable"},
    ],
    ids=lambda environment: " ".join(environment),
)
@pytest.mark.skipif(sys.platform != "linux", reason="names Debian packages")
def test_without_opengl_the_packages_are_named(environment: dict[str, str]) -> None:
    code = "from rlvr_envs.simulators.drawer_env import DrawerSimEnv; DrawerSimEnv().reset(seed=0)"
    clean = {key: value for key, value in os.environ.items() if key not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: MuJoCo cannot draw here")
    assert "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri" in last
    assert "libosmesa6" in last
