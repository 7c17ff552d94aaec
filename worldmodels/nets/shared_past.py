"""Keys and values of a past that several sequences have in common: kept once, with gradients where they are wanted.

Special: rows that begin alike (windows of one episode, answers to one prompt) compute that beginning once, and while
they are sampled they read it together, in one matrix product instead of one for every row. What is kept are the
decoder's own keys and values, so a gradient flows from every row into the one past, and the result is that of the
repeated sequences up to rounding.

Absent: copies and branches; ``kv_cache`` has them.

Shape legend: S sequences of the past, n rows of each, R = S * n, H query heads, K key-value heads, g = H / K,
E head width, T positions of the past, L new positions, O positions of a row since the past.
"""

from __future__ import annotations

import torch
from torch import Tensor

from worldmodels.nets.kv_cache import KVCache


class SharedPast:
    """Give it to ``Llama.hidden`` with the past first; then give ``past.repeat(n)`` with the rows that follow.

    Attributes:
        batch_size: Rows expected next: S while recording, R afterwards.
    """

    has_gradients = True

    def __init__(self, batch_size: int) -> None:
        """Nothing is recorded yet; ``batch_size`` is S."""
        self.batch_size = batch_size
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._rows_each: int | None = None
        self._own: KVCache | None = None

    @property
    def length(self) -> int:
        """Positions so far: of the past, and of the rows' own where these are kept."""
        past = self._layers[0][0].shape[2] if self._layers else 0
        return past + (0 if self._own is None else self._own.length)

    def repeat(self, n: int, *, room: int | None = None) -> SharedPast:
        """The same past for n rows of each sequence: row r continues sequence r // n.

        Args:
            n: Rows of each.
            room: Their own positions are kept for more to follow, at most so many; this has no gradients. None:
                whatever is given next follows the past directly.

        Raises:
            ValueError: Nothing is recorded yet, or n is below 1.
        """
        if not self._layers or n < 1:
            raise ValueError(
                f"{self.length} positions are recorded and {n} rows wanted; both must be at least 1"
            )
        seen = SharedPast(self.batch_size * n)
        seen._layers, seen._rows_each = self._layers, n
        if room is not None:
            seen.has_gradients = False
            # In one piece once, instead of in every product.
            seen._layers = [(keys.contiguous(), values.contiguous()) for keys, values in self._layers]
            keys = seen._layers[0][0]
            seen._own = KVCache(
                num_layers=len(self._layers),
                batch_size=seen.batch_size,
                num_heads=keys.shape[1],
                max_length=room,
                head_dim=keys.shape[3],
                dtype=keys.dtype,
                device=keys.device,
            )
        return seen

    @property
    def reads_together(self) -> bool:
        """Whether attention is :meth:`attend`, which few new positions at a time are fast in."""
        return self._own is not None

    def reserve(self, n: int) -> None:
        """Make room for n positions where they are kept.

        Raises:
            ValueError: The past is recorded already and nobody has asked for rows of it, or there is no room.
        """
        if self._rows_each is None and self._layers:
            raise ValueError("this past is recorded; continue it with repeat(n)")
        if self._own is not None:
            self._own.reserve(n)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Record a layer's ``(S, K, T, E)``, or put the past before ``(R, K, L, E)``."""
        if self._rows_each is None:
            self._layers.append((keys, values))
            return keys, values
        old_keys, old_values = (past.repeat_interleave(self._rows_each, 0) for past in self._layers[layer])
        return torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)

    def attend(
        self, layer: int, q_RHLE: Tensor, k_RKLE: Tensor, v_RKLE: Tensor, mask_LT: Tensor | None
    ) -> Tensor:
        """Attention ``(R, H, L, E)`` of new positions over the past and the row's own positions.

        Args:
            layer: Which layer.
            q_RHLE: Rotated queries.
            k_RKLE: Rotated keys of the new positions.
            v_RKLE: Their values.
            mask_LT: ``(L, T + O)``, True where a position may look; None: everywhere.
        """
        if self._rows_each is None or self._own is None:
            raise ValueError("rows are read together after repeat(n, room=...)")
        k_RKLE, v_RKLE = self._own.append(layer, k_RKLE, v_RKLE)
        k_SKTE, v_SKTE = self._layers[layer]
        (S, K, T, E), n, (R, H, L, _) = k_SKTE.shape, self._rows_each, q_RHLE.shape
        g = H // K
        q_RKgLE = (q_RHLE * E**-0.5).reshape(R, K, g, L, E)
        q_SKnE = q_RKgLE.view(S, n, K, g, L, E).transpose(1, 2).reshape(S, K, n * g * L, E)
        past_SKnT = (q_SKnE @ k_SKTE.transpose(2, 3)).view(S, K, n, g, L, T)
        past_RKgLT = past_SKnT.transpose(1, 2).reshape(R, K, g, L, T)
        own_RKgLO = (q_RKgLE.reshape(R, K, g * L, E) @ k_RKLE.transpose(2, 3)).view(R, K, g, L, -1)
        if mask_LT is not None:
            own_RKgLO = own_RKgLO.masked_fill(~mask_LT[:, T:], -torch.inf)
        scores = torch.cat([past_RKgLT, own_RKgLO], -1)
        weights = scores.softmax(-1, dtype=torch.float32).to(v_SKTE.dtype)
        w_SKnT = weights[..., :T].view(S, n, K, g, L, T).transpose(1, 2).reshape(S, K, n * g * L, T)
        past_RKgLE = (w_SKnT @ v_SKTE).view(S, K, n, g, L, E).transpose(1, 2).reshape(R, K, g, L, E)
        own_RKgLE = (weights[..., T:].reshape(R, K, g * L, -1) @ v_RKLE).view(R, K, g, L, E)
        return (past_RKgLE + own_RKgLE).reshape(R, H, L, E)

    def advance(self, n: int) -> None:
        """Count n positions that every layer has appended, where they are kept."""
        if self._own is not None:
            self._own.advance(n)
