"""World models: predict the next observation.

``worldmodels.load("pusht-rlvr")`` gives a model behind ``worldmodels.api.WorldModel``. Importing this package
is light; torch is imported by the first ``load``.
"""

from __future__ import annotations

from pathlib import Path

from worldmodels.api import WorldModel


def load(name: str | Path) -> WorldModel:
    """A world model by bundled name, folder, or hub id ``owner/name``. Errors: see ``worldmodels.checkpoints.load``."""
    from worldmodels.checkpoints import load as load_checkpoint

    return load_checkpoint(name)


__all__ = ["load"]
