import json

import numpy as np
import pytest

from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW, RT1_PARTS, from_dict, is_terminal, to_dict


def test_equals_the_published_ranges_and_order(conformance):
    golden = json.loads(conformance("video/action_ranges.json").read_text())
    np.testing.assert_array_equal(RT1_LOW, np.array(golden["low"], np.float32))
    np.testing.assert_array_equal(RT1_HIGH, np.array(golden["high"], np.float32))
    assert [(name, where.stop - where.start) for name, where in RT1_PARTS.items()] == [
        tuple(entry) for entry in golden["order"]
    ]
    action = np.zeros(13)
    action[RT1_PARTS["terminate_episode"]] = golden["terminate_episode_stop_vector"]
    assert is_terminal(action)


def test_there_and_back():
    action = np.random.default_rng(0).uniform(RT1_LOW, RT1_HIGH).astype(np.float32)
    action[7:10] = (0, 1, 0)
    parts = to_dict(action)
    assert parts["terminate_episode"].dtype == np.int32
    np.testing.assert_array_equal(from_dict(parts), action)
    assert not is_terminal(action)
    without_base = {name: part for name, part in parts.items() if not name.startswith("base_")}
    np.testing.assert_array_equal(from_dict(without_base)[:3], 0)
    np.testing.assert_array_equal(from_dict(without_base)[3:], action[3:])


def test_clear_errors():
    parts = to_dict(np.zeros(13))
    with pytest.raises(ValueError, match="unknown action parts .'wrist'"):
        from_dict({**parts, "wrist": 1})
    with pytest.raises(ValueError, match="no 'world_vector'"):
        from_dict({name: part for name, part in parts.items() if name != "world_vector"})
    with pytest.raises(ValueError, match="expected 3 finite numbers"):
        from_dict({**parts, "world_vector": [0, 0, np.nan]})
    with pytest.raises(ValueError, match=r"\(12,\)"):
        to_dict(np.zeros(12))
