"""Shortcuts in bfloat16 against the plain way in float32."""

import time

import pytest
import torch
import torch.nn.functional as F

from worldmodels.nets import bfloat16
from worldmodels.nets.bfloat16 import Linear, attend_from_one, linear


@pytest.mark.parametrize("rows", [1, 2, 64, 65])
def test_a_layer_equals_the_plain_one_up_to_rounding(rows):
    generator = torch.Generator().manual_seed(rows)
    layer = Linear(48, 40, bias=False)
    layer.weight.data.normal_(generator=generator)
    half = layer.to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(rows, 1, 48, generator=generator).to(torch.bfloat16)
    out = half(x)
    assert out.shape == (rows, 1, 40)
    assert out.dtype == torch.bfloat16
    assert out.is_contiguous()
    exact = F.linear(x.double(), half.weight.double())
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-3)


def test_gradients_float32_and_no_rows_take_the_plain_way(monkeypatch):
    def refuse(*_):
        raise AssertionError("a shortcut was taken")

    monkeypatch.setattr(torch, "mv", refuse)
    monkeypatch.setattr(torch, "mm", refuse)
    weight = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    linear(torch.ones(1, 2, dtype=torch.bfloat16), weight).sum().backward()
    assert weight.grad is not None
    assert linear(torch.ones(1, 2), torch.ones(3, 2)).tolist() == [[2.0, 2.0, 2.0]]
    assert linear(torch.ones(0, 2, dtype=torch.bfloat16), weight).shape == (0, 3)
    with torch.no_grad(), pytest.raises(AssertionError, match="shortcut"):
        linear(torch.ones(1, 2, dtype=torch.bfloat16), weight)


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_attention_from_one_position_equals_float32(batch, tiles, monkeypatch):
    monkeypatch.setattr(bfloat16, "_has_tiles", lambda: tiles)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, 2, 1, 8, generator=generator).to(torch.bfloat16)
    k, v = (torch.randn(batch, 2, 50, 8, generator=generator).to(torch.bfloat16)[:, :, :37] for _ in range(2))
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    torch.testing.assert_close(attend_from_one(q, k, v).float(), expected, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("has", [True, False])
def test_autocast_is_used_where_it_is_wanted_and_the_processor_has_it(monkeypatch, has):
    monkeypatch.setattr(bfloat16, "has_bfloat16", lambda device: has)
    one = torch.ones(2, 2)
    for wanted in (True, False):
        with bfloat16.autocast(torch.device("cpu"), wanted):
            assert (one @ one).dtype == (torch.bfloat16 if has and wanted else torch.float32)


def test_a_processor_without_bfloat16_is_told_that_models_stay_in_float32(monkeypatch):
    monkeypatch.setattr(bfloat16, "has_bfloat16", lambda device: False)
    with pytest.warns(UserWarning, match="no bfloat16 instructions"):
        assert not bfloat16.advise(torch.device("cpu"))


def test_what_is_called_faster_is_faster():
    """Whichever way it is here: a convolution in the type that is chosen does not take many times the other's time."""
    layer = torch.nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False)
    images = torch.rand(2, 32, 32, 40)
    seconds = {}
    for wanted in (False, True):
        with bfloat16.autocast(torch.device("cpu"), wanted):
            layer(images)
            started = time.process_time()
            for _ in range(5):
                layer(images)
            seconds[wanted] = time.process_time() - started
    assert seconds[True] < 5 * seconds[False]  # 40 times where bfloat16 is emulated
