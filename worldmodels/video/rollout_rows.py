"""Rollout states made of groups of rows: who stands at the same place of his window is stepped together.

Special: all of fork, select and append that does not depend on the world model. A state knows where each of its
rows is, and which model it belongs to. States never change.

Absent: what a row holds, and how it is stepped.

Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from worldmodels.api import RolloutState

G = TypeVar("G", bound="Group")

# With fewer rows and fewer weights than these a second torch thread costs more than it brings, and on a busy
# machine up to fifty times more. From so many weights on (128 MiB) even one row waits for memory.
_MANY_ROWS = 512
_MANY_WEIGHTS = 1 << 25


@contextmanager
def threads_for(rows: int, network: nn.Module) -> Iterator[None]:
    """One torch thread for small batches in small networks; the caller's setting is put back."""
    before = torch.get_num_threads()
    if (
        before == 1
        or rows >= _MANY_ROWS
        or sum(weights.numel() for weights in network.parameters()) >= _MANY_WEIGHTS
    ):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Group(Protocol):
    """Rows that are stepped as one batch."""

    @property
    def seeds(self) -> Tensor:
        """``(B,)`` int64."""
        ...

    @property
    def place(self) -> int:
        """Where in their windows the rows stand; groups of one place can be joined."""
        ...

    def take(self: G, rows: Tensor) -> G:
        """Some rows, in the given order."""
        ...

    def repeated(self: G, n: int) -> G:
        """Every row n times, each copy with a derived seed; the first keeps its own."""
        ...

    def joined(self: G, others: Sequence[G]) -> G:
        """These rows and those of other groups of the same place."""
        ...

    def reseeded(self: G, seeds: Tensor) -> G:
        """The same rows with other seeds."""
        ...


@dataclass(frozen=True, eq=False)
class GroupedRows(Generic[G]):
    """See ``worldmodels.api.RolloutState``.

    Attributes:
        model: The world model that it belongs to.
        groups: At most one for each place.
        order: ``(B,)`` int64 on the processor; row i is number ``order[i]`` of the groups laid end to end.
    """

    model: object
    groups: tuple[G, ...]
    order: Tensor

    @classmethod
    def single(cls, model: object, group: G) -> GroupedRows[G]:
        """A state of one group, its rows in order."""
        return cls(model, (group,), torch.arange(len(group.seeds), device="cpu"))

    @classmethod
    def of(cls, model: object, groups: Sequence[G], order: Tensor) -> GroupedRows[G]:
        """A state in which groups of one place are joined: fewer, larger batches."""
        places = sorted({group.place for group in groups})
        if len(places) == len(groups):
            return cls(model, tuple(groups), order)
        starts = np.cumsum([0] + [len(group.seeds) for group in groups])
        joined: list[G] = []
        moved: list[Tensor] = []  # old numbers of the rows, in their new order
        for place in places:
            members = [i for i, group in enumerate(groups) if group.place == place]
            first, *others = (groups[i] for i in members)
            joined.append(first.joined(others) if others else first)
            moved += [torch.arange(int(starts[i]), int(starts[i + 1]), device="cpu") for i in members]
        return cls(model, tuple(joined), torch.argsort(torch.cat(moved))[order])

    def __len__(self) -> int:
        return len(self.order)

    def select(self, rows: Sequence[int]) -> GroupedRows[G]:
        """Some rows, in the given order.

        Raises:
            IndexError: There is no such row.
        """
        wanted = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        if len(wanted) and not (-len(self) <= int(wanted.min()) and int(wanted.max()) < len(self)):
            raise IndexError(f"rows {list(rows)} of a state with {len(self)} rows")
        places = self.order[wanted]
        groups: list[G] = []
        order = torch.empty_like(wanted)
        start = taken = 0
        for group in self.groups:
            stop = start + len(group.seeds)
            mine = ((places >= start) & (places < stop)).nonzero().squeeze(1)
            if len(mine):
                groups.append(group.take(places[mine] - start))
                order[mine] = torch.arange(taken, taken + len(mine), device="cpu")
                taken += len(mine)
            start = stop
        return replace(self, groups=tuple(groups), order=order)

    def fork(self, n: int) -> GroupedRows[G]:
        """Every row n times, each copy with a derived seed; the first keeps its own.

        Raises:
            ValueError: n is not at least 1.
        """
        if n < 1:
            raise ValueError(f"cannot fork into {n} copies; give at least 1")
        order = (self.order[:, None] * n + torch.arange(n, device="cpu")).flatten()
        return replace(self, groups=tuple(group.repeated(n) for group in self.groups), order=order)

    def reseeded(self, seeds: Tensor) -> GroupedRows[G]:
        """The same rows with other seeds, int64 ``(B,)``."""
        parts = zip(self.groups, self._split(seeds), strict=True)
        return replace(self, groups=tuple(group.reseeded(own) for group, own in parts))

    def append(self, other: RolloutState) -> GroupedRows[G]:
        """The rows of both, these first.

        Raises:
            TypeError: The other is no state of the same model.
        """
        theirs: GroupedRows[G] = checked_state(self.model, other)
        placed = sum(len(group.seeds) for group in self.groups)
        return GroupedRows.of(
            self.model, self.groups + theirs.groups, torch.cat([self.order, theirs.order + placed])
        )

    def advanced(
        self, actions: Tensor, advance: Callable[[G, Tensor], tuple[G, Sequence[Tensor]]]
    ) -> tuple[GroupedRows[G], list[Tensor]]:
        """Step every group.

        Args:
            actions: ``(B, ...)``.
            advance: (group, actions of its rows) -> the group one step later, and tensors with one entry per row.

        Returns:
            the new state, and the tensors in the order of its rows.
        """
        stepped = [advance(*pair) for pair in zip(self.groups, self._split(actions), strict=True)]
        columns = zip(*(values for _, values in stepped), strict=True)
        results = [torch.cat(column)[self.order] for column in columns]
        return GroupedRows.of(self.model, [group for group, _ in stepped], self.order), results

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        """What belongs to the rows of each group, of values ``(B, ...)`` of all rows."""
        placed = torch.empty_like(values)
        placed[self.order] = values
        return placed.split([len(group.seeds) for group in self.groups])


def checked_state(model: object, state: RolloutState) -> GroupedRows[Any]:
    """The state, if it belongs to the model.

    Raises:
        TypeError: It is something else, or belongs to another model.
    """
    if not isinstance(state, GroupedRows) or state.model is not model:
        whose = "of another model" if isinstance(state, GroupedRows) else f"a {type(state).__name__}"
        raise TypeError(f"state is {whose}; give one that start or step of this model returned")
    return state
