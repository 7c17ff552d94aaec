"""The published RT-1 recipes at their published numbers, for a folder of RT-1 episodes and large graphics processors.

Special: the same lines as the small recipes, with the paper's hyper-parameters (its appendix on video models).
Nobody has run them to their end here.

Data: ``rlvr-world convert path/to/rt1 --folder data/paper --length 32 --image-size 256 320``. A piece of 32 steps has
33 frames: the tokenizer's segments have 32, and shorter pieces are refused. With a greater length contexts are drawn
from more frames, and more of the short recordings are left out. A released base model is post-trained with
``--base ID --tokenizer thuml/rt1-compressive-tokenizer``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from training.compressive_tokenizers import (
    CompressiveTokenizerRecipe,
    check_data,
    reconstruction_errors,
    train_compressive_tokenizer,
)
from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.jobs import Job, Recipe, fitted, model_card, start_run
from training.multi_step import MultiStepRecipe
from training.multi_step_recipes import MultiStepSettings, splits, train_base, train_rlvr
from training.multi_step_rlvr import MultiStepRLVRRecipe
from training.rewards.frames import FrameRewardConfig
from worldmodels.checkpoints import save, tokenizer_config
from worldmodels.nets.llama import LlamaConfig
from worldmodels.nets.perceptual import Perceptual
from worldmodels.released import COMPRESSIVE_TOKENIZER, IMAGE_SIZE, RT1_BINS

# 6e5 steps, batch 16, segments of 32 frames of which 7 are drawn, AdamW 5e-4, discriminator from step 10,000 on, and a
# tenth of the weights of cross attention dropped.
TOKENIZER = CompressiveTokenizerRecipe()
RT1 = MultiStepSettings(
    title="RT-1 multi-step world model",
    tokenizer=COMPRESSIVE_TOKENIZER,
    base="runs/paper-base/model",
    # 12 layers, 768 wide, feed-forward 3,072, 12 heads: 127,101,696 parameters with this vocabulary.
    transformer=LlamaConfig(
        vocab_size=1, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    ),
    bins=RT1_BINS,
    protocol={"environment": "RT1", "image_size": list(IMAGE_SIZE), "steps_per_second": 3},
    # 4.5e5 steps, batch 32, 5e-5.
    mle=MultiStepRecipe(
        fit=FitConfig(
            steps=450_000, learning_rate=5e-5, decay_from=1.0, warmup_steps=1000, evaluate_every=5000
        ),
        batch=32,
        autocast=True,
    ),
)
# Batch 128 in mini-batches of 32, G = 16, 5e-5, KL 1e-3; the published command rewards -(L1 + LPIPS (VGG)).
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
NO_REPEATS = dataclasses.replace(RLVR, reward=FrameRewardConfig(repetition=1.0))


def paper_tokenizer(job: Job) -> Path:
    """The compressive tokenizer at full size."""
    store, train, validation = splits(job)
    check_data(train, TOKENIZER)
    losses = dataclasses.replace(TOKENIZER.losses, fit=fitted(TOKENIZER.losses.fit, job.steps))
    recipe = dataclasses.replace(TOKENIZER, losses=losses)
    run = start_run(job, recipe, store)
    perceptual = Perceptual("vgg").to(torch.get_default_device())
    tokenizer = train_compressive_tokenizer(
        run, train, validation, recipe, seed=job.seed, perceptual=perceptual
    )
    facts = reconstruction_errors(tokenizer, validation, perceptual=perceptual, episodes=100)
    config = {**tokenizer_config(tokenizer), "metrics": facts}
    card = model_card("RT-1 compressive tokenizer", run, facts)
    return save(job.folder / "model", tokenizer, config, card=card)


def paper_base(job: Job) -> Path:
    """The multi-step base model at full size."""
    return train_base(job, RT1)


def paper_rlvr(job: Job) -> Path:
    """Its post-training."""
    return train_rlvr(job, RT1, RLVR, "RLVR")


def paper_rlvr_no_repeats(job: Job) -> Path:
    """Its post-training with the published repetition penalty."""
    return train_rlvr(job, RT1, NO_REPEATS, "RLVR, repetition penalised")


PAPER_RECIPES: dict[str, Recipe] = {
    "paper-tokenizer": Recipe("RT-1 compressive tokenizer, published numbers (GPU)", paper_tokenizer),
    "paper-base": Recipe("RT-1 multi-step world model, published numbers (GPU)", paper_base),
    "paper-rlvr": Recipe("its post-training, published numbers (GPU)", paper_rlvr),
    "paper-rlvr-no-repeats": Recipe("the same with the published repetition penalty", paper_rlvr_no_repeats),
}
