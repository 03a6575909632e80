"""SSFL: whole rounds against plain torch, means and moving averages by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.methods.protocol import SERVER, Key, Stream, Weights
from benchmark.methods.shared import ema_, is_statistic, mean
from benchmark.methods.ssfl import CRL, SSFL, FedAvg, Grouping, SelfTraining, Supervised
from tests.federated.helpers import agree
from tests.methods.plain_torch import PlainRounds, batches, compared, experiment_of, step
from tests.methods.plain_torch import mean as plain_mean

METHOD = SSFL(objective=CRL(threshold=0.14), batch_size=8, server_batch_size=8)
GROUPS = replace(METHOD, averaging=Grouping(S=2))
BATCH_NORM = replace(METHOD, objective=CRL(threshold=0.12))
WAYS = {
    "FedAvg": METHOD,
    "FedAvg, the server's weight": replace(METHOD, averaging=FedAvg(server_weight=0.4)),
    "FedAvg, nothing sure": replace(METHOD, objective=CRL(threshold=1.0)),
    "FedAvg, self-training": replace(METHOD, objective=SelfTraining(threshold=0.14)),
    "FedAvg, oracle labels": replace(METHOD, objective=Supervised()),
    "FedAvg, after a warm start": replace(METHOD, warm_start_rounds=1),
    "grouping": GROUPS,
    "grouping, from the client's last group": replace(GROUPS, client_start="paper"),
    "grouping, from the average": replace(GROUPS, client_start="average"),
    "grouping, a server a group": replace(GROUPS, server_models="released_code"),
    "grouping, released momentum": replace(GROUPS, momentum="released_code"),
    "batch norm": BATCH_NORM,
    "batch norm, one forward": replace(METHOD, objective=CRL(threshold=0.12, views="one_forward")),
    "batch norm, evaluation": replace(METHOD, objective=CRL(threshold=0.11, pseudo_label_mode="eval")),
    "batch norm, averaged": replace(BATCH_NORM, bn_statistics="averaged"),
    "batch norm, slots": replace(METHOD, objective=SelfTraining(threshold=0.11), bn_statistics="slot"),
    "labels at clients": METHOD,
    "labels at clients, both views": replace(METHOD, client_labels="released_code"),
}


def of(way: str) -> Experiment:
    setting = "server"
    if "at clients" in way:
        setting = "share"
    elif "oracle" in way:
        setting = "everywhere"
    e = experiment_of(WAYS[way], setting)
    return replace(e, model=replace(e.model, norm="bn" if "batch norm" in way else "gn"))


def statistics_of(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if is_statistic(name)}


class Plain(PlainRounds):
    """SSFL in plain torch: `groups` are the group means, `last` the clients' groups, `own` the statistics of a slot."""

    def begin(self) -> None:
        self.groups = [self.now] * getattr(self.method.averaging, "S", 1)
        self.last = dict[int, int]()
        self.own = dict[int, Weights]()
        self.at_clients = self.environment.experiment.data.label_setting == "share"

    def _state_key(self, client: int, name: str) -> Any:
        return name if self.method.momentum == "released_code" else None

    def play(self, cohort: list[int]) -> None:
        method = self.method
        S = len(self.groups)
        replicas = S if method.server_models == "released_code" else 1
        if self.at_clients:
            replicas = 0
        servers = [self.serve(replica) for replica in range(replicas)]
        if self.number <= method.warm_start_rounds:
            (self.now,) = servers
            self.groups = servers * S
            return
        group_of = {int(k): g for g, members in enumerate(np.array_split(cohort, S)) for k in members}
        students: list[list[Weights]] = [[] for _ in self.groups]
        for slot, (client, g) in enumerate(group_of.items()):
            last = self.groups[self.last[client]] if client in self.last else self.now
            start = {"released_code": self.groups[g], "average": self.now, "paper": last}[method.client_start]
            students[g].append(self.job(client, slot, {**start, **self.own.get(slot, {})}))
        self.groups = [
            self.mean(of_group, servers[g % replicas :] if servers else []) for g, of_group in enumerate(students)
        ]
        self.now = plain_mean(self.groups)
        self.last = group_of
        if servers and method.bn_statistics != "averaged":
            self.now.update(statistics_of(servers[0]))

    def mean(self, students: list[Weights], servers: list[Weights]) -> Weights:
        if not servers:
            return plain_mean(students)
        n = len(students)
        share = self.method.averaging.server_weight
        share = 1 / (n + 1) if share is None else share
        both = plain_mean([servers[0], *students], [share, *[(1 - share) / n] * n])
        return both if self.method.bn_statistics == "averaged" else {**both, **statistics_of(servers[0])}

    def serve(self, replica: int) -> Weights:
        network = self.network().train()
        name = f"server {replica}"
        sgd = self.optimizer(SERVER, network, name=name, lr=0.05)
        streams = {"labelled": Stream(part="labelled", batch_size=8, views=("weak",))}
        for batch in batches(self.environment, self.number, Key(client=SERVER, draw=replica), self.T, streams):
            step(sgd, F.cross_entropy(network(batch["labelled"].views["weak"]), batch["labelled"].labels_N))
        self.keep(SERVER, sgd, name)
        return weights_of(network)

    def job(self, client: int, slot: int, start: Weights) -> Weights:  # type: ignore[override]
        network = self.network()
        name = f"slot {slot}"
        network.load_state_dict(start)
        sgd = self.optimizer(client, network, name=name)
        views = ("weak", "strong") if isinstance(self.method.objective, CRL) else ("weak",)
        streams = {"unlabelled": Stream(part="unlabelled", batch_size=8, views=views)}
        if self.at_clients:
            streams["labelled"] = Stream(part="labelled", batch_size=8, views=("weak",))
        for batch in batches(self.environment, self.number, client, self.T, streams):
            loss = self.loss_of(network, batch["unlabelled"])
            if self.at_clients:
                labelled = batch["labelled"]
                loss = loss + F.cross_entropy(network(labelled.views["weak"]), labelled.labels_N)
            step(sgd, loss)
        self.keep(client, sgd, name)
        if self.method.bn_statistics == "slot":
            self.own[slot] = statistics_of(weights_of(network))
        return weights_of(network)

    def loss_of(self, network: nn.Module, images: Any) -> Tensor:
        objective = self.method.objective
        weak = images.views["weak"]
        if isinstance(objective, Supervised):
            return F.cross_entropy(network(weak), images.labels_N)
        if self.method.client_labels == "released_code":
            learns_ND = labels_ND = network(torch.cat([weak, images.views["strong"]]))
        elif getattr(objective, "views", "") == "one_forward":
            labels_ND, learns_ND = network(torch.cat([weak, images.views["strong"]])).chunk(2)
        else:
            in_training = isinstance(objective, CRL) and objective.pseudo_label_mode == "train"
            with torch.no_grad():
                labels_ND = network.train(in_training)(weak)
            learns_ND = network.train()(images.views["strong" if isinstance(objective, CRL) else "weak"])
        p_ND = labels_ND.detach().softmax(1)
        losses_N = F.cross_entropy(learns_ND, p_ND.argmax(1), reduction="none")
        return (losses_N * (p_ND.amax(1) >= objective.threshold)).mean()


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    """Compare Eqs. 3 to 8 with each implementation choice at each value."""
    module, _ = compared(Plain, of(way), of(way.split(",")[0]), 2 + WAYS[way].warm_start_rounds)
    assert (module.metrics.get("pseudo/kept") == 0) == ("nothing" in way)
    assert ("pseudo/accuracy" in module.metrics) == ("nothing" not in way and "oracle" not in way)


