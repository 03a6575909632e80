"""FedMatch: labelled and unlabelled images train separate weights, and clients learn from similar clients' models.

Jeong, Yoon, Yang, Hwang. Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning. ICLR
2021, arXiv:2006.12097, section 3. Released code: wyjeong/FedMatch, 4947aa2.

The network is theta = sigma + psi. On each batch two losses are minimised one after the other, each with a separate
optimizer step:

    labelled    lambda_s CE(theta(x), y)                                                     updates sigma
    unlabelled  lambda_i / H sum_h KL(p_h(u) || p(u)) + lambda_a CE(theta(strong u), vote)   updates psi
                + lambda_l2 ||sigma - psi||^2 + lambda_l1 ||psi||_1

Here theta_h is the received sigma plus the psi of helper h. The first two terms of the second loss are means over the
images that the client's model labels with a confidence of at least tau. The vote is the class that the client's model
and its helpers predict most often.

With labels at the clients, each client minimises both losses on every batch, and sigma and psi are averaged. With
labels at the server, the server first trains sigma on them; the clients only train psi. Averages are uniform. Every
`helper_interval` rounds, each client that has trained before receives the psi of its H helpers. These are the clients
with the last models nearest to its own, measured by the output for one fixed image of noise. The released code finds
them by a KD-tree, and this suite from all distances, with the same result.

Deviations: reports/ssfl/departures.md, entry 22. In addition:
1. psi is sent with entries of at most `psi_threshold` set to zero. In the released code these zeros only decide which
   entries changed, and the original values are sent. The global psi is evaluated with these zeros, as in the released
   code (layers.py).
2. With `federation.epochs` a client makes this number of passes over its longer stream; with T it uses T batches.
   Released code: 5 steps with 5 labels per class, 6 without labels.
3. Images with labels and images that are pseudo-labelled have plain views; the second view is the experiment's strong
   view. Released code: RandAugment.
4. Batch norms are refused. The paper's ResNet-9 has no norm (`model.norm = none`) and no bias.
5. If clients have labels, labelled images at the server are not used.

Legend: n entries of a tensor that are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from benchmark.config import Checked, Count, NotNegative, Share, Whole
from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, proximal_term, pseudo_labels, sum_over_weights, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.changed_entries import changed_entries, with_changed_entries
from benchmark.methods.shared import ReadOnlyUpdate, clients_with_labels, mean, refuse_fixed, sent
from benchmark.models.tensors import tensors_of

Sets = dict[str, fl.Weights]  # "sigma" and "psi"


@dataclass(frozen=True, kw_only=True)
class Lambdas(Checked):
    """The weights of the losses, with the names of the released config.py:18-85."""

    s: NotNegative = 10.0  # lambda_s   on labels
    i: NotNegative = 0.01  # lambda_i   inter-client consistency
    a: NotNegative = 0.01  # lambda_a   agreement-based pseudo-labels
    l2: NotNegative = 10.0  # lambda_l2  ||sigma - psi||^2
    l1: NotNegative = 1e-5  # lambda_l1  ||psi||_1; 1e-4 with labels at the clients


@dataclass(frozen=True, kw_only=True)
class FedMatch(fl.Method):
    """FedMatch, with the defaults of the released config.py for labels at the server.

    The comments give the values for labels at the clients.
    """

    lambdas: Lambdas = Lambdas()
    threshold: Share = 0.75  # tau
    helpers: Whole = 2  # H        0: no inter-client consistency, and the vote is the client's own prediction
    helper_interval: Count = 10  # rounds between two rounds with helpers
    psi_factor: NotNegative = 0.2  # the initial psi is this factor times sigma
    psi_threshold: NotNegative = 1e-5  # l1_thres     5e-6 with labels at the clients
    delta_threshold: NotNegative = 1e-5  # delta_thres  5e-5 with labels at the clients
    down: Literal["paper", "released_code"] = "paper"
    batch_size: Count = 100  # 102 with labels at the clients, which gives as many unlabelled as labelled batches
    labelled_batch_size: Count = 10  # at a client
    server_batch_size: Count = 100
    warm_start_rounds: Whole = 0

    needs = frozenset({"server", "every_client", "share", "drawn_apart"})

    def check(self, setup: fl.Setup) -> None:
        refuse_fixed(setup, "every parameter is the sum of a sigma and a psi")
        if buffers := setup.buffers():
            raise ConfigError(
                f"model.norm is {setup.model.norm!r}, but then network {setup.model.network} has {buffers[0]}, which "
                "is not trained and belongs to neither sigma nor psi; choose 'none' (the paper's), 'gn' or a different "
                "network"
            )

    def init(self, setup: fl.Setup) -> fl.State:
        sigma = setup.initial_weights()
        psi = {name: self.psi_factor * value for name, value in sigma.items()}
        return fl.State(server={"sigma": sigma, "psi": psi, "known": {}, "outputs": {}})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"theta": summed(state.server["sigma"], hard_threshold(state.server["psi"], self.psi_threshold))}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        """Run one round.

        In the state, "known" contains each client's last weights, and "outputs" their output for the image of noise.
        """
        at_clients = bool(clients_with_labels(world))
        warm = world.round <= self.warm_start_rounds
        current: Sets = {"sigma": state.server["sigma"], "psi": state.server["psi"]}
        if not at_clients:
            data = {"labelled": fl.Stream.whole("labelled", self.server_batch_size, "plain")}
            update = ServerSigmaUpdate(method=self)  # psi is only read
            current = {**current, **world.fit_one(fl.SERVER, update, {**current}, data, begins=current)}
        ends: dict[int, Sets] = {}
        helped = 0
        if at_clients or not warm:
            after_warm_start = ClientUpdate if at_clients else PsiUpdate
            kind = SigmaUpdate if warm else after_warm_start
            ends, helped = self._clients(state, current, world, kind(method=self))
            for name in kind.trains if ends else ():
                current[name] = mean([sets[name] for sets in ends.values()])
        known = {**state.server["known"], **{str(client): sets for client, sets in ends.items()}}
        outputs = {**state.server["outputs"], **self._outputs(ends, world)}
        server = {**current, "known": known, "outputs": outputs}
        return fl.State(server=server), {"helpers/clients": float(helped)}

    def _clients(
        self, state: fl.State, current: Sets, world: fl.World, update: "ClientUpdate"
    ) -> tuple[dict[int, Sets], int]:
        """Train the cohort, and return each client's final weights and the number of clients with helpers."""
        streams = {
            "sigma": ("labelled", fl.Stream.whole("labelled", self.labelled_batch_size, "plain")),
            "psi": ("unlabelled", fl.Stream.whole("unlabelled", self.batch_size, "plain", "strong")),
        }
        data = dict(streams[name] for name in update.trains)
        jobs = []
        starts = {}
        helped = 0
        for client in world.cohort():
            receives, starts[client] = self._down(state.server["known"].get(str(client)), current)
            helpers = self._helpers(state, world, client) if "psi" in update.trains else []
            if helpers:
                changed = [changed_entries(starts[client]["psi"], psi, self.delta_threshold) for psi in helpers]
                receives = {**receives, "helpers": {str(index): tree for index, tree in enumerate(changed)}}
                helped += 1
            jobs.append(world.job(client, update, receives, data, begins=starts[client]))
        ends: dict[int, Sets] = {}
        for client, sends in sent(world.fit(jobs)):
            moved = {name: with_changed_entries(starts[client][name], tree) for name, tree in sends.items()}
            ends[client] = {**starts[client], **moved}
        return ends, helped

    def _down(self, known: Sets | None, current: Sets) -> tuple[fl.Tree, Sets]:
        """Compute the tree that a client is sent, and the weights that it then has.

        The tree contains changes to the weights that the client kept, or all weights if it kept none.
        """
        if known is None or self.down == "released_code":
            return {**current}, {**current}  # copies: `begins` is read after the round, and `current` changes in it
        changed = {
            name: changed_entries(known[name], weights, self.delta_threshold) for name, weights in current.items()
        }
        return changed, {name: with_changed_entries(known[name], tree) for name, tree in changed.items()}

    def _helpers(self, state: fl.State, world: fl.World, client: int) -> list[fl.Weights]:
        """Return the psi of the clients nearest to this one.

        The list is empty in rounds without helpers and for a client that has not taken part before.
        """
        outputs = state.server["outputs"]
        if world.round % self.helper_interval or str(client) not in outputs:
            return []
        return [state.server["known"][name]["psi"] for name in nearest(str(client), outputs, self.helpers)]

    def _outputs(self, ends: Mapping[int, Sets], world: fl.World) -> dict[str, Tensor]:
        """Compute each new model's output for the image of noise at the server, by client number."""
        if not self.helpers:
            return {}
        jobs = [
            world.job(fl.SERVER, EmbedUpdate(), {"theta": summed(**sets)}, draw=draw)
            for draw, sets in enumerate(ends.values(), start=1)
        ]
        return {str(client): outcome.sends["output"] for client, outcome in zip(ends, world.fit(jobs), strict=True)}


