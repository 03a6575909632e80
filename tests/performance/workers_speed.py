"""What worker processes gain: rounds of `CpuEngine(2)` against `ReferenceEngine` on one and on two threads.

    python -m tests.performance.workers_speed [--rounds 6] [--json results/benchmarks/workers.json]

SSFL Table 2's full cohort at the laptop profile (10 clients and the server, 16 local steps of 32 images). The three
take turns round by round, so that a busy machine slows all; CPU seconds count the workers' too. And what handing
weights over costs: a pipe, as `parcels` does it, against tensors in shared memory, there and back.
Where other programs keep the cores busy, two workers gain little and two threads collapse: see the load averages.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.multiprocessing
from torch import Tensor

from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.parcels import Numbers, pack, receive, send, unpack
from benchmark.federated.workers import CpuEngine
from benchmark.models.build import Model, build
from benchmark.papers.catalogue import items

WARM_UP = 2  # rounds
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: list[int]) -> float:
    """Of this process and of these."""
    total = time.process_time()
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


class Contender:
    """One engine at its own number of threads in this process, with a run of its own."""

    def __init__(self, engine: Engine, threads: int, module: FederatedModule) -> None:
        self.engine, self.threads, self.module = engine, threads, module
        self.pids = engine.pids if isinstance(engine, CpuEngine) else []
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def round(self, number: int) -> None:
        torch.set_num_threads(self.threads)
        cpu, wall = cpu_seconds(self.pids), time.perf_counter()
        self.module.training_step(number, 0)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(cpu_seconds(self.pids) - cpu)

    def figures(self, yardstick: "Contender") -> dict[str, float]:
        """Medians after the warm-up; ratios are medians of paired ratios, above 1: faster than the yardstick."""
        ratios = [theirs / ours for theirs, ours in zip(yardstick.wall, self.wall, strict=True)][WARM_UP:]
        cpu = [theirs / ours for theirs, ours in zip(yardstick.cpu, self.cpu, strict=True)][WARM_UP:]
        return {
            "wall_seconds": statistics.median(self.wall[WARM_UP:]),
            "cpu_seconds": statistics.median(self.cpu[WARM_UP:]),
            "wall_ratio": statistics.median(ratios),
            "wall_ratio_least": min(ratios),
            "wall_ratio_most": max(ratios),
            "cpu_ratio": statistics.median(cpu),
        }


def rounds_of_each(rounds: int) -> dict[str, dict[str, float]]:
    """The three engines in turn; the yardstick of all ratios is the reference on one thread."""
    (item,) = items(["ssfl/tab2"], "laptop")
    cell = item.cell("FedAvg/full").experiment
    experiment = replace(
        cell,
        method=replace(cell.method, warm_start_rounds=0),
        evaluation=replace(cell.evaluation, every=10**6),
    )
    environment = prepare(experiment)
    with CpuEngine(environment, workers=2) as engine:
        engines: list[tuple[str, Engine, int]] = [
            ("reference, 1 thread", ReferenceEngine(environment), 1),
            ("2 workers", engine, 1),
            ("reference, 2 threads", ReferenceEngine(environment), 2),
        ]
        contenders = {
            name: Contender(each, threads, FederatedModule(environment, each)) for name, each, threads in engines
        }
        for number in range(1, rounds + WARM_UP + 1):
            for contender in contenders.values():
                contender.round(number)
    yardstick = contenders["reference, 1 thread"]
    return {name: contender.figures(yardstick) for name, contender in contenders.items()}


def echo(connection: Connection, shared: bool) -> None:
    """Sends back what comes."""
    torch.set_num_threads(1)
    kept: Mapping[str, Tensor] = {}
    while True:
        if shared:
            kept = connection.recv()
            back = {name: value.clone().share_memory_() for name, value in kept.items()}
            connection.send(back)
        else:
            pickled, tensors = receive(connection)
            back, numbers = unpack(pickled, tensors), Numbers()
            pickled = pack(back, numbers).pickled
            send(connection, pickled, numbers.tensors.items())


def hand_over(model: Model, image_shape: tuple[int, int, int], repeats: int = 15) -> dict[str, float]:
    """Median milliseconds for one weight set to a process and back."""
    weights = weights_of(build(model, image_shape, 10, seed=0))
    context = torch.multiprocessing.get_context("spawn")
    found = {}
    for name, shared in (("pipe", False), ("shared_memory", True)):
        ours, theirs = context.Pipe()
        process = context.Process(target=echo, args=(theirs, shared), daemon=True)
        process.start()
        there_and_back = shared_round_trip if shared else pipe_round_trip
        times = [timed(lambda: there_and_back(ours, weights)) for _ in range(repeats + 3)]  # noqa: B023  # run at once
        found[name] = 1000 * statistics.median(times[3:])
        process.kill()
        process.join()
    return found


def pipe_round_trip(connection: Connection, weights: Mapping[str, Tensor]) -> None:
    numbers = Numbers()
    pickled = pack(dict(weights), numbers).pickled
    send(connection, pickled, numbers.tensors.items())
    unpack(*receive(connection))


def shared_round_trip(connection: Connection, weights: Mapping[str, Tensor]) -> None:
    connection.send({name: value.clone().share_memory_() for name, value in weights.items()})
    {name: value.clone() for name, value in connection.recv().items()}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(rounds: int) -> dict[str, object]:
    torch.set_num_threads(1)
    keep_freed_memory()
    before = os.getloadavg()[0]
    networks = {
        "small_cnn, 0.2 M weights": (Model(network="small_cnn", norm="gn", norm_groups=4), (1, 28, 28)),
        "resnet18, 11 M weights": (Model(network="resnet18", norm="gn", norm_groups=2), (3, 32, 32)),
    }
    return {
        "rounds": rounds,
        "load_before": before,
        "engines": rounds_of_each(rounds),
        "hand_over_milliseconds": {name: hand_over(*network) for name, network in networks.items()},
        "load_after": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    arguments = parser.parse_args()
    head = {
        "command": f"python -m tests.performance.workers_speed --rounds {arguments.rounds}",
        "what": "SSFL Table 2, full cohort, laptop profile: seconds a round, the engines in turn; ratios to the "
        "reference engine on one thread, above 1 is faster; load averages of a machine with 2 cores",
        "hardware": {"cores": os.cpu_count()},
        "packages": {"torch": torch.__version__},
    }
    figures = json.dumps({**head, **measure(arguments.rounds)}, indent=1)
    print(figures)
    if arguments.json:
        arguments.json.write_text(figures + "\n")


if __name__ == "__main__":
    main()
