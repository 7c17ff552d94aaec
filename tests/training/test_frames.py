import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.rewards.frame_observations import FrameReward
from training.rewards.frames import FrameRewardConfig, frame_scores
from training.rewards.image_metrics import mae, mse, psnr, ssim
from worldmodels.api import History, Prediction, Transition

METRICS = {"mae": (mae, 1e-6), "mse": (mse, 1e-6), "psnr": (psnr, 1e-3), "ssim": (ssim, 1e-4)}


def as_float(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).float() / 255


class RecordedDistances:
    """The golden rewards were made with given perceptual distances, row by row."""

    def __init__(self, distances: torch.Tensor) -> None:
        self.distances, self.position = distances.flatten(), 0

    def features(self, images):
        return [images]

    def distance_to(self, target_features, images):
        self.position += len(images)
        return self.distances[self.position - len(images) : self.position]


@pytest.mark.parametrize("name", METRICS)
def test_golden_metrics(name, conformance):
    golden = np.load(conformance("video/metrics.npz"))
    metric, tolerance = METRICS[name]
    values = metric(as_float(golden["a_u8"]), as_float(golden["b_u8"]))
    np.testing.assert_allclose(values, golden[name], atol=tolerance)


def test_golden_metrics_of_the_published_evaluator(conformance):
    golden = np.load(conformance("video/metrics.npz"))
    a, b = as_float(golden["a_u8"][:12]), as_float(golden["b_u8"][:12])
    means = [float(metric(a, b).mean()) for metric, _ in METRICS.values()]
    np.testing.assert_allclose(means, golden["evaluator_out"][:4], atol=1e-3)
    truth, samples = as_float(golden["multi_gt_u8"]), as_float(golden["multi_pred_u8"])
    repeated = truth.repeat(3, 1, 1, 1, 1)  # sample-major
    for column, (name, (metric, tolerance)) in enumerate(METRICS.items()):
        by_sample = metric(samples.flatten(0, 1), repeated.flatten(0, 1)).view(3, 2, 2).mean(dim=2)
        best = by_sample.amax(0) if name in ("psnr", "ssim") else by_sample.amin(0)
        np.testing.assert_allclose(best.mean(), golden["multi_best"][column], atol=tolerance)
        np.testing.assert_allclose(by_sample.std(0).mean(), golden["multi_std"][column], atol=tolerance)


@pytest.mark.parametrize("name", ["mae", "psnr", "ssim"])
def test_golden_metrics_of_consecutive_full_size_frames(name, conformance):
    golden = np.load(conformance("video/metrics.npz"))
    clip = as_float(np.load(conformance("video/rt1_clip.npz"))["image"]).movedim(-1, 1)
    pairs = golden["clip_pairs_frames"]
    metric, tolerance = METRICS[name]
    values = metric(clip[pairs[:, 0]], clip[pairs[:, 1]])
    np.testing.assert_allclose(values, golden[f"clip_pair_{name}"], atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "last", "discount"])
@pytest.mark.parametrize("loss", ["mae", "mse"])
def test_golden_multi_step_reward(loss, reduction, conformance):
    golden = np.load(conformance("video/reward.npz"))
    predicted = torch.from_numpy(golden["msp_detok_pixels"])[:, 1:]
    targets = torch.from_numpy(golden["msp_pixels"])[:, 2:]
    config = FrameRewardConfig(mae=float(loss == "mae"), mse=float(loss == "mse"), reduction=reduction)
    # Rows are scored target frame by target frame: (P, H, G).
    distances = torch.from_numpy(golden["msp_perceptual"]).unflatten(0, (2, 3)).transpose(1, 2)
    rewards, parts = frame_scores(predicted, targets, config=config, perceptual=RecordedDistances(distances))
    np.testing.assert_allclose(rewards.mean(1), golden[f"msp_{loss}_{reduction}_reward"], atol=1e-5)
    if reduction == "mean":
        means = [float(parts[loss].mean()), float(parts["lpips"].mean())]
        np.testing.assert_allclose(means, golden[f"msp_{loss}_recon"], atol=1e-5)


@pytest.mark.parametrize("variant", ["default", "all", "mse_only", "ssim_psnr", "lpips_heavy"])
def test_golden_single_step_reward(variant, conformance):
    golden = np.load(conformance("video/reward.npz"))
    weights = dict(
        zip(["lpips", "mae", "mse", "ssim", "psnr"], golden[f"ss_{variant}_weights"].tolist(), strict=True)
    )
    rewards, parts = frame_scores(
        torch.from_numpy(golden["ss_detok_pixels"])[:, None],
        torch.from_numpy(golden["ss_pixels"])[:, -1:],
        config=FrameRewardConfig(**weights),
        perceptual=RecordedDistances(torch.from_numpy(golden["ss_perceptual"])),
    )
    np.testing.assert_allclose(rewards.mean(1), golden[f"ss_{variant}_reward"], atol=1e-5)
    for name in parts.keys() - {"lpips"}:
        sign = -1 if name in ("ssim", "psnr") else 1
        np.testing.assert_allclose(sign * parts[name], golden[f"ss_component_{name}"], atol=1e-5)