def nearest(client: str, outputs: Mapping[str, Tensor], count: int) -> Sequence[str]:
    """List the `count` other clients with the output_D nearest to this client's, the nearest first.

    Clients at the same distance are ordered by number.
    """
    others = sorted((name for name in outputs if name != client), key=int)
    if not others:
        return []
    distances = [torch.dist(outputs[name].double(), outputs[client].double()) for name in others]
    distance_of = dict(zip(others, torch.stack(distances).tolist(), strict=True))  # one read for all of them
    return sorted(others, key=lambda name: distance_of[name])[:count]


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(fl.LocalUpdate):
    """Local work of a client with labels, which minimises both losses on each batch.

    The subclasses below, for other participants, minimise one of them.
    """

    phases: ClassVar[tuple[str, ...]] = ("on_labels", "without_labels")
    trains: ClassVar[tuple[str, ...]] = ("sigma", "psi")
    reports: ClassVar[str] = "client/supervised_loss"
    sends_changes = True

    method: FedMatch

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """Build sigma and psi from the received changes to the weights that the client kept.

        If it kept none, it received all weights. Helpers are received as changes to this psi.
        """
        kept = private or {}
        sets: Sets = {
            name: with_changed_entries(kept[name], received[name]) if name in kept else dict(received[name])
            for name in ("sigma", "psi")
        }
        frozen = {name: weights for name, weights in sets.items() if name not in self.trains}
        for index, changed in received.get("helpers", {}).items():
            frozen[f"helper {index}"] = summed(sets["sigma"], with_changed_entries(sets["psi"], changed))
        return fl.Local(trainable={name: sets[name] for name in self.trains}, frozen=frozen, notes={"start": sets})

    def on_labels(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of sigma. The reported cross-entropy has no factor."""
        sigma, psi = step.trainable["sigma"], {**step.trainable, **step.frozen}["psi"]
        labelled = step.batch["labelled"]
        loss = supervised_loss(logits_of(sigma, psi, labelled.views["plain"]), labelled.known_N)
        return self.method.lambdas.s * loss, {self.reports: loss}

    def without_labels(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of psi."""
        views = step.batch["unlabelled"].views
        lambdas = self.method.lambdas
        psi, sigma = step.trainable["psi"], {**step.trainable, **step.frozen}["sigma"]
        helpers = [network for name, network in step.frozen.items() if name.startswith("helper")]
        with torch.set_grad_enabled(bool(helpers) and torch.is_grad_enabled()):
            own_ND = logits_of(psi, sigma, views["plain"])
        with torch.no_grad():
            helpers_ND = [helper(views["plain"]) for helper in helpers]
        _, _, kept_N = pseudo_labels(own_ND.detach(), self.method.threshold)
        labels_N = vote([own_ND.detach(), *helpers_ND])
        inter_client = consistency_of_clients(own_ND, helpers_ND, kept_N)
        strong_ND = logits_of(psi, sigma, views["strong"])
        agreement = consistency_loss(strong_ND, labels_N, kept_N) * len(kept_N) / kept_N.sum().clamp(min=1)
        l2 = proximal_term(psi, sigma, lambdas.l2, half=False)  # with a gradient only for psi
        l1 = sum_over_weights(lambda w: w.abs().sum(), psi)
        loss = lambdas.i * inter_client + lambdas.a * agreement + l2 + lambdas.l1 * l1
        aux = {"client/agreement_loss": agreement, "client/inter_client_loss": inter_client}
        return loss, {**aux, "labels_N": labels_N, "kept_N": kept_N}

    def finish(self, local: fl.Local) -> fl.Tree:
        """Return the changes to the weights that the client began with.

        The client keeps the weights that the server computes from these changes, so that both have the same weights.
        """
        start = local.notes["start"]
        ends = dict(local.trainable)
        if "psi" in self.trains:
            ends["psi"] = hard_threshold(ends["psi"], self.method.psi_threshold)
        sends = {name: changed_entries(start[name], ends[name], self.method.delta_threshold) for name in self.trains}
        local.private = {**start, **{name: with_changed_entries(start[name], sent) for name, sent in sends.items()}}
        return sends


@dataclass(frozen=True, kw_only=True)
class PsiUpdate(ClientUpdate):
    """Local work of a client without labels, which trains psi and leaves sigma as it was received."""

    phases = ("without_labels",)
    trains = ("psi",)


@dataclass(frozen=True, kw_only=True)
class SigmaUpdate(ClientUpdate):
    """Local work on a client's labels in a round of the warm start, which only trains sigma."""

    phases = ("on_labels",)
    trains = ("sigma",)


@dataclass(frozen=True, kw_only=True)
class ServerSigmaUpdate(SigmaUpdate):
    """Local work on the labels of the server. The server keeps no separate state, and its sigma is not transmitted."""

    reports = "server/loss"

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"sigma": local.trainable["sigma"]}


