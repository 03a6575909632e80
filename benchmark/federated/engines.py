"""The reference engine behind `fit`: one job after another, plain; the yardstick for any faster one."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Protocol

import torch

from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import Environment
from benchmark.federated.evaluate import logits_of
from benchmark.federated.local import LocalModule, gradient, load, module_class, outcome, seed_job, train
from benchmark.methods.protocol import Job, Local, Outcome, Predict, Tree, Weights


class Engine(Protocol):
    """Runs a round's jobs and yields their outcomes in job order, whatever order it worked in."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]: ...

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]: ...


class ReferenceEngine:
    """One job after another on one device, one reused module for each kind of local work."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._network = environment.network()
        self._modules: dict[tuple[object, ...], LocalModule] = {}

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order; a client that sits out sends nothing and took no step.

        Private state is read from `kept` when the job starts and written back when it ends.
        """
        for job in jobs:
            keeper = job.keeps if job.keeps is not None else str(job.key.client)
            local = job.update.start(job.receives, kept.get(keeper), self._predictor(job))
            if local is None:
                yield Outcome(key=job.key, sends={})
                continue
            module = self._module(job, local, round_number)
            momentum = train(module, JobBatches(self._environment, job, round_number))
            result = outcome(job, module, momentum)
            if result.private is not None:
                kept[keeper] = result.private
            yield result

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """For each job the gradient of its loss at the weights it receives; trains nothing and keeps nothing."""
        for job in jobs:
            local = job.update.start(job.receives, None, self._predictor(job))
            if local is None:
                continue
            module = self._module(job, local, round_number, purpose="gradient")
            yield gradient(module, JobBatches(self._environment, job, round_number, purpose="gradient"))

    def _module(self, job: Job, local: Local, round_number: int, purpose: str = "train") -> LocalModule:
        experiment = self._environment.experiment
        T, rounds = experiment.federation.T, experiment.federation.rounds
        kind = (module_class(job), tuple(local.trainable), tuple(local.frozen))
        module = self._modules.get(kind)
        first_step = (round_number - 1) * T
        if module is None:
            module = module_class(job)(job, local, self._network, experiment.optimizer, first_step, T * rounds)
            self._modules[kind] = module
        else:
            module.reuse(job, local, first_step)
        seed_job(module, experiment.seed, round_number, job, purpose)
        return module

    def _predictor(self, job: Job) -> Predict:
        def predict(weights: Weights, part: str, view: str) -> torch.Tensor:
            load(self._network, weights)
            return logits_of(self._network, self._environment, self._environment.part(job.key.client, part), view)

        return predict
