"""The console script ``rlvr-world``: picks a command, and turns errors into one line.

Absent on purpose: everything a command does; see ``training.commands``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from training.commands.collect import collect
from training.commands.convert import convert
from training.commands.demo import demo
from training.commands.evaluate import evaluate
from training.commands.listing import list_all
from training.commands.plan import plan
from training.commands.play import play
from training.commands.train import train

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "list": list_all,
    "play": play,
    "collect": collect,
    "convert": convert,
    "train": train,
    "plan": plan,
    "evaluate": evaluate,
}
TRACEBACK_VARIABLE = "RLVR_WORLD_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit status: 0, 2 for bad input, 130 after Ctrl-C."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="rlvr-world",
            description="Learned world models as environments: make data, train, plan, evaluate.",
            args=arguments,
        )
    except KeyboardInterrupt as stop:
        print(f"\nrlvr-world: {stop or 'stopped'}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"rlvr-world: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
