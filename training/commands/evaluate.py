"""``rlvr-world evaluate``: the prediction tables, world models beside copying and the tokenizer's floor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, use_threads, wide_console, writable
from training.commands.models import DRAWER_PAIRS, PAIRS, load_multi_step_worlds, load_object_worlds

if TYPE_CHECKING:
    from training.report import Report

Split = Literal["test", "validation", "train"]
MODELS = {
    "pusht": ("pusht-base", "pusht-more-mle", "pusht-rlvr"),
    "drawer": ("drawer-base", "drawer-more-mle", "drawer-rlvr", "drawer-rlvr-no-repeats"),
}
NAMES = {"pusht": "pusht-prediction", "drawer": "drawer-prediction"}


def evaluate(
    task: Positional[Literal["pusht", "drawer"]],
    *,
    models: tuple[str, ...] = (),
    windows: int | None = None,
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
    """Measure predicted frames, one and seven steps ahead, drawers up to 112. Interrupted, the same command goes on.

    Args:
        task: Which task.
        models: World models: bundled names, folders or hub ids; none: the bundled ones. Copying the last frame and the
            tokenizer's floor are always in the table.
        windows: Number of recorded windows, chosen by a fixed seed; None: 500 of PushT, 300 of drawers.
        data: Folder of episodes, made by 'rlvr-world collect'; None: data/TASK.
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
    kept = folder or Path("runs") / f"{task}-evaluate"
    with on_interrupt(f"finished windows are kept in {kept}; run the same command again to go on"):
        if task == "pusht":
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
    from worldmodels.checkpoints import load_state_reader
    from worldmodels.episodes import EpisodeStore
    from worldmodels.nets.perceptual import Perceptual

    loaded = load_multi_step_worlds(models)
    return evaluate_drawer(
        loaded,
        FrameData.load(EpisodeStore(data), split),
        DrawerInstruments(load_state_reader(reader), load_state_reader(inverse), Perceptual("alex")),
        DrawerTableConfig(windows=windows, long_episodes=long_episodes),
        reject=[name for name in loaded if name == "drawer-base"],
        compare=[pair for pair in DRAWER_PAIRS if set(pair) <= set(loaded)],
        rewards={"drawer-rlvr": RLVR.reward, "drawer-rlvr-no-repeats": NO_REPEATS.reward},
        folder=folder,
    )
