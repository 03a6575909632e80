"""Centralised semi-supervised methods: a single participant trains on all images.

Each step uses a batch of labelled and a batch of unlabelled images. SemiFL's Table 1 cites these methods with the
numbers of FixMatch's paper. The code of that paper, google-research/fixmatch, trained all of them in the same way; its
files are named below. The defaults follow this code. SSFL compares with FixMatch in Table G.1. No method in this file
is federated.

Deviations: reports/semifl/departures.md, entry 19. In addition:
1. A round is only a unit of T steps for reporting, and momentum is kept between rounds. The test uses an average of the
   weights over steps (`ema`), including running statistics. FixMatch has no average by default, since rows 38-40 of
   SSFL's Table A.2 name none.
2. The weights of unlabelled terms rise linearly over `ramp_share` of the run, with one factor per round. Released code:
   .4 for Pi-Model, Pseudo-Labeling and Mean Teacher (--warmup_pos); 1,024 of 65,536 kimg for MixMatch and ReMixMatch.
3. Batch norms treat each forward pass (weak, strong, mixed) as a separate batch, and all passes update their
   statistics. The released code passes weak and strong views together (UDA, FixMatch), or interleaves batches, and one
   pass updates the statistics. The average of Mean Teacher predicts in evaluation mode; in the released code with batch
   statistics.
4. The participant uses the clients' learning rate (`optimizer.lr`), not `server_lr`.
5. The running means of ReMixMatch are computed once per round, over all images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmark.config import Count, NotNegative, Positive, Share, Whole, added
from benchmark.losses import (
    consistency_loss,
    divergence_loss,
    loss_on_confident,
    mixup,
    one_hot,
    pseudo_labels,
    sharpen,
    soft_label_loss,
    squared_error_loss,
)
from benchmark.methods import protocol as fl
from benchmark.methods.shared import ServerUpdate, StudentUpdate, ema_, labelled_loss, predict_weak


@dataclass(frozen=True, kw_only=True)
class Central(fl.Method):
    """Base class of the centralised methods: one job per round on all data. Each method adds a `loss`."""

    batch_size: Count = 64  # B
    unlabelled_ratio: Count = 1  # mu  number of unlabelled images per labelled image in a step
    warm_start_rounds: Whole = 0  # initial rounds on labels only, to compare with SSFL's reduced profiles
    ema: Share = 0.999  # the share of the old average after a step; 0 tests the weights without an average

    needs = frozenset({"server", "everywhere", "open"})
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")  # the views of unlabelled images
    ramp_share: ClassVar[float] = 0.0  # the weight of the unlabelled term rises over this share of the run

    def loss(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of one local step and the tensors to report (see `LocalUpdate.loss`)."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def init(self, setup: fl.Setup) -> fl.State:
        start = setup.initial_weights()
        return fl.State(server={"student": start, **({"average": start} if self.ema else {})})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        data = {"labelled": fl.Stream(part="labelled", batch_size=self.batch_size, views=("weak",))}
        update: StudentUpdate = ServerUpdate(keeps_momentum=True)
        if world.round > self.warm_start_rounds:
            size = self.batch_size * self.unlabelled_ratio
            data["unlabelled"] = fl.Stream(part="unlabelled", batch_size=size, views=self.views)
            update = CentralUpdate(method=self, keeps_momentum=True, ramp=self.ramp(world))
        sends = world.fit_one(fl.CENTRAL, update, dict(state.server), data, keeps="central")
        return fl.State(server={name: sends.get(name, sends["student"]) for name in state.server}), {}

    def ramp(self, world: fl.World) -> float:
        """Compute the factor of the unlabelled terms' weight in this round, between 0 and 1."""
        rounds = self.ramp_share * world.rounds
        return min(1.0, (world.round - 1) / rounds) if rounds else 1.0

    def notes(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        """Compute the values that the steps of the round need besides their batches."""
        return {}

    def draws(self, generator: torch.Generator, images: int) -> dict[str, Tensor]:
        """Draw the random numbers of a step for this number of images in all views (`LocalUpdate.draws`)."""
        return {}

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {name: state.server[name] for name in ("average", "student") if name in state.server}


@dataclass(frozen=True, kw_only=True)
class CentralUpdate(StudentUpdate):
    """Local work of a round, which also updates the average of the weights.

    `ramp` is the factor of the unlabelled terms' weight in this round.
    """

    method: Central
    ramp: float = field(default=1.0, repr=False)

    def begin(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local:
        local = super().begin(received, private, reader)
        if self.method.ema:
            local.frozen = {"average": received["average"]}
        ramp = torch.tensor(self.ramp, dtype=torch.float64)
        local.notes = {"ramp": ramp, **self.method.notes(received, reader)}
        return local

    def draws(self, generator: torch.Generator, batch: Mapping[str, fl.Batch]) -> dict[str, Tensor]:
        views = [images for stream in batch.values() for images in stream.views.values()]
        return self.method.draws(generator, sum(map(len, views)))

    def loss(self, step: fl.Step) -> fl.Loss:
        return self.method.loss(step)

    def after_step(self, step: fl.Step) -> None:
        if self.method.ema:
            ema_(step.frozen["average"], step.student, self.method.ema)

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), **local.frozen}


