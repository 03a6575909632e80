"""Supervised FL: FedAvg or FedProx on the clients' labels alone, the bounds of a semi-supervised method.

McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017, Algorithm 1
(mu = 0). Li et al. Federated Optimization in Heterogeneous Networks (FedProx). MLSys 2020, Algorithm 2, Eq. 2 (mu > 0).

Where clients hold the (oracle) labels of all their images ("everywhere") it is the upper bound; where few labels are at
clients, only those that hold some train, on these: the lower bound "labelled clients only" of RSCFed's Table 1.

Departures and choices:
1. A cohort is what is left of the usual one after clients without labels are struck off; if nobody is left, it is drawn
   from the clients with labels. In settings where everybody holds some, all methods see equal cohorts.
2. Labelled images at the server take no part: it only averages. Its bound is the method server_only.
3. Training takes weak views, as everywhere in the suite; an incomplete last batch is trained on.
4. The rate is the clients' (`optimizer.lr`), also where a method beside it learns from labels with `server_lr`.
5. With static batch norms the statistics are asked from all holders after averaging (`normalisation`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmark.errors import ConfigError
from benchmark.methods.averaging import RunningMean
from benchmark.methods.normalisation import with_static_statistics
from benchmark.methods.objectives import check_counts
from benchmark.methods.protocol import Job, Key, Setup, State, Weights, World
from benchmark.methods.proximal_fixmatch import (
    Proximal,
    ProximalFixMatchUpdate,
    check_not_negative,
    labelled_cohort,
    labelled_stream,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SupervisedFL:
    """FedAvg with mu = 0, FedProx with mu > 0."""

    mu: float = 0.0  # mu  0: FedAvg
    proximal: Proximal = "half"  # FedProx Eq. 2 has mu/2; "full" is mu, as in FedSwitch's Algorithm 1
    batch_size: int = 64  # B
    # "size": n_k / n with n_k the images trained on (FedAvg's Algorithm 1); "uniform": 1/m (FedSwitch, FedProx).
    weighting: Literal["size", "uniform"] = "size"

    needs = frozenset({"everywhere", "every_client", "some_clients", "share", "one_more_client"})
    takes_missing_updates = True  # a round goes on with whoever sent something

    def __post_init__(self) -> None:
        check_not_negative(self, "mu")

    def check(self, setup: Setup) -> None:
        check_counts(self, batch_size=1)
        if not any(setup.labelled[client] for client in range(setup.K)):
            raise ConfigError(
                "data.label_setting: no client holds labels, so that supervised_fl has nothing to train on; "
                "method 'server_only' is the bound for labels at the server"
            )

    def init(self, setup: Setup) -> State:
        return State(server={"student": setup.initial_weights()})

    def models(self, state: State) -> dict[str, Weights]:
        return {"student": state.server["student"]}

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        jobs = [
            Job(
                key=Key(client=client),
                update=ProximalFixMatchUpdate(mu=self.mu, proximal=self.proximal),
                receives={"student": state.server["student"]},
                data={"labelled": labelled_stream(self.batch_size)},
                limit=world.limit,
            )
            for client in labelled_cohort(world)
        ]
        average = RunningMean()
        for job, outcome in zip(jobs, world.fit(jobs), strict=True):
            if outcome.sat_out:
                continue
            weight = world.labelled[job.key.client] if self.weighting == "size" else 1
            average.add(outcome.sends["student"], weight)
        mean = average.value() if average.total else state.server["student"]
        student = with_static_statistics(mean, world, range(world.K))
        return State(server={"student": student}, clients=state.clients), {}
