"""Puts the tables of benchmarks/results into the README, between their markers; a test holds the two together.

.venv/bin/python benchmarks/readme.py

A block is ``<!-- table: FILE/TABLE -->`` ... ``<!-- end of table -->``: FILE names
``benchmarks/results/FILE.json``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(<!-- table: (?P<file>[\w-]+)/(?P<table>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL
)


def section(file: str, table: str) -> str:
    """The Markdown of one table, as its command wrote it."""
    results = ROOT / "benchmarks" / "results"
    title = json.loads((results / f"{file}.json").read_text(encoding="utf-8"))["tables"][table]["title"]
    text = (results / f"{file}.md").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in text.split("### ")[1:])
    return f"**{title}**\n{parts[title].rstrip()}\n"


def filled(readme: str) -> str:
    """The README with every block replaced."""
    return BLOCK.sub(
        lambda match: match[1] + "\n" + section(match["file"], match["table"]) + "\n" + match[4], readme
    )


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
