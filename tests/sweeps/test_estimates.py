"""Estimates held to outcomes: what counts as one, what is left of a run, and the table that is committed."""

import json

import pytest

from benchmark.cli.main import main
from benchmark.papers.catalogue import items
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.estimates import Estimates, Held, outcome_of, stretch, table
from sweeps.speed import Stopwatch
from tests.conftest import ROOT


def test_a_finished_run_of_the_cell_is_its_other_seeds_estimate(tiny, tmp_path):
    estimates = Estimates(tmp_path, stopwatch=Stopwatch(repeats=1))
    probed = estimates.whole(tiny.with_seed(1))
    assert estimates.stopwatch.timed > 0
    result = run(tiny, tmp_path)
    timed = estimates.stopwatch.timed
    assert estimates.whole(tiny.with_seed(1)) == result["cpu_seconds"] and estimates.stopwatch.timed == timed
    assert estimates.counted(tiny) == pytest.approx(probed)  # what was timed is kept


@pytest.mark.parametrize("change", ["other hardware", "other engine", "from before CPU seconds", "diverged"])
def test_what_is_no_outcome_of_this_machine(change, tiny, tmp_path):
    run(tiny, tmp_path)
    folder = run_folder(tmp_path, tiny)
    assert outcome_of(folder) is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    if change == "other hardware":
        manifest["hardware"]["cores"] += 1
    elif change == "other engine":
        manifest["engine"]["name"] = "cpu"
    elif change == "diverged":
        result["status"] = "diverged"
    else:
        del result["cpu_seconds"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "result.json").write_text(json.dumps(result))
    assert outcome_of(folder) is None


def test_what_is_left_of_a_run_by_its_local_steps(tiny, tmp_path):
    """Nothing is done: all. Two of three equal rounds are done: a third."""
    estimates = Estimates(tmp_path)
    assert estimates.share_left(tiny) == 1.0
    run(tiny, tmp_path)
    path = run_folder(tmp_path, tiny) / "rounds.jsonl"
    assert estimates.share_left(tiny) == 0.0
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert estimates.share_left(tiny) == pytest.approx(1 / 3)


def test_the_table_by_hand():
    """12/10 and 30/50: 1.2 is within a quarter, 0.6 is not; in sum 42/60 = 0.7."""
    rows = [Held(name="a", seed=0, estimate=12.0, outcome=10.0), Held(name="b", seed=0, estimate=30.0, outcome=50.0)]
    assert table(rows, "x/y", "laptop") == {
        "item": "x/y",
        "profile": "laptop",
        "runs": 2,
        "within_25_percent": 1,
        "estimate_cpu_seconds": 42.0,
        "outcome_cpu_seconds": 60.0,
        "ratio": 0.7,
        "least_ratio": 0.6,
        "greatest_ratio": 1.2,
    }


def test_more_runs_than_cores_share_them(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert (stretch(1), stretch(4), stretch(6)) == (1.0, 1.0, 1.5)


def test_the_command_holds_estimates_to_records_and_without_any_it_says_so(tmp_path, capsys):
    """The shortest cell of the demo: the server's labels alone."""
    (item,) = items(["ssfl/tab2"], "demo", [])
    words = ["plan", "ssfl/tab2", "--profile", "demo", "--check", "--json", "--results", str(tmp_path)]
    assert main(words) == 66
    assert "no finished run of these with CPU seconds" in capsys.readouterr().err
    outcome = run(item.cell("Server only").experiment, tmp_path)["cpu_seconds"]
    assert main([*words, "--out", str(tmp_path / "estimates.json")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "estimates.json").read_text())
    (row,) = shown["runs"]
    assert (row["item"], row["name"], row["seed"], row["outcome"]) == ("ssfl/tab2", "Server only", 0, outcome)
    assert row["ratio"] == pytest.approx(row["estimate"] / outcome, abs=5e-4)
    assert 0.3 < row["ratio"] < 3.0  # the machine may be busy; a wrong unit or a missing part is further off


def test_the_committed_table_says_that_the_sum_of_each_item_is_within_a_quarter():
    found = json.loads((ROOT / "results" / "benchmarks" / "estimates.json").read_text())
    assert found["items"] and all(0.75 <= row["ratio"] <= 1.25 for row in found["items"])
    for row in found["items"]:
        runs = [entry for entry in found["runs"] if entry["item"] == row["item"]]
        assert row["estimate_cpu_seconds"] == pytest.approx(sum(entry["estimate"] for entry in runs), abs=0.1)
        assert row["within_25_percent"] == sum(abs(entry["ratio"] - 1) <= 0.25 for entry in runs)


def test_the_plan_of_a_budget_names_what_it_leaves_out(tmp_path, capsys):
    """A minute on one core is less than the eleven cells of the demo take, and more than its least one."""
    words = [
        "plan",
        "ssfl/tab2",
        "--profile",
        "demo",
        "--budget",
        "60core-s",
        "--jobs",
        "1",
        "--results",
        str(tmp_path),
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget_seconds"] == 60 and found["budget_kind"] == "core"
    assert 0 < found["fitting_runs"] < 33 and found["fitting_seconds"] <= 60 and found["left_out"]
    assert not list(tmp_path.iterdir())
