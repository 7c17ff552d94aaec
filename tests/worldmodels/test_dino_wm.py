"""The reader of dino_wm's PushT layout, on a small folder written here the way dino_wm's loader expects it."""

import pickle

import cv2
import numpy as np
import pytest
import torch

from worldmodels.dino_wm import read_pusht_noise
from worldmodels.episodes import EpisodeStore, EpisodeWriter

LENGTHS = (23, 21, 5)
LONGEST = 23


def shade(trajectory, step):
    """The grey level of a frame: codecs keep flat frames to a few levels."""
    return 20 + 60 * trajectory + 2 * step


def write_film(path, trajectory, frames):
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (224, 224))
    assert writer.isOpened()
    for step in range(frames):
        frame = np.full((224, 224, 3), shade(trajectory, step), dtype=np.uint8)
        frame[:112, :, 0] = 0  # blue is missing from the upper half (OpenCV writes blue first)
        writer.write(frame)
    writer.release()


@pytest.fixture
def tables():
    generator = np.random.default_rng(0)
    return {
        "states": generator.uniform(0, 512, (3, LONGEST, 5)).astype(np.float32),
        "velocities": generator.normal(size=(3, LONGEST, 2)).astype(np.float32) * 50,
        "rel_actions": generator.normal(size=(3, LONGEST, 2)).astype(np.float32) * 20,
    }


@pytest.fixture
def folder(tmp_path, tables):
    where = tmp_path / "pusht_noise" / "train"
    where.mkdir(parents=True)
    for name, values in tables.items():
        torch.save(torch.from_numpy(values), where / f"{name}.pth")
    (where / "seq_lengths.pkl").write_bytes(pickle.dumps(list(LENGTHS)))
    for trajectory, length in enumerate(LENGTHS):
        write_film(where / "obses" / f"episode_{trajectory:03d}.mp4", trajectory, length)
    return where.parent


def test_episodes_hold_what_the_files_hold(folder, tables):
    episodes = list(read_pusht_noise(folder, "train"))
    # 23 and 21 frames give four steps of five; 5 frames give none.
    assert [(episode.id, len(episode)) for episode in episodes] == [
        ("pusht_noise-train-00000", 4),
        ("pusht_noise-train-00001", 4),
    ]
    for trajectory, episode in enumerate(episodes):
        state = episode.info["state"]
        assert state.dtype == np.float64
        np.testing.assert_array_equal(state[:, :5], tables["states"][trajectory, [0, 5, 10, 15, 20]])
        np.testing.assert_array_equal(state[:, 5:], tables["velocities"][trajectory, [0, 5, 10, 15, 20]])
        np.testing.assert_array_equal(
            episode.observations["proprio"], state[:, [0, 1, 5, 6]].astype(np.float32)
        )
        actions = tables["rel_actions"][trajectory, :20].reshape(4, 10) / 100
        np.testing.assert_allclose(episode.actions, actions, rtol=1e-6)
        images = episode.observations["image"]
        assert images.shape == (5, 64, 64, 3)
        assert images.dtype == np.uint8
        for row, step in enumerate((0, 5, 10, 15, 20)):  # the very frames, not their neighbours
            np.testing.assert_allclose(images[row, 40:, :, 0], shade(trajectory, step), atol=4)
        assert images[:, :28, :, 2].max() < 25  # RGB: the missing blue is the last channel
        assert images[:, :28, :, 0].min() > 15


def test_a_store_takes_the_episodes(folder, tmp_path):
    with EpisodeWriter(tmp_path / "store") as writer:
        for episode in read_pusht_noise(folder, "train", frame_skip=2, image_size=32, limit=2):
            writer.add(episode)
    store = EpisodeStore(tmp_path / "store")
    assert len(store) == 2
    assert store.episode("pusht_noise-train-00001").observations["image"].shape == (11, 32, 32, 3)
    assert store.episode("pusht_noise-train-00001").actions.shape == (10, 4)


def test_absolute_targets_become_relative_actions(folder, tables):
    relative = next(read_pusht_noise(folder, "train")).actions
    where = folder / "train"
    (where / "rel_actions.pth").unlink()
    targets = tables["states"][..., :2].astype(np.float64) + tables["rel_actions"]
    torch.save(torch.from_numpy(targets), where / "abs_actions.pth")
    np.testing.assert_allclose(next(read_pusht_noise(folder, "train")).actions, relative, atol=1e-6)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("make", [tuple, lambda n: [np.int64(v) for v in n], np.array])
