"""The reader of the published code's npz episodes, and what all readers of outside data share."""

import io
import pickle
import zipfile

import cv2
import numpy as np
import pytest

from tests.worldmodels.rt1_files import HEIGHT, WIDTH, actions, frames, write_npz
from worldmodels.recordings import resized
from worldmodels.rt1_npz import read_rt1_npz


def read(path, **options):
    return [recording.episode(**options) for recording in read_rt1_npz(path)]


def test_episodes_hold_what_the_files_hold(tmp_path):
    lengths = (6, 1, 4)
    folder = write_npz(tmp_path / "fractal", lengths)
    episodes = read(folder)
    assert [episode.id for episode in episodes] == [f"fractal-train_eps_{n:08d}" for n in range(3)]
    for number, (episode, length) in enumerate(zip(episodes, lengths, strict=True)):
        # T frames and T actions make T - 1 steps: the last action has no next frame.
        assert len(episode) == length - 1
        assert (episode.observations.dtype, episode.actions.dtype) == (np.uint8, np.float32)
        np.testing.assert_array_equal(episode.observations, frames(number, length))
        np.testing.assert_array_equal(episode.actions, actions(number, length)[:-1])
        assert episode.rewards.shape == (length - 1,)
        assert (episode.terminated, episode.truncated) == (False, True)
        assert "instruction" not in episode.info


def test_an_episode_whose_kept_actions_end_it_is_terminated(tmp_path):
    taken = actions(0, 4)
    taken[2, 7:10] = (1, 0, 0)
    np.savez(tmp_path / "a.npz", image=frames(0, 4), action=taken.astype(np.float64))
    (episode,) = read(tmp_path)
    assert (episode.terminated, episode.truncated) == (True, False)
    np.testing.assert_array_equal(episode.actions, taken[:-1])


def test_frames_are_resized_by_area_or_bilinear(tmp_path):
    write_npz(tmp_path, [3])
    (small,) = read(tmp_path, image_size=(HEIGHT // 2, WIDTH // 2))
    blocks = frames(0, 3).reshape(3, HEIGHT // 2, 2, WIDTH // 2, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(small.observations, blocks, atol=0.51)
    (large,) = read(tmp_path, image_size=(HEIGHT * 2, WIDTH * 2))
    assert large.observations.shape == (3, HEIGHT * 2, WIDTH * 2, 3)
    expected = cv2.resize(frames(0, 3)[1], (WIDTH * 2, HEIGHT * 2), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(large.observations[1], expected)
    same = frames(0, 2)
    assert resized(same, (HEIGHT, WIDTH)) is same


@pytest.mark.parametrize(
    ("recorded", "rows", "columns"),
    [
        ((64, 64), slice(0, 64), slice(8, 72)),  # a square picture: bars left and right
        ((256, 256), slice(0, 64), slice(8, 72)),
        ((180, 320), slice(9, 54), slice(0, 80)),  # a wide one: above and below
        ((10, 160), slice(29, 34), slice(0, 80)),
        ((480, 640), slice(2, 62), slice(0, 80)),
        ((1, 1000), slice(31, 32), slice(0, 80)),  # never nothing
    ],
)
def test_other_proportions_are_kept_between_black_bars(recorded, rows, columns):
    shown = resized(np.full((2, *recorded, 3), 200, np.uint8), (64, 80))
    expected = np.zeros((2, 64, 80, 3), np.uint8)
    expected[:, rows, columns] = 200
    np.testing.assert_array_equal(shown, expected)


def test_only_what_is_asked_for_is_read(tmp_path):
    whole = write_npz(tmp_path, [5]) / "train_eps_00000000.npz"
    (two,) = read(whole, max_steps=2)
    np.testing.assert_array_equal(two.observations, frames(0, 5)[:3])
    np.testing.assert_array_equal(two.actions, actions(0, 5)[:2])
    assert two.id == "train_eps_00000000"
    # A first frame needs neither actions nor the rest of the file's frames.
    np.savez(tmp_path / "frames.npz", image=frames(1, 4))
    first = read(tmp_path / "frames.npz", max_steps=0)[0]
    np.testing.assert_array_equal(first.observations, frames(1, 1))
    assert (len(first), first.actions.shape) == (0, (0, 13))
    with pytest.raises(ValueError, match=r"frames\.npz.*no array 'action'"):
        read(tmp_path / "frames.npz")


def test_the_published_sample_frames_can_be_read(conformance):
    path = conformance("video/rt1_clip.npz")
    (first,) = read(path, max_steps=0, image_size=(64, 80))
    assert first.observations.shape == (1, 64, 80, 3)
    assert 30 < first.observations.mean() < 220


def write_object_array(path):
    """What would be unpickled by a careless reader."""
    content = io.BytesIO()
    np.lib.format.write_array(content, np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("image.npy", content.getvalue())


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (lambda path: path.write_bytes(b""), "not a readable episode.*copy it again"),
        (lambda path: path.write_bytes(pickle.dumps({"image": 1})), "not a readable episode"),
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "not a readable episode"),
        (
            lambda path: np.savez(path, images=frames(0, 3), action=actions(0, 3)),
            "no array 'image', only images.npy",
        ),
        (write_object_array, "dtype object"),
        (lambda path: np.savez(path, image=frames(0, 3)[..., 0], action=actions(0, 3)), r"\(3, 32, 48\)"),
        (lambda path: np.savez(path, image=frames(0, 3) / 255, action=actions(0, 3)), "dtype float64"),
        (lambda path: np.savez(path, image=frames(0, 3), action=actions(0, 2)), "3 frames and 2 actions"),
        (
            lambda path: np.savez(path, image=frames(0, 3), action=actions(0, 3)[:, :7]),
            r"\(3, 7\); expected 13",
        ),
        (
            lambda path: np.savez(path, image=frames(0, 3), action=actions(0, 3) * np.nan),
            "step 0 is not finite",
        ),
        (lambda path: np.savez(path, image=frames(0, 0), action=actions(0, 1)[:0]), r"\(0, 32, 48, 3\)"),
    ],
)
def test_damaged_files_are_named(tmp_path, write, problem):
    path = write_npz(tmp_path, [3]) / "train_eps_00000000.npz"
    write(path)
    with pytest.raises(ValueError, match=problem) as caught:
        read(tmp_path)
    assert str(path) in str(caught.value)


def test_a_damaged_byte_is_noticed(tmp_path):
    path = write_npz(tmp_path, [3]) / "train_eps_00000000.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="not a readable episode"):
        read(tmp_path)


def test_bad_arguments(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.npz file"):
        read(tmp_path)
    write_npz(tmp_path, [3])
    with pytest.raises(ValueError, match=r"image_size is \(0, 5\)"):
        read(tmp_path, image_size=(0, 5))
    with pytest.raises(ValueError, match="max_steps is -1"):
        read(tmp_path, max_steps=-1)
