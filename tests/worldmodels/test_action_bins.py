from __future__ import annotations

import json

import numpy as np
import pytest

from worldmodels.video.action_bins import ActionBins


@pytest.fixture
def rt1(conformance) -> ActionBins:
    ranges = json.loads(conformance("video/action_ranges.json").read_text())
    return ActionBins(low=ranges["low"], high=ranges["high"], num_bins=ranges["bins"])


def test_equals_the_reference(conformance, rt1):
    with np.load(conformance("video/processor.npz")) as data:
        for prefix in ("simple_", "simple_multi2_"):
            bins = rt1.encode(data[prefix + "actions"])
            assert bins.dtype == np.int64
            np.testing.assert_array_equal(bins, data[prefix + "action_tokens"])
        np.testing.assert_array_equal(
            rt1.encode(data["ctx_msp_actions"][:, 1:]), data["ctx_msp_action_ids"] - OFFSET_OF_MULTI_STEP
        )


OFFSET_OF_MULTI_STEP = 8750


def test_centres_return_to_their_bins(rt1):
    bins = np.tile(np.arange(256)[:, None], (1, 13))
    centres = rt1.decode(bins)
    assert centres.dtype == np.float32
    np.testing.assert_array_equal(rt1.encode(centres), bins)
    assert (centres > rt1.low).all()
    assert (centres < rt1.high).all()


def test_outside_values_take_the_outer_bins_and_flat_dimensions_the_first():
    bins = ActionBins(low=[-1.0, 2.0], high=[1.0, 2.0], num_bins=4)
    np.testing.assert_array_equal(
        bins.encode([[-9, 2], [9, 5], [0, -5], [-0.01, 2]]), [[0, 0], [3, 0], [2, 0], [1, 0]]
    )
    np.testing.assert_allclose(bins.decode([[0, 0], [3, 0]]), [[-0.75, 2], [0.75, 2]])


def test_bad_input():
    bins = ActionBins(low=[-1.0, -1.0], high=[1.0, 1.0], num_bins=4)
    with pytest.raises(ValueError, match=r"\(\.\.\., 2\), got shape \(3,\)"):
        bins.encode([0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"nan at index \(1, 0\)"):
        bins.encode([[0.0, 0.0], [np.nan, 0.0]])
    with pytest.raises(ValueError, match="inf"):
        bins.encode([np.inf, 0.0])
    with pytest.raises(ValueError, match=r"\[0, 4\), got 0\.\.4"):
        bins.decode([0, 4])
    with pytest.raises(ValueError, match="integers"):
        bins.decode([0.0, 1.0])
    with pytest.raises(ValueError, match="low <= high"):
        ActionBins(low=[1.0], high=[0.0])
    with pytest.raises(ValueError, match="one length"):
        ActionBins(low=[0.0], high=[1.0, 2.0])
