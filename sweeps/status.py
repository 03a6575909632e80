"""Reads from their folders how far runs are, from any shell or machine."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from benchmark.errors import FsslError
from benchmark.records.claim import PATIENCE, is_held, why_dead
from benchmark.records.files import one_line, read_json
from benchmark.records.record import Round, RunRecord, read_result, read_rounds

# stopped: on purpose, and saved. dead: its process is gone, or silent for too long; the next worker takes over.
State = Literal["done", "diverged", "failed", "running", "stopped", "dead", "damaged", "missing"]
FINISHED: frozenset[State] = frozenset({"done", "diverged", "failed"})


def in_words(seconds: float) -> str:
    """ "40 s", "2.5 min", "12 min", "2 h": an estimate has no more digits."""
    if round(seconds) < 100:
        return f"{seconds:.0f} s"
    number, unit = (seconds / 60, "min") if round(seconds / 60) < 100 else (seconds / 3600, "h")
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f}".removesuffix(".0") + f" {unit}"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run as its folder shows it."""

    cell_key: str
    seed: int
    name: str  # what people call its cell; the key where it has no name
    state: State
    rounds: int
    round: int = 0  # the last one that is recorded
    attempt: int = 0  # how many processes have been at it
    accuracy: float | None = None  # of the last test, a fraction
    seconds_per_round: float | None = None  # None: no round is recorded
    work: float = 0.0  # its planned CPU seconds; its rounds where no time left is asked for
    share_done: float = 0.0  # of its work
    trouble: str | None = None  # what is wrong with a damaged, a dead or a failed one

    @property
    def pace(self) -> float | None:
        """Seconds that a unit of its work has taken."""
        if self.seconds_per_round is None or not self.share_done * self.work:
            return None
        return self.seconds_per_round * self.round / (self.share_done * self.work)

    def seconds_left(self, pace: float) -> float:
        """At that many seconds a unit of work."""
        return 0.0 if self.state in FINISHED else pace * self.work * (1 - self.share_done)

    def weighed(self, seconds_of_first: Callable[[int], float]) -> "RunStatus":
        """The same with planned CPU seconds as its work. `seconds_of_first`: those of its first so many rounds."""
        whole = seconds_of_first(self.rounds)
        return replace(self, work=whole, share_done=seconds_of_first(self.round) / whole if whole else 0.0)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All runs in numbers. `seconds_left`: at the pace so far; None where nothing runs or no round was timed."""

    counts: Mapping[str, int]
    rounds_done: int
    rounds: int
    seconds_left: float | None

    def line(self) -> str:
        """For people, on one line."""
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
        left = "" if self.seconds_left is None else f", about {in_words(self.seconds_left)} left"
        return f"{sum(self.counts.values())} runs: {counts}; {self.rounds_done}/{self.rounds} rounds{left}"


def status_of(
    folder: Path,
    *,
    name: str,
    rounds: int,
    finished: RunRecord | None = None,
    patience: float = PATIENCE,
) -> RunStatus:
    """The run in `folder` (cell_key/seed=n), which need not exist; `rounds` as its experiment has them.

    `finished`: its record, where that is known to be finished; it may be a committed copy. All rounds count as equal
    work: `RunStatus.weighed`.
    """
    known: dict[str, Any] = {
        "cell_key": folder.parent.name,
        "seed": int(folder.name.partition("=")[2]),
        "name": name,
        "rounds": rounds,
    }
    try:
        state = _state(folder, patience) if finished is None else _known(finished.status)
        lines = read_rounds(folder) if finished is None else finished.rounds
        attempt = 0 if finished is not None else len((read_json(folder / "manifest.json") or {}).get("attempts", ()))
    except (FsslError, OSError) as error:
        return RunStatus(**known, state="damaged", trouble=one_line(error))
    done = int(lines[-1]["round"]) if lines else 0
    return RunStatus(
        **known,
        state=state,
        round=done,
        attempt=attempt,
        accuracy=next((line["test/accuracy"] for line in reversed(lines) if "test/accuracy" in line), None),
        seconds_per_round=_seconds_per_round(lines, finished),
        work=float(rounds),
        share_done=done / rounds,
        trouble=_trouble(folder, state, patience),
    )


def _seconds_per_round(lines: Sequence[Round], finished: RunRecord | None) -> float | None:
    """A committed copy keeps no clocks of its rounds; its result has their sum, if it is no older one."""
    if finished is not None and "wall_seconds" in finished.result and lines:
        return float(finished.result["wall_seconds"]) / len(lines)
    timed = [line["time/round_seconds"] for line in lines if "time/round_seconds" in line]
    return fmean(timed) if timed else None


def _trouble(folder: Path, state: State, patience: float) -> str | None:
    if state == "dead":
        return f"{folder}: dead: {why_dead(folder, patience)}; the same command goes on from the last save"
    if state == "failed":
        return f"{folder}: failed: {(read_result(folder) or {}).get('error', 'the record does not say why')}"
    return None


def _state(folder: Path, patience: float) -> State:
    result = read_result(folder)
    if result is not None:
        return _known(result["status"])
    if is_held(folder, patience):
        return "running"
    if why_dead(folder, patience):
        return "dead"
    return "stopped" if (folder / "experiment.json").exists() else "missing"


def _known(status: str) -> State:
    known: dict[str, State] = {"done": "done", "diverged": "diverged"}
    return known.get(status, "failed")


def on_disk(results: Path, patience: float = PATIENCE) -> list[RunStatus]:
    """Every run that was ever begun under this folder of results."""
    statuses = []
    for folder in sorted(results.glob("runs/*/seed=*")):
        if not folder.name.removeprefix("seed=").isdecimal():
            continue  # `fssl verify` tells of it
        try:
            rounds = int((read_json(folder / "experiment.json") or {})["federation"]["rounds"])
        except (LookupError, TypeError, ValueError):
            continue  # being begun this moment
        except (FsslError, OSError) as error:
            key, seed = folder.parent.name, int(folder.name.removeprefix("seed="))
            trouble = one_line(error)
            statuses.append(RunStatus(cell_key=key, seed=seed, name=key, rounds=0, state="damaged", trouble=trouble))
            continue
        statuses.append(status_of(folder, name=folder.parent.name, rounds=rounds, patience=patience))
    return statuses


def summary(runs: Sequence[RunStatus]) -> Summary:
    """Counts and the time left. A run goes on at its own pace; else at its cell's, else at the mean pace."""
    counts = {state: sum(run.state == state for run in runs) for state in get_args(State)}
    paces = [run.pace for run in runs if run.pace is not None]
    by_cell = {run.cell_key: run.pace for run in runs if run.pace is not None}
    left = None
    if paces and counts["running"]:
        usual = fmean(paces)
        seconds = [run.seconds_left(run.pace or by_cell.get(run.cell_key, usual)) for run in runs]
        left = sum(seconds) / counts["running"]
    done = sum(run.rounds if run.state == "done" else run.round for run in runs)
    return Summary(counts=counts, rounds_done=done, rounds=sum(run.rounds for run in runs), seconds_left=left)


def to_json(runs: Sequence[RunStatus]) -> str:
    """One JSON object: the summary, and every run."""
    total = summary(runs)
    return json.dumps({**vars(total), "runs": [vars(run) for run in runs]})
