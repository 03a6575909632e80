"""Fed-Consist: mean teachers at clients without labels, and a weighted mean.

Yang et al. Federated semi-supervised learning for COVID region segmentation in chest CT. Medical Image Analysis 2021.
This is the re-implementation of RSCFed (Liang, Lin, Fu, Zhu, Li. CVPR 2022, section 4.2; "Basic" in Table 2 has the
same numbers): RSCFed's local training (section 3.2, Eqs. 1-4) without sub-sampling and distances, and with half of the
weight for all labelled clients together. RSCFed's released code (XMed-Lab/RSCFed) does not contain it. `rscfed` and
`fedirm` use the local work of this file.

Clients with labels minimise the cross-entropy (Eq. 1). At clients without labels, the student, in training mode, learns
the sharpened prediction of the client's teacher, in evaluation mode, on a different weak view (Eqs. 2, 3). The teacher
follows the student after each local step (Eq. 4).

Deviations: reports/rscfed/departures.md, entries 5 to 8 and 11 to 13. In addition, theta_glob^0 of section 3.2 is the
global model after the warm start, if there is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from benchmark.config import Count, NotNegative, Positive, ShareAbove0, ShareBetween, Whole, added
from benchmark.errors import ConfigError
from benchmark.losses import sharpen, squared_error_loss
from benchmark.methods import protocol as fl
from benchmark.methods.shared import RunningMean, clients_with_labels, ema_, fit_each, labelled_loss, mean_of


@dataclass(frozen=True, kw_only=True)
class MeanTeacherMethod(fl.Method):
    """The fields and the local work of all mean-teacher methods.

    Each of these methods defines how it combines the local models in `federated_round`.
    """

    alpha: ShareAbove0 = 0.001  # alpha   of Eq. 4, the student's share
    temperature: Positive = 0.5  # tau     of Eq. 2
    # lambda_u, the factor of the squared error, from the command in the released README; Eq. 3 has no factor. With
    # factor 1 and the paper's teacher, a model learns less than from labels only: 16 % against 31 % on CIFAR-10 with
    # its CNN, in 60 rounds with one seed.
    unlabelled_weight: NotNegative = 0.02
    batch_size: Count = 64  # 12 for ISIC 2018
    # Eq. 4. "paper": alpha in all steps; within some hundred steps a teacher then hardly changes from its initial,
    # untrained weights. "released_code": the teacher begins as a mean of students (local_unsupervised.py:24-27).
    # Default: the code, for this reason.
    ema_warm_up: Literal["paper", "released_code"] = "released_code"
    # "paper": "initialized with theta_glob^0 when this client is the first time selected" (section 3.2). These weights
    # are sent once to clients that are first drawn in a later round. "released_code": the current global model.
    # Default: the code, for the reason above.
    teacher_start: Literal["paper", "released_code"] = "released_code"
    # Momentum buffers of a client. The paper mentions none that are kept; the released code keeps them from round to
    # round (train_main.py:210-282). Default: reset, since in section 3.2 a client only keeps its teacher.
    momentum: Literal["reset", "released_code"] = "reset"
    # Initial rounds with training only at clients with labels; their models are weighted by their number of labels. The
    # released code starts from a checkpoint of 6 such rounds ("--resume --from_labeled", README), which the paper does
    # not mention. Reduced profiles need these rounds.
    warm_start_rounds: Whole = 0

    needs = frozenset({"some_clients", "one_more_client", "every_client", "share"})

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        first = {"first": start} if self.teacher_start == "paper" else {}
        return fl.State(server={"student": start, **first})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        if world.round > self.warm_start_rounds:
            return self.federated_round(state, world)
        return self.warm_start(state, world), {}

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        """Run a round after the warm start."""
        raise NotImplementedError(f"{type(self).__name__} has no federated_round")

    @property
    def label_views(self) -> tuple[str, ...]:
        """Return the views of labelled images that `loss_on_labels` reads."""
        return ("weak",)

    def loss_on_labels(self, student: nn.Module, batch: fl.Batch) -> Tensor:
        """Compute the loss on a client's labels (Eq. 1), a scalar."""
        return labelled_loss(student, batch)

    def local_jobs(self, state: fl.State, world: fl.World, draws: Sequence[int]) -> list[fl.Job]:
        """Build the LocalTraining jobs of these clients, in their order.

        A client that occurs a second time in `draws` does not receive the model again.
        """
        labelled = fl.Stream.whole("labelled", self.batch_size, *self.label_views)
        unlabelled = fl.Stream.whole("unlabelled", self.batch_size, "weak", "weak2")
        jobs = []
        for place, client in enumerate(draws):
            before = draws[:place].count(client)
            receives = {"student": state.server["student"]} if not before else {}
            late = world.round > self.warm_start_rounds + 1  # in the first round after the warm start both are equal
            needs_teacher = world.unlabelled(client) and "teacher" not in state.clients.get(str(client), {})
            if "first" in state.server and needs_teacher and late and not before:
                receives["teacher"] = state.server["first"]
            update = self._update(world, client, again=client in draws[place + 1 :])
            data = world.streams(client, labelled=labelled, unlabelled=unlabelled)
            rate = "server" if world.labelled[client] else "client"
            jobs.append(world.job(client, update, receives, data, draw=before, learning_rate=rate))
        return jobs

    def warm_start(self, state: fl.State, world: fl.World) -> fl.State:
        """Run a round of FedAvg: up to C of the clients with labels train, on their labels only."""
        labelled = clients_with_labels(world)
        order = world.generator("warm start").permutation(len(labelled))[: world.C]
        clients = [labelled[i] for i in sorted(order)]
        receives = {"student": state.server["student"]}
        data = {"labelled": fl.Stream.whole("labelled", self.batch_size, *self.label_views)}
        outcomes = fit_each(world, clients, LabelledUpdate(method=self), receives, data, learning_rate="server")
        student = mean_of(outcomes, state.server["student"], world.labelled.__getitem__)
        first = {"first": student} if "first" in state.server else {}
        return fl.State(server={**state.server, "student": student, **first})

    def _update(self, world: fl.World, client: int, again: bool) -> "LabelledUpdate":
        return (MeanTeacherUpdate if world.unlabelled(client) else LabelledUpdate)(method=self, again=again)


