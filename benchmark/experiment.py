"""Define the frozen `Experiment`, which contains everything that decides a run's numbers.

The module also hashes, reads and writes experiments. Workers, paths, logging and devices are not part of an experiment;
precision and every approximation are.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from benchmark.config import (
    Checked,
    Count,
    ShareBelow1,
    ShareBetween,
    Whole,
    added,
    choose,
    from_plain,
    to_plain,
    values_before,
)
from benchmark.data.augment import Augmentation
from benchmark.data.folder import canonical_name, number_of_classes, public_name
from benchmark.data.partition import ClassSkew, Partition
from benchmark.errors import ConfigError
from benchmark.methods.registry import METHODS, check_known, method_name, read_method
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import Model
from benchmark.optimizer import Optimizer

# Part of every cell key and claim hash, so it stays 1. A change that moves numbers of existing experiments raises the
# version of a part in benchmark/numerics.py instead.
NUMERICS = 1
Precision = Literal["fp32", "bf16", "tf32"]


@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """The images, which participants have labels, and how batches are augmented."""

    name: str = "digits"  # a data set of benchmark.data.datasets, or folder:PATH
    N_s: Whole = 50  # number of labelled images at the server; default for a folder: ten per class
    N_validation: Whole = 0  # number of further labelled images at the server, which are never trained on
    # "server": labels only at the server. "everywhere": clients also have the (oracle) labels of their images.
    # "every_client": each client has a few labelled images of each class (FedMatch). "some_clients": all images of a
    # client are labelled, or none (RSCFed). "share": a share of each client's images is labelled (RSCFed Table 5).
    # "one_more_client": an additional client has the server's labelled images, for methods without server training.
    # "drawn_apart": equally many images of each class are labelled, and the partition rule assigns labelled and other
    # images to clients in two separate draws; a client's labelled images are also among its unlabelled ones (SAGE).
    # "open": open-set; labels only at the server, which has no image of the unknown classes, while a share of each
    # client's unlabelled images belongs to them.
    label_setting: Literal[
        "server", "everywhere", "every_client", "some_clients", "share", "one_more_client", "drawn_apart", "open"
    ] = "server"
    augmentation: Augmentation = Augmentation()
    labels_per_client: Count = added(5)  # number of labelled images per class and client ("every_client")
    labelled_clients: Count = added(1)  # number of clients with labels ("some_clients")
    # Which clients have labels. "balanced": the clients nearest to having all classes and the mean size, as the authors
    # of RSCFed chose by hand. "first": the first ones, as in their code (train_main.py:58-62) with their partition
    # files.
    labelled_choice: Literal["balanced", "first"] = added("balanced")
    # "share": labelled share of each client's images. "drawn_apart": labelled share of the rarest class; every other
    # class has the same number of labelled images.
    labelled_share: ShareBetween = added(0.1)
    streaming_steps: Count = added(1)  # unlabelled images arrive in this number of steps, one per round
    # The unlabelled images of clients: the rest of the training set, or the set's unlabelled images. STL-10 has 100,000
    # of them, and the rest of its training set is then not used.
    unlabelled: Literal["train", "extra"] = added("train")
    pooled_test: Whole = added(0)  # test images drawn from pooled train and test sets (FedMatch); 0: official split
    # How test images are normalised: like training images, or differently (`as_released`, SAGE).
    test_statistics: Literal["training", "released_code"] = added("training")
    images: Whole = added(0)  # largest number of training images, the same share of each class, or 0 for all
    # The seed that divides the images among test set, server and clients. If it is None, it is the seed of the run.
    # SSFL divided all its runs with seed 2019 (appendix A.4). Runs of different seeds are then no draws of the
    # partition.
    partition_seed: Whole | None = added(None)
    # "open": numbers of the unknown classes in the set's own order. Default: the last 4 of 10, the same
    # number as in OpenMatch on CIFAR-10, where the vehicles [0, 1, 8, 9] are unknown.
    unknown_classes: tuple[int, ...] = added((6, 7, 8, 9))
    unknown_share: ShareBelow1 = added(0.4)  # "open": share of unknown classes among each client's images

    read_with = {
        "labels_per_client": ("label_setting", ("every_client",)),
        "labelled_clients": ("label_setting", ("some_clients",)),
        "labelled_choice": ("label_setting", ("some_clients",)),
        "labelled_share": ("label_setting", ("share", "drawn_apart")),
        "unknown_classes": ("label_setting", ("open",)),
        "unknown_share": ("label_setting", ("open",)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "name", canonical_name(self.name))
        if not self.N_s and self.label_setting in ("server", "everywhere", "one_more_client", "open"):
            raise ConfigError(f"N_s is 0, but label_setting {self.label_setting!r} needs at least 1; choose 1 or more")
        if self.N_s and self.label_setting == "drawn_apart":
            raise ConfigError(
                f"N_s is {self.N_s}, but clients have all labels if label_setting is 'drawn_apart'; choose 0"
            )
        object.__setattr__(self, "unknown_classes", tuple(sorted(set(self.unknown_classes))))
        if self.unlabelled == "extra" and self.label_setting not in ("server", "one_more_client"):
            raise ConfigError(
                f"unlabelled is 'extra', but these images have no labels for label_setting {self.label_setting!r}; "
                "choose label_setting server or one_more_client"
            )


@dataclass(frozen=True, kw_only=True)
class Federation(Checked):
    """The environmental factors K, C, T and the number of rounds."""

    K: Count = 10  # number of clients
    C: Count = 10  # cohort size
    T: Count = 16  # local steps per round
    rounds: Count = 100  # communication rounds
    epochs: Count | None = added(None)  # E  local passes over a participant's images per round, instead of T steps
    on_divergence: Literal["stop"] = added("stop")  # a loss or update that is not finite ends the run and is recorded

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.C > self.K:
            raise ConfigError(f"C is {self.C}, but K is only {self.K}; choose C from 1 to {self.K}")


@dataclass(frozen=True, kw_only=True)
class Evaluation(Checked):
    """The measurements, their intervals, and the round that counts. No measurement changes the training."""

    every: Count = 10  # rounds between evaluations on the test set; the last round is always evaluated
    validation: bool = False  # evaluate on the held-out labelled images, not the test set, to choose settings
    # The round that counts. "best_on_test" selects it on test data, like SemiFL (test_classifier_ssfl.py:40) and RSCFed
    # (README); every page with such a number has a note about it.
    selection: Literal["last", "best_on_test"] = "last"
    gradient_diversity_every: Whole = 0  # rounds between measurements of exact gradient diversity (Eq. 1); 0 for never


class LabelSettingError(ConfigError):
    """A label setting that the method of the experiment cannot use."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Checked):
    """The settings of one run: a cell and a seed."""

    data: Data = Data()
    partition: Partition = ClassSkew(R=0.4)
    model: Model = Model(network="tiny_cnn", norm="gn", norm_groups=4)
    method: Any = field(default=SSFL(), metadata={"read": read_method, "kinds": tuple(METHODS.values())})
    federation: Federation = Federation()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    # bf16: networks run under autocast in local training; weights, losses and evaluation stay float32. tf32: CUDA may
    # round the factors of convolutions and matrix products to ten bits, its default when the papers were written.
    precision: Precision = added("fp32")
    profile: str = "custom"  # name of the profile that scaled the experiment down; recorded, not part of the cell key
    seed: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluation.validation and self.data.N_validation == 0:
            raise ConfigError(
                "evaluation.validation is true, but no labelled images are held out; set data.N_validation"
            )
        if self.evaluation.validation and self.evaluation.selection != "last":
            raise ConfigError(
                "evaluation.selection is 'best_on_test', but evaluation.validation is true; choose selection last"
            )
        if self.data.label_setting not in self.method.needs:
            raise LabelSettingError(
                f"data.label_setting {self.data.label_setting!r} does not suit method {method_name(self.method)!r}; "
                f"{choose(sorted(self.method.needs))}"
            )

    @cached_property
    def cell_key(self) -> str:
        """Return the 16 hexadecimal digits that identify the cell.

        Equal settings have equal keys, whatever the seed. The evaluation intervals are left out because they change no
        number, except `every` if it decides which round counts.
        """
        resolved = to_json(self, hashed=True)
        del resolved["evaluation"]["gradient_diversity_every"]
        if self.evaluation.selection != "best_on_test":
            del resolved["evaluation"]["every"]
        plain = {key: value for key, value in resolved.items() if key not in ("seed", "profile")}
        canonical = json.dumps({"numerics": NUMERICS, **plain}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def with_seed(self, seed: int) -> "Experiment":
        """Return an experiment of the same cell with a different seed, without computing the key again."""
        experiment = replace(self, seed=seed)
        experiment.__dict__["cell_key"] = self.cell_key
        return experiment


def fill_dependent_defaults(data: dict[str, Any], given: Collection[str]) -> None:
    """Set the fields of an experiment's JSON that depend on fields that the user set, unless the user set them too.

    If the data are a folder of images, the server gets ten labelled images per class. The cohort size is at most the
    number of clients. `given` contains the dotted names of the fields that the user set.
    """
    if "data.name" in given and "data.N_s" not in given and (classes := number_of_classes(str(data["data"]["name"]))):
        data["data"]["N_s"] = 10 * classes
    if "federation.K" in given and "federation.C" not in given and isinstance(K := data["federation"]["K"], int):
        data["federation"]["C"] = min(K, data["federation"].get("C", K))


def to_json(experiment: Experiment, *, hashed: bool = False) -> dict[str, Any]:
    """Return the resolved experiment as JSON values. If `hashed`, return only values that the cell's hash contains."""
    plain = to_plain(experiment, hashed=hashed)
    plain["method"]["kind"] = method_name(experiment.method)
    del plain["kind"]
    return plain


def published(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's JSON for publication: a folder of images has its name, but not the path to it."""
    return {**experiment, "data": {**experiment["data"], "name": public_name(experiment["data"]["name"])}}


def from_json(data: Mapping[str, Any]) -> Experiment:
    """Build the experiment from JSON values; missing fields get their defaults. Raise ConfigError for a wrong value."""
    return from_plain(Experiment, data)


def from_record(data: Mapping[str, Any]) -> Experiment:
    """Build the experiment of a run record.

    Fields of a method that were added after the record get their value from before. No file of a custom method or
    network is imported (`check_known`). Raise ConfigError for a wrong value.
    """
    method, model = data.get("method"), data.get("model")
    kind = method.get("kind") if isinstance(method, Mapping) else method
    check_known(kind)
    check_known(model.get("network") if isinstance(model, Mapping) else None, "network")
    if isinstance(method, Mapping) and isinstance(kind, str) and kind in METHODS:
        data = {**data, "method": {**values_before(METHODS[kind]), **method}}
    return from_json(data)
