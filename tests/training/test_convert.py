"""``rlvr-world convert``, through the same entry point as the console script."""

import json
import re

import numpy as np
import pytest

from tests.worldmodels.rt1_files import INSTRUCTIONS, actions, frames, write_npz, write_rlds
from training.__main__ import main
from training.commands import convert as module
from training.commands.convert import piece_id, pieces
from training.frame_data import FrameData
from worldmodels.api import Episode
from worldmodels.episodes import EpisodeStore, split_of, write_all
from worldmodels.outside import first_frames


def run(capsys, *arguments):
    """Exit status, standard output and standard error of the command."""
    status = 0
    try:
        main(["convert", *(str(argument) for argument in arguments)])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *arguments):
    """The one line that the command with bad input prints."""
    status, _, error = run(capsys, *arguments)
    assert status == 2
    (line,) = [line for line in error.splitlines() if line.startswith("rlvr-world: ")]
    assert "Traceback" not in error
    return line


def test_whole_recordings(capsys, tmp_path):
    source, folder = write_rlds(tmp_path / "rlds", [5, 1, 4]), tmp_path / "store"
    status, out, error = run(capsys, source, "--folder", folder)
    assert status == 0
    assert "3/3" in error  # the progress bar
    assert "left out: 1 recordings of fewer than 1 steps" in out
    assert "episodes have 3 to 4 steps; training needs one length, see --length" in out
    store = EpisodeStore(folder)
    assert f"data: {folder} (2 episodes, digest {store.digest()})" in out
    for episode, (number, length) in zip(store, [(0, 5), (2, 4)], strict=True):
        np.testing.assert_array_equal(episode.observations, frames(number, length))
        np.testing.assert_array_equal(episode.actions, actions(number, length)[:-1])
        assert list(episode.info["instruction"]) == [INSTRUCTIONS[number]] * length
    found, instructions = first_frames(folder, image_size=(32, 48))
    np.testing.assert_array_equal(found[1], frames(2, 1)[0])
    assert instructions == [INSTRUCTIONS[0], INSTRUCTIONS[2]]


def test_pieces_of_one_length_can_be_trained_on(capsys, tmp_path):
    lengths = (9, 4, 3)
    source, folder = write_npz(tmp_path / "npz", lengths), tmp_path / "store"
    status, out, _ = run(capsys, source, "--folder", folder, "--length", 3, "--image-size", 16, 24)
    assert status == 0
    assert "left out: 1 recordings of fewer than 3 steps" in out
    assert "left out: 2 steps at the ends of recordings" in out
    store = EpisodeStore(folder)
    assert store.stack("actions", store.ids()).shape == (3, 3, 13)
    assert store.stack("observation.observation", store.ids()).shape == (3, 4, 16, 24, 3)
    for k in range(2):
        piece = store.episode(piece_id("npz-train_eps_00000000", k))
        np.testing.assert_array_equal(piece.actions, actions(0, 9)[3 * k : 3 * k + 3])
        np.testing.assert_array_equal(piece.observations[:, -1, -1], frames(0, 9)[3 * k : 3 * k + 4, -1, -1])
    data = FrameData.load(store, "train")
    assert (data.steps, data.image_size) == (3, (16, 24))


def test_pieces_fall_into_the_split_of_their_recording():
    splits = {"train": 0, "validation": 0, "test": 0}
    for number in range(300):
        name = f"fractal-{number:06d}"
        names = [piece_id(name, k) for k in range(3)]
        assert len(set(names)) == 3
        assert {split_of(piece) for piece in names} == {split_of(name)}
        assert all(re.fullmatch(rf"{name}-{k}(\.\d+)?", piece) for k, piece in enumerate(names))
        splits[split_of(name)] += 1
    assert min(splits.values()) > 0  # the rare splits were tried


def test_only_the_last_piece_ends_the_episode():
    episode = Episode(
        id="a", observations=frames(0, 5), actions=actions(0, 4), rewards=np.arange(4.0), terminated=True,
        truncated=False, info={"state": np.arange(5)},
    )  # fmt: skip
    first, last = pieces(episode, 2)
    assert (first.terminated, first.truncated, last.terminated, last.truncated) == (False, True, True, False)
    assert (list(first.rewards), list(last.rewards)) == ([0, 1], [2, 3])
    assert (list(first.info["state"]), list(last.info["state"])) == ([0, 1, 2], [2, 3, 4])
    assert list(last.info["instruction"]) == [""] * 3
    (whole,) = pieces(episode, None)
    assert (whole.id, len(whole), whole.terminated) == ("a", 4, True)


def test_a_store_can_be_cut_again(capsys, tmp_path):
    episode = Episode(
        id="a",
        observations=frames(0, 5),
        actions=actions(0, 4),
        rewards=np.zeros(4),
        info={"state": np.arange(5)},
    )
    write_all(tmp_path / "whole", [episode])
    assert run(capsys, tmp_path / "whole", "--folder", tmp_path / "cut", "--length", 2)[0] == 0
    np.testing.assert_array_equal(
        EpisodeStore(tmp_path / "cut").episode(piece_id("a", 1)).info["state"], [2, 3, 4]
    )
    assert "is the source itself" in refused(capsys, tmp_path / "whole", "--folder", tmp_path / "whole")


