"""FedProx-FixMatch: clients train on their own confident pseudo-labels, with FedProx's proximal term.

This is the baseline of FedMatch (Jeong et al. 2021) in FedSwitch's version: Zhao, Ghosh, Bharadwaj, Ma. When does the
student surpass the teacher? Federated Semi-supervised Learning with Teacher-Student EMA. arXiv:2301.10114 (no released
code), sections 3.3 and 6.1, Algorithms 1 and 2 with T' empty, Eqs. 4 and 5. FedProx: Li et al. 2020, Eq. 2.
`ts_server_ema`, `ts_client_ema` and `fedswitch` use the local step and the round of this file.

One local step uses a batch of labelled and a batch of unlabelled images, as far as the client has them. The loss is L_s
on labels, plus lambda_u L_u on confident pseudo-labels, plus mu/2 ||S - S^s||^2 with the received student S^s. In this
method, the student labels the weak view and learns the strong view. If clients have labels, this is Algorithm 1. If no
client has labels, it is Algorithm 2: the server averages the students with equal weights and then trains on its labels
(ServerUpdate).

Deviations: reports/fedswitch/departures.md. In addition, for all four methods:
1. A client without labelled or without unlabelled images leaves out this term of the loss: labelled clients in RSCFed's
   setting only minimise L_s.
2. E_s and E_c are both the federation's `epochs` or T local steps; in an epoch the shorter stream is repeated.
3. Labelled images have weak views (section 5.2: "weakly augmented images"), while FedMatch uses plain ones.
   `labeller_view` only changes the unlabelled images.
4. If clients have labels, labelled images at the server are not used, as in Algorithm 1.
5. Incomplete last batches are used, as in FedMatch; the paper follows its data settings.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from benchmark.config import Count, NotNegative, Share, Whole, added
from benchmark.losses import loss_on_confident, proximal_term, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods import shared


@dataclass(frozen=True, kw_only=True)
class ProximalFixMatchUpdate(fl.LocalUpdate):
    """Local work of a client (ClientUpdate of Algorithms 1 and 2), with or without a teacher.

    The teacher is received and predicts in evaluation mode.
    """

    method: "ProximalFixMatch"
    labeller: Literal["student", "teacher"] = "student"
    pseudo_label_mode: Literal["train", "eval"] = "train"  # the mode of the student if it is the labeller
    local_ratio: float | None = None  # alpha of the local teacher's EMA; with None, the teacher does not change

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        frozen = {"anchor": received["student"]} if self.method.mu else {}
        if "teacher" in received:
            frozen["teacher"] = received["teacher"]
        return fl.Local(trainable={"student": received["student"]}, frozen=frozen)

    def loss(self, step: fl.Step) -> fl.Loss:
        """Compute L_s + lambda_u L_u + the proximal term. A term is left out if the client has no images for it."""
        student = step.student
        method = self.method
        terms, aux = [], {}
        if "labelled" in step.batch:
            terms.append(shared.labelled_loss(student, step.batch["labelled"]))
            aux["client/supervised_loss"] = terms[0]
        if "unlabelled" in step.batch:
            consistency, reported = self._consistency(step)
            terms.append(consistency if method.unlabelled_weight == 1.0 else method.unlabelled_weight * consistency)
            aux.update(reported)
        if method.mu:
            terms.append(proximal_term(student, step.frozen["anchor"], method.mu, half=method.proximal == "half"))
        loss = reduce(torch.add, terms)
        return loss, {**aux, "client/loss": loss}

    def _consistency(self, step: fl.Step) -> fl.Loss:
        """Compute L_u of Eq. 5 on one batch, and the tensors to report."""
        labels_N, _, kept_N = pseudo_labels(self._weak_logits(step), self.method.threshold)
        loss = loss_on_confident(step.student, step.batch["unlabelled"].views["strong"], labels_N, kept_N)
        return loss, {"client/consistency_loss": loss, "labels_N": labels_N, "kept_N": kept_N}

    def _weak_logits(self, step: fl.Step) -> Tensor:
        """Compute the labeller's logits_ND of the view that it sees, without a gradient."""
        seen_NCHW = step.batch["unlabelled"].views[self.method.seen_view]
        if self.labeller == "student":
            return shared.predict_weak(step.student, seen_NCHW, self.pseudo_label_mode)
        with torch.no_grad():
            return step.frozen["teacher"](seen_NCHW)

    def after_step(self, step: fl.Step) -> None:
        """Update the local teacher by Eq. 1."""
        if self.local_ratio is not None and "teacher" in step.frozen:
            shared.ema_(step.frozen["teacher"], step.student, self.local_ratio)


