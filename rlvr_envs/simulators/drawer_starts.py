"""Makes the bundled first frames of drawer dreams: ``python -m rlvr_envs.simulators.drawer_starts``."""

from __future__ import annotations

import logging

import numpy as np

from rlvr_envs.contexts import DRAWER_STARTS, DrawerStarts, save_starts
from rlvr_envs.drawer_rules import TASKS
from rlvr_envs.simulators.drawer import DrawerWorld, sample_state
from rlvr_envs.simulators.drawer_rendering import DrawerCamera, sample_look
from rlvr_envs.spaces import RT1_HEIGHT_PX, RT1_WIDTH_PX


def make_drawer_starts(
    *, per_task: int = 48, seed: int = 0, height: int = RT1_HEIGHT_PX, width: int = RT1_WIDTH_PX
) -> DrawerStarts:
    """The simulator's random starts, the same number for every task.

    Drawn from the seed alone; the last bits of the pixels depend on the OpenGL driver.
    """
    generator = np.random.default_rng(seed)
    world = DrawerWorld()
    camera = DrawerCamera(world.model, height=height, width=width)
    images, states, tasks = [], [], []
    for number, task in enumerate(TASKS.values()):
        for _ in range(per_task):
            world.reset(sample_state(task, generator))
            images.append(camera.frame(world.data, sample_look(generator)))
            states.append(world.state())
            tasks.append(number)
    camera.close()
    return DrawerStarts(images=np.stack(images), states=np.stack(states), tasks=np.array(tasks))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    save_starts(make_drawer_starts(), DRAWER_STARTS)
    logging.getLogger(__name__).info("wrote %s", DRAWER_STARTS)
