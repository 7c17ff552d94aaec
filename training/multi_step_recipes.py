"""Multi-step world models of frames, from episodes to checkpoints, whatever their size: maximum likelihood and GRPO.

Special: one ``MultiStepSettings`` says everything that the small drawer models and the published RT-1 models
differ in, so that both are trained by the same lines.

Absent: numbers; they are in ``drawer_world_recipes`` and ``paper_recipes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.frame_data import FrameData
from training.grpo_task import train_task
from training.jobs import Job, fitted, model_card, start_run
from training.multi_step import (
    FrameTokens,
    MultiStepRecipe,
    encoders_sha256,
    multi_step_gates,
    tokenise_frames,
    train_multi_step,
)
from training.multi_step_rlvr import MultiStepRLVRRecipe, MultiStepTask
from training.provenance import weights_sha256
from training.run import Run
from training.shared_tables import id_parts, shared_tables
from worldmodels.checkpoints import (
    bundled,
    load,
    load_compressive_tokenizer,
    save,
    tokenizer_config,
    world_config,
)
from worldmodels.episodes import EpisodeStore
from worldmodels.folders import find, read_json
from worldmodels.nets.llama import Llama, LlamaConfig
from worldmodels.nets.perceptual import Perceptual
from worldmodels.outside import format_of
from worldmodels.video.action_bins import ActionBins
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout
from worldmodels.video.multi_step_world import MultiStepWorldModel


@dataclass(frozen=True, kw_only=True)
class MultiStepSettings:
    """A family of models.

    Attributes:
        title: How cards call it.
        tokenizer: The tokenizer that a job uses unless it names another.
        base: The base model that is post-trained unless a job names another.
        transformer: Sizes; vocabulary and length follow from tokenizer and bins.
        bins: Of actions; None: 256 between the extremes of the training data, as published for RT-1.
        protocol: What environments compare with their own.
        mle: Maximum likelihood of the base model.
        shared_rows: Whether its tables are trained as ``shared_tables``; the published ones were not.
        reader: State reader that travels with the models, or None.
    """

    title: str
    tokenizer: str
    base: str
    transformer: LlamaConfig
    bins: ActionBins | None
    protocol: Mapping[str, Any]
    mle: MultiStepRecipe
    shared_rows: bool = False
    reader: str | None = None


def splits(job: Job) -> tuple[EpisodeStore, FrameData, FrameData]:
    """The job's store, its training and its validation episodes.

    Raises:
        FileNotFoundError: The folder is no store; says how recordings become one.
        ValueError: As for ``FrameData.load``.
    """
    store = _store(job.data)
    return store, FrameData.load(store, "train"), FrameData.load(store, "validation")


def _store(folder: Path) -> EpisodeStore:
    if (folder / "index.jsonl").is_file():
        return EpisodeStore(folder)
    source = folder
    try:
        found = f"holds recordings ({format_of(folder)}) that are no store of episodes yet"
    except (FileNotFoundError, ValueError):
        found, source = "holds no episodes", Path("path/to/rt1")
    raise FileNotFoundError(
        f"{folder} {found}; a store is made of RT-1 recordings by 'rlvr-world convert {source} --folder data/paper"
        " --length 32 --image-size 256 320', to be given as --data data/paper, and of simulated drawers by 'rlvr-world"
        " collect drawer'"
    )


def layout_of(tokenizer: CompressiveTokenizer, bins: ActionBins) -> MultiStepLayout:
    """The published layout at the sizes of tokenizer and bins."""
    return MultiStepLayout(
        context_tokens=tokenizer.context_tokens,
        dynamic_tokens=tokenizer.dynamic_tokens,
        action_dim=len(bins.low),
        dynamic_vocab=tokenizer.dynamic_codebook_size,
        context_vocab=tokenizer.context_codebook_size,
        action_bins=bins.num_bins,
    )


def extremes(data: FrameData) -> ActionBins:
    """256 bins between the least and the largest number of each dimension."""
    flat = data.actions.reshape(-1, data.actions.shape[-1])
    return ActionBins(low=flat.min(axis=0).tolist(), high=flat.max(axis=0).tolist())


def train_base(job: Job, settings: MultiStepSettings) -> Path:
    """Autoregressive multi-step world model by maximum likelihood."""
    name = job.tokenizer or settings.tokenizer
    tokenizer = load_compressive_tokenizer(name)
    store, train, validation = splits(job)
    bins = settings.bins or extremes(train)
    layout = layout_of(tokenizer, bins)
    train.check_frames(layout.num_frames, "a window")
    recipe = dataclasses.replace(settings.mle, fit=fitted(settings.mle.fit, job.steps))
    config = dataclasses.replace(
        settings.transformer, vocab_size=layout.vocab_size, max_position_embeddings=layout.response.stop
    )
    identity = {
        "transformer": config,
        "mle": recipe,
        "shared_rows": settings.shared_rows,
        "encoders": encoders_sha256(tokenizer),
    }
    run = start_run(job, identity, store)
    tokens = _tokens(tokenizer, bins, store, train, validation)
    llama = Llama(config, seed=job.seed)
    with ExitStack() as trained:
        if settings.shared_rows:
            parts = id_parts(layout, tokenizer.config.context_levels, tokenizer.config.dynamic_levels)
            trained.enter_context(shared_tables(llama, parts, seed=job.seed))
        train_multi_step(run, llama, layout, tokens[0], tokens[1], recipe, seed=job.seed)
    model = MultiStepWorldModel(tokenizer, llama, layout, bins, protocol=settings.protocol)
    return _saved(job, run, model, tokens[1], f"{settings.title}, base", name, job.reader or settings.reader)


def train_more(job: Job, settings: MultiStepSettings, recipe: MultiStepRecipe) -> Path:
    """The base model, trained further by maximum likelihood: the control of post-training."""
    base = job.base or settings.base
    model = multi_step_world(base, job.tokenizer)
    store, train, validation = splits(job)
    train.check_frames(model.layout.num_frames, "a window")
    recipe = dataclasses.replace(recipe, fit=fitted(recipe.fit, job.steps))
    run = start_run(job, {"mle": recipe, "base": weights_sha256(model.llama)}, store)
    tokens = _tokens(model.tokenizer, model.action_bins, store, train, validation)
    train_multi_step(run, model.llama, model.layout, tokens[0], tokens[1], recipe, seed=job.seed)
    title = f"{settings.title}, base trained further"
    return _saved(job, run, model, tokens[1], title, *_companions(base, job))


def train_rlvr(job: Job, settings: MultiStepSettings, recipe: MultiStepRLVRRecipe, what: str) -> Path:
    """GRPO on the decoded frames of a window."""
    base = job.base or settings.base
    model = multi_step_world(base, job.tokenizer)
    store, train, validation = splits(job)
    train.check_frames(model.layout.num_frames, "a window")
    if job.steps is not None:
        recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=job.steps))
    run = start_run(job, {"rlvr": recipe, "base": weights_sha256(model.llama)}, store)
    tokens = _tokens(model.tokenizer, model.action_bins, store, train, validation)
    perceptual = Perceptual(recipe.network).to(torch.get_default_device())
    tasks = [
        MultiStepTask(model.tokenizer, model.layout, frames, ids, recipe, perceptual)
        for frames, ids in zip((train, validation), tokens, strict=True)
    ]
    train_task(run, model.llama, tasks[0], tasks[1], recipe.grpo, seed=job.seed)
    title = f"{settings.title}, {what}"
    return _saved(job, run, model, tokens[1], title, *_companions(base, job))


def multi_step_world(name: str, tokenizer: str | None = None) -> MultiStepWorldModel:
    """The world model of that name, a released one together with its tokenizer.

    Raises:
        ValueError: Another kind of model; else as for ``worldmodels.load``.
    """
    model = load(name, tokenizer=tokenizer)
    if not isinstance(model, MultiStepWorldModel):
        raise ValueError(
            f"{name!r} is a {type(model).__name__}; this recipe post-trains a MultiStepWorldModel"
        )
    return model


def _companions(base: str, job: Job) -> tuple[str, str | None]:
    """What a base model's config calls its tokenizer and its reader; a released one does not say."""
    config = read_json(find(base))
    tokenizer, reader = config.get("tokenizer", job.tokenizer), config.get("reader")
    return str(tokenizer), None if reader is None else str(reader)


def _tokens(
    tokenizer: CompressiveTokenizer, bins: ActionBins, store: EpisodeStore, *parts: FrameData
) -> list[FrameTokens]:
    return [tokenise_frames(tokenizer, bins, part, cache=store.folder / "cache") for part in parts]


def _saved(
    job: Job,
    run: Run,
    model: MultiStepWorldModel,
    validation: FrameTokens,
    title: str,
    tokenizer: str,
    reader: str | None,
) -> Path:
    facts = multi_step_gates(model.llama.eval(), model.layout, validation, limit=len(validation))
    # A bundled tokenizer is named; any other travels in the world model's folder.
    shipped = tokenizer if tokenizer in bundled() else "tokenizer"
    config = world_config(
        model,
        tokenizer=shipped,
        protocol=model.protocol,
        reader=reader if reader in bundled() else None,
    )
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
