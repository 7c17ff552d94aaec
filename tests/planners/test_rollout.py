"""Imagined costs: forked rollouts, bounded memory, answers that do not depend on chunks."""

import numpy as np
import pytest
import torch

from planners import CEM, CEMConfig, ImaginedCost, imagine
from planners.rollout import step_weights
from tests.planners.toy import GAIN, ToyWorldModel, position_cost, start_histories

STARTS = [[0.0, 0.0], [1.0, -1.0], [-0.5, 0.8]]
GOALS = np.array([[1.2, -0.6], [0.0, 0.5], [0.4, 0.9]])


def candidates(samples=7, horizon=4):
    return torch.randn(3, samples, horizon, 2, generator=torch.Generator().manual_seed(0))


def test_costs_are_those_of_the_dynamics():
    model, plans = ToyWorldModel(), candidates()
    state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
    costs = imagine(model, state, plans, position_cost, GOALS)
    ends = torch.tensor(STARTS)[:, None] + GAIN * plans.sum(2)
    expected = (ends - torch.as_tensor(GOALS)[:, None]).square().sum(-1)
    torch.testing.assert_close(costs, expected.float(), rtol=1e-5, atol=1e-6)
    assert costs.dtype == plans.dtype


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("base", [None, 2.0])
def test_chunks_change_nothing_and_bound_the_rows(temperature, base):
    plans = candidates()
    answers = []
    for chunk_rows, most in ((1000, 21), (21, 21), (15, 14), (7, 7), (4, 4), (1, 1)):
        model = ToyWorldModel()
        state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
        answers.append(
            imagine(
                model,
                state,
                plans,
                position_cost,
                GOALS,
                temperature=temperature,
                chunk_rows=chunk_rows,
                step_weight_base=base,
            )
        )
        assert model.rows_seen == most
    for answer in answers[1:]:
        assert torch.equal(answer, answers[0])


def test_a_problem_alone_costs_the_same_and_copies_draw_differently():
    model = ToyWorldModel()
    same = torch.zeros(3, 7, 4, 2)
    state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
    costs = imagine(model, state, same, position_cost, GOALS, temperature=1.0)
    assert len(set(costs[0].tolist())) == 7
    alone = model.start(start_histories(STARTS[1:2]), seeds=[2])
    assert torch.equal(
        imagine(model, alone, same[:1], position_cost, GOALS[1:2], temperature=1.0)[0], costs[1]
    )
    assert torch.equal(
        imagine(model, state, same, position_cost, GOALS, temperature=1.0), costs
    )  # still valid


def test_all_steps_count_with_growing_weights():
    model, plans = ToyWorldModel(), candidates()
    state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
    costs = imagine(model, state, plans, position_cost, GOALS, step_weight_base=2.0)
    path = torch.tensor(STARTS)[:, None, None] + GAIN * plans.cumsum(2)
    squares = (path - torch.as_tensor(GOALS)[:, None, None]).square().sum(-1)
    expected = (squares * torch.tensor([2.0, 4.0, 8.0, 16.0]) / 30).sum(-1)
    torch.testing.assert_close(costs, expected.float(), rtol=1e-5, atol=1e-6)
    assert step_weights(3, None) == [0.0, 0.0, 1.0]


def test_actions_take_the_world_models_shape():
    """The model itself asserts the shape that it is given."""
    costs = []
    for shape in ((2,), (1, 2), (2, 1)):
        model = ToyWorldModel(action_shape=shape)
        state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
        costs.append(imagine(model, state, candidates(), position_cost, GOALS))
    assert torch.equal(costs[0], costs[1])
    assert torch.equal(costs[0], costs[2])


def test_planning_through_a_world_model_reaches_the_goal():
    source = ImaginedCost(world_model=ToyWorldModel(), goal_cost=position_cost, chunk_rows=100)
    assert (source.history_length, source.action_size) == (3, 2)
    cost = source(start_histories(STARTS), GOALS, seeds=[1, 2, 3])
    plan = CEM(CEMConfig(num_samples=64, num_elites=8, iterations=15)).plan(
        cost, horizon_steps=4, action_size=2, seeds=[1, 2, 3]
    )
    ends = torch.tensor(STARTS) + GAIN * plan.actions.sum(1)
    np.testing.assert_allclose(ends, GOALS, atol=0.02)


def test_errors_say_what_is_wrong():
    model = ToyWorldModel()
    state = model.start(start_histories(STARTS), seeds=[1, 2, 3])
    with pytest.raises(
        ValueError, match=r"shape \(3, 7, 4, 3\); expected .*2\) because .* actions of shape \(2,\)"
    ):
        imagine(model, state, torch.zeros(3, 7, 4, 3), position_cost, GOALS)
    with pytest.raises(ValueError, match="3 problems, but the state has 3 rows and there are 2 goals"):
        imagine(model, state, candidates(), position_cost, GOALS[:2])
    with pytest.raises(ValueError, match="chunk_rows must be at least 1, got 0"):
        imagine(model, state, candidates(), position_cost, GOALS, chunk_rows=0)
    with pytest.raises(ValueError, match="step_weight_base must be positive"):
        imagine(model, state, candidates(), position_cost, GOALS, step_weight_base=0.0)
    with pytest.raises(ValueError, match="texts as actions"):
        imagine(ToyWorldModel(action_shape=None), state, candidates(), position_cost, GOALS)
