"""Goal costs: physical state, pixels, LPIPS, DINOv2."""

import math

import numpy as np
import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

from planners import DinoCost, PerceptualCost, PixelCost, ProprioCost, StateCost, StateCostConfig
from tests.planners.toy import ToyPredictions, observe
from worldmodels.nets.perceptual import Perceptual


class Answers:
    """Predictions that are simply given."""

    def __init__(self, observations=None, states=None):
        self._observations, self._states = observations, states

    def observations(self):
        return self._observations

    def states(self):
        return self._states


def frames(count, size=48, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def test_state_cost_by_hand():
    states = np.array([[10, 0, 0, 20, 0.1, 5, 5], [0, 0, 0, 0, 2 * math.pi - 0.1, 0, 0]], dtype=np.float32)
    goals = [np.array([0, 0, 0, 0, 0.0, 99, 99]), np.array([0, 0, 0, 0, 4 * math.pi])]
    cost = StateCost(StateCostConfig(block_weight=2.0, angle_weight=3.0))
    angle = 3 * (0.1 / (math.pi / 9)) ** 2
    predicted = Answers(states=states)
    torch.testing.assert_close(
        cost(predicted, [goals[0][:5], goals[1]]),
        torch.tensor([0.25 + 2 + angle, angle]).double(),
        atol=1e-5,
        rtol=0,
    )


def test_state_cost_is_one_at_the_scale_and_rows_belong_to_goals():
    goal = np.array([[100, 100, 200, 200, 3.0], [50, 50, 60, 60, -3.0]])
    rows = goal.repeat(3, axis=0)
    rows[[0, 3], 0] += 20
    rows[[1, 4], 3] -= 20
    rows[[2, 5], 4] += math.pi / 9
    torch.testing.assert_close(
        StateCost()(Answers(states=rows.astype(np.float32)), list(goal)),
        torch.ones(6).double(),
        atol=1e-4,
        rtol=0,
    )


def test_state_cost_errors():
    with pytest.raises(ValueError, match=r"does not read states .* PixelCost"):
        StateCost()(Answers(), [np.zeros(5)])
    with pytest.raises(ValueError, match="predicted states have 2 numbers and goals 5"):
        StateCost()(ToyPredictions(np.zeros((3, 2))), [np.zeros(5)])


def test_proprio_cost():
    predictions = ToyPredictions(np.array([[1.0, 2.0], [0.0, 0.0]]))
    goals = [{"proprio": np.zeros(2)}, {"proprio": np.array([3.0, 0.0])}]
    torch.testing.assert_close(
        ProprioCost((1.0, 2.0))(predictions, goals), torch.tensor([(1 + 1) / 2, 9 / 2]).double()
    )
    with pytest.raises(ValueError, match="2 numbers but scale has 3"):
        ProprioCost((1.0, 1.0, 1.0))(predictions, goals)
    with pytest.raises(ValueError, match=r"needs observations with 'proprio'; this one has \['image'\]"):
        ProprioCost((1.0, 1.0))(Answers({"image": frames(1)}), goals)


def test_pixel_cost():
    images, goal = frames(4), frames(2, seed=1)
    costs = PixelCost()(Answers({"image": images}), [{"image": g} for g in goal])
    expected = ((images.reshape(2, 2, -1) / 255 - goal.reshape(2, 1, -1) / 255) ** 2).mean(-1).ravel()
    np.testing.assert_allclose(costs, expected, rtol=1e-5)
    bare = PixelCost()(Answers(images), list(goal))  # observations that are images
    assert torch.equal(bare, costs)
    assert PixelCost()(Answers(images[:1]), [images[0]]).item() == 0


def test_image_errors():
    with pytest.raises(ValueError, match=r"uint8 \(B, H, W, 3\), got float64"):
        PixelCost()(Answers(frames(1) / 255), [frames(1)[0]])
    with pytest.raises(ValueError, match=r"goal images have \(32, 32\) pixels .* \(48, 48\); resize"):
        PixelCost()(Answers(frames(1)), [frames(1, size=32)[0]])


def test_pixel_cost_ranks_positions():
    positions = np.array([[0.0, 0.0], [0.5, 0.0], [1.0, 1.0]])
    costs = PixelCost()(ToyPredictions(positions), [observe(np.array([1.0, 1.0]))])
    assert costs[2] == 0
    assert costs[0] > costs[1] > costs[2]


def test_perceptual_cost_is_lpips():
    try:
        perceptual = Perceptual(net="alex")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    images, goals = frames(4), frames(2, seed=1)
    costs = PerceptualCost(perceptual)(Answers({"image": images}), [{"image": g} for g in goals])

    def floats(x):
        return torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255

    expected = perceptual.distance(floats(goals.repeat(2, axis=0)), floats(images))
    torch.testing.assert_close(costs, expected, rtol=1e-4, atol=1e-5)
    assert PerceptualCost(perceptual)(Answers(images[:1]), [images[0]]).item() == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    """A tiny random DINOv2 in the folder layout of the published ones (position table of 37 x 37)."""
    folder = tmp_path_factory.mktemp("dinov2")
    config = Dinov2Config(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=518, patch_size=14, mlp_ratio=2
    )
    network = Dinov2Model(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    network.save_pretrained(folder)
    return folder, network.eval()


def test_dino_cost(dinov2):
    folder, network = dinov2
    cost = DinoCost(folder, batch_size=3)
    images, goals = frames(4, size=196), frames(2, size=196, seed=1)
    costs = cost(Answers({"image": images}), [{"image": g} for g in goals])

    def patches(x):
        pixels = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        with torch.no_grad():
            return network((pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)).last_hidden_state[:, 1:]

    assert patches(images).shape == (4, 196, 24)
    expected = (patches(images) - patches(goals).repeat_interleave(2, 0)).square().mean((1, 2))
    torch.testing.assert_close(costs, expected, rtol=1e-4, atol=1e-5)
    assert (costs > 0).all()
    assert not any(p.requires_grad for p in cost.network.parameters())


def test_dino_cost_resizes_any_image_to_14_patches(dinov2):
    cost = DinoCost(dinov2[0])
    for size in (64, 224):
        image = torch.from_numpy(frames(1, size=size)).permute(0, 3, 1, 2).float() / 255
        assert cost.features(image).shape == (1, 196, 24)
    smooth = np.full((1, 64, 64, 3), 120, dtype=np.uint8)
    assert DinoCost(dinov2[0])(Answers(smooth), [np.full((224, 224, 3), 120, dtype=np.uint8)]).item() < 1e-6


def test_dino_cost_says_what_to_do_without_weights(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"config.json and model.safetensors"):
        DinoCost(tmp_path)
    monkeypatch.setattr("planners.goal_cost._HUB_TIMEOUT_SECONDS", 0.001)
    with pytest.raises(
        FileNotFoundError, match=r"hf download nobody/no-such-dinov2 .* give its path as `model`"
    ):
        DinoCost("nobody/no-such-dinov2")