def test_a_frame_is_rewarded_for_itself_and_pays_for_repeating_the_one_before():
    targets = torch.zeros(1, 3, 3, 12, 12)
    predicted = torch.zeros(1, 3, 3, 12, 12)
    predicted[:, 1:] = 0.5
    rewards, parts = frame_scores(
        predicted, targets, config=FrameRewardConfig(mae=1.0, lpips=0.0, repetition=0.2)
    )
    torch.testing.assert_close(rewards, torch.tensor([[0.0, -0.5, -0.5 - 0.2 * 3 / 2]]))
    assert parts["repetition"].tolist() == [0.5]
    last, _ = frame_scores(predicted, targets, config=FrameRewardConfig(mae=1.0, lpips=0.0, reduction="last"))
    torch.testing.assert_close(last, torch.tensor([[0.0, 0.0, -1.5]]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), group=st.integers(1, 4), horizon=st.integers(1, 3))
def test_shared_targets_equal_repeated_targets(seed, group, horizon):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(2, horizon, 3, 12, 13, generator=generator)
    predicted = torch.rand(2 * group, horizon, 3, 12, 13, generator=generator)
    config = FrameRewardConfig(mse=2.0, psnr=0.1, ssim=1.0, lpips=0.0, repetition=1.0, reduction="discount")
    shared, _ = frame_scores(predicted, targets, config=config)
    repeated, _ = frame_scores(predicted, targets.repeat_interleave(group, 0), config=config)
    torch.testing.assert_close(shared, repeated)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_metrics_rank_the_truth_first_and_ssim_stays_in_range(seed):
    generator = torch.Generator().manual_seed(seed)
    truth, other = torch.rand(2, 4, 3, 14, 11, generator=generator)
    assert (mae(truth, truth) == 0).all()
    torch.testing.assert_close(psnr(truth, truth), torch.full((4,), 80.0))
    torch.testing.assert_close(ssim(truth, truth), torch.ones(4))
    values = ssim(truth, other)
    assert ((values > -1) & (values < 1)).all()
    assert (psnr(truth, other) < 80).all()


def test_perceptual_part_equals_the_metric_on_every_pair():
    from worldmodels.nets.perceptual import Perceptual

    try:
        perceptual = Perceptual("alex")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    generator = torch.Generator().manual_seed(3)
    targets = torch.rand(2, 3, 3, 32, 32, generator=generator)
    predicted = torch.rand(6, 3, 3, 32, 32, generator=generator)
    config = FrameRewardConfig(mae=0.0, lpips=1.0)
    rewards, _ = frame_scores(predicted, targets, config=config, perceptual=perceptual)
    expected = perceptual.distance(predicted.flatten(0, 1), targets.repeat_interleave(3, 0).flatten(0, 1))
    torch.testing.assert_close(rewards, -expected.view(6, 3), atol=1e-5, rtol=1e-5)


def images(generator: np.random.Generator, count: int) -> list[np.ndarray]:
    return [generator.integers(0, 256, (12, 16, 3), dtype=np.uint8) for _ in range(count)]


def question(targets) -> Transition:
    return Transition(history=History(observations=[None]), actions=[0] * len(targets), targets=targets)


def answer(frames) -> list[Prediction]:
    return [Prediction(observation=frame) for frame in frames]


def test_protocol_class_scores_mixed_horizons_in_order():
    generator = np.random.default_rng(0)
    reward = FrameReward(FrameRewardConfig(lpips=0.0))
    pairs = [(images(generator, h), images(generator, h)) for h in (1, 3, 1, 2)]
    scores = reward([answer(p) for p, _ in pairs], [question(t) for _, t in pairs])
    for score, (predicted, target) in zip(scores, pairs, strict=True):
        expected = np.abs(np.stack(predicted) / 255 - np.stack(target) / 255).mean()
        assert score.value == pytest.approx(-expected, abs=1e-6)
        assert score.parts["mae"] == pytest.approx(expected, abs=1e-6)
        assert score.parts["undecoded"] == 0


def test_protocol_class_shares_one_target_object_with_equal_scores():
    generator = np.random.default_rng(1)
    config = FrameRewardConfig(mse=1.0, ssim=1.0, lpips=0.0)
    targets = images(generator, 2)
    answers = [answer(images(generator, 2)) for _ in range(3)]
    shared = FrameReward(config)(answers, [question(targets)] * 3)
    separate = FrameReward(config)(answers, [question([frame.copy() for frame in targets]) for _ in range(3)])
    assert [s.value for s in shared] == pytest.approx([s.value for s in separate], abs=1e-6)


