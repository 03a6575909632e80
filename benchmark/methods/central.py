"""Central semi-supervised methods: one holder of all images trains.

Each step has labels and unlabelled images. These methods are in SemiFL's Table 1 with the numbers of FixMatch's paper,
in whose code (google-research/fixmatch, files named below) all were trained alike; defaults are that code's. SSFL
compares with FixMatch in Table G.1. None is federated.

Departures: reports/semifl/departures.md, entry 19. Besides:
1. A round is a reporting unit of T steps; momentum is kept. An average of the weights over steps (`ema`) is tested,
   running statistics included; FixMatch's default has none, since SSFL's rows 38-40 of Table A.2 name none.
2. Weights of unlabelled terms rise linearly over `ramp_share` of the run, by one factor a round. Released: Pi-Model,
   Pseudo-Labeling and Mean Teacher .4 (--warmup_pos); MixMatch and ReMixMatch 1,024 of 65,536 kimg.
3. Batch norms see each of our forward passes as a batch (weak, strong, mixed), and count all of them; the released code
   passes weak and strong together (UDA, FixMatch), or interleaves, and counts one. Mean Teacher's average predicts in
   evaluation mode; released, with batch statistics.
4. The one holder has the clients' rate (`optimizer.lr`), not `server_lr`.
5. ReMixMatch's running means are taken once a round, over all images.
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
    """Base of the central methods: one job a round, with all the data. Each of them adds a `loss`."""

    batch_size: Count = 64  # B
    unlabelled_ratio: Count = 1  # mu  unlabelled images for each labelled one
    warm_start_rounds: Whole = 0  # rounds on labels alone first, to compare with SSFL's reduced profiles
    ema: Share = 0.999  # the average's share of itself in a step; 0: the weights themselves are tested

    needs = frozenset({"server", "everywhere"})
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")  # of unlabelled images
    ramp_share: ClassVar[float] = 0.0

    def loss(self, step: fl.Step) -> fl.Loss:
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
        """The factor of the unlabelled terms' weight in this round, 0 to 1."""
        rounds = self.ramp_share * world.rounds
        return min(1.0, (world.round - 1) / rounds) if rounds else 1.0

    def notes(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        """Return what the round's steps need besides their batches."""
        return {}

    def draws(self, generator: torch.Generator, images: int) -> dict[str, Tensor]:
        """Draw what a step with so many images in all its views needs (`LocalUpdate.draws`)."""
        return {}

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {name: state.server[name] for name in ("average", "student") if name in state.server}


@dataclass(frozen=True, kw_only=True)
class CentralUpdate(StudentUpdate):
    """A round's steps, and the average of their weights."""

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
    """images_NCHW of the unlabelled batch by view."""
    return step.batch["unlabelled"].views


def probabilities(step: fl.Step, view: str) -> Tensor:
    """probs_ND of that view without a gradient."""
    return torch.softmax(predict_weak(step.student, views_of(step)[view], "train"), dim=-1)


def total(step: fl.Step, supervised: Tensor, unlabelled: Tensor, weight: float, **pseudo: Tensor) -> fl.Loss:
    aux = {"server/loss": supervised, "client/loss": unlabelled, **pseudo}
    return supervised + (weight * step.notes["ramp"]).to(unlabelled) * unlabelled, aux


@dataclass(frozen=True, kw_only=True)
class FixMatch(Central):
    """FixMatch: a confident label of the weak view is learned on the strong one.

    By cross-entropy. Sohn et al. FixMatch: Simplifying Semi-supervised Learning with Consistency and Confidence.
    NeurIPS 2020, section 2.2, Eqs. 3 and 4. Released: fixmatch.py.
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
    """UDA: the weak view's confident prediction is learned on the strong view.

    It is sharpened, and learned by divergence; without annealing of labels and without an entropy term. Xie et al.
    Unsupervised Data Augmentation for Consistency Training. NeurIPS 2020, Eq. 1 and section 2.4. Released: uda.py.
    """

    threshold: Share = 0.95  # beta  of the prediction before it is sharpened (--confidence)
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
    """Pseudo-Labeling: an image's own largest class is learned where confident.

    By cross-entropy. Lee. Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method. ICML Workshop 2013,
    Eq. 15. Released: pseudo_label.py.
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
    """Pi-Model: squared difference of the predictions on two weak views.

    One of them has no gradient. Laine and Aila. Temporal Ensembling for Semi-Supervised Learning. ICLR 2017, Algorithm
    1. Released: pi_model.py.
    """

    unlabelled_weight: NotNegative = 10.0  # w_max

    views = ("weak", "weak2")
    ramp_share = 0.4

    def loss(self, step: fl.Step) -> fl.Loss:
        student_ND = torch.softmax(step.student(views_of(step)["weak2"]), dim=-1)
        difference = squared_error_loss(student_ND, self.target(step)) / student_ND.shape[1]
        return total(step, labelled_loss(step.student, step.batch["labelled"]), difference, self.unlabelled_weight)

    def target(self, step: fl.Step) -> Tensor:
        return probabilities(step, "weak")


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(PiModel):
    """Mean Teacher: squared difference to the prediction of the weights' average.

    Tarvainen and Valpola. Mean teachers are better role models. NeurIPS 2017, section 2, Eqs. 1 and 2. Released:
    mean_teacher.py.
    """

    unlabelled_weight: NotNegative = 50.0  # J's weight

    @torch.no_grad()
    def target(self, step: fl.Step) -> Tensor:
        average = step.frozen["average"] if self.ema else step.student
        return torch.softmax(average(views_of(step)["weak"]), dim=-1)


@dataclass(frozen=True, kw_only=True)
class MixMatch(Central):
    """MixMatch: all images are mixed, unlabelled ones with guessed labels.

    The guess is the sharpened mean of two predictions. Berthelot et al. MixMatch: A Holistic Approach to
    Semi-Supervised Learning. NeurIPS 2019, Algorithm 1, Eqs. 3 to 11. Released: mixmatch.py.
    """

    temperature: Positive = 0.5  # T
    alpha: Positive = 0.5  # of Beta(alpha, alpha) (--beta)
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

    The weak view makes the guess, aligned with the labels' classes; losses are cross-entropies in place of squares.
    Berthelot et al. ReMixMatch: Semi-Supervised Learning with Distribution Alignment and Augmentation Anchoring. ICLR
    2020, Algorithm 1, Eqs. 3 to 5. Released: remixmatch_no_cta.py, with the guess of cta/cta_remixmatch.py.
    """

    temperature: Positive = 0.5  # T
    alpha: Positive = 0.75  # of Beta(alpha, alpha) (--beta)
    unlabelled_weight: NotNegative = 1.5  # lambda_U (--w_match)
    anchor_weight: NotNegative = 0.5  # lambda_U1, of strong views before mixing (--w_kl)

    ramp_share = 1 / 64

    def draws(self, generator: torch.Generator, images: int) -> dict[str, Tensor]:
        return mix_draws(generator, images, self.alpha)

    def notes(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        """Measure shares_2D of the classes: among the labels, and in the mean prediction on the unlabelled images."""
        logits_ND, labels_N = reader.predict(received["student"], "unlabelled", "weak"), reader.labels("labelled")
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
    """probs x known / predicted, each row of sum 1 (ReMixMatch, section 3.1)."""
    weighted_ND = probs_ND * ((known_D + 1e-6) / (predicted_D + 1e-6)).to(probs_ND)
    return weighted_ND / weighted_ND.sum(dim=-1, keepdim=True)


def mix_draws(generator: torch.Generator, N: int, alpha: float) -> dict[str, Tensor]:
    """Draw what N images are mixed by: lambda_N, at least a half each, and other_N, the image that each is mixed with.

    MixMatch Eqs. 8 and 9. Through NumPy: torch has no draw from a Beta distribution with a generator.
    """
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    lambda_N = rng.beta(alpha, alpha, size=N)
    other_N = rng.permutation(N)
    return {"lambda_N": torch.from_numpy(np.maximum(lambda_N, 1 - lambda_N)), "other_N": torch.from_numpy(other_N)}


def mixed(step: fl.Step, guess_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the labelled images' loss, and logits_MD and targets_MD of the unlabelled ones (MixMatch Eqs. 8 to 14).

    Labelled images and both views of the unlabelled ones are each mixed with one of all (`mix_draws`).
    """
    images_NCHW = torch.cat([step.batch["labelled"].views["weak"], *views_of(step).values()])
    known_ND = one_hot(step.batch["labelled"].known_N, guess_ND.shape[1]).to(guess_ND)
    targets_ND = torch.cat([known_ND, *[guess_ND] * len(views_of(step))])
    lam_N1, other_N = step.drawn["lambda_N"].to(targets_ND)[:, None], step.drawn["other_N"]
    targets_ND = torch.lerp(targets_ND[other_N], targets_ND, lam_N1)
    logits_ND = step.student(mixup(images_NCHW, images_NCHW[other_N], lam_N1[:, :, None, None]))
    n = len(known_ND)
    return soft_label_loss(logits_ND[:n], targets_ND[:n]), logits_ND[n:], targets_ND[n:]


def all_kept(guess_ND: Tensor) -> dict[str, Tensor]:
    """The guesses as pseudo-labels, whose quality is measured."""
    labels_N = guess_ND.argmax(dim=-1)
    return {"labels_N": labels_N, "kept_N": torch.ones_like(labels_N, dtype=torch.bool)}
