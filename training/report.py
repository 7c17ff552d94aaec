"""Results: tables of estimates, where they came from, and rows that need not be computed twice.

Special: one ``Table`` prints itself on a console, as Markdown and as JSON, so that the three never differ; a ``Report``
is its tables and a manifest that names the protocol by a hash, the weights by a hash and the data by a digest. A
``RowLog`` keeps the finished parts of a row under the hash of everything that decides them: an interrupted evaluation
goes on, and a changed protocol or checkpoint never meets old numbers.

Absent: plots, and anything that knows what is being measured or how.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table as RichTable

from training.provenance import hardware, now, versions, weights_sha256
from training.run import read_metrics, to_json, write_json, write_text
from training.statistics import Estimate
from worldmodels.episodes import EpisodeStore, Split
from worldmodels.video.object_world import ObjectWorldModel

Cell: TypeAlias = Estimate | float | int | str | None
RESULTS = Path("benchmarks") / "results"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        key: Its name in the rows.
        title: Its heading.
        digits: Decimals; None for three significant digits.
        scale: Shown numbers are stored ones times this.
        show_n: Whether the number of independent units is printed in each cell.
    """

    key: str
    title: str
    digits: int | None = 2
    scale: float = 1.0
    show_n: bool = False

    def text(self, cell: Cell) -> str:
        """A cell as it is printed; an absent one is a dash."""
        if cell is None:
            return "-"
        if isinstance(cell, Estimate):
            low, high = self._number(cell.low), self._number(cell.high)
            count = f" n={cell.n}" if self.show_n else ""
            return f"{self._number(cell.value)} [{low}, {high}]{count}"
        if isinstance(cell, float):
            return self._number(cell)
        return f"{cell:,}" if isinstance(cell, int) else cell

    def _number(self, value: float) -> str:
        value = value * self.scale
        return f"{value:.3g}" if self.digits is None else f"{value:.{self.digits}f}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Named rows of cells.

    Attributes:
        name: Short name, the key in the JSON file.
        title: What it shows.
        columns: In order.
        rows: Row name -> column key -> cell; a missing cell is absent.
        notes: How to read it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    notes: tuple[str, ...] = ()

    def headline(self, title: str, metrics: Collection[str], notes: tuple[str, ...] = ()) -> Table:
        """Of a table of differences, whose rows end in ``": METRIC"``: the few that a claim may rest on."""
        rows = {name: cells for name, cells in self.rows.items() if name.rsplit(": ", 1)[-1] in metrics}
        return replace(self, name="headline", title=title, rows=rows, notes=(*self.notes, *notes))

    def rich(self) -> RichTable:
        """For a ``rich`` console."""
        table = RichTable(title=self.title, caption="\n".join(self.notes) or None, caption_justify="left")
        table.add_column("")
        for column in self.columns:
            table.add_column(column.title, justify="right")
        for name, cells in self.rows.items():
            table.add_row(name, *self._texts(cells))
        return table

    def markdown(self) -> str:
        """As a Markdown section."""
        lines = [
            f"### {self.title}",
            "",
            "| | " + " | ".join(column.title for column in self.columns) + " |",
            "|---|" + "---:|" * len(self.columns),
        ]
        lines += [f"| {name} | " + " | ".join(self._texts(cells)) + " |" for name, cells in self.rows.items()]
        notes = [""] + [f"- {note}" for note in self.notes] if self.notes else []
        return "\n".join(lines + notes) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All numbers at full precision; an estimate is its value, interval and n."""
        return {
            "title": self.title,
            "columns": {column.key: column.title for column in self.columns},
            "rows": {name: to_json(dict(cells)) for name, cells in self.rows.items()},
            "notes": list(self.notes),
        }

    def _texts(self, cells: Mapping[str, Cell]) -> list[str]:
        return [column.text(cells.get(column.key)) for column in self.columns]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tables and where they came from.

    Attributes:
        name: Name of the result file.
        tables: In order.
        manifest: See ``manifest``.
        details: Whatever else belongs into the JSON file, for example the outcome of every goal.
    """

    name: str
    tables: tuple[Table, ...]
    manifest: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            KeyError: No such table; lists those there are.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(
            f"no table {name!r} in {self.name}; there are {', '.join(t.name for t in self.tables)}"
        )

    def show(self, console: Console) -> None:
        """Print all tables."""
        for table in self.tables:
            console.print(table.rich())

    def markdown(self) -> str:
        """All tables, with the protocol's hash."""
        head = f"## {self.name}\n\nProtocol `{self.manifest['protocol_sha256'][:16]}`, {self.manifest['date']}\n\n"
        return head + "\n".join(table.markdown() for table in self.tables)

    def write(self, folder: str | Path = RESULTS) -> Path:
        """Write ``<name>.json`` and ``<name>.md``, each whole or not at all; return the path of the first.

        Raises:
            PermissionError: The folder cannot be written; the message names it.
        """
        folder = Path(folder)
        path = folder / f"{self.name}.json"
        content = {
            "manifest": dict(self.manifest),
            "tables": {table.name: table.to_json() for table in self.tables},
            **to_json(dict(self.details)),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, content)
            write_text(path.with_suffix(".md"), self.markdown())
        except OSError as error:
            raise PermissionError(
                f"cannot write results to {folder}: {error}; choose another folder"
            ) from error
        return path


