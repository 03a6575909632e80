"""SemiFL: whole rounds against plain torch, skipped rounds, and static statistics."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.federated.evaluate import logits_of
from benchmark.methods.protocol import SERVER, Selected, Stream
from benchmark.methods.semifl import SemiFL
from benchmark.models.build import Model
from benchmark.streams import numpy_stream, torch_stream
from tests.federated.helpers import difference
from tests.methods.plain_torch import AlternatingRounds, batches, compared, experiment_of, mean, step
from tests.methods.watch import tiny_with, watched

METHOD = SemiFL(threshold=0.123, batch_size=8, server_batch_size=8)
WAYS: dict[str, Any] = {
    "paper": METHOD,
    "no mix": replace(METHOD, mix_weight=0.0),
    "mixed with all": replace(METHOD, mix_source="released_code"),
    "all sure": replace(METHOD, threshold=0.0),
    "all sure, mixed": replace(METHOD, threshold=0.0, nothing_below="draw_from_all"),
    "released momentum": replace(METHOD, momentum="released_code"),
    "released order": replace(METHOD, order="released_code"),
    "no server momentum": replace(METHOD, server_momentum=0.0),
    "longer at the server": replace(METHOD, server_epochs_each=2),
    "after a warm start": replace(METHOD, warm_start_rounds=1),
    "in parallel": replace(METHOD, training="parallel"),
    "in parallel, longer at the server": replace(METHOD, training="parallel", server_epochs_each=2),
    "in parallel after a warm start": replace(METHOD, training="parallel", warm_start_rounds=1),
}


def of(way: str) -> Experiment:
    return experiment_of(WAYS[way], "server")


class Plain(AlternatingRounds):
    def play(self, cohort: list[int]) -> None:
        method = self.method
        T = 2 * self.method.server_epochs_each
        if method.training == "parallel" and self.number > method.warm_start_rounds:
            clients = [self.job(client) for client in cohort]
            self.serve(0, T)  # from the weights that the clients received; the step below begins at its result
            shares = [1 / 2, *[1 / (2 * len(clients))] * len(clients)]
            self.follow(mean([self.now, *clients], shares))
            return
        if self.number <= method.warm_start_rounds or method.order == "paper":
            self.serve(0, T)
        if self.number > method.warm_start_rounds:
            self.follow(mean([self.job(client) for client in cohort]))
            if method.order == "released_code" or self.number == self.rounds:
                self.serve(int(method.order == "paper"), T)

    def job(self, client: int) -> Any:
        method = self.method
        network = self.network()
        names = ("train", "round", self.number, "client", client, "draw", 0)
        start, draw = torch_stream(0, *names, "start"), torch_stream(0, *names, "loss")
        with torch.no_grad():
            part = self.environment.part(client, "unlabelled")
            p_N, y_N = logits_of(network, self.environment, part, "weak", start).softmax(1).max(1)
        sure = [i for i, p in enumerate(p_N) if p >= method.threshold]
        others = [i for i in range(len(p_N)) if i not in sure]
        skipped = not others and method.mix_source == "paper" and method.nothing_below == "skip_mix"
        if not others or method.mix_source == "released_code":
            others = list(range(len(p_N)))
        drawn = torch.tensor(others)[torch.randint(len(others), (len(sure),), generator=start)]
        chosen = {
            "fix": Selected(positions_N=torch.tensor(sure), labels_N=y_N[sure]),
            "mix": Selected(positions_N=drawn, labels_N=y_N[drawn]),
        }
        streams = {"fix": Stream.whole("unlabelled", 8, "weak", "strong"), "mix": Stream.whole("unlabelled", 8)}
        sgd = self.optimizer(client, network.train())
        for batch in batches(self.environment, self.number, client, self.T, streams, chosen):
            fix, mix = batch["fix"], batch["mix"]
            loss = F.cross_entropy(network(fix.views["strong"]), fix.pseudo_labels_N)
            if method.mix_weight:
                lam = float(np.random.default_rng(int(torch.randint(2**62, (), generator=draw))).beta(0.75, 0.75))
                log_ND = network(lam * fix.views["weak"] + (1 - lam) * mix.views["weak"]).log_softmax(1)
                mixed = lam * F.nll_loss(log_ND, fix.pseudo_labels_N)
                mixed = mixed + (1 - lam) * F.nll_loss(log_ND, mix.pseudo_labels_N)
                loss = loss + (0.0 if skipped else 1.0) * mixed
            step(sgd, loss)
        self.keep(client, sgd)
        return weights_of(network)


@pytest.mark.parametrize("way", WAYS)
def test_three_rounds_by_plain_torch(way):
    """Compare three rounds, in which clients label once per round and the server trains last."""
    compared(Plain, of(way), of("paper"), 3)


def test_nobody_is_sure_and_the_server_goes_on_alone():
    """Expect with tau = 1 that all clients skip the round and send nothing, and that there is no velocity."""
    module, _ = watched(tiny_with(replace(METHOD, threshold=1.0)))
    assert module.metrics["comm/sat_out"] == 4 and module.metrics["comm/bytes_up"] == 0
    assert module.metrics["pseudo/kept"] == 0 and module.metrics["local_steps"] == module.experiment.federation.T
    assert module.state.server["velocity"] is None
    assert difference(module.models()["student"], weights_of(module.environment.network())) > 0


def test_in_parallel_a_server_without_clients_keeps_its_weights():
    """Expect that nobody is sure in round 1, so that the mean is the server's result, and there is no velocity yet."""
    method = replace(METHOD, threshold=1.0, training="parallel")
    module, _ = watched(tiny_with(method))
    alone, _ = watched(tiny_with(replace(METHOD, warm_start_rounds=1)))
    assert module.metrics["comm/sat_out"] == 4
    assert difference(module.models()["student"], alone.models()["student"]) < 1e-7


