"""CBAFed: class-balanced thresholds for pseudo-labels, and averages with earlier weights.

Li, Li, Wang. Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning. CVPR 2023. Its text was
not available, so that no equation is cited; numbers are from the released code, minglllli/CBAFed, 4f2eef4.

A client without labels labels its images once, from one weak view in evaluation mode. It trains on images above the
threshold of their class, and on other images with a rare second-best class, which becomes their label. The server
counts the classes of a round's labels: the more frequent a class is, the higher its threshold in the next round.
Labelled clients train longer. Both in their local work and at the server, the weights are averaged at regular intervals
with the weights of the previous average.

Deviations: reports/rscfed/departures.md, entries 25 to 28. In addition:
1. Training draws new views and a new order of the images. Released code: the views and the order of labelling, without
   batches of one image (local_PL.py:123-261).
2. A client that selects no image skips the round. Released code: a division by zero.
3. The first rounds, on labels only, consist of jobs of `labelled_epochs_each` passes. Released code: one job of 501
   passes, 1,001 on CIFAR-100 (local_supervised.py:87-180).
4. Labelled images count once. Released code: ten times on ISIC 2018 (train_main.py:283-415).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmark.config import Count, Share, ShareBelow1, Whole
from benchmark.losses import supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods import shared


@dataclass(frozen=True, kw_only=True)
class CBAFed(fl.Method):
    """CBAFed: clients train on labels or pseudo-labels, and are averaged by the number of images that they train on."""

    base: Share = 0.84  # T_base    in the thresholds tau_c = min(pi_c + base - std(pi), cap)
    cap: Share = 0.95  # T_upper   .90 on SVHN and ISIC 2018
    tail: Share = 0.03  # T_lower   classes with a smaller share are rare; with 0, second-best classes are never used
    labelled_epochs_each: Count = 11  # passes of a labelled client per pass of a client without labels
    local_residual: ShareBelow1 = 0.8  # the share of the earlier weights in a labelled client's averages
    global_residual: ShareBelow1 = 0.5  # the share of the earlier weights in the server's averages
    residual_every: Count = 5  # passes at a client, and rounds at the server, between two averages
    batch_size: Count = 64
    # The labels that pi counts. The abstract has "the empirical distribution of all training data in local clients",
    # and the code also adds the labels of labelled clients to the pseudo-labels (train_main.py). Default: all, as in
    # both.
    histogram: Literal["all", "pseudo_labels"] = "all"
    # pi in the first round with pseudo-labels: the classes of the labelled clients (in the released code from a file
    # that only exists for SVHN: partition_strategy/svhn_beta0.8_sup.pth), or equal shares. Default: the code. Without
    # initial rounds on labels there are no counts, and shares are equal.
    first_histogram: Literal["released_code", "uniform"] = "released_code"
    # The released code keeps a client's momentum buffers for its next round (train_main.py:283-415). Default: reset,
    # because the setting is that of `rscfed`, which resets them.
    momentum: Literal["reset", "released_code"] = "reset"
    warm_start_rounds: Whole = 0  # initial rounds on labels only; the released 501 passes are about 46 rounds of 11

    needs = frozenset({"some_clients", "one_more_client"})

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        return fl.State(server={"student": start, "recorded": start, "counts": None})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        recorded, counts_D = state.server["recorded"], state.server["counts"]
        is_warm = world.round <= self.warm_start_rounds
        since = world.round - self.warm_start_rounds
        clients = shared.labelled_cohort(world) if is_warm else world.cohort()
        average = shared.RunningMean()
        counted = []
        on_labels = 0.0
        for client, sends in shared.sent(world.fit([self._job(client, state, world) for client in clients])):
            has_labels = bool(world.labelled[client])
            of_client_D = sends["counts"]
            average.add(sends["student"], float(of_client_D.sum()))
            on_labels += has_labels * float(of_client_D.sum())
            if is_warm or self.histogram == "all" or not has_labels:
                counted.append(of_client_D)
        if not average.total:
            return state, {}
        student = average.value()
        if world.round <= max(1, self.warm_start_rounds):
            recorded = student
        elif since > 1 and (since - 1) % self.residual_every == 0:
            student = recorded = shared.ema(recorded, student, decay=self.global_residual)
        if counted and not (is_warm and self.first_histogram == "uniform"):
            counts_D = torch.stack(counted).sum(dim=0)
        server = {"student": student, "recorded": recorded, "counts": counts_D}
        return fl.State(server=server), {"aggregation/labelled_share": on_labels / average.total}

    def _job(self, client: int, state: fl.State, world: fl.World) -> fl.Job:
        """Build the job of a client, on labels or on pseudo-labels; no client has both."""
        labels = world.labelled[client]
        keeps = self.momentum == "released_code"
        receives = {"student": state.server["student"]}
        limit = world.limit
        if labels:
            a_pass = limit.steps or (limit.epochs or 1) * -(-labels // self.batch_size)
            update = LabelledUpdate(method=self, keeps_momentum=keeps, steps_a_pass=a_pass)
            data = {"labelled": fl.Stream.whole("labelled", self.batch_size)}
            longer = limit.times(self.labelled_epochs_each)
            return world.job(client, update, receives, data, limit=longer, learning_rate="server")
        if state.server["counts"] is not None:
            receives["counts"] = state.server["counts"]
        data = {"unlabelled": fl.Stream.whole("unlabelled", self.batch_size)}
        return world.job(client, PseudoLabelUpdate(method=self, keeps_momentum=keeps), receives, data)


@dataclass(frozen=True, kw_only=True)
class LabelledUpdate(shared.SupervisedUpdate):
    """Local work on labels: cross-entropy, and averages with the weights of earlier passes.

    Source: local_supervised.py:87-180. Like `PseudoLabelUpdate` it sends the weights and the counts of the classes that
    it trained on. After the first pass the weights are recorded. After the 6th, the 11th pass and so on
    (`residual_every`), they are averaged with the recorded weights, and the average is recorded. Each job starts
    without recorded weights.
    """

    method: CBAFed
    steps_a_pass: int

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        labels_N = reader.labels("labelled")
        assert labels_N is not None
        D = len(reader.on_noise(received["student"]))  # the number of classes
        local.frozen = {"recorded": received["student"]}
        local.notes["counts"] = torch.bincount(labels_N, minlength=D)
        return local

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), **local.notes}

    def after_step(self, step: fl.Step) -> None:
        passes, inside = divmod(step.number, self.steps_a_pass)
        if inside:
            return
        student, recorded = step.student, step.frozen["recorded"]
        if passes == 1:
            shared.ema_(recorded, student, decay=0.0)
        elif (passes - 1) % self.method.residual_every == 0:
            shared.ema_(recorded, student, decay=self.method.local_residual)
            shared.ema_(student, recorded, decay=0.0)


@dataclass(frozen=True, kw_only=True)
class PseudoLabelUpdate(shared.StudentUpdate):
    """Local work on pseudo-labels, which a client computes when it receives the model (local_PL.py)."""

    method: CBAFed

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """Label all images once. A client that selects no image trains nothing."""
        logits_ND = reader.predict(received["student"], "unlabelled", "weak")
        D = logits_ND.shape[1]
        counts_D = received.get("counts", torch.ones(D)).to(logits_ND.device)
        labels_N, kept_N = balanced_labels(logits_ND, counts_D, self.method)
        local = shared.with_own_labels(self.begin(received, private, reader), labels_N, kept_N)
        local.notes["counts"] = torch.bincount(labels_N[kept_N], minlength=D)
        return local

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), **local.notes} if local.trainable else {}

    def loss(self, step: fl.Step) -> fl.Loss:
        images = step.batch["unlabelled"]
        loss = supervised_loss(step.student(images.views["weak"]), images.given_N)
        return loss, {"client/unlabelled_loss": loss}


def balanced_labels(logits_ND: Tensor, counts_D: Tensor, method: CBAFed) -> tuple[Tensor, Tensor]:
    """Compute labels_N and kept_N: the best class above its threshold, or a rare second-best class.

    Shares are relative to ten classes, as in the released code: with D classes pi sums to D/10. Their standard
    deviation has the denominator D - 1.
    """
    D = len(counts_D)
    share_D = counts_D.double() / counts_D.sum() * (D / 10)
    tau_D = (share_D + method.base - share_D.std()).clamp(max=method.cap)
    probs_ND = torch.softmax(logits_ND, dim=-1)
    confidence_N, best_N = probs_ND.max(dim=-1)
    second_N = probs_ND.scatter(1, best_N[:, None], -1.0).argmax(dim=-1)
    sure_N = confidence_N > tau_D[best_N]
    rare_N = ~sure_N & (share_D < method.tail)[second_N]
    return torch.where(rare_N, second_N, best_N), sure_N | rare_N
