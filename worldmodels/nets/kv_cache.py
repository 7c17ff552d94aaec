"""Keys and values of every decoder layer, preallocated, that grow in place and can be forked.

Special: one tensor for all layers, so that forking or selecting rollouts is one copy, of the positions in use
only. ``branch`` gives an old state and its successor the same memory, because positions are only ever added:
memory is copied when the same past is continued a second time, not at every step (fresh memory costs more
than decoding). All rows have the same length (a batch of rollouts moves in step).

Absent on purpose: padding and per-row lengths, quantised caches, gradients (a cache is for inference).

Shape legend: N layers, B rows, H key-value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class _Memory:
    """Two tensors ``(N, B, H, max_length, E)``, how far they are written, and whether caches share them."""

    keys: Tensor
    values: Tensor
    written: int = 0
    shared: bool = False

    def __post_init__(self) -> None:
        # Views made once: indexing per layer and token would cost as much as a small matrix product.
        self.layers = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))


class KVCache:
    """Keys and values of the first ``length`` positions of B sequences.

    Attributes:
        length: Positions in use.
    """

    has_gradients = False

    def __init__(
        self,
        *,
        num_layers: int,
        batch_size: int,
        num_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        """Length 0, with room for ``max_length`` positions."""
        shape = (num_layers, batch_size, num_heads, max_length, head_dim)
        self._memory = _Memory(
            torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)
        )
        self.length = 0

    @property
    def keys(self) -> Tensor:
        """``(N, B, H, length, E)``, already rotated; a view."""
        return self._memory.keys[:, :, :, : self.length]

    @property
    def values(self) -> Tensor:
        """``(N, B, H, length, E)``; a view."""
        return self._memory.values[:, :, :, : self.length]

    @property
    def batch_size(self) -> int:
        """Number of rows B."""
        return self._memory.keys.shape[1]

    @property
    def max_length(self) -> int:
        """Number of positions there is room for."""
        return self._memory.keys.shape[3]

    def reserve(self, n: int) -> None:
        """Make room for n positions, in memory of its own if another cache has continued this past already.

        Raises:
            ValueError: if there is no room for them.
        """
        stop = self.length + n
        if stop > self.max_length:
            raise ValueError(
                f"{self.length} positions and {n} more exceed the cache's max_length {self.max_length}: "
                "ask for more room when making, cloning or repeating it"
            )
        if self._memory.shared and self.length < self._memory.written:
            self._memory = self.clone()._memory
        self._memory.written = stop

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the reserved positions of one layer; ``length`` itself moves in :meth:`advance`.

        Args:
            layer: Which layer.
            keys: ``(B, H, n, E)``.
            values: The same shape.

        Returns:
            Views of all keys and values of the layer so far, ``(B, H, length + n, E)``.
        """
        stop = self.length + keys.shape[2]
        all_keys, all_values = self._memory.layers[layer]
        all_keys[:, :, self.length : stop] = keys
        all_values[:, :, self.length : stop] = values
        return all_keys[:, :, :stop], all_values[:, :, :stop]

    def advance(self, n: int) -> None:
        """Count n positions that every layer has appended."""
        self.length += n

    def branch(self) -> KVCache:
        """A cache with the same past that costs nothing; each of the two can be continued without harm to the
        other.

        Whichever appends first does so in place, the other one then copies its past.
        """
        self._memory.shared = True
        twin = object.__new__(KVCache)
        twin._memory, twin.length = self._memory, self.length
        return twin

    def clone(self, max_length: int | None = None) -> KVCache:
        """A copy with memory of its own, and other room if ``max_length`` is given."""
        copy = self._empty_like(self.batch_size, max_length)
        copy.keys.copy_(self.keys)
        copy.values.copy_(self.values)
        return copy

    def repeat(self, n: int, max_length: int | None = None) -> KVCache:
        """A copy with every row n times: row b becomes rows b*n .. b*n+n-1."""
        if n < 1:
            raise ValueError(f"a cache can be repeated 1 or more times, got {n}")
        copy = self._empty_like(self.batch_size * n, max_length)
        copy.keys.unflatten(1, (self.batch_size, n)).copy_(self.keys.unsqueeze(2))
        copy.values.unflatten(1, (self.batch_size, n)).copy_(self.values.unsqueeze(2))
        return copy

    def select(self, rows: Sequence[int] | Tensor, max_length: int | None = None) -> KVCache:
        """A copy of the given rows in the given order; a row may be taken more than once."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self._memory.keys.device)
        copy = self._empty_like(len(rows), max_length)
        torch.index_select(self.keys, 1, rows, out=copy.keys)
        torch.index_select(self.values, 1, rows, out=copy.values)
        return copy

    @staticmethod
    def concatenate(caches: Sequence[KVCache]) -> KVCache:
        """A copy with the rows of all caches, which must be equally long."""
        lengths = {cache.length for cache in caches}
        if len(lengths) != 1:
            raise ValueError(
                f"cannot concatenate caches of {sorted(lengths)} positions: they must be equally long"
            )
        copy = caches[0]._empty_like(sum(cache.batch_size for cache in caches), None)
        torch.cat([cache.keys for cache in caches], 1, out=copy.keys)
        torch.cat([cache.values for cache in caches], 1, out=copy.values)
        return copy

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        self.length = length

    def retract(self, n: int) -> None:
        """Take back the last n positions, as if they had never been appended: guesses that were wrong.

        Only while no other cache has seen them: after :meth:`branch` it is too late.

        Raises:
            ValueError: there are fewer positions, or another cache has continued this one.
        """
        if not 0 <= n <= self.length or self._memory.written != self.length:
            raise ValueError(
                f"cannot take back {n} of {self.length} positions, of {self._memory.written} that are written"
            )
        self.length -= n
        self._memory.written = self.length

    def _empty_like(self, batch_size: int, max_length: int | None) -> KVCache:
        """A cache of the same length whose values are still to be written."""
        max_length = self.max_length if max_length is None else max_length
        if max_length < self.length:
            raise ValueError(f"a cache of {self.length} positions does not fit into max_length {max_length}")
        num_layers, _, num_heads, _, head_dim = self._memory.keys.shape
        copy = KVCache(
            num_layers=num_layers,
            batch_size=batch_size,
            num_heads=num_heads,
            max_length=max_length,
            head_dim=head_dim,
            dtype=self._memory.keys.dtype,
            device=self._memory.keys.device,
        )
        copy.length = copy._memory.written = self.length
        return copy
