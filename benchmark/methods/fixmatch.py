"""FixMatch, centralised: one holder of all the data trains on labels and on confident pseudo-labels in every step.

Sohn et al. FixMatch: Simplifying Semi-supervised Learning with Consistency and Confidence. NeurIPS 2020, section 2.2.
SSFL compares with it in Table G.1. Departures: no exponential moving average of the weights (SSFL's rows 38-40 of
Table A.2 do not say that one was used); momentum is kept from round to round, since a round is only a reporting unit.
"""

from dataclasses import dataclass

import torch

from benchmark.config import Count, NotNegative, Share, Whole
from benchmark.losses import loss_of_kept, pseudo_labels
from benchmark.methods.protocol import (
    CENTRAL,
    Batches,
    Job,
    Key,
    Limit,
    Loss,
    Method,
    Networks,
    Round,
    State,
    Stream,
    World,
)  # fmt: skip
from benchmark.methods.shared import (
    ServerUpdate,
    StudentUpdate,
    labelled_loss,
    predict_weak,
)


@dataclass(frozen=True, kw_only=True)
class FixMatch(Method):
    """One job that holds all the data; `T` local steps a round."""

    threshold: Share = 0.95  # tau
    unlabelled_weight: NotNegative = 1.0  # lambda_u
    batch_size: Count = 64  # B
    unlabelled_ratio: Count = 7  # mu
    warm_start_rounds: Whole = 0  # rounds on labels alone first, to compare with SSFL's reduced profiles

    needs = frozenset({"server", "everywhere"})

    def round(self, state: State, world: World) -> Round:
        labelled = Stream(part="labelled", batch_size=self.batch_size, views=("weak",))
        unlabelled = Stream(
            part="unlabelled", batch_size=self.batch_size * self.unlabelled_ratio, views=("weak", "strong")
        )
        warm = world.round <= self.warm_start_rounds
        job = Job(
            key=Key(client=CENTRAL),
            update=ServerUpdate(keeps_momentum=True) if warm else FixMatchUpdate(method=self, keeps_momentum=True),
            receives={"student": state.server["student"]},
            data={"labelled": labelled} if warm else {"labelled": labelled, "unlabelled": unlabelled},
            limit=Limit(steps=world.T),
            keeps="central",
        )
        (outcome,) = world.fit([job])
        return State(server={"student": outcome.sends["student"]}), {}


@dataclass(frozen=True, kw_only=True)
class FixMatchUpdate(StudentUpdate):
    """Supervised loss on weak labelled views + lambda_u x consistency loss on the unlabelled ones."""

    method: FixMatch

    def loss(self, trainable: Networks, frozen: Networks, batch: Batches, draw: torch.Generator) -> Loss:
        network, views = trainable["student"], batch["unlabelled"].views
        weak_ND = predict_weak(network, views["weak"], "train")
        labels_N, _, kept_N = pseudo_labels(weak_ND, self.method.threshold)
        supervised = labelled_loss(network, batch["labelled"])
        consistency = loss_of_kept(network, views["strong"], labels_N, kept_N)
        aux = {"server/loss": supervised.detach(), "client/loss": consistency.detach()}
        loss = supervised + self.method.unlabelled_weight * consistency
        return loss, {**aux, "labels_N": labels_N, "kept_N": kept_N}
