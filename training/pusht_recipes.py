"""The recipes of PushT. The chain of the bundled checkpoints: ``pusht-reader`` -> ``pusht-tokenizer`` ->
``pusht-base`` -> ``pusht-rlvr``, with ``pusht-more-mle`` as the control of the last.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from training.data import PushTData
from training.fit import FitConfig, seeded
from training.grpo_task import train_task
from training.jobs import Job, Recipe, fitted, model_card, start_run, tokenizer_of, weights_of
from training.mle import MLERecipe, TokenData, gates, tokenise, train_mle
from training.pusht_rlvr import FrameTask, RLVRRecipe
from training.readers import (
    PoseReader,
    ReaderRecipe,
    load_reader,
    reader_errors,
    train_reader,
)
from training.run import Run
from training.stem import StemRecipe, train_stem
from training.tokenizers import GlobalTokenizerRecipe, tokenizer_errors, train_global_tokenizer
from worldmodels.checkpoints import (
    bundled,
    load,
    load_global_tokenizer,
    save,
    tokenizer_config,
    tokenizer_sha256,
    world_config,
)
from worldmodels.episodes import EpisodeStore
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.global_tokenizer import GlobalTokenizerConfig
from worldmodels.video.object_dynamics import ObjectDynamics, ObjectDynamicsConfig
from worldmodels.video.object_world import ObjectWorldModel
from worldmodels.video.slots import SlotLayout

PROTOCOL = {
    "environment": "PushT",
    "frame_skip": 5,
    "image_size": 64,
    "action": "5 relative displacements (x, y) in units of 100 px",
    "proprio": "agent x, y (px), vx, vy (px/s)",
}


READER = ReaderRecipe(fit=FitConfig(steps=5000, learning_rate=2e-3, evaluate_every=500))
TOKENIZER = GlobalTokenizerRecipe(
    tokenizer=GlobalTokenizerConfig(num_tokens=4, levels=(32, 32)),
    fit=FitConfig(steps=6000, learning_rate=1.5e-3, decay_from=0.4, evaluate_every=500),
)
STEM = StemRecipe()
DYNAMICS = ObjectDynamicsConfig(layers=3, hidden_size=128, intermediate_size=384)
BASE = MLERecipe(fit=FitConfig(steps=8000, learning_rate=2e-3, decay_from=0.4, evaluate_every=1000), batch=32)
MORE_MLE = MLERecipe(
    fit=FitConfig(steps=6000, learning_rate=3e-4, decay_from=0.2, evaluate_every=1000), batch=32
)
RLVR = RLVRRecipe()


def pusht_reader(job: Job) -> Path:
    """Pose reader on true frames."""
    store = EpisodeStore(job.data)
    recipe = dataclasses.replace(READER, fit=fitted(READER.fit, job.steps))
    run = start_run(job, recipe, store)
    validation = PushTData.load(store, "validation")
    reader: PoseReader = train_reader(run, PushTData.load(store, "train"), validation, recipe, seed=job.seed)
    facts = reader_errors(reader, validation, frames=1600)
    config = {"kind": "pose_reader", "reader": dataclasses.asdict(recipe.reader), "metrics": facts}
    return save(
        job.folder / "model",
        reader,
        config,
        card=model_card("PushT pose reader", run, facts),
    )


def pusht_tokenizer(job: Job) -> Path:
    """Global FSQ tokenizer; its encoder starts from the pose reader."""
    store = EpisodeStore(job.data)
    recipe = dataclasses.replace(TOKENIZER, fit=fitted(TOKENIZER.fit, job.steps))
    run = start_run(job, recipe, store)
    validation = PushTData.load(store, "validation")
    tokenizer = train_global_tokenizer(
        run,
        PushTData.load(store, "train"),
        validation,
        recipe,
        seed=job.seed,
        reader=load_reader(job.reader or "pusht-reader"),
    )
    facts = tokenizer_errors(tokenizer, validation, episodes=100)
    return save(
        job.folder / "model",
        tokenizer,
        {**tokenizer_config(tokenizer), "metrics": facts},
        card=model_card("PushT tokenizer", run, facts),
    )


def _token_data(job: Job, tokenizer: Any, layout: SlotLayout) -> tuple[TokenData, TokenData, EpisodeStore]:
    store = EpisodeStore(job.data)
    return (
        tokenise(tokenizer, layout, PushTData.load(store, "train"), cache=store.folder / "cache"),
        tokenise(tokenizer, layout, PushTData.load(store, "validation"), cache=store.folder / "cache"),
        store,
    )


def pusht_base(job: Job) -> Path:
    """Autoregressive dynamics by maximum likelihood."""
    tokenizer = load_global_tokenizer(job.tokenizer or "pusht-tokenizer")
    layout = SlotLayout(num_codes=tokenizer.config.num_tokens, code_levels=tuple(tokenizer.config.levels))
    train, validation, store = _token_data(job, tokenizer, layout)
    recipe = dataclasses.replace(BASE, fit=fitted(BASE.fit, job.steps))
    run = start_run(
        job,
        {"dynamics": DYNAMICS, "stem": STEM, "mle": recipe, "tokenizer": tokenizer_sha256(tokenizer)},
        store,
    )
    dynamics: ObjectDynamics = seeded(lambda: ObjectDynamics(DYNAMICS, layout), job.seed)
    stem_run = Run(job.folder / "stem", STEM, job.seed, data_hash=store.digest(), resume=job.resume)
    train_stem(stem_run, dynamics, train, validation, STEM, seed=job.seed)
    dynamics.stem.freeze_motion()
    train_mle(run, dynamics, train, validation, recipe, seed=job.seed)
    return _save_world(
        job,
        run,
        ObjectWorldModel(tokenizer, dynamics),
        validation,
        "PushT base model",
        job.tokenizer or "pusht-tokenizer",
    )


def pusht_more_mle(job: Job) -> Path:
    """Control of RLVR: the base model, trained further by maximum likelihood."""
    base = job.base or "pusht-base"
    model = _object_world(base)
    model.dynamics.stem.freeze_motion()
    train, validation, store = _token_data(job, model.tokenizer, model.dynamics.layout)
    recipe = dataclasses.replace(MORE_MLE, fit=fitted(MORE_MLE.fit, job.steps))
    run = start_run(job, {"mle": recipe, "base": weights_of(base)}, store)
    train_mle(run, model.dynamics, train, validation, recipe, seed=job.seed)
    return _save_world(job, run, model, validation, "PushT base model, trained further", tokenizer_of(base))


def pusht_rlvr(job: Job, recipe: RLVRRecipe = RLVR) -> Path:
    """GRPO on decoded frames: -(L1 + LPIPS + proprioception error)."""
    base = job.base or "pusht-base"
    model = _object_world(base)
    model.dynamics.stem.freeze_motion()
    train, validation, store = _token_data(job, model.tokenizer, model.dynamics.layout)
    if job.steps is not None:
        recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=job.steps))
    run = start_run(job, {"rlvr": recipe, "base": weights_of(base)}, store)
    perceptual = Perceptual(recipe.network).to(torch.get_default_device())
    tasks = [
        FrameTask(model, frames, tokens, recipe, perceptual)
        for frames, tokens in (
            (PushTData.load(store, "train"), train),
            (PushTData.load(store, "validation"), validation),
        )
    ]
    train_task(run, model.dynamics, tasks[0], tasks[1], recipe.grpo, seed=job.seed)
    return _save_world(job, run, model, validation, "PushT RLVR model", tokenizer_of(base))


def _object_world(name: str) -> ObjectWorldModel:
    model = load(name)
    if not isinstance(model, ObjectWorldModel):
        raise ValueError(f"{name!r} is a {type(model).__name__}; this recipe post-trains an ObjectWorldModel")
    return model


def _save_world(
    job: Job,
    run: Run,
    model: ObjectWorldModel,
    validation: TokenData,
    title: str,
    tokenizer: str,
) -> Path:
    facts = gates(model.dynamics.eval(), validation, window_frames=model.window_frames)
    # A bundled tokenizer is named; any other travels in the world model's folder.
    shipped = tokenizer if tokenizer in bundled() else "tokenizer"
    config = world_config(model, tokenizer=shipped, protocol=PROTOCOL)
    folder = save(
        job.folder / "model",
        model.dynamics,
        {**config, "metrics": facts},
        card=model_card(title, run, facts),
    )
    if shipped not in bundled():
        save(
            folder / "tokenizer",
            model.tokenizer,
            tokenizer_config(model.tokenizer),
            card="See the world model.\n",
        )
    return folder


PUSHT_RECIPES: dict[str, Recipe] = {
    "pusht-reader": Recipe("pose reader on true frames: the measuring instrument", pusht_reader),
    "pusht-tokenizer": Recipe("global FSQ tokenizer of PushT frames", pusht_tokenizer),
    "pusht-base": Recipe("autoregressive PushT world model, maximum likelihood", pusht_base),
    "pusht-rlvr": Recipe("the base model post-trained by GRPO on decoded frames", pusht_rlvr),
    "pusht-more-mle": Recipe("control of pusht-rlvr: more maximum likelihood", pusht_more_mle),
}
