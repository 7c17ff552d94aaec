"""The published text-game recipes at their published numbers, for 1.5 and 7 billion parameters and a large GPU.

Special: adapters are trained in both stages, so that one GPU suffices; the published scripts name them for the first.
Each run ends with ``adapter`` (peft's layout) and ``model`` (merged, an ordinary folder for transformers and vLLM).
Nobody has run them to their end here.

Data: a folder with transitions (``train.jsonl.gz``), ``prompt.json`` if the published prompt is wanted
(``worldmodels.language.prompts.PromptTemplate.save``) and, for imitation, ``accepted.jsonl``
(``training.rejection``). A test file is never opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.jobs import Job, Recipe, model_card
from training.lora import LoRASettings, add_lora, merge_lora, save_adapter
from training.provenance import weights_sha256
from training.rejection import ACCEPTED
from training.run import Run
from training.text_engines import best_engine
from training.text_lm_rlvr import TextRLVRRecipe, train_text_rlvr, validation_questions
from training.text_questions import balanced, held_out, read_questions
from training.text_sft import SFTRecipe, SFTRows, read_examples, train_sft
from worldmodels.language.causal_lm import CausalLM
from worldmodels.language.causal_lm_files import load_causal_lm, save_causal_lm

SIZES = ("1.5b", "7b")
BASES = {size: f"deepseek-ai/DeepSeek-R1-Distill-Qwen-{size.upper()}" for size in SIZES}
LORA = LoRASettings(rank=32, alpha=16)
VALIDATION_GAMES = ("boil-water", "plant-tree", "scale-weigh")  # our choice; the published runs hold none out
SFT_EPOCHS, RLVR_EPOCHS = 10, 15
# Batch 16, 1e-5, prompt and answer of at most 11,384 tokens; about 4,200 accepted answers.
SFT = SFTRecipe(
    fit=FitConfig(
        steps=1,
        learning_rate=1e-5,
        weight_decay=0.01,
        decay_from=0.0,
        evaluate_every=200,
        checkpoint_every=100,
    ),
    batch=16,
    max_length=11_384,
)
# Batch 128 in mini-batches of 64, G = 5, 1e-6, KL 1e-3, entropy 1e-3, prompts of 7,192 and answers of 4,096 tokens.
RLVR = TextRLVRRecipe(
    grpo=GRPOConfig(
        group_size=5,
        prompts_per_step=128,
        minibatches=2,
        microbatch_prompts=1,
        learning_rate=1e-6,
        kl_coefficient=1e-3,
        entropy_coefficient=1e-3,
        steps=1,
        eval_every=20,
        checkpoint_every=10,
    ),
    reward="official_binary",
    unchanged_per_100=40,
    validation_games=VALIDATION_GAMES,
    rows_per_pass=1,
)
TASK_SPECIFIC = dataclasses.replace(RLVR, reward="official_task_specific", unchanged_per_100=5)
_ORIGIN = (
    "Made of another model by this project's own recipe; the licences of that model and of the data apply."
)


def text_sft(job: Job, base: str, recipe: SFTRecipe = SFT) -> Path:
    """Imitation of accepted answers: thinking, then the next state.

    It ends with the weights that are best on what is held out. The paper names 10 epochs, which we take; its script
    sets 15.
    """
    path = job.data / ACCEPTED
    examples = read_examples(path)
    kept = [held_out(one.id, one.game, VALIDATION_GAMES) for one in examples]
    lm = _load(job.base or base)
    rows = [
        SFTRows.of(
            lm,
            [one for one, out in zip(examples, kept, strict=True) if out is wanted],
            max_length=recipe.max_length,
        )
        for wanted in (False, True)
        if wanted in kept
    ]
    if len(rows) != 2:
        raise ValueError(f"{path} has {len(examples)} examples; too few to train on some and hold out others")
    steps = job.steps or max(1, SFT_EPOCHS * len(rows[0]) // recipe.batch)
    fit = dataclasses.replace(recipe.fit, steps=steps, warmup_steps=max(1, steps // 10))
    recipe = dataclasses.replace(recipe, fit=fit)
    data_hash = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    run = _start(job, lm, {"sft": recipe}, data_hash)
    facts = train_sft(run, lm, rows[0], rows[1], recipe, seed=job.seed)
    return _save(job, run, lm, "Text games, imitation", facts)


def text_rlvr(job: Job, base: str, recipe: TextRLVRRecipe = RLVR) -> Path:
    """GRPO on next states, ending with the weights that are best on held-out games and turns."""
    questions, data_hash = read_questions(job.data, "train")
    games = recipe.validation_games
    train = [one for one in questions if not held_out(one.id, one.game, games)]
    others = [one for one in questions if held_out(one.id, one.game, games)]
    prompts = len(balanced([one.changed for one in train], recipe.unchanged_per_100))
    steps = job.steps or max(1, RLVR_EPOCHS * prompts // recipe.grpo.prompts_per_step)
    recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=steps))
    name = job.base or base
    lm = _load(name)
    run = _start(job, lm, {"rlvr": recipe}, data_hash)
    engine = best_engine(lm, name)
    if run.manifest.setdefault("notes", {}).get("engine", engine.name) != engine.name:
        raise ValueError(
            f"{job.folder} was begun with another engine than {engine.name!r}; resume it where that is"
        )
    run.note(engine=engine.name)
    validation = validation_questions(others, games, recipe.validation_rows)
    facts = train_text_rlvr(run, lm, train, validation, recipe, engine=engine, seed=job.seed)
    return _save(job, run, lm, "Text games, RLVR", facts)


def _load(name: str) -> CausalLM:
    """The weights in bfloat16 on a GPU (adapters are float32 all the same), else in float32."""
    on_gpu = torch.get_default_device().type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    return load_causal_lm(name, dtype=dtype, gradient_checkpointing=True)


def _start(job: Job, lm: CausalLM, recipe: Mapping[str, Any], data_hash: str) -> Run:
    """The run folder, and adapters around the model."""
    config = {**recipe, "lora": LORA, "base": weights_sha256(lm.net)}
    run = Run(job.folder, config, job.seed, data_hash=data_hash, resume=job.resume)
    add_lora(lm, LORA, seed=job.seed)
    return run


def _save(job: Job, run: Run, lm: CausalLM, title: str, facts: Mapping[str, float]) -> Path:
    card = model_card(title, run, facts, origin=_ORIGIN)
    save_adapter(job.folder / "adapter", lm)
    merge_lora(lm)
    return save_causal_lm(job.folder / "model", lm, card=card)


def _sft(size: str) -> Recipe:
    about = f"text games: {size.upper()} model imitates accepted answers, published numbers (GPU)"
    return Recipe(about, lambda job: text_sft(job, BASES[size]))


def _more_sft(size: str) -> Recipe:
    about = "control of its post-training: more imitation of the same accepted answers (GPU)"
    return Recipe(about, lambda job: text_sft(job, f"runs/paper-textgame-sft-{size}/model"))


def _rlvr(size: str, recipe: TextRLVRRecipe, about: str) -> Recipe:
    base = f"runs/paper-textgame-sft-{size}/model"
    return Recipe(f"its post-training on {about} (GPU)", lambda job: text_rlvr(job, base, recipe))


PAPER_TEXT_RECIPES: dict[str, Recipe] = {
    "paper-textgame-sft-1.5b": _sft("1.5b"),
    "paper-textgame-rlvr-1.5b": _rlvr("1.5b", RLVR, "right next states"),
    "paper-textgame-rlvr-task-specific-1.5b": _rlvr("1.5b", TASK_SPECIFIC, "the task-specific reward"),
    "paper-textgame-more-sft-1.5b": _more_sft("1.5b"),
    "paper-textgame-sft-7b": _sft("7b"),
    "paper-textgame-rlvr-7b": _rlvr("7b", RLVR, "right next states"),
    "paper-textgame-more-sft-7b": _more_sft("7b"),
}
