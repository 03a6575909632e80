"""Prepare the training of a run: images, their distribution among participants, and the network.

These are the same for every method with equal settings.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.config import nearest
from benchmark.data.augment import Augmentation
from benchmark.data.datasets import DataSet, as_released, load
from benchmark.data.open_set import with_unknown
from benchmark.data.pooled import arrivals, pooled
from benchmark.data.split import LabelAssignment, Split, SplitSpec, assign_labels, split, with_extra
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.devices import memory_format
from benchmark.federated.processes import CPU
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Limit, Outcome, PartName, Setup, Weights, World
from benchmark.methods.registry import method_name
from benchmark.models.build import Model, build, head_of
from benchmark.models.norms import keep_channels_last
from benchmark.streams import numpy_stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The data subset of one participant for a stream, as positions in `images_NCHW`.

    `labels_N` is None if the label setting hides labels; `truth_N` contains them only for evaluating pseudo-labels. An
    unknown class has the label -1 in both.
    """

    images_NCHW: Tensor  # uint8, the whole set, which is never copied per participant
    positions_N: Tensor  # int64; if a job's `start` selected images, a position may occur more than once
    labels_N: Tensor | None  # labels of the whole set
    truth_N: Tensor | None  # labels of the whole set
    pseudo_labels_N: Tensor | None = None  # pseudo-labels of these positions, if `start` assigned them

    def __len__(self) -> int:
        return len(self.positions_N)