@dataclass(frozen=True, kw_only=True)
class ProximalFixMatch(fl.Method):
    """The fields and steps that the four methods share. Each method adds its `federated_round`.

    The paper tuned the learning rate, tau, lambda_u, weight decay, momentum and the EMA ratio (section 5.3), and
    publishes none of these values.
    """

    threshold: Share = 0.95  # tau      from FixMatch
    unlabelled_weight: NotNegative = 1.0  # lambda_u  from FixMatch
    # mu: the smallest value of FedProx's grid (its section 5.3), which limits drift but hardly slows training.
    mu: NotNegative = 1e-3
    # Algorithm 1 has mu, Algorithm 2 mu/2. Default: mu/2, as in FedProx; a different mu compensates for the factor.
    proximal: Literal["half", "full"] = "half"
    # Section 5.2 follows FedMatch: batches of about 100 unlabelled images, of 10 labelled images at a client, and of
    # 100 at the server (config.py:18-85 of FedMatch).
    batch_size: Count = 100
    labelled_batch_size: Count = 10
    server_batch_size: Count = 100
    # Initial rounds with training only at participants with labels; reduced profiles need them.
    warm_start_rounds: Whole = 0
    # The view of an unlabelled image that the labeller sees. A teacher's divergence is also measured on it. The
    # default is weak, as in section 5.2 ("in contrast to FedMatch's approach, where they utilize original images").
    labeller_view: Literal["weak", "original"] = added("weak")

    needs = frozenset({"server", "every_client", "some_clients", "share", "one_more_client", "drawn_apart", "open"})

    @property
    def seen_view(self) -> str:
        """Return the name of the labeller's view in a batch."""
        return "plain" if self.labeller_view == "original" else "weak"

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        """Run a round of the warm start with the loss L_s only, or after it the method's `federated_round`.

        In the warm start the clients with labels train and are averaged with equal weights, and then the server trains.
        The teacher is equal to the student.
        """
        if world.round > self.warm_start_rounds:
            return self.federated_round(state, world)
        student = state.server["student"]
        update = ProximalFixMatchUpdate(method=self)
        outcomes = shared.trained_on_labels(update, student, world, self.labelled_batch_size)
        student = self.server_update(shared.mean_of(outcomes, otherwise=student), world)
        models: fl.Tree = {name: student for name in ("student", "teacher") if name in state.server}
        return fl.State(server={**state.server, **models}), {}

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        """Run a round after the warm start."""
        raise NotImplementedError(f"{type(self).__name__} has no federated_round")

    def client_jobs(self, world: fl.World, update: ProximalFixMatchUpdate, receives: fl.Tree) -> list[fl.Job]:
        """Build the ClientUpdate job of each client of the cohort."""
        streams = {
            "labelled": fl.Stream.whole("labelled", self.labelled_batch_size),
            "unlabelled": fl.Stream.whole("unlabelled", self.batch_size, self.seen_view, "strong"),
        }
        return [world.job(k, update, receives, world.streams(k, **streams)) for k in world.cohort()]

    def server_update(self, student: fl.Weights, world: fl.World) -> fl.Weights:
        """Run ServerUpdate of Algorithm 2. If a client has labels, return the weights unchanged (Algorithm 1)."""
        if shared.clients_with_labels(world):
            return student
        return shared.trained_at_server(student, world, self.server_batch_size)


@dataclass(frozen=True, kw_only=True)
class FedProxFixMatch(ProximalFixMatch):
    """FedProx-FixMatch with the student as the only labeller."""

    pseudo_label_mode: Literal["train", "eval"] = "train"  # from FixMatch; not in the paper

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        update = ProximalFixMatchUpdate(method=self, pseudo_label_mode=self.pseudo_label_mode)
        outcomes = world.fit(self.client_jobs(world, update, {"student": student}))
        return fl.State(server={"student": self.server_update(shared.mean_of(outcomes, student), world)}), {}


@dataclass(frozen=True, kw_only=True)
class TeacherStudent(ProximalFixMatch):
    """The fields and functions that the three methods with a teacher share."""

    # alpha of Eq. 1, from Mean Teacher and FixMatch. It averages over 1 / (1 - alpha) rounds, so that short runs need a
    # smaller value.
    ratio: Share = 0.999
    # The paper does not specify the evaluated model. Default: the student, which also exists in FedProx-FixMatch.
    evaluated: Literal["student", "teacher"] = "student"

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        return fl.State(server={"student": start, "teacher": start})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        """Return student and teacher, the evaluated model first."""
        first, second = ("student", "teacher") if self.evaluated == "student" else ("teacher", "student")
        return {first: state.server[first], second: state.server[second]}
