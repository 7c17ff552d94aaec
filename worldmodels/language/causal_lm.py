"""Any causal language model of the ``transformers`` library: asked, and made to say how likely an answer is.

Special: prompts of different lengths are padded on the left and looked at once however many answers are drawn; rows
that have ended cost no more. Draws are functions of (seed, step, token index) only, so in float32 a row's tokens do
not depend on the batch; in lower precision the logits themselves do, and only ``rows_at_once=1`` makes rows truly
independent.

Absent: files (``causal_lm_files``), game states (``causal_lm_world``), adapters and losses (training), top-k, top-p.

Shapes: B prompts, G answers to each, R = B * G rows, L prompt tokens, N tokens of the longest answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.sampling import sample, uniforms


@dataclass(frozen=True)
class LMAnswers:
    """Answers to prompts.

    Attributes:
        tokens: ``(R, N)`` int64, arbitrary after the end.
        logprobs: ``(R, N)`` float32, 0 after the end.
        mask: ``(R, N)`` bool, True up to and with the token that ends the answer; all True where it never ended.
    """

    tokens: Tensor
    logprobs: Tensor
    mask: Tensor


class CausalLM(nn.Module):
    """A network and its tokenizer.

    Args:
        net: A ``transformers`` causal language model, or one with adapters around it.
        tokenizer: Its tokenizer.
        chat: Whether prompts are wrapped in the tokenizer's chat template as the user's turn; None: where it has one.
        autocast: Compute in bfloat16 where that is safe, whatever the weights are stored in.
        rows_at_once: Rows of a batch, at most, to bound memory; all answers to one prompt stay together.
        gradient_checkpointing: Compute activations again when going backward, to save memory.

    Raises:
        ValueError: Nothing says which token ends an answer, ``chat`` needs a template that is not there, or
            ``rows_at_once`` is not positive.
    """

    def __init__(
        self,
        net: Any,
        tokenizer: Any,
        *,
        chat: bool | None = None,
        autocast: bool = False,
        rows_at_once: int = 64,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if rows_at_once < 1:
            raise ValueError(f"rows_at_once is {rows_at_once}; it must be at least 1")
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise ValueError("chat is True, but the tokenizer has no chat template; use chat=False")
        self.net, self.tokenizer = net, tokenizer
        self.chat = has_template if chat is None else chat
        self.autocast, self.rows_at_once = autocast, rows_at_once
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.end_ids = _end_ids(net, tokenizer)
        self.end_id: int = self.end_ids[0] if tokenizer.eos_token_id is None else tokenizer.eos_token_id

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = next(self.net.parameters()).device
        return device

    @property
    def context(self) -> int | None:
        """Tokens of prompt and answer together, at most; None: the model names no limit."""
        return getattr(self.net.config, "max_position_embeddings", None)

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt, ready to be answered.

        Raises:
            ValueError: The text has no tokens, or cannot be written in UTF-8.
        """
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is no text that can be written in UTF-8: {error}") from error
        if self.chat:
            turn = [{"role": "user", "content": prompt}]
            prompt = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        found = list(self.tokenizer(prompt, add_special_tokens=not self.chat)["input_ids"])
        if not found:
            raise ValueError("the prompt has no tokens")
        return found

    def texts(self, tokens: Tensor, mask: Tensor) -> list[tuple[str, bool]]:
        """What each row of answers says, without the token that ends it, and whether it ended at all."""
        rows = []
        for row, chosen in zip(tokens.tolist(), mask.tolist(), strict=True):
            said = [token for token, mine in zip(row, chosen, strict=True) if mine]
            ended = bool(said) and said[-1] in self.end_ids
            text = self.tokenizer.decode(
                said[:-1] if ended else said, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            rows.append((text, ended))
        return rows

    @torch.no_grad()
    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Tensor,
        steps: Tensor | int = 0,
        num_samples: int = 1,
        temperature: float = 1.0,
        max_new_tokens: int,
    ) -> LMAnswers:
        """Draw ``num_samples`` answers to each prompt.

        Args:
            prompts: B of them, in tokens.
            seeds: ``(R,)`` int64, one for each answer; row r answers prompt r // G.
            steps: ``(R,)`` int64 or one for all: the other counter of the draws.
            num_samples: G.
            temperature: 0 takes the likeliest tokens.
            max_new_tokens: An answer that has not ended by then is cut.

        Raises:
            ValueError: Counts do not fit, a prompt is too long for the model, or the model returns NaN.
        """
        rows = len(prompts) * num_samples
        if not rows or seeds.shape != (rows,) or max_new_tokens < 1:
            raise ValueError(
                f"{len(prompts)} prompts, {num_samples} answers to each, {tuple(seeds.shape)} seeds, max_new_tokens "
                f"{max_new_tokens}; give at least 1 of each, and {rows} seeds"
            )
        longest = max(len(prompt) for prompt in prompts)
        if self.context is not None and longest + max_new_tokens > self.context:
            raise ValueError(
                f"a prompt of {longest} tokens and an answer of {max_new_tokens} exceed the model's {self.context}"
            )
        seeds = seeds.to(self.device)
        steps = torch.as_tensor(steps, dtype=torch.int64, device=self.device).expand(rows)
        tokens = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=self.device)
        answers = LMAnswers(tokens, torch.zeros_like(tokens, dtype=torch.float32), tokens.bool())
        at_once = max(1, self.rows_at_once // num_samples)
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            place = slice(first * num_samples, (first + len(part)) * num_samples)
            self._answer_part(part, seeds[place], steps[place], num_samples, temperature, answers, place)
        if not torch.isfinite(answers.logprobs).all():
            row = int((~torch.isfinite(answers.logprobs)).any(dim=1).nonzero()[0])
            raise ValueError(
                f"the model returned NaN or infinite logits (first in row {row}): are its weights finite?"
            )
        width = int(answers.mask.sum(1).max())
        return LMAnswers(answers.tokens[:, :width], answers.logprobs[:, :width], answers.mask[:, :width])

    def _answer_part(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Tensor,
        steps: Tensor,
        num_samples: int,
        temperature: float,
        answers: LMAnswers,
        place: slice,
    ) -> None:
        """Fill the rows ``place`` of ``answers``."""
        tokens, logprobs, mask = answers.tokens[place], answers.logprobs[place], answers.mask[place]
        ids, seen = self._left_padded(prompts)
        logits, cache = self._forward(ids, seen, keep=1, use_cache=True)
        if num_samples > 1:
            cache.batch_repeat_interleave(num_samples)
            logits, seen = (x.repeat_interleave(num_samples, dim=0) for x in (logits, seen))
        ends = torch.tensor(self.end_ids, device=self.device)
        going = torch.arange(len(seeds), device=self.device)  # which rows the network still holds
        for at in range(tokens.shape[1]):
            draws = uniforms(seeds[going], steps[going], at)
            last, likely = sample(logits[:, -1], draws, temperature=temperature)
            tokens[going, at], logprobs[going, at], mask[going, at] = last, likely, True
            unended = ~torch.isin(last, ends)
            if at + 1 == tokens.shape[1] or not unended.any():
                return
            if not unended.all():
                keep = unended.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                going, last, seen = going[keep], last[keep], seen[keep]
            seen = F.pad(seen, (0, 1), value=True)
            logits, cache = self._forward(last[:, None], seen, keep=1, use_cache=True, cache=cache)

    def logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: Tensor,
        mask: Tensor,
        *,
        temperature: float = 1.0,
        with_entropies: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of given answers, with gradients if enabled.

        Args:
            prompts: B of them, in tokens.
            tokens: ``(R, N)`` int64; row r answers prompt r // (R / B).
            mask: ``(R, N)`` bool, True on an answer's tokens, which come first in the row.
            temperature: Positive; that of the distribution that is meant.
            with_entropies: Whether to return the distributions' entropies, too.

        Returns:
            Log-probabilities and entropies (or None), ``(R, N)`` float32, 0 where the mask is False.

        Raises:
            ValueError: Shapes or settings that do not fit each other.
        """
        if tokens.shape != mask.shape or not prompts or len(tokens) % len(prompts) or not temperature > 0:
            raise ValueError(
                f"tokens {tuple(tokens.shape)}, mask {tuple(mask.shape)}, {len(prompts)} prompts, temperature "
                f"{temperature}; shapes must agree, R be a multiple of the prompts, and temperature be positive"
            )
        group = len(tokens) // len(prompts)
        at_once = max(1, self.rows_at_once // group)
        logprobs, entropies = [], []
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            place = slice(first * group, (first + len(part)) * group)
            every, chosen, said = self._distributions(
                part, tokens[place], mask[place].bool(), group, temperature
            )
            pad = (0, tokens.shape[1] - said.shape[1])
            logprobs.append(F.pad(chosen.where(said, 0.0), pad))
            if with_entropies:
                entropies.append(F.pad(-(every.exp() * every).sum(-1).where(said, 0.0), pad))
        return torch.cat(logprobs), torch.cat(entropies) if with_entropies else None

    def _distributions(
        self, prompts: Sequence[Sequence[int]], tokens: Tensor, mask: Tensor, group: int, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of every token, those of the given ones, and their mask, as wide as the longest row."""
        width = max(1, int(mask.sum(1).max()))
        tokens, mask = tokens[:, :width].where(mask[:, :width], self._pad), mask[:, :width]
        ids, seen = (x.repeat_interleave(group, dim=0) for x in self._left_padded(prompts))
        with self._checkpointing():
            logits, _ = self._forward(
                torch.cat([ids, tokens], 1), torch.cat([seen, mask], 1), keep=width + 1, use_cache=False
            )
        every = torch.log_softmax(logits[:, -width - 1 : -1].float() / temperature, dim=-1)
        return every, every.gather(2, tokens[:, :, None]).squeeze(2), mask

    def _forward(
        self, ids: Tensor, seen: Tensor, *, keep: int, use_cache: bool, cache: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits of the last ``keep`` positions (or of all, where a model knows no such wish) and the cache."""
        positions = (seen.long().cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        net = self.net.get_base_model() if hasattr(self.net, "get_base_model") else self.net
        extra = {"logits_to_keep": keep} if "logits_to_keep" in _arguments(type(net).forward) else {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            found = self.net(
                input_ids=ids,
                attention_mask=seen.long(),
                position_ids=positions,
                past_key_values=cache,
                use_cache=use_cache,
                **extra,
            )
        return found.logits, found.past_key_values if use_cache else None

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        width = max(len(prompt) for prompt in prompts)
        rows = [[self._pad] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        seen = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
        return torch.tensor(rows, device=self.device), torch.tensor(seen, device=self.device)

    @property
    def _pad(self) -> int:
        return self.end_ids[0]  # any token does: it is never looked at

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Training mode where activations are computed again: transformers does so in no other mode."""
        if not self.gradient_checkpointing or self.net.training or not torch.is_grad_enabled():
            yield
            return
        drops = [m.p for m in self.net.modules() if isinstance(m, nn.Dropout)]
        rate = max([*drops, float(getattr(self.net.config, "attention_dropout", 0.0) or 0.0)])
        if rate:
            raise ValueError(
                f"the model has a dropout of {rate}, which gradient checkpointing would switch on; set it to 0"
            )
        self.net.train()
        try:
            yield
        finally:
            self.net.eval()


@lru_cache
def _arguments(forward: Any) -> Any:
    return inspect.signature(forward).parameters


def _end_ids(net: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that the model or its tokenizer names as an end."""
    named = [getattr(getattr(net, "generation_config", None), "eos_token_id", None)]
    named += [getattr(net.config, "eos_token_id", None), tokenizer.eos_token_id]
    found: set[int] = set()
    for ids in named:
        if ids is not None:
            found.update(ids if isinstance(ids, list | tuple) else [ids])
    if not found:
        raise ValueError("neither the model nor its tokenizer names an end-of-text token; set eos_token")
    return tuple(sorted(found))
