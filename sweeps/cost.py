"""Plans what a run costs: local steps, FLOPs, bytes, and seconds.

It is the one model of cost: `fssl plan` prints it, and progress and the time left go by it. Rounds of a warm start cost
the same, and so do those after it; where these differ, a sample of them is counted (`sweeps.counting`). The seconds of
a finished run of the cell on this machine take precedence over planned ones.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from benchmark.experiment import Experiment
from benchmark.federated.processes import CPU
from benchmark.records.collect import read_records
from benchmark.records.provenance import hardware
from benchmark.records.record import RunRecord
from sweeps.counting import COUNTS, Cost, FirstDownloads, Note, RoundCounter, of_any_seed
from sweeps.speed import seconds_on
from sweeps.status import RunStatus

RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, saves, weights on disk, as measured
SAMPLED, ALIKE = 8, 3  # rounds played if they differ, and if the first of them are equal
ENGINE = "pool"  # what launchers train with, in one process
ESTIMATED = "the rounds differ: counted on a sample of them, so the totals are estimates"


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """A run's cost by rounds: those of a warm start, those after it, and the last one."""

    rounds: int
    warm_rounds: int
    warm: Cost  # of one round
    later: Cost
    last: Cost
    downloads: FirstDownloads = FirstDownloads()  # in addition to what the rounds cost

    def of_round(self, number: int) -> Cost:
        """Return what this round costs; 1 is the first."""
        after, before = self._first_downloads(number), self._first_downloads(number - 1)
        cost = self._of_round(number)
        return replace(cost + after, bytes_down=cost.bytes_down + after.bytes_down - before.bytes_down)

    def _of_round(self, number: int) -> Cost:
        if number == self.rounds:
            return self.last
        return self.warm if number <= self.warm_rounds else self.later

    def of_first(self, rounds: int) -> Cost:
        """Return what the first rounds cost together."""
        return self._of_first(rounds) + self._first_downloads(rounds)

    def _first_downloads(self, rounds: int) -> Cost:
        """Return what clients download once in the first rounds. Some warm starts have no local work of clients."""
        without_clients = 0 if self.warm.bytes_down else self.warm_rounds
        return self.downloads.of_first(max(0, rounds - without_clients))

    def _of_first(self, rounds: int) -> Cost:
        if rounds == self.rounds:
            return self._of_first(rounds - 1) + self.last
        warm = min(rounds, self.warm_rounds)
        return self.warm * warm + self.later * (rounds - warm)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what is not exact in any round."""
        return (self.warm + self.later + self.last + self._first_downloads(self.rounds)).notes

    @property
    def whole(self) -> Cost:
        """Return what all rounds cost, and what is around them."""
        return self.of_first(self.rounds) + Cost(seconds=RUN_SECONDS)


def cost_of(run: Experiment, results: Path, device: str = CPU) -> Cost:
    """Return what the whole run costs on this machine, from its first round to its last.

    The start of its process is not in it. Raise ConfigError if the run itself would.
    """
    whole = count(run).whole
    records = read_records(results, [run.cell_key], with_reference=False, troubles=[])[run.cell_key].values()
    finished = [record.result["cpu_seconds"] for record in records if device == CPU and _was_timed_here(record)]
    seconds = fmean(finished) if finished else seconds_on(device, run, whole, results)
    return replace(whole, seconds=seconds)


def weighed(status: RunStatus, run: Experiment) -> RunStatus:
    """Return the run's status with planned seconds as its work; without work if it cannot be counted."""
    try:
        cost = count(run)
    except Exception:  # whatever a user's own method raises: the run's own process tells of it
        return replace(status, work=0.0, share_done=0.0)
    whole = cost.of_first(status.rounds).seconds
    return replace(status, work=whole, share_done=cost.of_first(status.round).seconds / whole)


def _was_timed_here(record: RunRecord) -> bool:
    """Return whether it is done, and says how long it took on this machine's CPU with the launchers' engine."""
    engine, here = record.manifest.get("engine", {}), record.manifest.get("hardware") == hardware()
    timed = record.status == "done" and "cpu_seconds" in record.result
    return timed and here and engine.get("name") == ENGINE and "device" not in engine


def count(run: Experiment, also: frozenset[int] = frozenset()) -> RunCost:
    """Return what each round of the run costs, whatever its seed and partition. FLOPs of evaluations are not in it.

    `also`: rounds that are in the sample in any case. Raise ConfigError if the run itself would.
    """
    return _count(of_any_seed(run), also)


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
