"""FedAvg-Energy: clients learn the images with an energy as low as labelled images have (the energy baseline).

The method is FedAvg-FixMatch (`fedavg_fixmatch`), but images are selected by their free energy instead of their
confidence, as in InPL (Yu et al. ICLR 2023, arXiv:2303.07269, section 3): an image with a low energy E(x) = -log sum_d
exp(f_d(x)) is near to the training data, and its predicted class is its pseudo-label. The energy is defined by Liu et
al. (Energy-based Out-of-distribution Detection. NeurIPS 2020, arXiv:2010.03759, Eq. 4) at temperature 1. Test images of
unknown classes are also detected by their energy.

The threshold: Liu et al. choose it such that a large share, 95 %, of images of known classes is below it (section 3.1).
The server does this in each round with the weak views of its labelled images and the model that it sends, and sends the
threshold with the model.

Deviations from InPL, which is centralised and has no unknown classes by design:
1. InPL has one fixed threshold, which depends on the size of the network's logits and therefore on network, data and
   length of training. The threshold of Liu et al. does not need to be chosen anew for each of them.
2. InPL adds a margin to the loss of imbalanced labels. The server's labels are balanced.

Legend: a score is a negative energy.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from benchmark.config import ShareAbove0
from benchmark.methods import protocol as fl
from benchmark.methods.fedavg_fixmatch import SelectingFedAvg, SelectingUpdate
from benchmark.methods.shared import ReadOnlyUpdate


@dataclass(frozen=True, kw_only=True)
class ScoreThreshold(ReadOnlyUpdate):
    """A reading of the server's labelled images, which returns the threshold of the score."""

    accepted: float

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        score_N = reader.predict(received["student"], "labelled", "weak").logsumexp(dim=1)
        return {"score_threshold": accepting_threshold(score_N, self.accepted)}


def accepting_threshold(score_N: Tensor, accepted: float) -> Tensor:
    """Return the largest score, a scalar, that at least a share `accepted` of the images reaches."""
    images = ceil(Fraction(str(accepted)) * len(score_N))  # .95 is 19/20, not the nearest double
    return score_N.sort(descending=True).values[images - 1].clone()


@dataclass(frozen=True, kw_only=True)
class LowEnergyUpdate(SelectingUpdate):
    """Local work that selects images by their energy."""

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        local.notes["score_threshold"] = received["score_threshold"]
        return local

    @torch.no_grad()
    def selected(self, logits_ND: Tensor, step: fl.Step) -> tuple[Tensor, Tensor]:
        kept_N = logits_ND.logsumexp(dim=-1) >= step.notes["score_threshold"]
        return logits_ND.argmax(dim=-1), kept_N


@dataclass(frozen=True, kw_only=True)
class FedAvgEnergy(SelectingFedAvg):
    """FedAvg-Energy: an image is selected if its energy is not above the range of most labelled images."""

    accepted: ShareAbove0 = 0.95  # share of the server's labelled images that the threshold selects

    unknown_score = "energy"

    def client_work(self, student: fl.Weights, world: fl.World) -> tuple[fl.LocalUpdate, fl.Tree]:
        reading = ScoreThreshold(accepted=self.accepted)
        threshold = world.fit_one(fl.SERVER, reading, {"student": student}, draw=1)["score_threshold"]
        update = LowEnergyUpdate(pseudo_label_mode=self.pseudo_label_mode)
        return update, {"student": student, "score_threshold": threshold}
