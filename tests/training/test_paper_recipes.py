"""The published video recipes have the published numbers, and say what they need of a user's recordings.

Numbers: "RLVR-World" (arXiv 2505.13934 v2), its table of the video models' architectures and trainings, and section
5.1; the clip of the ratio is the default of verl, which the published runs used and left as it is.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny_frames import TOKENIZER as TINY
from tests.training.tiny_frames import tiny_model
from tests.training.toy_frames import toy_store
from tests.worldmodels.frame_worlds import PROTOCOL, frame_tokenizer, single_step_world
from tests.worldmodels.rt1_files import write_npz
from training import multi_step_recipes, multi_step_rlvr, paper_recipes, paper_single_recipes
from training.__main__ import main
from training.frame_data import FrameData
from training.jobs import Job
from training.multi_step import tokenise_frames
from training.multi_step_rlvr import MultiStepTask
from training.paper_recipes import PAPER_RECIPES, RT1
from training.paper_single_recipes import LAYOUT, PAPER_SINGLE_RECIPES, TRANSFORMER
from training.recipes import RECIPES
from training.run import to_json
from worldmodels.api import Episode
from worldmodels.checkpoints import save, tokenizer_config, world_config
from worldmodels.episodes import split_of, write_all
from worldmodels.generate import Sampled, generate
from worldmodels.nets.llama import Llama
from worldmodels.video.compressive_tokenizer import CompressiveTokenizer
from worldmodels.video.layouts import MultiStepLayout

RECONSTRUCTION = {
    **{"l1_weight": 1.0, "perceptual_weight": 1.0, "perceptual_frames": None},
    **{"adversarial_weight": 0.1, "adversarial_from": 10_000, "discriminator_layers": 6},
}
GRPO = {  # batch 128 in mini-batches of 32, 16 answers to each, AdamW; evaluation alone samples from 100 ids
    **{"prompts_per_step": 128, "minibatches": 128 // 32, "group_size": 16, "temperature": 1.0},
    **{"learning_rate": 5e-5, "weight_decay": 0.01, "kl_coefficient": 1e-3, "entropy_coefficient": 0.0},
    **{"clip": 0.2, "steps": 200, "credit_discount": None},
}
REWARD = {  # -(L1 + LPIPS), mean over frames: the published commands override their files' default, the squared error
    **{"mae": 1.0, "lpips": 1.0, "mse": 0.0, "psnr": 0.0, "ssim": 0.0, "proprio": 0.0},
    **{"repetition": 0.0, "reduction": "mean"},
}
LLAMA = {
    **{"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
    "rope_theta": 10_000.0,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "paper-tokenizer": {
        "tokenizer": {
            **{"image_size": [256, 320], "block_out_channels": [128, 256, 256, 512], "layers_per_block": 2},
            **{"context_levels": [7, 5, 5, 5, 5], "dynamic_levels": [7, 5, 5, 5, 5]},
            **{"max_att_resolution": 32, "attention_dropout": 0.1},
        },
        "losses": {"fit": {"steps": 600_000, "learning_rate": 5e-4, "decay_from": 1.0}, **RECONSTRUCTION},
        "cases": {"batch": 16, "segment": 32, "frames": 7, "whole_segments": True, "first_context": 0.0},
        "motion_weight": 0.0,
        "lessons": None,
    },
    "paper-base": {
        "transformer": {**LLAMA, "vocab_size": 9008},
        "mle": {
            **{"fit": {"steps": 450_000, "learning_rate": 5e-5, "decay_from": 1.0}, "batch": 32},
            "windows_per_episode": 1,
        },
        "shared_rows": False,
    },
    "paper-rlvr": {"rlvr": {"grpo": GRPO, "reward": REWARD, "network": "vgg"}},
    "paper-rlvr-no-repeats": {
        "rlvr": {"grpo": GRPO, "reward": {**REWARD, "repetition": 1.0}, "network": "vgg"}
    },
    "paper-frame-tokenizer": {
        "tokenizer": {
            **{"block_out_channels": [128, 256, 256, 512, 768], "layers_per_block": 2},
            "fsq_levels": 12,  # bits: 7 x 5 x 5 x 5 x 5 codes
        },
        "losses": {"fit": {"steps": 500_000, "learning_rate": 5e-4, "decay_from": 1.0}, **RECONSTRUCTION},
        "batch": 16,
    },
    "paper-single-base": {
        "transformer": {**LLAMA, "vocab_size": 4633},
        "mle": {"fit": {"steps": 990_000, "learning_rate": 5e-5, "decay_from": 1.0}, "batch": 32},
    },
    "paper-single-rlvr": {"rlvr": {"grpo": GRPO, "reward": REWARD, "network": "vgg"}},
}


class Asked(Exception):
    """What a recipe was about to train with."""


def differences(wanted: Any, found: Any, where: str = "") -> list[str]:
    """Where numbers are not the wanted ones; settings that the paper does not name may be anything."""
    if isinstance(wanted, dict):
        return [
            line for key, value in wanted.items() for line in differences(value, found[key], f"{where}.{key}")
        ]
    return [] if found == wanted else [f"{where}: {found}, not {wanted}"]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """Data of the published size for two splits, and small models that base and post-training may begin with."""
    folder = tmp_path_factory.mktemp("paper")
    names = {split_of(f"e{number}"): f"e{number}" for number in range(200)}
    frames = np.zeros((33, 256, 320, 3), np.uint8)
    write_all(
        folder / "data",
        [
            Episode(
                id=names[split],
                observations=frames,
                actions=np.zeros((32, 13), np.float32),
                rewards=np.zeros(32),
            )
            for split in ("train", "validation")
        ],
    )
    # Of the published code books, so that the vocabulary is the published one.
    wide = CompressiveTokenizer(
        dataclasses.replace(TINY, context_levels=(7, 5, 5, 5, 5), dynamic_levels=(7, 5, 5, 5, 5))
    )
    for name, tokenizer in (("compressive", wide), ("frame", frame_tokenizer())):
        save(folder / name, tokenizer, tokenizer_config(tokenizer), card="tiny\n")
    for name, world in (("multi", tiny_model(num_frames=8)), ("single", single_step_world())):
        config = world_config(world, tokenizer="tokenizer", protocol=PROTOCOL)
        save(folder / name, world.llama, config, card="tiny\n", dtype=torch.float32)
        inside = tokenizer_config(world.tokenizer)
        save(folder / name / "tokenizer", world.tokenizer, inside, card="tiny\n", dtype=torch.float32)
    return {path.name: str(path) for path in folder.iterdir()}


def asked(name: str, monkeypatch, places: dict[str, str], folder: Path) -> Any:
    """The settings with which a recipe starts its run: all that decides its result besides seed and data."""

    def started(job: Job, recipe: Any, store: Any) -> None:
        raise Asked(to_json(recipe))

    for module in (multi_step_recipes, paper_recipes, paper_single_recipes):
        monkeypatch.setattr(module, "start_run", started)
    single = name in PAPER_SINGLE_RECIPES
    job = Job(
        folder=folder,
        data=Path(places["data"]),
        tokenizer=places["frame" if single else "compressive"] if name.endswith("base") else None,
        base=places["single" if single else "multi"] if "rlvr" in name else None,
    )
    with pytest.raises(Asked) as stop:
        RECIPES[name].run(job)
    return stop.value.args[0]


def test_every_published_video_recipe_is_listed_here():
    assert set(PUBLISHED) == set(PAPER_RECIPES) | set(PAPER_SINGLE_RECIPES) <= set(RECIPES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_trains_with_the_published_numbers(name, monkeypatch, places, tmp_path):
    assert differences(PUBLISHED[name], asked(name, monkeypatch, places, tmp_path)) == []


def test_the_published_sizes():
    with torch.device("meta"):
        tokenizer = CompressiveTokenizer(paper_recipes.TOKENIZER.tokenizer)
        multi = Llama(dataclasses.replace(RT1.transformer, vocab_size=MultiStepLayout().vocab_size))
        single = Llama(TRANSFORMER)
    counts = [sum(weights.numel() for weights in part.parameters()) for part in (tokenizer, multi, single)]
    assert counts == [129_448_016, 127_101_696, 120_381_696]
    assert (tokenizer.context_tokens, tokenizer.dynamic_tokens) == (1280, 80)
    assert (LAYOUT.response.stop, LAYOUT.vocab_size) == (1654, 4633)
    assert paper_recipes.TOKENIZER.tokenizer.image_size == (256, 320)
    assert RT1.bins is not None
    assert RT1.bins.num_bins == 256


def test_answers_are_drawn_from_all_ids_of_a_frame_at_temperature_1(monkeypatch, tmp_path):
    """Sampling from the 100 likeliest ids is for evaluations alone."""
    model, frames = tiny_model(), FrameData.load(toy_store(tmp_path), "train")
    tokens = tokenise_frames(model.tokenizer, model.action_bins, frames)
    task = MultiStepTask(model.tokenizer, model.layout, frames, tokens, paper_recipes.RLVR, None)
    used: dict[str, Any] = {}

    def recorded(*arguments: Any, **options: Any) -> Any:
        used.update(options)
        return generate(*arguments, **options)

    monkeypatch.setattr(multi_step_rlvr, "generate", recorded)
    temperature = paper_recipes.RLVR.grpo.temperature
    task.sample(model.llama, task.questions[:1], group_size=2, seeds=[1, 2], temperature=temperature)
    assert used["temperature"] == 1.0
    assert used.get("top_k") is None
    vocabularies = [segment.vocab for segment in used["segments"] if isinstance(segment, Sampled)]
    assert vocabularies == [slice(0, model.tokenizer.dynamic_codebook_size)] * task.horizon


def test_recordings_that_were_not_converted_name_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    raw = write_npz(tmp_path / "raw", [3, 3])
    (tmp_path / "empty").mkdir()
    for name in (*PAPER_RECIPES, *PAPER_SINGLE_RECIPES):
        if not name.endswith("tokenizer"):
            continue  # the others look for their models first, which are released ones
        for folder, found in (
            (raw, r"holds recordings \(npz\)"),
            ("empty", "holds no episodes"),
            ("none", "no episodes"),
        ):
            with pytest.raises(SystemExit) as stop:
                main(["train", name, "--data", str(folder)])
            assert stop.value.code == 2
            (line,) = capsys.readouterr().err.splitlines()
            source = folder if folder == raw else "path/to/rt1"
            assert (
                f"'rlvr-world convert {source} --folder data/paper --length 32 --image-size 256 320'" in line
            )
            assert re.search(found, line)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "steps", "size", "message"),
    [
        ("paper-tokenizer", 16, (256, 320), r"a segment has 32 frames.* have 17; .*--length 31 or more"),
        (
            "paper-tokenizer",
            32,
            (64, 80),
            r"frames of \(64, 80\) px, the tokenizer is for \(256, 320\).*256 320",
        ),
        ("paper-frame-tokenizer", 3, (256, 320), r"a history with its next frame has 5 frames.* have 4"),
        ("paper-single-base", 8, (64, 80), r"the published model is for \(256, 320\)"),
        ("paper-base", 6, (64, 80), r"a window has 8 frames.* have 7; .*--length 7 or more"),
        ("paper-rlvr", 6, (64, 80), r"a window has 8 frames"),
    ],
)
def test_episodes_that_do_not_do_name_the_remedy(name, steps, size, message, places, tmp_path):
    names = {split_of(f"e{number}"): f"e{number}" for number in range(200)}
    episodes = [
        Episode(
            id=names[split],
            observations=np.zeros((steps + 1, *size, 3), np.uint8),
            actions=np.zeros((steps, 13), np.float32),
            rewards=np.zeros(steps),
        )
        for split in ("train", "validation")
    ]
    write_all(tmp_path / "data", episodes)
    tokenizer = places["frame" if name in PAPER_SINGLE_RECIPES else "compressive"]
    job = Job(folder=tmp_path / "run", data=tmp_path / "data", tokenizer=tokenizer)
    if "rlvr" in name:
        job = dataclasses.replace(job, tokenizer=None, base=places["multi"])
    with pytest.raises(ValueError, match=message):
        RECIPES[name].run(job)
    assert not job.folder.exists()  # the next try is not told that there is a run already
