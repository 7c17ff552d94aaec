import numpy as np
import pytest

from training.rewards.combine import CombinedReward
from training.rewards.frame_observations import FrameReward
from training.rewards.frames import FrameRewardConfig
from worldmodels.api import History, Prediction, Score, Transition


def frame_pair(level: int) -> tuple[list[Prediction], Transition]:
    truth, guess = np.zeros((12, 12, 3), np.uint8), np.full((12, 12, 3), level, np.uint8)
    transition = Transition(history=History(observations=[truth]), actions=[0], targets=[truth])
    return [Prediction(observation=guess)], transition


def test_values_are_the_weighted_sum_and_parts_keep_their_names():
    predictions, transitions = zip(*(frame_pair(level) for level in (0, 51, 255)), strict=True)
    combined = CombinedReward(
        {
            "l1": (FrameReward(FrameRewardConfig(lpips=0.0)), 2.0),
            "l2": (FrameReward(FrameRewardConfig(mae=0.0, mse=1.0, lpips=0.0)), -0.5),
        }
    )
    scores = combined(predictions, transitions)
    assert [s.value for s in scores] == pytest.approx([0.0, -0.4 + 0.5 * 0.04, -2.0 + 0.5])
    assert scores[1].parts["l1"] == pytest.approx(-0.2)
    assert scores[1].parts["l2/mse"] == pytest.approx(0.04)


def test_a_score_that_is_not_finite_names_the_reward_and_the_sample():
    def broken(predictions, transitions):
        return [Score(value=1.0), Score(value=float("nan"))]

    predictions, transitions = zip(*(frame_pair(level) for level in (0, 1)), strict=True)
    with pytest.raises(ValueError, match="'broken' of sample 1 is nan"):
        CombinedReward({"broken": (broken, 1.0)})(predictions, transitions)
    with pytest.raises(ValueError, match="2 scores for 1"):
        CombinedReward({"broken": (broken, 1.0)})(predictions[:1], transitions[:1])


def test_bad_weights_are_named():
    with pytest.raises(ValueError, match="at least one"):
        CombinedReward({})
    with pytest.raises(ValueError, match="l1"):
        CombinedReward({"l1": (FrameReward(FrameRewardConfig(lpips=0.0)), float("inf"))})
