"""Episodes on disk: round trip, interruption, splits, and damaged stores."""

import numpy as np
import pytest

from worldmodels.api import Episode
from worldmodels.episodes import SPLITS, EpisodeStore, EpisodeWriter, split_of, write_all


def episode(name, steps=3):
    generator = np.random.default_rng(len(name) + steps)
    return Episode(
        id=name,
        observations={"image": generator.integers(0, 255, (steps + 1, 4, 4, 3), dtype=np.uint8)},
        actions=generator.normal(size=(steps, 2)).astype(np.float32),
        rewards=np.arange(steps, dtype=np.float64),
        terminated=steps == 2,
        truncated=steps != 2,
        info={"state": generator.normal(size=(steps + 1, 7))},
    )


def test_round_trip_with_different_lengths(tmp_path):
    written = [episode(f"e{i}", steps=2 + i % 3) for i in range(7)]
    with EpisodeWriter(tmp_path / "store", shard_episodes=3) as writer:
        for one in written:
            writer.add(one)
    store = EpisodeStore(tmp_path / "store")
    assert store.ids() == [one.id for one in written]
    for one in written:
        back = store.episode(one.id)
        assert np.array_equal(back.observations["image"], one.observations["image"])
        assert np.array_equal(back.actions, one.actions)
        assert np.array_equal(back.info["state"], one.info["state"])
        assert (back.terminated, back.truncated, len(back)) == (one.terminated, one.truncated, len(one))
    assert store.stack("actions", ["e0", "e3"]).shape == (2, 2, 2)


def test_an_interrupted_shard_is_invisible_and_removed(tmp_path):
    store = write_all(tmp_path / "store", [episode("a"), episode("b")])
    digest = store.digest()
    partial = tmp_path / "store" / "shard-00001.partial"
    partial.mkdir()
    (partial / "actions.npy").write_bytes(b"half")
    assert EpisodeStore(tmp_path / "store").digest() == digest
    with EpisodeWriter(tmp_path / "store") as writer:
        assert not partial.exists()
        assert "a" in writer
        writer.add(episode("c"))
    assert EpisodeStore(tmp_path / "store").ids() == ["a", "b", "c"]


def test_what_was_added_before_an_error_is_kept(tmp_path):
    def interrupted():
        with EpisodeWriter(tmp_path / "store") as writer:
            writer.add(episode("a"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert EpisodeStore(tmp_path / "store").ids() == ["a"]


def test_splits_are_a_function_of_the_id():
    splits = [split_of(f"episode-{i}") for i in range(5000)]
    assert set(splits) == set(SPLITS)
    assert 0.94 < splits.count("train") / 5000 < 0.98
    assert splits == [split_of(f"episode-{i}") for i in range(5000)]


def test_errors_name_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match="collect some first"):
        EpisodeStore(tmp_path / "nothing")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(PermissionError, match="choose another folder"):
        EpisodeWriter(blocked / "store")
    store = write_all(tmp_path / "store", [episode("a")])
    with pytest.raises(KeyError, match="holds 1 episodes"):
        store.episode("zzz")
    with pytest.raises(ValueError, match="train, validation, test"):
        store.ids("dev")
    with pytest.raises(KeyError, match=r"observation\.image"):
        store.stack("observation.depth", ["a"])
    with EpisodeWriter(tmp_path / "store") as writer, pytest.raises(ValueError, match="unique"):
        writer.add(episode("a"))
    wrong = episode("w")
    wrong.info["state"] = np.zeros((2, 7))
    with EpisodeWriter(tmp_path / "store") as writer, pytest.raises(ValueError, match="expected 4 rows"):
        writer.add(wrong)


def test_damaged_stores(tmp_path):
    write_all(tmp_path / "store", [episode("a")])
    index = tmp_path / "store" / "index.jsonl"
    whole = index.read_text()
    index.write_text(whole + '{"format": 1, "id": "torn')
    with pytest.raises(ValueError, match="line 2"):
        EpisodeStore(tmp_path / "store")
    index.write_text(whole)
    actions = tmp_path / "store" / "shard-00000" / "actions.npy"
    actions.write_bytes(actions.read_bytes()[:40])
    with pytest.raises(ValueError, match="damaged"):
        EpisodeStore(tmp_path / "store")
