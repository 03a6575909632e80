"""The frozen `Experiment`: everything that decides a run's numbers.

Also its hash, its reading and its writing. Workers, paths, logging and devices are not part of it; precision and every
approximation are.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from benchmark.config import Checked, Count, ShareBetween, Whole, added, choose, from_plain, to_plain, values_before
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
    """The images, who holds labels, and how batches are augmented."""

    name: str = "digits"  # a data set of benchmark.data.datasets, or folder:PATH
    N_s: Whole = 50  # labelled images at the server; of a folder ten a class, where it is not given
    N_validation: Whole = 0  # further labelled images at the server, never trained on
    # "server": labels at the server only. "everywhere": clients hold the (oracle) labels of their images, too.
    # "every_client": a few of each class at each client (FedMatch). "some_clients": all or none of a client's images
    # (RSCFed). "share": a share of each client's images (RSCFed Table 5). "one_more_client": the server's labelled
    # images are client K's, for methods that train nothing at the server. "drawn_apart": as many images of each class
    # are labelled, and the partition rule deals them and the others out in two draws; a client's labelled images are
    # among its unlabelled ones, too (SAGE).
    label_setting: Literal[
        "server", "everywhere", "every_client", "some_clients", "share", "one_more_client", "drawn_apart"
    ] = "server"
    augmentation: Augmentation = Augmentation()
    labels_per_client: Count = added(5)  # of each class, at each client ("every_client")
    labelled_clients: Count = added(1)  # how many ("some_clients")
    # Which: those nearest to having all classes and the mean size, as the authors of RSCFed chose by hand, or the
    # first ones, as in their code (train_main.py:58-62) with their partition files.
    labelled_choice: Literal["balanced", "first"] = added("balanced")
    # Of each client's images ("share"); of the rarest class, whose number is that of every class ("drawn_apart").
    labelled_share: ShareBetween = added(0.1)
    streaming_steps: Count = added(1)  # parts in which unlabelled images arrive, one a round; 1: all from the start
    # Which images clients hold without labels: the rest of the training set, or the set's own unlabelled images
    # (STL-10's 100,000; the rest of its training set is then not used).
    unlabelled: Literal["train", "extra"] = added("train")
    pooled_test: Whole = added(0)  # test images drawn from train and test pooled (FedMatch); 0: the official split
    # How what is measured on is normalised: as training images, or otherwise than these (`as_released`, SAGE).
    test_statistics: Literal["training", "released_code"] = added("training")
    images: Whole = added(0)  # training images used at most, the same share of each class; 0: all

    read_with = {
        "labels_per_client": ("label_setting", ("every_client",)),
        "labelled_clients": ("label_setting", ("some_clients",)),
        "labelled_choice": ("label_setting", ("some_clients",)),
        "labelled_share": ("label_setting", ("share", "drawn_apart")),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "name", canonical_name(self.name))
        if not self.N_s and self.label_setting in ("server", "everywhere", "one_more_client"):
            raise ConfigError(f"N_s: 0 with label_setting {self.label_setting!r}; choose 1 or more")
        if self.N_s and self.label_setting == "drawn_apart":
            raise ConfigError(
                f"N_s: {self.N_s} with label_setting 'drawn_apart', where clients hold all labels; choose 0"
            )
        if self.unlabelled == "extra" and self.label_setting not in ("server", "one_more_client"):
            raise ConfigError(
                f"unlabelled: 'extra' images have no labels for label_setting {self.label_setting!r}; "
                "choose label_setting server or one_more_client"
            )


@dataclass(frozen=True, kw_only=True)
class Federation(Checked):
    """The environmental factors K, C, T and the number of rounds."""

    K: Count = 10  # clients
    C: Count = 10  # cohort size
    T: Count = 16  # local steps per round
    rounds: Count = 100  # of communication
    epochs: Count | None = added(None)  # E  local passes over a holder's images per round, in place of T local steps
    on_divergence: Literal["stop"] = added("stop")  # a loss or update that is not finite ends the run; records name it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.C > self.K:
            raise ConfigError(f"C: {self.C} clients in a round, but K is {self.K}; choose C from 1 to {self.K}")


@dataclass(frozen=True, kw_only=True)
class Evaluation(Checked):
    """What is measured, how often, and which round counts. Leaving a measurement out changes no other number."""

    every: Count = 10  # rounds between tests on the test set; the last round is always tested
    validation: bool = False  # measure on the held-out labels instead of the test set (for choosing settings)
    # Which round counts. "best_on_test" chooses on test data, as SemiFL (test_classifier_ssfl.py:40) and RSCFed
    # (README) did; every page that shows such a number says so.
    selection: Literal["last", "best_on_test"] = "last"
    gradient_diversity_every: Whole = 0  # rounds between exact gradient diversities (Eq. 1); 0: never


class LabelSettingError(ConfigError):
    """A label setting that the method of the experiment cannot use."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Checked):
    """One run: a cell and a seed."""

    data: Data = Data()
    partition: Partition = ClassSkew(R=0.4)
    model: Model = Model(network="tiny_cnn", norm="gn", norm_groups=4)
    method: Any = field(default=SSFL(), metadata={"read": read_method, "kinds": tuple(METHODS.values())})
    federation: Federation = Federation()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    # bf16: local training passes networks under autocast, with float32 weights, losses and evaluation. tf32: CUDA may
    # round the factors of convolutions and products to ten bits, as it did by default when the papers ran.
    precision: Precision = added("fp32")
    profile: str = "custom"  # how far it is scaled down; recorded, and not part of the cell's hash
    seed: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.evaluation.validation and self.data.N_validation == 0:
            raise ConfigError("evaluation.validation: true, but no labels are held out; set data.N_validation")
        if self.evaluation.validation and self.evaluation.selection != "last":
            raise ConfigError("evaluation.selection: 'best_on_test' with evaluation.validation true; choose last")
        if self.data.label_setting not in self.method.needs:
            raise LabelSettingError(
                f"data.label_setting: {self.data.label_setting!r} does not suit method {method_name(self.method)!r}; "
                f"{choose(sorted(self.method.needs))}"
            )

    @cached_property
    def cell_key(self) -> str:
        """16 hexadecimal digits that name the cell. Equal settings have equal keys, whatever the seed. How often is
        measured is left out, since it changes no number, except where it decides which round counts."""
        resolved = to_json(self, hashed=True)
        del resolved["evaluation"]["gradient_diversity_every"]
        if self.evaluation.selection != "best_on_test":
            del resolved["evaluation"]["every"]
        plain = {key: value for key, value in resolved.items() if key not in ("seed", "profile")}
        canonical = json.dumps({"numerics": NUMERICS, **plain}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def with_seed(self, seed: int) -> "Experiment":
        """The same cell with another seed; its key is not computed again."""
        experiment = replace(self, seed=seed)
        experiment.__dict__["cell_key"] = self.cell_key
        return experiment


def fill_dependent_defaults(data: dict[str, Any], given: Collection[str]) -> None:
    """Set what follows from the fields that a user set, in an experiment's JSON, where she did not set it herself.

    Ten labels a class at the server, where the data are a folder of her images; a cohort of at most all clients.
    `given`: dotted names of what she set.
    """
    if "data.name" in given and "data.N_s" not in given and (classes := number_of_classes(str(data["data"]["name"]))):
        data["data"]["N_s"] = 10 * classes
    if "federation.K" in given and "federation.C" not in given and isinstance(K := data["federation"]["K"], int):
        data["federation"]["C"] = min(K, data["federation"].get("C", K))


def to_json(experiment: Experiment, *, hashed: bool = False) -> dict[str, Any]:
    """The resolved experiment as JSON values. `hashed`: only what the cell's hash is made of."""
    plain = to_plain(experiment, hashed=hashed)
    plain["method"]["kind"] = method_name(experiment.method)
    del plain["kind"]
    return plain


def published(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment's JSON for others: a folder of images by its own name, without the path to it."""
    return {**experiment, "data": {**experiment["data"], "name": public_name(experiment["data"]["name"])}}


def from_json(data: Mapping[str, Any]) -> Experiment:
    """The experiment of these JSON values; missing fields have their defaults. Raises ConfigError."""
    return from_plain(Experiment, data)


def from_record(data: Mapping[str, Any]) -> Experiment:
    """The experiment of a record. Fields of a method that were added later have their value from before, and no
    file of a method or a network is imported (`check_known`). Raises ConfigError."""
    method, model = data.get("method"), data.get("model")
    kind = method.get("kind") if isinstance(method, Mapping) else method
    check_known(kind)
    check_known(model.get("network") if isinstance(model, Mapping) else None, "network")
    if isinstance(method, Mapping) and isinstance(kind, str) and kind in METHODS:
        data = {**data, "method": {**values_before(METHODS[kind]), **method}}
    return from_json(data)
