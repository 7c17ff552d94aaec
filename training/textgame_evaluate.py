"""The tables of text-game world models: how often the next state is exactly right, and for which rows.

Special: *the metric in a table is the reward function*, and beside every model stand the answers that need none. Rows
with a twin in training are told from those without, actions seen in training from unseen ones, changed states from
unchanged ones: one overall number hides all of it. Finished rows are kept, and a repeated call skips them.

Absent: choosing checkpoints. Give the test split once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.provenance import weights_sha256
from training.report import Cell, Column, Report, RowLog, Table, manifest, sha256_of
from training.rewards.official_states import official_answer_scores, official_question
from training.rewards.states import published_state, state_scores
from training.rows import Row, blocks, mean_row, six_digits
from training.statistics import bootstrap_mean, paired_bootstrap
from training.text_baselines import TextPredictor, TrainingTable, nothing_changes, perfect
from worldmodels.api import History
from worldmodels.language.answers import answer_value
from worldmodels.language.causal_lm_world import CausalLMWorldModel
from worldmodels.language.game_state import GameState
from worldmodels.language.slot_world import SlotWorldModel
from worldmodels.language.transitions import GameTransition

_BLOCK = 256
_GROUPS = ("all", "unchanged", "changed")
TextWorldModel: TypeAlias = SlotWorldModel | CausalLMWorldModel
METRICS = {"exact": "exact %", "official": "official %"}


@dataclass(frozen=True, kw_only=True)
class TextTableConfig:
    """The protocol.

    Attributes:
        rows: Number of transitions, spread evenly over the split; None: all.
        sampling_seeds: A row at temperature 1 is the mean over these.
        bootstrap_seed: Of the intervals.
        metric: ``exact`` (our own: the state is right in everything) or ``official`` (the published binary reward),
            which the comparisons are made on.
    """

    rows: int | None = None
    sampling_seeds: tuple[int, ...] = (0, 1, 2)
    bootstrap_seed: int = 0
    metric: str = "exact"


def dreamt(model: TextWorldModel, *, temperature: float, seed: int) -> TextPredictor:
    """What a world model says, one step ahead."""

    def predict(rows: Sequence[GameTransition], numbers: Sequence[int]) -> list[GameState | None]:
        histories = [History(observations=[row.before], instruction=row.game) for row in rows]
        state = model.start(histories, seeds=[seed * 1_000_003 + number for number in numbers])
        _, predictions = model.step(state, [row.action for row in rows], temperature=temperature)
        return [answer.state for answer in predictions.answers]

    return predict


def evaluate_text_games(
    models: Mapping[str, TextWorldModel],
    rows: Sequence[GameTransition],
    train: Sequence[GameTransition],
    config: TextTableConfig,
    *,
    name: str,
    data: Mapping[str, str],
    subsets: Mapping[str, NDArray[np.bool_]] | None = None,
    compare: Sequence[tuple[str, str]] = (),
    folder: str | Path | None = None,
    progress: bool = True,
) -> Report:
    """Baselines and world models on the same transitions.

    Args:
        models: World models by name.
        rows: Transitions to predict.
        train: All that any of the models learnt from, for lookup and neighbours, twins and known actions.
        config: The protocol.
        name: Of the report.
        data: Hashes of the data, for the manifest.
        subsets: More tables, each over the rows where it is true.
        compare: Pairs of models whose difference is tested, the hoped-for better one first.
        folder: Run folder for finished rows; None keeps nothing.
        progress: Whether to show progress bars.
    """
    if config.rows is not None and config.rows < len(rows):
        kept = np.linspace(0, len(rows) - 1, config.rows).astype(int)
        rows = [rows[place] for place in kept]
        subsets = {key: chosen[kept] for key, chosen in (subsets or {}).items()}
    table = TrainingTable(train)
    hashes = {key: _identity(model) for key, model in models.items()}
    bench = _Bench(
        rows=rows, identity={"data": dict(data), "config": config}, folder=folder, progress=progress
    )
    found: dict[str, Row] = {
        "nothing changes": bench.row("nothing changes", nothing_changes),
        "lookup in training": bench.row("lookup", table.lookup),
        "nearest neighbour": bench.row("nearest neighbour", table.neighbour),
        "perfect difference": bench.row("perfect", perfect),
    }
    for key, model in models.items():
        found[f"{key}, greedy"] = bench.row(
            f"{key} greedy", dreamt(model, temperature=0.0, seed=0), hashes[key]
        )
        sampled = [
            bench.row(f"{key} seed {seed}", dreamt(model, temperature=1.0, seed=seed), hashes[key])
            for seed in config.sampling_seeds
        ]
        found[f"{key}, sampled"] = mean_row(sampled, config.sampling_seeds)
    changed = np.array([row.after != row.before for row in rows])
    twins = np.array([table.twin(row) is not None for row in rows])
    known = np.array([table.knows_action(row) for row in rows])
    everything = np.ones(len(rows), dtype=bool)
    wanted = {"all rows": everything, "without a twin in training": ~twins, "action seen in training": known}
    wanted |= {"action not seen in training": ~known, **(subsets or {})}
    units = [row.episode for row in rows]
    tables = [
        _table(title, found, chosen, changed, units, config)
        for title, chosen in wanted.items()
        if chosen.any() and (title == "all rows" or not chosen.all())
    ]
    tables[0] = replace(tables[0], notes=(*tables[0].notes, *_without_a_table(wanted)))
    if compare:
        compared = {"all rows": everything, **(subsets or {})}
        tables += [
            _comparison(title, found, compare, chosen, changed, units, config)
            for title, chosen in compared.items()
        ]
    protocol = {"task": f"{name}: next state of recorded transitions", "config": config, "rows": len(rows)}
    return Report(
        name=name,
        tables=tuple(tables),
        manifest=manifest(protocol=protocol, weights=hashes, data=data),
    )


def _without_a_table(wanted: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    """Notes on groups of rows that have no table of their own, for they are all rows or none."""
    return [
        f"{title}: {'all of these rows' if chosen.any() else 'no row'}, so there is no table of them"
        for title, chosen in wanted.items()
        if title != "all rows" and (chosen.all() or not chosen.any())
    ]


def _identity(model: TextWorldModel) -> str:
    """Hash of all that decides what a model answers."""
    if isinstance(model, SlotWorldModel):
        return weights_sha256(model.model)
    prompt = getattr(model.prompt, "__name__", type(model.prompt).__name__)
    return sha256_of([weights_sha256(model.lm), prompt, model.max_new_tokens])


@dataclass(frozen=True, kw_only=True)
class _Bench:
    rows: Sequence[GameTransition]
    identity: Mapping[str, object]
    folder: str | Path | None
    progress: bool

    def row(self, title: str, predict: TextPredictor, weights: str = "") -> Row:
        """Predict and measure all rows, a block at a time."""
        log = RowLog(self.folder, title, {**self.identity, "row": title, "weights": weights})
        parts = blocks(len(self.rows), _BLOCK)
        for part in tqdm(
            log.missing(list(parts)), desc=title, unit="block", disable=None if self.progress else True
        ):
            numbers = parts[part]
            asked = [self.rows[number] for number in numbers]
            started = time.perf_counter()
            said = predict(asked, numbers)
            seconds = time.perf_counter() - started
            log.add(part, {"metrics": measured(said, asked), "seconds": seconds})
        kept = [log.parts[part] for part in parts]
        metrics = {
            key: np.concatenate([np.array(of["metrics"][key]) for of in kept]) for key in kept[0]["metrics"]
        }
        return Row(metrics, sum(of["seconds"] for of in kept), 0)


def measured(
    said: Sequence[GameState | None], rows: Sequence[GameTransition]
) -> dict[str, list[list[float]]]:
    """Rewards of predictions, each ``(N, 1)``."""
    lines: dict[str, list[list[float]]] = {"exact": [], "property": [], "official": [], "unread": []}
    for state, row in zip(said, rows, strict=True):
        scores = state_scores(state, before=row.before, target=row.after)
        question = official_question(published_state(row.before), published_state(row.after))
        answer = {} if state is None else answer_value(row.before, state)
        values = {
            "exact": scores["exact"],
            "property": scores["property"],
            "official": official_answer_scores(answer, question).binary,
            "unread": float(state is None),
        }
        for key, value in values.items():
            lines[key].append([value])
    return {key: six_digits(np.array(values)) for key, values in lines.items()}


def metric_columns(masks: Mapping[str, NDArray[np.bool_]]) -> tuple[Column, ...]:
    """Every metric in every group of rows."""
    return tuple(
        Column(key=f"{metric}/{group}", title=f"{text}, {group} (n={int(mask.sum())})", digits=1, scale=100)
        for metric, text in METRICS.items()
        for group, mask in masks.items()
    )


def metric_cells(
    metrics: Mapping[str, NDArray[np.float64]],
    masks: Mapping[str, NDArray[np.bool_]],
    units: Sequence[str],
    *,
    seed: int = 0,
) -> dict[str, Cell]:
    """Those columns of a row, of values ``(N,)`` and their units; a group without rows has no cell."""
    return {
        f"{metric}/{group}": bootstrap_mean(
            metrics[metric][mask],
            units=[unit for unit, wanted in zip(units, mask, strict=True) if wanted],
            seed=seed,
        )
        for metric in METRICS
        for group, mask in masks.items()
        if mask.any()
    }


def _table(
    title: str,
    found: Mapping[str, Row],
    chosen: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    units: Sequence[str],
    config: TextTableConfig,
) -> Table:
    masks = {"all": chosen, "unchanged": chosen & ~changed, "changed": chosen & changed}
    cells: dict[str, dict[str, Cell]] = {}
    for name, row in found.items():
        values = {metric: row.metrics[metric][:, 0] for metric in METRICS}
        cells[name] = {
            **metric_cells(values, masks, units, seed=config.bootstrap_seed),
            "property": float(row.metrics["property"][chosen].mean()),
            "unread": float(row.metrics["unread"][chosen].mean()),
            "seconds": row.seconds,
        }
    return Table(
        name=title.replace(" ", "-"),
        title=f"Next states, {title}",
        columns=(
            *metric_columns(masks),
            Column(key="property", title="property F1"),
            Column(key="unread", title="unreadable %", digits=2, scale=100),
            Column(key="seconds", title="seconds, all rows", digits=1),
        ),
        rows=cells,
        notes=(
            "95 % bootstrap intervals over ways through a game; sampled rows are the mean over the sampling seeds",
            "exact: the next state is right in everything; official: the published binary reward, which cannot see"
            " added objects",
        ),
    )


def _comparison(
    title: str,
    found: Mapping[str, Row],
    pairs: Sequence[tuple[str, str]],
    chosen: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    units: Sequence[str],
    config: TextTableConfig,
) -> Table:
    masks = {"all": chosen, "unchanged": chosen & ~changed, "changed": chosen & changed}
    cells: dict[str, dict[str, Cell]] = {}
    for first, second in pairs:
        for mode in ("sampled", "greedy"):
            one, other = (found[f"{name}, {mode}"].metrics[config.metric][:, 0] for name in (first, second))
            cells[f"{first} - {second}, {mode}"] = {
                group: paired_bootstrap(
                    one[mask],
                    other[mask],
                    units=[unit for unit, wanted in zip(units, mask, strict=True) if wanted],
                    seed=config.bootstrap_seed,
                )
                for group, mask in masks.items()
                if mask.any()
            }
    return Table(
        name="comparison" if title == "all rows" else f"comparison-{title.replace(' ', '-')}",
        title=f"What changed, {METRICS[config.metric]}, {title}",
        columns=tuple(Column(key=group, title=group, digits=2, scale=100) for group in _GROUPS),
        rows=cells,
        notes=("95 % paired bootstrap over ways through a game, percentage points",),
    )
