"""Records as one pandas table, and the notebook that reads it."""

import gzip
import json

import matplotlib
import pytest

import benchmark
from benchmark.errors import DataError
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


def test_the_notebook_runs_and_its_table_is_that_of_the_records(monkeypatch):
    """Its mean of the labels alone is recomputed from the committed files without pandas."""
    matplotlib.use("Agg")
    monkeypatch.chdir(ROOT)
    space: dict[str, object] = {}
    for cell in json.loads((ROOT / "reports" / "records.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), space)
    accuracies = []
    for path in ROOT.glob("results/reference/*/seed=*.json.gz"):
        copy = json.loads(gzip.decompress(path.read_bytes()))
        experiment, result = copy["experiment"], copy["result"]
        chosen = (experiment["method"]["kind"], experiment["data"]["name"], result["profile"])
        if chosen == ("server_only", "mnist", "laptop") and copy["seed"] < 100 and "test/accuracy" in result["last"]:
            accuracies.append(result["last"]["test/accuracy"])
    row = space["table"].loc["server_only"]  # type: ignore[attr-defined]
    assert row["count"] == len(accuracies) > 10
    assert row["mean"] == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-9)
    assert space["axes"].lines  # type: ignore[attr-defined]
