"""Rounds of jobs that train together where they can."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import torch

from benchmark.federated.devices import engine_settings, prepare_torch
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import keeper_of
from benchmark.federated.stacked.capture import cuda_graph
from benchmark.federated.stacked.runner import GroupRunner
from benchmark.methods.protocol import Job, Outcome, Tree, Weights


class StackedEngine:
    """All jobs of a round on one device, those of one kind as one."""

    def __init__(
        self,
        environment: Environment,
        device: str = "cpu",
        *,
        most: int | None = None,
        capture: bool | None = None,
    ) -> None:
        """`most`: jobs in one step. `capture`: whether steps become CUDA graphs; None: on a CUDA device."""
        self.device = torch.device(device)
        self.name = "stacked"
        prepare_torch(self.device, environment.experiment.precision)
        on_cuda = self.device.type == "cuda"
        recorder = cuda_graph if on_cuda and capture is not False else None
        self.settings = engine_settings(self.name, [self.device], torch.get_num_threads())
        self.settings |= {"bit_equal": False, "captured": recorder is not None}
        self.runner = GroupRunner(environment, device=device, most=most, recorder=recorder)

    def close(self) -> None:
        """Nothing to do: this engine has no processes."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """Yield one outcome per job, in job order. Jobs with the same keeper train one after another."""
        outcomes: dict[int, Outcome] = {}
        for wave in waves(jobs):
            privates = {index: kept.get(keeper_of(jobs[index])) for index in wave}
            done = self.runner.run_all({index: jobs[index] for index in wave}, round_number, privates)
            for index, outcome in done.items():
                outcomes[index] = outcome
                if outcome.private is not None:
                    kept[keeper_of(jobs[index])] = outcome.private
        for index in range(len(jobs)):
            yield outcomes.pop(index)

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """Yield the gradient of each job's loss at the weights that it begins with."""
        privates = {index: kept.get(keeper_of(job)) for index, job in enumerate(jobs)}
        gradients = self.runner.gradients_of_all(dict(enumerate(jobs)), round_number, privates)
        for index in range(len(jobs)):
            yield gradients.pop(index)


def waves(jobs: Sequence[Job]) -> list[list[int]]:
    """Divide the jobs so that no two of a wave keep their private state in the same place; the order is kept."""
    divided: list[list[int]] = []
    turn: dict[str, int] = {}
    for index, job in enumerate(jobs):
        keeper = keeper_of(job)
        turn[keeper] = turn.get(keeper, -1) + 1
        if turn[keeper] == len(divided):
            divided.append([])
        divided[turn[keeper]].append(index)
    return divided
