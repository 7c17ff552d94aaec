"""All environments as plain data: what Gymnasium's registry is filled with, and which twin tells the truth.

Special: entry points are strings, so reading this table imports no simulator and no model, and a
specification can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EnvEntry:
    """One registered environment.

    Attributes:
        entry_point: ``"module:name"`` of the environment, or of a function that makes it.
        vector_entry_point: The same for many environments stepped as one batch; None: Gymnasium steps single
            ones.
        kwargs: Default arguments, JSON only.
        max_episode_steps: The horizon, after which an episode is truncated.
        twin: Id of the environment that tells the truth about this one; None for the truth itself.
    """

    entry_point: str
    vector_entry_point: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    twin: str | None = None


# 20 steps of 5 environment steps are 10 s of PushT, twice the step budget of the planning evaluation. 112 steps
# of 3 Hz are the published RT-1 evaluation: 16 rounds of 7 frames.
ENVS: dict[str, EnvEntry] = {
    "RLVRWorld/PushT-v0": EnvEntry(
        entry_point="rlvr_envs.dreams:pusht",
        vector_entry_point="rlvr_envs.dreams:pusht_vector",
        kwargs={"world_model": "pusht-rlvr"},
        max_episode_steps=20,
        twin="RLVRWorld/PushT-Sim-v0",
    ),
    "RLVRWorld/PushT-Sim-v0": EnvEntry(
        entry_point="rlvr_envs.simulators.pusht_env:PushTSimEnv",
        max_episode_steps=20,
    ),
    "RLVRWorld/RT1-Drawer-v0": EnvEntry(
        entry_point="rlvr_envs.drawer_dream:rt1_drawer",
        vector_entry_point="rlvr_envs.drawer_dream:rt1_drawer_vector",
        kwargs={"world_model": "drawer-rlvr"},
        max_episode_steps=112,
        twin="RLVRWorld/RT1-Drawer-Sim-v0",
    ),
    "RLVRWorld/RT1-Drawer-Sim-v0": EnvEntry(
        entry_point="rlvr_envs.simulators.drawer_env:DrawerSimEnv",
        max_episode_steps=112,
    ),
    "RLVRWorld/TextGame-v0": EnvEntry(
        entry_point="rlvr_envs.text_dreams:text_game",
        vector_entry_point="rlvr_envs.text_dreams:text_game_vector",
        kwargs={"world_model": "textgame-rlvr"},
        max_episode_steps=50,
        twin="RLVRWorld/TextGame-Sim-v0",
    ),
    "RLVRWorld/TextGame-Sim-v0": EnvEntry(
        entry_point="rlvr_envs.simulators.text_game_env:TextGameSimEnv",
        max_episode_steps=50,
    ),
}
