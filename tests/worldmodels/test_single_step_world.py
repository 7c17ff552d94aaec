"""The single-step world model: its prompt is the published one, cached = full, batch = single, errors."""

import numpy as np
import pytest
import torch

from tests.worldmodels.frame_worlds import (
    BINS,
    SIDE,
    SINGLE,
    frame_tokenizer,
    multi_step_world,
    random_actions,
    random_frames,
    single_step_world,
    tiny_llama,
)
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.nets import bfloat16
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.sampling import race, uniforms
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.frame_tokenizer import FrameTokenizer, FrameTokenizerConfig
from worldmodels.video.layouts import SingleStepLayout
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW
from worldmodels.video.single_step_world import SingleStepWorldModel

BATCH = 4
ACTIONS = random_actions(8, BATCH)


@pytest.fixture(scope="module")
def model():
    return single_step_world()


def start(model, batch=BATCH):
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 20, (batch, 4, 16), generator=generator)
    actions = torch.randint(0, 8, (batch, 3, 13), generator=generator)
    return frames, actions, model.start_tokens(frames, actions, torch.arange(batch))


def roll(model, state, actions, temperature=1.0):
    """The last state, ids ``(B, T, K)`` and their log-probabilities."""
    drawn, likely = [], []
    for action in actions:
        state, predictions = model.step(state, action, temperature=temperature)
        drawn.append(predictions.tokens)
        likely.append(predictions.logprobs)
    return state, torch.stack(drawn, 1), torch.stack(likely, 1)


def slow_roll(model, frames, bins, seed, actions, temperature=1.0):
    """One row, re-encoding everything for every id; the prompt is built by the published layout."""
    layout = model.layout
    frames, bins, likely = list(frames), list(bins), []
    for step, action in enumerate(actions):
        bins.append(torch.from_numpy(model.action_bins.encode(action)))
        visual = torch.stack([*frames[-4:], torch.zeros_like(frames[0])])
        ids = layout.build(visual[None], torch.stack(bins[-4:])[None]).input_ids[:, layout.prompt]
        likely.append([])
        for index in range(layout.visual_tokens):
            logits = model.llama(ids, last_only=True)[:, -1, layout.visual]
            draw = uniforms(torch.tensor([seed]), step, index)
            token, logprob = race(logits, draw, temperature=temperature)
            ids = torch.cat([ids, token[None]], 1)
            likely[-1].append(float(logprob))
        frames.append(ids[0, -layout.visual_tokens :])
    return torch.stack(frames[4:]), torch.tensor(likely)


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cached_steps_equal_encoding_everything_for_every_id(model, temperature):
    frames, bins, state = start(model)
    _, drawn, likely = roll(model, state, ACTIONS[:5], temperature)
    for row in (0, 3):
        slow, slow_likely = slow_roll(model, frames[row], bins[row], row, ACTIONS[:5, row], temperature)
        assert torch.equal(drawn[row], slow)
        torch.testing.assert_close(likely[row], slow_likely, atol=1e-4, rtol=1e-4)


