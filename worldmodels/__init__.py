"""World models: predict the next observation.

``worldmodels.load("pusht-rlvr")`` gives a model behind ``worldmodels.api.WorldModel``;
``worldmodels.load("thuml/rt1-world-model-multi-step-rlvr", tokenizer="thuml/rt1-compressive-tokenizer")`` a
released one. Importing this package is light; torch is imported by the first ``load``.
"""

from __future__ import annotations

from pathlib import Path

from worldmodels.api import WorldModel


def load(name: str | Path, *, tokenizer: str | Path | None = None) -> WorldModel:
    """A world model by bundled name, folder, or hub id ``owner/name``.

    Args:
        name: Which.
        tokenizer: Likewise, the tokenizer of a released transformer.

    Raises:
        FileNotFoundError: Nothing of that name, see ``worldmodels.checkpoints.load``.
        ValueError: Something else of that name, or damaged, or a tokenizer that is missing or does not fit.
    """
    from worldmodels.checkpoints import load as load_checkpoint

    return load_checkpoint(name, tokenizer=tokenizer)


__all__ = ["load"]
