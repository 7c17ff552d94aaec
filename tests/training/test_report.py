from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn

from tests.training.tiny_pusht import tiny_data, tiny_model
from training.fit import seeded
from training.provenance import weights_sha256
from training.report import Column, Report, RowLog, Table, manifest, model_sha256, sha256_of, source_of
from training.statistics import Estimate

COLUMNS = (
    Column(key="rate", title="rate %", digits=1, scale=100, show_n=True),
    Column(key="steps", title="steps"),
    Column(key="tiny", title="tiny", digits=None),
    Column(key="said", title="said"),
)
TABLE = Table(
    name="rates",
    title="Rates",
    columns=COLUMNS,
    rows={
        "first": {"rate": Estimate(0.5, 0.25, 0.75, 8), "steps": 1_234_567, "tiny": 0.000123, "said": "yes"},
        "second": {"steps": 0},
    },
    notes=("a note",),
)
REPORT = Report(
    name="rates",
    tables=(TABLE,),
    manifest={"protocol_sha256": "ab" * 32, "date": "today"},
    details={"x": (1,)},
)


def test_a_table_says_the_same_everywhere():
    line = next(line for line in TABLE.markdown().splitlines() if line.startswith("| first"))
    assert line == "| first | 50.0 [25.0, 75.0] n=8 | 1,234,567 | 0.000123 | yes |"
    assert "| second | - | 0 | - | - |" in TABLE.markdown()
    assert "- a note" in TABLE.markdown()
    console = Console(file=io.StringIO(), width=120)
    REPORT.show(console)
    shown = console.file.getvalue()
    assert all(text in shown for text in ("50.0 [25.0, 75.0] n=8", "1,234,567", "a note", "Rates"))
    stored = TABLE.to_json()["rows"]["first"]
    assert stored["rate"] == {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}  # not scaled, not rounded


def test_a_report_is_written_whole_and_found_again(tmp_path):
    path = REPORT.write(tmp_path / "deep")
    content = json.loads(path.read_text())
    assert content["tables"]["rates"]["rows"]["second"] == {"steps": 0}
    assert content["x"] == [1]
    assert path.with_suffix(".md").read_text() == REPORT.markdown()
    assert sorted(p.name for p in path.parent.iterdir()) == ["rates.json", "rates.md"]
    assert REPORT.table("rates") is TABLE
    with pytest.raises(KeyError, match="there are rates"):
        REPORT.table("rate")


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match=r"file.*choose another folder"):
        REPORT.write(tmp_path / "file")


def test_a_manifest_names_protocol_weights_and_data(tmp_path):
    data = tiny_data(tmp_path / "store", episodes=2)
    model = tiny_model(seed=0)
    weights = {"m": model_sha256(model)}
    made = manifest(protocol={"b": (1, 2), "a": 0}, weights=weights, data=source_of(data.store, "train"))
    assert made["protocol_sha256"] == sha256_of({"a": 0, "b": [1, 2]})
    assert made["data"]["digest"] == data.store.digest()
    assert made["data"]["folder"] == "store"  # and not where that lies
    assert "trials" in made["data"]["note"]
    assert made["versions"]["torch"]
    assert made["hardware"]["command"]
    json.dumps(made)


def test_weights_hash_sees_values_and_names():
    def linear(seed):
        return seeded(lambda: nn.Linear(2, 2), seed)

    assert weights_sha256(linear(0)) == weights_sha256(linear(0)) != weights_sha256(linear(1))
    assert weights_sha256(nn.Sequential(linear(0))) != weights_sha256(linear(0))
    buffers = [nn.Module(), nn.Module()]
    for value, module in enumerate(buffers):
        module.register_buffer("fixed", torch.tensor(float(value)), persistent=False)
    assert weights_sha256(buffers[0]) != weights_sha256(buffers[1])


def test_model_hash_sees_weights_and_settings():
    model = tiny_model(seed=0)
    plain = model_sha256(model)
    assert plain == model_sha256(tiny_model(seed=0)) != model_sha256(tiny_model(seed=1))
    assert plain != model_sha256(tiny_model(seed=0, tokenizer_seed=1))
    model.top_k = 5
    assert model_sha256(model) != plain


def test_a_row_log_goes_on_where_it_stopped(tmp_path):
    log = RowLog(tmp_path, "A row, 1", {"protocol": 1})
    log.add("a", {"x": (1, 2)})
    log.add("b", {"x": 3})
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"part": "c", "x"')  # killed while writing
    again = RowLog(tmp_path, "A row, 1", {"protocol": 1})
    assert again.parts == {"a": {"x": [1, 2]}, "b": {"x": 3}} == log.parts
    assert again.missing(["a", "c", "b", "d"]) == ["c", "d"]
    again.add("c", {"x": 5})
    assert RowLog(tmp_path, "A row, 1", {"protocol": 1}).missing(["a", "b", "c"]) == []
    assert RowLog(tmp_path, "A row, 1", {"protocol": 2}).parts == {}
    assert json.loads(path.read_text().splitlines()[0]) == {"identity": {"protocol": 1}}


def test_a_row_log_without_a_folder_keeps_its_parts_in_memory():
    log = RowLog(None, "row", {})
    log.add("a", {"x": 1})
    assert log.parts == {"a": {"x": 1}}