@dataclass(frozen=True, kw_only=True, eq=False)
class Environment:
    """The data set, its split, and the training images of each participant."""

    experiment: Experiment
    data: DataSet
    split: Split
    assignment: LabelAssignment

    @property
    def augmentation(self) -> Augmentation:
        return self.experiment.data.augmentation

    @property
    def K(self) -> int:
        """Return the number of clients, including an additional one that has the server's labelled images."""
        return len(self.assignment.unlabelled)

    def part(self, participant: int, name: str, round_number: int = 1) -> Part:
        """Return the named data subset of `participant` (a client, SERVER or CENTRAL) in a round; it may be empty.

        Only streaming unlabelled images of clients depend on the round. Raise ConfigError for an unknown name.
        """
        match name:
            case "labelled":
                positions = self._labelled(participant)
            case "with_shared":
                positions = np.concatenate([self._labelled(participant), self._labelled(SERVER)])
            case "everyones" if participant == CENTRAL:
                positions = np.concatenate([self._labelled(SERVER), *self.assignment.labelled])
            case "validation" if participant < 0:
                positions = self.split.validation_N
            case "unlabelled":
                positions = self._unlabelled(participant, round_number)
            case "everyones" | "validation":
                positions = _NONE
            case _:
                raise ConfigError(f"a stream's part: {name!r}; {nearest(name, get_args(PartName))}")
        images_NCHW: Tensor = self.data.train_images_NCHW
        truth_N: Tensor | None = self._truth_N
        if name == "unlabelled" and self.experiment.data.unlabelled == "extra":
            assert self.data.unlabelled_images_NCHW is not None  # the set's own unlabelled split has no known labels
            images_NCHW, truth_N = self.data.unlabelled_images_NCHW, None
        return Part(
            images_NCHW=images_NCHW,
            positions_N=torch.as_tensor(positions, dtype=torch.int64),
            labels_N=None if name == "unlabelled" and self.assignment.hidden else truth_N,
            truth_N=truth_N,
        )

    @cached_property
    def _truth_N(self) -> Tensor:
        """Return the labels of all training images, with -1 for unknown classes."""
        labels_N = self.data.train_labels_N
        return torch.where(labels_N < self.data.num_classes, labels_N, -1) if self.data.unknown else labels_N

    def _labelled(self, participant: int) -> np.ndarray:
        if participant >= 0:
            return self.assignment.labelled[participant]
        at_server = _NONE if self.experiment.data.label_setting == "one_more_client" else self.split.server_N
        if participant == SERVER or not self.assignment.hidden:
            return at_server
        return np.concatenate([at_server, *self.assignment.labelled])

    def _unlabelled(self, participant: int, round_number: int) -> np.ndarray:
        if participant == CENTRAL:
            return np.concatenate(self.assignment.unlabelled)
        if participant == SERVER:
            return _NONE
        steps = self.experiment.data.streaming_steps
        if steps == 1 or not len(self.assignment.unlabelled[participant]):
            return self.assignment.unlabelled[participant]
        return self._arrivals[participant][(round_number - 1) % steps]  # rounds count from 1

    @cached_property
    def _arrivals(self) -> Mapping[int, tuple[np.ndarray, ...]]:
        steps, seed = self.experiment.data.streaming_steps, self.experiment.seed
        return {
            client: arrivals(positions_N, steps, seed, client)
            for client, positions_N in enumerate(self.assignment.unlabelled)
            if len(positions_N)
        }

    @property
    def sizes(self) -> Mapping[int, int]:
        """Return the numbers of images of each client, labelled and unlabelled, and of labelled images of SERVER.

        `sizes - labelled` is the size of a client's subset "unlabelled" in all label settings except "everywhere",
        where it is 0. Images in both subsets therefore count twice with "drawn_apart".
        """
        # With "everywhere", both subsets contain the same images.
        labelled = [len(some_N) if self.assignment.hidden else 0 for some_N in self.assignment.labelled]
        sizes = {client: labelled[client] + len(others_N) for client, others_N in enumerate(self.assignment.unlabelled)}
        return {**sizes, SERVER: len(self._labelled(SERVER))}

    @cached_property
    def class_counts(self) -> dict[str, list[Any]]:
        """Count the images of each class, like `fssl data partition`.

        (d,) "server" counts its training images; known classes precede unknown ones. (K, d) "clients" is missing if
        clients have the set's own unlabelled images, because their classes are unknown. (K, d) "labelled" exists if
        clients have additional labelled images.
        """
        labels_N = self.data.train_labels_N.numpy()
        split = self.split
        counted = {"server": split.counts(labels_N, [split.server_N])[0].tolist()}
        if self.experiment.data.unlabelled != "extra":
            counted["clients"] = split.counts(labels_N).tolist()
        if split.labelled:
            counted["labelled"] = split.counts(labels_N, split.labelled).tolist()
        return counted

    @property
    def labelled(self) -> Mapping[int, int]:
        """Return the numbers of images with visible labels, of each client and of SERVER."""
        counts = {client: len(positions_N) for client, positions_N in enumerate(self.assignment.labelled)}
        return {**counts, SERVER: len(self._labelled(SERVER))}

    def network(self, model: Model | None = None, device: str | torch.device = CPU) -> nn.Module:
        """Build a network with the run's initial weights, which depend only on the seed of the model or of the run.

        `model` replaces the experiment's model. The images' memory format is chosen for the device.
        """
        model = self.experiment.model if model is None else model
        data = self.data
        seed = self.experiment.seed if model.seed is None else model.seed
        network = build(model, data.image_shape, data.num_classes, seed=seed)
        place = torch.device(device)
        order = memory_format(place, self.experiment.precision, model)
        if place.type == "cuda" and order is torch.channels_last:
            keep_channels_last(network)
        return network.to(device).to(memory_format=order)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Return the names of the network's weights that are not trained."""
        return tuple(name for name, _ in self.network().named_buffers())

    @cached_property
    def tied(self) -> frozenset[str]:
        """Return the additional names of tensors that the network has under two names, which are sent only once."""
        first: dict[int, str] = {}
        named = self.network().state_dict(keep_vars=True).items()
        return frozenset(name for name, tensor in named if first.setdefault(id(tensor), name) != name)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Return the names of the network's parameters that are not trained and belong to no weight set."""
        return fixed_names(self.network())

    def fixed_bytes(self, model: Model | None = None) -> int:
        """Return the bytes of the parameters that are not trained, which a client downloads once."""
        if not self.fixed:
            return 0
        if model not in self._fixed_bytes:
            network = self.network(model)
            fixed = [parameter for parameter in network.parameters() if not parameter.requires_grad]
            self._fixed_bytes[model] = sum(parameter.nbytes for parameter in fixed)
        return self._fixed_bytes[model]

    @cached_property
    def _fixed_bytes(self) -> dict[Model | None, int]:
        return {}

    def whole(self, weights: Weights) -> Weights:
        """Return the weight set with the parameters that are not trained, in the order of the network's state dict."""
        if not self.fixed:
            return weights
        own = self.network().state_dict()
        return {name: weights[name] if name in weights else value.detach() for name, value in own.items()}

    def setup(self) -> Setup:
        federation = self.experiment.federation
        return Setup(
            initial_weights=lambda model=None: weights_of(self.network(model)),
            generator=lambda *names: numpy_stream(self.experiment.seed, "start", *names),
            model=self.experiment.model,
            num_classes=self.data.num_classes,
            buffers=lambda: self.buffers,
            fixed=lambda: sorted(self.fixed),
            width=lambda: cast(nn.Linear, self.network().get_submodule(head_of(self.experiment.model))).in_features,
            K=self.K,
            C=federation.C,
            T=federation.T,
            sizes=self.sizes,
            labelled=self.labelled,
        )

    def world(self, round_number: int, fit: Callable[[Sequence[Job]], Iterator[Outcome]]) -> World:
        """Return the method's view of a round; its `fit` runs the jobs."""
        federation, seed = self.experiment.federation, self.experiment.seed
        known = {**vars(self.setup()), "generator": lambda *names: numpy_stream(seed, "round", round_number, *names)}
        limit = Limit(steps=federation.T) if federation.epochs is None else Limit(epochs=federation.epochs)
        return World(**known, round=round_number, rounds=federation.rounds, limit=limit, fit=fit)