def source_of(store: EpisodeStore, split: Split) -> dict[str, Any]:
    """What a manifest says of its data."""
    reading = {
        "test": "the test split was read by this command; nothing was selected on it",
        "validation": "validation episodes: for selection, not for publication",
        "train": "training episodes: for trials only",
    }
    return {"folder": store.folder.name, "digest": store.digest(), "split": split, "note": reading[split]}


def manifest(
    *, protocol: Mapping[str, Any], weights: Mapping[str, str], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Where a report came from.

    Args:
        protocol: Everything that decides the numbers besides weights and data (JSON-like).
        weights: Name of each model or instrument -> hash of its weights.
        data: See ``source_of``.
    """
    plain = to_json(protocol)
    return {
        "protocol": plain,
        "protocol_sha256": sha256_of(plain),
        "weights_sha256": dict(weights),
        "data": dict(data),
        "versions": versions(),
        "hardware": hardware(),
        "date": now(),
    }


def sha256_of(content: Any) -> str:
    """Hash of JSON-like content; the order of keys does not matter."""
    text = json.dumps(to_json(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def model_sha256(model: ObjectWorldModel) -> str:
    """Hash of a world model: its weights, and the settings that change what they predict."""
    weights = weights_sha256(model.tokenizer, model.dynamics)
    return sha256_of([weights, model.history_length, model.window_frames, model.top_k])


class RowLog:
    """The finished parts of one row, one JSON line each.

    Args:
        folder: Where the file is kept, or None to keep parts in memory only.
        name: Name of the row.
        identity: Everything that decides its numbers (JSON-like): another identity is another file.
    """

    def __init__(self, folder: str | Path | None, name: str, identity: Mapping[str, Any]) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        self._path: Path | None = None
        if folder is None:
            return
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self._path = Path(folder) / f"{slug}-{sha256_of(identity)[:16]}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = read_metrics(self._path)[1:]  # without a torn last line, and without the identity
        self.parts = {line.pop("part"): line for line in lines}
        head = [{"identity": to_json(identity)}]
        rest = [{"part": part, **values} for part, values in self.parts.items()]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in [*head, *rest]))

    def add(self, part: str, values: Mapping[str, Any]) -> None:
        """Keep one finished part."""
        plain = to_json(values)
        self.parts[part] = plain
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, **plain}) + "\n")

    def missing(self, parts: Sequence[str]) -> list[str]:
        """Those that are not finished yet."""
        return [part for part in parts if part not in self.parts]
