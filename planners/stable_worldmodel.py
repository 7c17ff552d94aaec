"""Our world models under stable-worldmodel's solvers: an object with ``get_cost`` (version 0.1.1 of that
package).

Special: nothing of that package is imported; the contract is one method on tensors. Its solvers (CEM, iCEM,
MPPI, ...) and its ``WorldModelPolicy`` then plan in any of our models; gradient solvers cannot, predictions
are tokens.

Absent on purpose: ``criterion`` (never called by the solvers), ``get_action`` (no actor), image transforms
(the world model takes uint8 frames: give their policy no transform for pixels and goal), and
denormalisation of actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planners.rollout import ImaginedCost
from worldmodels.api import History


@dataclass(frozen=True, kw_only=True)
class StableWorldModelCost:
    """Implements stable-worldmodel's ``Costable``.

    Attributes:
        cost: World model and goal cost.
        observation_keys: Our observation key -> their info key. Info entries are shaped (B, S, 1, ...).
        goal_keys: The same for the goal; or one info key, if the goal cost takes an array (``"goal_state"``).
        seed: Of the world model's draws; without effect at temperature 0.
    """

    cost: ImaginedCost
    observation_keys: Mapping[str, str] = field(
        default_factory=lambda: {"image": "pixels", "proprio": "proprio"}
    )
    goal_keys: Mapping[str, str] | str = field(
        default_factory=lambda: {"image": "goal", "proprio": "goal_proprio"}
    )
    seed: int = 0

    def get_cost(self, info_dict: Mapping[str, Any], action_candidates: Tensor) -> Tensor:
        """Costs of candidates for B problems.

        Args:
            info_dict: Tensors or arrays ``(B, S, 1, ...)``, equal along S.
            action_candidates: ``(B, S, H, A)`` in the world model's own units.

        Returns:
            ``(B, S)``, lower is better, like ``action_candidates`` in dtype and device.

        Raises:
            ValueError: if a needed info entry is missing.
        """
        problems = range(len(action_candidates))
        observations = [
            {ours: _now(info_dict, theirs, row) for ours, theirs in self.observation_keys.items()}
            for row in problems
        ]
        if isinstance(self.goal_keys, str):
            goals: list[Any] = [_now(info_dict, self.goal_keys, row) for row in problems]
        else:
            goals = [
                {ours: _now(info_dict, theirs, row) for ours, theirs in self.goal_keys.items()}
                for row in problems
            ]
        histories = [History(observations=(observation,)) for observation in observations]
        return self.cost(histories, goals, seeds=[self.seed] * len(histories))(action_candidates)


def _now(info: Mapping[str, Any], key: str, row: int) -> NDArray[Any]:
    """One problem's latest value of an entry; all candidates share it, so the first stands for them."""
    if key not in info:
        raise ValueError(
            f"info has no {key!r}, only {sorted(info)}; name the right keys in StableWorldModelCost"
        )
    value = info[key][row, 0, -1]
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
