"""FedIRM: clients without labels match the class relations of labelled clients.

Liu, Yang, Dou, Heng. Federated Semi-supervised Medical Image Classification via Inter-client Relation Matching. MICCAI
2021 (arXiv:2106.08600). Released code: liuquande/FedIRM. RSCFed compares with it (Tables 1 and 3, Figure 2). Numbers
below are from the released code, except if they name a different source. The paper's text was not available, so that no
equation is cited.

A labelled client trains on its labels. Then it computes the mean logits of its model over the images of each class, and
softens each of them with a softmax at temperature tau: row c of this relation matrix shows which classes the model
finds similar to class c. The server averages these matrices. A client without labels has a mean teacher (`fed_consist`,
without sharpening). It also computes the matrix of each batch from confident pseudo-labels, and minimises the mean of
the two Kullback-Leibler divergences between this matrix and the server's. The confidence of a pseudo-label is the
entropy of the mean of several forward passes with dropout.

Deviations: reports/rscfed/departures.md, entries 16 and 17. In addition:
1. The labelled clients of a cohort train before the others, which therefore receive the matrix of the same round. In a
   cohort without labelled clients the last matrix is used; before the first one, relations are not matched.
2. A labelled client's matrix is computed by its trained model in evaluation mode, on all its images without
   augmentation.
3. A class without an image at a client or in a batch has no row: the mean is over the clients that have this row, and a
   row that is missing on either side adds nothing to the loss. The loss is still divided by the number of classes.
4. A network without dropout has no additional passes, since they would all equal the pass that trains.
5. Run records from before 2026-11-25 have different values of the five fields below that are declared with `before`.

Legend: row c of relation_DD is a distribution, or zeros if the class has no image.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from benchmark.config import Count, NotNegative, Positive, Share, ShareAbove0, ShareBelow1, ShareBetween, Whole, added
from benchmark.errors import ConfigError
from benchmark.losses import DROPOUTS, kept_rows, one_hot, sharpen, squared_error_loss, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.fed_consist import FedConsist, LabelledUpdate, MeanTeacherUpdate, share_of_labelled
from benchmark.methods.shared import RunningMean


@dataclass(frozen=True, kw_only=True)
class FedIRM(FedConsist):
    """FedIRM: in each round C clients train, labelled clients first, and are averaged."""

    alpha: ShareAbove0 = 0.01  # the student's share in the update of the teacher; released code: EMA .99
    temperature: Positive = 1.0  # the teacher's prediction is not sharpened
    unlabelled_weight: NotNegative = 15.0  # lambda of both losses, after the ramp (local_unsupervised.py:83-112)
    # null: FedAvg by size ("origi."); .5 for all labelled clients together is RSCFed's "weight adju.".
    labelled_share: ShareBetween | None = None
    ramp_rounds: Whole = 30  # lambda grows as exp(-5 (1 - t / 30)^2) over t = 0, 1, ...; 0 for no ramp
    relation_temperature: Positive = 2.0  # tau
    passes: Count = 10  # T  passes with dropout
    # h, in nats: images with an entropy below it contribute to the relations of their batch. With the paper's 5 and 7
    # classes these are all images (ln 5 = 1.6, ln 7 = 1.9); with ten classes (2.3) some are left out.
    uncertainty: NotNegative = 2.0
    least_confidence: Share = 0.3  # smallest probability of such an image's label; with 0, only the entropy decides
    # The model that measures the uncertainty. student: the mean of the logits of passes + 1 passes in training mode, on
    # the view that it trains on; label and confidence are from the pass that trains (local_unsupervised.py:83-103).
    # teacher: the mean of the probabilities of its passes on its view, which also gives label and confidence.
    asked: Literal["student", "teacher"] = added("student", before="teacher")
    # The first round of the ramp. start: the first round of the run (train_main.py:150); joining: the first round of
    # clients without labels.
    ramp_from: Literal["start", "joining"] = added("start", before="joining")
    smoothing: ShareBelow1 = added(0.1, before=0.0)  # label smoothing, spread over all classes (utils/losses.py:43)
    # The number of views of a labelled image; the losses of two views are added (local_supervised.py:56-60).
    labelled_views: Literal[1, 2] = added(2, before=1)
    relation_weight: NotNegative = added(1.0, before=2.0)  # of L_IRM; L_c has weight 1 (local_unsupervised.py:112)

    needs = frozenset({"some_clients", "one_more_client"})  # settings with clients that know all their labels

    def check(self, setup: fl.Setup) -> None:
        super().check(setup)
        if not setup.model.dropout and self.passes != type(self).passes:
            raise ConfigError(
                f"method.passes is {self.passes}, which has no effect with a network without dropout; type "
                f"--method.passes={type(self).passes}"
            )

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        cohort = [client for client in world.cohort() if world.sizes[client]]
        cohort.sort(key=lambda client: not world.labelled[client])  # labelled clients first
        weights, share = self.weights(cohort, world)
        weight = dict(zip(cohort, weights, strict=True))
        average = RunningMean()
        relations = []
        jobs = dict(zip(cohort, self.local_jobs(state, world, cohort), strict=True))
        labelled = [client for client in cohort if world.labelled[client]]
        asked = [world.job(client, RelationUpdate(method=self), {}, draw=1) for client in labelled]
        for outcome in world.fit([*(jobs[client] for client in labelled), *asked]):
            if "relation" in outcome.sends:
                relations.append(outcome.sends["relation"])
            else:
                average.add(outcome.sends["student"], weight[outcome.key.client])
        relation = mean_relation(relations) if relations else state.server.get("relation")
        known = {} if relation is None else {"relation": relation}
        others = []
        for job in (jobs[client] for client in cohort if not world.labelled[client]):
            update = replace(cast(RelationMatching, job.update), ramp=self.ramp(world))
            others.append(replace(job, update=update, receives={**job.receives, **known}))
        for outcome in world.fit(others):
            average.add(outcome.sends["student"], weight[outcome.key.client])
        server = {**state.server, "student": average.value(), **known}
        return fl.State(server=server), share_of_labelled(world, share)

    def ramp(self, world: fl.World) -> float:
        """Compute the factor of lambda in this round."""
        first = 1 if self.ramp_from == "start" else self.warm_start_rounds + 1
        t = min(world.round - first, self.ramp_rounds)
        return math.exp(-5.0 * (1.0 - t / self.ramp_rounds) ** 2) if self.ramp_rounds else 1.0

    @property
    def label_views(self) -> tuple[str, ...]:
        return ("weak", "weak2")[: self.labelled_views]

    def loss_on_labels(self, student: nn.Module, batch: fl.Batch) -> Tensor:
        """Compute the cross-entropy with smoothed labels, summed over the views; a scalar."""
        losses = [supervised_loss(student(batch.views[v]), batch.known_N, self.smoothing) for v in self.label_views]
        return torch.stack(losses).sum()

    def _update(self, world: fl.World, client: int, again: bool) -> LabelledUpdate:
        update = LabelledAndKept if world.labelled[client] else RelationMatching
        return update(method=self, again=again)


def relation_matrix(logits_ND: Tensor, labels_N: Tensor, kept_N: Tensor, temperature: float) -> Tensor:
    """Compute relation_DD. Its row c is softmax(v_c / tau) with the mean logits v_c of label c.

    Only the images of `kept_N` count. A row is zero if there is no such image.
    """
    one_hot_ND = one_hot(labels_N, logits_ND.shape[1]).to(logits_ND.dtype)
    logits_ND, one_hot_ND = kept_rows(logits_ND, kept_N), kept_rows(one_hot_ND, kept_N)
    counts_D1 = one_hot_ND.sum(dim=0)[:, None]
    means_DD = one_hot_ND.T @ logits_ND / counts_D1.clamp(min=1.0)
    return torch.softmax(means_DD / temperature, dim=-1) * (counts_D1 > 0)


def mean_relation(relations: Iterable[Tensor]) -> Tensor:
    """Compute each row's mean over the matrices that have this row."""
    stacked_MDD = torch.stack(list(relations))
    there_MD1 = (stacked_MDD.sum(dim=-1, keepdim=True) > 0).to(stacked_MDD.dtype)
    return stacked_MDD.sum(dim=0) / there_MD1.sum(dim=0).clamp(min=1.0)