def views_of(step: fl.Step) -> Mapping[str, Tensor]:
    """Return images_NCHW of the unlabelled batch by view."""
    return step.batch["unlabelled"].views


def probabilities(step: fl.Step, view: str) -> Tensor:
    """Compute probs_ND of this view of the unlabelled batch, without a gradient."""
    return torch.softmax(predict_weak(step.student, views_of(step)[view], "train"), dim=-1)


def total(step: fl.Step, supervised: Tensor, unlabelled: Tensor, weight: float, **pseudo: Tensor) -> fl.Loss:
    """Add the supervised and the weighted unlabelled loss, and return the sum and the tensors to report."""
    aux = {"server/loss": supervised, "client/loss": unlabelled, **pseudo}
    return supervised + (weight * step.notes["ramp"]).to(unlabelled) * unlabelled, aux


@dataclass(frozen=True, kw_only=True)
class FixMatch(Central):
    """FixMatch: the strong view learns the confident label of the weak view, with the cross-entropy.

    Sohn et al. FixMatch: Simplifying Semi-supervised Learning with Consistency and Confidence. NeurIPS 2020, section
    2.2, Eqs. 3 and 4. Released code: fixmatch.py.
    """

    threshold: Share = 0.95  # tau
    unlabelled_weight: NotNegative = 1.0  # lambda_u
    unlabelled_ratio: Count = 7
    ema: Share = added(0.0)

    def loss(self, step: fl.Step) -> fl.Loss:
        weak_ND = predict_weak(step.student, views_of(step)["weak"], "train")
        labels_N, _, kept_N = pseudo_labels(weak_ND, self.threshold)
        supervised = labelled_loss(step.student, step.batch["labelled"])
        consistency = loss_on_confident(step.student, views_of(step)["strong"], labels_N, kept_N)
        return total(step, supervised, consistency, self.unlabelled_weight, labels_N=labels_N, kept_N=kept_N)


@dataclass(frozen=True, kw_only=True)
class UDA(Central):
    """UDA: the strong view learns the confident, sharpened prediction of the weak view.

    The loss is a divergence. Labels are not annealed, and there is no entropy term. Xie et al. Unsupervised Data
    Augmentation for Consistency Training. NeurIPS 2020, Eq. 1 and section 2.4. Released code: uda.py.
    """

    threshold: Share = 0.95  # beta  threshold of the prediction before sharpening (--confidence)
    temperature: Positive = 1.0  # tau
    unlabelled_weight: NotNegative = 1.0  # lambda
    unlabelled_ratio: Count = 7

    def loss(self, step: fl.Step) -> fl.Loss:
        weak_ND = predict_weak(step.student, views_of(step)["weak"], "train")
        labels_N, _, kept_N = pseudo_labels(weak_ND, self.threshold)
        supervised = labelled_loss(step.student, step.batch["labelled"])
        target_ND = torch.softmax(weak_ND / self.temperature, dim=-1)
        divergence = divergence_loss(step.student(views_of(step)["strong"]), target_ND, kept_N)
        return total(step, supervised, divergence, self.unlabelled_weight, labels_N=labels_N, kept_N=kept_N)


