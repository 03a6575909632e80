"""Progress where there is no terminal."""

import io
import json
from dataclasses import replace

from rich.console import Console

from benchmark.cli.progress import TableProgress
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.cost import seconds_of_first
from sweeps.launcher import LaunchStatus


def test_plain_lines_in_a_pipe_count_a_warm_start_by_its_planned_seconds(tiny, tmp_path, monkeypatch):
    """Two rounds of three are done, in the first of which the server trains alone: less than two thirds. No control
    character is printed."""
    warm = replace(tiny, method=replace(tiny.method, warm_start_rounds=1))
    run(warm, tmp_path)
    path = run_folder(tmp_path, warm) / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LINES", -1.0)
    text = io.StringIO()
    with TableProgress([warm], tmp_path, Console(file=text, width=200), {warm.cell_key: "FedAvg"}) as progress:
        progress.watch(LaunchStatus(running={warm}, finished=(), failed=0, trained=0))
        bar = progress._progress.tasks[0]
        assert bar.total == seconds_of_first(warm, 3)
        assert bar.completed == seconds_of_first(warm, 2) < 2 / 3 * bar.total
        progress.watch(LaunchStatus(running=set(), finished=(warm,), failed=0, trained=1))
    lines = text.getvalue().splitlines()
    newest = 100 * json.loads(path.read_text().splitlines()[-1])["test/accuracy"]
    note = f"newest accuracy {newest:.2f} %"
    assert lines == [f"0/1 runs, 1 running, 2/3 rounds, {note}", f"1/1 runs, 0 running, 3/3 rounds, {note}"]
    assert "\x1b" not in text.getvalue()