def relation_loss(mine_DD: Tensor, theirs_DD: Tensor) -> Tensor:
    """Compute the mean of the two KL divergences between the rows that both matrices have, a scalar.

    It is summed over these rows and divided by D. Released code: kd_loss of confuse_matrix.py:28-34.
    """
    both_D = (mine_DD.sum(dim=-1) > 0) & (theirs_DD.sum(dim=-1) > 0)
    mine, theirs = kept_rows(mine_DD, both_D), kept_rows(theirs_DD, both_D)
    tiny = torch.finfo(mine_DD.dtype).tiny  # a probability of 0 in float32
    both = (theirs - mine) * (theirs.clamp(min=tiny).log() - mine.clamp(min=tiny).log())
    return both.sum() / len(mine_DD) / 2.0


@torch.no_grad()
def several_passes(network: nn.Module, images_NCHW: Tensor, passes: int) -> Tensor | None:
    """Compute logits_PND of several passes with dropout. All other modules stay in their mode.

    Return None if the network has no dropout.
    """
    modes = {m: m.training for m in network.modules() if isinstance(m, DROPOUTS) and m.p > 0.0}
    if not modes:
        return None
    for dropout in modes:
        dropout.train()
    try:
        return torch.stack([network(images_NCHW) for _ in range(passes)])
    finally:
        for dropout, training in modes.items():
            dropout.train(training)


