"""The multi-step world model: the published rollout, cached = full, batch = single, actions matter at every step."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.worldmodels.frame_worlds import (
    BINS,
    MULTI,
    SIDE,
    compressive_tokenizer,
    multi_step_world,
    random_actions,
    random_frames,
    tiny_llama,
)
from worldmodels.api import History, Predictions, WorldModel
from worldmodels.generate import Forced, Sampled, generate
from worldmodels.nets import bfloat16
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.sampling import race, uniforms
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW
from worldmodels.video.state_reader import StateReader, StateReaderConfig

BATCH = 4
ACTIONS = random_actions(11, BATCH)


@pytest.fixture(scope="module")
def model():
    return multi_step_world()


def start(model, batch=BATCH):
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randint(0, 20, (batch, 16), generator=generator)
    frames = torch.randint(0, 20, (batch, 4), generator=generator)
    return contexts, frames, model.start_tokens(contexts, frames, torch.arange(batch))


def roll(model, state, actions, temperature=1.0):
    """The last state, ids ``(B, T, K)`` and their log-probabilities."""
    drawn, likely = [], []
    for action in actions:
        state, predictions = model.step(state, action, temperature=temperature)
        drawn.append(predictions.tokens)
        likely.append(predictions.logprobs)
    return state, torch.stack(drawn, 1), torch.stack(likely, 1)


def slow_roll(model, context, frame, seed, actions, *, temperature=1.0, vocab=None, count=None):
    """One row, re-encoding the whole window for every id (or the first ``count`` of a frame)."""
    layout = model.layout
    count = count or layout.dynamic_tokens
    vocab = layout.dynamic if vocab is None else vocab
    drawn, likely = [], []
    for step, action in enumerate(actions):
        if step % (layout.num_frames - 1) == 0:
            window = [*(context + layout.dynamic_vocab).tolist(), *(drawn[-1] if drawn else frame.tolist())]
        window += (model.action_bins.encode(action) + layout.action_offset).tolist()
        likely.append([])
        for index in range(count):
            logits = model.llama(torch.tensor([window]), last_only=True)[:, -1, vocab]
            if (penalty := model.repetition_penalty) != 1.0:
                for token in set(window) & set(range(*vocab.indices(layout.vocab_size))):
                    logits[0, token] *= penalty if logits[0, token] < 0 else 1 / penalty
            draw = uniforms(torch.tensor([seed]), step, index)
            token, logprob = race(logits, draw, temperature=temperature, top_k=model.top_k)
            window.append(int(token))
            likely[-1].append(float(logprob))
        drawn.append(window[-count:])
    return torch.tensor(drawn), torch.tensor(likely)


def published_llama(conformance) -> Llama:
    folder = conformance("video/transformer")
    llama = Llama(LlamaConfig.from_hf(json.loads((folder / "config.json").read_text())))
    llama.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return llama.eval()


class AllIds(MultiStepLayout):
    """The published run drew from the whole vocabulary."""

    @property
    def dynamic(self) -> slice:
        return slice(0, self.vocab_size)


def published_world(conformance, layout, **options) -> MultiStepWorldModel:
    """The published transformer and sizes; the tokenizer has no weights and is not used."""
    with torch.device("meta"):
        tokenizer = CompressiveTokenizer(CompressiveTokenizerConfig())
    bins = ActionBins(low=RT1_LOW.tolist(), high=RT1_HIGH.tolist())
    return MultiStepWorldModel(tokenizer, published_llama(conformance), layout, bins, **options)


@pytest.fixture(scope="module")
def golden(conformance):
    return load_file(conformance("video/transformer/rollout.safetensors"))


def published_start(golden, world):
    return world.start_tokens(
        golden["ctx_tokens_raw"][0].long(), golden["first_frame_tokens"].long(), torch.zeros(1).long()
    )


def test_the_published_rollout(golden, conformance):
    world = published_world(conformance, AllIds())
    _, drawn, likely = roll(world, published_start(golden, world), golden["actions"][:7, None].numpy(), 0.0)
    assert torch.equal(drawn[0], golden["generated"].long())
    torch.testing.assert_close(likely[0], golden["generated_logprob"], atol=1e-3, rtol=0)


def test_the_published_prompt_with_frames_own_ids_only(golden, conformance):
    world = published_world(conformance, MultiStepLayout())
    actions = golden["actions"][:7, None].numpy()
    state, drawn, likely = roll(world, published_start(golden, world), actions, 0.0)
    assert int(drawn.max()) < 4375
    segments = []
    for ids in golden["action_tokens"][:7].long():
        segments += [Forced(ids[None]), Sampled(80, slice(0, 4375))]
    prompt = golden["prompt"].long()
    out = generate(world.llama, prompt, seeds=torch.zeros(1).long(), segments=segments, temperature=0.0)
    assert torch.equal(drawn.flatten(), out.tokens[out.mask])
    torch.testing.assert_close(likely.flatten(), out.logprobs[out.mask], atol=1e-4, rtol=0)
    # The next window: the same context, and the last frame.
    _, next_frame, _ = roll(world, state, golden["actions"][7:8, None].numpy(), 0.0)
    prompt = torch.cat([prompt[:, :1280], drawn[:, -1]], 1)
    segments = [Forced(golden["action_tokens"][7:8].long()), Sampled(80, slice(0, 4375))]
    out = generate(world.llama, prompt, seeds=torch.zeros(1).long(), segments=segments, temperature=0.0)
    assert torch.equal(next_frame[0, 0], out.tokens[out.mask])


@torch.no_grad()
def test_the_published_repetition_penalty(golden, conformance):
    world = published_world(conformance, MultiStepLayout(), repetition_penalty=1.2)
    context, frame = golden["ctx_tokens_raw"][0, 0].long(), golden["first_frame_tokens"][0].long()
    actions = golden["actions"][:1].numpy()
    everything = slice(0, 9008)
    greedy = {"temperature": 0.0, "count": 20}
    slow, _ = slow_roll(world, context, frame, 0, actions, vocab=everything, **greedy)
    assert torch.equal(slow[0], golden["greedy_rep_penalty_1p2_first_frame"][:20].long())
    _, fast, _ = roll(world, published_start(golden, world), actions[:, None], 0.0)
    own, _ = slow_roll(world, context, frame, 0, actions, **greedy)
    assert torch.equal(fast[0, :, :20], own)


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({}, 1.0),
        ({}, 0.0),
        ({"repetition_penalty": 1.3}, 1.0),
        ({"repetition_penalty": 1.3, "top_k": 5}, 0.8),
    ],
)
def test_three_windows_equal_encoding_everything_for_every_id(options, temperature):
    model = multi_step_world(**options)
    contexts, frames, state = start(model)
    _, drawn, likely = roll(model, state, ACTIONS[:8], temperature)
    for row in (0, 3):
        slow, slow_likely = slow_roll(
            model, contexts[row], frames[row], row, ACTIONS[:8, row], temperature=temperature
        )
        assert torch.equal(drawn[row], slow)
        torch.testing.assert_close(likely[row], slow_likely, atol=1e-4, rtol=1e-4)


def test_a_repetition_penalty_changes_what_is_drawn(model):
    plain = roll(model, start(model)[2], ACTIONS[:3], 0.0)[1]
    other = multi_step_world(repetition_penalty=3.0)
    assert not torch.equal(plain, roll(other, start(other)[2], ACTIONS[:3], 0.0)[1])


def test_in_112_steps_an_action_changes_the_next_frame_and_nothing_before(model):
    actions = random_actions(112, 1)
    before, states = start(model, 1)[2], []
    drawn, likely = [], []
    for action in actions:
        states.append(before)
        before, predictions = model.step(before, action)
        drawn.append(predictions.tokens)
        likely.append(predictions.logprobs)
    # Of 4 ids all may be the same by chance, and common draws make that likely; hardly under each of three actions.
    others = [random_actions(112, 1, seed=seed) for seed in (1, 2, 3)]
    telling: dict[int, np.ndarray] = {}  # step -> an action after which other ids come
    for step in range(112):  # within windows, at their ends, and in their first steps
        for other in others:
            _, predictions = model.step(states[step], other[step])
            assert not torch.equal(predictions.logprobs, likely[step])
            if not torch.equal(predictions.tokens, drawn[step]):
                telling[step] = other[step]
    assert len(telling) > 108
    for step in (0, 2, 3, 50, 111):
        mixed = actions.copy()
        mixed[step] = telling[step]
        _, tokens, _ = roll(model, states[0], mixed)
        assert torch.equal(tokens[0, :step], torch.cat(drawn)[:step])
        assert not torch.equal(tokens[0, step], drawn[step][0])


def test_frames_are_those_of_a_decoder_that_shares_nothing(model):
    contexts, _, state = start(model)
    mixed = state.fork(2).select([0, 1, 7, 2, 5])
    _, predictions = model.step(mixed, ACTIONS[0, [0, 0, 3, 1, 2]])
    _, features = model.tokenizer.decode_context(contexts[[0, 0, 3, 1, 2]])
    expected = model.tokenizer.decode(features, predictions.tokens).clamp(0, 1).movedim(1, -1) * 255
    assert np.abs(predictions.observations() - expected.round().numpy()).max() <= 1
    np.testing.assert_array_equal(predictions[2].observation, predictions.observations()[2])
    assert predictions.states() is None


def test_contexts_are_prefilled_and_seen_by_the_decoder_once_an_episode(model, monkeypatch):
    calls = {"decode_context": 0, "positions": 0}
    decode_context, hidden = model.tokenizer.decode_context, model.llama.hidden

    def counted_decode(ids):
        calls["decode_context"] += len(ids)
        return decode_context(ids)

    def counted_hidden(tokens, cache):
        calls["positions"] += tokens.shape[1]
        return hidden(tokens, cache)

    monkeypatch.setattr(model.tokenizer, "decode_context", counted_decode)
    monkeypatch.setattr(model.llama, "hidden", counted_hidden)
    _, _, state = start(model, 2)
    assert calls == {"decode_context": 0, "positions": 16}
    state, predictions = model.step(state, ACTIONS[0, :2])
    predictions.observations()
    state = state.fork(3)
    for action in ACTIONS[1:8]:
        state, predictions = model.step(state, np.repeat(action[:2], 3, 0))
        predictions.observations()
    assert calls["decode_context"] == 2
    # 8 steps of 13 action numbers and 4 ids, and 3 more ids of the last frame where each of 3 windows began
    assert calls["positions"] == 16 + 8 * (13 + 4) + 3 * 3


def test_rows_that_begin_with_the_same_frame_share_its_context(model, monkeypatch):
    frames = random_frames(3)[[2, 0, 1, 0, 2]]
    seeds, actions = [5, 6, 7, 8, 5], random_actions(5, 5)
    actions[:, 4] = actions[:, 0]
    decode_context, decoded = model.tokenizer.decode_context, []
    monkeypatch.setattr(
        model.tokenizer, "decode_context", lambda ids: decoded.append(len(ids)) or decode_context(ids)
    )
    state = model.start([History(observations=[frame]) for frame in frames], seeds=seeds)
    contexts = state.groups[0].contexts
    assert len({id(context) for context in contexts}) == 3
    assert contexts[0] is contexts[4]
    assert contexts[1] is contexts[3]
    tokens, pictures = [], []
    for action in actions:  # two windows
        state, predictions = model.step(state, action)
        tokens.append(predictions.tokens)
        pictures.append(predictions.observations())
    assert sum(decoded) == 3
    for row in range(5):  # the slow path: everybody has a context of his own
        alone = model.start([History(observations=[frames[row]])], seeds=seeds[row : row + 1])
        for step, action in enumerate(actions):
            alone, predictions = model.step(alone, action[row : row + 1])
            assert torch.equal(predictions.tokens[0], tokens[step][row])
            # Decoded in another batch, a pixel may be rounded to the neighbouring level.
            difference = predictions.observations()[0].astype(int) - pictures[step][row]
            assert np.abs(difference).max() <= 1
    assert all(torch.equal(frame[0], frame[4]) for frame in tokens)
    assert not all(torch.equal(frame[1], frame[3]) for frame in tokens)  # own seeds and actions


def test_a_context_frame_and_a_present_frame(model):
    frames = random_frames(3)
    old, present = frames[1], frames[2]
    histories = [
        History(observations=list(frames), actions=list(ACTIONS[:2, 0])),
        History(observations=[present]),
        History(observations=[old, present], actions=[ACTIONS[0, 1]]),
    ]
    _, predictions = model.step(model.start(histories, seeds=[3, 3, 3]), ACTIONS[4, [0, 0, 0]])
    first, only, last_two = predictions.tokens
    assert torch.equal(first, last_two)
    assert not torch.equal(first, only)
    pixels = torch.from_numpy(frames).movedim(-1, 1) / 255
    context, features = model.tokenizer.encode_context(pixels[1:2])
    ids = model.tokenizer.encode(features, pixels[2:])
    state = model.start_tokens(context, ids, torch.tensor([3]))
    assert torch.equal(model.step(state, ACTIONS[4, :1])[1].tokens[0], first)


def test_rows_of_every_age_go_on_as_they_would_alone(model):
    _, _, state = start(model)
    ages, mixed = [state], state
    for step in range(5):
        ages.append(model.step(ages[-1], ACTIONS[step])[0])
        mixed = mixed.append(ages[-1].select([step % BATCH]))
    order = [5, 0, 8, 3, 6, 2, 7, 1, 4]
    mixed = mixed.select(order)
    which = [(0, row) for row in range(4)] + [(step + 1, step % BATCH) for step in range(5)]
    actions = random_actions(4, 9, seed=5)
    _, drawn, _ = roll(model, mixed, actions)
    for place, row in enumerate(order):
        age, own = which[row]
        _, alone, _ = roll(model, ages[age].select([own]), actions[:, place : place + 1])
        assert torch.equal(alone[0], drawn[place])


def test_an_old_state_stays_valid_and_forks_reproduce(model):
    _, _, state = start(model)
    for begin in (state, roll(model, state, ACTIONS[:2])[0]):
        _, first, _ = roll(model, begin, ACTIONS[2:6])
        roll(model, begin, -ACTIONS[2:6])
        repeated = np.repeat(ACTIONS[2:6], 3, axis=1)
        _, children, _ = roll(model, begin.fork(3), repeated)
        assert torch.equal(roll(model, begin, ACTIONS[2:6])[1], first)
        assert torch.equal(children[::3], first)
        assert torch.equal(roll(model, begin.fork(3), repeated)[1], children)
        assert not torch.equal(children[1::3], first)


def test_satisfies_the_contract(model):
    assert isinstance(model, WorldModel)
    state = model.start([History(observations=[frame]) for frame in random_frames(2)], seeds=[1, 2])
    _, predictions = model.step(state, ACTIONS[0, :2])
    assert isinstance(predictions, Predictions)
    assert predictions[1].observation.shape == (SIDE, SIDE, 3)
    assert predictions[-1].observation.dtype == np.uint8
    with pytest.raises(IndexError, match="row 2 of 2"):
        predictions[2]


def test_weights_that_are_not_finite_give_an_error_in_the_prediction():
    model = multi_step_world()
    with torch.no_grad():
        model.llama.lm_head.weight[3] = torch.nan
    state, predictions = model.step(start(model)[2], ACTIONS[0])
    assert predictions[0].observation is None
    assert "NaN" in predictions[0].error
    model.step(state, ACTIONS[1])


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((4, 3)), r"shape \(4, 3\), expected \(4, 13\)"),
        (np.full((4, 13), np.nan), r"must be finite, got nan at index \(0, 0\)"),
        (np.zeros((5, 13)), "expected"),
    ],
)
def test_bad_actions(model, actions, message):
    with pytest.raises(ValueError, match=message):
        model.step(start(model)[2], actions)


def test_bad_frames_and_states(model):
    with pytest.raises(ValueError, match=r"observation 0 is uint8 \(8, 8, 3\).*\(16, 16, 3\)"):
        model.start([History(observations=[np.zeros((8, 8, 3), np.uint8)])], seeds=[0])
    with pytest.raises(ValueError, match="float64"):
        model.start([History(observations=[np.zeros((SIDE, SIDE, 3))])], seeds=[0])
    with pytest.raises(ValueError, match="seed"):
        model.start([], seeds=[])
    with pytest.raises(ValueError, match="no observation"):
        model.start([History(observations=[])], seeds=[1])
    with pytest.raises(TypeError, match="a list"):
        model.step([1, 2], ACTIONS[0])
    other = multi_step_world(seed=1)
    with pytest.raises(TypeError, match="another model"):
        model.step(start(other)[2], ACTIONS[0])
    with pytest.raises(TypeError, match="another model"):
        start(model)[2].append(start(other)[2])
    with pytest.raises(IndexError, match="4 rows"):
        start(model)[2].select([4])
    with pytest.raises(ValueError, match="at least 1"):
        start(model)[2].fork(0)


@pytest.mark.parametrize(("context_ids", "seeds"), [(12, 2), (20, 2), (16, 3)])
def test_ids_and_seeds_that_do_not_fit(model, context_ids, seeds):
    contexts, frames = torch.zeros(2, context_ids).long(), torch.zeros(2, 4).long()
    with pytest.raises(
        ValueError, match=rf"contexts \(2, {context_ids}\).* {seeds} seeds; expected \(B, 16\)"
    ):
        model.start_tokens(contexts, frames, torch.arange(seeds))


def test_parts_that_do_not_fit():
    tokenizer = compressive_tokenizer()
    with pytest.raises(ValueError, match="vocab_size 50, but .* have 51"):
        MultiStepWorldModel(tokenizer, tiny_llama(51), MULTI, BINS)
    with pytest.raises(ValueError, match="context_tokens 1280"):
        MultiStepWorldModel(tokenizer, tiny_llama(MULTI.vocab_size), MultiStepLayout(), BINS)
    with pytest.raises(ValueError, match="repetition_penalty is 0"):
        multi_step_world(repetition_penalty=0)
    pairs = StateReaderConfig(names=("a",), centre=(0.0,), scale=(1.0,), frames=2, side=64)
    with pytest.raises(ValueError, match="takes 2 frame.*single frames"):
        multi_step_world(reader=StateReader(pairs))
    long = replace(MULTI, num_frames=20)
    with pytest.raises(ValueError, match="20 frames has 356 positions; the transformer has 256"):
        MultiStepWorldModel(tokenizer, tiny_llama(MULTI.vocab_size), long, BINS)


def test_small_models_use_one_thread_and_leave_the_callers_setting(model, monkeypatch):
    used = []
    hidden = model.llama.hidden
    monkeypatch.setattr(
        model.llama, "hidden", lambda *given: (used.append(torch.get_num_threads()), hidden(*given))[1]
    )
    torch.set_num_threads(2)
    try:
        _, predictions = model.step(start(model)[2], ACTIONS[0])
        predictions.observations()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(used) == {1}


def test_a_reader_reads_what_the_environment_would_show(model):
    reader = StateReader(
        StateReaderConfig(names=("a", "b"), centre=(1.0, 2.0), scale=(3.0, 4.0), side=64)
    ).eval()
    with_reader = multi_step_world(reader=reader)
    histories = [History(observations=[frame]) for frame in random_frames(2)]
    state = with_reader.start(histories, seeds=[0, 1])
    _, predictions = with_reader.step(state, random_actions(2))
    shown = torch.from_numpy(predictions.observations()).movedim(-1, 1).float() / 255
    with torch.no_grad():
        expected = reader(shown)
    np.testing.assert_allclose(predictions.states(), expected, rtol=1e-5, atol=1e-5)
    _, plain = model.step(model.start(histories, seeds=[0, 1]), random_actions(2))
    assert plain.states() is None


def test_bfloat16_sees_the_same_and_shows_nearly_the_same(model, monkeypatch):
    monkeypatch.setattr(bfloat16, "has_bfloat16", lambda device: True)  # slow without, but computed alike
    half = model.in_bfloat16()
    assert next(model.llama.parameters()).dtype == torch.float32  # the model itself is left as it was
    frames = random_frames(2)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.encode(frames, frames), half.encode(frames, frames), strict=True)
    )
    histories = [History(observations=[frame]) for frame in frames]
    state = half.start(histories, seeds=[0, 1])
    for step in range(9):  # over the restart of a window
        state, predictions = half.step(state, random_actions(2, seed=step), temperature=0.0)
    assert predictions.tokens.max() < model.layout.dynamic_vocab
    shown = torch.from_numpy(predictions.observations()).movedim(-1, 1).float() / 255
    contexts = [context for group in state.groups for context in group.contexts]
    for context in contexts:
        context.features = None  # to be made again by the other model
    exact = model.decode(contexts, predictions.tokens)
    assert (exact.clamp(0, 1) - shown).abs().mean() < 0.01
    with pytest.raises(TypeError, match="another model"):
        model.step(state, random_actions(2))