@dataclass(frozen=True, kw_only=True)
class Member:
    """The properties of a client that decide its weight in an average."""

    size: int  # N_i  number of images
    # Whether it is a "labelled client" of section 3.1. A partially labelled client is not: "no weight scaling"
    # (section 4.3).
    labelled: bool


def member_of(world: fl.World, client: int) -> Member:
    return Member(size=world.sizes[client], labelled=not world.unlabelled(client))


def share_of_labelled(world: fl.World, share: float) -> Mapping[str, float]:
    """Return the metric of the labelled clients' total weight in the new global model.

    Return an empty dict if the federation has no labelled clients.
    """
    there_are = any(member_of(world, client).labelled for client in range(world.K))
    return {"aggregation/labelled_share": share} if there_are else {}


def weighed_by_share(members: Sequence[Member], share: float) -> list[float]:
    """Weigh each member so that labelled clients have `share` in total, and the others the rest.

    This is "about 50%" in section 4.2. Within each of the two kinds, weights are proportional to sizes; if all members
    are of one kind, their weights are their sizes. Weights are positive and not normalised.
    """
    total = {True: 0, False: 0}
    for member in members:
        total[member.labelled] += member.size
    if not total[True] or not total[False]:
        return [float(member.size) for member in members]
    shares = {True: share, False: 1.0 - share}
    return [shares[m.labelled] * m.size / total[m.labelled] for m in members]


@dataclass(frozen=True, kw_only=True)
class FedConsist(MeanTeacherMethod):
    """Fed-Consist: in each round C clients train, and their mean is the next global model."""

    # The total weight of the labelled clients; the best of {20 %, 30 %, 50 %, 70 %} (section 4.2). null: weights by
    # size, as if all clients are partially labelled (section 4.3).
    labelled_share: ShareBetween | None = 0.5
    # Weights within the cohort or, with `labelled_share`, within each of its two kinds of clients. equal: 1 / C each.
    weighting: Literal["size", "equal"] = added("size")

    def check(self, setup: fl.Setup) -> None:
        empty = [client for client in range(setup.K) if not setup.sizes[client]]
        if len(empty) >= setup.C:
            raise ConfigError(
                f"federation.C is {setup.C}, but {len(empty)} clients have no images and could form the whole cohort; "
                f"choose C above {len(empty)}"
            )

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        cohort = [client for client in world.cohort() if world.sizes[client]]
        weights, share = self.weights(cohort, world)
        average = RunningMean()
        for weight, outcome in zip(weights, world.fit(self.local_jobs(state, world, cohort)), strict=True):
            average.add(outcome.sends["student"], weight)
        server = {**state.server, "student": average.value()}
        return fl.State(server=server), share_of_labelled(world, share)

    def weights(self, cohort: Sequence[int], world: fl.World) -> tuple[list[float], float]:
        """Compute the weight of each client in the mean, not normalised, and the labelled clients' share of the sum."""
        members = [member_of(world, client) for client in cohort]
        if self.weighting == "equal":
            members = [replace(member, size=1) for member in members]
        share = self.labelled_share
        weights = [float(m.size) for m in members] if share is None else weighed_by_share(members, share)
        labelled = sum(weight for weight, member in zip(weights, members, strict=True) if member.labelled)
        return weights, labelled / sum(weights)


