"""Bfloat16 on processors: matrix products and attention of few positions, the way torch does them fastest.

Special: while a model generates, its time is that of reading weights and cache. ``F.linear`` brings a weight matrix
into another order first, whatever the number of rows; as the left factor it is read as it lies. Several that multiply
the same input are read as one.

Absent: anything in float32, on a GPU or with gradients, where torch's own ways are used.

Shape legend: as in ``worldmodels.nets.llama``.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FEW_ROWS = 64
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in bfloat16 faster than in float32.

    A processor without the instructions takes 40 to 240 times as long for a convolution, and 5 for a layer.
    """
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def autocast(device: torch.device, wanted: bool = True) -> torch.autocast:
    """``torch.autocast`` to bfloat16 if wanted and the device has it; else what is inside stays float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted and has_bfloat16(device))


def advise(device: torch.device) -> bool:
    """The same as :func:`has_bfloat16`, with a warning if not."""
    if has := has_bfloat16(device):
        return has
    warnings.warn(
        "this processor has no bfloat16 instructions: the model stays in float32, which is faster here",
        stacklevel=3,
    )
    return has


def painter(module: ModuleT) -> ModuleT:
    """A copy of a convolutional module for inference in bfloat16.

    In this memory order convolutions need no copies; what GroupNorm loses by it is below bfloat16's rounding.
    """
    return copy.deepcopy(module).to(torch.bfloat16).to(memory_format=torch.channels_last)


class Linear(nn.Linear):
    """``nn.Linear`` without a bias by :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        return linear(input, self.weight)


def linear(input: Tensor, weight: Tensor) -> Tensor:
    """``F.linear``, or the product that reads the weights once, for few rows in bfloat16 on a processor.

    Args:
        input: ``(..., in)``.
        weight: ``(out, in)``.

    Returns:
        ``(..., out)``, sums in float32 whichever way.
    """
    rows = input.numel() // input.shape[-1]
    if (
        not 0 < rows <= _FEW_ROWS
        or weight.dtype != torch.bfloat16
        or weight.device.type != "cpu"
        or (torch.is_grad_enabled() and (weight.requires_grad or input.requires_grad))
    ):
        return F.linear(input, weight)
    flat = input.reshape(rows, -1)
    # Contiguous again: what follows (fused attention above all) would fall back to slow ways.
    out = torch.mv(weight, flat[0]) if rows == 1 else torch.mm(weight, flat.t()).t().contiguous()
    return out.reshape(*input.shape[:-1], -1)


def pack(layers: Sequence[nn.Linear]) -> Tensor:
    """Lay the weights of layers with one input behind each other in memory, where the layers go on using them.

    Returns:
        All of them as one weight ``(sum of out, in)``; products with it take less time than with each.
    """
    packed = torch.cat([layer.weight.detach() for layer in layers])
    parts = packed.split([layer.out_features for layer in layers])
    for layer, part in zip(layers, parts, strict=True):
        layer.weight = nn.Parameter(part, requires_grad=False)
    return packed


def attend_from_one(q_BH1E: Tensor, k_BHTE: Tensor, v_BHTE: Tensor) -> Tensor:
    """Attention of a single new position in bfloat16, softmax in float32; ``(B, H, 1, E)``.

    Torch's fused attention is built on tile instructions (AMX): with them it takes half the time of the two products
    written out, without them four times as long.
    """
    if _has_tiles():
        return F.scaled_dot_product_attention(q_BH1E, k_BHTE, v_BHTE)
    # Keys as the left factor: transposed they would be copied, at every token.
    scores_BH1T = (k_BHTE @ q_BH1E.transpose(2, 3)).float().transpose(2, 3) * q_BH1E.shape[-1] ** -0.5
    return scores_BH1T.softmax(-1).to(v_BHTE.dtype) @ v_BHTE


@functools.cache
def _has_tiles() -> bool:
    capabilities: dict[str, object] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # absent from older versions of torch
    return bool(capabilities.get("amx_bf16", False))
