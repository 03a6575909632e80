"""The engine that trains the jobs of a round together if their steps allow it."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import torch

from benchmark.federated.devices import engine_settings, memory_format, prepare_torch
from benchmark.federated.environment import Environment
from benchmark.federated.stacked.capture import cuda_graph
from benchmark.federated.stacked.layers import in_memory_order
from benchmark.federated.stacked.runner import GroupRunner
from benchmark.federated.stacked.shared import Shared
from benchmark.methods.protocol import Job, Outcome, Tree, Weights
from benchmark.streams import seed_globals


class StackedEngine:
    """The engine that trains all jobs of a round on one device, and the jobs of each kind as one."""

    def __init__(
        self,
        environment: Environment,
        device: str = "cpu",
        *,
        most: int | None = None,
        capture: bool | None = None,
        shared: Shared | None = None,
    ) -> None:
        """Create the engine of a run.

        `most` limits the jobs in one step. With `capture`, steps become CUDA graphs; if it is None, they do on a CUDA
        device. `shared` is the state that runs share if they train together; it overrides the other two.
        """
        self.device = torch.device(device)
        self.name = "stacked"
        experiment = environment.experiment
        prepare_torch(self.device, experiment.precision, experiment.model)
        if shared is None:
            on_cuda = self.device.type == "cuda"
            shared = Shared(most=most, recorder=cuda_graph if on_cuda and capture is not False else None)
        self.settings = engine_settings(self.name, [self.device], torch.get_num_threads(), experiment)
        self.settings |= {"bit_equal": False, "captured": shared.recorder is not None}
        self._order = memory_format(self.device, experiment.precision, experiment.model)
        self.runner = GroupRunner(environment, device=device, shared=shared)
        self._seed = experiment.seed

    def close(self) -> None:
        """Return without action, because this engine has no processes."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """Yield one outcome per job, in job order. Jobs with the same state key train in sequence.

        Afterwards the global generators are seeded from a stream of the round. So no later number depends on the
        numbers that the jobs of this run, or of runs that train with it, have drawn.
        """
        outcomes: dict[int, Outcome] = {}
        for number, wave in enumerate(waves(jobs)):
            privates = {index: kept.get(jobs[index].state_key) for index in wave}
            with in_memory_order(self._order):
                done = self.trained({index: jobs[index] for index in wave}, round_number, privates)
            seed_globals(self._seed, "round", round_number, "trained", number)
            for index, outcome in done.items():
                outcomes[index] = outcome
                if outcome.private is not None:
                    kept[jobs[index].state_key] = outcome.private
        for index in range(len(jobs)):
            yield outcomes.pop(index)

    def trained(
        self, jobs: Mapping[int, Job], round_number: int, privates: Mapping[int, Tree | None]
    ) -> dict[int, Outcome]:
        """Return the outcomes of jobs that have different state keys."""
        return self.runner.run_all(jobs, round_number, privates)

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """Yield the gradient of each job's loss at the weights that it begins with."""
        privates = {index: kept.get(job.state_key) for index, job in enumerate(jobs)}
        with in_memory_order(self._order):
            gradients = self.runner.gradients_of_all(dict(enumerate(jobs)), round_number, privates)
        seed_globals(self._seed, "round", round_number, "gradients")
        for index in range(len(jobs)):
            yield gradients.pop(index)


def waves(jobs: Sequence[Job]) -> list[list[int]]:
    """Divide the jobs, in order, so that no two jobs of a wave use the same client state.

    Jobs without client state are all in the first wave.
    """
    divided: list[list[int]] = []
    turn: dict[str, int] = {}
    for index, job in enumerate(jobs):
        state_key = job.state_key
        number = 0
        if not job.update.is_stateless:
            number = turn[state_key] = turn.get(state_key, -1) + 1
        if number == len(divided):
            divided.append([])
        divided[number].append(index)
    return divided
