"""Progress of a study: trials done, the best so far, and the runs in work; plain lines where there is no terminal."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from benchmark.cli.progress import SECONDS_BETWEEN_LINES, bar
from benchmark.records.record import last_round, run_folder
from sweeps.tune.loop import Standing
from sweeps.tune.study import Plan


class TuneProgress:
    """The bar of the study, and a line for each trial of this process."""

    def __init__(self, plan: Plan, results: Path, console: Console) -> None:
        self._plan, self._results, self._console = plan, results, console
        self._progress = bar(console)
        self._task = self._progress.add_task("", total=plan.trials, accuracy="", rounds="")
        self._lines: dict[int, TaskID] = {}  # by the trial's number
        self._printed = time.monotonic()
        self._last = ""

    def __enter__(self) -> "TuneProgress":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._progress.stop()

    def watch(self, standing: Standing) -> None:
        counts = standing.counts
        pruned = f" ({counts.pruned} given up early)" if counts.pruned else ""
        failed = f", {standing.failed} failed" if standing.failed else ""
        name = f"{counts.finished}/{standing.wanted} trials{pruned}, {counts.running} running{failed}"
        seeds = len(self._plan.trial_seeds)
        partly = sum(len(taken.scores) / seeds for taken in standing.mine)
        self._progress.update(self._task, description=name, completed=counts.finished + partly)
        for taken in standing.mine:
            run = taken.next_run
            if run is None:
                continue
            if taken.number not in self._lines:
                self._lines[taken.number] = self._progress.add_task("", total=1, accuracy="", rounds="")
            rounds = run.federation.rounds
            done = int((last_round(run_folder(self._results, run)) or {}).get("round", 0))
            self._progress.update(
                self._lines[taken.number],
                description=f"  trial {taken.number}, seed {len(taken.scores) + 1} of {seeds}",
                total=rounds,
                completed=done,
                rounds=f"{done}/{rounds}",
            )
        for number in self._lines.keys() - {taken.number for taken in standing.mine}:
            self._progress.remove_task(self._lines.pop(number))
        now = time.monotonic()
        if not self._console.is_terminal and name != self._last and now - self._printed > SECONDS_BETWEEN_LINES:
            self._printed, self._last = now, name
            self._console.print(name)
