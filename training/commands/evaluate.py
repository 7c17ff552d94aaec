"""``rlvr-world evaluate``: the prediction table, world models beside copying and the tokenizer's floor."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from training.commands.console import console, on_interrupt, use_threads, wide_console, writable
from training.commands.models import PAIRS, load_object_worlds


def evaluate(
    task: Positional[Literal["pusht"]],
    *,
    models: tuple[str, ...] = ("pusht-base", "pusht-more-mle", "pusht-rlvr"),
    windows: int = 500,
    data: Path = Path("data/pusht"),
    split: Literal["test", "validation", "train"] = "test",
    reader: str = "pusht-reader",
    vgg_windows: int = 0,
    folder: Path = Path("runs/pusht-evaluate"),
    results: Path = Path("benchmarks/results"),
    threads: int = 1,
) -> None:
    """Measure predicted frames and poses, one and seven steps ahead. Interrupted, the same command goes on.

    Args:
        task: Which task.
        models: World models: bundled names, folders or hub ids. Copying the last frame and the tokenizer's floor are
            always in the table.
        windows: Number of recorded windows, chosen by a fixed seed.
        data: Folder of episodes, made by 'rlvr-world collect'.
        split: Which of them; choose settings on validation, read test once.
        reader: Pose reader that judges decoded frames: bundled name, folder or hub id.
        vgg_windows: On how many of the windows LPIPS is also measured with VGG.
        folder: Where finished windows are kept, so that nothing is computed twice.
        results: Where the table goes.
        threads: Threads to compute with.
    """
    use_threads(threads)
    if windows < 1:
        raise ValueError(f"--windows is {windows}; it must be at least 1")
    writable(results / "pusht-prediction.json")
    from training.data import PushTData
    from training.evaluate import PredictionConfig, evaluate_prediction
    from training.pusht_recipes import RLVR
    from training.readers import load_reader
    from worldmodels.episodes import EpisodeStore
    from worldmodels.nets.perceptual import Perceptual

    loaded = load_object_worlds(models)
    episodes = PushTData.load(EpisodeStore(data), split)
    with on_interrupt(f"finished windows are kept in {folder}; run the same command again to go on"):
        report = evaluate_prediction(
            loaded,
            episodes,
            load_reader(reader),
            Perceptual("alex"),
            PredictionConfig(windows=windows, vgg_windows=vgg_windows, reward=RLVR.reward),
            vgg=Perceptual("vgg") if vgg_windows else None,
            compare=[pair for pair in PAIRS if set(pair) <= set(loaded)],
            folder=folder,
        )
    report.show(wide_console())
    console.print(f"results: {report.write(results)}")
