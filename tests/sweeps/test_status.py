"""`fssl status` of folders made by hand and of real runs; progress without a terminal."""

import io
import json
import subprocess
from dataclasses import replace

import pytest
from rich.console import Console

from benchmark.cli.curves import curves
from benchmark.cli.progress import Display, watching
from benchmark.errors import Diverged
from benchmark.experiment import to_json
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import locked
from sweeps.cost import count, weighed
from sweeps.launcher import Launch
from sweeps.status import RunStatus, on_disk, status_of, summary


def test_each_state_a_run_can_be_in(tiny, tmp_path):
    states = ("missing", "running", "stopped", "dead")
    folders = {name: tmp_path / "made" / f"{number:016x}" / "seed=0" for number, name in enumerate(states)}
    folders["stopped"].mkdir(parents=True)
    (folders["stopped"] / "experiment.json").write_text(json.dumps(to_json(tiny)))
    with subprocess.Popen(["true"]) as gone, locked(folders["dead"]):
        claim = json.loads((folders["dead"] / "claim").read_text())
    (folders["dead"] / "claim").write_text(json.dumps({**claim, "pid": gone.pid}))
    assert "dead: its process is gone" in str(status_of(folders["dead"], name="", rounds=3).trouble)
    with locked(folders["running"]):
        for state, folder in folders.items():
            assert status_of(folder, name="", rounds=3).state == state
    run(tiny, tmp_path)
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    with pytest.raises(Diverged):
        run(wild, tmp_path)
    statuses = {status.cell_key: status for status in on_disk(tmp_path)}
    assert statuses[tiny.cell_key].state == "done" and statuses[tiny.cell_key].round == 3
    assert statuses[wild.cell_key].state == "diverged" and statuses.keys() == {tiny.cell_key, wild.cell_key}
    assert statuses[tiny.cell_key].name == f"ssfl on digits, {tiny.cell_key}"
    assert on_disk(tmp_path, profile="paper") == [] and len(on_disk(tmp_path, profile=tiny.profile)) == 2


def status(state, *, round, share_done=0.0, pace=None):
    run = RunStatus(cell_key="a", seed=0, name="a", state=state, round=round, rounds=10, seconds_per_round=pace)
    return replace(run, work=10.0, share_done=share_done)


def test_the_time_left_is_the_work_left_shared_by_those_at_work():
    """14 rounds took 4 x 2 + 10 x 4 = 48 s: 1 of work in a warm start's, and 10. Left are 9 + 10 + 10 to the one
    running process: 29 x 48 / 11 = 127 s, where rounds alone would say 89. A diverged run has nothing left."""
    runs = [
        status("running", round=4, share_done=0.1, pace=2.0),
        status("done", round=10, share_done=1.0, pace=4.0),
        status("missing", round=0),
        status("missing", round=0),
        status("diverged", round=3),
    ]
    total = summary(runs)
    assert total.seconds_left == pytest.approx(29 * 48 / 11)
    assert (total.rounds_done, total.rounds) == (4 + 10 + 3, 50)
    assert total.line() == "5 runs: 1 done, 1 diverged, 1 running, 2 missing; 17/50 rounds, about 2.1 min left"
    assert summary(runs[1:]).seconds_left is None  # no run is trained


