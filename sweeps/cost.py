"""Estimate the cost of a run: local steps, FLOPs, bytes and seconds.

`fssl plan` prints these costs, and the progress and the time left of runs are computed from them. All rounds of a warm
start have equal costs, and usually so do the rounds after it. If the later rounds differ, a sample of them is counted
(`sweeps.counting`). If the cell has a finished run on this machine, its seconds replace the estimate.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from benchmark.errors import FsslError, one_line
from benchmark.experiment import Experiment, to_json
from benchmark.failures import failure_of
from benchmark.federated.processes import CPU
from benchmark.records.collect import read_records
from benchmark.records.provenance import hardware
from benchmark.records.record import RunRecord
from sweeps.counting import COUNTS, Cost, FirstDownloads, Note, RoundCounter, of_any_seed
from sweeps.speed import seconds_on
from sweeps.status import RunStatus

RUN_SECONDS = 0.5  # measured seconds of a run outside its rounds: data, partition, Trainer, saves, weights on disk
SAMPLED = 8  # rounds that are counted if they differ
ALIKE = 3  # rounds that are counted if the first ones are equal
ENGINE = "pool"  # the engine of launchers, in one process
ESTIMATED = "the rounds differ, so the totals are estimates from a sample of rounds"


class CannotCount(FsslError):
    """The cost of a run is unknown, because its method failed on tensors without numbers (exit 1)."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of a run's rounds: of the warm start, after the warm start, and of the last round."""

    rounds: int
    warm_rounds: int
    warm: Cost  # cost of one round
    later: Cost
    last: Cost
    downloads: FirstDownloads = FirstDownloads()  # in addition to the cost of the rounds

    def of_round(self, number: int) -> Cost:
        """Return the cost of a round; the first round has number 1."""
        after, before = self._first_downloads(number), self._first_downloads(number - 1)
        cost = self._of_round(number)
        return replace(cost + after, bytes_down=cost.bytes_down + after.bytes_down - before.bytes_down)

    def _of_round(self, number: int) -> Cost:
        if number == self.rounds:
            return self.last
        return self.warm if number <= self.warm_rounds else self.later

    def of_first(self, rounds: int) -> Cost:
        """Return the total cost of the first rounds."""
        return self._of_first(rounds) + self._first_downloads(rounds)

    def _first_downloads(self, rounds: int) -> Cost:
        """Return the bytes that clients download once in the first rounds.

        Some warm starts have no local work of clients.
        """
        without_clients = 0 if self.warm.bytes_down else self.warm_rounds
        return self.downloads.of_first(max(0, rounds - without_clients))

    def _of_first(self, rounds: int) -> Cost:
        if rounds == self.rounds:
            return self._of_first(rounds - 1) + self.last
        warm = min(rounds, self.warm_rounds)
        return self.warm * warm + self.later * (rounds - warm)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return the notes on counts that are not exact in some round."""
        return (self.warm + self.later + self.last + self._first_downloads(self.rounds)).notes

    @property
    def whole(self) -> Cost:
        """Return the total cost of all rounds and of the work outside them."""
        return self.of_first(self.rounds) + Cost(seconds=RUN_SECONDS)


def cost_of(run: Experiment, results: Path, device: str = CPU) -> Cost:
    """Return the cost of the whole run on this machine, without the start of its process.

    Raise ConfigError if the run itself would.
    """
    whole = count(run).whole
    records = read_records(results, [run.cell_key], with_reference=False, troubles=[])[run.cell_key].values()
    finished = [record.result["cpu_seconds"] for record in records if device == CPU and _was_timed_here(record)]
    seconds = fmean(finished) if finished else seconds_on(device, run, whole, results)
    return replace(whole, seconds=seconds)


def weighed(status: RunStatus, run: Experiment) -> RunStatus:
    """Return the run's status with planned seconds as its work, or with work 0 if the run cannot be counted."""
    try:
        cost = count(run)
    except Exception:  # a custom method may raise any error; the run's own process reports it
        return replace(status, work=0.0, share_done=0.0)
    whole = cost.of_first(status.rounds).seconds
    return replace(status, work=whole, share_done=cost.of_first(status.round).seconds / whole)


def _was_timed_here(record: RunRecord) -> bool:
    """Return whether the run is done and was timed on this machine's CPU with the launchers' engine."""
    engine = record.manifest.get("engine", {})
    here = record.manifest.get("hardware") == hardware()
    timed = record.status == "done" and "cpu_seconds" in record.result
    return timed and here and engine.get("name") == ENGINE and "device" not in engine


def count(run: Experiment, also: frozenset[int] = frozenset()) -> RunCost:
    """Return the cost of each round of the run, which does not depend on its seed and partition.

    FLOPs of evaluations are not included. `also` are rounds that must be in the sample. Raise ConfigError if the run
    itself would, and CannotCount if the method fails on tensors without numbers. Custom code may do so, and so do two
    methods that differentiate a group norm twice with torch below 2.12.
    """
    try:
        return _count(of_any_seed(run), also)
    except FsslError:
        raise
    except Exception as error:
        failure = failure_of(error)
        reason = one_line(error) if failure is None else failure.line()
        name = to_json(run)["method"]["kind"]
        raise CannotCount(f"the cost of {name} cannot be counted on tensors without numbers: {reason}") from error


def countable(runs: Iterable[Experiment]) -> tuple[list[Experiment], tuple[Note, ...]]:
    """Return the runs with a cost that can be counted, and a note for each reason why other runs cannot be counted."""
    able: list[Experiment] = []
    reasons = Counter[str]()
    for run in runs:
        try:
            count(run)
        except CannotCount as error:
            reasons[f"{error}"] += 1
        else:
            able.append(run)
    notes = []
    for reason, number in reasons.items():
        notes.append(Note(f"the totals do not include {number} run{'s' if number > 1 else ''}: {reason}"))
    return able, tuple(notes)


@cache
def _count(run: Experiment, also: frozenset[int]) -> RunCost:
    rounds, warm_rounds = run.federation.rounds, getattr(run.method, "warm_start_rounds", 0)
    counter = RoundCounter(run)
    warm = counter.play(1) if warm_rounds else Cost()
    between = range(warm_rounds + 1, rounds)
    spread = {between[(len(between) - 1) * index // (SAMPLED - 1)] for index in range(SAMPLED)} if between else set()
    numbers = sorted(spread | also & set(between))
    sample = [counter.play(number) for number in numbers[: ALIKE - 1]]
    last = counter.play(rounds)
    for number in numbers[ALIKE - 1 :]:
        has_enough = len(sample) == ALIKE or not _differing([*sample, last])
        if has_enough and not also and not _differing(sample):
            break
        sample.append(counter.play(number))
    later = _mean(sample) if sample else last
    warm_rounds = min(warm_rounds, rounds - 1)
    downloads = counter.downloads
    return RunCost(rounds=rounds, warm_rounds=warm_rounds, warm=warm, later=later, last=last, downloads=downloads)


def _mean(sample: list[Cost]) -> Cost:
    """Return the mean cost of some rounds, with a note if they differ."""
    differing = _differing(sample)
    if not differing:
        return sample[0]
    mean = sum(sample, Cost()) * (1 / len(sample))
    return mean + Cost(notes=(Note(ESTIMATED, about=differing),))


def _differing(costs: list[Cost]) -> frozenset[str]:
    """Return the names of the counts that are not the same in all rounds."""
    differing = set()
    for name in COUNTS:
        values = {round(getattr(cost, name)) for cost in costs}
        if len(values) > 1:
            differing.add(name)
    return frozenset(differing)
