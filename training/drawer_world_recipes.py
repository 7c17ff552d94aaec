"""The recipes of the drawer's world models: ``drawer-base`` by maximum likelihood, ``drawer-rlvr`` and
``drawer-rlvr-no-repeats`` by GRPO on decoded frames, ``drawer-more-mle`` as their control.

The transformer is that of the released multi-step model with smaller numbers, action bins between the data's own
extremes (RT-1's ranges are so wide that a bin in y is 11 cm).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from training.drawer_recipes import splits
from training.fit import FitConfig
from training.frame_data import FrameData
from training.grpo_loop import GRPOConfig
from training.jobs import Job, Recipe, fitted, model_card, start_run, tokenizer_of, weights_of
from training.multi_step import (
    FrameTokens,
    MultiStepRecipe,
    multi_step_gates,
    tokenise_frames,
    train_multi_step,
)
from training.multi_step_rlvr import MultiStepRLVRRecipe, MultiStepTask, train_multi_step_rlvr
from training.rewards.frames import FrameRewardConfig
from training.run import Run
from worldmodels.checkpoints import (
    bundled,
    load,
    load_compressive_tokenizer,
    save,
    tokenizer_config,
    tokenizer_sha256,
    world_config,
)
from worldmodels.episodes import EpisodeStore
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel

PROTOCOL = {
    "environment": "RT1-Drawer",
    "image_size": [64, 80],
    "steps_per_second": 3,
    "action": "RT-1's 13 numbers in alphabetical order of their parts",
    "context": "first frame of the episode",
}
BASE = MultiStepRecipe(
    fit=FitConfig(
        steps=4000,
        learning_rate=2e-3,
        decay_from=0.3,
        warmup_steps=200,
        evaluate_every=500,
        checkpoint_every=250,
    ),
    batch=16,
    autocast=True,
)
MORE_MLE = MultiStepRecipe(
    fit=FitConfig(steps=2500, learning_rate=3e-4, decay_from=0.2, evaluate_every=500, checkpoint_every=250),
    batch=16,
    autocast=True,
)
RLVR = MultiStepRLVRRecipe(
    grpo=GRPOConfig(
        group_size=16,
        prompts_per_step=16,
        minibatches=2,
        microbatch_prompts=2,
        learning_rate=1e-4,
        steps=80,
        eval_every=10,
        checkpoint_every=5,
    ),
    network="alex",
)
NO_REPEATS = dataclasses.replace(RLVR, reward=FrameRewardConfig(repetition=0.05))


def _layout(tokenizer: CompressiveTokenizer, bins: ActionBins) -> MultiStepLayout:
    return MultiStepLayout(
        context_tokens=tokenizer.context_tokens,
        dynamic_tokens=tokenizer.dynamic_tokens,
        action_dim=len(bins.low),
        dynamic_vocab=tokenizer.dynamic_codebook_size,
        context_vocab=tokenizer.context_codebook_size,
        action_bins=bins.num_bins,
    )


def _bins(data: FrameData) -> ActionBins:
    """256 bins between the extremes of the training data, as published."""
    flat = data.actions.reshape(-1, data.actions.shape[-1])
    return ActionBins(low=flat.min(axis=0).tolist(), high=flat.max(axis=0).tolist())


def _tokens(
    tokenizer: CompressiveTokenizer, bins: ActionBins, store: EpisodeStore, *parts: FrameData
) -> list[FrameTokens]:
    return [tokenise_frames(tokenizer, bins, part, cache=store.folder / "cache") for part in parts]


def drawer_base(job: Job) -> Path:
    """Autoregressive multi-step world model by maximum likelihood."""
    name = job.tokenizer or "drawer-tokenizer"
    tokenizer = load_compressive_tokenizer(name)
    store, train, validation = splits(job)
    bins = _bins(train)
    layout = _layout(tokenizer, bins)
    recipe = dataclasses.replace(BASE, fit=fitted(BASE.fit, job.steps))
    config = LlamaConfig(
        vocab_size=layout.vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=layout.response.stop,
    )
    identity = {"transformer": config, "mle": recipe, "tokenizer": tokenizer_sha256(tokenizer)}
    run = start_run(job, identity, store)
    tokens = _tokens(tokenizer, bins, store, train, validation)
    llama = Llama(config, seed=job.seed)
    train_multi_step(run, llama, layout, tokens[0], tokens[1], recipe, seed=job.seed)
    model = MultiStepWorldModel(tokenizer, llama, layout, bins, protocol=PROTOCOL)
    return _saved(job, run, model, tokens[1], "Drawer base model", name)


def drawer_more_mle(job: Job) -> Path:
    """Control of RLVR: the base model, trained further by maximum likelihood."""
    base = job.base or "drawer-base"
    model = _multi_step(base)
    store, train, validation = splits(job)
    recipe = dataclasses.replace(MORE_MLE, fit=fitted(MORE_MLE.fit, job.steps))
    run = start_run(job, {"mle": recipe, "base": weights_of(base)}, store)
    tokens = _tokens(model.tokenizer, model.action_bins, store, train, validation)
    train_multi_step(run, model.llama, model.layout, tokens[0], tokens[1], recipe, seed=job.seed)
    return _saved(job, run, model, tokens[1], "Drawer base model, trained further", tokenizer_of(base))


def drawer_rlvr(job: Job, recipe: MultiStepRLVRRecipe = RLVR, title: str = "Drawer RLVR model") -> Path:
    """GRPO on 7 decoded frames: -(L1 + LPIPS)."""
    base = job.base or "drawer-base"
    model = _multi_step(base)
    store, train, validation = splits(job)
    if job.steps is not None:
        recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=job.steps))
    run = start_run(job, {"rlvr": recipe, "base": weights_of(base)}, store)
    tokens = _tokens(model.tokenizer, model.action_bins, store, train, validation)
    perceptual = Perceptual(recipe.network).to(torch.get_default_device())
    tasks = [
        MultiStepTask(model.tokenizer, model.layout, frames, ids, recipe, perceptual)
        for frames, ids in zip((train, validation), tokens, strict=True)
    ]
    train_multi_step_rlvr(run, model.llama, tasks[0], tasks[1], recipe, seed=job.seed)
    return _saved(job, run, model, tokens[1], title, tokenizer_of(base))


def drawer_rlvr_no_repeats(job: Job) -> Path:
    """The same with a penalty on repeated frames."""
    return drawer_rlvr(job, NO_REPEATS, "Drawer RLVR model, repetition penalised")


def _multi_step(name: str) -> MultiStepWorldModel:
    model = load(name)
    if not isinstance(model, MultiStepWorldModel):
        raise ValueError(
            f"{name!r} is a {type(model).__name__}; this recipe post-trains a MultiStepWorldModel"
        )
    return model


def _saved(
    job: Job, run: Run, model: MultiStepWorldModel, validation: FrameTokens, title: str, tokenizer: str
) -> Path:
    facts = multi_step_gates(model.llama.eval(), model.layout, validation, limit=len(validation))
    # A bundled tokenizer is named; any other travels in the world model's folder.
    shipped = tokenizer if tokenizer in bundled() else "tokenizer"
    config = world_config(model, tokenizer=shipped, protocol=model.protocol)
    folder = save(
        job.folder / "model", model.llama, {**config, "metrics": facts}, card=model_card(title, run, facts)
    )
    if shipped == "tokenizer":
        save(
            folder / "tokenizer",
            model.tokenizer,
            tokenizer_config(model.tokenizer),
            card="See the world model.\n",
        )
    return folder


DRAWER_WORLD_RECIPES: dict[str, Recipe] = {
    "drawer-base": Recipe("multi-step drawer world model, maximum likelihood", drawer_base),
    "drawer-rlvr": Recipe("the drawer base model post-trained by GRPO on decoded frames", drawer_rlvr),
    "drawer-rlvr-no-repeats": Recipe("the same with a penalty on repeated frames", drawer_rlvr_no_repeats),
    "drawer-more-mle": Recipe("control of drawer-rlvr: more maximum likelihood", drawer_more_mle),
}
