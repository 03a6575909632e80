"""Progress where there is no terminal."""

import io
from dataclasses import replace

from rich.console import Console

from benchmark.cli.progress import Display, LaunchProgress
from benchmark.records.claim import claimed
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import LaunchStatus


def test_plain_lines_in_a_pipe_follow_the_runs_of_a_launch(tiny, tmp_path, monkeypatch):
    """Two rounds of three are done, then all; another run waits. No control character is printed."""
    run(tiny, tmp_path)
    folder, other = run_folder(tmp_path, tiny), replace(tiny, seed=1)
    result, rounds = (folder / "result.json").read_text(), (folder / "rounds.jsonl").read_text()
    for name in ("result.json", "rounds.jsonl"):
        (folder / name).unlink()
    (folder / "progress.jsonl").write_text("".join(rounds.splitlines(keepends=True)[:2]))
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr("benchmark.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    text = io.StringIO()
    with Display(Console(file=text, width=200)) as display:
        progress = LaunchProgress(display, [tiny, other], tmp_path, {tiny.cell_key: "FedAvg"}, 120.0)
        with claimed(folder):
            progress.watch(LaunchStatus(running={tiny}, finished=(), trained=0))
        (folder / "rounds.jsonl").write_text(rounds)
        (folder / "result.json").write_text(result)
        progress.watch(LaunchStatus(running=set(), finished=(tiny,), trained=1))
    first, last = text.getvalue().splitlines()
    assert first.startswith("2 runs: 1 running, 1 missing; 2/6 rounds, about ")
    assert last == "2 runs: 1 done, 1 missing; 3/6 rounds"
    assert "\x1b" not in text.getvalue()
