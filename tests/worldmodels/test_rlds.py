"""The reader of RLDS files, and the TFRecord and protocol-buffer formats below it."""

import base64
import struct

import numpy as np
import pytest

from tests.worldmodels.rt1_files import (
    INSTRUCTIONS,
    actions,
    example,
    frames,
    record,
    rt1_features,
    write_rlds,
)
from worldmodels.rlds import read_rlds
from worldmodels.tfrecord import features, masked_crc32c, numbers, records, texts

# Two steps with frames of 4x6 px, written with TensorFlow 2.21 (tf.train.Example, tf.io.TFRecordWriter).
GOLDEN = base64.b64decode(
    "egIAAAAAAAAPKaUHCvcECj0KJXN0ZXBzL2FjdGlvbi9iYXNlX2Rpc3BsYWNlbWVudF92ZWN0b3ISFBISChAAAAAAAAAAPgAA0D8A"
    "AOA/CkAKMHN0ZXBzL2FjdGlvbi9iYXNlX2Rpc3BsYWNlbWVudF92ZXJ0aWNhbF9yb3RhdGlvbhIMEgoKCAAAgD4AAPA/CjYKJnN0"
    "ZXBzL2FjdGlvbi9ncmlwcGVyX2Nsb3NlZG5lc3NfYWN0aW9uEgwSCgoIAADAPgAAAEAKOwobc3RlcHMvYWN0aW9uL3JvdGF0aW9u"
    "X2RlbHRhEhwSGgoYAAAAPwAAID8AAEA/AAAIQAAAEEAAABhACiwKHnN0ZXBzL2FjdGlvbi90ZXJtaW5hdGVfZXBpc29kZRIKGggK"
    "BgABAAEAAAo5ChlzdGVwcy9hY3Rpb24vd29ybGRfdmVjdG9yEhwSGgoYAACgPwAAsD8AAMA/AAA4QAAAQEAAAEhACr0BChdzdGVw"
    "cy9vYnNlcnZhdGlvbi9pbWFnZRKhAQqeAQpNiVBORw0KGgoAAAANSUhEUgAAAAYAAAAECAIAAAAiZtkUAAAAFElEQVQImWPkSjnB"
    "gAqYGDAAcUIAWloBPsesDDYAAAAASUVORK5CYIIKTYlQTkcNChoKAAAADUlIRFIAAAAGAAAABAgCAAAAImbZFAAAABRJREFUCJlj"
    "5Eo5yYAKmBgwAHFCAFqjAT8552rJAAAAAElFTkSuQmCCClYKLnN0ZXBzL29ic2VydmF0aW9uL25hdHVyYWxfbGFuZ3VhZ2VfaW5z"
    "dHJ1Y3Rpb24SJAoiCg9vcGVuIHRvcCBkcmF3ZXIKD29wZW4gdG9wIGRyYXdlctg30uI="
)


def read(path, **options):
    return [recording.episode(**options) for recording in read_rlds(path)]


def test_episodes_hold_what_the_files_hold(tmp_path):
    lengths = (5, 3, 4)
    write_rlds(tmp_path / "0.1.0", lengths)
    episodes = read(tmp_path)
    shard = "0.1.0-fractal20220817_data-train.tfrecord-0000{}-of-00002-0000{}"
    assert [episode.id for episode in episodes] == [shard.format(*at) for at in ((0, 0), (0, 1), (1, 0))]
    for number, (episode, length) in enumerate(zip(episodes, lengths, strict=True)):
        assert len(episode) == length - 1
        np.testing.assert_array_equal(episode.observations, frames(number, length))
        np.testing.assert_array_equal(episode.actions, actions(number, length)[:-1])
        assert episode.actions.dtype == np.float32
        assert episode.info["instruction"] == INSTRUCTIONS[number]


def test_files_of_one_name_in_two_folders_give_different_ids(tmp_path):
    write_rlds(tmp_path / "0.0.1", [3])
    file = next(iter(sorted(write_rlds(tmp_path / "0.1.0", [3]).glob("*.tfrecord*"))))
    ids = [recording.id for recording in read_rlds(tmp_path)]
    assert len(ids) == len(set(ids)) == 2
    assert [recording.id for recording in read_rlds(file)] == [f"{file.name}-00000"]


def test_jpeg_frames_are_close(tmp_path):
    episode = read(write_rlds(tmp_path, [4], ".jpg"))[0]
    difference = np.abs(episode.observations.astype(int) - frames(0, 4))
    assert difference.mean() < 3  # at OpenCV's default quality of 95
    assert episode.observations[0, 0, 0, 0] > 150  # red comes first
    assert episode.observations[0, 0, 0, 2] < 60


