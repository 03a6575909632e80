"""Where local training spends its time: torch.profiler over a few jobs of an experiment, as a table of operators.

In a process of its own, so that nothing of it (the profiler's hooks) reaches a run.
"""

import multiprocessing
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmark.experiment import Experiment
from benchmark.federated.engines import PLAIN, JobRunner, Speed, keeper_of
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

JOBS = 3  # that train, after one to warm up
ROUNDS = 3  # within which they have to come
ROWS = 25


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One kind of tensor operation within the profiled jobs; its own seconds, without those of what it calls."""

    name: str
    calls: int
    self_seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Operators by their own time, of `steps` local steps in `jobs` jobs on one thread."""

    operators: tuple[Operator, ...]
    jobs: int
    steps: int

    @property
    def seconds(self) -> float:
        return sum(operator.self_seconds for operator in self.operators)

    def text(self) -> str:
        """A table: share of the time, milliseconds and calls a local step, of the operators that take most."""
        steps = max(1, self.steps)
        lines = [
            f"{self.jobs} jobs, {self.steps} local steps on one thread, "
            f"{1000 * self.seconds / steps:.2f} ms a local step",
            f"{'share':>7}  {'ms/step':>9}  {'calls/step':>10}  operator",
        ]
        for operator in self.operators[:ROWS]:
            share = 100 * operator.self_seconds / self.seconds
            each = 1000 * operator.self_seconds / steps
            lines.append(f"{share:6.1f}%  {each:9.3f}  {operator.calls / steps:10.1f}  {operator.name}")
        return "\n".join(lines) + "\n"


class Enough(Exception):
    """All jobs that are wanted have been profiled."""


class ProfilingEngine:
    """Jobs one after another; those that train are profiled, but for the first, until there are enough."""

    name = "profile"
    settings: Mapping[str, Any] = {"name": "profile"}

    def __init__(self, environment: Environment, speed: Speed, jobs: int) -> None:
        self._runner, self._wanted = JobRunner(environment, speed), jobs
        self._warm = False
        self.found: dict[str, Operator] = {}
        self.jobs = self.steps = 0

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """As `ReferenceEngine.fit`. Raises Enough after the last job that is wanted."""
        for job in jobs:
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                outcome = self._runner.run(job, round_number, kept.get(keeper_of(job)))
            if outcome.private is not None:
                kept[keeper_of(job)] = outcome.private
            if outcome.steps:
                self._count(profiled, outcome.steps)
            yield outcome

    def _count(self, profiled: profile, steps: int) -> None:
        if not self._warm:
            self._warm = True
            return
        self.jobs, self.steps = self.jobs + 1, self.steps + steps
        for event in profiled.key_averages():
            before = self.found.get(event.key, Operator(name=event.key, calls=0, self_seconds=0.0))
            self.found[event.key] = replace(
                before,
                calls=before.calls + event.count,
                self_seconds=before.self_seconds + event.self_cpu_time_total / 1e6,
            )
        if self.jobs == self._wanted:
            raise Enough

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """None are asked for: nobody watches the diversity here."""
        yield from (self._runner.gradient(job, round_number) for job in jobs)

    def close(self) -> None:
        """Nothing is held."""


def profile_engine(
    experiment: Experiment, data_root: Path | None = None, *, plain: bool = False, confident_only: bool = True
) -> Profile:
    """A profile of the experiment's first jobs, from its initial weights; a warm start is left out.

    `plain`: the reference engine's local step in place of the cpu engine's. Raises ConfigError and DataError.
    """
    speed = PLAIN if plain else Speed(confident_only=confident_only)
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(profiled, experiment, data_root, speed).result()


def profiled(experiment: Experiment, data_root: Path | None, speed: Speed) -> Profile:
    """In the process of its own."""
    torch.set_num_threads(1)
    keep_freed_memory()
    environment = prepare(without_warm_start(experiment), data_root)
    engine = ProfilingEngine(environment, speed, JOBS)
    module = FederatedModule(environment, engine)
    try:
        for number in range(1, min(ROUNDS, experiment.federation.rounds) + 1):
            module.training_step(number, 0)
    except Enough:
        pass
    by_time = sorted(engine.found.values(), key=lambda operator: -operator.self_seconds)
    return Profile(operators=tuple(by_time), jobs=engine.jobs, steps=engine.steps)


def without_warm_start(experiment: Experiment) -> Experiment:
    """Rounds of the server alone would tell nothing of clients."""
    names = {field.name for field in fields(experiment.method)}
    if "warm_start_rounds" not in names:
        return experiment
    return replace(experiment, method=replace(experiment.method, warm_start_rounds=0))
