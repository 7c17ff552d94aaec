"""The published single-step RT-1 recipes at their published numbers, for large graphics processors: tokenizer, base
model, post-training.

Nobody has run them to their end here. Data as in ``paper_recipes``; 4 steps of an episode are enough.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.fit import FitConfig
from training.frame_data import FrameData
from training.frame_tokenizers import FrameTokenizerRecipe, train_frame_tokenizer
from training.grpo_config import GRPOConfig
from training.grpo_task import train_task
from training.jobs import Job, Recipe, fitted, model_card, start_run
from training.multi_step import MultiStepRecipe
from training.multi_step_recipes import splits
from training.multi_step_rlvr import MultiStepRLVRRecipe
from training.paper_recipes import RT1
from training.provenance import weights_sha256
from training.rewards.image_metrics import psnr
from training.run import Run
from training.single_step import (
    SingleStepTask,
    SingleStepTokens,
    single_step_gates,
    tokenise_single,
    train_single_step,
)
from worldmodels.checkpoints import (
    load,
    load_tokenizer,
    save,
    tokenizer_config,
    tokenizer_sha256,
    world_config,
)
from worldmodels.episodes import EpisodeStore
from worldmodels.nets.llama import Llama
from worldmodels.nets.perceptual import Perceptual
from worldmodels.released import FRAME_TOKENIZER, IMAGE_SIZE, RT1_BINS
from worldmodels.video.frame_tokenizer import FrameTokenizer
from worldmodels.video.layouts import SingleStepLayout
from worldmodels.video.single_step_world import SingleStepWorldModel

LAYOUT = SingleStepLayout()
TRANSFORMER = dataclasses.replace(
    RT1.transformer, vocab_size=LAYOUT.vocab_size, max_position_embeddings=LAYOUT.response.stop
)
PROTOCOL = {"environment": "RT1", "image_size": list(IMAGE_SIZE), "steps_per_second": 3}
# 5e5 steps, batch 16, AdamW 5e-4, L1 1, perceptual 1, adversarial 0.1 from step 10,000 on.
TOKENIZER = FrameTokenizerRecipe()
# 9.9e5 steps, batch 32, 5e-5.
BASE = MultiStepRecipe(
    fit=FitConfig(steps=990_000, learning_rate=5e-5, decay_from=1.0, warmup_steps=1000, evaluate_every=5000),
    batch=32,
    autocast=True,
)
# Batch 128 in mini-batches of 32, G = 16, 5e-5, KL 1e-3; reward -(L1 + LPIPS (VGG)).
RLVR = MultiStepRLVRRecipe(
    grpo=GRPOConfig(
        group_size=16,
        prompts_per_step=128,
        minibatches=4,
        microbatch_prompts=1,
        learning_rate=5e-5,
        steps=200,
        eval_every=20,
    ),
    network="vgg",
    decode_rows=32,
)


def _rt1_splits(job: Job) -> tuple[EpisodeStore, FrameData, FrameData]:
    """As ``splits``, of what all single-step recipes need: frames of the published size, a history and one more."""
    store, train, validation = splits(job)
    train.check_image_size(IMAGE_SIZE, "the published model")
    train.check_frames(LAYOUT.history + 1, "a history with its next frame")
    return store, train, validation


def paper_frame_tokenizer(job: Job) -> Path:
    """The per-frame tokenizer at full size."""
    store, train, validation = _rt1_splits(job)
    losses = dataclasses.replace(TOKENIZER.losses, fit=fitted(TOKENIZER.losses.fit, job.steps))
    recipe = dataclasses.replace(TOKENIZER, losses=losses)
    run = start_run(job, recipe, store)

    def drawn(generator: np.random.Generator, count: int) -> Tensor:
        return _frames(train, generator, count)

    def evaluate(model: FrameTokenizer) -> dict[str, float]:
        frames = _frames(validation, np.random.default_rng(0), 16)
        return {"psnr": float(psnr(model.decode(model.encode(frames)).clamp(0, 1), frames).mean())}

    perceptual = Perceptual("vgg").to(torch.get_default_device())
    tokenizer = train_frame_tokenizer(
        run, drawn, recipe, seed=job.seed, perceptual=perceptual, evaluate=evaluate
    )
    facts = evaluate(tokenizer)
    config = {**tokenizer_config(tokenizer), "metrics": facts}
    return save(
        job.folder / "model", tokenizer, config, card=model_card("RT-1 per-frame tokenizer", run, facts)
    )


def _frames(data: FrameData, generator: np.random.Generator, count: int) -> Tensor:
    episodes = generator.integers(0, len(data), count)
    return data.images(episodes, generator.integers(0, data.steps + 1, count))


def paper_single_base(job: Job) -> Path:
    """The single-step base model at full size."""
    tokenizer = load_tokenizer(job.tokenizer or FRAME_TOKENIZER)
    if not isinstance(tokenizer, FrameTokenizer):
        raise ValueError(f"--tokenizer is a {type(tokenizer).__name__}; this recipe needs a per-frame one")
    store, train, validation = _rt1_splits(job)
    recipe = dataclasses.replace(BASE, fit=fitted(BASE.fit, job.steps))
    identity = {"transformer": TRANSFORMER, "mle": recipe, "tokenizer": tokenizer_sha256(tokenizer)}
    run = start_run(job, identity, store)
    tokens = [tokenise_single(tokenizer, RT1_BINS, part) for part in (train, validation)]
    llama = Llama(TRANSFORMER, seed=job.seed)
    train_single_step(run, llama, LAYOUT, tokens[0], tokens[1], recipe, seed=job.seed)
    model = SingleStepWorldModel(tokenizer, llama, LAYOUT, RT1_BINS, image_size=IMAGE_SIZE, protocol=PROTOCOL)
    return _saved(job, run, model, tokens[1], "RT-1 single-step world model, base")


def paper_single_rlvr(job: Job) -> Path:
    """Its post-training; a released base model needs ``--tokenizer`` beside it."""
    model: Any = load(job.base or "runs/paper-single-base/model", tokenizer=job.tokenizer)
    if not isinstance(model, SingleStepWorldModel):
        raise ValueError(
            f"--base is a {type(model).__name__}; this recipe post-trains a SingleStepWorldModel"
        )
    store, train, validation = _rt1_splits(job)
    recipe = RLVR
    if job.steps is not None:
        recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=job.steps))
    run = start_run(job, {"rlvr": recipe, "base": weights_sha256(model.llama)}, store)
    perceptual = Perceptual(recipe.network).to(torch.get_default_device())
    tokens = [tokenise_single(model.tokenizer, model.action_bins, part) for part in (train, validation)]
    tasks = [
        SingleStepTask(model.tokenizer, model.layout, frames, ids, recipe, perceptual)
        for frames, ids in zip((train, validation), tokens, strict=True)
    ]
    train_task(run, model.llama, tasks[0], tasks[1], recipe.grpo, seed=job.seed)
    return _saved(job, run, model, tokens[1], "RT-1 single-step world model, RLVR")


def _saved(job: Job, run: Run, model: SingleStepWorldModel, validation: SingleStepTokens, title: str) -> Path:
    """The model, with its tokenizer inside its folder."""
    facts = single_step_gates(model.llama.eval(), model.layout, validation)
    config = world_config(model, tokenizer="tokenizer", protocol=model.protocol)
    folder = save(
        job.folder / "model", model.llama, {**config, "metrics": facts}, card=model_card(title, run, facts)
    )
    save(
        folder / "tokenizer",
        model.tokenizer,
        tokenizer_config(model.tokenizer),
        card="See the world model.\n",
    )
    return folder


PAPER_SINGLE_RECIPES: dict[str, Recipe] = {
    "paper-frame-tokenizer": Recipe(
        "RT-1 per-frame tokenizer, published numbers (GPU)", paper_frame_tokenizer
    ),
    "paper-single-base": Recipe("RT-1 single-step world model, published numbers (GPU)", paper_single_base),
    "paper-single-rlvr": Recipe("its post-training, published numbers (GPU)", paper_single_rlvr),
}
