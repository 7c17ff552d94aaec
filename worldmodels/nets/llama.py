"""A plain Llama decoder whose state dict is that of Hugging Face's ``LlamaForCausalLM``.

Special: the weight layout of transformers (a checkpoint goes both ways unchanged), a preallocated cache, and
three doors for models that put more than token ids around the same decoder: ``embeddings`` instead of tokens,
``hidden`` (states without the head) and ``logits`` of a slice of the vocabulary. Weights are drawn from a
generator of their own.

Absent on purpose: padding masks (batches move in step), rotary scaling, biases, dropout, generation.

Shape legend: B rows, L new positions, T all positions, D model width, H query heads, K key-value heads, E
head width, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldmodels.nets.bfloat16 import Linear, attend_from_one, linear, pack
from worldmodels.nets.kv_cache import KVCache
from worldmodels.nets.shared_past import SharedPast


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes, under the names of a Hugging Face ``config.json``.

    Attributes:
        vocab_size: V.
        hidden_size: D.
        intermediate_size: Width of the SwiGLU layer.
        num_hidden_layers: Number of layers.
        num_attention_heads: H; must divide ``hidden_size``.
        num_key_value_heads: K; must divide H. None: H.
        rms_norm_eps: Added to the mean square before the root.
        rope_theta: Base of the rotary wavelengths.
        max_position_embeddings: Longest sequence.
        tie_word_embeddings: The head shares the embedding table.
        initializer_range: Standard deviation of fresh weights.
        bos_token_id: Not used by the decoder; kept for the round trip of a config.
        eos_token_id: As above.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads or self.head_dim % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be an even multiple of num_attention_heads "
                f"{self.num_attention_heads} (rotary embeddings turn pairs)"
            )
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} must be a multiple of num_key_value_heads "
                f"{self.kv_heads}"
            )

    @property
    def head_dim(self) -> int:
        """E."""
        return self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Read a Hugging Face ``config.json``.

        Raises:
            ValueError: if it asks for something that this decoder does not do, or lacks a size.
        """
        rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: config[name] for name in known & set(config)}
        values.update({name: rope[name] for name in known & set(rope)})
        try:
            ours = cls(**values)
        except TypeError as error:
            raise ValueError(f"not a Llama config: {error}") from error
        asked = {
            "model_type": config.get("model_type", "llama"),
            "hidden_act": config.get("hidden_act", "silu"),
            "attention_bias": bool(config.get("attention_bias")),
            "mlp_bias": bool(config.get("mlp_bias")),
            "rope_type": rope.get("rope_type", rope.get("type", "default")),
            "head_dim": config.get("head_dim") or ours.head_dim,
        }
        plain = ("llama", "silu", False, False, "default", ours.head_dim)
        if different := {k: v for (k, v), p in zip(asked.items(), plain, strict=True) if v != p}:
            raise ValueError(
                f"this decoder is a plain Llama; the config asks for {different}: use transformers for it"
            )
        return ours

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` that transformers reads."""
        return {
            **dataclasses.asdict(self),
            "num_key_value_heads": self.kv_heads,
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "attention_bias": False,
            "mlp_bias": False,
        }


@functools.lru_cache(maxsize=32)
def _rotary_table(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``(length, 1, head_dim)`` in float32, sign of the rotation included in the sines.

    Not a buffer: casting a model to bf16 would cast it too and ruin far positions, and a model built on the
    meta device would have nothing to load it from.
    """
    with torch.inference_mode(False):  # a table made under inference_mode could not be used in training later
        frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
        angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]


def _rotate(x_BLHE: Tensor, cos_L1E: Tensor, sin_L1E: Tensor) -> Tensor:
    """Turn the pairs (e, e + E/2) of each head by its position's angles (RoPE, arXiv:2104.09864)."""
    return x_BLHE * cos_L1E + x_BLHE.roll(x_BLHE.shape[-1] // 2, dims=-1) * sin_L1E


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.kv_heads
        kv_width = config.kv_heads * config.head_dim
        self.q_proj = _linear(config.hidden_size, config.hidden_size)
        self.k_proj = _linear(config.hidden_size, kv_width)
        self.v_proj = _linear(config.hidden_size, kv_width)
        self.o_proj = _linear(config.hidden_size, config.hidden_size)
        self.packed: Tensor | None = None  # weights of q, k and v; see Llama.in_bfloat16

    def pack(self) -> None:
        self.packed = pack((self.q_proj, self.k_proj, self.v_proj))

    def forward(
        self,
        x_BLD: Tensor,
        cos_L1E: Tensor,
        sin_L1E: Tensor,
        mask_LT: Tensor | None,
        cache: KVCache | SharedPast | None,
        layer: int,
    ) -> Tensor:
        B, L, D = x_BLD.shape
        if self.packed is None:
            q_BLHE, k_BLKE, v_BLKE = (
                layer(x_BLD).view(B, L, -1, self.head_dim)
                for layer in (self.q_proj, self.k_proj, self.v_proj)
            )
        else:
            heads = [layer.out_features // self.head_dim for layer in (self.q_proj, self.k_proj, self.v_proj)]
            together = linear(x_BLD, self.packed).view(B, L, -1, self.head_dim)
            q_BLHE, k_BLKE, v_BLKE = together.split(heads, dim=2)
        q_BHLE, k_BKTE = (_rotate(x, cos_L1E, sin_L1E).transpose(1, 2) for x in (q_BLHE, k_BLKE))
        v_BKTE = v_BLKE.transpose(1, 2)
        if isinstance(cache, SharedPast) and cache.reads_together:
            x_BHLE = cache.attend(layer, q_BHLE, k_BKTE, v_BKTE, mask_LT)
            shared_BLD: Tensor = self.o_proj(x_BHLE.transpose(1, 2).reshape(B, L, D))
            return shared_BLD
        if cache is not None:
            k_BKTE, v_BKTE = cache.append(layer, k_BKTE, v_BKTE)
        if self.groups > 1:
            k_BKTE = k_BKTE.repeat_interleave(self.groups, dim=1)
            v_BKTE = v_BKTE.repeat_interleave(self.groups, dim=1)
        if L == 1 and q_BHLE.dtype == torch.bfloat16 and q_BHLE.device.type == "cpu":
            x_BHLE = attend_from_one(q_BHLE, k_BKTE, v_BKTE)
        else:
            is_causal = mask_LT is None and L > 1
            x_BHLE = F.scaled_dot_product_attention(
                q_BHLE, k_BKTE, v_BKTE, attn_mask=mask_LT, is_causal=is_causal
            )
        out_BLD: Tensor = self.o_proj(x_BHLE.transpose(1, 2).reshape(B, L, D))
        return out_BLD


class _FeedForward(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)
        self.packed: Tensor | None = None  # weights of gate and up; see Llama.in_bfloat16

    def pack(self) -> None:
        self.packed = pack((self.gate_proj, self.up_proj))

    def forward(self, x_BLD: Tensor) -> Tensor:
        if self.packed is None:
            gate, up = self.gate_proj(x_BLD), self.up_proj(x_BLD)
        else:
            gate, up = linear(x_BLD, self.packed).chunk(2, -1)
        out_BLD: Tensor = self.down_proj(F.silu(gate) * up)
        return out_BLD


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = _FeedForward(config)

    def forward(
        self,
        x_BLD: Tensor,
        cos_L1E: Tensor,
        sin_L1E: Tensor,
        mask_LT: Tensor | None,
        cache: KVCache | SharedPast | None,
        layer: int,
    ) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD), cos_L1E, sin_L1E, mask_LT, cache, layer)
        return x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))


class _Decoder(nn.Module):
    """What Hugging Face calls ``model``: everything but the head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.utils.skip_init(
            nn.Embedding, config.vocab_size, config.hidden_size, device=torch.get_default_device()
        )
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Llama(nn.Module):
    """The decoder with its head."""

    def __init__(self, config: LlamaConfig, *, seed: int = 0) -> None:
        """Fresh weights are a function of ``seed``; torch's global generator is neither read nor moved."""
        super().__init__()
        self.config = config
        self.model = _Decoder(config)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.reset_parameters(seed)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Draw matrices from N(0, initializer_range^2) and set norms to 1, as transformers does."""
        device = self.lm_head.weight.device
        if device.type == "meta":
            return
        generator = torch.Generator(device).manual_seed(seed)
        for parameter in self.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, self.config.initializer_range, generator=generator)

    def in_bfloat16(self) -> Llama:
        """A copy for inference in bfloat16, whose layers with one input are read together.

        Not to be cast or moved any more: what is read together would stay behind.
        """
        other = copy.deepcopy(self).to(torch.bfloat16).requires_grad_(False)
        for module in other.modules():
            if isinstance(module, _Attention | _FeedForward):
                module.pack()
        return other

    def new_cache(self, batch_size: int, max_length: int, dtype: torch.dtype | None = None) -> KVCache:
        """An empty cache on the model's device, by default in its dtype."""
        weight = self.lm_head.weight
        return KVCache(
            num_layers=self.config.num_hidden_layers,
            batch_size=batch_size,
            num_heads=self.config.kv_heads,
            max_length=max_length,
            head_dim=self.config.head_dim,
            dtype=weight.dtype if dtype is None else dtype,
            device=weight.device,
        )

    def forward(
        self,
        tokens: Tensor | None,
        cache: KVCache | SharedPast | None = None,
        *,
        embeddings: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the next token at each new position.

        Args:
            tokens: ``(B, L)`` int64, or None if ``embeddings`` are given.
            cache: What came before; the new positions are appended to it, in place (a repeated ``SharedPast``
                without room keeps none). None: the start of a sequence.
            embeddings: ``(B, L, D)``, in place of tokens.
            last_only: Only for the last position.

        Returns:
            ``(B, L, V)``, or ``(B, 1, V)`` if ``last_only``.

        Raises:
            ValueError: see :meth:`hidden`.
        """
        hidden_BLD = self.hidden(tokens, cache, embeddings=embeddings)
        return self.logits(hidden_BLD[:, -1:] if last_only else hidden_BLD)

    def hidden(
        self,
        tokens: Tensor | None,
        cache: KVCache | SharedPast | None = None,
        *,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Final, normed states ``(B, L, D)`` of the new positions; arguments as for :meth:`forward`.

        Raises:
            ValueError: if not exactly one of ``tokens`` and ``embeddings`` is given, the sequence becomes
                longer than ``max_position_embeddings`` or the cache's ``max_length``, the batch is not the
                cache's, or gradients are asked for through a cache.
        """
        if (tokens is None) == (embeddings is None):
            raise ValueError("give either tokens or embeddings")
        x_BLD = self.model.embed_tokens(tokens) if embeddings is None else embeddings
        B, L, _ = x_BLD.shape
        past = self._begin(cache, B, L, x_BLD.requires_grad)
        cos, sin = _rotary_table(
            self.config.max_position_embeddings, self.config.head_dim, self.config.rope_theta, x_BLD.device
        )
        cos_L1E, sin_L1E = cos[past : past + L].to(x_BLD.dtype), sin[past : past + L].to(x_BLD.dtype)
        mask_LT = None
        if L > 1 and past > 0:  # a new position sees the whole past and itself; the other cases need no mask
            mask_LT = torch.ones(L, past + L, dtype=torch.bool, device=x_BLD.device).tril(past)
        for i, layer in enumerate(self.model.layers):
            x_BLD = layer(x_BLD, cos_L1E, sin_L1E, mask_LT, cache, i)
        if cache is not None:
            cache.advance(L)
        hidden_BLD: Tensor = self.model.norm(x_BLD)
        return hidden_BLD

    def logits(self, hidden_BLD: Tensor, vocab: slice | None = None) -> Tensor:
        """The head: ``(..., D)`` to ``(..., V)``, or to the slice ``vocab`` of the vocabulary only."""
        weight_VD = self.lm_head.weight if vocab is None else self.lm_head.weight[vocab]
        return linear(hidden_BLD, weight_VD)

    def _begin(self, cache: KVCache | SharedPast | None, B: int, L: int, requires_grad: bool) -> int:
        past = 0 if cache is None else cache.length
        if past + L > self.config.max_position_embeddings:
            raise ValueError(
                f"{past} positions and {L} more exceed max_position_embeddings "
                f"{self.config.max_position_embeddings}"
            )
        if cache is not None:
            if cache.batch_size != B:
                raise ValueError(
                    f"the cache holds {cache.batch_size} rows, the input {B}: repeat or select its rows"
                )
            wanted = torch.is_grad_enabled() and (requires_grad or self.lm_head.weight.requires_grad)
            if wanted and not cache.has_gradients:
                raise ValueError(
                    "a cache is overwritten in place and has no gradients: use it under torch.no_grad(), or a"
                    " SharedPast"
                )
            cache.reserve(L)
        return past


def _linear(in_features: int, out_features: int) -> nn.Linear:
    """A bias-free layer without values yet: torch's own initialisation draws from the global generator."""
    device = torch.get_default_device()
    linear: nn.Linear = nn.utils.skip_init(Linear, in_features, out_features, bias=False, device=device)
    return linear
