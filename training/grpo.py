"""Group relative policy optimisation (Shao et al. 2024), the arithmetic: tensors in, tensors out.

Special: every mean over tokens can be given the *global* count of valid tokens, so gradients accumulated over
parts of a batch equal those of the whole batch. Groups of equal rewards have advantages of exactly zero,
which the published code does not guarantee: it divides a float32 rounding residual by about 1e-6.

Absent on purpose: a value network, length normalisation per sequence, KL inside the
reward. The loop is in ``training.grpo_loop``.

Shapes: R rows (samples), N token positions, P prompts with G samples each, V tokens in the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Of the published code: keeps the division finite, and the k3 estimator from exploding on a far-off
# reference.
_ADVANTAGE_EPSILON = 1e-6
_KL_CLAMP = 10.0


def group_advantages(
    rewards: Tensor, *, group_index: Tensor | None = None, group_size: int | None = None
) -> Tensor:
    """Rewards standardised inside their group: (r - mean) / (std + 1e-6), std unbiased.

    A group whose rewards are all equal (compared exactly) gets zeros. A group of one member has no spread to
    divide by; as in the published code its mean counts as 0 and its std as 1, so its advantage is its reward.

    Args:
        rewards: ``(R,)`` finite floats.
        group_index: ``(R,)`` integers, equal inside a group; any order. Or:
        group_size: G; rows 0..G-1 are the first group and so on.

    Returns:
        ``(R,)`` advantages in the dtype of ``rewards``.

    Raises:
        ValueError: A reward is not finite (names the sample), or not exactly one way of grouping is given.
    """
    if rewards.ndim != 1:
        raise ValueError(f"rewards have shape {tuple(rewards.shape)}; give one number per sample, (R,)")
    if not torch.isfinite(rewards).all():
        row = int((~torch.isfinite(rewards)).nonzero()[0])
        raise ValueError(f"the reward of sample {row} is {float(rewards[row])}; rewards must be finite")
    if (group_index is None) == (group_size is None):
        raise ValueError("give either group_index or group_size")
    if group_size is not None:
        if group_size < 1 or len(rewards) % group_size:
            raise ValueError(f"{len(rewards)} rewards cannot be cut into groups of {group_size}")
        group_index = torch.arange(len(rewards), device=rewards.device) // group_size
    assert group_index is not None
    if group_index.shape != rewards.shape:
        raise ValueError(
            f"group_index {tuple(group_index.shape)} and rewards {tuple(rewards.shape)} differ in shape"
        )
    advantages = torch.zeros_like(rewards)
    for group in group_index.unique():
        rows = group_index == group
        members = rewards[rows].double()
        if len(members) == 1:
            advantages[rows] = (members / (1 + _ADVANTAGE_EPSILON)).to(rewards.dtype)
        elif (members != members[0]).any():
            standardised = (members - members.mean()) / (members.std() + _ADVANTAGE_EPSILON)
            advantages[rows] = standardised.to(rewards.dtype)
    return advantages


def returns_to_go(rewards: Tensor, discount: float) -> Tensor:
    """Sum over g >= f of discount^(g - f) r_g of ``(R, F)`` rewards: what part f of an answer can still change.

    With a discount below 1 a part answers more for itself than for what comes much later, which has less
    variance and, where later parts continue earlier ones, hardly another direction.
    """
    returns = rewards.clone()
    for part in range(rewards.shape[1] - 2, -1, -1):
        returns[:, part] += discount * returns[:, part + 1]
    return returns


def token_mean(values: Tensor, mask: Tensor, total_tokens: Tensor | float | None = None) -> Tensor:
    """Sum of the valid entries of ``(R, N)`` values divided by ``total_tokens`` (default: their number).

    An invalid entry does not count even if it is NaN.
    """
    valid = mask.bool()
    total = values.where(valid, 0.0).sum()
    return total / (valid.sum().clamp(min=1) if total_tokens is None else total_tokens)


class PolicyLoss(NamedTuple):
    """Clipped policy loss and what to watch. All are sums over valid tokens divided by the token count.

    Attributes:
        loss: Scalar to minimise.
        clip_fraction: Share of tokens whose gradient the clip cut off.
        approximate_kl: Mean of old minus current log-probability.
    """

    loss: Tensor
    clip_fraction: Tensor
    approximate_kl: Tensor


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float = 0.2,
    total_tokens: Tensor | float | None = None,
) -> PolicyLoss:
    """Token mean of max(-A r, -A clip(r, 1 - clip, 1 + clip)) with r = exp(logprob - old logprob).

    Args:
        logprobs: ``(R, N)`` of the model being trained, with gradient.
        old_logprobs: ``(R, N)`` of the model that sampled the tokens.
        advantages: ``(R,)``, or ``(R, N)`` per token.
        mask: ``(R, N)`` True or 1 on generated tokens.
        clip: Half-width of the ratio's trust interval.
        total_tokens: Valid tokens of the whole batch that this is a part of.
    """
    if not (logprobs.shape == old_logprobs.shape == mask.shape and logprobs.ndim == 2):
        raise ValueError(
            f"logprobs {tuple(logprobs.shape)}, old_logprobs {tuple(old_logprobs.shape)} and mask"
            f" {tuple(mask.shape)} must all be (R, N)"
        )
    if advantages.ndim == 1:
        advantages = advantages[:, None].expand_as(logprobs)
    log_ratio = (logprobs - old_logprobs.detach()).where(mask.bool(), 0.0)
    ratio = log_ratio.exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)
    return PolicyLoss(
        token_mean(torch.maximum(plain, clipped), mask, total_tokens),
        token_mean((clipped > plain).float(), mask, total_tokens).detach(),
        token_mean(-log_ratio, mask, total_tokens).detach(),
    )


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Low-variance estimate of KL(model || reference) for every token (Schulman 2020, estimator k3).

    exp(d) - d - 1 with d = reference - model log-probability, clamped to at most 10 (no gradient beyond).

    Args:
        logprobs: ``(R, N)`` of the model being trained, with gradient.
        reference_logprobs: ``(R, N)`` of the frozen reference.

    Returns:
        ``(R, N)``, >= 0 up to rounding.
    """
    difference = reference_logprobs - logprobs
    return (difference.exp() - difference - 1).clamp(-_KL_CLAMP, _KL_CLAMP)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of ``(..., V)`` logits, as ``(...)``; a logit of -inf is a token of probability 0."""
    logprobs = logits.log_softmax(dim=-1)
    return -(logprobs.exp() * logprobs.where(logprobs.isfinite(), 0.0)).sum(dim=-1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of ``(..., )`` token ids under ``(..., V)`` logits."""
    return logits.log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
