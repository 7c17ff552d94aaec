"""The recipes of the drawer world up to its tokenizer: ``drawer-reader`` and ``drawer-inverse``, which measure, and
the three runs of the tokenizer; the world models follow in ``drawer_world_recipes``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rlvr_envs.drawer_rules import STATE_NAMES
from training.code_lessons import LessonsRecipe
from training.compressive_tokenizers import (
    CompressiveTokenizerRecipe,
    reconstruction_errors,
    train_compressive_tokenizer,
)
from training.fit import FitConfig
from training.frame_cases import CasesConfig
from training.frame_data import FrameData
from training.jobs import Job, Recipe, fitted, model_card, start_run, weights_of
from training.multi_step_recipes import splits
from training.reconstruction import ReconstructionConfig
from training.run import Run
from training.state_readers import StateReaderRecipe, state_reader_errors, train_state_reader
from worldmodels.checkpoints import load_compressive_tokenizer, save, tokenizer_config
from worldmodels.episodes import EpisodeStore
from worldmodels.nets.perceptual import Perceptual
from worldmodels.video.compressive_config import CompressiveTokenizerConfig
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer

READER = StateReaderRecipe(
    fit=FitConfig(steps=5000, learning_rate=2e-3, decay_from=0.4, evaluate_every=1000),
    batch=32,
    blur_px=1.2,
    noise=0.04,
)
TOKENIZER = CompressiveTokenizerRecipe(
    tokenizer=CompressiveTokenizerConfig(
        image_size=(64, 80),
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=32,
        norm_num_groups=2,  # more groups forget which colour a narrow map had
        patch_size=4,
        max_att_resolution=16,
        attention_groups=4,
        context_levels=(7, 5, 5, 5, 5),
        dynamic_levels=(7, 5, 5, 5, 5),
    ),
    losses=ReconstructionConfig(
        fit=FitConfig(
            steps=5000,
            learning_rate=1.5e-3,
            decay_from=0.5,
            evaluate_every=1000,
            checkpoint_every=250,
        ),
        perceptual_weight=0.5,
        perceptual_frames=12,  # of 18: the contexts, and half of the others
        adversarial_weight=0.0,  # on two cores the discriminator's time is better spent on more steps
        autocast=True,
    ),
    cases=CasesConfig(batch=6, frames=2, segment=41, whole_segments=False, first_context=0.7),
    motion_weight=4.0,
    lessons=LessonsRecipe(
        fit=FitConfig(
            steps=3500, learning_rate=2e-3, decay_from=0.4, evaluate_every=250, checkpoint_every=250
        ),
        cases=CasesConfig(batch=12, frames=5, segment=41, whole_segments=False, first_context=0.7),
    ),
)

# The same with smaller steps, on a tokenizer that has learned already: more episodes, no soft codes.
TOKENIZER_AGAIN = dataclasses.replace(
    TOKENIZER,
    losses=dataclasses.replace(
        TOKENIZER.losses,
        fit=dataclasses.replace(TOKENIZER.losses.fit, steps=3000, learning_rate=1e-3, decay_from=0.3),
    ),
    lessons=LessonsRecipe(
        fit=FitConfig(
            steps=3000, learning_rate=1e-3, decay_from=0.3, evaluate_every=250, checkpoint_every=250
        ),
        cases=CasesConfig(batch=12, frames=5, segment=41, whole_segments=False, first_context=0.7),
        soft_until=0.0,
    ),
)

# Longer, with a state that weighs more, for that is what codes still lost of a picture: the bundled tokenizer.
TOKENIZER_MORE = dataclasses.replace(
    TOKENIZER,
    losses=dataclasses.replace(
        TOKENIZER.losses,
        fit=dataclasses.replace(TOKENIZER.losses.fit, steps=5000, learning_rate=1e-3, decay_from=0.3),
    ),
    lessons=LessonsRecipe(
        fit=FitConfig(
            steps=7000, learning_rate=1.5e-3, decay_from=0.2, evaluate_every=250, checkpoint_every=250
        ),
        cases=CasesConfig(batch=12, frames=5, segment=41, whole_segments=False, first_context=0.7),
        soft_until=0.0,
        state_weight=4.0,
    ),
)

ACTION_NAMES = ("gripper", "roll", "pitch", "yaw", "shift x", "shift y", "shift z")
ACTION_COLUMNS = (3, 4, 5, 6, 10, 11, 12)  # of RT-1's 13 numbers; the others move nothing


def states_of(data: FrameData) -> NDArray[np.float64]:
    """What the state reader reads, ``(N, T+1, 10)``: ``drawer_rules.STATE_NAMES``.

    Raises:
        ValueError: The data has no states.
    """
    if data.states is None:
        raise ValueError(
            f"{data.store.folder} holds no states; a reader is trained on the simulator's episodes"
        )
    return data.states


def actions_of(data: FrameData) -> NDArray[np.float64]:
    """What the inverse-dynamics reader reads, ``(N, T, 7)``: the numbers of an action that move something."""
    return data.actions[:, :, ACTION_COLUMNS].astype(np.float64)


def drawer_reader(job: Job) -> Path:
    """State reader on true frames."""
    return _reader(job, "Drawer state reader", pairs=False)


def drawer_inverse(job: Job) -> Path:
    """Action reader on pairs of true frames."""
    return _reader(job, "Drawer inverse-dynamics reader", pairs=True)


def _reader(job: Job, title: str, *, pairs: bool) -> Path:
    store, train, validation = splits(job)
    recipe = dataclasses.replace(READER, fit=fitted(READER.fit, job.steps))
    labels, names = (actions_of, ACTION_NAMES) if pairs else (states_of, STATE_NAMES)
    run = start_run(job, {"reader": recipe, "names": names}, store)
    reader = train_state_reader(
        run, train, validation, labels, names, recipe, frames=2 if pairs else 1, seed=job.seed
    )
    facts = state_reader_errors(reader, validation, labels, cases=1600)
    config = {"kind": "state_reader", "reader": dataclasses.asdict(reader.config), "metrics": facts}
    return save(job.folder / "model", reader, config, card=model_card(title, run, facts))


def drawer_tokenizer(job: Job) -> Path:
    """Compressive FSQ tokenizer of 64 x 80 frames: 320 ids of a context frame, 20 of every other.

    A latent stands for 4 x 4 px. With 8 x 8 px, as in the released one, a context had 80 ids and stayed blurred, and so
    did everything that is seen from it: such small frames have more detail per pixel.
    """
    store, _, _ = parts = splits(job)
    recipe = _of_length(TOKENIZER, job)
    return _trained(job, start_run(job, recipe, store), parts, recipe)


def drawer_tokenizer_again(job: Job) -> Path:
    """The first tokenizer, ``--base``, trained further on more episodes: the first ones it learned by heart.

    Raises:
        ValueError: No base.
    """
    return _trained_further(job, "drawer-tokenizer-again", TOKENIZER_AGAIN)


def drawer_tokenizer_more(job: Job) -> Path:
    """That one, ``--base``, trained further with the state weighed more.

    Raises:
        ValueError: No base.
    """
    return _trained_further(job, "drawer-tokenizer-more", TOKENIZER_MORE)


def _trained_further(job: Job, name: str, recipe: CompressiveTokenizerRecipe) -> Path:
    if job.base is None:
        raise ValueError(f"{name} trains a tokenizer further; name it with --base")
    begin = load_compressive_tokenizer(job.base)
    store, _, _ = parts = splits(job)
    recipe = _of_length(recipe, job)
    run = start_run(job, {"recipe": recipe, "base": weights_of(job.base)}, store)
    return _trained(job, run, parts, recipe, begin)


def _of_length(recipe: CompressiveTokenizerRecipe, job: Job) -> CompressiveTokenizerRecipe:
    """The recipe with the job's number of steps, lessons and painting each, if it names one."""
    assert recipe.lessons is not None
    losses = dataclasses.replace(recipe.losses, fit=fitted(recipe.losses.fit, job.steps))
    lessons = dataclasses.replace(recipe.lessons, fit=fitted(recipe.lessons.fit, job.steps))
    return dataclasses.replace(recipe, losses=losses, lessons=lessons)