def test_sums_are_float64_and_counters_keep_their_type():
    """Average 2^24, 1 and 1, where a float32 sum would lose both ones.

    2^24 + 1 is not a float32; the mean of the three is 5592406.
    """
    average = mean([{"w": torch.tensor([w]), "n": torch.tensor(n)} for w, n in ((2.0**24, 3), (1.0, 6), (1.0, 4))])
    assert average["w"].item() == 5592406.0
    assert average["n"].dtype == torch.int64 and average["n"].item() == 4


def test_released_groups_that_leave_one_empty_are_refused():
    with pytest.raises(ConfigError, match="leaves no client"):
        Grouping(S=5, sizes="released_code").group_sizes(6)  # 2, 2, 2, 0, -2


@pytest.mark.parametrize("lerp", [False, True])
def test_ema_in_place_by_hand(lerp):
    """Let T = 4 follow S = 2, then S = 0, with decay 3/4: expect 3.5, then 2.625.

    Running statistics do the same, and counters are the student's. Decay 1 leaves T, and decay 0 gives S bit by bit.
    """
    teacher, student = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for network, value, count in ((teacher, 4.0, 3), (student, 2.0, 7)):
        for name, tensor in network.state_dict().items():
            tensor.fill_(count if name == "num_batches_tracked" else value)
    ema_(teacher, student, 0.75, lerp=lerp)
    after = teacher.state_dict()
    assert after["weight"].item() == after["running_mean"].item() == 3.5 and after["num_batches_tracked"].item() == 7
    nn.init.zeros_(student.weight)
    for decay, weight in ((1.0, 3.5), (0.75, 2.625), (0.0, 0.0)):
        ema_(teacher, student, decay, lerp=lerp)
        assert teacher.weight.item() == weight
    assert agree(teacher.state_dict(), student.state_dict())
