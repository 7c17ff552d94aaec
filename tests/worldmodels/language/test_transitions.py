"""Transitions in files."""

import gzip
import itertools

import pytest

from tests.worldmodels.language.tiny_slots import turns
from worldmodels.language.transitions import read_transitions, write_transitions


def test_round_trip_and_equal_bytes(tmp_path):
    rows = turns(limit=20)
    assert write_transitions(tmp_path / "a.jsonl.gz", rows) == 20
    write_transitions(tmp_path / "b.jsonl.gz", rows)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    again = list(read_transitions(tmp_path / "a.jsonl.gz"))
    assert [row.id for row in again] == [row.id for row in rows]
    for one, other in zip(again, rows, strict=True):
        assert (one.game, one.action) == (other.game, other.action)
        assert (one.before, one.after) == (other.before, other.after)
        shared = [
            uuid for uuid in one.before.objects if one.after.objects.get(uuid) is one.before.objects[uuid]
        ]
        assert shared  # what stays is kept once
    assert again[0].episode == "boil-water/3"
    assert again[0].before == again[1].before
    assert again[0].before is again[1].before  # from line to line, too
    for one, other in itertools.pairwise(again):
        for uuid, item in one.before.objects.items():
            assert other.before.objects[uuid] is item or other.before.objects[uuid] != item


def test_a_broken_line_is_named_and_costs_that_line_only(tmp_path):
    write_transitions(tmp_path / "rows.jsonl.gz", turns(limit=3))
    lines = gzip.decompress((tmp_path / "rows.jsonl.gz").read_bytes()).decode().splitlines()
    bad = ['{"game": "x", ', '{"game": 7}', '{"game": "x", "before": {}, "after": {}}', "[]", b"\xff\xfe"]
    with (tmp_path / "mixed.jsonl").open("wb") as file:
        for line in [lines[0], *bad, "", lines[1]]:
            file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    broken = []
    rows = list(read_transitions(tmp_path / "mixed.jsonl", broken=broken))
    assert len(rows) == 2
    assert [message.split(": ")[0].rpartition(":")[2] for message in broken] == ["2", "3", "4", "5", "6"]
    assert all("mixed.jsonl" in message for message in broken)
    with pytest.raises(ValueError, match=r"mixed\.jsonl:2"):
        list(read_transitions(tmp_path / "mixed.jsonl"))


def test_published_records_are_read(conformance):
    rows = list(read_transitions(conformance("language/bytesized32_test.jsonl.gz")))
    assert len(rows) == 2954
    assert len({row.id for row in rows}) == 2954
    assert rows[0].action == "take yourself"


def test_nothing_to_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no transitions"):
        list(read_transitions(tmp_path))
    with pytest.raises(ValueError, match=r"\.jsonl\.gz"):
        write_transitions(tmp_path / "a.json", [])
    assert not list(tmp_path.iterdir())
