"""Report the progress of runs, which is read from their folders, so that any machine with the folders can do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from benchmark.data.folder import public_name
from benchmark.errors import FsslError
from benchmark.files import read_json
from benchmark.records.collect import runs_in, trouble_with
from benchmark.records.identity import look_again, seed_folder, why_apart
from benchmark.records.record import FAILED, FINISHED, MEASURES, Round, RunRecord, measures_in, read_run
from benchmark.records.run_lock import is_held, why_dead

# A stopped run was stopped on purpose and saved. A failed run ended with an exception, and the next command tries it
# again. The process of a dead run has ended, or its heartbeat is too old; the next worker resumes it.
State = Literal["done", "diverged", "running", "stopped", "failed", "dead", "damaged", "missing"]
ACCURACY = "test/accuracy"


def in_words(seconds: float) -> str:
    """Format an estimated time with two or three digits, such as "40 s", "2.5 min", "12 min" or "2 h"."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    number, unit = (seconds / 60, "min") if round(seconds / 60) < 100 else (seconds / 3600, "h")
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.1f}".removesuffix(".0") + f" {unit}"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of one run according to its folder."""

    cell_key: str
    seed: int
    name: str  # the name of its cell, or the cell key if it has no name
    state: State
    rounds: int
    round: int = 0  # the last recorded round
    attempt: int = 0  # number of processes that have trained it so far
    accuracy: float | None = None  # accuracy of the last test, as a fraction
    seconds_per_round: float | None = None  # or None if no round is recorded
    work: float = 0.0  # planned CPU seconds, or rounds if no time left is requested
    share_done: float = 0.0  # finished fraction of its work
    measures: Mapping[str, float] = field(default_factory=dict)  # the method's own measures, as last computed
    trouble: str | None = None  # the problem of a damaged, dead or failed run
    curve: tuple[tuple[int, float], ...] = field(default=(), repr=False)  # (round, test accuracy) of a running run

    @property
    def work_left(self) -> float:
        return 0.0 if self.state in FINISHED else self.work * (1 - self.share_done)


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """Counts of all runs.

    `seconds_left` is estimated from the pace so far; it is None if no run is running or no round was timed.
    """

    counts: Mapping[str, int]
    rounds_done: int
    rounds: int
    seconds_left: float | None

    def line(self) -> str:
        """Format the counts for people, on one line."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        left = "" if self.seconds_left is None else f", about {in_words(self.seconds_left)} left"
        total = sum(self.counts.values())
        runs = "1 run" if total == 1 else f"{total} runs"
        return f"{runs}: {counts or 'none'}; {self.rounds_done}/{self.rounds} rounds{left}"


def status_of(folder: Path, *, name: str, rounds: int, record: RunRecord | None = None) -> RunStatus:
    """Return the status of the run in `folder`, which need not exist (`record.run_folder`).

    `rounds` is the number in its experiment. `record` is the run record if it was read before; it may be a committed
    copy. All rounds count as equal work; `cost.weighed` changes this.
    """
    key = folder.parent.name
    seed = int(_seed_named(folder))
    work = float(rounds)
    status = RunStatus(cell_key=key, seed=seed, name=name, state="missing", rounds=rounds, work=work)
    try:
        record = record or read_run(folder)
        if record is None or not record.result:
            status = _unfinished(status, () if record is None else record.rounds, folder)
        else:
            status = _finished(status, record)
    except (FsslError, OSError) as error:
        return replace(status, state="damaged", trouble=trouble_with(folder, error))
    attempt = 0 if record is None else len(record.manifest.get("attempts", ()))
    return replace(status, attempt=attempt, share_done=status.round / rounds if rounds else 0.0)


def _finished(status: RunStatus, record: RunRecord) -> RunStatus:
    result = record.result
    rounds = result["rounds"]
    return replace(
        status,
        state=result["status"],
        round=rounds,
        accuracy=record.last(ACCURACY),
        seconds_per_round=result["wall_seconds"] / rounds if rounds else None,
        measures=last_of(record.measures),
    )


def last_of(measures: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return the last value of each measure."""
    return {name: values[max(values)] for name, values in measures.items() if values}


