"""Compute a network's logits for a set of images, and their scores.

Source of the scores: RSCFed, Tables 1 to 5; released utils/metrics.py:14-37, which calls scikit-learn with one class
against the rest, on softmax. The tests compare each score with scikit-learn. Deviations: (1) scikit-learn refuses to
compute an AUROC if a class has no image; this module leaves the class out of the mean. (2) The softmax is computed in
float64, because in float32 confident predictions all become 1, which creates ties that the logits do not have.

Shapes: N images, C channels, H W pixels, D classes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.data.augment import make_views
from benchmark.data.image_ops import to_device
from benchmark.federated.environment import Environment, Part
from benchmark.federated.local import load
from benchmark.federated.stopping import check
from benchmark.federated.trees import moved
from benchmark.federated.unknown import Score, score_of, separation
from benchmark.losses import supervised_loss
from benchmark.methods.protocol import CENTRAL, SERVER, Weights
from benchmark.models.build import head_of, own_copy
from benchmark.models.classifier import Classifier
from benchmark.streams import seed_globals, torch_stream

CHUNK = 128  # images per forward pass on a CPU: the activations of a small network then fit into a core's cache
CUDA_PIXELS = 2048 * 32 * 32  # pixels per forward pass on CUDA


@torch.no_grad()
def logits_of(
    network: nn.Module, environment: Environment, part: Part, view: str = "plain", draw: torch.Generator | None = None
) -> Tensor:
    """Compute logits_ND of the subset's images in evaluation mode, in their order; the network's mode is restored."""
    logits_ND = _passed(network, network, environment, part, view, draw)
    return torch.empty(0, environment.data.num_classes) if logits_ND is None else logits_ND


def _passed(
    network: nn.Module,
    function: Callable[[Tensor], Tensor],
    environment: Environment,
    part: Part,
    view: str = "plain",
    draw: torch.Generator | None = None,
) -> Tensor | None:
    """Return the result of a function of the network for the subset's images, or None if there are no images."""
    was_training = network.training
    network.eval()
    size = chunk_of(environment.data.image_shape, part.images_NCHW.device)
    pieces = [function(images_NCHW) for images_NCHW in chunks(environment, part, view, size, draw)]
    network.train(was_training)
    return torch.cat(pieces) if pieces else None


