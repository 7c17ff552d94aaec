"""The object world model: cached = full, batch = single, states never change, forks reproduce."""

import numpy as np
import pytest
import torch

from tests.worldmodels.object_models import random_window, tiny_model
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.video.slots import SlotLayout

ACTIONS = np.random.default_rng(0).normal(size=(12, 6, 10)).astype(np.float32) * 0.3


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def start(model, batch=6, frames=3):
    tokens, actions = random_window(model, batch, frames)
    return tokens, actions, model.start_tokens(tokens, actions, torch.arange(batch))


def roll(model, state, actions, temperature=1.0):
    drawn = []
    for action in actions:
        state, predictions = model.step(state, action, temperature=temperature)
        drawn.append(predictions.tokens)
    return state, torch.stack(drawn, 1)


def test_satisfies_the_contract(model):
    assert isinstance(model, WorldModel)
    _, _, state = start(model)
    _, predictions = model.step(state, ACTIONS[0])
    assert isinstance(predictions, Predictions)
    observation = predictions[2].observation
    assert observation["image"].shape == (32, 32, 3)
    assert observation["image"].dtype == np.uint8
    assert predictions.states().shape == (6, 7)


@pytest.mark.parametrize("use_stem", [True, False])
def test_cached_decoding_equals_teacher_forcing(use_stem):
    model = tiny_model(use_stem=use_stem)
    tokens, actions, state = start(model)
    logprobs, drawn = [], []
    for action in ACTIONS[:5]:
        state, predictions = model.step(state, action)
        drawn.append(predictions.tokens)
        logprobs.append(predictions.logprobs)
    window = torch.cat([tokens, torch.stack(drawn, 1)], 1)
    taken = torch.cat([actions, torch.from_numpy(ACTIONS[:5]).transpose(0, 1)], 1)
    with torch.no_grad():
        hidden, context = model.dynamics(window, taken, model.pose(window))
    for slot in range(model.dynamics.layout.slots):
        proposal = None if context.proposals is None else context.proposals[:, slot].unflatten(0, (6, 7))
        likely = model.dynamics.slot_logits(hidden[:, :, slot], slot, proposal).log_softmax(-1)
        full = likely.gather(-1, window[:, 1:, slot, None])[..., 0][:, 2:]
        assert torch.allclose(full, torch.stack(logprobs, 1)[..., slot], atol=1e-4)


def test_a_row_alone_draws_the_same_tokens_also_after_the_window_restarts(model):
    _, _, state = start(model)
    _, together = roll(model, state, ACTIONS)
    for row in (0, 4):
        _, alone = roll(model, state.select([row]), ACTIONS[:, row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_restarted_window_equals_a_fresh_start_from_its_last_frames(model):
    tokens, _, state = start(model)
    state, drawn = roll(model, state, ACTIONS[:5])  # the window of 8 frames is now full
    _, continued = model.step(state, ACTIONS[5], temperature=0.0)
    window = torch.cat([tokens, drawn], 1)[:, -3:]
    fresh = model.start_tokens(window, torch.from_numpy(ACTIONS[3:5]).transpose(0, 1), torch.arange(6))
    _, restarted = model.step(fresh, ACTIONS[5], temperature=0.0)
    assert torch.equal(continued.tokens, restarted.tokens)


def test_an_old_state_stays_valid(model):
    _, _, state = start(model)
    _, first = roll(model, state, ACTIONS[:4])
    roll(model, state, -ACTIONS[:4])
    _, again = roll(model, state, ACTIONS[:4])
    assert torch.equal(first, again)


def test_forks_reproduce_and_differ(model):
    _, _, state = start(model)
    _, parent = roll(model, state, ACTIONS[:3])
    repeated = np.repeat(ACTIONS[:3], 4, axis=1)
    _, children = roll(model, state.fork(4), repeated)
    _, again = roll(model, state.fork(4), repeated)
    assert torch.equal(children[::4], parent)
    assert torch.equal(children, again)
    assert not torch.equal(children[1::4], parent)


def test_rows_of_different_age_keep_their_order_and_draws(model):
    _, _, state = start(model)
    older, _ = roll(model, state, ACTIONS[:2])
    mixed = older.select([3, 1]).append(state.select([0, 5])).select([2, 0, 3, 1])
    _, predictions = model.step(mixed, ACTIONS[2][[0, 3, 5, 1]])
    _, old = model.step(older, ACTIONS[2])
    _, young = model.step(state, ACTIONS[2])
    expected = torch.stack([young.tokens[0], old.tokens[3], young.tokens[5], old.tokens[1]])
    assert torch.equal(predictions.tokens, expected)


def test_histories_of_different_length(model):
    generator = np.random.default_rng(1)

    def observation():
        image = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        return {"image": image, "proprio": generator.uniform(0, 100, 4).astype(np.float32)}

    frames = [observation() for _ in range(3)]
    actions = list(ACTIONS[:2, 0])
    histories = [History(observations=frames, actions=actions), History(observations=frames[:1])]
    state = model.start(histories, seeds=[5, 6])
    _, both = model.step(state, ACTIONS[3, :2])
    for row, history in enumerate(histories):
        _, alone = model.step(model.start([history], seeds=[5 + row]), ACTIONS[3, row : row + 1])
        assert torch.equal(alone.tokens[0], both.tokens[row])


@pytest.mark.parametrize(
    ("actions", "message"),
    [(np.zeros((6, 3)), "expected"), (np.full((6, 10), np.nan), "finite"), (np.zeros((5, 10)), "expected")],
)
def test_bad_actions(model, actions, message):
    _, _, state = start(model)
    with pytest.raises(ValueError, match=message):
        model.step(state, actions)


def test_bad_observations_and_states(model):
    with pytest.raises(ValueError, match="expected"):
        model.encode([{"image": np.zeros((8, 8, 3), np.uint8), "proprio": np.zeros(4)}])
    with pytest.raises(TypeError, match="this model"):
        model.step([1, 2], ACTIONS[0])
    with pytest.raises(ValueError, match="seed"):
        model.start([], seeds=[])


def test_slots_round_trip():
    layout = SlotLayout()
    proprio = torch.tensor(
        [[0.0, 511.0, -300.0, 300.0], [-64.0, 576.0, 0.0, 1.0], [-900.0, 2000.0, -999.0, 999.0]]
    )
    ids = layout.encode_proprio(proprio)
    back = layout.proprio(ids)
    assert ((back - proprio)[:2].abs() <= torch.tensor([0.63, 0.63, 2.0, 2.0])).all()
    assert ids.min() >= 0
    assert (ids < torch.tensor(layout.sizes[:4])).all()
    codes = torch.tensor([[0, 1023, 33, 512]])
    digits = layout.code_digits_of(codes).view(1, 4, 2)
    assert torch.equal(digits[..., 0] + 32 * digits[..., 1], codes)


def test_small_batches_use_one_thread_and_leave_the_callers_setting(model):
    _, _, state = start(model)
    torch.set_num_threads(2)
    try:
        _, predictions = model.step(state, ACTIONS[0])
        predictions.observations()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
