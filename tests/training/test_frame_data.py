import numpy as np
import pytest

from tests.training.toy_frames import HEIGHT, STEPS, WIDTH, episode, toy_store
from training.frame_data import FrameData
from worldmodels.api import Episode
from worldmodels.episodes import split_of, write_all


def test_frames_of_any_shape_of_rows_and_times(tmp_path):
    store = toy_store(tmp_path)
    data = FrameData.load(store, "train")
    assert (len(data), data.steps, data.image_size) == (24, STEPS, (HEIGHT, WIDTH))
    times = np.array([[0, 3], [5, STEPS]])
    pixels = data.pixels(np.array([[2], [4]]), times)
    assert pixels.shape == (2, 2, HEIGHT, WIDTH, 3)
    for row, name in enumerate((data.ids[2], data.ids[4])):
        np.testing.assert_array_equal(pixels[row], store.episode(name).observations[times[row]])
    images = data.images(np.array([2, 4]), np.array([0, STEPS]))
    assert images.shape == (2, 3, HEIGHT, WIDTH)
    np.testing.assert_allclose(images[1].permute(1, 2, 0) * 255, pixels[1, 1], atol=1e-4)
    assert data.states is not None
    assert data.states.shape == (24, STEPS + 1, 1)


def test_refuses_what_it_cannot_train_on(tmp_path):
    names = [f"e{i}" for i in range(40) if split_of(f"e{i}") == "train"][:2]
    uneven = write_all(tmp_path / "a", [episode(names[0], 0), episode(names[1], 1, steps=STEPS + 2)])
    with pytest.raises(ValueError, match=r"\[10, 12\] steps.*--length"):
        FrameData.load(uneven, "train")
    with pytest.raises(ValueError, match="no validation episodes"):
        FrameData.load(uneven, "validation")
    plain = episode(names[0], 0)
    dicts = Episode(
        id=plain.id, observations={"image": plain.observations}, actions=plain.actions, rewards=plain.rewards
    )
    with pytest.raises(ValueError, match="not a frame"):
        FrameData.load(write_all(tmp_path / "b", [dicts]), "train")
