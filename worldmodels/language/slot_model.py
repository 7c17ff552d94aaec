"""A slot transformer that speaks: questions about game states to answers in tokens, sampled or scored.

Special: a question is looked at once however many answers are drawn; answers end by themselves, and rows that have
ended cost no more; draws are functions of (seed, step, token index) only. One method computes likelihoods for
training, the other for sampling, and both give the same numbers.

Absent: game states (``slot_world``) and losses (training).

Shapes: B questions, G answers to each, R = B * G rows, N tokens of the longest answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.language.compact_questions import NUM_FEATURES, NUM_RELATIONS, Question, Schema
from worldmodels.language.words import MAX_OBJECTS, Sign, Vocabulary
from worldmodels.nets.slot_transformer import QuestionBatch, Seen, SlotTransformer, SlotTransformerConfig
from worldmodels.sampling import sample, uniforms


@dataclass(frozen=True)
class SlotAnswers:
    """Answers to questions.

    Attributes:
        tokens: ``(R, N)`` int64, :attr:`Sign.PAD` after the end.
        logprobs: ``(R, N)`` float32, 0 after the end.
        mask: ``(R, N)`` bool, True up to and with the end; all True where an answer never ended.
    """

    tokens: Tensor
    logprobs: Tensor
    mask: Tensor


class SlotModel(nn.Module):
    """Network, vocabulary and schema.

    Args:
        config: Sizes; must fit the vocabulary.
        vocabulary: Words of answers.
        schema: Which properties questions show.

    Raises:
        ValueError: Sizes that do not fit.
    """

    def __init__(self, config: SlotTransformerConfig, vocabulary: Vocabulary, schema: Schema) -> None:
        super().__init__()
        wanted = (vocabulary.size, NUM_FEATURES, NUM_RELATIONS, MAX_OBJECTS)
        found = (config.vocab_size, config.num_features, config.num_relations, config.max_objects)
        if wanted != found:
            raise ValueError(
                f"the network is made for {found} words, facts, relations and objects; the language has {wanted}"
            )
        self.net = SlotTransformer(config)
        self.vocabulary, self.schema = vocabulary, schema

    @property
    def max_answer(self) -> int:
        """Tokens of an answer, at most."""
        return self.net.config.max_answer

    def collate(self, questions: Sequence[Question]) -> QuestionBatch:
        """Questions as tensors on the network's device."""
        width = max(len(question) for question in questions)
        device = self.net.words.weight.device
        facts, starts, positions, relations = [], [], [], []
        offset = 0
        for row, question in enumerate(questions):
            facts.append(question.facts)
            starts.append(question.starts[:-1] + offset)
            offset += int(question.starts[-1])
            positions.append(np.arange(len(question)) + row * width)
            relations.append(question.relations + np.array([row * width, 0, row * width]))
        lengths = np.array([[len(question)] for question in questions])

        def tensor(parts: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

        return QuestionBatch(
            facts=tensor(facts),
            starts=tensor(starts),
            positions=tensor(positions),
            relations=tensor(relations),
            objects=torch.tensor([question.objects for question in questions], device=device),
            valid=torch.from_numpy(np.arange(width) < lengths).to(device),
        )

    @torch.no_grad()
    def answer(
        self,
        questions: Sequence[Question],
        *,
        seeds: Tensor,
        steps: Tensor | int = 0,
        num_samples: int = 1,
        temperature: float = 1.0,
    ) -> SlotAnswers:
        """Draw ``num_samples`` answers to each question.

        Args:
            questions: B of them.
            seeds: ``(R,)`` int64, one for each answer; row r answers question r // G.
            steps: ``(R,)`` int64 or one for all: the other counter of the draws.
            num_samples: G.
            temperature: 0 takes the likeliest tokens.
        """
        rows = len(questions) * num_samples
        if seeds.shape != (rows,):
            raise ValueError(f"{tuple(seeds.shape)} seeds for {rows} answers; give one each")
        device = self.net.words.weight.device
        of = torch.arange(len(questions), device=device).repeat_interleave(num_samples)
        seen = self.net.encode(self.collate(questions)).take(of)
        draws = uniforms(
            seeds.to(device)[:, None],
            torch.as_tensor(steps, device=device).reshape(-1, 1),
            torch.arange(self.max_answer, device=device),
        )
        tokens = torch.zeros(rows, self.max_answer, dtype=torch.int64, device=device)
        logprobs = torch.zeros(rows, self.max_answer, device=device)
        mask = torch.zeros(rows, self.max_answer, dtype=torch.bool, device=device)
        going = torch.arange(rows, device=device)  # which rows the decoder still holds
        past = self.net.new_past(rows)
        last = torch.zeros(rows, dtype=torch.int64, device=device)
        at = 0
        for at in range(self.max_answer):
            logits = self.net.next_logits(seen, last, past)
            last, likely = sample(logits, draws[going, at], temperature=temperature)
            tokens[going, at], logprobs[going, at], mask[going, at] = last, likely, True
            unended = last != Sign.END
            if not unended.any():
                break
            if not unended.all():
                keep = unended.nonzero().squeeze(1)
                going, last, seen = going[keep], last[keep], seen.take(keep)
                for layer in past:
                    layer.keys, layer.values = layer.keys[keep], layer.values[keep]
        return SlotAnswers(tokens[:, : at + 1], logprobs[:, : at + 1], mask[:, : at + 1])

    def nll(self, questions: Sequence[Question], answers: Tensor, *, num_samples: int = 1) -> Tensor:
        """Negative log-likelihoods ``(R, N)`` of the tokens of answers; 0 on padding, with gradients if enabled."""
        seen = self.net.encode(self.collate(questions))
        if num_samples > 1:
            rows = torch.arange(len(questions), device=answers.device).repeat_interleave(num_samples)
            seen = seen.take(rows)
        return self._losses(seen, answers)

    def _losses(self, seen: Seen, answers: Tensor) -> Tensor:
        logits = self.net(seen, answers).float()
        losses = F.cross_entropy(
            logits.flatten(0, 1), answers.flatten(), ignore_index=Sign.PAD, reduction="none"
        )
        return losses.view(answers.shape)


def padded(answers: Sequence[Sequence[int]]) -> Tensor:
    """Answers of different lengths as one tensor ``(B, N)``, padded with :attr:`Sign.PAD`."""
    width = max(len(answer) for answer in answers)
    return torch.tensor([[*answer, *[int(Sign.PAD)] * (width - len(answer))] for answer in answers])
