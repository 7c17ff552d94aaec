"""Text-game data and the baselines on them."""

import dataclasses

import numpy as np
import pytest

from rlvr_envs.simulators.text_games.catalogue import GAMES
from rlvr_envs.simulators.text_games.engine import advise, start, step
from tests.worldmodels.language.tiny_slots import turns
from training.text_baselines import TrainingTable, nothing_changes, perfect
from training.text_data import (
    HELD_OUT_GAME,
    SPLITS,
    LengthBatches,
    TextCollectConfig,
    TextRows,
    collect_text_games,
    language_of,
    load_rows,
    variation_rows,
)
from training.text_searched import SearchedConfig
from worldmodels.language.compact_answers import read_compact
from worldmodels.language.transitions import GameTransition

SMALL = TextCollectConfig(variations=1, rows=6, search=SearchedConfig(budget=40, rows=5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("textgame")
    collect_text_games(path, SMALL)
    return path


def test_splits_share_no_variation_and_one_game_is_held_out(folder):
    seen = {}
    for split in SPLITS:
        rows, _ = load_rows(folder, split)
        seen[split] = {row.episode for row in rows}
        games = {row.game for row in rows}
        assert games == (set(GAMES) if split == "test" else set(GAMES) - {HELD_OUT_GAME})
    for one in SPLITS:
        for other in SPLITS:
            assert one == other or not seen[one] & seen[other]


def test_collecting_again_changes_nothing_and_two_collections_are_equal(folder, tmp_path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert collect_text_games(folder, SMALL) == {}
    collect_text_games(tmp_path, SMALL)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_every_split_has_ways_and_searches(folder):
    for split in SPLITS:
        rows, _ = load_rows(folder, split)
        for game in {row.game for row in rows}:
            ways = [row for row in rows if row.game == game and not row.episode.endswith("-searched")]
            searched = [row for row in rows if row.game == game and row.episode.endswith("-searched")]
            assert ways
            assert 0 < len(searched) <= SMALL.search.rows
            assert not {row.episode.removesuffix("-searched") for row in searched} & {
                row.episode for row in ways
            }


def test_rows_are_thinned_out_and_true():
    game = GAMES["boil-water"]
    rows = variation_rows(game, 4, SMALL)
    way = variation_rows(game, 4, dataclasses.replace(SMALL, rows=0))
    assert {row.id for row in way} < {row.id for row in rows}
    assert len(rows) == len(way) + SMALL.rows
    assert len({row.before.to_text() for row in way}) == len(way)  # one step in each state
    assert len({row.id for row in rows}) == len(rows)
    assert all(step(game, row.before, row.action).state == row.after for row in rows)


@pytest.mark.parametrize("name", sorted(GAMES))
def test_the_way_itself_is_kept_from_the_start_to_the_victory(name):
    config = TextCollectConfig(variations=1, rows=0)
    game = GAMES[name]
    rows = variation_rows(game, 4, config)  # an even number: the solver's way
    state = start(game, 4)
    while not state.game_over:
        after = step(game, state, advise(game, state)).state
        assert any(row.before == state and row.after == after for row in rows), state.to_text()[:200]
        state = after
    assert state.game_won


def test_rows_become_questions_and_answers(folder):
    rows, _ = load_rows(folder, "train")
    vocabulary, schema = language_of(rows)
    found = TextRows.of(rows, vocabulary, schema, max_answer=192)
    assert len(found) + found.left_out == len(rows)
    assert found.left_out == 0
    for row, answer in zip(found.rows, found.answers, strict=True):
        assert read_compact(answer, row.before, vocabulary).state == row.after
    short = TextRows.of(rows, vocabulary, schema, max_answer=2)
    assert short.left_out > 0
    assert 5 < len(vocabulary.words) < 500
    assert not any("(ID:" in word for word in vocabulary.words)


def test_batches_hold_every_row_once_an_epoch():
    batches = LengthBatches([n % 7 for n in range(40)], batch=8, seed=0)
    rows = [row for step in range(5) for row in batches.rows(step)]
    assert sorted(rows) == list(range(40))
    assert batches.rows(7) == LengthBatches([n % 7 for n in range(40)], batch=8, seed=0).rows(7)
    assert batches.rows(7) != LengthBatches([n % 7 for n in range(40)], batch=8, seed=1).rows(7)
    assert LengthBatches([1, 2], batch=8, seed=0).rows(3) in ([0, 1], [1, 0])


def test_a_missing_split_is_named(folder, tmp_path):
    (tmp_path / "train.jsonl.gz").write_bytes((folder / "train.jsonl.gz").read_bytes())
    with pytest.raises(FileNotFoundError, match="split 'test'"):
        load_rows(tmp_path, "test")


class TestBaselines:
    rows = turns("boil-water", 3, 60)

    def test_the_perfect_row_is_perfect_and_doing_nothing_is_not(self):
        numbers = range(len(self.rows))
        right = [row.after for row in self.rows]
        assert perfect(self.rows, numbers) == right
        assert nothing_changes(self.rows, numbers) == [row.before for row in self.rows]
        assert nothing_changes(self.rows, numbers) != right

    def test_looking_up_what_was_seen(self):
        table = TrainingTable(self.rows[:30])
        numbers = range(len(self.rows))
        found = table.lookup(self.rows, numbers)
        for row, said in zip(self.rows[:30], found[:30], strict=True):
            assert said == row.after
            assert table.twin(row) == row.after
            assert table.knows_action(row)
        for row, said in zip(self.rows[30:], found[30:], strict=True):
            assert said == (table.twin(row) or row.before)

    def test_a_neighbour_repeats_its_change(self):
        first = next(row for row in self.rows if row.after != row.before and "take" in row.action)
        table = TrainingTable([first])
        assert table.neighbour([first], [0]) == [first.after]
        aside = dataclasses.replace(first, action="do something unheard of")
        assert table.neighbour([aside], [0]) == [aside.before]
        fewer = dict(list(first.before.objects.items())[:3])
        cut = dataclasses.replace(first, before=dataclasses.replace(first.before, objects=fewer))
        assert set(table.neighbour([cut], [0])[0].objects) >= set(fewer)

    def test_other_games_do_not_count(self):
        table = TrainingTable(self.rows)
        stranger = GameTransition(
            id="x/0/0",
            game="x",
            before=self.rows[0].before,
            action=self.rows[0].action,
            after=self.rows[0].after,
        )
        assert table.twin(stranger) is None
        assert not table.knows_action(stranger)
        assert np.all([table.twin(row) is not None for row in self.rows])