def _trained(
    job: Job,
    run: Run,
    parts: tuple[EpisodeStore, FrameData, FrameData],
    recipe: CompressiveTokenizerRecipe,
    begin: CompressiveTokenizer | None = None,
) -> Path:
    _, train, validation = parts
    perceptual = Perceptual("alex").to(torch.get_default_device())
    tokenizer = train_compressive_tokenizer(
        run, train, validation, recipe, seed=job.seed, perceptual=perceptual, begin=begin
    )
    facts = reconstruction_errors(tokenizer, validation, perceptual=perceptual, episodes=100)
    config = {**tokenizer_config(tokenizer), "metrics": facts}
    return save(job.folder / "model", tokenizer, config, card=model_card("Drawer tokenizer", run, facts))


DRAWER_RECIPES: dict[str, Recipe] = {
    "drawer-reader": Recipe("state reader on true drawer frames: a measuring instrument", drawer_reader),
    "drawer-inverse": Recipe("reader of actions from pairs of drawer frames: an instrument", drawer_inverse),
    "drawer-tokenizer": Recipe("compressive FSQ tokenizer of drawer frames", drawer_tokenizer),
    "drawer-tokenizer-again": Recipe("the same trained further, --base names it", drawer_tokenizer_again),
    "drawer-tokenizer-more": Recipe("the same trained further once more", drawer_tokenizer_more),
}
