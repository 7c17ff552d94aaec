"""The world models that tables compare, and which of them are tested against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from training.textgame_evaluate import TextWorldModel
    from worldmodels.video.multi_step_world import MultiStepWorldModel
    from worldmodels.video.object_world import ObjectWorldModel

ModelT = TypeVar("ModelT")

# The hoped-for better one first.
PAIRS = (("pusht-rlvr", "pusht-base"), ("pusht-rlvr", "pusht-more-mle"))
DRAWER_PAIRS = (
    ("drawer-rlvr", "drawer-base"),
    ("drawer-rlvr", "drawer-more-mle"),
    ("drawer-rlvr-no-repeats", "drawer-base"),
)
TEXT_PAIRS = (
    ("textgame-rlvr", "textgame-base"),
    ("textgame-rlvr", "textgame-more-mle"),
    *(
        (f"paper-textgame-rlvr-{size}", f"paper-textgame-{other}-{size}")
        for size in ("1.5b", "7b")
        for other in ("sft", "more-sft")
    ),
)


def load_object_worlds(names: Sequence[str]) -> dict[str, ObjectWorldModel]:
    """World models of PushT by the names that tables show.

    Raises:
        FileNotFoundError: Nothing of that name.
        ValueError: Another kind of model, or two of one name.
    """
    from worldmodels.video.object_world import ObjectWorldModel

    return _loaded(names, ObjectWorldModel)


def load_multi_step_worlds(names: Sequence[str]) -> dict[str, MultiStepWorldModel]:
    """The same for world models of drawer frames."""
    from worldmodels.video.multi_step_world import MultiStepWorldModel

    return _loaded(names, MultiStepWorldModel)


def load_text_worlds(names: Sequence[str], data: Path) -> dict[str, TextWorldModel]:
    """The same for world models of text games; language models get the published prompt if the data hold it."""
    from worldmodels.language.causal_lm_world import CausalLMWorldModel
    from worldmodels.language.published_prompt import TEMPLATE, PublishedPrompt
    from worldmodels.language.slot_world import SlotWorldModel

    loaded: dict[str, TextWorldModel] = _loaded(names, SlotWorldModel, CausalLMWorldModel)
    if not (data / TEMPLATE).is_file():
        return loaded
    prompt = PublishedPrompt.read(data)
    return {
        name: model.asked_by(prompt) if isinstance(model, CausalLMWorldModel) else model
        for name, model in loaded.items()
    }


def _loaded(names: Sequence[str], *kinds: type[ModelT]) -> dict[str, ModelT]:
    from worldmodels.checkpoints import load

    loaded: dict[str, ModelT] = {}
    for name in names:
        model = load(name)
        if not isinstance(model, kinds):
            raise ValueError(
                f"{name!r} is a {type(model).__name__}; this command works on models of the class"
                f" {' or '.join(kind.__name__ for kind in kinds)}"
            )
        if (shown := shown_name(name)) in loaded:
            raise ValueError(f"two of the models are called {shown!r}; rename the folder of one")
        loaded[shown] = model
    return loaded


def shown_name(name: str) -> str:
    """What tables call a checkpoint: its run, if it is the ``model`` folder of one."""
    path = Path(name)
    return path.resolve().parent.name if path.name == "model" and path.is_dir() else name