def test_the_share_of_a_run_on_its_way_goes_by_its_planned_seconds(tiny, tmp_path):
    """Two of three rounds are recorded, the first of which was a warm start's: its seconds are a server's alone. A run
    that cannot be counted has no share and no time left."""
    warm = replace(tiny, method=replace(tiny.method, warm_start_rounds=1))
    run(tiny, tmp_path)
    folder = run_folder(tmp_path, tiny)
    (folder / "result.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "progress.jsonl").write_text("".join(lines[:2]))
    status = status_of(folder, name="", rounds=3)
    assert status.share_done == pytest.approx(2 / 3)
    seconds = [count(warm).of_first(rounds).seconds for rounds in range(4)]
    assert seconds[0] == 0 and seconds[1] < seconds[2] - seconds[1] == pytest.approx(seconds[3] - seconds[2])
    planned = weighed(status, warm)
    assert planned.work == seconds[3] and planned.share_done == pytest.approx(seconds[2] / seconds[3])
    refused = weighed(status, replace(tiny, federation=replace(tiny.federation, K=5000)))
    assert (refused.work, refused.share_done) == (0.0, 0.0)


def test_the_command_from_another_shell(tiny, tmp_path, printed):
    run(tiny, tmp_path)
    with locked(other := run_folder(tmp_path, tiny.with_seed(1))):
        (other / "experiment.json").write_text(json.dumps(to_json(tiny.with_seed(1))))
        seen = json.loads(printed("status", "--json", "--results", tmp_path))
        assert seen["counts"]["done"] == seen["counts"]["running"] == 1 and len(seen["runs"]) == 2
        shown = printed("status", "--results", tmp_path)
    assert "2 runs: 1 done, 1 running; 3/6 rounds, about" in shown and f"{tiny.cell_key}" in shown


def test_lines_in_a_pipe_are_rarer_the_longer_it_takes(monkeypatch):
    """An hour that is looked at every two seconds: none within 15 s, and few in all."""
    clock, text = [0.0], io.StringIO()
    monkeypatch.setattr("benchmark.cli.progress.time.monotonic", lambda: clock[0])
    with Display(Console(file=text, width=200)) as display:
        for second in range(0, 3600, 2):
            clock[0] = float(second)
            display.show(list)
    assert 20 <= len(text.getvalue().splitlines()) <= 45


def test_plain_lines_in_a_pipe_follow_the_runs_of_a_launch(tiny, tmp_path, monkeypatch):
    """One run is trained and done; another waits. No control character is printed."""
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    text = io.StringIO()
    runs = [tiny, replace(tiny, seed=1)]
    launched = Launch(runs, tmp_path)
    with Display(Console(file=text, width=200)) as display:
        watch = watching(display, runs, tmp_path, {tiny.cell_key: "FedAvg"})
        launched.at_work.add(tiny)
        with locked(run_folder(tmp_path, tiny)):
            watch(launched)
        run(tiny, tmp_path)
        launched.at_work.clear()
        launched.finished.append(tiny)
        watch(launched)
    lines = ["2 runs: 1 running, 1 missing; 0/6 rounds", "2 runs: 1 done, 1 missing; 3/6 rounds"]
    assert text.getvalue().splitlines() == lines


def running(name, *, accuracies, rounds=10):
    curve = tuple(enumerate(accuracies, start=1))
    return RunStatus(cell_key=name, seed=0, name=name, state="running", rounds=rounds, curve=curve)


def test_curves_rise_where_accuracies_do_and_only_running_runs_have_one():
    """Columns of the drawing by round; the line of each from the top is lower for a better accuracy."""
    rising = running("a", accuracies=[0.1, 0.5, 0.9], rounds=3)
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(curves([rising], unicode=False))
    lines = captured.get().splitlines()[1:-1]
    places = [(column, line) for line, text in enumerate(lines) for column, mark in enumerate(text) if mark == "a"]
    ends = min(places), max(places)
    assert ends[0][1] == len(lines) - 1 and ends[1][1] == 0  # from the bottom left to the top right
    assert "90.0" in lines[0] and "10.0" in lines[-1]
    for other in (replace(rising, state="done"), running("b", accuracies=[0.4])):
        assert curves([other]) is None


def test_the_curve_of_a_run_is_read_from_its_progress(tiny, tmp_path):
    run(tiny, tmp_path)
    folder = run_folder(tmp_path, tiny)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "result.json").unlink()
    (folder / "progress.jsonl").write_text("".join(lines[:2]))
    with locked(folder):
        seen = status_of(folder, name="a", rounds=3)
    assert seen.curve == tuple((n, json.loads(line)["test/accuracy"]) for n, line in enumerate(lines[:2], start=1))


def test_a_short_demonstration_prints_few_lines_however_long_it_takes(monkeypatch):
    clock, text = [0.0], io.StringIO()
    monkeypatch.setattr("benchmark.cli.progress.time.monotonic", lambda: clock[0])
    with Display(Console(file=text, width=200), few_lines=True) as display:
        for second in range(0, 1200, 2):
            clock[0] = float(second)
            display.show(list)
    assert 2 <= len(text.getvalue().splitlines()) <= 6