def test_lengths_may_be_numpy_integers(folder, make, protocol):
    (folder / "train" / "seq_lengths.pkl").write_bytes(pickle.dumps(make(LENGTHS), protocol=protocol))
    assert len(list(read_pusht_noise(folder, "train"))) == 2


def test_other_block_shapes_are_passed_over(folder):
    (folder / "train" / "shapes.pkl").write_bytes(pickle.dumps(["L", "T", "T"]))
    assert [e.id for e in read_pusht_noise(folder, "train")] == ["pusht_noise-train-00001"]
    assert [e.id for e in read_pusht_noise(folder, "train", shape="L")] == ["pusht_noise-train-00000"]


class Malicious:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


@pytest.mark.parametrize("name", ["seq_lengths.pkl", "states.pth"])
def test_code_in_a_pickle_is_refused(folder, tmp_path, name):
    trap = tmp_path / "trap"
    (folder / "train" / name).write_bytes(pickle.dumps([Malicious(trap)]))
    with pytest.raises(ValueError, match=name):
        list(read_pusht_noise(folder, "train"))
    assert not trap.exists()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([23, 21], r"has 2 entries, but states.pth holds 3"),
        ([23, 24, 5], r"trajectory 1 has length 24, but states.pth holds 1 to 23 steps"),
        ([23, 21, 0], r"trajectory 2 has length 0"),
        ([23, 21, "5"], r"holds list, expected a list of int"),
        ({"a": 1}, r"holds dict, expected a list of int"),
        (np.array([23.0, 21.0, 5.0]), r"numbers of type 'f8', expected integers"),
        (torch.tensor(LENGTHS), r"seq_lengths.pkl cannot be read safely \(it names torch.*plain list"),
    ],
)
def test_bad_lengths(folder, lengths, message):
    (folder / "train" / "seq_lengths.pkl").write_bytes(pickle.dumps(lengths, protocol=4))
    with pytest.raises(ValueError, match=message):
        list(read_pusht_noise(folder, "train"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("states", torch.zeros(3, 23, 4), r"states.pth has shape \(3, 23, 4\), expected \(n, T, 5\)"),
        ("velocities", torch.zeros(2, 23, 2), r"velocities.pth has shape .* expected \(3, 23, 2\)"),
        ("rel_actions", torch.zeros(3, 22, 2), r"rel_actions.pth has shape .* expected \(3, 23, 2\)"),
        ("states", {"states": torch.zeros(3, 23, 5)}, r"states.pth holds a dict"),
    ],
)
def test_bad_tables(folder, name, value, message):
    torch.save(value, folder / "train" / f"{name}.pth")
    with pytest.raises(ValueError, match=message):
        list(read_pusht_noise(folder, "train"))


def test_a_truncated_table(folder):
    path = folder / "train" / "states.pth"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"states.pth is not a plain tensor file .* copy it again"):
        list(read_pusht_noise(folder, "train"))


@pytest.mark.parametrize(
    "name", ["states.pth", "velocities.pth", "rel_actions.pth", "seq_lengths.pkl", "obses/episode_001.mp4"]
)
def test_missing_files(folder, name):
    (folder / "train" / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        list(read_pusht_noise(folder, "train"))


def test_a_missing_split(folder):
    with pytest.raises(FileNotFoundError, match=r"no folder .*val; give the pusht_noise folder"):
        next(read_pusht_noise(folder, "val"))


def test_a_film_that_is_too_short(folder):
    write_film(folder / "train" / "obses" / "episode_001.mp4", 1, 12)
    with pytest.raises(
        ValueError, match=r"episode_001.mp4 ends after 12 frames, but its trajectory needs 21"
    ):
        list(read_pusht_noise(folder, "train"))


@pytest.mark.parametrize("argument", ["frame_skip", "image_size", "limit"])
def test_bad_arguments(folder, argument):
    with pytest.raises(ValueError, match=f"{argument} .*at least 1|{argument} is 0"):
        next(read_pusht_noise(folder, "train", **{argument: 0}))
