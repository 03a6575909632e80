"""FedSwitch: in each round the server chooses the teacher or the student as the labeller.

Zhao, Ghosh, Bharadwaj, Ma. When does the student surpass the teacher? Federated Semi-supervised Learning with
Teacher-Student EMA. arXiv:2301.10114. Section 4, Eqs. 1-5, Algorithms 1 and 2. No released code.

Clients measure the divergence of the teacher's and the student's predictions on their batches from the uniform
distribution (Eq. 2). If the teacher's mean divergence is nearer to the prior beta than the student's (Eq. 3), the
teacher is sent in the next round. It then labels images, and follows the local student by an EMA that is not sent back.

Deviations: reports/fedswitch/departures.md, entries 1 to 5, and the deviations of `fedprox_fixmatch`. In addition:
1. A client without unlabelled images has no divergences. The means are over the clients that sent divergences; if no
   client did, the server keeps its last values.
2. The teacher is in evaluation mode; T_0 = S_0, and T = S until the end of a warm start.
3. D^S is measured on the student's training pass on the strong view.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmark.config import NotNegative, Share, added
from benchmark.errors import ConfigError
from benchmark.losses import consistency_loss, kept_rows, one_hot, pseudo_labels
from benchmark.methods import protocol as fl
from benchmark.methods.fedprox_fixmatch import ProximalFixMatchUpdate, TeacherStudent
from benchmark.methods.shared import RunningMean, ema, sent

Prediction = Literal["mean_softmax", "histogram"]


# The distribution of each image, (N, D) in float64; their mean is the distribution of the batch.
DISTRIBUTIONS: Mapping[Prediction, Callable[[Tensor], Tensor]] = {
    "mean_softmax": lambda logits_ND: torch.softmax(logits_ND.double(), dim=-1),
    "histogram": lambda logits_ND: one_hot(logits_ND.argmax(dim=-1), logits_ND.shape[-1]).double(),
}


def kl_from_uniform(share_D: Tensor) -> Tensor:
    """Compute D_KL(share || uniform) of Eq. 2 in nats, a scalar: 0 for equal shares, ln D for a single class."""
    return math.log(len(share_D)) + torch.special.xlogy(share_D, share_D).sum()


@dataclass(frozen=True, kw_only=True)
class FedSwitch(TeacherStudent):
    """FedSwitch: adaptive switching and local teacher adaptation (section 4)."""

    # beta  the expected divergence of the clients' labels: 0 for balanced classes, ln D for one class per client.
    # Default: balanced, as in the batch-IID columns of Table 2; the paper does not give its values.
    beta: NotNegative = 0.0
    local_ratio: Share | None = None  # alpha of the local teacher per batch; `ratio` if None, as in the paper
    # Algorithms 1 and 2 send the teacher exactly if Eq. 3 does not. Default: Eq. 3, which agrees with the text.
    # "teacher", "student": this model labels in every round, without switching.
    rule: Literal["equation", "algorithm", "teacher", "student"] = "equation"
    # Default: the mean of Eq. 2. A sum grows with the number of a client's images, so that no beta would suit clients
    # of different sizes.
    divergence: Literal["mean", "sum"] = "mean"
    prediction: Prediction = "mean_softmax"  # default: it depends on the confidence, and is meaningful for one image
    # "kept": only images that the measured model labels with a confidence of at least tau; a batch without such images
    # is left out. Default: all, since section 4 refers to the N examples of the batch.
    counted: Literal["all", "kept"] = added("all")
    # "from_student": a teacher that is not sent begins with the received student, and is only measured.
    # "keep_last": the server keeps the D^T of the last round with a teacher, which saves the clients a forward pass.
    # Default: from_student, since the algorithm boxes accumulate D^T in every round.
    unsent_teacher: Literal["from_student", "keep_last"] = "from_student"
    # The labeller of the first round. T_0 = S_0, so that the choices only differ in the mode of the network.
    first_round: Literal["teacher", "student"] = "teacher"
    # The mode of the student if it is the labeller, as in FedProx-FixMatch.
    pseudo_label_mode: Literal["train", "eval"] = "train"

    # beta assumes that all images of a client belong to the classes that are predicted.
    needs = TeacherStudent.needs - {"open"}
    sends_by_reports = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_round == "student" and self.unsent_teacher == "keep_last":
            raise ConfigError(
                "method.first_round is 'student', which with unsent_teacher 'keep_last' never measures and so never "
                "sends a teacher; choose 'teacher'"
            )

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        return fl.State(server={"student": start, "teacher": start, "kl_teacher": None, "kl_student": None})

    def sends_teacher(self, kl_teacher: float | None, kl_student: float | None) -> bool:
        """Return whether the server sends the teacher, by Eq. 3 or its opposite on the last round's D^T and D^S.

        If a divergence was not measured yet, `first_round` decides. With `rule` teacher or student the result is always
        the same.
        """
        if self.rule in ("teacher", "student"):
            return self.rule == "teacher"
        if kl_teacher is None or kl_student is None:
            return self.first_round == "teacher"
        teacher_is_nearer = abs(kl_teacher - self.beta) < abs(kl_student - self.beta)
        return teacher_is_nearer == (self.rule == "equation")

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        server = state.server
        has_teacher = self.sends_teacher(server["kl_teacher"], server["kl_student"])
        update = FedSwitchUpdate(
            method=self,
            labeller="teacher" if has_teacher else "student",
            pseudo_label_mode=self.pseudo_label_mode,
            local_ratio=self.ratio if self.local_ratio is None else self.local_ratio,
        )
        received = {name: server[name] for name in (("student", "teacher") if has_teacher else ("student",))}
        average = RunningMean()
        sums: dict[str, list[float]] = {"kl_teacher": [], "kl_student": []}
        for _, sends in sent(world.fit(self.client_jobs(world, update, received))):
            average.add(sends["student"])
            for name, values in sums.items():
                values += [sends[name]] if name in sends else []
        student = self.server_update(average.value() if average.total else server["student"], world)
        divergences = {name: sum(v) / len(v) if v else server[name] for name, v in sums.items()}
        known = {f"fedswitch/{name}": value for name, value in divergences.items() if value is not None}
        teacher = ema(server["teacher"], student, self.ratio)
        after = fl.State(server={"student": student, "teacher": teacher, **divergences})
        return after, {"fedswitch/sent_teacher": float(has_teacher), **known}


@dataclass(frozen=True, kw_only=True)
class FedSwitchUpdate(ProximalFixMatchUpdate):
    """Local work of a client (ClientUpdate of Algorithms 1 and 2) that also measures both divergences."""

    method: FedSwitch

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().start(received, private, reader)
        if self.method.unsent_teacher == "from_student":
            local.frozen.setdefault("teacher", received["student"])
        return local

    def _consistency(self, step: fl.Step) -> fl.Loss:
        """Compute L_u and the divergences. All strong views pass the network, whether or not they are selected."""
        views = step.batch["unlabelled"].views
        frozen = step.frozen
        weak_ND = self._weak_logits(step)
        labels_N, _, kept_N = pseudo_labels(weak_ND, self.method.threshold)
        strong_ND = step.student(views["strong"])
        loss = consistency_loss(strong_ND, labels_N, kept_N)
        reported = {"client/consistency_loss": loss, "labels_N": labels_N, "kept_N": kept_N}
        if "teacher" in frozen and self.labeller == "student":  # the teacher is only measured
            with torch.no_grad():
                weak_ND = frozen["teacher"](views[self.method.seen_view])
        return loss, {**reported, **self.divergences(strong_ND.detach(), weak_ND if "teacher" in frozen else None)}

    def divergences(self, student_ND: Tensor, teacher_ND: Tensor | None) -> dict[str, Tensor]:
        """Compute the terms of Eq. 2 for a batch, the student's on the strong view, the teacher's on the labeller's."""
        teachers = {} if teacher_ND is None else self._divergence("kl_teacher", teacher_ND)
        return {**self._divergence("kl_student", student_ND), **teachers}

    def _divergence(self, name: str, logits_ND: Tensor) -> dict[str, Tensor]:
        """Compute the divergence of one model on a batch.

        If only confident images count, also return 1 or 0: whether there is such an image.
        """
        share_ND = DISTRIBUTIONS[self.method.prediction](logits_ND)
        if self.method.counted == "all":
            return {f"client/{name}": kl_from_uniform(share_ND.mean(dim=0))}
        sure_N = torch.softmax(logits_ND, dim=-1).max(dim=-1).values >= self.method.threshold
        count = sure_N.sum()
        share_D = kept_rows(share_ND, sure_N).sum(dim=0) / count.clamp(min=1)
        counts = (count > 0).double()
        return {f"client/{name}": kl_from_uniform(share_D) * counts, f"client/{name}_batches": counts}

    def finish(self, local: fl.Local) -> fl.Tree:
        """Return the student, and the measured divergences as numbers."""
        measured = {}
        for name in ("kl_teacher", "kl_student"):
            total = local.totals.get(f"client/{name}")
            batches = local.totals.get(f"client/{name}_batches", local.steps)
            if total is not None and batches:
                measured[name] = total / batches if self.method.divergence == "mean" else total
        return {**super().finish(local), **measured}
