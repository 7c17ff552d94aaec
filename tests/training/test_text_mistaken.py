"""What searches in a model ask, with the answers of the true games."""

import pytest

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import step
from tests.worldmodels.language.tiny_slots import tiny_slot_world
from training.provenance import weights_sha256
from training.text_data import HELD_OUT_GAME, TextCollectConfig, collect_mistaken, load_rows
from training.text_mistaken import MistakenConfig, mistaken_rows
from training.text_slots import slot_world
from worldmodels.api import History

SMALL = MistakenConfig(budget=120, wrong=10, right=3)


@pytest.fixture(scope="module")
def world():
    return slot_world("textgame-base")


@pytest.mark.parametrize("name", ["mix-paint", "open-vault"])
def test_rows_are_true_and_the_same_again(world, name):
    rows = mistaken_rows(GAMES[name], 75_000, world, SMALL)
    assert 0 < len(rows) <= SMALL.wrong + SMALL.right
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.after == step(GAMES[name], row.before, row.action).state
        assert row.episode == f"{name}/75000-mistaken"
    again = mistaken_rows(GAMES[name], 75_000, world, SMALL)
    assert [(row.id, row.before, row.after) for row in again] == [
        (row.id, row.before, row.after) for row in rows
    ]


def test_most_rows_were_answered_wrongly(world):
    rows = [
        row
        for game in (GAMES[HELD_OUT_GAME], GAMES["light-lamp"])
        for row in mistaken_rows(game, 75_001, world, SMALL)
    ]
    state = world.start([History(observations=[row.before]) for row in rows], seeds=[0] * len(rows))
    later, _ = world.step(state, [row.action for row in rows], temperature=0.0)
    wrong = [said != row.after for said, row in zip(later.states, rows, strict=True)]
    assert sum(wrong) > len(rows) / 2
    assert not all(wrong)  # some lessons say what to go on doing


def test_the_files_lie_beside_the_others_and_know_no_held_out_game(tmp_path, world):
    config = TextCollectConfig(variations=1, mistaken=MistakenConfig(budget=20, wrong=4, right=1))
    counts = collect_mistaken(tmp_path, world, config)
    model = weights_sha256(world.model)[:8]
    assert set(counts) == {f"train-mistaken-{model}.jsonl.gz", f"posttrain-mistaken-{model}.jsonl.gz"}
    for split in ("train", "posttrain"):
        rows, _ = load_rows(tmp_path, split)
        assert len(rows) == counts[f"{split}-mistaken-{model}.jsonl.gz"]
        assert {row.game for row in rows} == set(GAMES) - {HELD_OUT_GAME}
    path = tmp_path / f"train-mistaken-{model}.jsonl.gz"
    before = path.stat().st_mtime_ns
    assert collect_mistaken(tmp_path, world, config) == {}  # what is there stays
    assert path.stat().st_mtime_ns == before
    collect_mistaken(tmp_path, tiny_slot_world(seed=1), config)  # another model has other mistakes
    assert len(list(tmp_path.iterdir())) == 4
