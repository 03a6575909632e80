"""What checkpoints cost at the default cadence: CPU seconds of saving against those of the whole run.

    python -m tests.performance.checkpoints_cost [--seconds 70] [--json results/benchmarks/checkpoints.json]

SSFL Table 2's full cohort at the laptop profile (MNIST, small_cnn), for so many seconds; and a save of states of other
sizes: the same with momentum kept for every client, and a ResNet-18. Saving longer than 0.4 s is done less often, so
that it stays under 2 % (`MOST_OF_A_RUN`). Wall time is that of a machine that others use, too: see the load averages.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.trainer import build_trainer, fit
from benchmark.methods.protocol import State, Weights
from benchmark.models.build import Model, build
from benchmark.papers.catalogue import items
from benchmark.records import checkpoints
from benchmark.records.checkpoints import Checkpoint
from benchmark.records.export import export
from benchmark.records.lease import Lease
from benchmark.records.recorder import MOST_OF_A_RUN, SECONDS_BETWEEN_CHECKPOINTS, Recorder


class Timed(Recorder):
    """A recorder that notes what saving takes, and ends the run after so many seconds."""

    def __init__(self, folder: Path, experiment: Experiment, seconds: float) -> None:
        super().__init__(Lease(folder, 1), experiment)
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self._ends = time.monotonic() + seconds

    def save(self) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        super().save()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        super().on_train_batch_end(trainer, pl_module, *args)
        trainer.should_stop = time.monotonic() > self._ends


def a_run(seconds: float) -> dict[str, Any]:
    """A run of so many seconds, as `fssl run` does it."""
    (item,) = items(["ssfl/tab2"], "laptop")
    cell = item.cell("FedAvg/full").experiment
    experiment = replace(cell, federation=replace(cell.federation, rounds=10**5))
    environment = prepare(experiment)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu, wall = time.process_time(), time.perf_counter()
        module = FederatedModule(environment, ReferenceEngine(environment))
        recorder = Timed(folder, experiment, seconds)
        with recorder.opened({}):
            fit(module, build_trainer([recorder.exchange, recorder]))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        begun = time.perf_counter()
        export(folder, module, recorder.last, recorder.best)
        exported = time.perf_counter() - begun
        sizes = [path.stat().st_size for path in (folder / "checkpoints").iterdir()]
    return {
        "data": experiment.data.name,
        "network": experiment.model.network,
        "rounds": module.rounds_done,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "saves": len(recorder.cpu),
        "cpu_seconds_of_a_save": statistics.median(recorder.cpu),
        "wall_seconds_of_a_save": statistics.median(recorder.wall),
        "cpu_share": sum(recorder.cpu) / cpu,
        "wall_share": sum(recorder.wall) / wall,
        "bytes_of_a_checkpoint": max(sizes),
        "wall_seconds_of_the_export": exported,
    }


def a_save(state: State, repeats: int = 5) -> dict[str, float]:
    """Median cost of one save, and the share of a run that it comes to at the default cadence."""
    cpu, wall, size = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, repeats + 1):
            begun = time.process_time(), time.perf_counter()
            size = checkpoints.save(Path(folder), Checkpoint(round=number, state=state, best=None, last={}), "x")
            cpu.append(time.process_time() - begun[0])
            wall.append(time.perf_counter() - begun[1])
    took = statistics.median(wall)
    return {
        "bytes": size,
        "cpu_seconds": statistics.median(cpu),
        "wall_seconds": took,
        "wall_share": took / (took + max(SECONDS_BETWEEN_CHECKPOINTS, took / MOST_OF_A_RUN)),
    }


def momentum_for(weights: Weights, clients: int) -> State:
    kept = {
        str(client): {"momentum": {name: value.clone() for name, value in weights.items()}} for client in range(clients)
    }
    return State(server={"student": weights}, clients=kept)


def measure(seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    keep_freed_memory()
    before = os.getloadavg()[0]
    small = weights_of(build(Model(network="small_cnn", norm="gn", norm_groups=4), (1, 28, 28), 10, seed=0))
    large = weights_of(build(Model(network="resnet18", norm="gn", norm_groups=2), (3, 32, 32), 10, seed=0))
    return {
        "run": a_run(seconds),
        "one_save": {
            "small_cnn, momentum of 100 clients": a_save(momentum_for(small, 100)),
            "resnet18, student and teacher": a_save(
                State(server={"student": large, "teacher": {name: value.clone() for name, value in large.items()}})
            ),
            "resnet18, momentum of 10 clients": a_save(momentum_for(large, 10), repeats=3),
        },
        "load_before": before,
        "load_after": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = parser.parse_args()
    head = {
        "command": f"python -m tests.performance.checkpoints_cost --seconds {options.seconds:g}",
        "what": f"SSFL Table 2, full cohort, laptop profile, a checkpoint every {SECONDS_BETWEEN_CHECKPOINTS:g} s: "
        "shares of saving in the run's CPU and wall seconds; single saves of larger states, and their share",
        "hardware": {"cores": os.cpu_count()},
        "packages": {"torch": torch.__version__},
    }
    figures = json.dumps({**head, **measure(options.seconds)}, indent=1)
    print(figures)
    if options.json:
        options.json.write_text(figures + "\n")


if __name__ == "__main__":
    main()
