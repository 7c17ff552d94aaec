"""World models by the names that tables show."""

import shutil

import pytest

from tests.worldmodels.language.test_prompts import TEMPLATE, TURN
from tests.worldmodels.language.test_published_prompt import folder_of
from tests.worldmodels.language.tiny_lms import tiny_lm
from training.commands.models import load_multi_step_worlds, load_text_worlds
from worldmodels.folders import find
from worldmodels.language.causal_lm_files import save_causal_lm
from worldmodels.language.causal_lm_world import CausalLMWorldModel
from worldmodels.language.prompts import compact_prompt
from worldmodels.language.published_prompt import PublishedPrompt


def test_a_run_is_called_by_its_own_name(tmp_path):
    shutil.copytree(find("textgame-base"), tmp_path / "my-run" / "model")
    assert list(load_text_worlds([str(tmp_path / "my-run" / "model"), "textgame-rlvr"], tmp_path)) == [
        "my-run",
        "textgame-rlvr",
    ]


def test_two_models_of_one_name_and_other_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two of the models are called 'textgame-base'"):
        load_text_worlds(["textgame-base", "textgame-base"], tmp_path)
    with pytest.raises(ValueError, match="a SlotWorldModel; this command works on models of the class Multi"):
        load_multi_step_worlds(["textgame-base"])


def test_language_models_are_asked_as_their_data_say(tmp_path):
    speaker = str(save_causal_lm(tmp_path / "speaker", tiny_lm(), card="made on the spot"))
    for data, wanted in ((tmp_path, None), (folder_of(tmp_path / "data", [TURN], TEMPLATE), PublishedPrompt)):
        loaded = load_text_worlds([speaker, "textgame-base"], data)
        world = loaded[speaker]
        assert isinstance(world, CausalLMWorldModel)
        assert world.prompt is compact_prompt if wanted is None else isinstance(world.prompt, wanted)
