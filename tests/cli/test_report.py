"""`fssl report` and `fssl reproduce`: trained once, then never again; committed copies stand in for runs; what is shown
and trained, and how it ends, when something is wrong."""

import json
import os
import re
import signal
import threading
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from benchmark.cli import launch, report, reproduce
from benchmark.cli.main import main
from benchmark.errors import CannotWrite
from benchmark.experiment import to_json
from benchmark.papers import items as paper_items
from benchmark.papers.item import Cell, Claim, Item, PublishedValue
from benchmark.records import collect
from benchmark.records.collect import read_once, read_records
from benchmark.records.copies import write_reference
from benchmark.records.record import Records, run_folder
from benchmark.records.run import run
from reports.own_items import with_own
from sweeps.plan import plan
from sweeps.workers import LocalWorkers
from tests.conftest import ROOT, record_of, tiny_experiment, wait_until
from tests.sweeps.here import in_this_process


def small_item(profile: str) -> Item:
    """Make two cells of the tiny experiment, in place of Table 2."""
    tiny = replace(tiny_experiment(), profile=profile)
    other = replace(tiny, optimizer=replace(tiny.optimizer, lr=0.01))
    printed = {"test/accuracy": PublishedValue(value=80.0)}
    contrast = {"Grouping": 1, "FedAvg": -1}
    cells = tuple(
        Cell(label=name, setting={"method": name, "C": 4}, experiment=experiment, published=printed)
        for name, experiment in (("FedAvg", tiny), ("Grouping", other))
    )
    claim = Claim(name="n", quote="", source="ours", contrasts=(contrast,), form="improves", least=0.005)
    return Item(name="ssfl/tab2", title="t", profile=profile, cells=cells, claims=(claim,), seeds=2)


@pytest.fixture
def places(tmp_path, monkeypatch):
    for module in (paper_items, report):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/tab2": small_item})
        monkeypatch.setattr(module, "VARIANTS", {}, raising=False)
    monkeypatch.setattr(launch, "LocalWorkers", in_this_process)
    return ["--results", str(tmp_path)]


WORDS = ["reproduce", "ssfl/tab2", "--profile", "demo"]


