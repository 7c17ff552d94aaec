"""The reader of LeRobot folders, on small ones with AV1 films like those of the RT-1 port."""

import json
import shutil

import numpy as np
import pytest

from tests.worldmodels.rt1_files import (
    INSTRUCTIONS,
    frames,
    lerobot_info,
    port_actions,
    write_film,
    write_lerobot,
)
from worldmodels.lerobot import PORT_ACTION, read_lerobot, to_rt1

LENGTHS = (5, 4, 6)


def read(path, **options):
    return [recording.episode(**options) for recording in read_lerobot(path)]


def needs_the_extra():
    for package in ("pyarrow", "av"):
        pytest.importorskip(package, reason=f"the extra rt1 ({package}) is not installed")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One folder of each version."""
    needs_the_extra()
    root = tmp_path_factory.mktemp("lerobot")
    return {version: write_lerobot(root / version, LENGTHS, version) for version in ("v2.0", "v3.0")}


@pytest.fixture
def folder(written, tmp_path):
    """A copy of the version 2 folder to be damaged."""
    return shutil.copytree(written["v2.0"], tmp_path / "port")


def assert_close(found, true):
    """Films lose detail, half of it in colour; what is shown where, and when, must be right."""
    assert found.shape == true.shape
    difference = np.abs(found.astype(int) - true)
    assert difference.mean() < 4
    assert np.abs(found.mean(axis=(1, 2)) - true.mean(axis=(1, 2))).max() < 3


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_episodes_hold_what_the_folder_holds(written, version):
    episodes = read(written[version])
    assert [episode.id for episode in episodes] == [f"{version}-{n:06d}" for n in range(3)]
    for number, (episode, length) in enumerate(zip(episodes, LENGTHS, strict=True)):
        assert len(episode) == length - 1
        assert_close(episode.observations, frames(number, length))
        np.testing.assert_array_equal(episode.actions, to_rt1(port_actions(number, length))[:-1])
        assert episode.info["instruction"] == INSTRUCTIONS[number]
        assert not episode.terminated


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_only_what_is_asked_for_is_read(written, version, tmp_path):
    copy = shutil.copytree(written[version], tmp_path / "copy")
    two = read(copy, max_steps=2, image_size=(16, 24))[1]
    assert two.observations.shape == (3, 16, 24, 3)
    np.testing.assert_array_equal(two.actions, to_rt1(port_actions(1, LENGTHS[1]))[:2])
    shutil.rmtree(copy / "data")
    assert_close(read(copy, max_steps=0)[1].observations, frames(1, 1))


def test_the_rules_of_the_actions():
    port = port_actions(0, 8)
    port[:, 6] = (1, 1, 0, 0, 0, 1, 1, 0)
    converted = to_rt1(port)
    assert (converted.shape, converted.dtype) == ((8, 13), np.float32)
    np.testing.assert_array_equal(converted[:, :3], 0)
    np.testing.assert_array_equal(converted[:, 3], (0, 0, 1, 0, 0, -1, 0, 1))  # 1 closes, -1 opens
    np.testing.assert_array_equal(converted[:, 4:7], port[:, 3:6])
    np.testing.assert_array_equal(converted[:, 7:10], np.tile((0, 1, 0), (8, 1)))
    np.testing.assert_array_equal(converted[:, 10:13], port[:, :3])


def test_h264_films_and_other_cameras(tmp_path):
    needs_the_extra()
    folder = write_lerobot(tmp_path / "port", (3,), codec="libx264")
    info = lerobot_info("v2.1")
    info["features"] |= {"observation.images.wrist": info["features"]["observation.images.image"]}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    assert_close(read(folder)[0].observations, frames(0, 3))


def rewrite(**changes):
    def damage(folder):
        (folder / "meta" / "info.json").write_text(json.dumps(lerobot_info("v2.0", **changes)))

    return damage


def features(action, camera="video"):
    return {"action": {"names": action}, "observation.images.image": {"dtype": camera}}


FILM = "videos/chunk-000/observation.images.image/episode_000000.mp4"
TABLE = "data/chunk-000/episode_000000.parquet"


@pytest.mark.parametrize(
    ("damage", "error", "problem"),
    [
        (
            lambda f: (f / "meta/info.json").unlink(),
            FileNotFoundError,
            "info.json; give the folder that holds meta",
        ),
        (lambda f: (f / "meta/info.json").write_text("{"), ValueError, "info.json cannot be read"),
        (
            lambda f: (f / "meta/info.json").write_text("[]"),
            ValueError,
            "does not describe a LeRobot data set",
        ),
        (
            rewrite(codebase_version="v1.6"),
            ValueError,
            "version 'v1.6'; this reader knows v2.0, v2.1 and v3.0",
        ),
        (
            rewrite(features=features({"motors": ["j1", "j2"]})),
            ValueError,
            r"\['j1', 'j2'\]; this reader knows x, y",
        ),
        (rewrite(features=features(list(PORT_ACTION), "image")), ValueError, r"the films are \[\]"),
        (rewrite(data_path="../{episode_index:06d}.parquet"), ValueError, "leads out of the folder"),
        (rewrite(video_path="/etc/passwd"), ValueError, "leads out of the folder"),
        (rewrite(video_path="{video_key.__class__}"), ValueError, "cannot use the path"),
        (rewrite(video_path="{file_index}.mp4"), ValueError, "nothing says what 'file_index' is"),
        (rewrite(video_path=None), ValueError, "cannot use the path None"),
        (rewrite(fps=0), ValueError, "fps is 0.0"),
        (lambda f: (f / "meta/episodes.jsonl").unlink(), FileNotFoundError, "episodes.jsonl"),
        (lambda f: (f / "meta/episodes.jsonl").write_text(""), FileNotFoundError, "lists no episode"),
        (lambda f: (f / "meta/episodes.jsonl").write_text('{"a": 1}'), ValueError, "does not list episodes"),
        (lambda f: (f / "meta/episodes.jsonl").write_text("{"), ValueError, "episodes.jsonl is damaged"),
        (
            lambda f: (f / FILM).unlink(),
            FileNotFoundError,
            "episode_000000.mp4, though meta/info.json names it",
        ),
        (
            lambda f: (f / FILM).write_bytes(b"#EXTM3U\n"),
            ValueError,
            "episode_000000.mp4 is not a readable film",
        ),
        (lambda f: write_film(f / FILM, frames(0, 3)), ValueError, "ends after 3 of the 5 frames"),
        (lambda f: (f / TABLE).unlink(), FileNotFoundError, "episode_000000.parquet"),
        (
            lambda f: (f / TABLE).write_bytes(b"PAR1"),
            ValueError,
            "episode_000000.parquet is not a readable table",
        ),
        (
            lambda f: shutil.copy(f / "data/chunk-000/episode_000001.parquet", f / TABLE),
            ValueError,
            "has 0 rows of episode 0, whose length is 5",
        ),
    ],
)
def test_damaged_folders_are_named(folder, damage, error, problem):
    damage(folder)
    with pytest.raises(error, match=problem):
        read(folder)


def test_tables_of_another_shape(folder):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"episode_index": [0], "action": [[1.0, 2.0]]}), folder / TABLE)
    with pytest.raises(ValueError, match="'action' does not hold 7 numbers a row"):
        read(folder)
    parquet.write_table(pa.table({"episode_index": [0]}), folder / TABLE)
    with pytest.raises(ValueError, match="has no column action"):
        read(folder)


def test_frames_at_other_times_are_refused(written, tmp_path):
    copy = shutil.copytree(written["v3.0"], tmp_path / "copy")
    info = lerobot_info("v3.0", fps=5)
    (copy / "meta" / "info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"a frame is at 0\.333 s, expected at 0\.200 s"):
        read(copy)