@dataclass(frozen=True, kw_only=True)
class LabelledUpdate(fl.LocalUpdate):
    """LocalTraining of a client that only trains on labels (Eq. 1)."""

    method: MeanTeacherMethod
    again: bool = False  # the client is drawn again later in this round, and keeps the received model for that job

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """Start from the received model.

        A client that was already drawn in this round starts from the model that it received then.
        """
        kept = private or {}
        student = received["student"] if "student" in received else kept["received"]
        return fl.Local(
            trainable={"student": student},
            momentum=kept.get("momentum"),
            private=private,
            notes={"received": student},
        )

    def loss(self, step: fl.Step) -> fl.Loss:
        loss = self.method.loss_on_labels(step.student, step.batch["labelled"])
        return loss, {"client/labelled_loss": loss}

    def finish(self, local: fl.Local) -> fl.Tree:
        """Return the student. If the client has nothing more to keep, its former client state is cleared."""
        keeps = self._keeps(local)
        local.private = None if not keeps and local.private is None else keeps
        return {"student": local.trainable["student"]}

    def _keeps(self, local: fl.Local) -> fl.Tree:
        momentum = {"momentum": local.momentum} if self.method.momentum == "released_code" else {}
        return {**momentum, **({"received": local.notes["received"]} if self.again else {})}


@dataclass(frozen=True, kw_only=True)
class MeanTeacherUpdate(LabelledUpdate):
    """LocalTraining of a client with unlabelled images, which may also have labelled ones (Eqs. 2 to 4)."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        """Start from the client's own teacher; in its first job, from the received teacher or model."""
        local = super().start(received, private, reader)
        kept = private or {}
        local.frozen = {"teacher": kept.get("teacher") or received.get("teacher") or local.trainable["student"]}
        local.notes["teacher_steps"] = torch.tensor(float(kept.get("teacher_steps", 0)), dtype=torch.float64)
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of Eqs. 2 and 3, plus Eq. 1 if the client has labels."""
        loss, aux = self.unlabelled_loss(step)
        if "labelled" in step.batch:
            supervised = self.method.loss_on_labels(step.student, step.batch["labelled"])
            return supervised + loss, {**aux, "client/labelled_loss": supervised}
        return loss, aux

    def unlabelled_loss(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of Eqs. 2 and 3, with the teacher on the view "weak" and the student on "weak2".

        All predictions of the teacher are used, whatever their confidence; the released .9 is only for logging.
        """
        views = step.batch["unlabelled"].views
        teacher_ND = torch.softmax(step.frozen["teacher"](views["weak"]), dim=-1)
        student_ND = torch.softmax(step.student(views["weak2"]), dim=-1)
        consistency = squared_error_loss(student_ND, sharpen(teacher_ND, self.method.temperature))
        labels_N = teacher_ND.argmax(dim=-1)
        kept_N = torch.ones_like(labels_N, dtype=torch.bool)
        aux = {"client/unlabelled_loss": consistency, "labels_N": labels_N, "kept_N": kept_N}
        return self.method.unlabelled_weight * consistency, aux

    def after_step(self, step: fl.Step) -> None:
        """Update the teacher by Eq. 4, where alpha is the student's share.

        In the released code the share is 1/1, 1/2, 1/3 ... until it falls to alpha (local_unsupervised.py:24-27: the
        teacher keeps min(1 - 1 / (step + 1), .999)). Steps are counted over all rounds of the client.
        """
        alpha = self.method.alpha
        steps = step.notes["teacher_steps"]
        share = alpha if self.method.ema_warm_up == "paper" else (1 / (steps + 1)).clamp(min=alpha)
        ema_(step.frozen["teacher"], step.student, decay=1 - share, lerp=True)
        step.notes["teacher_steps"] = steps + 1

    def _keeps(self, local: fl.Local) -> fl.Tree:
        steps = (local.private or {}).get("teacher_steps", 0) + local.steps
        return {**super()._keeps(local), "teacher": local.frozen["teacher"], "teacher_steps": steps}
