"""Plans what a run costs: local steps, FLOPs, bytes, and seconds on this machine's cores or CUDA devices.

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
from sweeps.counting import BY_REPORTS, ESTIMATED, Cost, RoundCounter, of_any_seed
from sweeps.status import RunStatus

RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, saves, weights on disk, as measured
SAMPLED, ALIKE = 8, 3  # rounds played where they differ, and where the first of them are equal
ENGINE = "pool"  # what launchers train with, in one process


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """A run's cost by rounds: those of a warm start, those after it, and the last one."""

    rounds: int
    warm_rounds: int
    warm: Cost  # of one round
    later: Cost
    last: Cost

    def of_first(self, rounds: int) -> Cost:
        """What this many rounds from the first on cost."""
        if rounds == self.rounds:
            return self.of_first(rounds - 1) + self.last
        warm = min(rounds, self.warm_rounds)
        return self.warm * warm + self.later * (rounds - warm)

    @property
    def whole(self) -> Cost:
        """All rounds, and what is around them."""
        return self.of_first(self.rounds) + Cost(seconds=RUN_SECONDS)


def cost_of(run: Experiment, results: Path, device: str = CPU) -> Cost:
    """What the whole run costs, from its first round to its last, without the start of its process.

    Raises ConfigError where the run itself would.
    """
    whole = count(run, device).whole
    records = read_records(results, [run.cell_key], with_reference=False, troubles=[])[run.cell_key].values()
    finished = [record.result["cpu_seconds"] for record in records if device == CPU and _was_timed_here(record)]
    return replace(whole, seconds=fmean(finished)) if finished else whole


def weighed(status: RunStatus, run: Experiment) -> RunStatus:
    """The run's status with planned CPU seconds as its work; without work where it cannot be counted."""
    try:
        cost = count(run)
    except Exception:  # whatever a user's own method raises: the run's own process tells of it
        return replace(status, work=0.0, share_done=0.0)
    whole = cost.of_first(status.rounds).seconds
    return replace(status, work=whole, share_done=cost.of_first(status.round).seconds / whole)


def _was_timed_here(record: RunRecord) -> bool:
    """Whether it is done, and says how long it took on this machine's CPU with the launchers' engine."""
    engine, here = record.manifest.get("engine", {}), record.manifest.get("hardware") == hardware()
    timed = record.status == "done" and "cpu_seconds" in record.result
    return timed and here and engine.get("name") == ENGINE and "device" not in engine


def count(run: Experiment, device: str = CPU) -> RunCost:
    """What each round of the run costs, whatever its seed and partition. FLOPs of evaluations are not in it.

    Raises ConfigError where the run itself would.
    """
    return _count(of_any_seed(run), device)


@cache
def _count(run: Experiment, device: str) -> RunCost:
    rounds, warm_rounds = run.federation.rounds, getattr(run.method, "warm_start_rounds", 0)
    counter = RoundCounter(run, device)
    warm = counter.play(1) if warm_rounds else Cost()
    later = _typical(counter, warm_rounds + 1, rounds - 1) if warm_rounds < rounds - 1 else None
    # Reports of the few rounds that are played decide nothing.
    last = later if later and BY_REPORTS in later.notes else counter.play(rounds)
    return RunCost(rounds=rounds, warm_rounds=min(warm_rounds, rounds - 1), warm=warm, later=later or last, last=last)


def _typical(counter: RoundCounter, first: int, last: int) -> Cost:
    """The cost of one of these rounds: the mean over a sample where they differ."""
    sample: list[Cost] = []
    for number in sorted({first + (last - first) * index // (SAMPLED - 1) for index in range(SAMPLED)}):
        sample.append(counter.play(number))
        if BY_REPORTS in sample[0].notes or (len(sample) == ALIKE and _equal(sample)):
            break
    mean = sum(sample, Cost()) * (1 / len(sample))
    return sample[0] if _equal(sample) else mean + Cost(notes=(ESTIMATED,))


def _equal(costs: list[Cost]) -> bool:
    """Whether what is counted is equal; sums of seconds are equal up to rounding alone."""
    return len({(cost.local_steps, round(cost.flops), cost.bytes_up, cost.bytes_down) for cost in costs}) == 1
