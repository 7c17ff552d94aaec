"""Keys and values of every decoder layer, preallocated, that grow in place and can be forked.

Special: one tensor for all layers, so that forking, selecting and copying a batch of rollouts is one copy, of the
positions in use only. All rows have the same length (a batch of rollouts moves in step).

Absent on purpose: padding and per-row lengths, quantised caches, gradients (a cache is for inference).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values of ``length`` positions; shape legend: N layers, B rows, H key-value heads, E head width.

    Attributes:
        keys: ``(N, B, H, max_length, E)``, rotated already; positions from ``length`` on are undefined.
        values: The same shape.
        length: Positions in use.
    """

    def __init__(self, keys: Tensor, values: Tensor, length: int = 0) -> None:
        """Take over the two tensors; see :meth:`empty` to make new ones."""
        self.keys = keys
        self.values = values
        self.length = length
        # Views made once: indexing a tensor per layer and token would cost as much as a small matrix product.
        self._layers = list(zip(keys.unbind(0), values.unbind(0), strict=True))

    @classmethod
    def empty(
        cls,
        *,
        num_layers: int,
        batch_size: int,
        num_heads: int,
        max_length: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> KVCache:
        """A cache of length 0 with room for ``max_length`` positions."""
        shape = (num_layers, batch_size, num_heads, max_length, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))

    @property
    def batch_size(self) -> int:
        """Number of rows B."""
        return self.keys.shape[1]

    @property
    def max_length(self) -> int:
        """Number of positions there is room for."""
        return self.keys.shape[3]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write L new positions of one layer behind ``length``, which itself moves in :meth:`advance`.

        Args:
            layer: Which layer.
            keys: ``(B, H, L, E)``.
            values: The same shape.

        Returns:
            Views of all keys and values of the layer so far, ``(B, H, length + L, E)``.
        """
        stop = self.length + keys.shape[2]
        all_keys, all_values = self._layers[layer]
        all_keys[:, :, self.length : stop] = keys
        all_values[:, :, self.length : stop] = values
        return all_keys[:, :, :stop], all_values[:, :, :stop]

    def advance(self, n: int) -> None:
        """Count n positions that every layer has appended."""
        self.length += n

    def clone(self, max_length: int | None = None) -> KVCache:
        """An independent copy, with other room if ``max_length`` is given."""
        return self._copy(self.keys, self.values, max_length)

    def repeat(self, n: int, max_length: int | None = None) -> KVCache:
        """A copy with every row n times, the copies of a row side by side (row b becomes rows b*n .. b*n+n-1)."""
        if n < 1:
            raise ValueError(f"a cache can be repeated 1 or more times, got {n}")
        keys, values = (
            x[:, :, None].expand(-1, -1, n, -1, -1, -1) for x in (self._used(self.keys), self._used(self.values))
        )
        return self._copy(keys, values, max_length, batch_size=self.batch_size * n)

    def select(self, rows: Sequence[int] | Tensor, max_length: int | None = None) -> KVCache:
        """A copy of the given rows in the given order; a row may be taken more than once."""
        rows = torch.as_tensor(rows, dtype=torch.int64, device=self.keys.device)
        keys, values = (self._used(x).index_select(1, rows) for x in (self.keys, self.values))
        return self._copy(keys, values, max_length)

    def truncate(self, length: int) -> None:
        """Forget all positions from ``length`` on, in place."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        self.length = length

    def _used(self, x: Tensor) -> Tensor:
        return x[:, :, :, : self.length]

    def _copy(
        self, keys: Tensor, values: Tensor, max_length: int | None, batch_size: int | None = None
    ) -> KVCache:
        """A new cache from tensors whose position axis is the last but one; only the positions in use are copied."""
        max_length = self.max_length if max_length is None else max_length
        if max_length < self.length:
            raise ValueError(f"a cache of {self.length} positions does not fit into max_length {max_length}")
        num_layers, _, num_heads, _, head_dim = self.keys.shape
        copy = KVCache.empty(
            num_layers=num_layers,
            batch_size=keys.shape[1] if batch_size is None else batch_size,
            num_heads=num_heads,
            max_length=max_length,
            head_dim=head_dim,
            dtype=self.keys.dtype,
            device=self.keys.device,
        )
        copy.length = self.length
        for new, old in ((copy.keys, keys), (copy.values, values)):
            used = old[..., : self.length, :]
            copy._used(new).view(used.shape).copy_(used)
        return copy
