"""Where local training spends its time: torch.profiler over a few jobs of an experiment, as a table of operators.

In a process of its own, so that nothing of it (the profiler's hooks) reaches a run.
"""

import multiprocessing
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.jobs import PLAIN, JobRunner, Speed, keeper_of
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.store import copied
from benchmark.methods.protocol import Job, Outcome, Tree

JOBS = 3  # that train
ROUNDS = 3  # within which they have to come
ROWS = 25  # operators, those that take most


class Enough(Exception):
    """All jobs that are wanted have come."""


class FirstJobs(ReferenceEngine):
    """Runs jobs, and notes the first that train, with their round and the private state that they saw."""

    def __init__(self, environment: Environment, runner: JobRunner) -> None:
        super().__init__(environment)
        self._work = runner
        self.found: list[tuple[Job, int, Tree | None]] = []

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            private = copied(kept.get(keeper_of(job)))
            (outcome,) = super().fit([job], round_number, kept)
            if outcome.steps:
                self.found.append((job, round_number, private))
            if len(self.found) == JOBS:
                raise Enough
            yield outcome


def profile_engine(
    experiment: Experiment, data_root: Path | None = None, *, plain: bool = False, confident_only: bool = True
) -> str:
    """A table of operators in the experiment's first jobs, from its initial weights; a warm start is left out.

    `plain`: the reference engine's local step in place of the pool's. Raises ConfigError and DataError.
    """
    speed = PLAIN if plain else Speed(confident_only=confident_only)
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(profiled, experiment, data_root, speed).result()


def profiled(experiment: Experiment, data_root: Path | None, speed: Speed) -> str:
    """In the process of its own: the jobs once to warm up, and once more under the profiler."""
    torch.set_num_threads(1)
    keep_freed_memory()
    environment = prepare(without_warm_start(experiment), data_root)
    runner = JobRunner(environment, speed)
    engine = FirstJobs(environment, runner)
    module = FederatedModule(environment, engine)
    try:
        for number in range(1, min(ROUNDS, experiment.federation.rounds) + 1):
            module.training_step(number, 0)
    except Enough:
        pass
    with profile(activities=[ProfilerActivity.CPU]) as measured:
        steps = sum(runner.run(job, number, private).steps for job, number, private in engine.found)
    table = measured.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS, max_name_column_width=40)
    return f"{len(engine.found)} jobs, {steps} local steps on one thread\n{table}\n"


def without_warm_start(experiment: Experiment) -> Experiment:
    """Rounds of the server alone would tell nothing of clients."""
    names = {field.name for field in fields(experiment.method)}
    if "warm_start_rounds" not in names:
        return experiment
    return replace(experiment, method=replace(experiment.method, warm_start_rounds=0))
