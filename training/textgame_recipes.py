"""The recipes of text-game world models of our own size: base, post-trained, their control, and ByteSized32.

Special: the language (words, varying properties) is read off the training rows and travels in the checkpoint.

Absent: the published recipes of large models (``paper_text_recipes``).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.best_weights import BestWeights
from training.fit import FitConfig, seeded
from training.grpo_config import GRPOConfig
from training.grpo_task import train_task
from training.jobs import Job, Recipe, fitted, model_card
from training.provenance import weights_sha256
from training.run import Run
from training.text_chance import uncertain
from training.text_data import TextRows, language_of, load_rows
from training.text_mistaken import is_mistaken
from training.text_slot_rlvr import SELECTED_BY, SlotRLVRRecipe, SlotTask
from training.text_slots import SlotRecipe, exact_shares, slot_world, train_slots
from worldmodels.checkpoints import save
from worldmodels.language.slot_model import SlotModel
from worldmodels.language.slot_world import slot_config
from worldmodels.language.transitions import GameTransition
from worldmodels.nets.slot_transformer import SlotTransformerConfig

_FIT = FitConfig(steps=5000, learning_rate=1.5e-3, decay_from=0.3, evaluate_every=1000, checkpoint_every=250)
BASE = SlotRecipe(fit=dataclasses.replace(_FIT, steps=24_000))
AGAIN = SlotRecipe(
    fit=FitConfig(steps=12_000, learning_rate=8e-4, decay_from=0.2, evaluate_every=1000, checkpoint_every=250)
)
MISTAKES = SlotRecipe(
    fit=FitConfig(steps=5000, learning_rate=6e-4, decay_from=0.2, evaluate_every=1000, checkpoint_every=250)
)
UNCERTAIN = (0.05, 0.95)  # chances of the right answer that leave something to learn
_TIMES = 4  # that a mistake is read
MORE_MLE = SlotRecipe(
    fit=FitConfig(steps=1500, learning_rate=4e-4, decay_from=0.2, evaluate_every=500, checkpoint_every=250)
)
RLVR = SlotRLVRRecipe(
    grpo=GRPOConfig(
        group_size=8,
        prompts_per_step=32,
        minibatches=1,
        learning_rate=1e-4,
        steps=1000,
        eval_every=200,
        checkpoint_every=100,
    ),
    # Of all questions one group in 35 has anything to teach, of these one in two at first. Nearly all of them change
    # something; on validation states that do not change stay right as often as before.
    chance=UNCERTAIN,
)
BYTESIZED32 = SlotRecipe(fit=_FIT, max_answer=256)
# Games that a fold trains on no row of: seven of the 31 each, no game twice, drawn once by a fixed seed.
FOLDS: dict[str, tuple[str, ...]] = {
    "1": (
        "balance-scale-heaviest",
        "bird-life-cycle",
        "boil-water",
        "conductivity",
        "hang-painting",
        "multimeter",
        "refrigerate-food",
    ),
    "2": (
        "bath-tub-water-temperature",
        "make-ice-cubes",
        "space-walk",
        "sunburn",
        "thermometer",
        "use-bandage",
        "wash-clothes",
    ),
    "3": (
        "blood-type",
        "clean-energy",
        "inclined-plane",
        "plant-tree",
        "scale-weigh",
        "sweep-floor",
        "volume-container",
    ),
}
PROTOCOL = {"environment": "TextGame", "observation": "state as canonical JSON", "action": "text"}
BYTESIZED32_PROTOCOL = {**PROTOCOL, "environment": "ByteSized32"}
_CONTROL_SPLIT = "posttrain"  # prompts that maximum likelihood of the base model has not seen


def textgame_base(job: Job) -> Path:
    """Maximum likelihood on transitions of our own games."""
    recipe = dataclasses.replace(BASE, fit=fitted(BASE.fit, job.steps))
    rows, data_hash = load_rows(job.data, "train")
    run = Run(job.folder, recipe, job.seed, data_hash=data_hash, resume=job.resume)
    validation, _ = load_rows(job.data, "validation")
    return _train_fresh(job, run, recipe, rows, validation, "Text games, base", PROTOCOL)


def textgame_base_again(job: Job) -> Path:
    """The base model, trained further on all training rows after its own mistakes have been added to them."""
    return _train_further(job, AGAIN, "train", "Text games, base")


def textgame_base_mistakes(job: Job) -> Path:
    """The base model, trained further mostly on what it got wrong: every mistake four times, and as many other rows."""
    return _train_further(job, MISTAKES, "train", "Text games, base", chosen=_mostly_mistakes)


def _mostly_mistakes(rows: list[GameTransition], seed: int) -> list[GameTransition]:
    mistakes = [row for row in rows if is_mistaken(row)] * _TIMES
    if not mistakes:
        raise ValueError(
            "there are no lessons from mistakes among the training rows; collect some first:"
            " rlvr-world collect textgame --world-model MODEL"
        )
    others = [row for row in rows if not is_mistaken(row)]
    places = np.random.default_rng([seed, 7]).permutation(len(others))[: len(mistakes)]
    return mistakes + [others[place] for place in sorted(places)]


def textgame_more_mle(job: Job) -> Path:
    """Control of post-training: more maximum likelihood on the prompts that it uses."""
    return _train_further(job, MORE_MLE, _CONTROL_SPLIT, "Text games, base trained further", chance=UNCERTAIN)


def _train_further(
    job: Job,
    recipe: SlotRecipe,
    split: str,
    title: str,
    chosen: Callable[[list[GameTransition], int], list[GameTransition]] = lambda rows, _: rows,
    chance: tuple[float, float] | None = None,
) -> Path:
    base = slot_world(job.base or "textgame-base")
    recipe = dataclasses.replace(recipe, fit=fitted(recipe.fit, job.steps))
    rows, data_hash = load_rows(job.data, split)
    run = Run(
        job.folder,
        {"mle": recipe, "chance": chance, "base": weights_sha256(base.model)},
        job.seed,
        data_hash=data_hash,
        resume=job.resume,
    )
    train = _encoded(base.model, chosen(rows, job.seed))
    if chance is not None:
        train = train.select(uncertain(base.model, train, chance))
    validation = _encoded(base.model, load_rows(job.data, "validation")[0])
    train_slots(run, base.model, train, validation, recipe, seed=job.seed)
    return _saved(job, run, base.model, validation, title, base.protocol)


def textgame_rlvr(job: Job) -> Path:
    """GRPO on exactly right next states, on prompts that the base model was not trained on.

    Eight answers to a question, not the published five: a choice, from a trial of a small model
    (32 questions of 8 answers). The base is mostly right, so a larger group more often has something to compare.
    """
    return post_train(job, RLVR, "Text games, RLVR")


def post_train(job: Job, recipe: SlotRLVRRecipe, title: str) -> Path:
    """GRPO with any reward, ending with the weights that are best on validation transitions.

    Without evaluations (``grpo.eval_every`` is 0) it ends with the last weights.
    """
    base = slot_world(job.base or "textgame-base")
    if job.steps is not None:
        recipe = dataclasses.replace(recipe, grpo=dataclasses.replace(recipe.grpo, steps=job.steps))
    rows, data_hash = load_rows(job.data, _CONTROL_SPLIT)
    run = Run(
        job.folder,
        {"rlvr": recipe, "base": weights_sha256(base.model)},
        job.seed,
        data_hash=data_hash,
        resume=job.resume,
    )
    train, validation = _encoded(base.model, rows), _encoded(base.model, load_rows(job.data, "validation")[0])
    if recipe.chance is not None:
        train = train.select(uncertain(base.model, train, recipe.chance))
    tasks = [SlotTask(base.model, part, recipe) for part in (train, validation)]
    best = BestWeights(run, tasks[1].validate, SELECTED_BY)
    train_task(run, base.model, tasks[0], tasks[1], recipe.grpo, seed=job.seed, evaluate=best)
    if recipe.grpo.eval_every:
        best.restore(base.model)
    return _saved(job, run, base.model, validation, title, base.protocol)


def textgame_bytesized32(job: Job, fold: str | None = None) -> Path:
    """Maximum likelihood on ByteSized32-State-Prediction, all games or all but a fold's.

    A twentieth of the training states is kept for validation; the test file is not opened.
    """
    rows, data_hash = load_rows(job.data, "train")
    left_out = () if fold is None else FOLDS[fold]
    rows = [row for row in rows if row.game not in left_out]
    chosen = [zlib.crc32(row.before.to_text().encode()) % 20 == 0 for row in rows]
    parts = [
        [row for row, mine in zip(rows, chosen, strict=True) if mine is wanted] for wanted in (False, True)
    ]
    title = "ByteSized32" if fold is None else f"ByteSized32 without the games of fold {fold}"
    recipe = dataclasses.replace(BYTESIZED32, fit=fitted(BYTESIZED32.fit, job.steps))
    run = Run(
        job.folder, {"mle": recipe, "left out": left_out}, job.seed, data_hash=data_hash, resume=job.resume
    )
    return _train_fresh(job, run, recipe, parts[0], parts[1], title, BYTESIZED32_PROTOCOL)


def _fold(number: str) -> Recipe:
    return Recipe(f"the same, games of fold {number} left out", lambda job: textgame_bytesized32(job, number))


def _train_fresh(
    job: Job,
    run: Run,
    recipe: SlotRecipe,
    rows: list[GameTransition],
    validation_rows: list[GameTransition],
    title: str,
    protocol: dict[str, str],
) -> Path:
    vocabulary, schema = language_of(rows)
    config = SlotTransformerConfig(
        vocab_size=vocabulary.size,
        max_answer=recipe.max_answer,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_heads=recipe.num_heads,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
    )
    model: SlotModel = seeded(lambda: SlotModel(config, vocabulary, schema), job.seed)
    train = _encoded(model, rows)
    validation = _encoded(model, validation_rows)
    train_slots(run, model, train, validation, recipe, seed=job.seed)
    return _saved(job, run, model, validation, title, protocol)


def _encoded(model: SlotModel, rows: list[GameTransition]) -> TextRows:
    return TextRows.of(rows, model.vocabulary, model.schema, max_answer=model.max_answer)


def _saved(job: Job, run: Run, model: SlotModel, validation: TextRows, title: str, protocol: Any) -> Path:
    with torch.no_grad():
        facts = exact_shares(model.eval(), validation, count=2000)
    config = {**slot_config(model), "protocol": dict(protocol), "metrics": facts}
    return save(job.folder / "model", model, config, card=model_card(title, run, facts))


TEXTGAME_RECIPES: dict[str, Recipe] = {
    "textgame-base": Recipe("text-game world model, maximum likelihood", textgame_base),
    "textgame-base-again": Recipe(
        "the text-game base model after lessons from its mistakes", textgame_base_again
    ),
    "textgame-base-mistakes": Recipe("the same, mostly on its mistakes", textgame_base_mistakes),
    "textgame-rlvr": Recipe("the text-game base model post-trained by GRPO on next states", textgame_rlvr),
    "textgame-more-mle": Recipe("control of textgame-rlvr: more maximum likelihood", textgame_more_mle),
    "textgame-bytesized32": Recipe("small world model of ByteSized32's transitions", textgame_bytesized32),
    "textgame-bytesized32-small": Recipe("another name of textgame-bytesized32", textgame_bytesized32),
    **{f"textgame-bytesized32-fold-{number}": _fold(number) for number in FOLDS},
}
