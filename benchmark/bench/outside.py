"""What a round costs beside local training: drawing, averaging, evaluation, diagnostics, records and logging.

A whole run as `fssl run` does it, with a record in a temporary folder. Two figures, for ten rounds with one evaluation:
the share of the wall time in which nobody waits for an outcome (what this process does while workers train is in it,
so it is the most that it can be), and this process's share of all CPU seconds.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.bench.contenders import Options, cpu_seconds
from benchmark.bench.memory import EMNIST_TEST
from benchmark.bench.works import environment_of
from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.experiment import Evaluation
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.trainer import build_trainer, fit
from benchmark.methods.protocol import Job, Outcome, Tree, Weights
from benchmark.records.lease import Lease
from benchmark.records.provenance import manifest
from benchmark.records.recorder import Recorder

ROUNDS = 10  # counted; one before warms up, and one after takes the last round's test


class Waiting:
    """An engine, and the seconds that somebody waited for its outcomes."""

    name = "pool"

    def __init__(self, engine: ProcessPool) -> None:
        self._engine = engine
        self.seconds = 0.0

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._engine.settings

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        outcomes = self._engine.fit(jobs, round_number, kept)
        while True:
            started = time.perf_counter()
            outcome = next(outcomes, None)
            self.seconds += time.perf_counter() - started
            if outcome is None:
                return
            yield outcome

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        yield from self._engine.gradients(jobs, round_number)

    def close(self) -> None:
        self._engine.close()


class Clock(pl.Callback):
    """Reads of the clocks at the end of each round: wall, waiting, CPU of this process, CPU of all."""

    def __init__(self, waiting: Waiting, pids: Sequence[int]) -> None:
        self._waiting, self._pids = waiting, pids
        self.reads: list[tuple[float, float, float, float]] = []

    def on_train_batch_end(self, *args: object) -> None:
        here = time.process_time()
        self.reads.append((time.perf_counter(), self._waiting.seconds, here, cpu_seconds(self._pids)))


def outside(options: Options) -> dict[str, Any]:
    """Work A, on EMNIST balanced's number of test images."""
    work = options.work("A")
    if not options.quick:
        work = replace(work, N_test=EMNIST_TEST, N_train=20_000, real=False)
    rounds, every = (2, 2) if options.quick else (ROUNDS, 10)
    federation = replace(work.experiment.federation, rounds=rounds + 2)
    experiment = replace(work.experiment, federation=federation, evaluation=Evaluation(every=every))
    environment = environment_of(replace(work, experiment=experiment))
    with (
        ProcessPool(environment, options.workers, confident_only=False) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        waiting = Waiting(engine)
        clock = Clock(waiting, engine.pids)
        recorder = Recorder(Lease(Path(folder), 1), experiment)
        module = FederatedModule(environment, waiting)
        with recorder.opened(manifest(environment, waiting)):
            fit(module, build_trainer([GradientDiversity(), recorder.exchange, recorder, clock]))
    (wall, waited, here, everyone) = (
        last - first for first, last in zip(clock.reads[0], clock.reads[rounds], strict=True)
    )
    return {
        "what": work.what,
        "rounds": rounds,
        "test_images": len(environment.data.test_labels_N),
        "tested_every": every,
        "round_seconds": wall / rounds,
        "not_waiting_share": 1 - waited / wall,
        "cpu_share": here / everyone,
    }