def chunk_of(image_shape: tuple[int, int, int], device: torch.device) -> int:
    """Return how many images pass through the network at once."""
    return CHUNK if device.type == "cpu" else max(CHUNK, CUDA_PIXELS // math.prod(image_shape[1:]))


def chunks(
    environment: Environment, part: Part, view: str, size: int, draw: torch.Generator | None
) -> Iterator[Tensor]:
    """Yield a view of the subset's images, in order, `size` images at a time."""
    data = environment.data
    draw = torch_stream(environment.experiment.seed, "evaluation", view) if draw is None else draw
    for at_N in part.positions_N.split(size):
        if not len(at_N):
            return
        check()
        images_NCHW = part.images_NCHW[to_device(at_N, part.images_NCHW.device)]
        yield make_views(images_NCHW, (view,), environment.augmentation, data.mean, data.std, draw)[view]


def with_test_statistics(environment: Environment) -> Environment:
    """Return the environment with a separate mean and spread for test images, if it has one."""
    data = environment.data
    if data.test_statistics is None:
        return environment
    mean, std = data.test_statistics
    return replace(environment, data=replace(data, mean=mean, std=std))


def tested_part(environment: Environment) -> Part:
    """Return the images that the run is tested on: the test set, or the server's held-out labelled images."""
    if environment.experiment.evaluation.validation:
        return environment.part(SERVER, "validation")
    data = environment.data
    every_N = torch.arange(len(data.test_labels_N))
    return Part(images_NCHW=data.test_images_NCHW, positions_N=every_N, labels_N=data.test_labels_N, truth_N=None)


class Evaluator:
    """An evaluator of weights on the test set, or on the server's held-out labelled images, with a separate network.

    Images, labels, network and logits are on `device`.
    """

    def __init__(self, environment: Environment, device: str | torch.device = "cpu") -> None:
        self._environment = with_test_statistics(environment)
        self._network = environment.network(device=device)
        self._prefix = "validation" if environment.experiment.evaluation.validation else "test"
        self._part = Part(**moved(vars(tested_part(environment)), torch.device(device)))

    def measure(self, voters: Sequence[Weights]) -> Mapping[str, float]:
        """Return the scores of one model, or of the mean probabilities of several models.

        They are `<set>/accuracy`, `/precision`, `/recall` and `/auroc` (macro averages, fractions) and `<set>/loss`
        (mean cross-entropy in nats). If a test set has unknown classes, these are scores of the images of known
        classes, and `/unknown_auroc` and `/unknown_fpr95` compare them with the other images (unknown.py).
        """
        seed_globals(self._environment.experiment.seed, "evaluation")
        votes_ND = [self._logits(weights) for weights in voters]
        logits_ND = votes_ND[0]
        if len(voters) > 1:
            total_ND = sum(some_ND.double().softmax(dim=1) for some_ND in votes_ND)
            assert isinstance(total_ND, Tensor)
            logits_ND = (total_ND / len(voters)).log()
        assert self._part.labels_N is not None
        labels_N = self._part.labels_N[self._part.positions_N]
        known_N = labels_N < logits_ND.shape[1]
        separated = dict[str, float]()
        if self._environment.data.unknown and not known_N.all():
            kind: Score = getattr(self._environment.experiment.method, "unknown_score", "max_softmax")
            separated = separation(score_of(votes_ND, kind), known_N)
            logits_ND, labels_N = logits_ND[known_N], labels_N[known_N]
        measured = {**scores(logits_ND, labels_N), "loss": float(supervised_loss(logits_ND, labels_N)), **separated}
        return {f"{self._prefix}/{name}": value for name, value in measured.items()}

    def _logits(self, weights: Weights) -> Tensor:
        network = own_copy(self._network, self._environment.experiment.model)
        load(network, weights)
        return logits_of(network, self._environment, self._part)


class TestImages:
    """An `Examiner` for the measures of a method, with a separate network on `device`. Its results are on the CPU."""

    __test__ = False  # pytest collects classes with such a name

    def __init__(self, environment: Environment, device: str | torch.device = "cpu") -> None:
        place = torch.device(device)
        self._model = environment.experiment.model
        self._network = environment.network(device=device)
        tested = with_test_statistics(environment)
        labelled = environment.part(CENTRAL, "everyones")
        self._known = {
            "test": (tested, Part(**moved(vars(tested_part(environment)), place))),
            "labelled": (environment, Part(**moved(vars(labelled), place))),
        }
        self.labels_N, self.labelled_N = self._labels("test"), self._labels("labelled")

    def _labels(self, images: str) -> Tensor:
        part = self._known[images][1]
        assert part.labels_N is not None  # only images with labels are examined
        return part.labels_N[part.positions_N.to(part.labels_N.device)].cpu()

    def predict(self, weights: Weights, images: Literal["test", "labelled"] = "test") -> Tensor:
        network = self._loaded(weights)
        return logits_of(network, *self._known[images]).cpu()

    def features(self, weights: Weights, images: Literal["test", "labelled"] = "test") -> Tensor:
        head_of(self._model)  # raises ConfigError for a network without features
        network = cast(Classifier, self._loaded(weights))
        with torch.no_grad():
            features_NF = _passed(network, network.features, *self._known[images])
        return torch.empty(0) if features_NF is None else features_NF.cpu()

    def _loaded(self, weights: Weights) -> nn.Module:
        network = own_copy(self._network, self._model)
        load(network, weights)
        return network


def scores(logits_ND: Tensor, labels_N: Tensor) -> dict[str, float]:
    """Compute `accuracy` and macro `precision`, `recall` and `auroc` as fractions; `auroc` needs at least two classes.

    Accuracy is the share of images with the largest logit at their label; for equal logits, the first class is
    predicted. A class that was never predicted has precision 0, and a class without images has recall 0 (scikit-learn's
    zero_division=0). A class with neither image nor prediction is left out of both means (scikit-learn's labels=None).

    AUROC compares each class with the rest, on softmax probabilities. For class d, it is the probability that an image
    of d gets a larger p_d than an image of a different class, where a tie counts one half (the Mann-Whitney statistic
    of d's mid-ranks). Classes without images, or with all images, are left out of the mean. It is NaN for NaN logits.
    """
    of_label_D, of_prediction_D, hits_D, rank_sum_D = sums_by_class(logits_ND, labels_N).cpu()  # synchronises
    precision_D, recall_D = hits_D / of_prediction_D.clamp(min=1), hits_D / of_label_D.clamp(min=1)
    here_D = of_label_D > 0
    seen_D = here_D | (of_prediction_D > 0)
    values = {
        "accuracy": float(hits_D.sum() / len(labels_N)),
        "precision": float(precision_D[seen_D].mean()),
        "recall": float(recall_D[seen_D].mean()),
    }
    if here_D.sum() > 1:
        of_label_D, rank_sum_D = of_label_D[here_D], rank_sum_D[here_D]
        pairs_D = of_label_D * (len(labels_N) - of_label_D)
        values["auroc"] = float(np.mean(((rank_sum_D - of_label_D * (of_label_D + 1) / 2) / pairs_D).numpy()))
    return values


def sums_by_class(logits_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return (4, D) sums per class: its images, its predictions, correct predictions, and mid-ranks of its images.

    They are multiples of one half in float64 on the logits' device, so that they do not depend on the summation order.
    """
    classes_D1 = torch.arange(logits_ND.shape[1], device=logits_ND.device)[:, None]
    is_label_DN, is_predicted_DN = classes_D1 == labels_N, classes_D1 == logits_ND.argmax(dim=1)
    rank_DN = mid_ranks(logits_ND.double().softmax(dim=1).T.contiguous())
    summed = (is_label_DN, is_predicted_DN, is_label_DN & is_predicted_DN, is_label_DN * rank_DN)
    return torch.stack([each_DN.double().sum(dim=1) for each_DN in summed])


def mid_ranks(values_DN: Tensor) -> Tensor:
    """Return the rank of each value in its row, from 1; equal values get their mean rank. A NaN makes its row NaN."""
    sorted_DN = values_DN.sort(dim=1).values
    below_DN, up_to_DN = (torch.searchsorted(sorted_DN, values_DN, right=right) for right in (False, True))
    return (below_DN + up_to_DN + 1) / 2 + 0.0 * values_DN.sum(dim=1, keepdim=True)
