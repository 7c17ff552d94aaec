"""Small recorded RT-1 episodes, and writers of the formats they are read from."""

import json
import struct

import cv2
import numpy as np

from worldmodels.tfrecord import masked_crc32c
from worldmodels.video.rt1_actions import RT1_HIGH, RT1_LOW, RT1_PARTS

HEIGHT, WIDTH = 32, 48
INSTRUCTIONS = ("open middle drawer", "close top drawer", "pick apple")


def frames(episode, count):
    """Frames that a codec keeps to a few levels: a shade that says which frame it is, a patch, a green half."""
    pictures = np.zeros((count, HEIGHT, WIDTH, 3), np.uint8)
    for step in range(count):
        pictures[step] = 20 + 60 * episode + 5 * step
        pictures[step, : HEIGHT // 2, :, 0] = 200  # red, so that a swap of channels is seen
        pictures[step, :, : WIDTH // 2, 1] = 120
    return pictures


def actions(episode, count):
    """Random actions in RT-1's ranges whose flags are one-hot."""
    generator = np.random.default_rng(episode)
    drawn = generator.uniform(RT1_LOW, RT1_HIGH, (count, 13)).astype(np.float32)
    drawn[:, 7:10] = (0, 1, 0)
    drawn[-1, 7:10] = (1, 0, 0)
    return drawn


def write_npz(folder, lengths):
    """The published code's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, length in enumerate(lengths):
        file = folder / f"train_eps_{number:08d}.npz"
        np.savez_compressed(file, image=frames(number, length), action=actions(number, length))
    return folder


def varint(value):
    """A protocol buffer's integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(number, content):
    """A protocol buffer's field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values):
    """A tf.train.Feature of byte strings, floats or integers."""
    if isinstance(values, list):
        return block(1, b"".join(block(1, value) for value in values))
    values = np.ravel(values)
    if values.dtype.kind == "f":
        return block(2, block(1, values.astype("<f4").tobytes()))
    return block(3, block(1, b"".join(varint(int(value) % 2**64) for value in values)))


def example(named):
    """A tf.train.Example."""
    entries = [
        block(1, block(1, name.encode()) + block(2, feature(values))) for name, values in named.items()
    ]
    return block(1, b"".join(entries))


def record(content):
    """A TFRecord."""
    length = struct.pack("<Q", len(content))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
    return length + next(checksums) + content + next(checksums)


def rt1_features(number, length, encoding=".png"):
    """The features of one RT-1 episode."""
    taken = actions(number, length)
    named = {
        "steps/observation/image": [
            cv2.imencode(encoding, frame[..., ::-1])[1].tobytes() for frame in frames(number, length)
        ],
        "steps/observation/natural_language_instruction": [INSTRUCTIONS[number].encode()] * length,
        "steps/observation/natural_language_embedding": np.zeros((length, 512), np.float32),
        "steps/is_first": np.arange(length) == 0,
    }
    for part, where in RT1_PARTS.items():
        values = taken[:, where]
        named[f"steps/action/{part}"] = values.astype(np.int64) if part == "terminate_episode" else values
    return named


def write_rlds(folder, lengths, encoding=".png"):
    """A file with two records, and one with the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").write_text("{}")
    examples = [record(example(rt1_features(n, length, encoding))) for n, length in enumerate(lengths)]
    for shard, part in enumerate((examples[:2], examples[2:])):
        name = f"fractal20220817_data-train.tfrecord-{shard:05d}-of-00002"
        (folder / name).write_bytes(b"".join(part))
    return folder


def port_actions(number, length):
    """What LeRobot's port keeps of the actions: positions, angles, and an absolute gripper (1 open)."""
    taken = actions(number, length)
    gripper = (np.arange(length) // 2 + number) % 2
    return np.column_stack([taken[:, 10:13], taken[:, 4:7], gripper.astype(np.float32)])


def write_film(path, pictures, codec="libsvtav1"):
    """An MP4 at 3 Hz."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"crf": "8", "svtav1-params": "log=0"} if codec == "libsvtav1" else {"crf": "1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=3, options=options | {"g": "2"})
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def lerobot_info(version, **changes):
    """A meta/info.json like that of the RT-1 port."""
    third = version.startswith("v3")
    names = {"motors": ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]}
    camera = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "rgb"]}
    where = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    return {
        "codebase_version": version,
        "robot_type": "google_robot",
        "chunks_size": 2,
        "fps": 3,
        "data_path": f"data/{where}.parquet"
        if third
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": f"videos/{{video_key}}/{where}.mp4"
        if third
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "observation.images.image": camera,
            "action": {"dtype": "float32", "shape": [7], "names": names},
        },
    } | changes


def write_lerobot(folder, lengths, version="v2.0", codec="libsvtav1"):
    """A folder of version 2 (chunks of two episodes) or 3 (the first two episodes share table and film)."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def write(path, columns):
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table(columns), path)

    def rows(numbers):
        return {
            "action": pa.array(
                np.concatenate([port_actions(n, lengths[n]) for n in numbers]).tolist(),
                pa.list_(pa.float32()),
            ),
            "episode_index": np.repeat(numbers, [lengths[n] for n in numbers]),
            "task_index": np.repeat(numbers, [lengths[n] for n in numbers]),
        }

    camera, numbers = "observation.images.image", list(range(len(lengths)))
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(lerobot_info(version)))
    if version.startswith("v2"):
        entries = [{"episode_index": n, "tasks": [INSTRUCTIONS[n]], "length": lengths[n]} for n in numbers]
        (folder / "meta" / "episodes.jsonl").write_text(
            "".join(json.dumps(entry) + "\n" for entry in entries)
        )
        for n in numbers:
            write(folder / f"data/chunk-{n // 2:03d}/episode_{n:06d}.parquet", rows([n]))
            film = folder / f"videos/chunk-{n // 2:03d}/{camera}/episode_{n:06d}.mp4"
            write_film(film, frames(n, lengths[n]), codec)
        return folder
    groups = [group for group in (numbers[:2], numbers[2:]) if group]
    for file, group in enumerate(groups):
        write(folder / f"data/chunk-000/file-{file:03d}.parquet", rows(group))
        film = folder / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"
        write_film(film, np.concatenate([frames(n, lengths[n]) for n in group]), codec)
    file_index = [file for file, group in enumerate(groups) for _ in group]
    begins = [sum(lengths[m] for m in group if m < n) / 3 for group in groups for n in group]
    columns = {
        "episode_index": numbers,
        "tasks": [[INSTRUCTIONS[n]] for n in numbers],
        "length": list(lengths),
        "data/chunk_index": [0] * len(numbers),
        "data/file_index": file_index,
        f"videos/{camera}/chunk_index": [0] * len(numbers),
        f"videos/{camera}/file_index": file_index,
        f"videos/{camera}/from_timestamp": begins,
        f"videos/{camera}/to_timestamp": [b + lengths[n] / 3 for n, b in enumerate(begins)],
    }
    write(folder / "meta/episodes/chunk-000/file-000.parquet", columns)
    return folder