def _unfinished(status: RunStatus, lines: Sequence[Round], folder: Path) -> RunStatus:
    """Return the status of a run without a result; `lines` are its saved rounds."""
    state: State = "stopped" if (folder / "experiment.json").exists() else "missing"
    trouble = None
    if is_held(folder):
        state = "running"
    elif why := why_dead(folder):
        state, trouble = "dead", f"{folder} is dead: {why}; the same command resumes from the last save"
    elif failed := read_json(folder / FAILED):
        state, trouble = "failed", str(failed.get("error", "unknown error"))
    timed = [line["time/round_seconds"] for line in lines if "time/round_seconds" in line]
    curve = tuple((line["round"], line[ACCURACY]) for line in lines if ACCURACY in line)
    return replace(
        status,
        state=state,
        round=lines[-1]["round"] if lines else 0,
        accuracy=curve[-1][1] if curve else None,
        seconds_per_round=fmean(timed) if timed else None,
        trouble=trouble,
        measures=last_of(measures_in(read_json(folder / MEASURES) or {})),
        curve=curve,
    )


def where_apart(status: RunStatus, folder: Path, experiment: Mapping[str, Any]) -> RunStatus:
    """Return the status with the reason if the run must be trained in a separate folder."""
    if status.state in FINISHED or status.trouble is not None:
        return status
    return replace(status, trouble=why_apart(folder, experiment))


def _seed_named(folder: Path) -> str:
    return folder.name.removeprefix("seed=").partition("@")[0]


def on_disk(results: Path, profile: str | None = None) -> list[RunStatus]:
    """Return the status of every run that was ever begun in this folder of results.

    If a cell and seed have several runs, return the one for the present data and code. If `profile` is given, return
    only runs of this profile and runs that cannot be read.
    """
    look_again()
    runs: dict[Path, RunStatus] = {}
    troubles: list[str] = []
    cells = sorted(results.glob("runs/*"))
    # `fssl verify` names all other files in these folders.
    folders = [one for cell in cells for one in runs_in(cell, troubles) if _seed_named(one).isdecimal()]
    for folder in folders:
        key = folder.parent.name
        try:
            record = read_run(folder)
        except (FsslError, OSError):
            runs[folder] = status_of(folder, name=key, rounds=0)  # the status of a damaged run, with the reason
            continue
        if record is not None and profile in (
            None,
            record.experiment.get("profile"),
        ):  # the record is None if the run starts at this moment
            experiment = record.experiment
            name = f"{experiment['method']['kind']} on {public_name(experiment['data']['name'])}, {key}"
            right = seed_folder(folder.parent, experiment)
            known = record if right == folder else None
            rounds = experiment["federation"]["rounds"]
            runs[right] = where_apart(status_of(right, name=name, rounds=rounds, record=known), right, experiment)
    unread = (RunStatus(cell_key="", seed=0, name="", rounds=0, state="damaged", trouble=text) for text in troubles)
    return [*runs.values(), *unread]


def summary(runs: Sequence[RunStatus]) -> RunCounts:
    """Count the runs of each state, and estimate the time left at the mean pace so far."""
    counts = dict.fromkeys(get_args(State), 0)
    for run in runs:
        counts[run.state] += 1
    timed = [(run.seconds_per_round * run.round, run.share_done * run.work) for run in runs if run.seconds_per_round]
    seconds = sum(seconds for seconds, _ in timed)
    worked = sum(work for _, work in timed)
    left = None
    if worked and counts["running"]:
        left = seconds / worked * sum(run.work_left for run in runs) / counts["running"]
    done = sum(run.rounds if run.state == "done" else run.round for run in runs)
    return RunCounts(counts=counts, rounds_done=done, rounds=sum(run.rounds for run in runs), seconds_left=left)
