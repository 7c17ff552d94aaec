"""Makes the bundled first frames of PushT dreams: ``python -m rlvr_envs.simulators.pusht_starts``."""

from __future__ import annotations

import logging

import numpy as np

from rlvr_envs.contexts import PUSHT_STARTS, PushTStarts, save_starts
from rlvr_envs.simulators.pusht_drawing import PushTDrawing
from rlvr_envs.simulators.pusht_env import MIN_CLEARANCE_PX, random_goal
from rlvr_envs.simulators.pusht_policies import sample_states
from rlvr_envs.spaces import PUSHT_IMAGE_PX
from rlvr_envs.tasks import PushTRules


def make_pusht_starts(*, count: int = 256, covered_count: int = 64, seed: int = 0) -> PushTStarts:
    """The simulator's random starts and goals of the coverage rule; a pure function of the seed."""
    generator = np.random.default_rng(seed)
    states = sample_states(count, generator, min_clearance_px=MIN_CLEARANCE_PX)
    rules = PushTRules(success="coverage")
    covered = np.stack([random_goal(generator, rules) for _ in range(covered_count)])
    drawing = PushTDrawing(size=PUSHT_IMAGE_PX)
    return PushTStarts(
        images=drawing.frames(states),
        states=states,
        covered_images=drawing.frames(covered),
        covered_states=covered,
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    save_starts(make_pusht_starts(), PUSHT_STARTS)
    logging.getLogger(__name__).info("wrote %s", PUSHT_STARTS)