def test_what_a_step_feeds_is_the_published_prompt(conformance, monkeypatch):
    golden = np.load(conformance("video/processor.npz"))
    with torch.device("meta"):
        tokenizer = FrameTokenizer(FrameTokenizerConfig())
    layout = SingleStepLayout()
    config = LlamaConfig(
        vocab_size=layout.vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    bins = ActionBins(low=RT1_LOW.tolist(), high=RT1_HIGH.tolist())
    world = SingleStepWorldModel(tokenizer, Llama(config), layout, bins)
    fed = []
    hidden = world.llama.hidden

    def recorded(tokens, cache):
        fed.append(tokens)
        return hidden(tokens, cache)

    monkeypatch.setattr(world.llama, "hidden", recorded)
    visual = torch.from_numpy(golden["simple_visual_tokens"]).long().flatten(2)
    actions = golden["simple_actions"]
    taken = torch.from_numpy(bins.encode(actions[:, :3]))
    state = world.start_tokens(visual[:, :4], taken, torch.arange(3))
    world.step(state, actions[:, 3])
    prompt = torch.from_numpy(golden["simple_input_ids"])[:, : layout.prompt.stop]
    assert torch.equal(torch.cat(fed[:2], 1), prompt)
    assert sum(tokens.shape[1] for tokens in fed) == layout.response.stop - 2  # neither the last id nor eos


def test_rows_with_one_past_share_its_prefill(model, monkeypatch):
    _, _, state = start(model, 2)
    candidates = state.fork(3)
    actions = random_actions(6, seed=2)
    _, together, _ = roll(model, candidates, actions[None])
    apart = [roll(model, candidates.select([row]), actions[None, row : row + 1])[1][0] for row in range(6)]
    assert torch.equal(together, torch.stack(apart))
    rows = []
    hidden = model.llama.hidden

    def counted(tokens, cache):
        rows.append(tuple(tokens.shape))
        return hidden(tokens, cache)

    monkeypatch.setattr(model.llama, "hidden", counted)
    model.step(candidates, actions)
    assert rows[:3] == [(2, 4 * 16 + 3 * 13), (6, 14), (6, 1)]


def test_an_action_changes_the_next_frame_and_nothing_before(model):
    actions = random_actions(8, 1)
    _, _, state = start(model, 1)
    _, drawn, _ = roll(model, state, actions)
    for step in range(8):
        mixed = actions.copy()
        mixed[step] = random_actions(1, seed=9)[0]
        _, tokens, _ = roll(model, state, mixed)
        assert torch.equal(tokens[0, :step], drawn[0, :step])
        assert not torch.equal(tokens[0, step], drawn[0, step])


def test_short_histories_repeat_their_first_frame_in_which_nothing_was_done(model):
    frames, actions = random_frames(5), random_actions(4)
    still = np.zeros(13, np.float32)
    long = History(observations=list(frames), actions=list(actions))
    last_four = History(observations=list(frames[1:]), actions=list(actions[1:]))
    two = History(observations=list(frames[:2]), actions=list(actions[:1]))
    filled = History(observations=[frames[0], frames[0], *frames[:2]], actions=[still, still, *actions[:1]])
    state = model.start([long, last_four, two, filled], seeds=[1, 1, 1, 1])
    _, predictions = model.step(state, ACTIONS[0, [0, 0, 0, 0]])
    assert torch.equal(predictions.tokens[0], predictions.tokens[1])
    assert torch.equal(predictions.tokens[2], predictions.tokens[3])
    assert not torch.equal(predictions.tokens[0], predictions.tokens[2])


def test_state_rules(model):
    _, _, state = start(model)
    later, drawn, _ = roll(model, state, ACTIONS[:3])
    assert torch.equal(roll(model, state, ACTIONS[:3])[1], drawn)
    children = roll(model, state.fork(2), np.repeat(ACTIONS[:3], 2, 1))[1]
    assert torch.equal(children[::2], drawn)
    assert not torch.equal(children[1::2], drawn)
    mixed = later.append(state).select([6, 1, 0])
    _, predictions = model.step(mixed, ACTIONS[0, [2, 1, 0]])
    young = model.step(state, ACTIONS[0])[1].tokens
    old = model.step(later, ACTIONS[0])[1].tokens
    assert torch.equal(predictions.tokens, torch.stack([young[2], old[1], old[0]]))


def test_satisfies_the_contract(model):
    assert isinstance(model, WorldModel)
    state = model.start([History(observations=[frame]) for frame in random_frames(2)], seeds=[1, 2])
    _, predictions = model.step(state, ACTIONS[0, :2])
    assert isinstance(predictions, Predictions)
    assert predictions[1].observation.shape == (SIDE, SIDE, 3)
    expected = model.tokenizer.decode(predictions.tokens.view(2, 4, 4)).clamp(0, 1).movedim(1, -1) * 255
    assert np.abs(predictions.observations() - expected.round().numpy()).max() <= 1
    assert predictions.states() is None


def test_bfloat16_sees_the_same_and_shows_nearly_the_same(model, monkeypatch):
    monkeypatch.setattr(bfloat16, "has_bfloat16", lambda device: True)  # slow without, but computed alike
    half = model.in_bfloat16()
    assert next(model.llama.parameters()).dtype == torch.float32  # the model itself is left as it was
    frames = random_frames(2)
    assert torch.equal(model.encode(frames), half.encode(frames))
    state = half.start([History(observations=[frame]) for frame in frames], seeds=[0, 1])
    for step in range(3):
        state, predictions = half.step(state, random_actions(2, seed=step), temperature=0.0)
    shown = torch.from_numpy(predictions.observations()).movedim(-1, 1).float() / 255
    exact = model.decode(predictions.tokens).clamp(0, 1)
    assert 0 < (exact - shown).abs().mean() < 0.01
    with pytest.raises(TypeError, match="another model"):
        model.step(state, random_actions(2))


def test_clear_errors(model):
    with pytest.raises(ValueError, match="expected"):
        model.step(start(model)[2], np.zeros((4, 3)))
    with pytest.raises(ValueError, match="finite"):
        model.step(start(model)[2], np.full((4, 13), np.nan))
    with pytest.raises(ValueError, match=r"observation 0 is uint8 \(8, 8, 3\)"):
        model.start([History(observations=[np.zeros((8, 8, 3), np.uint8)])], seeds=[0])
    frames = list(random_frames(2))
    with pytest.raises(ValueError, match=r"actions have shape \(0, 13\), expected \(1, 13\)"):
        model.start([History(observations=frames)], seeds=[0])
    with pytest.raises(ValueError, match="seed"):
        model.start([], seeds=[])
    foreign = multi_step_world().start([History(observations=frames[:1])], seeds=[0])
    with pytest.raises(TypeError, match="another model"):
        model.step(foreign, ACTIONS[0, :1])
    with pytest.raises(ValueError, match="multiples of 4 px"):
        SingleStepWorldModel(
            frame_tokenizer(), tiny_llama(SINGLE.vocab_size), SINGLE, BINS, image_size=(15, 16)
        )
    with pytest.raises(ValueError, match="visual_tokens 16, but .* have 20"):
        SingleStepWorldModel(
            frame_tokenizer(), tiny_llama(SINGLE.vocab_size), SINGLE, BINS, image_size=(16, 20)
        )