@dataclass(frozen=True, kw_only=True)
class PseudoLabeling(Central):
    """Pseudo-Labeling: an image learns its most probable class if this class is confident.

    The loss is the cross-entropy. Lee. Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method. ICML
    Workshop 2013, Eq. 15. Released code: pseudo_label.py.
    """

    threshold: Share = 0.95  # (--threshold)
    unlabelled_weight: NotNegative = 1.0  # alpha_f

    views = ("weak",)
    ramp_share = 0.4

    def loss(self, step: fl.Step) -> fl.Loss:
        logits_ND = step.student(views_of(step)["weak"])
        labels_N, _, kept_N = pseudo_labels(logits_ND, self.threshold)
        consistency = consistency_loss(logits_ND, labels_N, kept_N)
        supervised = labelled_loss(step.student, step.batch["labelled"])
        return total(step, supervised, consistency, self.unlabelled_weight, labels_N=labels_N, kept_N=kept_N)


@dataclass(frozen=True, kw_only=True)
class PiModel(Central):
    """Pi-Model: the squared difference of the predictions on two weak views.

    One of them has no gradient. Laine and Aila. Temporal Ensembling for Semi-Supervised Learning. ICLR 2017, Algorithm
    1. Released code: pi_model.py.
    """

    unlabelled_weight: NotNegative = 10.0  # w_max

    views = ("weak", "weak2")
    ramp_share = 0.4

    def loss(self, step: fl.Step) -> fl.Loss:
        student_ND = torch.softmax(step.student(views_of(step)["weak2"]), dim=-1)
        difference = squared_error_loss(student_ND, self.target(step)) / student_ND.shape[1]
        return total(step, labelled_loss(step.student, step.batch["labelled"]), difference, self.unlabelled_weight)

    def target(self, step: fl.Step) -> Tensor:
        """Compute the probs_ND that the student learns, without a gradient."""
        return probabilities(step, "weak")


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(PiModel):
    """Mean Teacher: the squared difference from the prediction of the average of the weights.

    Tarvainen and Valpola. Mean teachers are better role models. NeurIPS 2017, section 2, Eqs. 1 and 2. Released code:
    mean_teacher.py.
    """

    unlabelled_weight: NotNegative = 50.0  # the weight of J

    @torch.no_grad()
    def target(self, step: fl.Step) -> Tensor:
        average = step.frozen["average"] if self.ema else step.student
        return torch.softmax(average(views_of(step)["weak"]), dim=-1)


@dataclass(frozen=True, kw_only=True)
class MixMatch(Central):
    """MixMatch: all images are mixed, and unlabelled images have guessed labels.

    The guess is the sharpened mean of two predictions. Berthelot et al. MixMatch: A Holistic Approach to
    Semi-Supervised Learning. NeurIPS 2019, Algorithm 1, Eqs. 3 to 11. Released code: mixmatch.py.
    """

    temperature: Positive = 0.5  # T
    alpha: Positive = 0.5  # parameter of Beta(alpha, alpha) (--beta)
    unlabelled_weight: NotNegative = 100.0  # lambda_U (--w_match)

    views = ("weak", "weak2")
    ramp_share = 1 / 64

    def draws(self, generator: torch.Generator, images: int) -> dict[str, Tensor]:
        return mix_draws(generator, images, self.alpha)

    def loss(self, step: fl.Step) -> fl.Loss:
        guess_ND = sharpen((probabilities(step, "weak") + probabilities(step, "weak2")) / 2, self.temperature)
        supervised, logits_MD, targets_MD = mixed(step, guess_ND)
        difference = squared_error_loss(torch.softmax(logits_MD, dim=-1), targets_MD) / guess_ND.shape[1]
        return total(step, supervised, difference, self.unlabelled_weight, **all_kept(guess_ND))