_NONE = np.zeros(0, dtype=np.int64)


def fixed_names(network: nn.Module) -> frozenset[str]:
    """Return the names of a new network's parameters that are not trained (`requires_grad` is False).

    They are neither sent nor averaged: each participant builds them from the seed, or downloads them once.
    """
    named = network.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in named if not parameter.requires_grad)


def weights_of(network: nn.Module, names: Collection[str] | None = None) -> Weights:
    """Return copies of the network's weights with these names; by default, of all that a weight set has.

    These are the trained parameters and the buffers.
    """
    own = network.state_dict()
    wanted = own.keys() - fixed_names(network) if names is None else names
    return {name: value.detach().clone() for name, value in own.items() if name in wanted}


def prepare(
    experiment: Experiment, *, data: DataSet | None = None, split: Callable[[IntArray, SplitSpec], Split] = split
) -> Environment:
    """Load and split the data, and check the method against them.

    If `data` is given, it is used instead of loading a set. `split` is the function that splits it. Raise ConfigError
    or DataError before any training.
    """
    settings = experiment.data
    partition_seed = experiment.seed if settings.partition_seed is None else settings.partition_seed
    data = load(settings.name) if data is None else data
    extra = _extra_images(experiment, data)
    if settings.pooled_test:
        data = pooled(data, settings.pooled_test, partition_seed)
    if settings.test_statistics == "released_code":
        data = as_released(data)
    if settings.label_setting == "open":
        data = with_unknown(data, settings.unknown_classes)
    labels_N = data.train_labels_N.numpy()
    spec = SplitSpec(
        num_classes=data.num_classes + len(data.unknown),
        N_s=settings.N_s,
        K=experiment.federation.K,
        partition=experiment.partition,
        seed=partition_seed,
        N_validation=settings.N_validation,
        labels_per_client=settings.labels_per_client if settings.label_setting == "every_client" else 0,
        images=settings.images,
        labelled_share=settings.labelled_share if settings.label_setting == "drawn_apart" else 0,
        unknown_classes=len(data.unknown),
        unknown_share=settings.unknown_share if data.unknown else 0,
    )
    divided = split(labels_N, spec)
    assigned = assign_labels(
        divided,
        labels_N,
        settings.label_setting,
        labelled_clients=settings.labelled_clients,
        labelled_choice=settings.labelled_choice,
        labelled_share=settings.labelled_share,
    )
    if extra:
        assigned = with_extra(assigned, experiment.federation.K, extra, partition_seed, settings.images)
    environment = Environment(experiment=experiment, data=data, split=divided, assignment=assigned)
    name = method_name(experiment.method)
    if (steps := settings.streaming_steps) > 1:
        if getattr(experiment.method, "asks_for_all_images", False):
            raise ConfigError(f"data.streaming_steps is {steps}, but {name!r} needs all images at once; choose 1")
        _ = environment._arrivals  # raises ConfigError, if at all, before any training
    if settings.label_setting not in ("server", "open") and not any(map(len, assigned.labelled)):
        raise ConfigError("data.label_setting: the clients that should have labels have no images; choose others")
    if experiment.model.norm == "sbn" and not getattr(experiment.method, "asks_for_statistics", False):
        raise ConfigError(
            f"model.norm is 'sbn', but method {name!r} does not compute its statistics; choose gn, in, ln, bn or none"
        )
    experiment.method.check(environment.setup())
    return environment


def _extra_images(experiment: Experiment, data: DataSet) -> int:
    """Return how many images of the set's own unlabelled split the clients get, or 0 if they get training images.

    Clients get equal shares, because images without labels cannot be skewed by class (SSFL appendix I). Raise
    ConfigError if the data set has no such images, or if the partition is skewed.
    """
    if experiment.data.unlabelled != "extra":
        return 0
    name = experiment.data.name
    partition = experiment.partition
    images_NCHW = data.unlabelled_images_NCHW
    if images_NCHW is None or not len(images_NCHW):
        raise ConfigError(f"data.unlabelled is 'extra', but {name} has no unlabelled split; choose 'train'")
    if partition.R_nominal != 0.0:
        raise ConfigError(f"partition is {partition}, but data.unlabelled 'extra' has no labels; choose iid")
    return len(images_NCHW)
