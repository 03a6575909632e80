"""What a round costs beside local training: drawing, averaging, evaluation, diagnostics, records and logging.

A run as `fssl run` does it, with a record in a temporary folder: the share of its wall time in which nobody waits for
an outcome. What this process does while workers train is in it, so it is the most that it can be.
"""

import tempfile
import time
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.bench.contenders import Options
from benchmark.bench.memory import EMNIST_TEST
from benchmark.bench.works import environment_of
from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.experiment import Evaluation
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.trainer import build_trainer, fit
from benchmark.methods.protocol import Job, Outcome, Tree
from benchmark.records.lease import Lease
from benchmark.records.provenance import manifest
from benchmark.records.recorder import Recorder

ROUNDS = 10  # counted; one before warms up, and one after takes the last round's test


class Waited(ProcessPool):
    """A pool, and the seconds that somebody waited for its outcomes."""

    waited = 0.0

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        outcomes = super().fit(jobs, round_number, kept)
        while True:
            started = time.perf_counter()
            outcome = next(outcomes, None)
            self.waited += time.perf_counter() - started
            if outcome is None:
                return
            yield outcome


class Clock(pl.Callback):
    """Wall and waiting seconds at the end of each round."""

    def __init__(self, pool: Waited) -> None:
        self._pool = pool
        self.reads: list[tuple[float, float]] = []

    def on_train_batch_end(self, *args: object) -> None:
        self.reads.append((time.perf_counter(), self._pool.waited))


def outside(options: Options) -> dict[str, Any]:
    """Work A, on EMNIST balanced's number of test images."""
    work = options.work("A")
    if not options.quick:
        work = replace(work, N_test=EMNIST_TEST)
    rounds, every = (2, 2) if options.quick else (ROUNDS, 10)
    federation = replace(work.experiment.federation, rounds=rounds + 2)
    experiment = replace(work.experiment, federation=federation, evaluation=Evaluation(every=every))
    environment = environment_of(replace(work, experiment=experiment))
    pool = Waited(environment, options.workers, confident_only=False)
    with pool, tempfile.TemporaryDirectory() as folder:
        clock, recorder = Clock(pool), Recorder(Lease(Path(folder), 1), experiment)
        with recorder.opened(manifest(environment, pool)):
            callbacks = [GradientDiversity(), recorder.exchange, recorder, clock]
            fit(FederatedModule(environment, pool), build_trainer(callbacks))
    wall, waited = (last - first for first, last in zip(clock.reads[0], clock.reads[rounds], strict=True))
    return {
        "rounds": rounds,
        "test_images": work.N_test,
        "tested_every": every,
        "round_seconds": wall / rounds,
        "not_waiting_share": 1 - waited / wall,
    }
