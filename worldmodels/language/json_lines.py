"""JSON lines, plain or gzipped: the one place that opens such data, decodes them and names what is broken.

Special: a line that cannot be used is named by file and line and costs that line only. A damaged archive is an error
of the whole file: nobody knows how much of it is missing.

Absent: what a line means.
"""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

RowT = TypeVar("RowT")

_NAMED = 10  # broken lines of one reading that are told one by one


def read_json_lines(
    file: Path, read: Callable[[Any, str], RowT], *, broken: list[str] | None = None
) -> Iterator[RowT]:
    """What ``read`` makes of the lines of a file, one by one; empty lines do not count.

    Args:
        file: JSON lines in UTF-8; gzipped if the name ends in ``.gz``.
        read: Takes the value of a line and its place (``"file/line"``, counted from 1); a ``ValueError`` says why the
            value cannot be used.
        broken: Collects what is wrong with each line that cannot be used (``"file:line: why"``); None: the first
            such line raises.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line cannot be used and ``broken`` is None; or the archive is damaged.
    """
    opened: Any = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rb") as stream:
        for number, line in enumerate(_whole(stream, file), start=1):
            if not line.strip():
                continue
            try:
                row = read(json.loads(line.decode("utf-8")), f"{file.name}/{number}")
            except (ValueError, RecursionError) as error:
                message = f"{file}:{number}: {error}"
                if broken is None:
                    raise ValueError(message) from error
                broken.append(message)
                continue
            yield row


def warn_left_out(broken: Sequence[str]) -> None:
    """Log the lines that could not be used as warnings: the first ten, then how many there are."""
    log = logging.getLogger(__name__)
    for line in broken[:_NAMED]:
        log.warning("left out: %s", line)
    if len(broken) > _NAMED:
        log.warning("left out: %d lines in all", len(broken))


def _whole(stream: IO[bytes], file: Path) -> Iterator[bytes]:
    """The lines of a stream that is read to its end.

    Raises:
        ValueError: It is no archive, or a damaged one.
    """
    try:
        yield from stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{file} is no whole gzip archive ({error}); get or make it again, or keep what is left of it:"
            f" gzip -dc {file.name} > {file.name.removesuffix('.gz')}, and put the archive elsewhere"
        ) from error
