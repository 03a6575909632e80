"""Progress where there is no terminal."""

import io
from dataclasses import replace

from rich.console import Console

from benchmark.cli.progress import Display, LaunchProgress
from benchmark.records.claim import claimed
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import Launch


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
        progress = LaunchProgress(display, [tiny, other], tmp_path, {tiny.cell_key: "FedAvg"})
        launched = Launch([tiny, other], tmp_path)
        launched.at_work.add(tiny)
        with claimed(folder):
            progress.watch(launched)
        (folder / "rounds.jsonl").write_text(rounds)
        (folder / "result.json").write_text(result)
        launched.at_work.clear()
        launched.finished.append(tiny)
        progress.watch(launched)
    first, last = text.getvalue().splitlines()
    assert first.startswith("2 runs: 1 running, 1 missing; 2/6 rounds, about ")
    assert last == "2 runs: 1 done, 1 missing; 3/6 rounds"
    assert "\x1b" not in text.getvalue()
