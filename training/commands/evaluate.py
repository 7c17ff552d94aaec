"""``rlvr-world evaluate``: the prediction tables, world models beside copying and the tokenizer's floor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, use_threads, wide_console, writable
from training.commands.models import (
    DRAWER_PAIRS,
    PAIRS,
    TEXT_PAIRS,
    load_multi_step_worlds,
    load_object_worlds,
    load_text_worlds,
    shown_name,
)

if TYPE_CHECKING:
    from training.report import Report

Split = Literal["test", "validation", "train"]
MODELS = {
    "pusht": ("pusht-base", "pusht-more-mle", "pusht-rlvr"),
    "drawer": ("drawer-base", "drawer-rlvr"),
    "textgame": ("textgame-base", "textgame-more-mle", "textgame-rlvr"),
    "bytesized32": (),  # its data have no licence, and neither have weights that learnt from them
}
"""What a task's table compares unless it is told otherwise: bundled names, which anyone has."""
NAMES = {
    "pusht": "pusht-prediction",
    "drawer": "drawer-prediction",
    "textgame": "textgame-prediction",
    "bytesized32": "bytesized32-prediction",
}
TEXTS = ("textgame", "bytesized32")


def evaluate(
    task: Positional[Literal["pusht", "drawer", "textgame", "bytesized32"]],
    *,
    models: tuple[str, ...] = (),
    windows: int | None = None,
    hold_out: tuple[str, ...] = (),
    data: Path | None = None,
    split: Split = "test",
    reader: str | None = None,
    inverse: str = "drawer-inverse",
    vgg_windows: int = 0,
    long_episodes: int = 32,
    folder: Path | None = None,
    results: Path = Path("benchmarks/results"),
    threads: int = 1,
) -> None:
    """Measure predictions: frames one and seven steps ahead, drawers up to 112; states of text games one turn ahead.

    Interrupted, the same command goes on.

    Args:
        task: Which task.
        models: World models: bundled names, folders or hub ids; none: the bundled ones (bytesized32 has none). Copying
            the last frame and the tokenizer's floor are always in the table.
        windows: Number of recorded windows, chosen by a fixed seed; None: 500 of PushT, 300 of drawers. Text games:
            number of transitions; None: all.
        hold_out: Games that the models did not see: their rows get a table of their own, and training rows of these
            games do not serve as neighbours.
        data: Folder of episodes, made by 'rlvr-world collect'; None: data/TASK. bytesized32: a folder with the data
            set's files, whose names contain train and test.
        split: Which of them; choose settings on validation, read test once.
        reader: Reader that judges decoded frames: bundled name, folder or hub id; None: the bundled one.
        inverse: Reader of actions between drawer frames: the same.
        vgg_windows: On how many of PushT's windows LPIPS is also measured with VGG.
        long_episodes: Number of simulated drawer episodes of 112 steps.
        folder: Where finished windows are kept, so that nothing is computed twice; None: runs/TASK-evaluate.
        results: Where the table goes.
        threads: Threads to compute with.
    """
    use_threads(threads)
    for name, value in (("--windows", windows), ("--long-episodes", long_episodes)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    writable(results / f"{NAMES[task]}.json")
    chosen, source = models or MODELS[task], data or Path("data") / task
    if not chosen:
        raise ValueError(
            f"no model of {task} is bundled; name yours, for example --models runs/textgame-{task}/model after"
            f" 'rlvr-world train textgame-{task} --data FOLDER'"
        )
    kept = folder or Path("runs") / f"{task}-evaluate"
    with on_interrupt(f"finished windows are kept in {kept}; run the same command again to go on"):
        if task in TEXTS:
            report = _texts(NAMES[task], chosen, source, split, windows, hold_out, kept)
        elif task == "pusht":
            report = _pusht(
                chosen, source, split, windows or 500, reader or "pusht-reader", vgg_windows, kept
            )
        else:
            report = _drawer(
                chosen, source, split, windows or 300, reader or "drawer-reader", inverse, long_episodes, kept
            )
    report.show(wide_console())
    console.print(f"results: {report.write(results)}")


def _pusht(
    models: tuple[str, ...],
    data: Path,
    split: Split,
    windows: int,
    reader: str,
    vgg_windows: int,
    folder: Path,
) -> Report:
    from training.data import PushTData
    from training.evaluate import PredictionConfig, evaluate_prediction
    from training.pusht_recipes import RLVR
    from training.readers import load_reader
    from worldmodels.episodes import EpisodeStore
    from worldmodels.nets.perceptual import Perceptual

    loaded = load_object_worlds(models)
    return evaluate_prediction(
        loaded,
        PushTData.load(EpisodeStore(data), split),
        load_reader(reader),
        Perceptual("alex"),
        PredictionConfig(windows=windows, vgg_windows=vgg_windows, reward=RLVR.reward),
        vgg=Perceptual("vgg") if vgg_windows else None,
        compare=[pair for pair in PAIRS if set(pair) <= set(loaded)],
        folder=folder,
    )


def _drawer(
    models: tuple[str, ...],
    data: Path,
    split: Split,
    windows: int,
    reader: str,
    inverse: str,
    long_episodes: int,
    folder: Path,
) -> Report:
    from training.drawer_evaluate import DrawerTableConfig, evaluate_drawer
    from training.drawer_metrics import DrawerInstruments
    from training.drawer_world_recipes import NO_REPEATS, RLVR
    from training.frame_data import FrameData
    from training.jobs import training_hours
    from worldmodels.checkpoints import find, load_state_reader
    from worldmodels.episodes import EpisodeStore
    from worldmodels.nets.perceptual import Perceptual

    loaded = load_multi_step_worlds(models)
    hours = {shown_name(name): training_hours(find(name)) for name in models}
    return evaluate_drawer(
        loaded,
        FrameData.load(EpisodeStore(data), split),
        DrawerInstruments(load_state_reader(reader), load_state_reader(inverse), Perceptual("alex")),
        DrawerTableConfig(windows=windows, long_episodes=long_episodes),
        reject=[name for name in loaded if name == "drawer-base"],
        compare=[pair for pair in DRAWER_PAIRS if set(pair) <= set(loaded)],
        rewards={"drawer-rlvr": RLVR.reward, "drawer-rlvr-no-repeats": NO_REPEATS.reward},
        hours={name: taken for name, taken in hours.items() if taken is not None},
        folder=folder,
    )


def _texts(
    name: str,
    models: tuple[str, ...],
    data: Path,
    split: Split,
    rows: int | None,
    hold_out: tuple[str, ...],
    folder: Path,
) -> Report:
    import numpy as np

    from training.text_data import HELD_OUT_GAME, load_learnt, load_rows
    from training.text_searched import is_searched
    from training.textgame_evaluate import TextTableConfig, evaluate_text_games

    asked, digest = load_rows(data, split)
    learnt, digests = load_learnt(data)
    unseen = set(hold_out) or ({HELD_OUT_GAME} if name == NAMES["textgame"] else set())
    if unknown := unseen - {row.game for row in asked}:
        raise ValueError(f"--hold-out names {sorted(unknown)}, of which {data} has no rows")
    loaded = load_text_worlds(models, data)
    held = np.array([row.game in unseen for row in asked])
    searched = np.array([is_searched(row) for row in asked])
    subsets = {"games seen in training": ~held, "games not seen in training": held} if held.any() else {}
    if searched.any():
        subsets |= {"what searches ask": searched & ~held, "along ways": ~searched & ~held}
    official = name == NAMES["bytesized32"]
    return evaluate_text_games(
        loaded,
        asked,
        [row for row in learnt if row.game not in unseen],
        TextTableConfig(rows=rows, metric="official" if official else "exact"),
        name=name,
        data={"folder": data.name, split: digest, **digests},
        subsets=subsets,
        compare=[pair for pair in TEXT_PAIRS if set(pair) <= set(loaded)],
        folder=folder,
    )
