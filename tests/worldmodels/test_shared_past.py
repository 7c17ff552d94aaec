"""A past that rows have in common gives what repeating it gives, values and gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.worldmodels.test_llama import SMALL
from worldmodels.nets.llama import Llama
from worldmodels.nets.shared_past import SharedPast


def tokens(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows_each", [1, 3])
def test_equals_repeated_sequences_and_their_gradients(rows_each):
    model = Llama(SMALL, seed=0)
    before, after = tokens(2, 11, seed=1), tokens(2 * rows_each, 7, seed=2)
    whole = torch.cat([before.repeat_interleave(rows_each, 0), after], 1)
    expected = model.hidden(whole)[:, 11:]
    expected.square().sum().backward()
    gradients = [parameter.grad for parameter in model.model.parameters()]
    model.zero_grad(set_to_none=True)

    past = SharedPast(2)
    model.hidden(before, past)
    found = model.hidden(after, past.repeat(rows_each))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found.square().sum().backward()
    for parameter, wanted in zip(model.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, atol=1e-3, rtol=1e-3)


def test_it_is_recorded_once_and_only_continued_by_as_many_rows():
    model = Llama(SMALL, seed=0)
    past = SharedPast(2)
    with pytest.raises(ValueError, match="0 positions are recorded"):
        past.repeat(2)
    with pytest.raises(ValueError, match="holds 2 rows, the input 3"):
        model.hidden(tokens(3, 5, seed=0), past)
    model.hidden(tokens(2, 5, seed=0), past)
    with pytest.raises(ValueError, match="continue it with repeat"):
        model.hidden(tokens(2, 5, seed=0), past)
    with pytest.raises(ValueError, match="0 rows wanted"):
        past.repeat(0)
    with pytest.raises(ValueError, match="holds 4 rows, the input 2"):
        model.hidden(tokens(2, 5, seed=0), past.repeat(2))
    assert past.length == past.repeat(2).length == 5


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_rows_with_room_read_the_past_together_and_keep_their_own(kv_heads):
    model = Llama(dataclasses.replace(SMALL, num_key_value_heads=kv_heads), seed=0)
    before, after = tokens(2, 11, seed=1), tokens(6, 9, seed=2)
    expected = model.hidden(torch.cat([before.repeat_interleave(3, 0), after], 1))[:, 11:]
    past = SharedPast(2)
    model.hidden(before, past)
    rows = past.repeat(3, room=9)
    parts = []
    for part in after.split([1, 4, 1, 3], dim=1):
        parts.append(model.hidden(part, rows))
        assert rows.length == 11 + sum(one.shape[1] for one in parts)
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="9 positions and 1 more exceed"):
        model.hidden(after[:, :1], rows)
    with torch.enable_grad(), pytest.raises(ValueError, match="no gradients"):
        model.hidden(after[:, :1], past.repeat(3, room=1))
