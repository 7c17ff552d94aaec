"""Tiny random language models of the transformers library, with a tokenizer that is made on the spot."""

from __future__ import annotations

from functools import lru_cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.worldmodels.language.toy_states import pot, state, water
from worldmodels.language.answers import write_answer
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.game_state import GameState
from worldmodels.language.transitions import GameTransition

COLD = state(pot(), water())
FULL = state(pot(contains=("water (ID: 2)",)), water())
HOT = state(pot(temperature=90, is_on=True), water(), score=1)
WON = state(pot(temperature=100, is_on=True), water(), score=2, over=True, won=True)
CHAT_TEMPLATE = (
    "{% for message in messages %}<user>{{ message['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def toy_turns() -> list[GameTransition]:
    """Three turns that change something, two that do not."""
    turns = [
        (COLD, "heat the pot", HOT),
        (COLD, "fill it", FULL),
        (HOT, "heat the pot", WON),
        (COLD, "wait", COLD),
        (FULL, "look", FULL),
    ]
    return [
        GameTransition(id=f"kettle/0/{number}", game="kettle", before=before, action=action, after=after)
        for number, (before, action, after) in enumerate(turns)
    ]


def toy_prompt(before: GameState, action: str, game: str = "") -> str:
    """Short, and of different lengths."""
    things = ", ".join(
        f"{one['name']} {one['properties']}{one['contains']}" for one in before.objects.values()
    )
    return f"{things}; points {before.score}. You {action}. "


@lru_cache(maxsize=2)
def toy_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the toy turns: whatever is written can be read back."""
    texts = [f"{toy_prompt(t.before, t.action)}{write_answer(t.before, t.after)}" for t in toy_turns()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=384,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<end>"],
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_net(
    kind: str = "qwen2",
    *,
    hidden_size: int = 32,
    seed: int = 0,
    layers: int = 2,
    scale: float = 0.3,
    positions: int = 512,
):
    """Random weights; ``scale`` large enough that distributions are not flat."""
    sizes = {
        "vocab_size": len(toy_tokenizer()),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "eos_token_id": toy_tokenizer().eos_token_id,
        "bos_token_id": None,
        "initializer_range": scale,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "llama":
            return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
        return Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)).eval()


def tiny_lm(
    kind: str = "qwen2", *, chat: bool = False, seed: int = 0, hidden_size: int = 32, **settings
) -> CausalLM:
    return CausalLM(tiny_net(kind, seed=seed, hidden_size=hidden_size), toy_tokenizer(chat), **settings)
