"""DataSharing: clients train on their own images and shared labelled ones.

Zhao, Li, Lai, Suda, Civin, Chandra. Federated Learning with Non-IID Data. arXiv:1806.00582, section 4 (no released
code). SSFL cites its result in Table 4 (its reference [16]).

G is a labelled set of beta |D| images, uniform over classes, which the server has in addition to the clients' data D.
Training starts from a model that was trained only on G. Each client receives a random share alpha of G once, and trains
on the union of this share and its own images; FedAvg weighs clients by the size of the union. SSFL gives neither alpha
nor beta. In this suite G consists of the server's N_s labelled images.

With `data.label_setting` "everywhere" clients know the labels of their own images, as in Zhao et al. and in Table 4.
With "server" the shared images are the clients' only labels, and clients learn from their own images as in FixMatch.

Deviations: reports/ssfl/departures.md, entry 24. In addition:
1. A client receives its shared images in the first round in which it trains. `comm/shared_images` counts them;
   `comm/bytes_down` only counts weights.
2. The paper does not say how long the initial model trains on G; the field is `warm_start_rounds`.
3. Training uses weak views and incomplete last batches.
"""

from dataclasses import dataclass, field

import torch

from benchmark.config import Count, NotNegative, Share, Whole
from benchmark.errors import ConfigError
from benchmark.losses import loss_on_confident, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods.shared import labelled_loss, mean_of, predict_weak, trained_at_server
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class DataSharing(fl.Method):
    """DataSharing: FedAvg on shared images and the clients' own images."""

    alpha: Share = 0.5  # alpha   share of G that a client receives; the paper's usual setting, with beta = .1
    batch_size: Count = 64  # B       own and shared labelled images in a batch of a client
    unlabelled_batch_size: Count = 64  # the batch size of a client's own images if they have no labels
    threshold: Share = 0.95  # tau     the threshold of their pseudo-labels
    unlabelled_weight: NotNegative = 1.0  # lambda_u
    server_batch_size: Count = 64
    warm_start_rounds: Whole = 10  # initial rounds with training only at the server, on G

    needs = frozenset({"everywhere", "every_client", "some_clients", "share", "server"})
    asks_for_statistics = True

    def check(self, setup: fl.Setup) -> None:
        if not setup.labelled[fl.SERVER]:
            raise ConfigError("data.N_s is 0, but the server needs labelled images to share them; choose 1 or more")
        if not self.given(setup.labelled[fl.SERVER]) and not all(setup.labelled[k] for k in range(setup.K)):
            raise ConfigError(
                f"method.alpha is {self.alpha}, so that no client receives any of {setup.labelled[fl.SERVER]} "
                "images, and some clients have no labels of their own; choose a larger alpha"
            )

    def given(self, shared: int) -> int:
        """Compute the number of the server's images that a client receives: the share alpha, rounded."""
        return round(self.alpha * shared)

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"student": setup.initial_weights(), "given": {}})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        given = state.server["given"]
        now = 0
        if world.round <= self.warm_start_rounds:
            student = trained_at_server(student, world, self.server_batch_size)
        else:
            cohort = world.cohort()
            given = self._give_shares(given, cohort, world)
            now = (len(given) - len(state.server["given"])) * self.given(world.labelled[fl.SERVER])
            outcomes = world.fit([self._job(student, given, client, world) for client in cohort])
            student = mean_of(outcomes, student, lambda client: world.sizes[client] + len(given[str(client)]))
        student = with_static_statistics(student, world, range(world.K))
        return fl.State(server={"student": student, "given": given}), {"comm/shared_images": now}

    def _give_shares(self, given: fl.Tree, cohort: list[int], world: fl.World) -> fl.Tree:
        """Return the positions in G of each client's shared images.

        They are drawn for each client of the cohort that has none yet.
        """
        shared = world.labelled[fl.SERVER]
        for client in cohort:
            if str(client) not in given:
                drawn = world.generator("shared", client).permutation(shared)[: self.given(shared)]
                given = {**given, str(client): torch.from_numpy(drawn.copy()).sort()[0]}
        return given

    def _job(self, student: fl.Weights, given: fl.Tree, client: int, world: fl.World) -> fl.Job:
        shared_N = tuple(given[str(client)].tolist())
        update = DataSharingUpdate(method=self, own=world.labelled[client], shared_N=shared_N)
        data = {"labelled": fl.Stream.whole("with_shared", self.batch_size)}
        if world.unlabelled(client):
            data["unlabelled"] = fl.Stream.whole("unlabelled", self.unlabelled_batch_size, "weak", "strong")
        return world.job(client, update, {"student": student}, data)


@dataclass(frozen=True, kw_only=True)
class DataSharingUpdate(fl.LocalUpdate):
    """Local steps on own and shared labelled images in one shuffled stream, and on unlabelled ones as in FixMatch."""

    method: DataSharing
    # Only `start` reads these fields:
    own: int = field(repr=False)  # the number of the client's own labelled images
    shared_N: tuple[int, ...] = field(repr=False)  # positions of the server's labelled images that it received

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        positions_N = [*range(self.own), *(self.own + position for position in self.shared_N)]
        selected = fl.Selected(positions_N=torch.tensor(positions_N, dtype=torch.int64))
        return fl.Local(trainable={"student": received["student"]}, selected={"labelled": selected})

    def loss(self, step: fl.Step) -> fl.Loss:
        student = step.student
        loss = labelled_loss(student, step.batch["labelled"])
        aux = {"client/supervised_loss": loss}
        if "unlabelled" in step.batch:
            views = step.batch["unlabelled"].views
            weak_ND = predict_weak(student, views["weak"], "train")
            labels_N, _, kept_N = pseudo_labels(weak_ND, self.method.threshold)
            consistency = loss_on_confident(student, views["strong"], labels_N, kept_N)
            loss = loss + self.method.unlabelled_weight * consistency
            aux |= {"client/consistency_loss": consistency, "labels_N": labels_N, "kept_N": kept_N}
        return loss, {**aux, "client/loss": loss}
