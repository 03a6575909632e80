"""For the tests of methods: rounds that are watched."""

from dataclasses import replace
from typing import Any, Literal

from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment
from benchmark.federated.module import FederatedModule, Observer
from benchmark.methods.protocol import Job, Outcome
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of

Setting = Literal["server", "every_client", "some_clients", "share", "one_more_client", "everywhere", "drawn_apart"]


def tiny_with(method: Any, setting: Setting = "server", *, N_s: int | None = None, **factors: Any) -> Experiment:
    """The tiny experiment with that method; the server has labels only where the setting cannot be without them."""
    base = tiny_experiment()
    if N_s is None:
        N_s = 20 if setting in ("server", "one_more_client", "everywhere") else 0
    data = replace(base.data, label_setting=setting, N_s=N_s)
    return replace(base, data=data, method=method, federation=replace(base.federation, **factors))


class Watch(Observer):
    """Jobs and outcomes by round, as they pass by."""

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
        """Without the server's; default: of the last round."""
        seen = self.seen[max(self.seen) if round_number is None else round_number]
        return [(job, outcome) for job, outcome in seen if job.key.client >= 0]


def watched(
    experiment: Experiment, rounds: int = 1, environment: Environment | None = None
) -> tuple[FederatedModule, Watch]:
    """The module after so many rounds, and what passed by."""
    module = module_of(experiment, environment)
    watch = Watch(module)
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
    return module, watch
