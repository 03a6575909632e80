"""What EASGD and Overlap-Local-SGD share: clients that keep their own model and are pulled towards a common one.

After T local steps a client moves its model x towards the common model z that it was sent, by a share alpha of the way,
and starts the next round in which it takes part from there; nothing is ever replaced by z. Who holds labels trains on
them, as in `supervised_fl`.

Departures and choices for both:
1. Both papers have p workers in every round. With C < K a client's model rests while others train, and z moves on.
2. Batch-norm statistics are pulled as weights are; counters of batches are the client's own.
3. Training takes weak views; an incomplete last batch is trained on; labelled images at the server take no part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.losses import supervised_loss
from benchmark.methods.averaging import ema
from benchmark.methods.objectives import StudentUpdate, check_counts
from benchmark.methods.protocol import Batch, Local, Networks, Reader, Setup, Tree, Weights, World
from benchmark.methods.proximal_fixmatch import mean_of_labelled


@dataclass(frozen=True, kw_only=True)
class ElasticUpdate(StudentUpdate):
    """T local steps from the client's own model, then the pull x <- x - alpha (x - z)."""

    mean_over_images: ClassVar[bool] = True

    alpha: float = 0.0
    # Which x the server gets: that of the local steps (EASGD Eq. 6), or the pulled one (Overlap-Local-SGD).
    sends: Literal["trained", "pulled"] = "trained"

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        """From what the client kept; from z where it takes part for the first time."""
        kept: Tree = private or {}
        common: Weights = received["student"]
        return Local(
            trainable={"student": kept.get("student", common)},
            momentum=kept.get("momentum"),
            found={"common": common},
        )

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        labels_N = batch["labelled"].labels_N
        assert labels_N is not None
        loss = supervised_loss(trainable["student"](batch["labelled"].views["weak"]), labels_N)
        return loss, {"client/supervised_loss": loss.detach()}

    def finish(self, local: Local) -> Tree:
        trained = local.trainable["student"]
        pulled = ema(local.found["common"], trained, self.alpha)
        momentum = {"momentum": local.momentum} if self.keeps_momentum else {}
        local.private = {"student": pulled, **momentum}
        return {"student": trained if self.sends == "trained" else pulled}


@dataclass(frozen=True, kw_only=True)
class ElasticMethod:
    """The fields and the local work of both methods."""

    batch_size: int = 64  # B
    # Momentum buffers of a client: its process never ends in either paper, so that they stay with it (EAMSGD of the
    # first; distoptim/OverlapLocalSGD.py of the second). Default: kept.
    momentum: Literal["kept", "reset"] = "kept"

    needs: ClassVar[frozenset[str]] = frozenset(
        {"everywhere", "every_client", "some_clients", "share", "one_more_client"}
    )
    takes_missing_updates: ClassVar[bool] = True  # z moves by whoever sent something

    def check(self, setup: Setup) -> None:
        check_counts(self, batch_size=1)
        if setup.model.norm == "sbn":
            raise ConfigError(
                "model.norm: 'sbn' needs a pass for statistics that this method does not ask for; "
                "'gn', 'bn' or 'none' would be right"
            )
        if not any(setup.labelled[client] for client in range(setup.K)):
            raise ConfigError("data.label_setting: no client holds labels to train on; 'everywhere' would be right")

    def mean_of_clients(self, common: Weights, world: World, update: ElasticUpdate) -> Weights | None:
        """Local work of the cohort's clients with labels, and the plain mean of what they send; None: nobody did."""
        return mean_of_labelled(update, common, world, self.batch_size)


def check_share(name: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"{name}: {share} is outside [0, 1]")
