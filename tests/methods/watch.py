"""Run rounds with jobs and outcomes that the tests of methods can inspect."""

from dataclasses import replace
from typing import Any, Literal

from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment
from benchmark.federated.module import FederatedModule, Observer
from benchmark.methods.protocol import Job, Outcome
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of

Setting = Literal[
    "server", "every_client", "some_clients", "share", "one_more_client", "everywhere", "drawn_apart", "open"
]


def tiny_with(method: Any, setting: Setting = "server", *, N_s: int | None = None, **factors: Any) -> Experiment:
    """Build the tiny experiment with this method; the server only has labels if the label setting requires it."""
    base = tiny_experiment()
    if N_s is None:
        N_s = {"server": 20, "one_more_client": 20, "everywhere": 20, "open": 18}.get(setting, 0)
    data = replace(base.data, label_setting=setting, N_s=N_s)
    return replace(base, data=data, method=method, federation=replace(base.federation, **factors))


class Watch(Observer):
    """A record of jobs and outcomes by round."""

    def __init__(self, module: FederatedModule) -> None:
        self.seen: dict[int, list[tuple[Job, Outcome]]] = {}
        module.observers.append(self)

    def on_job(self, job: Job, round_number: int) -> None:
        self.round = round_number

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self.seen.setdefault(self.round, []).append((job, outcome))

    def jobs(self, round_number: int = 1) -> list[Job]:
        return [job for job, _ in self.seen[round_number]]

    def clients(self, round_number: int | None = None) -> list[tuple[Job, Outcome]]:
        """List the outcomes of clients, without the server's; by default of the last round."""
        seen = self.seen[max(self.seen) if round_number is None else round_number]
        return [(job, outcome) for job, outcome in seen if job.key.client >= 0]


def watched(
    experiment: Experiment, rounds: int = 1, environment: Environment | None = None
) -> tuple[FederatedModule, Watch]:
    """Run this number of rounds, and return the module and its record of jobs and outcomes."""
    module = module_of(experiment, environment)
    watch = Watch(module)
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
    return module, watch
