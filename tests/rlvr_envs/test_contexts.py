"""The bundled first frames of dreams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlvr_envs.contexts import PUSHT_STARTS, PushTStarts, load_pusht_starts, load_starts, save_starts
from rlvr_envs.simulators.pusht_starts import make_pusht_starts


def test_bundled_starts_are_what_the_simulator_makes() -> None:
    bundled, made = load_pusht_starts(), make_pusht_starts()
    assert len(bundled.states) == 256
    np.testing.assert_array_equal(bundled.states, made.states)
    np.testing.assert_array_equal(bundled.covered_states, made.covered_states)
    for ours, theirs in ((bundled.images, made.images), (bundled.covered_images, made.covered_images)):
        assert ours.dtype == np.uint8
        assert np.abs(ours.astype(int) - theirs).max() <= 1  # another version of a drawing library may round
    assert PUSHT_STARTS.stat().st_size < 1_000_000


def test_round_trip_and_missing_file(tmp_path: Path) -> None:
    starts = make_pusht_starts(count=3, covered_count=2, seed=5)
    path = tmp_path / "new" / "pusht_starts.npz"
    with pytest.raises(FileNotFoundError, match="pusht_starts"):
        load_starts(PushTStarts, path)
    save_starts(starts, path)
    again = load_starts(PushTStarts, path)
    for key, value in vars(starts).items():
        np.testing.assert_array_equal(getattr(again, key), value)
    assert [file.name for file in path.parent.iterdir()] == ["pusht_starts.npz"]