@dataclass(frozen=True, kw_only=True)
class ReMixMatch(Central):
    """ReMixMatch: MixMatch with aligned guesses, which strong views learn.

    The guess is the prediction of the weak view, aligned with the class distribution of the labels. The losses are
    cross-entropies instead of squared errors. Berthelot et al. ReMixMatch: Semi-Supervised Learning with Distribution
    Alignment and Augmentation Anchoring. ICLR 2020, Algorithm 1, Eqs. 3 to 5. Released code: remixmatch_no_cta.py, with
    the guess of cta/cta_remixmatch.py.
    """

    temperature: Positive = 0.5  # T
    alpha: Positive = 0.75  # parameter of Beta(alpha, alpha) (--beta)
    unlabelled_weight: NotNegative = 1.5  # lambda_U (--w_match)
    anchor_weight: NotNegative = 0.5  # lambda_U1, the weight of the loss of strong views before mixing (--w_kl)

    ramp_share = 1 / 64

    def draws(self, generator: torch.Generator, images: int) -> dict[str, Tensor]:
        return mix_draws(generator, images, self.alpha)

    def notes(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        """Measure shares_2D, the class distributions of the labels and of the mean prediction on unlabelled images."""
        logits_ND = reader.predict(received["student"], "unlabelled", "weak")
        labels_N = reader.labels("labelled")
        assert labels_N is not None
        known_D = torch.bincount(labels_N, minlength=logits_ND.shape[1]) / len(labels_N)
        return {"shares_2D": torch.stack([known_D, torch.softmax(logits_ND, dim=-1).mean(dim=0)])}

    def loss(self, step: fl.Step) -> fl.Loss:
        guess_ND = sharpen(aligned(probabilities(step, "weak"), *step.notes["shares_2D"]), self.temperature)
        supervised, logits_MD, targets_MD = mixed(step, guess_ND)
        anchored = soft_label_loss(step.student(views_of(step)["strong"]), guess_ND)
        unlabelled = self.unlabelled_weight * soft_label_loss(logits_MD, targets_MD) + self.anchor_weight * anchored
        return total(step, supervised, unlabelled, 1.0, **all_kept(guess_ND))


def aligned(probs_ND: Tensor, known_D: Tensor, predicted_D: Tensor) -> Tensor:
    """Compute probs x known / predicted, with each row scaled to sum to 1 (ReMixMatch, section 3.1)."""
    weighted_ND = probs_ND * ((known_D + 1e-6) / (predicted_D + 1e-6)).to(probs_ND)
    return weighted_ND / weighted_ND.sum(dim=-1, keepdim=True)


def mix_draws(generator: torch.Generator, N: int, alpha: float) -> dict[str, Tensor]:
    """Draw lambda_N, at least 0.5 each, and other_N, the positions of the images that N images are mixed with.

    Source: MixMatch Eqs. 8 and 9. NumPy draws them, since torch cannot draw from a Beta distribution with a generator.
    """
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    lambda_N = rng.beta(alpha, alpha, size=N)
    other_N = rng.permutation(N)
    return {"lambda_N": torch.from_numpy(np.maximum(lambda_N, 1 - lambda_N)), "other_N": torch.from_numpy(other_N)}


def mixed(step: fl.Step, guess_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss of the labelled images, and logits_MD and targets_MD of the unlabelled ones (MixMatch).

    Each labelled image and each view of an unlabelled image is mixed with an image of the whole batch (`mix_draws`;
    Eqs. 8 to 14).
    """
    images_NCHW = torch.cat([step.batch["labelled"].views["weak"], *views_of(step).values()])
    known_ND = one_hot(step.batch["labelled"].known_N, guess_ND.shape[1]).to(guess_ND)
    targets_ND = torch.cat([known_ND, *[guess_ND] * len(views_of(step))])
    lam_N1 = step.drawn["lambda_N"].to(targets_ND)[:, None]
    other_N = step.drawn["other_N"]
    targets_ND = torch.lerp(targets_ND[other_N], targets_ND, lam_N1)
    logits_ND = step.student(mixup(images_NCHW, images_NCHW[other_N], lam_N1[:, :, None, None]))
    n = len(known_ND)
    return soft_label_loss(logits_ND[:n], targets_ND[:n]), logits_ND[n:], targets_ND[n:]


def all_kept(guess_ND: Tensor) -> dict[str, Tensor]:
    """Return the guesses as pseudo-labels that are all selected, so that their quality is measured."""
    labels_N = guess_ND.argmax(dim=-1)
    return {"labels_N": labels_N, "kept_N": torch.ones_like(labels_N, dtype=torch.bool)}
