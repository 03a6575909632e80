"""LG-FedAvg: some layers are averaged, and each client keeps the other layers.

The method is supervised. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act
Globally: Federated Learning with Local and Global Representations. arXiv:2001.01523, Algorithm 1. Released code:
pliang279/LG-FedAvg, main_lg.py.

A client trains its private layers and the common layers together and sends the common ones, which the server averages.
The test uses the ensemble of the clients' models, each with its private layers, and averages their outputs ("New
Test").

Deviations (for its runs see reports/semifl/departures.md, entry 16):
1. `private`: in the paper the first layers, which compute the representation, are private. In the released CIFAR-10
   command (--num_layers_keep 2, in the order of models/Nets.py) the convolutions are common and the other layers are
   private.
2. The released code begins with a model of FedAvg (--load_fed). In this suite all layers are common in the first
   `fedavg_rounds` rounds.
3. A client receives all layers in its first round. The ensemble consists of the clients that have taken
   part; outputs are averaged as probabilities. `models` returns the common layers together with the initial private
   layers, or with the private layers of the last FedAvg round.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmark.config import Count, Whole
from benchmark.errors import ConfigError
from benchmark.methods import protocol as fl
from benchmark.methods.shared import SupervisedUpdate, labelled_cohort, layer_of, mean_of


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(fl.Method):
    """LG-FedAvg (Algorithm 1)."""

    private: Literal["first", "last"] = "first"  # the layers that a client keeps
    private_layers: Count = 2  # the number of layers that a client keeps
    fedavg_rounds: Whole = 0  # initial rounds of FedAvg
    batch_size: Count = 50  # B

    needs = frozenset({"everywhere", "every_client", "share"})  # settings with labels at every client

    def check(self, setup: fl.Setup) -> None:
        if buffers := setup.buffers():
            raise ConfigError(
                f"model.norm is {setup.model.norm!r}, but then network {setup.model.network} has {buffers[0]}, which "
                "is not trained and would belong to no participant; choose gn, none or a different network"
            )
        layers = layers_of(setup.initial_weights())
        if self.private_layers >= len(layers):
            raise ConfigError(
                f"method.private_layers is {self.private_layers}, but the network has {len(layers)} layers, and one of "
                f"them must be common; choose 1 to {len(layers) - 1}"
            )

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        fedavg = world.round <= self.fedavg_rounds
        common = student if fedavg else self.common(student)
        own = {name: value for name, value in student.items() if name not in common}
        update = ClientUpdate(common=tuple(common))
        data = {"labelled": fl.Stream.whole("labelled", self.batch_size)}
        jobs = [
            world.job(k, update, {"student": common, **({} if str(k) in state.clients else {"own": own})}, data)
            for k in labelled_cohort(world)
        ]
        mean = mean_of(world.fit(jobs), common, world.labelled.__getitem__)
        return fl.State(server={"student": {**student, **mean}}), {}

    def common(self, weights: fl.Weights) -> fl.Weights:
        """Return the weights of the common layers."""
        layers = layers_of(weights)
        own = layers[: self.private_layers] if self.private == "first" else layers[-self.private_layers :]
        return {name: value for name, value in weights.items() if layer_of(name) not in own}

    def voters(self, state: fl.State) -> list[fl.Weights]:
        """Return the models of the clients that have private layers."""
        return [{**state.server["student"], **tree["layers"]} for tree in state.clients.values()]


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(SupervisedUpdate):
    """Local work of a client (its lines of Algorithm 1). The client keeps its private layers."""

    common: tuple[str, ...]  # names of the tensors in common layers
    reports: str = "client/supervised_loss"

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        own = private["layers"] if private else received["own"]
        return fl.Local(trainable={"student": {**received["student"], **own}})

    def finish(self, local: fl.Local) -> fl.Tree:
        student = local.trainable["student"]
        own = {name: value for name, value in student.items() if name not in self.common}
        local.private = {"layers": own} if own else None
        return {"student": {name: student[name] for name in self.common}}


def layers_of(names: Iterable[str]) -> list[str]:
    """List the modules that have tensors, such as "conv1" or "fc1", from input to output."""
    return list(dict.fromkeys(map(layer_of, names)))
