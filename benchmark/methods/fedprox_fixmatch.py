"""FedProx-FixMatch: clients train on their own confident pseudo-labels.

They are held near the weights that they received. The baseline of FedMatch (Jeong et al. 2021) as FedSwitch has it:
Zhao, Ghosh, Bharadwaj, Ma. When does the student surpass the teacher? Federated Semi-supervised Learning with
Teacher-Student EMA. arXiv:2301.10114 (no released code), sections 3.3 and 6.1, Algorithms 1 and 2 with T' empty, Eqs. 4
and 5. FedProx: Li et al. 2020, Eq. 2. `ts_server_ema`, `ts_client_ema` and `fedswitch` have this file's local step and
round.

One local step takes a batch of each kind of images that the client has: L_s on labels, lambda_u L_u on confident
pseudo-labels (the student labels the weak view and learns the strong one), and mu/2 ||S - S^s||^2 with the student S^s
as received. Where a client has labels this is Algorithm 1; where none has, Algorithm 2, and the server trains on its
labels after averaging students with equal weights (ServerUpdate).

Departures: reports/fedswitch/departures.md. Besides, for all four methods:
1. A client without images of a kind leaves out that term: labelled clients of RSCFed's setting take L_s alone.
2. E_s and E_c are both the federation's `epochs` (or T local steps); in an epoch the shorter stream starts anew.
3. Views of labelled images are weak ones (section 5.2: "weakly augmented images", where FedMatch takes them plain).
4. Labelled images at the server are not used where clients have labels, as in Algorithm 1.
5. A last batch that is incomplete is trained on, as in FedMatch, whose data settings the paper follows.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from benchmark.config import Count, NotNegative, Share, Whole
from benchmark.losses import loss_on_confident, proximal_term, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods import shared


@dataclass(frozen=True, kw_only=True)
class ProximalFixMatchUpdate(fl.LocalUpdate):
    """ClientUpdate of Algorithms 1 and 2, with or without a teacher. A teacher is received, and in evaluation mode."""

    method: "ProximalFixMatch"
    labeller: Literal["student", "teacher"] = "student"
    pseudo_label_mode: Literal["train", "eval"] = "train"  # of a student that labels
    local_ratio: float | None = None  # alpha of the local teacher's EMA; None: it stays as it was received

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        frozen = {"anchor": received["student"]} if self.method.mu else {}
        if "teacher" in received:
            frozen["teacher"] = received["teacher"]
        return fl.Local(trainable={"student": received["student"]}, frozen=frozen)

    def loss(self, step: fl.Step) -> fl.Loss:
        """L_s + lambda_u L_u + the proximal term. Without the terms for whose images the client has none."""
        student, method = step.student, self.method
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
        """L_u of Eq. 5 on one batch, and what is reported of it."""
        labels_N, _, kept_N = pseudo_labels(self._weak_logits(step), self.method.threshold)
        loss = loss_on_confident(step.student, step.batch["unlabelled"].views["strong"], labels_N, kept_N)
        return loss, {"client/consistency_loss": loss, "labels_N": labels_N, "kept_N": kept_N}

    def _weak_logits(self, step: fl.Step) -> Tensor:
        """The labeller's, which carry no gradient."""
        weak_NCHW = step.batch["unlabelled"].views["weak"]
        if self.labeller == "student":
            return shared.predict_weak(step.student, weak_NCHW, self.pseudo_label_mode)
        with torch.no_grad():
            return step.frozen["teacher"](weak_NCHW)

    def after_step(self, step: fl.Step) -> None:
        """Eq. 1 for the local teacher."""
        if self.local_ratio is not None and "teacher" in step.frozen:
            shared.ema_(step.frozen["teacher"], step.student, self.local_ratio)


@dataclass(frozen=True, kw_only=True)
class ProximalFixMatch(fl.Method):
    """Fields and steps that the four methods share. Each of them adds its `federated_round`. The paper tuned the
    learning rate, tau, lambda_u, weight decay, momentum and the EMA ratio (section 5.3), and prints none of them."""

    threshold: Share = 0.95  # tau      FixMatch's
    unlabelled_weight: NotNegative = 1.0  # lambda_u  FixMatch's
    mu: NotNegative = 1e-3  # mu       the least of FedProx's grid (its section 5.3): a guard against drift, not a brake
    # Algorithm 1 writes mu, Algorithm 2 mu/2. Default: FedProx's own mu/2; a factor that another mu undoes.
    proximal: Literal["half", "full"] = "half"
    # Section 5.2 follows FedMatch: about 100 unlabelled images a batch, 10 labelled at a client, 100 at the server
    # (its config.py:18-85).
    batch_size: Count = 100
    labelled_batch_size: Count = 10
    server_batch_size: Count = 100
    warm_start_rounds: Whole = 0  # rounds in which only holders of labels train; reduced profiles need them

    needs = frozenset({"server", "every_client", "some_clients", "share", "one_more_client", "drawn_apart"})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        """Rounds of L_s alone, then the method's own. In the former the cohort's clients with labels train and are
        averaged equally, then the server trains; the teacher is the student."""
        if world.round > self.warm_start_rounds:
            return self.federated_round(state, world)
        student, update = state.server["student"], ProximalFixMatchUpdate(method=self)
        outcomes = shared.trained_on_labels(update, student, world, self.labelled_batch_size)
        student = self.server_update(shared.mean_of(outcomes, otherwise=student), world)
        models: fl.Tree = {name: student for name in ("student", "teacher") if name in state.server}
        return fl.State(server={**state.server, **models}), {}

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        raise NotImplementedError(f"{type(self).__name__} has no federated_round")

    def client_jobs(self, world: fl.World, update: ProximalFixMatchUpdate, receives: fl.Tree) -> list[fl.Job]:
        """ClientUpdate at each client of the cohort."""
        streams = {
            "labelled": fl.Stream.whole("labelled", self.labelled_batch_size),
            "unlabelled": fl.Stream.whole("unlabelled", self.batch_size, "weak", "strong"),
        }
        return [world.job(k, update, receives, world.streams(k, **streams)) for k in world.cohort()]

    def server_update(self, student: fl.Weights, world: fl.World) -> fl.Weights:
        """ServerUpdate of Algorithm 2 where no client has labels. The same weights where one has (Algorithm 1)."""
        if shared.clients_with_labels(world):
            return student
        return shared.trained_at_server(student, world, self.server_batch_size)


@dataclass(frozen=True, kw_only=True)
class FedProxFixMatch(ProximalFixMatch):
    """Student labels throughout."""

    pseudo_label_mode: Literal["train", "eval"] = "train"  # the paper is silent; FixMatch's

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        update = ProximalFixMatchUpdate(method=self, pseudo_label_mode=self.pseudo_label_mode)
        outcomes = world.fit(self.client_jobs(world, update, {"student": student}))
        return fl.State(server={"student": self.server_update(shared.mean_of(outcomes, student), world)}), {}


@dataclass(frozen=True, kw_only=True)
class TeacherStudent(ProximalFixMatch):
    """What the three methods with a teacher add."""

    # alpha of Eq. 1. Mean Teacher's and FixMatch's; 1 / (1 - alpha) rounds, so short runs need a smaller one.
    ratio: Share = 0.999
    # The paper does not say which model its accuracies are of. Default: the student, which FedProx-FixMatch has, too.
    evaluated: Literal["student", "teacher"] = "student"

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        return fl.State(server={"student": start, "teacher": start})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        """Student and teacher, first the one that is evaluated."""
        first, second = ("student", "teacher") if self.evaluated == "student" else ("teacher", "student")
        return {first: state.server[first], second: state.server[second]}
