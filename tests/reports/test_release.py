"""The release of all run records: what the files contain, that the card's lines reproduce a table, and the metadata."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmark
from benchmark.cli.main import main
from benchmark.errors import DataError
from benchmark.papers.items import items
from benchmark.records.collect import read_records
from reports.entries import item_rows
from reports.item_results import ItemResults
from reports.release import CONFORMS, described, seed_kind, write_release
from tests.conftest import ROOT
from tests.reports.fakes import small
from tests.reports.test_board import sent, strangers

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra parquet, is not installed")


@pytest.fixture(scope="module")
def of_mnist():
    """Return one item's committed records."""
    (item,) = items(["arena/mnist"], "laptop")
    keys = [cell.cell_key for cell in item.cells]
    records = read_records(ROOT / "results", keys, with_reference=True, with_runs=False)
    return ItemResults(item, records), [record for seeds in records.values() for record in seeds.values()]


@pytest.fixture(scope="module")
def release(of_mnist, tmp_path_factory):
    """Write its release, with a submission of three runs; one of them was trained again."""
    reported, records = of_mnist
    (digits,) = items(["arena/digits"], "demo")
    folder = tmp_path_factory.mktemp("release")
    again = {"by": "B", "hardware": "h", "code": "c", "runs": ["two"]}
    runs = []
    for name, run in zip(("one", "two", "three"), strangers(digits, [0.5, 0.6, 0.7]), strict=True):
        data = {**run.experiment["data"], "name": "folder:/home/ann/secret/pets"}
        runs.append(replace(run, path=Path(name), experiment={**run.experiment, "data": data}))
    write_release([reported], records, [sent(runs, {"ab" * 8: "Mine"}, [again])], folder)
    return folder


def test_the_card_s_lines_reproduce_the_table(release, of_mnist, monkeypatch, capsys):
    """As a reader types them, in the folder; against the table's own numbers."""
    monkeypatch.chdir(release)
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    lines = [line for line in code.splitlines() if line and not line.startswith(("import", "print"))]
    assert len(lines) == 2
    space: dict[str, Any] = {}
    exec(code, space)
    table = space["table"]
    expected = {row["label"]: row for row in item_rows(of_mnist[0]) if row.get("n")}
    assert len(expected) > 10 and set(table.index) == set(expected)
    for label, row in expected.items():
        assert table.loc[label, "count"] == row["n"]
        assert table.loc[label, "mean"] == pytest.approx(row["mean"], abs=1e-12)
        if row["n"] > 1:
            assert table.loc[label, "std"] == pytest.approx(row["std"], abs=1e-12)
    assert label in capsys.readouterr().out


def test_all_runs_are_there_and_say_whose_they_are(release, of_mnist):
    import pandas as pd

    runs = pd.read_parquet(release / "runs.parquet")
    assert len(runs) == len(of_mnist[1]) + 3
    theirs = runs[runs["trained_by"] == "Ann"]
    assert list(theirs["trained_again"]) == [False, True, False] and not runs["trained_again"].sum() > 1
    assert list(theirs["accuracy"]) == [0.5, 0.6, 0.7] and set(theirs["method"]) == {"strangers_file:Mine"}
    assert not any(b"/home/ann" in path.read_bytes() for path in release.iterdir())
    record = of_mnist[1][0]
    (row,) = runs[(runs["cell_key"] == record.cell_key) & (runs["seed"] == record.seed)].to_dict("records")
    assert row["accuracy"] == record.selected("test/accuracy") and row["bytes_up"] == record.result["cost"]["bytes_up"]
    assert json.loads(row["experiment"]) == record.experiment


def test_load_reads_a_release_like_records(release, of_mnist):
    table = benchmark.load(release)
    record = of_mnist[1][0]
    lines = table[(table["cell_key"] == record.cell_key) & (table["seed"] == record.seed)].to_dict("records")
    assert len(lines) == len(record.rounds)
    for line, right in zip(lines, record.rounds, strict=True):
        assert {name: line[name] for name in right} == dict(right)


def test_a_damaged_release_is_named(tmp_path):
    (tmp_path / "rounds.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="rounds.parquet"):
        benchmark.load(tmp_path)


def test_the_metadata_describe_every_column_of_every_file(release):
    """Types and hashes against the files; `mlcroissant validate` was run on a release by hand."""
    import hashlib

    import pandas as pd

    metadata = json.loads((release / "croissant.json").read_text())
    assert metadata["conformsTo"] == CONFORMS and metadata["license"] and metadata["citeAs"]
    required = ("dataCollection", "dataLimitations", "dataBiases", "personalSensitiveInformation", "dataUseCases")
    assert all(metadata[f"rai:{name}"] for name in required)
    hashes = {entry["@id"]: entry["sha256"] for entry in metadata["distribution"]}
    assert hashes.keys() == {path.name for path in release.glob("*.parquet")}
    for name, digest in hashes.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    card = (release / "README.md").read_text()
    for part in metadata["recordSet"]:
        frame = pd.read_parquet(release / f"{part['@id']}.parquet")
        assert [field["name"] for field in part["field"]] == list(frame.columns)
        for field in part["field"]:
            kind = {"sc:Float": "f", "sc:Integer": "i", "sc:Boolean": "b"}.get(field["dataType"])
            assert kind is None or frame[field["name"]].dtype.kind == kind
            assert field["description"] and f"`{field['name']}`" in card


def test_columns_and_seeds_are_described_by_what_they_are():
    texts = {"columns": {"seed": "the seed"}}
    assert described(texts, "seed") == "the seed" and "fraction" in described(texts, "test/accuracy")
    kinds = {0: "exploratory", 99: "exploratory", 100: "confirmatory", 999: "confirmatory", 1000: "tuning"}
    assert {seed: seed_kind(seed) for seed in kinds} == kinds


def test_the_command_writes_the_release(tmp_path, monkeypatch, capsys):
    item, _ = small()
    monkeypatch.setattr("benchmark.cli.report.ITEMS", ())
    monkeypatch.setattr("benchmark.cli.report.VARIANTS", ())
    results = tmp_path / "results"
    results.mkdir()
    assert main(["report", "--release", str(tmp_path / "out"), "--results", str(results)]) == DataError.exit_code
    (item,) = items(["arena/mnist"], "laptop")
    key = item.cells[0].cell_key
    (results / "reference").mkdir()
    (results / "reference" / key).symlink_to(ROOT / "results" / "reference" / key)
    assert main(["report", "--release", str(tmp_path / "out"), "--results", str(results)]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "out").iterdir()) and len(names) == 5
