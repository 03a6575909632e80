"""What handing a round's jobs to ranks costs, against worker processes: bytes and seconds, on one machine.

    python -m tests.performance.ranks_speed [--rounds 5] [--json results/benchmarks/ranks.json]

The work: SSFL Table 2's full cohort at the laptop profile (10 clients and the server). First jobs that only send back
the weights that they receive, so that a call of `fit` is hand-over and nothing else; then real rounds, the engines in
turn. Last, from each job's seconds in those rounds, how long two ranks would take with jobs handed out one by one as
ranks become free, and with shares fixed before the round by the predicted cost (both the longest first): on equal
ranks, and where one is slower. The program starts its second rank itself, as torchrun would.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmark.experiment import Experiment
from benchmark.federated.dispatch import cost_of
from benchmark.federated.distributed import DistributedEngine
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.helper import serve
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.ranks import Place, Ranks, join
from benchmark.federated.workers import CpuEngine
from benchmark.methods.objectives import ServerUpdate
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Local, Outcome, Reader, Tree
from benchmark.models.build import Model
from benchmark.papers.catalogue import items

CALLS, WARM_UP = 20, 2
SAME = {"experiment": "ranks_speed"}


@dataclass(frozen=True, kw_only=True)
class Echo(ServerUpdate):
    """Sends back what it receives."""

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local:
        return Local(trainable={}, found=received)

    def finish(self, local: Local) -> Tree:
        return {"student": local.found["student"]}


def experiment_of(network: str) -> Experiment:
    (item,) = items(["ssfl/tab2"], "laptop")
    cell = item.cell("FedAvg/full").experiment
    model = cell.model if network == "cell" else Model(network="resnet18", norm="gn", norm_groups=2)
    return replace(
        cell,
        model=model,
        method=replace(cell.method, warm_start_rounds=0),
        evaluation=replace(cell.evaluation, every=10**6),
    )


def echoes(environment: Environment) -> list[Job]:
    weights = weights_of(environment.network())
    holders = [*range(environment.experiment.federation.C), SERVER]
    return [
        Job(key=Key(client=k), update=Echo(), receives={"student": weights}, data={}, limit=Limit(steps=0))
        for k in holders
    ]


def hand_over(engines: dict[str, Engine], environment: Environment, ranks: Ranks) -> dict[str, dict[str, float]]:
    """Median milliseconds of a call of jobs that do nothing, and what went over the wire in it."""
    jobs = echoes(environment)
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(CALLS + WARM_UP):
        for name, engine in engines.items():
            before = traffic_of(ranks)
            began = time.perf_counter()
            list(engine.fit(jobs, 1, {}))
            taken[name].append(1000 * (time.perf_counter() - began))
            if name == "2 ranks":
                traffic = difference(traffic_of(ranks), before)
    found = {name: {"milliseconds": statistics.median(times[WARM_UP:])} for name, times in taken.items()}
    found["2 ranks"].update(traffic)
    return found


def traffic_of(ranks: Ranks) -> dict[str, float]:
    """So far; rank 0's own jobs go over no wire."""
    (link,) = ranks.links.values()
    traffic = link.traffic
    return {
        "bytes_to_rank_1": traffic.bytes_sent,
        "bytes_from_rank_1": traffic.bytes_received,
        "jobs_of_rank_1": traffic.received,
    }


def difference(now: dict[str, float], then: dict[str, float]) -> dict[str, float]:
    return {name: now[name] - then[name] for name in now}


class Timed(ReferenceEngine):
    """The reference, with each job's predicted cost and seconds."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.environment = environment
        self.rounds: list[list[tuple[float, float]]] = []

    def fit(self, jobs: Sequence[Job], round_number: int, kept: object) -> Iterator[Outcome]:
        self.rounds.append([])
        for job in jobs:
            began = time.perf_counter()
            (outcome,) = super().fit([job], round_number, kept)  # type: ignore[arg-type]
            cost = cost_of(job, self.environment, round_number)
            self.rounds[-1].append((cost, time.perf_counter() - began))
            yield outcome


def one_by_one(jobs: Sequence[tuple[float, float]], slowness: Sequence[float]) -> float:
    """Seconds until the last rank is done: each job, the costliest first, goes to the rank that is free first."""
    free = [0.0 for _ in slowness]
    for _, seconds in sorted(jobs, reverse=True):
        first = free.index(min(free))
        free[first] += seconds * slowness[first]
    return max(free)


def fixed(jobs: Sequence[tuple[float, float]], slowness: Sequence[float]) -> float:
    """The same where each job goes to the rank with the least predicted cost so far."""
    planned, busy = [0.0 for _ in slowness], [0.0 for _ in slowness]
    for cost, seconds in sorted(jobs, reverse=True):
        least = planned.index(min(planned))
        planned[least] += cost
        busy[least] += seconds * slowness[least]
    return max(busy)


def rounds_of_each(engines: dict[str, Engine], environment: Environment, rounds: int) -> dict[str, float]:
    """Median seconds of a round."""
    modules = {name: FederatedModule(environment, engine) for name, engine in engines.items()}
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(1, rounds + WARM_UP + 1):
        for name, module in modules.items():
            began = time.perf_counter()
            module.training_step(number, 0)
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[WARM_UP:]) for name, times in taken.items()}


def lead(network: str, rounds: int) -> dict[str, object]:
    """Everything, for one network, with a second rank of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.performance.ranks_speed", "--network", network],
        env={**os.environ, "RANK": "1"},
    )
    environment = prepare(experiment_of(network))
    timed = Timed(environment)
    with (
        join(Place(rank=0, size=2)) as ranks,
        CpuEngine(environment, workers=2) as workers,
        DistributedEngine(environment, ranks, SAME) as shared,
    ):
        engines: dict[str, Engine] = {"reference": timed, "2 workers": workers, "2 ranks": shared}
        found: dict[str, object] = {"hand_over": hand_over(engines, environment, ranks)}
        timed.rounds.clear()
        if rounds:
            before = traffic_of(ranks)
            found["round_seconds"] = rounds_of_each(engines, environment, rounds)
            whole = difference(traffic_of(ranks), before)
            found["of_a_round_over_the_wire"] = {name: count / (rounds + WARM_UP) for name, count in whole.items()}
            found["two_ranks_from_job_seconds"] = planned(timed.rounds[WARM_UP:])
    other.wait(10)
    return found


def planned(rounds: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """Medians over rounds: seconds until both ranks are done."""
    ways = {"one by one": one_by_one, "fixed": fixed}
    ranks = {"equal": (1.0, 1.0), "one 1.5 times slower": (1.0, 1.5), "one 3 times slower": (1.0, 3.0)}
    return {
        f"{way}, {which}": statistics.median(run(jobs, slowness) for jobs in rounds)
        for way, run in ways.items()
        for which, slowness in ranks.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    parser.add_argument("--network", default=None, help="be the second rank, for this network")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if arguments.network:
        serve(Place(rank=1, size=2), experiment_of(arguments.network), None, lambda environment: SAME)
        return
    figures = {
        "command": f"python -m tests.performance.ranks_speed --rounds {arguments.rounds}",
        "what": "SSFL Table 2, full cohort, laptop profile, 11 jobs a round; hand-over: jobs that send back what they "
        "receive; load averages of a machine with 2 cores that others used, too",
        "load_before": os.getloadavg()[0],
        "the cell's network": lead("cell", arguments.rounds),
        "resnet18, 11 M weights": lead("resnet18", 0),
        "load_after": os.getloadavg()[0],
        "packages": {"torch": torch.__version__},
    }
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
