"""FixMatch, centralised: one holder of all the data trains on labels and on confident pseudo-labels in every step.

Sohn et al. FixMatch: Simplifying Semi-supervised Learning with Consistency and Confidence. NeurIPS 2020, section 2.2.
SSFL compares with it in Table G.1. Departures: no exponential moving average of the weights (SSFL's rows 38-40 of
Table A.2 do not say that one was used); momentum is kept from round to round, since a round is only a reporting unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from benchmark.losses.consistency import pseudo_labels
from benchmark.losses.kept import loss_of_kept
from benchmark.losses.supervised import supervised_loss
from benchmark.methods.objectives import ServerUpdate, StudentUpdate, check_counts, check_threshold, predict_weak
from benchmark.methods.protocol import CENTRAL, Batch, Job, Key, Limit, Networks, Setup, State, Stream, Weights, World


@dataclass(frozen=True, kw_only=True)
class FixMatchUpdate(StudentUpdate):
    """Supervised loss on weak labelled views + lambda_u x consistency loss on the unlabelled ones."""

    mean_over_images: ClassVar[bool] = True
    passes: ClassVar[Mapping[str, tuple[int, int]]] = {"unlabelled/weak": (1, 0)}  # without, with gradient; for plans

    threshold: float = 0.95
    unlabelled_weight: float = 1.0

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        network, labelled, unlabelled = trainable["student"], batch["labelled"], batch["unlabelled"]
        assert labelled.labels_N is not None
        weak_logits_ND = predict_weak(network, unlabelled.views["weak"], "train")
        labels_N, _, kept_N = pseudo_labels(weak_logits_ND, self.threshold)
        supervised = supervised_loss(network(labelled.views["weak"]), labelled.labels_N)
        consistency = loss_of_kept(network, unlabelled.views["strong"], labels_N, kept_N)
        aux = {"server/loss": supervised.detach(), "client/loss": consistency.detach()}
        loss = supervised + self.unlabelled_weight * consistency
        return loss, {**aux, "labels_N": labels_N, "kept_N": kept_N}


@dataclass(frozen=True, kw_only=True)
class FixMatch:
    """One job that holds all the data; `T` local steps a round."""

    threshold: float = 0.95  # tau
    unlabelled_weight: float = 1.0  # lambda_u
    batch_size: int = 64  # B
    unlabelled_ratio: int = 7  # mu
    warm_start_rounds: int = 0  # rounds on labels alone first, to compare with SSFL's reduced profiles

    needs = frozenset({"server", "everywhere"})

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def check(self, setup: Setup) -> None:
        check_counts(self, batch_size=1, unlabelled_ratio=1, warm_start_rounds=0)

    def init(self, setup: Setup) -> State:
        return State(server={"student": setup.initial_weights()})

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        labelled = Stream(part="labelled", batch_size=self.batch_size, views=("weak",))
        unlabelled = Stream(
            part="unlabelled", batch_size=self.batch_size * self.unlabelled_ratio, views=("weak", "strong")
        )
        both = FixMatchUpdate(keeps_momentum=True, threshold=self.threshold, unlabelled_weight=self.unlabelled_weight)
        warm = world.round <= self.warm_start_rounds
        job = Job(
            key=Key(client=CENTRAL),
            update=ServerUpdate(keeps_momentum=True) if warm else both,
            receives={"student": state.server["student"]},
            data={"labelled": labelled} if warm else {"labelled": labelled, "unlabelled": unlabelled},
            limit=Limit(steps=world.T),
            keeps="central",
        )
        (outcome,) = world.fit([job])
        return State(server={"student": outcome.sends["student"]}, clients=state.clients), {}

    def models(self, state: State) -> dict[str, Weights]:
        return {"student": state.server["student"]}