def results_of(folder: Path) -> dict[Path, int]:
    """Return the results of the runs in a folder, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/result.json")}


def test_a_record_that_several_items_show_is_read_once(monkeypatch):
    """A folder of ten thousand runs took three times its memory."""
    read = Mock(wraps=collect.read_copy)
    monkeypatch.setattr(collect, "read_copy", read)
    reading = partial(read_records, with_runs=False)
    first = report.on_disk(["ssfl/tab2", "ssfl/figd3"], ["laptop"], ROOT / "results", reading)
    paths = [call.args[0] for call in read.call_args_list]
    assert len(paths) > len(set(paths)) > 0  # they share cells
    read.reset_mock()
    assert report.on_disk(["ssfl/tab2", "ssfl/figd3"], ["laptop"], ROOT / "results", read_once(reading)) == first
    assert sorted(call.args[0] for call in read.call_args_list) == sorted(set(paths))


def test_a_paper_has_pages_of_its_ablations_and_further_settings():
    """Its page links to all of them; a single table is only itself."""
    names = report.with_all_of_papers(["ssfl", "sage/tab1"])
    assert {"ssfl/tab2", "ssfl/departures", "ssfl/tab2-cifar10", "sage/tab1"} <= set(names)
    assert not [name for name in names if name.startswith("sage/") and name != "sage/tab1"]
    assert set(report.with_all_of_papers(["all"])) == {*paper_items.ITEMS, *paper_items.VARIANTS}


def test_reproduce_trains_once_and_prints_the_same_table_before_it_builds_pages(places, capsys, tmp_path, monkeypatch):
    """After hours of training, a site that cannot be written costs the pages alone. They lie with the records."""
    words = [*WORDS, *places]
    page = "site/ssfl/tab2/demo/index.html"
    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "build_pages", Mock(side_effect=CannotWrite("no room for the site")))
        assert main(words) == 73
    first = capsys.readouterr()
    done = results_of(tmp_path)
    assert len(done) == 4 and "no room" in first.err
    assert main(words) == 0
    second = capsys.readouterr()
    assert second.out == first.out and second.err == "" and results_of(tmp_path) == done
    assert (tmp_path / page).is_file() and str(tmp_path / "site") in second.out


def test_committed_copies_stand_in_for_runs(places, printed, tmp_path, monkeypatch):
    """A cell has one key under every profile: what was trained for the demo (seed 2) is not committed. Also: single
    items as files, and the README's table."""
    elsewhere = ["--results", str(tmp_path / "elsewhere")]
    for profile, seed in (("laptop", 0), ("laptop", 1), ("demo", 2)):
        for cell in small_item(profile).cells:
            run(cell.experiment.with_seed(seed), tmp_path / "elsewhere")
    assert main(["report", "--commit-reference", *elsewhere]) == 0
    copies = {path.name for path in tmp_path.glob("elsewhere/reference/*/*.gz")}
    assert copies == {"seed=0.json.gz", "seed=1.json.gz"}
    (tmp_path / "elsewhere" / "reference").rename(tmp_path / "reference")
    item_result = json.loads(printed("reproduce", "ssfl/tab2", "--profile", "laptop", "--json", *places))
    assert [cell["n"] for cell in item_result["cells"]] == [2, 2] and not (tmp_path / "runs").exists()
    assert {"item", "profile", "cells", "claims", "report"} <= item_result.keys()
    assert main(["verify", "--results", str(tmp_path)]) == 0
    assert main(["report", "ssfl/tab2", "--out", str(tmp_path / "out"), *places]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    kinds = ("table.csv", "table.tex", "table.md", "figure.svg", "figure.pdf")
    assert names >= {f"ssfl-tab2-laptop-{kind}" for kind in kinds}
    monkeypatch.setattr(report, "ROOT", tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- claims: fssl report --readme -->\nold\n<!-- end of claims -->\nb\n")
    assert main(["report", "ssfl/tab2", "--readme", *places]) == 65
    assert main(["report", "--readme", *places]) == 0
    run(small_item("laptop").cells[0].experiment.with_seed(7), tmp_path)  # not committed, so that no page knows it
    text = readme.read_text()
    assert main(["report", "--readme", *places]) == 0 and readme.read_text() == text
    lines = text.splitlines()
    assert "| SSFL | " in readme.read_text() and "old" not in lines and (lines[0], lines[-1]) == ("a", "b")


def test_committed_trials_choose_the_committed_cells(tmp_path):
    """A clone has no runs: what tuned cells were chosen by is in the copies, as the cells are. Where trials are not
    committed nothing is chosen."""
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    planned = plan(paper_items.items(["arena/mnist"], "laptop"), tmp_path)
    (item,) = planned.items
    chosen = {cell.cell_key for cell in item.cells if cell.setting["hyperparameters"] == "tuned"}
    assert len(chosen) >= 7 and not chosen & {run.cell_key for run in planned.missing}


def test_a_quoted_cell_that_somebody_trained_is_committed(places, monkeypatch, tmp_path):
    def quoted(profile):
        first, second = small_item(profile).cells
        return replace(small_item(profile), cells=(replace(first, role="quoted"), second), claims=())

    monkeypatch.setattr(report, "ITEMS", {"ssfl/tab2": quoted})
    monkeypatch.setattr(paper_items, "ITEMS", {"ssfl/tab2": quoted})
    cell = quoted("laptop").cells[0]
    run(cell.experiment, tmp_path)
    report._commit_reference(Namespace(items=[], profile=["laptop"], results=tmp_path))
    assert [path.parent.name for path in tmp_path.glob("reference/*/*.gz")] == [cell.cell_key]


def test_a_data_set_that_is_not_there_leaves_the_others_to_be_trained(places, fssl, tmp_path, monkeypatch):
    """The item's cells on digits are trained and shown, the rest is named, exit code 66; again, nothing is trained."""

    def two_data_sets(profile):
        item = small_item(profile)
        digits, other = item.cells
        absent = replace(other.experiment, data=replace(other.experiment.data, name="folder:/no/such/folder"))
        return replace(item, cells=(digits, replace(other, experiment=absent)), claims=())

    monkeypatch.setattr(paper_items, "ITEMS", {"ssfl/tab2": two_data_sets})
    monkeypatch.setattr(reproduce, "build_pages", lambda *_: None)
    done: list[dict[Path, int]] = []
    for _ in range(2):
        code, out, err = fssl(*WORDS, "--json", *places)
        assert code == 66 and sorted(cell["n"] for cell in json.loads(out)["cells"]) == [0, 2]
        assert "folder:/no/such/folder" in err
        done.append(results_of(tmp_path))
    assert len(done[0]) == 2 and done[0] == done[1]


def test_a_run_of_ones_own_method_whose_file_is_gone_is_left_out_with_what_is_missing(tiny, tmp_path):
    run(tiny, tmp_path)
    gone = {**to_json(tiny), "method": {**to_json(tiny)["method"], "kind": "gone_method:Mine"}}

    def read(*words: Any, **options: Any) -> Records:
        records = read_records(*words, **options)
        return {key: {0: replace(runs[0], experiment=gone)} for key, runs in records.items()}

    troubles: list[str] = []
    assert with_own(tmp_path, [], read, troubles) == []
    (line,) = troubles
    assert "--method gone_method:Mine" in line


def test_a_table_whose_records_all_are_of_old_code_is_shown(places, tmp_path, fssl, monkeypatch):
    """Report the old values and the reason after a user has changed her code, on every page and in every file.

    The cells of a custom table and of no table are shown in the same way.
    """
    cells = small_item("demo").cells
    for cell in cells:
        run(cell.experiment, tmp_path)
    reason = "code: my_method.py was changed"
    monkeypatch.setattr(collect, "changed_inputs", lambda *_, **__: [reason])
    code, out, err = fssl("report", "ssfl/tab2", *places, "--out", str(tmp_path / "out"))
    assert code == 0, err
    assert "old code: " in (tmp_path / "out" / "ssfl-tab2-demo-table.md").read_text()
    code, _, err = fssl("report", *places)
    assert code == 0, err
    text = (tmp_path / "site" / "ssfl" / "tab2" / "demo" / "index.html").read_text()
    assert "old code: " in text
    assert any(reason in page.read_text() for page in tmp_path.glob("site/**/*.html"))
    monkeypatch.setattr("reports.own_items.own_items", lambda *_: [replace(small_item("demo"), name="mine/table")])
    shown = {item.name for item, _ in with_own(tmp_path, [], read_records, [])}
    assert shown == {"mine/table"}
    monkeypatch.setattr("reports.own_items.own_items", lambda *_: [])
    ((other_runs, _),) = with_own(tmp_path, [], read_records, [])
    keys = {cell.cell_key for cell in cells}
    assert {cell.cell_key for cell in other_runs.cells} == keys


def test_a_stopped_command_shows_what_there_is_and_the_same_command_goes_on(places, tmp_path, capfd, monkeypatch):
    """SIGINT once a run is done, as by `timeout -s INT`: the table has that run, no page is built, exit code 76."""

    def interrupt() -> None:
        wait_until(lambda: list(tmp_path.glob("runs/*/*/result.json")))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(launch, "LocalWorkers", LocalWorkers)
    threading.Thread(target=interrupt).start()
    words = [*WORDS, "--pilots", "4", "--jobs", "1", *places]
    assert main(words) == 76
    out, err = capfd.readouterr()
    assert err and out.startswith("ssfl/tab2") and not list(tmp_path.glob("**/*.html"))
    done = results_of(tmp_path)
    assert 0 < len(done) < 8
    monkeypatch.setattr(reproduce, "build_pages", lambda *_: None)
    assert main(words) == 0
    every = results_of(tmp_path)
    assert len(every) == 8 and every.items() >= done.items()


def test_what_is_committed_is_shown_at_once_and_the_other_cells_are_trained(places, tmp_path, fssl, monkeypatch):
    """One cell has one committed pilot, of the two of the item: it is enough, and what more seeds cost is said. The
    table, the plan and the page count the same runs."""
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", tmp_path / "checkout")
    experiment = small_item("laptop").cells[0].experiment
    run(experiment, tmp_path / "elsewhere")
    write_reference(tmp_path / "checkout", record_of(run_folder(tmp_path / "elsewhere", experiment)))
    words = ["ssfl/tab2", "--profile", "laptop", *places]
    code, out, err = fssl("reproduce", *words)
    assert code == 0 and len(results_of(tmp_path)) == 2
    assert "--pilots 2" in out and re.search(r"--seeds \d+", out)  # what more seeds cost
    shown = json.loads(fssl("reproduce", *words, "--json")[1])
    assert [cell["n"] for cell in shown["cells"]] == [1, 2]
    code, out, _ = fssl("plan", *words, "--json")
    assert code == 0 and json.loads(out)["runs"] == 0
    assert json.loads(fssl("plan", *words, "--json", "--no-reference")[1])["runs"] == 2  # both pilots of that cell
    (page,) = tmp_path.glob("site/ssfl/tab2/laptop/index.html")
    assert "3 of 3 runs are done" in page.read_text()


def test_a_damaged_result_ends_the_command(places, tmp_path, fssl):
    """It is neither finished nor to be trained; the other runs are done, and the message names it."""
    experiment = small_item("demo").cells[0].experiment
    run(experiment, tmp_path)
    path = run_folder(tmp_path, experiment) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed"}))
    code, _, err = fssl("work", *WORDS[1:], *places)
    assert code == 66 and f"{path}" in err and "'failed'" in err
    assert len(results_of(tmp_path)) == 4


def test_a_launch_that_leaves_runs_without_a_record_ends_the_command(places, monkeypatch, fssl):
    """Whatever it believes to have done."""
    monkeypatch.setattr(reproduce, "train", lambda *_: None)
    code, _, err = fssl("work", *WORDS[1:], *places)
    key = small_item("demo").cells[0].experiment.cell_key
    assert code == 1 and key in err and "`fssl verify`" in err


def test_the_home_folder_in_an_option(tmp_path, monkeypatch, capsys):
    """No shell replaces the ~ of `--results=~/x`, or of $FSSL_RESULTS."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FSSL_RESULTS", "~/two")
    for words, name in ((["--results=~/one"], "one"), ([], "two")):
        assert main(["verify", *words]) == 66
        assert str(tmp_path / name) in capsys.readouterr().err
