"""Reading JSON lines: broken lines cost themselves, damaged archives are one clear error."""

import gzip
import json
import logging

import pytest

from worldmodels.language.json_lines import read_json_lines, warn_left_out

LINES = b'{"a": 1}\n\n{broken\n{"a": "\xff"}\r\n  \n' + '{"a": "\u2028"}'.encode()


def doubled(value, place):
    if not isinstance(value["a"], int):
        raise ValueError(f"'a' is {value['a']!r}, not a number")
    return 2 * value["a"], place


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_broken_line_is_named_and_costs_itself(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if name.endswith(".gz") else LINES)
    broken: list[str] = []
    assert list(read_json_lines(path, doubled, broken=broken)) == [(2, f"{name}/1")]
    assert [message.partition(": ")[0] for message in broken] == [f"{path}:{line}" for line in (3, 4, 6)]
    for message, why in zip(
        broken, ("Expecting property name", "can't decode byte 0xff", r"'\u2028'"), strict=True
    ):
        assert why in message
    with pytest.raises(ValueError, match=rf"{name}:3: "):
        list(read_json_lines(path, doubled))


def test_lines_are_those_of_json_whatever_else_ends_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    values = ["\u2028", "\u0085", "\x0c\x1c"]
    path.write_bytes("\r\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode())
    assert list(read_json_lines(path, lambda value, _: value)) == values


def test_nesting_without_end_is_one_broken_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[" * 100_000 + "\n7\n")
    broken: list[str] = []
    assert list(read_json_lines(path, lambda value, _: value, broken=broken)) == [7]
    assert len(broken) == 1


WHOLE = gzip.compress(b'{"a": 1}\n' * 5000)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: len(WHOLE) // 2],
        b'{"a": 1}\n',
        WHOLE[:12] + b"\xff" * 20 + WHOLE[32:],
        WHOLE[:-8] + bytes(8),
    ],
    ids=["truncated", "never zipped", "damaged inside", "another checksum"],
)
def test_a_damaged_archive_is_one_error_that_names_it_and_the_remedy(tmp_path, content):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"rows\.jsonl\.gz is no whole gzip archive .*gzip -dc rows\.jsonl\.gz"
    ):
        list(read_json_lines(path, doubled, broken=[]))


def test_what_is_left_out_is_told_line_by_line_up_to_a_number(caplog):
    with caplog.at_level(logging.WARNING):
        warn_left_out([])
        assert not caplog.messages
        warn_left_out(["rows.jsonl:3: why"])
        assert caplog.messages == ["left out: rows.jsonl:3: why"]
        caplog.clear()
        warn_left_out([f"rows.jsonl:{line}: why" for line in range(25)])
    assert len(caplog.messages) == 11
    assert caplog.messages[-1] == "left out: 25 lines in all"
