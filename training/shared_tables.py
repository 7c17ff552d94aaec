"""A transformer's tables of ids, trained as if ids were made of parts, and plain again afterwards.

Special: an id of a finite scalar code book is a handful of digits, and a bin of an action lies between its
neighbours. While a model trains, the row of an id is a sum over its parts (learned, and common to all ids that have
them) and something of its own, which begins at zero. So an id that is seldom seen is not a stranger, and a model
listens to actions before it has seen every bin. Folded up, what is left is the released model's class: two tables.

Absent: any change of the model's computation; post-training works on the folded tables.

Shapes: V ids, F parts, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from worldmodels.nets.fsq import FSQ
from worldmodels.nets.llama import Llama
from worldmodels.video.layouts import MultiStepLayout

_KNOTS = 32  # of an action's 256 bins


class SharedRows(nn.Module):
    """The table ``own + parts @ shared``.

    Args:
        parts_VF: What each id consists of; ids without parts have rows of their own only.
        width: D.
        generator: Draws the parts' vectors.
    """

    def __init__(self, parts_VF: Tensor, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("parts_VF", parts_VF, persistent=False)
        shared = torch.empty(parts_VF.shape[1], width, device=parts_VF.device)
        self.shared_FD = nn.Parameter(shared.normal_(0.0, 0.02, generator=generator))

    def forward(self, own_VD: Tensor) -> Tensor:
        """The whole table ``(V, D)``, in full precision: what a decoder adds up begins with these rows."""
        with torch.autocast(own_VD.device.type, enabled=False):
            return torch.addmm(own_VD, self.get_buffer("parts_VF"), self.shared_FD)


def digit_parts(levels: Sequence[int]) -> Tensor:
    """``(codebook size, sum of levels)``: which value each digit of an id has."""
    fsq = FSQ(levels)
    codes = fsq.indices_to_codes(torch.arange(fsq.codebook_size))
    columns = [torch.unique(digit, return_inverse=True)[1] for digit in codes.unbind(-1)]
    return torch.cat(
        [nn.functional.one_hot(column, level) for column, level in zip(columns, levels, strict=True)], -1
    ).float()


def bin_parts(num_bins: int, knots: int = _KNOTS) -> Tensor:
    """``(num_bins, knots)``: how near each bin is to its two neighbouring knots; rows sum to 1."""
    places = torch.linspace(0, knots - 1, num_bins)
    return (1 - (places[:, None] - torch.arange(knots)).abs()).clamp(min=0)


def id_parts(layout: MultiStepLayout, context_levels: Sequence[int], dynamic_levels: Sequence[int]) -> Tensor:
    """``(V, F)`` of a multi-step layout: dynamic digits, context digits, bins of actions, nothing for the last two."""
    blocks = [digit_parts(dynamic_levels), digit_parts(context_levels), bin_parts(layout.action_bins)]
    parts = torch.block_diag(*blocks)
    return nn.functional.pad(parts, (0, 0, 0, layout.vocab_size - len(parts)))


@contextmanager
def shared_tables(llama: Llama, parts_VF: Tensor, *, seed: int) -> Iterator[None]:
    """Train with rows made of ``parts_VF``; at the end the tables are plain again, with the values they had.

    Inside, state dicts hold both kinds of rows, so that an interrupted training resumes. Each look at a table
    computes it: ``torch.nn.utils.parametrize.cached`` around one pass saves that.

    Raises:
        ValueError: The tables are one (``tie_word_embeddings``), or have another number of ids.
    """
    tables = (llama.model.embed_tokens, llama.lm_head)
    if llama.config.tie_word_embeddings or len(parts_VF) != llama.config.vocab_size:
        raise ValueError(
            f"parts of {len(parts_VF)} ids for a model of {llama.config.vocab_size} with tie_word_embeddings "
            f"{llama.config.tie_word_embeddings}; needed are as many ids and two tables"
        )
    device = llama.lm_head.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    for table in tables:
        with torch.no_grad():
            table.weight.zero_()
        rows = SharedRows(parts_VF.to(device), llama.config.hidden_size, generator)
        parametrize.register_parametrization(table, "weight", rows)
    try:
        yield
    finally:
        for table in tables:
            parametrize.remove_parametrizations(table, "weight", leave_parametrized=True)