@dataclass(frozen=True, kw_only=True)
class EmbedUpdate(ReadOnlyUpdate):
    """Local work that computes a model's output for one image of noise (server.py: `client_similarity`)."""

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        return {"output": torch.softmax(reader.on_noise(received["theta"]), dim=-1)}


def summed(sigma: fl.Weights, psi: fl.Weights) -> fl.Weights:
    """Compute theta = sigma + psi."""
    return {name: value + psi[name] for name, value in sigma.items()}


def logits_of(trained: nn.Module, other: nn.Module, images_NCHW: Tensor) -> Tensor:
    """Compute logits_ND of the sum of two weight sets. Only the first one has a gradient."""
    fixed = [value.detach() for value in tensors_of(other).parameters]
    theta = torch._foreach_add(tensors_of(trained).parameters, fixed)
    names = [name for name, _ in trained.named_parameters()]
    return functional_call(trained, dict(zip(names, theta, strict=True)), (images_NCHW,))


def consistency_of_clients(own_ND: Tensor, helpers_ND: Sequence[Tensor], kept_N: Tensor) -> Tensor:
    """Compute 1/H sum_h KL(p_h || p), averaged over the selected images; a scalar (client.py: `loss_fn_u`).

    The result is 0 without helpers or selected images.
    """
    if not helpers_ND:
        return own_ND.new_zeros(())
    own_log_ND = F.log_softmax(own_ND, dim=-1)
    terms = [
        F.kl_div(own_log_ND, F.log_softmax(helper_ND, dim=-1), reduction="none", log_target=True).sum(dim=-1)
        for helper_ND in helpers_ND
    ]
    return (torch.stack(terms).mean(dim=0) * kept_N).sum() / kept_N.sum().clamp(min=1)


def vote(logits: Sequence[Tensor]) -> Tensor:
    """Compute labels_N, the class that most of these logits_ND predict; with equal votes the lowest class."""
    # F.one_hot reads its labels on the CPU, so that every step would wait for a GPU.
    classes_D = torch.arange(logits[0].shape[-1], device=logits[0].device)
    votes_ND = torch.stack([own_ND.argmax(dim=-1, keepdim=True) == classes_D for own_ND in logits]).sum(dim=0)
    return votes_ND.argmax(dim=-1)


def hard_threshold(weights: fl.Weights, threshold: float) -> fl.Weights:
    """Set entries with an absolute value of at most `threshold` to zero (released modules/layers.py: `l1_thres`)."""
    return {name: value * (value.abs() > threshold) for name, value in weights.items()}
