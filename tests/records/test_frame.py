"""Records as one pandas table, and the notebook that reads it."""

import gzip
import json

import matplotlib
import pytest

import benchmark
from benchmark.errors import DataError
from benchmark.papers.catalogue import items
from benchmark.records.run import run
from tests.conftest import ROOT, tiny_experiment


def test_a_run_is_a_row_a_round(tmp_path):
    """Against the files: the rounds of both seeds, with the numbers of rounds.jsonl."""
    for seed in (0, 1):
        run(tiny_experiment().with_seed(seed), tmp_path)
    table = benchmark.load(tmp_path)
    lines = [
        json.loads(line)
        for path in sorted(tmp_path.glob("runs/*/seed=*/rounds.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert len(table) == len(lines)
    for row, line in zip(table.to_dict("records"), lines, strict=True):
        assert {name: row[name] for name in line} == line
    experiment = tiny_experiment()
    assert set(table.method) == {"ssfl"} and set(table.K) == {experiment.federation.K}
    assert set(table.status) == {"done"} and set(table.data) == {"digits"}


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(DataError, match="no records here"):
        benchmark.load(tmp_path / "reslts")


def test_the_notebook_runs_and_its_table_is_that_of_the_records(tmp_path, monkeypatch):
    """On one arena's committed records. Its mean of the labels alone is computed again from their files."""
    matplotlib.use("Agg")
    (tmp_path / "results" / "reference").mkdir(parents=True)
    for cell in items(["arena/mnist"], "laptop")[0].cells:
        if (folder := ROOT / "results" / "reference" / cell.cell_key).is_dir():
            (tmp_path / "results" / "reference" / cell.cell_key).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for part in json.loads((ROOT / "reports" / "records.ipynb").read_text())["cells"]:
        if part["cell_type"] == "code":
            exec("".join(part["source"]), space)
    copies = [json.loads(gzip.decompress(path.read_bytes())) for path in tmp_path.glob("results/reference/*/*.gz")]
    accuracies = [
        copy["result"]["last"]["test/accuracy"]
        for copy in copies
        if copy["experiment"]["method"]["kind"] == "server_only" and copy["seed"] < 100
    ]
    row = space["table"].loc["server_only"]  # type: ignore[attr-defined]
    assert row["count"] == len(accuracies) > 1
    assert row["mean"] == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-9)
    assert space["axes"].lines  # type: ignore[attr-defined]
