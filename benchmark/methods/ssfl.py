"""SSFL: the server trains on labels, clients train on pseudo-labels, and the server averages all models.

Zhang, Yang, Yao, Yan, Gonzalez, Mahoney. Improving Semi-supervised Federated Learning by Reducing the Gradient
Diversity of Models. arXiv:2008.11364. Sections 2.1 and 3; Eqs. 3-8. Released code:
jhcknzzm/SSFL-Benchmarking-Semi-supervised-Federated-Learning, 9a18e89.

In each round, the server trains its model for T steps on its labels. Each client of the cohort trains the received
model for T steps: it predicts the label of a weak view and, if the confidence is at least tau, learns this label on a
strong view (CRL). With FedAvg, the mean of the models of the server and all clients is the next model of all
participants. With grouping, the cohort is split into S random groups. The next model of a group is the mean of its
clients' models and the server's model; the next model of the server is the mean of all group models.

Deviations: reports/ssfl/departures.md, entries 1 to 8, 14 and 21. In addition:
1. A training pass over a participant's images reshuffles them and leaves out the incomplete last batch.
2. With labels at the clients (appendix H), batch-norm statistics are averaged, since the server trains nothing.
   Labelled batches have weak views and the size of the server's batches. This size is 64, so that a batch has all 50
   images of a client. The two losses are added without a factor.

Legend: M = 2 N views.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn

from benchmark.config import Checked, Count, Share, ShareBelow1, Whole, added
from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, loss_on_confident, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods import shared


@dataclass(frozen=True, kw_only=True)
class FedAvg(Checked):
    """One mean over the whole cohort and the server (Eq. 8)."""

    kind = "fedavg"

    server_weight: ShareBelow1 | None = None  # 1 / (C + 1) if None, Eq. 8; a number: a control that the paper lacks

    def group_sizes(self, C: int) -> tuple[int, ...]:
        """Return the size of the only group, which is the cohort."""
        return (C,)


@dataclass(frozen=True, kw_only=True)
class Grouping(Checked):
    """S random groups, each averaged with the server's weights, and the plain mean of the group means (Eq. 7)."""

    S: Count = 2  # S  number of groups
    server_weight: ShareBelow1 | None = None  # inside a group, or 1 / (|G_i| + 1) if None, Eq. 7
    # The paper writes "equal-sized", but 47 clients cannot form 5 equal groups. "paper": sizes differ by at most
    # one; "released_code": 10, 10, 10, 10, 7 (utils_v2.py:1498-1567). Default: "paper", the closest to its text.
    sizes: Literal["paper", "released_code"] = "paper"

    def group_sizes(self, C: int) -> tuple[int, ...]:
        """Compute the sizes of the S groups of a cohort of C clients, largest first.

        Raise ConfigError if S > C or if the released code's sizes leave a group empty.
        """
        if self.S > C:
            raise ConfigError(f"method.averaging.S is {self.S}, but the cohort has {C} clients; choose S from 1 to {C}")
        if self.sizes == "released_code":
            full = -(-C // self.S)
            sizes = [min(full, C - full * group) for group in range(self.S)]
            if min(sizes) < 1:
                raise ConfigError(
                    "method.averaging.sizes is 'released_code', which leaves no client for the last of "
                    f"{self.S} groups of {C} clients; choose 'paper'"
                )
            return tuple(sizes)
        return tuple(C // self.S + (group < C % self.S) for group in range(self.S))


@dataclass(frozen=True, kw_only=True)
class CRL(Checked):
    """Consistency regularisation loss (Eq. 4): the strong view learns the confident label of the weak view."""

    threshold: Share = 0.95  # tau
    # The mode of the network that labels the weak view. Released code: train; the paper names none.
    pseudo_label_mode: Literal["train", "eval"] = "train"
    # Released code: one_forward; both views then share batch-norm statistics.
    views: Literal["two_forwards", "one_forward"] = "two_forwards"

    read_with = {"pseudo_label_mode": ("views", ("two_forwards",))}  # one forward pass is the training pass

    def update(self, keeps_momentum: bool) -> "ConsistencyUpdate":
        return ConsistencyUpdate(objective=self, keeps_momentum=keeps_momentum)


@dataclass(frozen=True, kw_only=True)
class SelfTraining(Checked):
    """Self-training (Eq. 5): the weak view learns its confident label."""

    threshold: Share = 0.95  # tau

    def update(self, keeps_momentum: bool) -> "SelfTrainingUpdate":
        return SelfTrainingUpdate(objective=self, keeps_momentum=keeps_momentum)


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Supervised training with the true labels of all images (Eq. 6), which needs the label setting "everywhere"."""

    def update(self, keeps_momentum: bool) -> shared.SupervisedUpdate:
        return shared.SupervisedUpdate(stream="unlabelled", reports="client/loss", keeps_momentum=keeps_momentum)


@dataclass(frozen=True, kw_only=True)
class ConsistencyUpdate(shared.StudentUpdate):
    """Local work of a client: Eq. 4, plus Eq. 3 if the client has labels.

    Subclasses replace the loss of the unlabelled images.
    """

    objective: CRL | SelfTraining = CRL()

    def loss(self, step: fl.Step) -> fl.Loss:
        network = step.student
        loss, labels_N, kept_N = self.unlabelled(network, step.batch["unlabelled"].views)
        aux = {"client/loss": loss, "labels_N": labels_N, "kept_N": kept_N}
        if "labelled" not in step.batch:
            return loss, aux
        labelled = shared.labelled_loss(network, step.batch["labelled"])
        return loss + labelled, {**aux, "client/labelled_loss": labelled}

    def unlabelled(self, network: nn.Module, views: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss of the unlabelled images, a scalar, labels_N and kept_N."""
        objective = self.objective
        assert isinstance(objective, CRL)
        if objective.views == "one_forward":
            weak_ND, strong_ND = network(torch.cat([views["weak"], views["strong"]])).chunk(2)
            labels_N, _, kept_N = pseudo_labels(weak_ND, objective.threshold)
            return consistency_loss(strong_ND, labels_N, kept_N), labels_N, kept_N
        weak_ND = shared.predict_weak(network, views["weak"], objective.pseudo_label_mode)
        labels_N, _, kept_N = pseudo_labels(weak_ND, objective.threshold)
        return loss_on_confident(network, views["strong"], labels_N, kept_N), labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class TwoViewSelfTrainingUpdate(ConsistencyUpdate):
    """Self-training on both weak and strong views, as in the released code with labels at the clients."""

    def unlabelled(self, network: nn.Module, views: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss over both views, and labels_N and kept_N of the weak views for measurements of their
        quality."""
        logits_MD = network(torch.cat([views["weak"], views["strong"]]))
        N = len(views["weak"])
        labels_M, _, kept_M = pseudo_labels(logits_MD, self.objective.threshold)
        return consistency_loss(logits_MD, labels_M, kept_M), labels_M[:N], kept_M[:N]


@dataclass(frozen=True, kw_only=True)
class SelfTrainingUpdate(ConsistencyUpdate):
    """Local work of Eq. 5.

    Pseudo-labels are predicted in evaluation mode, as in the released code (train_LocalSGD.py:547-570), so that they
    depend on the running statistics.
    """

    objective: SelfTraining = SelfTraining()
    keeps_statistics: bool = False  # whether the slot keeps its batch-norm statistics for the next round

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        statistics = (private or {}).get("statistics", {})
        return super().begin({"student": {**received["student"], **statistics}}, private, reader)

    def finish(self, local: fl.Local) -> fl.Tree:
        sends = super().finish(local)
        if self.keeps_statistics:
            statistics = {name: value for name, value in sends["student"].items() if shared.is_statistic(name)}
            local.private = {**(local.private or {}), "statistics": statistics}
        return sends

    def unlabelled(self, network: nn.Module, views: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        weak_ND = shared.predict_weak(network, views["weak"], "eval")
        labels_N, _, kept_N = pseudo_labels(weak_ND, self.objective.threshold)
        return loss_on_confident(network, views["weak"], labels_N, kept_N), labels_N, kept_N


@dataclass(frozen=True, kw_only=True)
class SSFL(fl.Method):
    """SSFL: a training objective, an averaging, and choices between the paper and the released code."""

    objective: CRL | SelfTraining | Supervised = CRL()
    averaging: FedAvg | Grouping = FedAvg()
    batch_size: Count = 64  # B  at a client
    server_batch_size: Count = 64  # B  at the server
    # Eq. 7 has one w_s; the released code trains one server model per group (utils_v2.py:1498-1605), which is S times
    # the labelled work. Default: the paper.
    server_models: Literal["paper", "released_code"] = "paper"
    # A slot is a place in the cohort. The paper does not mention momentum buffers; the released code keeps them with
    # the slot (train_LocalSGD.py:430-432). Default: reset, because a buffer that stays with a slot would pass one
    # client's update direction to a different client.
    momentum: Literal["reset", "released_code"] = "reset"
    # "paper": a client that was in group i of the last round starts from group i's mean (section 3.3), and any other
    # client from the average. "released_code": from the mean of its group in this round. "average": from w_avg.
    client_start: Literal["released_code", "paper", "average"] = "released_code"
    # The released code never averages the running statistics of batch norms (comm_helpers.py:178-186): it evaluates the
    # server's statistics, and each slot continues from the statistics of that slot. "released_code": clients start from
    # the server's statistics, which has no effect if pseudo-labels are predicted in training mode. "slot": clients
    # start from the statistics of their slot. This is for self-training, which predicts in evaluation mode and would
    # learn wrong labels with the server's statistics.
    bn_statistics: Literal["released_code", "slot", "averaged"] = "released_code"
    warm_start_rounds: Whole = 0  # initial rounds with training only at the server
    # The loss of clients with labels. "paper": Eq. 3 plus the objective. "released_code": each of two views learns the
    # argmax of that view (train_LocalSGD.py:483-507). Default: the paper, since the two-view loss is not CRL.
    client_labels: Literal["paper", "released_code"] = added("paper")

    @property
    def needs(self) -> frozenset[str]:
        if isinstance(self.objective, Supervised):
            return frozenset({"everywhere"})
        return frozenset({"server", "everywhere", "every_client", "share", "open"})

    def check(self, setup: fl.Setup) -> None:
        self.averaging.group_sizes(setup.C)
        at_clients = labels_at_clients(setup)
        if at_clients and self.averaging.server_weight is not None:
            raise ConfigError(
                f"method.averaging.server_weight is {self.averaging.server_weight}, but with labels at the clients the "
                "server only averages; choose null"
            )
        if self.client_labels != "paper" and not (at_clients and isinstance(self.objective, CRL)):
            raise ConfigError(
                f"method.client_labels is {self.client_labels!r}, which has no effect without labels at the clients or "
                "if the objective is not crl; choose 'paper'"
            )
        if self.bn_statistics == "slot" and not isinstance(self.objective, SelfTraining):
            raise ConfigError(
                "method.bn_statistics is 'slot', which only has an effect with self-training, where pseudo-labels are "
                "predicted in evaluation mode; choose 'released_code'"
            )

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        groups = {str(group): start for group in range(len(self.averaging.group_sizes(setup.C)))}
        return fl.State(server={"average": start, "groups": groups, "last_group": {}})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"average": state.server["average"]}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        at_clients = labels_at_clients(world)
        warm = world.round <= self.warm_start_rounds
        if warm and not at_clients:
            return self._server_alone(state, world), {}
        cohort = iter(world.cohort())  # in random order, so that consecutive slices are random groups
        groups = [list(islice(cohort, size)) for size in self.averaging.group_sizes(world.C)]
        group_of = {client: index for index, group in enumerate(groups) for client in group}
        server_jobs = [] if at_clients else self._server_jobs(state, world, len(groups))
        outcomes = world.fit([*server_jobs, *self._client_jobs(state, group_of, world, at_clients, warm)])
        servers = [next(outcomes).sends["student"] for _ in server_jobs] or [None]
        clients = [shared.RunningMean() for _ in groups]
        for client, sends in shared.sent(outcomes):
            clients[group_of[client]].add(sends["student"])
        before = state.server["average"]
        means = [self._group_mean(of, servers[i % len(servers)], before) for i, of in enumerate(clients)]
        mean_of_group = {str(index): of_group for index, of_group in enumerate(means)}
        last_group = {str(client): index for client, index in group_of.items()}
        server = {
            "average": self._keep_server_statistics(shared.mean(means), servers[0]),
            "groups": mean_of_group,
            "last_group": last_group,
        }
        return fl.State(server=server), {}

    def _server_alone(self, state: fl.State, world: fl.World) -> fl.State:
        (outcome,) = world.fit(self._server_jobs(state, world, 1))
        weights = outcome.sends["student"]
        groups = {name: weights for name in state.server["groups"]}
        return fl.State(server={"average": weights, "groups": groups, "last_group": {}})

    def _server_jobs(self, state: fl.State, world: fl.World, groups: int) -> list[fl.Job]:
        update = shared.ServerUpdate(keeps_momentum=self.momentum == "released_code")
        data = {"labelled": fl.Stream(part="labelled", batch_size=self.server_batch_size, views=("weak",))}
        receives = {"student": state.server["average"]}
        return [
            world.job(fl.SERVER, update, receives, data, draw=replica, keeps=f"server-{replica}")
            for replica in range(groups if self.server_models == "released_code" else 1)
        ]

    def _client_jobs(
        self, state: fl.State, group_of: Mapping[int, int], world: fl.World, at_clients: bool, warm: bool
    ) -> list[fl.Job]:
        update, data = self._client_update(at_clients, warm), self._client_streams(at_clients, warm)
        starts = {client: {"student": self._start(state, group, client)} for client, group in group_of.items()}
        return [
            world.job(client, update, starts[client], data, keeps=f"slot-{slot}", group=group)
            for slot, (client, group) in enumerate(group_of.items())
        ]

    def _client_update(self, at_clients: bool, warm: bool) -> fl.LocalUpdate:
        objective = self.objective
        keeps_momentum = self.momentum == "released_code"
        if at_clients and warm:
            return shared.SupervisedUpdate(keeps_momentum=keeps_momentum)
        if isinstance(objective, CRL) and self.client_labels == "released_code":
            return TwoViewSelfTrainingUpdate(objective=objective, keeps_momentum=keeps_momentum)
        if isinstance(objective, SelfTraining):
            return replace(objective.update(keeps_momentum), keeps_statistics=self.bn_statistics == "slot")
        return objective.update(keeps_momentum)

    def _client_streams(self, at_clients: bool, warm: bool) -> dict[str, fl.Stream]:
        views = ("weak", "strong") if isinstance(self.objective, CRL) else ("weak",)
        unlabelled = {"unlabelled": fl.Stream(part="unlabelled", batch_size=self.batch_size, views=views)}
        if not at_clients:
            return unlabelled
        labelled = {"labelled": fl.Stream(part="labelled", batch_size=self.server_batch_size, views=("weak",))}
        return labelled if warm else {**labelled, **unlabelled}

    def _start(self, state: fl.State, group: int, client: int) -> fl.Weights:
        if self.client_start == "released_code":
            return state.server["groups"][str(group)]
        last = state.server["last_group"].get(str(client)) if self.client_start == "paper" else None
        return state.server["average"] if last is None else state.server["groups"][str(last)]

    def _group_mean(self, clients: shared.RunningMean, server: fl.Weights | None, before: fl.Weights) -> fl.Weights:
        """Compute the mean of a group's clients and the server (Eqs. 7 and 8).

        Without a `server_weight` the server's share is 1 / (|G_i| + 1), as if it were one more client. Without weights
        of a server, return the clients' mean, or `before` if no client sent anything.
        """
        if server is None:
            return clients.value() if clients.total else before
        if not clients.total:
            return server
        weight = self.averaging.server_weight
        share = 1.0 / (clients.total + 1.0) if weight is None else weight
        group_mean = shared.mean([server, clients.value()], [share, 1.0 - share])
        return self._keep_server_statistics(group_mean, server)

    def _keep_server_statistics(self, weights: fl.Weights, server: fl.Weights | None) -> fl.Weights:
        if self.bn_statistics == "averaged" or server is None:
            return weights
        return {name: server[name] if shared.is_statistic(name) else value for name, value in weights.items()}


def labels_at_clients(known: fl.Setup | fl.World) -> bool:
    """Return whether a client has labels for some, but not all of its images.

    The result is False for the label setting "everywhere", which hides no labels.
    """
    return any(0 < known.labelled[client] < known.sizes[client] for client in range(known.K))
