"""What really happens in the drawer world: long episodes, and what other actions would have done.

Special: with the collectors the only training code that knows this simulator. A rollout is a start state, a
look and a list of actions, so the same start can be lived through twice with different actions; that is what
a dream's sensitivity to actions is compared with.

Absent: data for training; seeds here are the evaluation's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvr_envs.drawer_rules import TASKS
from rlvr_envs.simulators.drawer import DrawerWorld, sample_state
from rlvr_envs.simulators.drawer_env import act_in
from rlvr_envs.simulators.drawer_policies import KINDS, make_policy
from rlvr_envs.simulators.drawer_rendering import DrawerCamera, Look, sample_look
from rlvr_envs.spaces import RT1_HEIGHT_PX, RT1_WIDTH_PX

# Apart from the seeds of collections, which are the first of three numbers as well.
_STREAM = 7_301


@dataclass(frozen=True)
class TrueRollouts:
    """N episodes of T steps.

    Attributes:
        frames: ``(N, T+1, H, W, 3)`` uint8.
        states: ``(N, T+1, 10)`` float64, see ``rlvr_envs.drawer_rules``.
        actions: ``(N, T, 13)`` float32.
        looks: Camera, lamp and colours of each.
    """

    frames: NDArray[np.uint8]
    states: NDArray[np.float64]
    actions: NDArray[np.float32]
    looks: tuple[Look, ...]

    def __len__(self) -> int:
        return len(self.frames)


def true_rollouts(count: int, steps: int, *, seed: int) -> TrueRollouts:
    """Episodes of the behaviours and tasks of the training data, with starts of their own.

    The terminate flag is taken out of the actions: where an expert has finished, he hovers on.
    """
    starts, looks, actions = [], [], []
    world = DrawerWorld()
    for row in range(count):
        generator = np.random.default_rng([_STREAM, seed, row])
        kind = str(generator.choice(list(KINDS), p=list(KINDS.values())))
        task = list(TASKS.values())[int(generator.integers(len(TASKS)))]
        looks.append(sample_look(generator))
        world.reset(sample_state(task, generator))
        starts.append(world.state())
        policy, taken = make_policy(kind, task, generator), []
        for _ in range(steps):
            action = policy.act(world.state())
            action[7:10] = (0, 1, 0)
            taken.append(action)
            act_in(world, action)
        actions.append(np.stack(taken))
    return live(np.stack(starts), tuple(looks), np.stack(actions).astype(np.float32))


def live(starts: NDArray[np.float64], looks: tuple[Look, ...], actions: NDArray[np.float32]) -> TrueRollouts:
    """The actions ``(N, T, 13)`` from the start states ``(N, 10)``, at rest at first."""
    world = DrawerWorld()
    camera = DrawerCamera(world.model, height=RT1_HEIGHT_PX, width=RT1_WIDTH_PX)
    frames, states = [], []
    try:
        for start, look, of_row in zip(starts, looks, actions, strict=True):
            world.reset(start)
            seen, stood = [camera.frame(world.data, look)], [world.state()]
            for action in of_row:
                act_in(world, action)
                seen.append(camera.frame(world.data, look))
                stood.append(world.state())
            frames.append(np.stack(seen))
            states.append(np.stack(stood))
    finally:
        camera.close()
    return TrueRollouts(np.stack(frames), np.stack(states), actions, looks)


def with_shuffled_actions(truth: TrueRollouts) -> TrueRollouts:
    """The same starts with the actions of the next episode."""
    return live(truth.states[:, 0], truth.looks, np.roll(truth.actions, -1, axis=0))
