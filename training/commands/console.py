"""What all commands share: printing, threads, what Ctrl-C says, and checks of what the user gave."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Where no terminal says how wide it is, tables are not squeezed.
_WIDE = 160
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)


def wide_console() -> Console:
    """For tables with many columns: a terminal that is too narrow breaks their lines instead of their cells."""
    return Console(highlight=False, width=max(240, console.width))


def use_threads(threads: int) -> None:
    """Compute with so many threads, here and in the processes started from here.

    One is the default of every command: small models on busy cores are 2 to 40 times slower with two.

    Raises:
        ValueError: Less than one.
    """
    if threads < 1:
        raise ValueError(f"--threads is {threads}; it must be at least 1")
    # Read by torch and its libraries when they are loaded, which most commands have not done yet.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextmanager
def on_interrupt(advice: str) -> Iterator[None]:
    """Turn Ctrl-C into a message of what is kept and how to go on; ``rlvr-world`` prints it and exits with 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = f"{stop}; " if str(stop) else ""
        raise KeyboardInterrupt(f"{said}{advice}") from None


def writable(path: Path) -> Path:
    """The path of a file to be written later, once its folder is known to accept one.

    Raises:
        PermissionError: It does not; names it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.parent / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise PermissionError(
            f"cannot write {path} ({error.strerror}); give a place you may write to"
        ) from error
    return path


def choose(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """The entry of that name.

    Raises:
        ValueError: There is none; lists the names, with a did-you-mean.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"no {what} {name!r}; there are {', '.join(known)}{hint}")


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers stand at the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table)
