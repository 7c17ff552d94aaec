"""Finding out which format a folder has."""

import numpy as np
import pytest

from tests.worldmodels.rt1_files import HEIGHT, INSTRUCTIONS, WIDTH, actions, frames, write_npz, write_rlds
from worldmodels.api import Episode
from worldmodels.episodes import write_all
from worldmodels.outside import first_frames, format_of, open_episodes, open_recordings


def write_store(folder, **changes):
    episode = {
        "id": "a",
        "observations": frames(0, 5),
        "actions": actions(0, 5)[:4],
        "rewards": np.arange(4.0),
        "terminated": True,
        "truncated": False,
        "info": {"instruction": np.full(5, "open it"), "state": np.arange(5.0)},
    } | changes
    write_all(folder, [Episode(**episode)])
    return folder


def test_every_format_is_found_out_and_read(tmp_path):
    folders = {
        "store": write_store(tmp_path / "store"),
        "npz": write_npz(tmp_path / "npz", [5]),
        "rlds": write_rlds(tmp_path / "rlds", [5]),
    }
    for name, folder in folders.items():
        assert format_of(folder) == name
        for wanted in ("auto", name):
            (episode,) = open_episodes(folder, format=wanted)
            np.testing.assert_array_equal(episode.observations, frames(0, 5))
            np.testing.assert_array_equal(episode.actions, actions(0, 5)[:4])
    assert format_of(next(folders["npz"].iterdir())) == "npz"
    assert (
        format_of(max(folders["rlds"].iterdir())) == "rlds"
        or max(folders["rlds"].iterdir()).suffix == ".json"
    )
    (tmp_path / "port" / "meta").mkdir(parents=True)
    (tmp_path / "port" / "meta" / "info.json").touch()
    assert format_of(tmp_path / "port") == "lerobot"


def test_first_frames(tmp_path):
    found, instructions = first_frames(write_rlds(tmp_path / "a", [3, 2, 4]), image_size=(HEIGHT, WIDTH))
    np.testing.assert_array_equal(found, [frames(n, 1)[0] for n in range(3)])
    assert instructions == list(INSTRUCTIONS)
    found, instructions = first_frames(write_npz(tmp_path / "b", [3, 2]), image_size=(16, 24), limit=1)
    assert (found.shape, instructions) == ((1, 16, 24, 3), [""])
    assert first_frames(write_store(tmp_path / "c"), image_size=(8, 8))[1] == ["open it"]


def test_the_published_sample_gives_first_frames(conformance):
    path = conformance("video/rt1_clip.npz")
    found, instructions = first_frames(path, image_size=(256, 320))
    with np.load(path) as arrays:
        np.testing.assert_array_equal(found[0], arrays["image"][0])
    assert instructions == [""]


def test_stored_episodes_are_cut_and_keep_what_was_recorded(tmp_path):
    folder = write_store(tmp_path)
    (whole,) = open_episodes(folder)
    assert (whole.terminated, whole.truncated, whole.info["instruction"]) == (True, False, "open it")
    (cut,) = open_episodes(folder, max_steps=2, image_size=(16, 24))
    assert cut.observations.shape == (3, 16, 24, 3)
    np.testing.assert_array_equal(cut.rewards, [0, 1])
    np.testing.assert_array_equal(cut.info["state"], [0, 1, 2])
    assert (cut.terminated, cut.truncated) == (False, True)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    folder = write_npz(tmp_path, [3, 3])
    (folder / "train_eps_00000001.npz").write_bytes(b"")
    assert len(list(open_recordings(folder))) == 2
    assert len(list(open_episodes(folder, limit=1))) == 1
    with pytest.raises(ValueError, match="train_eps_00000001"):
        list(open_episodes(folder))


def test_clear_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder .*/none"):
        open_episodes(tmp_path / "none")
    with pytest.raises(
        ValueError, match=r"holds no recorded episodes; known are our own store.*npz.*LeRobot.*RLDS"
    ):
        open_episodes(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="holds no recorded episodes"):
        open_episodes(tmp_path / "a.txt")
    folder = write_npz(tmp_path / "npz", [2])
    for options, problem in (
        ({"limit": 0}, "limit is 0"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"image_size": (0, 1)}, "image_size"),
        ({"format": "hdf5"}, "unknown format 'hdf5'; choose one of auto, store, npz, lerobot, rlds"),
    ):
        with pytest.raises(ValueError, match=problem):
            open_episodes(folder, **options)
    write_store(tmp_path / "parts", observations={"image": frames(0, 5), "proprio": np.zeros((5, 2))})
    with pytest.raises(ValueError, match="parts image, proprio; expected a frame alone"):
        list(open_episodes(tmp_path / "parts"))
    write_store(tmp_path / "vectors", observations=np.zeros((5, 3)))
    with pytest.raises(ValueError, match=r"episode a: frames have shape \(5, 3\)"):
        list(open_episodes(tmp_path / "vectors"))
