"""SSFL: the server trains on its labels, clients on pseudo-labels, and the server averages both, in groups or not.

Zhang, Yang, Yao, Yan, Gonzalez, Mahoney. Improving Semi-supervised Federated Learning by Reducing the Gradient
Diversity of Models. arXiv:2008.11364. Sections 2.1 and 3; Eqs. 3-8.
Released code: jhcknzzm/SSFL-Benchmarking-Semi-supervised-Federated-Learning, 9a18e89.

Departures and switches (each a field below; `reports/ssfl/departures.md` tells what it does to the numbers):
1. One server model trained from the average (Eq. 7); the released code trains a replica per group.
2. Momentum buffers start at zero in every round; the released code keeps them with the slot, whoever fills it.
3. Weak and strong view go through the network in two passes; the released code joins them in one.
4. Pseudo-labels come from the network in training mode, as in the released code; the paper does not say.
5. `warm_start_rounds` (0 in the paper): the server trains alone first. Reduced profiles need it.
6. A training pass over a holder's images reshuffles and leaves out the incomplete last batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.methods.averaging import FedAvg, Grouping, RunningMean, is_statistic, mean, with_server
from benchmark.methods.objectives import CRL, SelfTraining, ServerUpdate, Supervised, check_counts
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Outcome, Setup, State, Stream, Weights, World


@dataclass(frozen=True, kw_only=True)
class SSFL:
    """A training objective, an averaging, and the switches between the paper and its released code."""

    objective: CRL | SelfTraining | Supervised = CRL()
    averaging: FedAvg | Grouping = FedAvg()
    batch_size: int = 64  # B  at a client
    server_batch_size: int = 64  # B  at the server
    # Eq. 7 has one w_s; the released code trains one server per group (utils_v2.py:1498-1605), S times the
    # labelled work. Default: the paper's.
    server_models: Literal["paper", "released_code"] = "paper"
    # The paper is silent; the released code keeps momentum with the slot (train_LocalSGD.py:430-432).
    # Default: reset, because a client that kept another client's momentum would leak it.
    momentum: Literal["reset", "released_code"] = "reset"
    # "paper": a client that was in group i of the last round starts from group i's mean (section 3.3), any other
    # from the average. "released_code": from the mean of the group it is put into now. "average": from w_avg.
    client_start: Literal["released_code", "paper", "average"] = "released_code"
    # Running statistics of batch normalisation: never averaged in the released code (comm_helpers.py:178-186).
    bn_statistics: Literal["released_code", "averaged"] = "released_code"
    warm_start_rounds: int = 0

    takes_missing_updates = True  # a group is averaged from whoever sent something

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"everywhere"} if isinstance(self.objective, Supervised) else {"server", "everywhere"})

    def check(self, setup: Setup) -> None:
        self.averaging.group_sizes(setup.C)
        check_counts(self, batch_size=1, server_batch_size=1, warm_start_rounds=0)

    def init(self, setup: Setup) -> State:
        start = setup.initial_weights()
        groups = {str(group): start for group in range(len(self.averaging.group_sizes(setup.C)))}
        return State(server={"average": start, "groups": groups, "last_group": {}})

    def models(self, state: State) -> dict[str, Weights]:
        return {"average": state.server["average"]}

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        if world.round <= self.warm_start_rounds:
            return self._server_alone(state, world), {}
        groups = cut(world.cohort(), self.averaging.group_sizes(world.C))
        outcomes = world.fit([*self._server_jobs(state, world, len(groups)), *self._client_jobs(state, world, groups)])
        servers = [next(outcomes).sends["student"] for _ in range(self._replicas(len(groups)))]
        means = list(self._group_means(groups, servers, outcomes))
        average = self._with_server_statistics(mean(means), servers[0])
        last_group = {str(client): index for index, group in enumerate(groups) for client in group}
        server = {"average": average, "groups": {str(i): m for i, m in enumerate(means)}, "last_group": last_group}
        return State(server=server, clients=state.clients), {}

    def _server_alone(self, state: State, world: World) -> State:
        (outcome,) = world.fit(self._server_jobs(state, world, 1)[:1])
        weights = outcome.sends["student"]
        groups = {name: weights for name in state.server["groups"]}
        return State(server={"average": weights, "groups": groups, "last_group": {}}, clients=state.clients)

    def _replicas(self, groups: int) -> int:
        return groups if self.server_models == "released_code" else 1

    def _server_jobs(self, state: State, world: World, groups: int) -> list[Job]:
        stream = Stream(part="labelled", batch_size=self.server_batch_size, views=("weak",))
        return [
            Job(
                key=Key(client=SERVER, draw=replica),
                update=ServerUpdate(keeps_momentum=self.momentum == "released_code"),
                receives={"student": state.server["average"]},
                data={"labelled": stream},
                limit=Limit(steps=world.T),
                keeps=f"server-{replica}",
            )
            for replica in range(self._replicas(groups))
        ]

    def _client_jobs(self, state: State, world: World, groups: Sequence[Sequence[int]]) -> list[Job]:
        views = ("weak", "strong") if isinstance(self.objective, CRL) else ("weak",)
        stream = Stream(part="unlabelled", batch_size=self.batch_size, views=views)
        update = self.objective.update(keeps_momentum=self.momentum == "released_code")
        slots = ((group, client) for group, members in enumerate(groups) for client in members)
        return [
            Job(
                key=Key(client=client),
                update=update,
                receives={"student": self._start(state, group, client)},
                data={"unlabelled": stream},
                limit=Limit(steps=world.T),
                keeps=f"slot-{slot}",
            )
            for slot, (group, client) in enumerate(slots)
        ]

    def _start(self, state: State, group: int, client: int) -> Weights:
        if self.client_start == "released_code":
            return state.server["groups"][str(group)]
        last = state.server["last_group"].get(str(client)) if self.client_start == "paper" else None
        return state.server["average"] if last is None else state.server["groups"][str(last)]

    def _group_means(
        self, groups: Sequence[Sequence[int]], servers: Sequence[Weights], outcomes: Iterator[Outcome]
    ) -> Iterator[Weights]:
        for index, group in enumerate(groups):
            clients = RunningMean()
            for _ in group:
                outcome = next(outcomes)
                if not outcome.sat_out:
                    clients.add(outcome.sends["student"])
            server = servers[index % len(servers)]
            group_mean = with_server(clients, server, self.averaging.server_weight) if clients.total else server
            yield self._with_server_statistics(group_mean, server)

    def _with_server_statistics(self, weights: Weights, server: Weights) -> Weights:
        if self.bn_statistics == "averaged":
            return weights
        return {name: server[name] if is_statistic(name) else value for name, value in weights.items()}


def cut(cohort: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The cohort, already in random order, cut into groups of these sizes."""
    groups, first = [], 0
    for size in sizes:
        groups.append(list(cohort[first : first + size]))
        first += size
    return groups
