"""Gymnasium environments over learned world models, and their ground truth.

Importing this package registers all ids of :data:`rlvr_envs.table.ENVS` with Gymnasium, and nothing else: no
torch, no simulator.
"""

import gymnasium

from rlvr_envs.table import ENVS

for _id, _entry in ENVS.items():
    gymnasium.register(
        id=_id,
        entry_point=_entry.entry_point,
        vector_entry_point=_entry.vector_entry_point,
        kwargs=dict(_entry.kwargs),
        max_episode_steps=_entry.max_episode_steps,
    )
