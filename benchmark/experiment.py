"""The frozen `Experiment`: everything that decides a run's numbers, its hash, its reading and writing.

Workers, paths, logging and devices are not in it; precision and every approximation are.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from benchmark.config import from_plain, to_plain
from benchmark.data.augment import Augmentation
from benchmark.data.partition import ClassSkew, Dirichlet, Iid
from benchmark.errors import ConfigError
from benchmark.methods.catalogue import method_name, read_method
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD

# Raised whenever a change moves numbers of existing experiments: old records then no longer count as done.
NUMERICS = 1


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which images, who holds labels, how batches are augmented."""

    name: str = "digits"  # a data set of benchmark.data.datasets, or folder:PATH
    N_s: int = 50  # labelled images at the server
    N_validation: int = 0  # further labelled images at the server, never trained on
    # "server": labels at the server only. "everywhere": clients hold the (oracle) labels of their images, too.
    label_setting: Literal["server", "everywhere"] = "server"
    augmentation: Augmentation = Augmentation()

    def __post_init__(self) -> None:
        for name, least in (("N_s", 1), ("N_validation", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)}; at least {least} would be right")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The environmental factors K, C, T and the number of rounds."""

    K: int = 10  # clients
    C: int = 10  # cohort size
    T: int = 16  # local steps per round
    rounds: int = 100

    def __post_init__(self) -> None:
        for name in ("K", "C", "T", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)}; at least 1 would be right")
        if self.C > self.K:
            raise ConfigError(f"C: a cohort of {self.C} from {self.K} clients; C <= K would be right")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured, how often, and which round counts. Leaving a measurement out changes no other number."""

    every: int = 10  # rounds between tests on the test set; the last round is always tested
    validation: bool = False  # measure on the held-out labels instead of the test set (for choosing settings)
    # Which round counts. A rule that selects on test data comes with the first paper that did so, named on its page.
    selection: Literal["last"] = "last"
    gradient_diversity_every: int = 0  # rounds between exact gradient diversities (Eq. 1); 0: never

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("gradient_diversity_every", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: {getattr(self, name)}; at least {least} would be right")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run: a cell and a seed."""

    data: Data = Data()
    partition: ClassSkew | Dirichlet | Iid = ClassSkew(R=0.4)
    model: Model = Model(network="tiny_cnn", norm="gn", norm_groups=4)
    method: Any = field(default=SSFL(), metadata={"read": read_method})
    federation: Federation = Federation()
    optimizer: SGD = SGD()
    evaluation: Evaluation = Evaluation()
    profile: str = "custom"  # how far it is scaled down; written down, and no part of the cell's hash
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed: {self.seed}; 0 or more would be right")
        if self.evaluation.validation and self.data.N_validation == 0:
            raise ConfigError("evaluation.validation: true needs data.N_validation > 0 labels held out at the server")
        if self.data.label_setting not in self.method.needs:
            raise ConfigError(
                f"data.label_setting: {self.data.label_setting!r} does not suit method {method_name(self.method)!r}; "
                f"{' or '.join(sorted(map(repr, self.method.needs)))} would be right"
            )

    @cached_property
    def cell_key(self) -> str:
        """16 hexadecimal digits that name the cell: equal settings, equal key, whatever the seed."""
        plain = {key: value for key, value in to_json(self).items() if key not in ("seed", "profile")}
        canonical = json.dumps({"numerics": NUMERICS, **plain}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def with_seed(self, seed: int) -> "Experiment":
        return replace(self, seed=seed)


def to_json(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment as JSON values."""
    plain = to_plain(experiment)
    plain["method"]["kind"] = method_name(experiment.method)
    del plain["kind"]
    return plain


def from_json(data: Mapping[str, Any]) -> Experiment:
    """The experiment of these JSON values; missing fields take their defaults. Raises ConfigError."""
    return from_plain(Experiment, data)
