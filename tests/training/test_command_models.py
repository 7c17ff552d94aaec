"""World models by the names that tables show."""

import shutil

import pytest

from training.commands.models import load_multi_step_worlds, load_slot_worlds
from worldmodels.folders import find


def test_a_run_is_called_by_its_own_name(tmp_path):
    shutil.copytree(find("textgame-base"), tmp_path / "my-run" / "model")
    assert list(load_slot_worlds([str(tmp_path / "my-run" / "model"), "textgame-rlvr"])) == [
        "my-run",
        "textgame-rlvr",
    ]


def test_two_models_of_one_name_and_other_kinds_are_refused():
    with pytest.raises(ValueError, match="two of the models are called 'textgame-base'"):
        load_slot_worlds(["textgame-base", "textgame-base"])
    with pytest.raises(ValueError, match="a SlotWorldModel; this command works on models of the class Multi"):
        load_multi_step_worlds(["textgame-base"])
