"""Plans what a run costs: local steps, FLOPs, bytes, and seconds on this machine's cores or CUDA devices.

It is the one model of cost: `fssl plan` prints it, and progress and the time left go by it. Rounds of a warm start cost
the same, and so do those after it; where these differ, a sample of them is counted (`sweeps.counting`). The seconds of
a finished run of the cell on this machine take precedence over planned ones.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import torch

from benchmark.data.partition import Iid
from benchmark.experiment import Experiment
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.processes import CPU
from benchmark.optimizer import Constant
from benchmark.records.collect import read_records
from benchmark.records.provenance import hardware
from benchmark.records.record import RunRecord
from sweeps.counting import BY_REPORTS, ESTIMATED, Cost, RoundCounter
from sweeps.speed import speed_for
from sweeps.stand_in import stand_in
from sweeps.status import RunStatus

MILD = 1e-3  # a learning rate with which nothing diverges
RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, saves, weights on disk, as measured
SAMPLED, ALIKE = 8, 3  # rounds played where they differ, and where the first of them are equal
# Of one NVIDIA H200 with 16 cores (reports/performance.md): local steps a second of 16 runs side by side under MPS, and
# milliseconds a step of one run alone in float32, by network and norm.
SIDE_BY_SIDE, STEPS_PER_SECOND = 16, {("emnist_cnn", "none"): 2819.0}
STEP_MS = {
    ("emnist_cnn", "none"): 3.2,
    ("wresnet28x2", "gn"): 13.3,
    ("wresnet28x2", "sbn"): 15.8,
    ("resnet18_mlp", "gn"): 20.5,
}
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


@dataclass(frozen=True, kw_only=True)
class OnH200:
    """What runs would take on an NVIDIA H200, by the speeds that were measured there."""

    seconds: float
    side_by_side: int  # runs; 1: how much faster several are was not measured for these networks


def on_h200(runs: Iterable[Experiment]) -> OnH200 | None:
    """The estimate for runs of a full-size network; None if a network was not timed, or there is no run."""
    steps: dict[tuple[str, str], float] = defaultdict(float)
    for run in runs:
        if run.profile not in ("gpu", "paper") or run.precision != "fp32":
            return None
        steps[run.model.network, run.model.norm] += count(run).whole.local_steps
    if not steps or not steps.keys() <= STEP_MS.keys():
        return None
    if steps.keys() <= STEPS_PER_SECOND.keys():
        seconds = sum(number / STEPS_PER_SECOND[network] for network, number in steps.items())
        return OnH200(seconds=seconds, side_by_side=SIDE_BY_SIDE)
    seconds = sum(number * STEP_MS[network] / 1000 for network, number in steps.items())
    return OnH200(seconds=seconds, side_by_side=1)


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
    optimizer = replace(run.optimizer, lr=MILD, server_lr=None, schedule=Constant())
    return _count(replace(run, seed=0, partition=Iid(), profile="custom", optimizer=optimizer), device)


@cache
def _count(run: Experiment, device: str) -> RunCost:
    rounds, warm_rounds = run.federation.rounds, getattr(run.method, "warm_start_rounds", 0)
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        environment = stand_in(run)
        counter = RoundCounter(environment, speed_for(environment, device).seconds_of)
        warm = counter.play(1) if warm_rounds else Cost()
        later = _typical(counter, warm_rounds + 1, rounds - 1) if warm_rounds < rounds - 1 else None
        # Reports of the few rounds that are played decide nothing.
        last = later if later and BY_REPORTS in later.notes else counter.play(rounds)
    finally:
        torch.set_num_threads(threads)
    before_last = min(warm_rounds, rounds - 1)
    return RunCost(rounds=rounds, warm_rounds=before_last, warm=warm, later=later or last, last=last)


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