@dataclass(frozen=True, kw_only=True)
class LabelledAndKept(LabelledUpdate):
    """`LabelledUpdate` after which the client keeps the trained model for the job that computes its relations."""

    def _keeps(self, local: fl.Local) -> fl.Tree:
        return {**super()._keeps(local), "trained": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class RelationUpdate(fl.LocalUpdate):
    """Local work that trains nothing and sends the relations of the model that the client has just trained.

    The client then deletes this model.
    """

    method: FedIRM

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        kept = dict(private or {})
        trained = kept.pop("trained", None)
        labels_N = reader.labels("labelled")
        if trained is None or labels_N is None:
            return None
        logits_ND = reader.predict(trained, "labelled", "plain")
        all_N = torch.ones_like(labels_N, dtype=torch.bool)
        relation_DD = relation_matrix(logits_ND, labels_N, all_N, self.method.relation_temperature)
        return fl.Local(trainable={}, private=kept, notes={"relation": relation_DD})

    def finish(self, local: fl.Local) -> fl.Tree:
        return local.notes


@dataclass(frozen=True, kw_only=True)
class RelationMatching(MeanTeacherUpdate):
    """LocalTraining of a client without labels, on the mean teacher's squared error and the relations of each batch."""

    method: FedIRM
    # The factor of lambda in this round. It is left out of the repr, so that a plan counts all rounds' jobs together.
    ramp: float = field(default=1.0, repr=False)

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().start(received, private, reader)
        local.notes["ramp"] = torch.tensor(self.ramp, dtype=torch.float64)
        return local

    def unlabelled_loss(self, step: fl.Step) -> fl.Loss:
        """Compute lambda ramp (L_c + L_IRM), where L_IRM includes `relation_weight`."""
        method = self.method
        student = step.student
        teacher = step.frozen["teacher"]
        views = step.batch["unlabelled"].views
        teacher_ND = torch.softmax(teacher(views["weak"]), dim=-1)
        logits_ND = student(views["weak2"])
        student_ND = torch.softmax(logits_ND, dim=-1)
        consistency = squared_error_loss(student_ND, sharpen(teacher_ND, method.temperature))
        if method.asked == "student":
            mean_ND = label_ND = student_ND.detach()
            if (passed_PND := several_passes(student, views["weak2"], method.passes + 1)) is not None:
                mean_ND = torch.softmax(passed_PND.mean(dim=0), dim=-1)
        else:
            passed_PND = several_passes(teacher, views["weak"], method.passes)
            mean_ND = label_ND = teacher_ND if passed_PND is None else torch.softmax(passed_PND, dim=-1).mean(dim=0)
        entropy_N = -torch.xlogy(mean_ND, mean_ND).sum(dim=-1)
        confidence_N, labels_N = label_ND.max(dim=-1)
        kept_N = (entropy_N < method.uncertainty) & (confidence_N >= method.least_confidence)
        relations = consistency.new_zeros(())
        if "relation" in step.received:
            mine_DD = relation_matrix(logits_ND, labels_N, kept_N, method.relation_temperature)
            relations = method.relation_weight * relation_loss(mine_DD, step.received["relation"].to(mine_DD))
        aux = {"client/unlabelled_loss": consistency, "client/relation_loss": relations}
        weight = (method.unlabelled_weight * step.notes["ramp"]).to(consistency)
        loss = weight * (consistency + relations)
        return loss, {**aux, "labels_N": labels_N, "kept_N": kept_N}