def test_only_what_is_asked_for_is_read(tmp_path):
    path = write_rlds(tmp_path, [5]) / "fractal20220817_data-train.tfrecord-00000-of-00002"
    (two,) = read(path, max_steps=2, image_size=(16, 24))
    assert two.observations.shape == (3, 16, 24, 3)
    np.testing.assert_array_equal(two.actions, actions(0, 5)[:2])
    named = rt1_features(0, 3)
    named["steps/observation/image"][1:] = [b"not a picture"] * 2
    path.write_bytes(record(example({"steps/observation/image": named["steps/observation/image"]})))
    (first,) = read(path, max_steps=0)
    np.testing.assert_array_equal(first.observations, frames(0, 1))
    assert "instruction" not in first.info
    with pytest.raises(ValueError, match="picture at step 1 cannot be decoded"):
        read(path)


def test_the_parts_of_the_base_may_be_absent(tmp_path):
    named = rt1_features(1, 3)
    for name in [name for name in named if "action/base_" in name]:
        del named[name]
    (tmp_path / "a.tfrecord").write_bytes(record(example(named)))
    (episode,) = read(tmp_path)
    np.testing.assert_array_equal(episode.actions[:, :3], 0)
    np.testing.assert_array_equal(episode.actions[:, 3:], actions(1, 3)[:-1, 3:])


def changed(name, value):
    """A record of three steps with one feature replaced, or left out (None)."""
    named = {**rt1_features(0, 3), name: value}
    return record(example({key: values for key, values in named.items() if values is not None}))


WHOLE = record(example(rt1_features(0, 2)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (WHOLE[:-1], r"ends inside the record at byte 0"),
        (WHOLE + WHOLE[:5], f"ends inside a record at byte {len(WHOLE)}"),
        (b"\x1f\x8b" + WHOLE[2:], "not an uncompressed TFRecord file.*at byte 0"),
        (struct.pack("<QI", 2**60, masked_crc32c(struct.pack("<Q", 2**60))), "ends inside the record"),
        (record(b"no message at all"), "record 00000, is not an RT-1 episode"),
        (record(WHOLE[12:400]), "cut short"),
        (record(b""), "no feature 'steps/observation/image', only none"),
        (
            changed("steps/observation/image", None),
            "no feature 'steps/observation/image', only steps/observation/n",
        ),
        (changed("steps/observation/image", []), "holds no picture"),
        (changed("steps/observation/image", [b""] * 3), "picture at step 0 cannot be decoded"),
        (changed("steps/observation/image", np.zeros(3)), "holds numbers, expected byte strings"),
        (changed("steps/action/world_vector", None), "no feature 'steps/action/world_vector'"),
        (
            changed("steps/action/world_vector", np.zeros(8)),
            "holds 8 numbers; expected 3 for each of 3 steps",
        ),
        (changed("steps/action/world_vector", [b"x"] * 3), "world_vector: it holds byte strings"),
        (changed("steps/action/world_vector", np.full(9, np.inf)), "step 0 is not finite"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, problem):
    path = tmp_path / "a-train.tfrecord-00000-of-00001"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        read(tmp_path)
    assert str(path) in str(caught.value)


def test_pictures_of_two_sizes_are_refused(tmp_path):
    named = rt1_features(0, 2)
    named["steps/observation/image"][1] = rt1_features(0, 1, ".jpg")["steps/observation/image"][0]
    (tmp_path / "a.tfrecord").write_bytes(record(example(named)))
    assert len(read(tmp_path)[0]) == 1  # another encoding is no other size
    import cv2

    small = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    named["steps/observation/image"][1] = small
    (tmp_path / "a.tfrecord").write_bytes(record(example(named)))
    with pytest.raises(ValueError, match=r"step 1 is \(8, 8, 3\)"):
        read(tmp_path)


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no TFRecord file in"):
        read(tmp_path)


def test_the_checksum_is_crc32c():
    # RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 0x8a9136aa.
    rotated = (0x8A9136AA >> 15 | 0x8A9136AA << 17) & 0xFFFFFFFF
    assert masked_crc32c(bytes(32)) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


def test_integers_of_all_sizes():
    values = np.array([0, 1, -1, 127, 128, 2**40, -(2**63)], np.int64)
    found = features(example({"a": values, "b": np.array([1.5, -2]), "c": [b"x", b""], "d": []}))
    np.testing.assert_array_equal(numbers(found["a"]), values)
    np.testing.assert_array_equal(numbers(found["b"]), [1.5, -2])
    assert texts(found["c"]) == [b"x", b""]
    assert texts(found["d"]) == []


def test_what_tensorflow_writes_is_read(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(GOLDEN)
    (episode,) = read(path)
    np.testing.assert_array_equal(episode.observations[0], np.full((4, 6, 3), (10, 100, 200)))
    np.testing.assert_array_equal(episode.observations[1], np.full((4, 6, 3), (10, 100, 201)))
    expected = np.arange(13) / 8
    expected[7:10] = (0, 1, 0)
    np.testing.assert_array_equal(episode.actions, [expected])
    assert episode.info["instruction"] == "open top drawer"
    start, length = next(records(path))
    np.testing.assert_array_equal(
        numbers(features(GOLDEN[start : start + length])["steps/action/terminate_episode"]),
        [0, 1, 0, 1, 0, 0],
    )