def test_the_same_command_goes_on(capsys, tmp_path, monkeypatch):
    source = write_npz(tmp_path / "npz", [9, 7, 8, 6])
    arguments = [source, "--length", 3, "--folder"]
    assert run(capsys, *arguments, tmp_path / "once")[0] == 0

    monkeypatch.setattr(module, "_SHARD_BYTES", 1)  # a shard for each recording
    folder = tmp_path / "store"
    broken = source / "train_eps_00000002.npz"
    content = broken.read_bytes()
    broken.write_bytes(content[:100])
    assert str(broken) in refused(capsys, *arguments, folder)
    kept = EpisodeStore(folder).ids()
    assert len(kept) == 4  # two pieces of the first recording, two of the second
    broken.write_bytes(content)
    # What is there is not read again.
    (source / "train_eps_00000000.npz").write_bytes(b"")
    assert run(capsys, *arguments, folder)[0] == 0
    store, once = EpisodeStore(folder), EpisodeStore(tmp_path / "once")
    assert store.ids()[:4] == kept
    assert store.ids() == once.ids()
    for episode_id in once.ids():
        np.testing.assert_array_equal(store.episode(episode_id).actions, once.episode(episode_id).actions)
        np.testing.assert_array_equal(
            store.episode(episode_id).observations, once.episode(episode_id).observations
        )
    digest = store.digest()
    assert run(capsys, *arguments, folder)[0] == 0
    assert EpisodeStore(folder).digest() == digest


def test_interrupted_inside_a_recording(capsys, tmp_path, monkeypatch):
    source, folder = write_npz(tmp_path / "npz", [9]), tmp_path / "store"
    arguments = [source, "--length", 2, "--folder", folder]
    from worldmodels.episodes import EpisodeWriter

    add = EpisodeWriter.add

    def interrupted(self, episode):
        if len(self._pending) == 2:
            raise KeyboardInterrupt
        add(self, episode)

    with monkeypatch.context() as patch:
        patch.setattr(EpisodeWriter, "add", interrupted)
        status, _, error = run(capsys, *arguments)
    assert status == 130
    assert f"what was copied is kept in {folder}; run the same command again to go on" in error
    assert len(EpisodeStore(folder)) == 2
    assert run(capsys, *arguments)[0] == 0
    assert sorted(EpisodeStore(folder).ids()) == sorted(
        piece_id("npz-train_eps_00000000", k) for k in range(4)
    )


def test_a_larger_limit_adds(capsys, tmp_path):
    source, folder = write_npz(tmp_path / "npz", [3, 3, 3]), tmp_path / "store"
    run(capsys, source, "--folder", folder, "--limit", 1)
    assert len(EpisodeStore(folder)) == 1
    run(capsys, source, "--folder", folder, "--limit", 2)
    assert len(EpisodeStore(folder)) == 2


def test_bad_input(capsys, tmp_path):
    source, folder = write_npz(tmp_path / "npz", [3, 3]), tmp_path / "store"
    assert "--length is 0; it must be at least 1" in refused(
        capsys, source, "--folder", folder, "--length", 0
    )
    assert "--limit is 0" in refused(capsys, source, "--folder", folder, "--limit", 0)
    assert "image_size is (0, 4)" in refused(capsys, source, "--folder", folder, "--image-size", 0, 4)
    assert "no folder" in refused(capsys, tmp_path / "none", "--folder", folder)
    (tmp_path / "empty").mkdir()
    assert "holds no recorded episodes" in refused(capsys, tmp_path / "empty", "--folder", folder)
    assert "no TFRecord file" in refused(capsys, source, "--folder", folder, "--format", "rlds")
    assert not folder.exists()  # a bad source is noticed before anything is written
    assert "none of the 2 recordings" in refused(capsys, source, "--folder", folder, "--length", 7)
    assert run(capsys, source, "--folder", folder, "--length", 2)[0] == 0
    assert "made with {'length': 2" in refused(capsys, source, "--folder", folder, "--length", 1)
    assert json.loads((folder / "conversion.json").read_text()) == {"length": 2, "image_size": None}
    write_all(
        tmp_path / "other",
        [Episode(id="a", observations=frames(0, 2), actions=actions(0, 1), rewards=np.zeros(1))],
    )
    assert "made with another command" in refused(capsys, source, "--folder", tmp_path / "other")
    np.savez(source / "zoom.npz", image=frames(0, 3)[:, ::2], action=actions(0, 3))
    assert "frames of (16, 48) px, those before it (32, 48); give --image-size" in refused(
        capsys, source, "--folder", tmp_path / "mixed"
    )
    # The same holds for what an earlier call has copied.
    assert run(capsys, source, "--folder", tmp_path / "later", "--limit", 2)[0] == 0
    assert "frames of (16, 48) px" in refused(capsys, source, "--folder", tmp_path / "later")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot(capsys, tmp_path, version):
    for package in ("pyarrow", "av"):
        pytest.importorskip(package, reason=f"the extra rt1 ({package}) is not installed")
    from tests.worldmodels.rt1_files import write_lerobot

    source = write_lerobot(tmp_path / "port", [5, 4], version)
    assert run(capsys, source, "--folder", tmp_path / "store", "--length", 3)[0] == 0
    store = EpisodeStore(tmp_path / "store")
    assert [store.episode(name).info["instruction"][0] for name in store.ids()] == list(INSTRUCTIONS[:2])
