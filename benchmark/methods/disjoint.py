"""FedMatch's local work: sigma learns from labels alone, psi from the other images alone, the network is their sum.

Jeong, Yoon, Yang, Hwang. Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning. ICLR
2021, section 3. Released code: wyjeong/FedMatch, models/fedmatch/client.py and modules/train.py.

On each batch the losses are taken in turn, each with an optimizer step of its own:

    on labels   lambda_s CE(theta(x), y)                                                     steps sigma
    without     lambda_i / H sum_h KL(p_h(u) || p(u)) + lambda_a CE(theta(strong u), vote)   steps psi
                + lambda_l2 ||sigma - psi||^2 + lambda_l1 ||psi||_1

with theta = sigma + psi, and theta_h the received sigma plus a helper's psi. Images of which the client's own model is
less than tau sure count in neither of the first two terms, which are means over the others. The vote is the class that
most of the client's model and its helpers name; of equally many votes the lowest class has it (argmax, as released).
Departures are told in `fedmatch`.

Legend: N images of a batch, D classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from benchmark.losses import consistency_loss, pseudo_labels, supervised_loss
from benchmark.methods.objectives import StudentUpdate
from benchmark.methods.protocol import Batch, Local, Networks, Reader, Training, Tree, Weights
from benchmark.methods.sparse import applied, changes, hard_threshold


@dataclass(frozen=True, kw_only=True)
class Lambdas:
    """The weights of the losses, by the names of the released config.py:18-85."""

    s: float = 10.0  # lambda_s   on labels
    i: float = 0.01  # lambda_i   inter-client consistency
    a: float = 0.01  # lambda_a   agreement-based pseudo-labels
    l2: float = 10.0  # lambda_l2  ||sigma - psi||^2
    l1: float = 1e-5  # lambda_l1  ||psi||_1; 1e-4 with labels at the clients


@dataclass(frozen=True, kw_only=True)
class DisjointUpdate:
    """Both losses in turn: a client with labels. The other holders take one of them (below)."""

    phases: ClassVar[tuple[str, ...]] = ("on_labels", "without_labels")
    trains: ClassVar[tuple[str, ...]] = ("sigma", "psi")
    reports: ClassVar[str] = "client/supervised_loss"
    # For plans: labels come without gradient (helpers, every tenth round, are not counted).
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"unlabelled/plain": (1, 0)}
    sends_changes: ClassVar[bool] = True  # for plans: bytes depend on how many entries move

    lambdas: Lambdas = Lambdas()
    threshold: float = 0.75
    psi_threshold: float = 1e-5
    delta_threshold: float = 1e-5

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        """sigma and psi, from the changes to what the client kept where it did; helpers as changes to that psi."""
        kept = private or {}
        sets: dict[str, Weights] = {
            name: applied(kept[name], received[name]) if name in kept else dict(received[name])
            for name in ("sigma", "psi")
        }
        helpers = {
            f"helper {index}": summed(sets["sigma"], applied(sets["psi"], sent))
            for index, sent in received.get("helpers", {}).items()
        }
        fixed = {name: weights for name, weights in sets.items() if name not in self.trains}
        return Local(
            trainable={name: sets[name] for name in self.trains}, frozen={**fixed, **helpers}, found={"start": sets}
        )

    def on_labels(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """sigma's loss; what is reported is the cross-entropy without its factor."""
        labels_N = batch["labelled"].labels_N
        assert labels_N is not None
        sigma, psi = trainable["sigma"], partner("psi", trainable, frozen)
        loss = supervised_loss(logits_of(sigma, psi, batch["labelled"].views["plain"]), labels_N)
        return self.lambdas.s * loss, {self.reports: loss.detach()}

    def without_labels(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """psi's loss."""
        views, lambdas = batch["unlabelled"].views, self.lambdas
        psi, sigma = trainable["psi"], partner("sigma", trainable, frozen)
        helpers = [network for name, network in frozen.items() if name.startswith("helper")]
        with torch.set_grad_enabled(bool(helpers) and torch.is_grad_enabled()):
            own_ND = logits_of(psi, sigma, views["plain"])
        with torch.no_grad():
            helpers_ND = [helper(views["plain"]) for helper in helpers]
        _, _, kept_N = pseudo_labels(own_ND.detach(), self.threshold)
        labels_N = vote([own_ND.detach(), *helpers_ND])
        inter_client = consistency_of_clients(own_ND, helpers_ND, kept_N)
        strong_ND = logits_of(psi, sigma, views["strong"])
        agreement = consistency_loss(strong_ND, labels_N, kept_N) * len(kept_N) / kept_N.sum().clamp(min=1)
        l2 = sum_of_squares(psi, sigma)
        l1 = torch.stack([value.abs().sum() for value in psi.parameters()]).sum()
        loss = lambdas.i * inter_client + lambdas.a * agreement + lambdas.l2 * l2 + lambdas.l1 * l1
        aux = {
            "client/agreement_loss": agreement.detach(),
            "client/inter_client_loss": inter_client.detach(),
            "labels_N": labels_N,
            "kept_N": kept_N,
        }
        return loss, aux

    loss = without_labels  # the protocol's one name; the engine goes by `phases`

    def after_step(self, training: Training) -> None:
        """Nothing happens between local steps."""

    def finish(self, local: Local) -> Tree:
        """Changes to what the client started from; it keeps what the server makes of them, so that both know it."""
        start = local.found["start"]
        psi = {"psi": hard_threshold(local.trainable["psi"], self.psi_threshold)} if "psi" in self.trains else {}
        ends = {**local.trainable, **psi}
        sends = {name: changes(start[name], ends[name], self.delta_threshold) for name in self.trains}
        local.private = {**start, **{name: applied(start[name], sent) for name, sent in sends.items()}}
        return sends


@dataclass(frozen=True, kw_only=True)
class PsiUpdate(DisjointUpdate):
    """A client without labels: sigma is the server's and stays as it was received."""

    phases: ClassVar[tuple[str, ...]] = ("without_labels",)
    trains: ClassVar[tuple[str, ...]] = ("psi",)


@dataclass(frozen=True, kw_only=True)
class SigmaUpdate(DisjointUpdate):
    """A client's labels alone: a round of warm start."""

    phases: ClassVar[tuple[str, ...]] = ("on_labels",)
    trains: ClassVar[tuple[str, ...]] = ("sigma",)


@dataclass(frozen=True, kw_only=True)
class ServerSigmaUpdate(SigmaUpdate):
    """The server with labels: it keeps nothing apart from the method's state, and its sigma crosses no network."""

    reports: ClassVar[str] = "server/loss"

    def finish(self, local: Local) -> Tree:
        return {"sigma": local.trainable["sigma"]}


@dataclass(frozen=True, kw_only=True)
class EmbedUpdate(StudentUpdate):
    """What a model says to one image of noise (server.py: `client_similarity`): a pass that only reads."""

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        return Local(trainable={}, found={"output": torch.softmax(reader.on_noise(received["theta"]), dim=-1)})

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        raise AssertionError("a job without trainable weights takes no local step")

    def finish(self, local: Local) -> Tree:
        return local.found


def summed(sigma: Weights, psi: Weights) -> Weights:
    """theta = sigma + psi."""
    return {name: value + psi[name] for name, value in sigma.items()}


def partner(name: str, trainable: Networks, frozen: Networks) -> nn.Module:
    return trainable[name] if name in trainable else frozen[name]


def logits_of(trained: nn.Module, other: nn.Module, images_NCHW: Tensor) -> Tensor:
    """logits_ND of the sum of two weight sets, with a gradient for the first alone."""
    fixed = dict(other.named_parameters())
    theta = {name: value + fixed[name].detach() for name, value in trained.named_parameters()}
    return functional_call(trained, theta, (images_NCHW,))


def sum_of_squares(psi: nn.Module, sigma: nn.Module) -> Tensor:
    """||sigma - psi||^2, with a gradient for psi alone."""
    pairs = zip(psi.parameters(), sigma.parameters(), strict=True)
    return torch.stack([(mine - theirs.detach()).square().sum() for mine, theirs in pairs]).sum()


def consistency_of_clients(own_ND: Tensor, helpers_ND: Sequence[Tensor], kept_N: Tensor) -> Tensor:
    """1/H sum_h KL(p_h || p), mean over the kept images (client.py: `loss_fn_u`); 0 without helpers or kept images."""
    if not helpers_ND:
        return own_ND.new_zeros(())
    own_log_ND = F.log_softmax(own_ND, dim=-1)
    terms = [
        F.kl_div(own_log_ND, F.log_softmax(helper_ND, dim=-1), reduction="none", log_target=True).sum(dim=-1)
        for helper_ND in helpers_ND
    ]
    return (torch.stack(terms).mean(dim=0) * kept_N).sum() / kept_N.sum().clamp(min=1)


def vote(logits: Sequence[Tensor]) -> Tensor:
    """labels_N: the class that most of these logits_ND have as their largest; of equally many the lowest class."""
    # Not F.one_hot, which reads its labels on the host: a GPU would be waited for in every step.
    classes_D = torch.arange(logits[0].shape[-1], device=logits[0].device)
    votes_ND = torch.stack([own_ND.argmax(dim=-1, keepdim=True) == classes_D for own_ND in logits]).sum(dim=0)
    return votes_ND.argmax(dim=-1)
