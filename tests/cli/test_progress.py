"""The time left that people are told: from what was seen, not from how long processes took to start."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmark.cli.progress import TableProgress, TimeLeft
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import Standing


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_starting_is_no_work_and_the_mean_pace_counts():
    """30 s pass before the first of 100 units, of which 10 were there before. From then on one unit a second: 20 s
    later 31 are done, and 69 s are left. Then 20 s bring nothing: 20 units in 40 s, 138 s are left."""
    clock = Clock()
    left = TimeLeft(clock)
    for now, done, expected in ((0, 10, None), (30, 11, None), (40, 21, None), (50, 31, 69.0), (70, 31, 138.0)):
        clock.now = now
        assert left.update(done, 100) == (None if expected is None else pytest.approx(expected))


def test_nothing_is_said_where_nothing_is_done():
    clock = Clock()
    left = TimeLeft(clock)
    for clock.now in (0.0, 100.0, 1000.0):
        assert left.update(5, 100) is None


def test_plain_lines_in_a_pipe_count_local_steps_of_a_warm_start_as_they_are(tiny, tmp_path, monkeypatch):
    """Two rounds of three are done, in the first of which the server trains alone: 2 + 10 of 22 local steps, not two
    thirds. No control character is printed."""
    warm = replace(tiny, method=replace(tiny.method, warm_start_rounds=1))
    run(warm, tmp_path)
    path = run_folder(tmp_path, warm) / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LINES", -1.0)
    text = io.StringIO()
    with TableProgress([warm], tmp_path, Console(file=text, width=200), {warm.cell_key: "FedAvg"}) as progress:
        progress.watch(Standing(running={warm}, finished=(), failed=0, trained=0))
        assert progress._progress.tasks[0].completed == 12 and progress._progress.tasks[0].total == 22
        progress.watch(Standing(running=set(), finished=(warm,), failed=0, trained=1))
    lines = text.getvalue().splitlines()
    assert lines == ["0/1 runs, 1 running, 2/3 rounds", "1/1 runs, 0 running, 3/3 rounds"]
    assert "\x1b" not in text.getvalue()
