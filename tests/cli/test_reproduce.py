"""`fssl reproduce` when something is wrong: what it shows, what it trains again, and how it ends."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

from benchmark.cli import reproduce
from benchmark.cli.main import main
from benchmark.records.copies import write_reference
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.cli.test_report import places, small_item  # noqa: F401 (a fixture)
from tests.conftest import record_of

WORDS = ["reproduce", "ssfl/tab2", "--profile", "demo"]


def test_a_stopped_command_shows_what_there_is_and_the_same_command_goes_on(
    places,  # noqa: F811
    tmp_path,
    capfd,
    monkeypatch,
):
    """SIGINT once a run is done, as by `timeout -s INT`: the table has that run, no page is built, exit code 76."""

    def interrupt() -> None:
        while not list(tmp_path.glob("runs/*/*/result.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    words = [*WORDS, "--pilots", "4", "--jobs", "1", *places]
    assert main(words) == 76
    out, err = capfd.readouterr()
    assert "the same command goes on" in err and out.startswith("ssfl/tab2")
    assert "report: not built" in out and not list(tmp_path.glob("**/*.html"))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/result.json")}
    assert 0 < len(done) < 8
    monkeypatch.setattr(reproduce, "build_pages", lambda *_: None)
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert f"{8 - len(done)} runs to train, {len(done)} done" in err and "report: not built" not in out
    assert {path: path.stat().st_mtime_ns for path in done} == done


def test_what_is_committed_is_shown_at_once_and_the_other_cells_are_trained(
    places,  # noqa: F811
    tmp_path,
    capsys,
    monkeypatch,
):
    """One cell has one committed pilot, of the two of the item: it is enough, and what more seeds cost is said. The
    table, the plan and the page count the same runs."""
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", tmp_path / "checkout")
    experiment = small_item("laptop").cells[0].experiment
    run(experiment, tmp_path / "elsewhere")
    write_reference(tmp_path / "checkout", record_of(run_folder(tmp_path / "elsewhere", experiment)))
    words = ["ssfl/tab2", "--profile", "laptop", *places]
    assert main(["reproduce", *words]) == 0
    out, err = capsys.readouterr()
    assert "2 runs to train, 1 done" in err and err.index("not run (0/2)") < err.index("2 runs to train")
    assert "n=1" in out and "n=2" in out and "more: --pilots 2: 1 runs, " in out
    assert re.search(r"more: --seeds \d+ can decide 1 of 1 open claims: \d+ runs, ", out)
    assert main(["plan", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 0
    (page,) = tmp_path.glob("site/ssfl/tab2/laptop/index.html")
    assert "3 of 3</b> runs" in page.read_text()


def test_a_result_that_does_not_count_ends_the_command(places, tmp_path, capsys):  # noqa: F811
    """It is neither finished nor to be trained; the other runs are done, and the message names it."""
    experiment = small_item("demo").cells[0].experiment
    run(experiment, tmp_path)
    path = run_folder(tmp_path, experiment) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed"}))
    assert main(["work", *WORDS[1:], *places]) == 1
    err = capsys.readouterr().err
    assert f"such as cell {experiment.cell_key}, seed 0; `fssl verify`" in err
    assert len(list(tmp_path.glob("runs/*/*/result.json"))) == 4


def test_the_home_folder_in_an_option(tmp_path, monkeypatch, capsys):
    """No shell replaces the ~ of `--results=~/x`, or of $FSSL_RESULTS."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ["run", "--json", "--federation.rounds=1", "--federation.T=1"]
    assert main([*words, "--results=~/one"]) == 0
    monkeypatch.setenv("FSSL_RESULTS", "~/two")
    assert main(words) == 0
    folders = [Path(json.loads(line)["folder"]) for line in capsys.readouterr().out.splitlines()]
    assert [folder.relative_to(tmp_path).parts[0] for folder in folders] == ["one", "two"]