def test_in_parallel_the_tested_weights_have_their_own_statistics():
    """Expect the statistics of the mean itself, and not the mean of statistics; clients label with measured ones."""
    e = tiny_with(replace(METHOD, training="parallel", threshold=0.0))
    module, seen = watched(replace(e, model=Model(network="tiny_cnn", norm="sbn")))
    weights = module.models()["student"]
    outs = torch.cat(first_layer(weights, module.environment, range(4)))
    assert torch.allclose(weights["norm1.running_mean"], outs.mean(dim=(0, 2, 3)), atol=1e-4)
    assert torch.allclose(weights["norm1.running_var"], outs.var(dim=(0, 2, 3), correction=0), atol=1e-4, rtol=1e-4)
    received = next(job.receives["student"] for job in seen.jobs() if "fix" in job.data)
    initial = torch.cat(first_layer(received, module.environment, range(4)))
    assert torch.allclose(received["norm1.running_mean"], initial.mean(dim=(0, 2, 3)), atol=1e-4)


def test_the_order_has_no_effect_in_parallel():
    with pytest.raises(ConfigError, match="training 'alternate'"):
        replace(METHOD, training="parallel", order="released_code")


@pytest.mark.parametrize("moments", ["pooled", "released_code"])
@pytest.mark.parametrize("who", ["server", "server_and_clients", "server_and_cohort"])
def test_static_statistics_come_from_everyone_or_from_the_server(who, moments):
    """Compare pooled statistics, or the released means over batches. Only statistics of clients cost bytes."""
    e = tiny_with(replace(METHOD, statistics=who, moments=moments, warm_start_rounds=1), C=2)
    module, _ = watched(replace(e, model=Model(network="tiny_cnn", norm="sbn")))
    weights = module.models()["student"]
    cohort = [int(k) for k in numpy_stream(0, "round", 1, "cohort").permutation(4)[:2]]
    outs = first_layer(weights, module.environment, {"server": (), "server_and_cohort": cohort}.get(who, range(4)))
    parts = [torch.cat(outs)] if moments == "pooled" else outs
    expected = torch.stack([part.mean(dim=(0, 2, 3)) for part in parts]).mean(dim=0)
    unbiased = int(moments == "released_code")
    var = torch.stack([part.var(dim=(0, 2, 3), correction=unbiased) for part in parts]).mean(dim=0)
    assert torch.allclose(weights["norm1.running_mean"], expected, atol=1e-4)
    assert torch.allclose(weights["norm1.running_var"], var, atol=1e-4, rtol=1e-4)
    assert (module.metrics["comm/bytes_down"] > 0) == (who != "server")


def first_layer(weights, environment, clients):
    """Compute the outputs of the first layer for plain images of the server and of these clients, in batches of 250.

    The input of this layer does not depend on any weights.
    """
    data = environment.data
    outs = []
    for holder, name in [(SERVER, "labelled"), *((k, "unlabelled") for k in clients)]:
        part = environment.part(holder, name)
        for at_N in part.positions_N.split(250):
            images = (part.images_NCHW[at_N].float() / 255 - data.mean[0]) / data.std[0]
            outs.append(F.conv2d(images, weights["conv1.weight"], weights["conv1.bias"], padding=1))
    return outs