def test_proprioception_is_scored_in_units_of_its_scale():
    frame = np.zeros((12, 12, 3), np.float32)
    config = FrameRewardConfig(mae=0.0, lpips=0.0, proprio=2.0, proprio_scale=(10.0, 1.0))
    truth = {"image": frame, "proprio": np.array([5.0, 1.0])}
    guess = {"image": frame, "proprio": np.array([15.0, 4.0])}
    (score,) = FrameReward(config)([answer([guess])], [question([truth])])
    assert score.parts["proprio"] == pytest.approx((1.0 + 9.0) / 2)
    assert score.value == pytest.approx(-10.0)


def test_repetition_penalty_is_the_rate_of_equal_consecutive_frames():
    a, b = np.zeros((12, 12, 3), np.uint8), np.full((12, 12, 3), 9, np.uint8)
    reward = FrameReward(FrameRewardConfig(mae=0.0, lpips=0.0, repetition=1.0))
    rows = [[a, a, b, b], [a, b, a, b], [a, a, a, a]]
    scores = reward([answer(row) for row in rows], [question(row) for row in rows])
    assert [s.value for s in scores] == pytest.approx([-2 / 3, 0.0, -1.0])


def test_undecodable_frames_are_worse_than_any_frame():
    white, black = np.full((12, 12, 3), 255, np.uint8), np.zeros((12, 12, 3), np.uint8)
    near_white = np.full((12, 12, 3), 254, np.uint8)
    reward = FrameReward(FrameRewardConfig(mse=1.0, psnr=0.1, ssim=1.0, lpips=0.0))
    failed = [Prediction(observation=None, error="no frame"), Prediction(observation=near_white)]
    scores = reward([failed, answer([near_white] * 2)], [question([black, black])] * 2)
    assert scores[0].value < scores[1].value
    assert scores[0].parts["undecoded"] == 0.5
    (all_failed,) = reward([[failed[0]] * 2], [question([white, white])])
    assert all_failed.parts["mae"] == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_names_the_sample(bad):
    predicted = torch.rand(3, 1, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    proprio = torch.zeros(3, 1, 2)
    proprio[1, 0, 0] = bad
    config = FrameRewardConfig(lpips=0.0, proprio=1.0, proprio_scale=(1.0, 1.0))
    with pytest.raises(ValueError, match="sample 1"):
        frame_scores(
            predicted,
            predicted,
            config=config,
            predicted_proprio=proprio,
            target_proprio=torch.zeros(3, 1, 2),
        )
    predicted[2, 0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"sample 2 is nan.*mae"):
        frame_scores(predicted, torch.zeros(3, 1, 3, 12, 12), config=FrameRewardConfig(lpips=0.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mae": -1.0}, "mae"),
        ({"mae": float("nan")}, "mae"),
        ({"mae": 0.0, "lpips": 0.0}, "set at least one"),
        ({"reduction": "max"}, "discount"),
        ({"discount": 0.0}, r"\(0, 1\]"),
        ({"proprio": 1.0}, "proprio_scale"),
        ({"proprio_scale": (0.0,)}, "positive"),
    ],
)
def test_bad_configs_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FrameRewardConfig(**settings)


def test_bad_inputs_are_named():
    config = FrameRewardConfig(lpips=0.0)
    with pytest.raises(ValueError, match="perceptual=Perceptual"):
        FrameReward(FrameRewardConfig())
    with pytest.raises(ValueError, match="divide uint8 by 255"):
        frame_scores(torch.zeros(1, 1, 3, 12, 12), torch.full((1, 1, 3, 12, 12), 200.0), config=config)
    with pytest.raises(ValueError, match="3 rows cannot be shared out over 2 targets"):
        frame_scores(torch.zeros(3, 1, 3, 12, 12), torch.zeros(2, 1, 3, 12, 12), config=config)
    with pytest.raises(ValueError, match="equal H, h, w"):
        frame_scores(torch.zeros(2, 2, 3, 12, 12), torch.zeros(2, 1, 3, 12, 12), config=config)
    with pytest.raises(ValueError, match="11 x 11"):
        ssim(torch.zeros(1, 3, 10, 12), torch.zeros(1, 3, 10, 12))
    reward = FrameReward(config)
    frame = np.zeros((12, 12, 3), np.uint8)
    with pytest.raises(ValueError, match="sample 0 has 1 predictions and 2 targets"):
        reward([answer([frame])], [question([frame, frame])])
    with pytest.raises(ValueError, match=r"\(H, W, 3\)"):
        reward([answer([frame[0]])], [question([frame])])
