from __future__ import annotations

import numpy as np
import pytest
import torch

from worldmodels.nets.fsq import FSQ, LEVELS_BY_BITS


@pytest.mark.parametrize("bits", sorted(LEVELS_BY_BITS))
def test_equals_the_reference(conformance, bits):
    with np.load(conformance("video/fsq.npz")) as data:
        golden = {
            k[len(f"b{bits}_") :]: torch.from_numpy(v) for k, v in data.items() if k.startswith(f"b{bits}_")
        }
    fsq = FSQ(LEVELS_BY_BITS[bits])
    assert list(fsq.levels) == golden["levels"].tolist()
    assert fsq.codebook_size == int(golden["codebook_size"])

    torch.testing.assert_close(fsq.bound(golden["z"]), golden["bound"], atol=1e-6, rtol=0)
    codes, indices = fsq(golden["z"])
    torch.testing.assert_close(codes, golden["codes"], atol=1e-6, rtol=0)
    assert torch.equal(indices, golden["indices"].long())
    assert torch.equal(fsq.indices_to_codes(indices), golden["codes"])

    codes, indices = fsq.forward_image(golden["z_img"])
    torch.testing.assert_close(codes, golden["codes_img"], atol=1e-6, rtol=0)
    assert torch.equal(indices, golden["indices_img"].long())

    assert torch.equal(fsq.indices_to_codes(golden["probe_indices"]), golden["probe_codes"])
    assert torch.equal(fsq.indices_to_codes_image(golden["idx_grid"]), golden["idx_grid_codes"])
    wrapped = (
        golden["idx_out_of_range"] % fsq.codebook_size
    )  # the reference wraps; here that is the caller's wish
    assert torch.equal(fsq.indices_to_codes(wrapped), golden["idx_out_of_range_codes"])
    with pytest.raises(ValueError, match=rf"\[0, {fsq.codebook_size}\)"):
        fsq.indices_to_codes(golden["idx_out_of_range"])


@pytest.mark.parametrize("levels", [(32, 32), (2,), (3, 2, 16), (7, 5, 5, 5, 5)])
def test_every_id_survives_a_round_trip(levels):
    fsq = FSQ(levels)
    ids = torch.arange(fsq.codebook_size)
    codes = fsq.indices_to_codes(ids)
    assert codes.abs().max() <= 1
    assert torch.equal(fsq.codes_to_indices(codes), ids)
    assert len(torch.unique(codes, dim=0)) == fsq.codebook_size


def test_every_level_can_be_reached_and_no_other():
    fsq = FSQ((32, 5))
    z = torch.cat([torch.linspace(-6, 6, 20001), torch.tensor([-1e4, 1e4])])
    _, ids = fsq(z[:, None].expand(-1, 2))
    assert torch.unique(ids % 32).tolist() == list(range(32))
    assert torch.unique(ids // 32).tolist() == list(range(5))


def test_gradients_pass_straight_through_the_rounding():
    fsq = FSQ((8, 5))
    z = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    codes, _ = fsq(z)
    (through_rounding,) = torch.autograd.grad(codes.sum(), z)
    (smooth,) = torch.autograd.grad((fsq.bound(z) / torch.tensor([4.0, 2.0])).sum(), z)
    torch.testing.assert_close(through_rounding, smooth)
    assert (through_rounding > 0).all()


def test_bad_input():
    with pytest.raises(ValueError, match="at least 2"):
        FSQ((8, 1))
    with pytest.raises(ValueError, match="needs 2 channels"):
        FSQ((8, 5))(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"-1\.\.3"):
        FSQ((8, 5)).indices_to_codes(torch.tensor([-1, 3]))
