"""The recipes of the drawer's world models: ``drawer-base`` by maximum likelihood, ``drawer-rlvr`` and
``drawer-rlvr-no-repeats`` by GRPO on decoded frames, ``drawer-more-mle`` as their control.

The transformer is that of the released multi-step model with smaller numbers; action bins lie between the data's
own extremes (RT-1's ranges are so wide that a bin in y is 11 cm).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from training.fit import FitConfig
from training.grpo_config import GRPOConfig
from training.jobs import Job, Recipe
from training.multi_step import MultiStepRecipe
from training.multi_step_recipes import MultiStepSettings, train_base, train_more, train_rlvr
from training.multi_step_rlvr import MultiStepRLVRRecipe
from training.rewards.frames import FrameRewardConfig
from worldmodels.nets.llama import LlamaConfig

DRAWER = MultiStepSettings(
    title="Drawer world model",
    tokenizer="drawer-tokenizer",
    base="drawer-base",
    transformer=LlamaConfig(
        vocab_size=1, hidden_size=192, intermediate_size=512, num_hidden_layers=5, num_attention_heads=3
    ),
    bins=None,
    protocol={
        "environment": "RT1-Drawer",
        "image_size": [64, 80],
        "steps_per_second": 3,
        "action": "RT-1's 13 numbers in alphabetical order of their parts",
        "context": "first frame of the episode",
    },
    mle=MultiStepRecipe(
        fit=FitConfig(
            steps=4000,
            learning_rate=2e-3,
            decay_from=0.3,
            warmup_steps=200,
            evaluate_every=250,
            checkpoint_every=250,
        ),
        batch=16,
        windows_per_episode=4,
        autocast=True,
    ),
    shared_rows=True,
    reader="drawer-reader",
)
MORE_MLE = MultiStepRecipe(  # about as many seconds as RLVR
    fit=FitConfig(steps=3000, learning_rate=3e-4, decay_from=0.2, evaluate_every=500, checkpoint_every=250),
    batch=16,
    windows_per_episode=4,
    autocast=True,
)
RLVR = MultiStepRLVRRecipe(
    grpo=GRPOConfig(
        group_size=16,
        prompts_per_step=16,
        minibatches=2,
        microbatch_prompts=2,
        learning_rate=7e-5,
        credit_discount=0.5,  # with rewards of whole futures the gradients of two batches agree less
        steps=60,
        eval_every=20,
        checkpoint_every=5,
    ),
    network="alex",
    decode_rows=32,
    decode_autocast=True,
)
NO_REPEATS = dataclasses.replace(RLVR, reward=FrameRewardConfig(repetition=0.05))


def drawer_base(job: Job) -> Path:
    """Autoregressive multi-step world model by maximum likelihood."""
    return train_base(job, DRAWER)


def drawer_more_mle(job: Job) -> Path:
    """Control of RLVR: the base model, trained further by maximum likelihood."""
    return train_more(job, DRAWER, MORE_MLE)


def drawer_rlvr(job: Job) -> Path:
    """GRPO on 7 decoded frames: -(L1 + LPIPS)."""
    return train_rlvr(job, DRAWER, RLVR, "RLVR")


def drawer_rlvr_no_repeats(job: Job) -> Path:
    """The same with a penalty on repeated frames."""
    return train_rlvr(job, DRAWER, NO_REPEATS, "RLVR, repetition penalised")


DRAWER_WORLD_RECIPES: dict[str, Recipe] = {
    "drawer-base": Recipe("multi-step drawer world model, maximum likelihood", drawer_base),
    "drawer-rlvr": Recipe("the drawer base model post-trained by GRPO on decoded frames", drawer_rlvr),
    "drawer-rlvr-no-repeats": Recipe("the same with a penalty on repeated frames", drawer_rlvr_no_repeats),
    "drawer-more-mle": Recipe("control of drawer-rlvr: more maximum likelihood", drawer_more_mle),
}
