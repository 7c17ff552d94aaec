"""Tables made of parts: what the parts are, that they are learned in common, and that nothing of them is left."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.tiny_frames import tiny_model
from training.shared_tables import bin_parts, digit_parts, id_parts, shared_tables
from worldmodels.nets.fsq import FSQ
from worldmodels.nets.llama import Llama

LEVELS = (3, 4)


@given(levels=st.lists(st.integers(2, 6), min_size=1, max_size=4))
def test_ids_have_equal_parts_where_their_digits_are_equal(levels):
    parts = digit_parts(levels)
    assert parts.shape == (math.prod(levels), sum(levels))
    codes = FSQ(levels).indices_to_codes(torch.arange(len(parts)))
    assert torch.equal((parts @ parts.T).long(), (codes[:, None] == codes).sum(-1))


@given(num_bins=st.integers(2, 300), knots=st.integers(2, 40))
def test_bins_lie_between_two_knots(num_bins, knots):
    parts = bin_parts(num_bins, knots)
    torch.testing.assert_close(parts.sum(1), torch.ones(num_bins))
    assert ((parts > 1e-5).sum(1) <= 2).all()
    places = parts @ torch.arange(knots).float()
    torch.testing.assert_close(places, torch.linspace(0, knots - 1, num_bins), atol=1e-4, rtol=1e-5)


def test_only_parts_and_own_rows_are_trained_and_plain_tables_are_left():
    layout = tiny_model().layout
    levels = tiny_model().tokenizer.config
    parts = id_parts(layout, levels.context_levels, levels.dynamic_levels)
    assert parts.shape[0] == layout.vocab_size
    assert not parts[-2:].any()
    assert (parts[: layout.dynamic_vocab, sum(levels.dynamic_levels) :] == 0).all()

    llama = Llama(dataclasses.replace(tiny_model().llama.config, vocab_size=layout.vocab_size), seed=0)
    names = set(llama.state_dict())
    with shared_tables(llama, parts, seed=0):
        same = (parts[1:] == parts[0]).sum(1).argmax() + 1  # the id most like id 0
        optimiser = torch.optim.SGD(llama.parameters(), lr=0.1)
        before = llama.model.embed_tokens.weight.detach().clone()
        llama.hidden(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
        optimiser.step()
        moved = (llama.model.embed_tokens.weight - before).norm(dim=1)
        assert moved[0] > moved[same] > 0
        assert moved[layout.dynamic_vocab :].max() == 0
        during = llama.model.embed_tokens.weight.detach().clone()
        tokens = torch.arange(6)[None]
        expected = llama(tokens)
    assert set(llama.state_dict()) == names
    assert torch.equal(llama.model.embed_tokens.weight, during)
    torch.testing.assert_close(llama(tokens), expected)
    assert type(llama.model.embed_tokens) is torch.nn.Embedding


def test_seeds_decide_and_wrong_models_are_refused():
    world = tiny_model()
    levels = world.tokenizer.config
    parts = id_parts(world.layout, levels.context_levels, levels.dynamic_levels)
    tables = []
    for seed in (0, 0, 1):
        llama = Llama(world.llama.config, seed=0)
        with shared_tables(llama, parts, seed=seed):
            pass
        tables.append(llama.lm_head.weight)
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    tied = Llama(dataclasses.replace(world.llama.config, tie_word_embeddings=True), seed=0)
    for llama, given_parts in ((tied, parts), (Llama(world.llama.config), parts[1:])):
        with (
            pytest.raises(ValueError, match="needed are as many ids and two tables"),
            shared_tables(llama, given_parts, seed=0),
        ):
            pass
