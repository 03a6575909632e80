"""From a few factors, by the papers' letters, to an experiment.

    {"R": 0.4, "T": 8, "method": "grouping"}     free factors, in the arena's environment of that data set
    {"cell": "ssfl/tab2:Grouping/full"}          a paper's cell

either with "profile" and "seed". What is not given stays as the environment (or the cell) has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from benchmark.config import nearest
from benchmark.data.partition import ClassSkew, Dirichlet
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.arena import UNTUNED
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES

DEFAULT_PROFILE = "laptop"
ENVIRONMENTS: Mapping[str, str] = {"digits": "arena/digits", "mnist": "arena/mnist", "cifar10": "arena/cifar10"}
# Method in a grid -> method of the arena; each untuned.
METHODS: Mapping[str, str] = {
    "crl": "SSFL, FedAvg",
    "grouping": "SSFL, grouping",
    "semifl": "SemiFL",
    "rscfed": "RSCFed",
    "fed_consist": "Fed-Consist",
    "fedprox_fixmatch": "FedProx-FixMatch",
    "ts_server_ema": "TS-Server EMA",
    "ts_client_ema": "TS-Client EMA",
    "fedswitch": "FedSwitch",
    "server_only": "Server only",
    "central_fixmatch": "Central FixMatch",
    "supervised": "Supervised FedAvg",
}


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The type of its values, and the function that puts one into an experiment."""

    kind: type
    put: Callable[[Experiment, Any], Experiment]


def _local_steps(experiment: Experiment, value: int) -> Experiment:
    return replace(experiment, federation=replace(experiment.federation, T=value))


def _labels(experiment: Experiment, value: int) -> Experiment:
    return replace(experiment, data=replace(experiment.data, N_s=value))


def _class_skew(experiment: Experiment, value: float) -> Experiment:
    old = experiment.partition
    return replace(experiment, partition=replace(old, R=value) if isinstance(old, ClassSkew) else ClassSkew(R=value))


def _dirichlet(experiment: Experiment, value: float) -> Experiment:
    """As arena/alpha has it: no client with fewer than two images."""
    return replace(experiment, partition=Dirichlet(alpha=value, min_size=2))


def _groups(experiment: Experiment, value: int) -> Experiment:
    method = experiment.method
    if not hasattr(getattr(method, "averaging", None), "S"):
        raise ConfigError(f"S: {value} groups, but the method has none; give method=grouping")
    return replace(experiment, method=replace(method, averaging=replace(method.averaging, S=value)))


# K and C are put together (`_sizes`): one after the other, the cohort could exceed the clients in between.
FACTORS: Mapping[str, Factor] = {
    "R": Factor(kind=float, put=_class_skew),
    "alpha": Factor(kind=float, put=_dirichlet),
    "T": Factor(kind=int, put=_local_steps),
    "N_s": Factor(kind=int, put=_labels),
    "S": Factor(kind=int, put=_groups),
}
SIZES = ("K", "C")
CHOICES: Mapping[str, Mapping[str, str]] = {"method": METHODS, "data": ENVIRONMENTS}
NAMES = (*FACTORS, *SIZES, *CHOICES, "seed", "profile", "cell")


def experiment_of(values: Mapping[str, Any]) -> Experiment:
    """The experiment of these factors. Raises ConfigError that names the factor, its value and what to write."""
    for name, value in values.items():
        check(name, value)
    profile, seed = values.get("profile", DEFAULT_PROFILE), values.get("seed", 0)
    if "cell" in values:
        if factors := values.keys() - {"cell", "profile", "seed"}:
            raise ConfigError(f"{min(factors)}: a cell fixes all factors; leave out cell, or this factor")
        return cell_named(values["cell"], profile).with_seed(seed)
    if {"R", "alpha"} <= values.keys():
        raise ConfigError("R and alpha: images are divided by one rule; give one of the two")
    experiment = _sizes(_environment(values, profile), values)
    for name, factor in FACTORS.items():
        if name in values:
            experiment = factor.put(experiment, factor.kind(values[name]))
    return experiment.with_seed(seed)


def check(name: str, value: Any) -> None:
    """Raises ConfigError where no factor has this name, or it cannot have this value."""
    if name not in NAMES:
        raise ConfigError(f"unknown factor {name!r}; {nearest(name, NAMES)}")
    words = {**CHOICES, "profile": PROFILES}.get(name)
    if words is not None and value not in words:
        raise ConfigError(f"unknown {name} {value!r}; {nearest(str(value), words)}")
    whole = name in (*SIZES, "seed") or (name in FACTORS and FACTORS[name].kind is int)
    if whole and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"{name}: {value!r} is not a whole number")
    if name in FACTORS and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise ConfigError(f"{name}: {value!r} is not a number")
    if name == "cell" and not isinstance(value, str):
        raise ConfigError(f"{name}: {value!r} is not a text")


def cell_named(name: str, profile: str) -> Experiment:
    """The experiment of "ITEM:LABEL". Raises ConfigError."""
    item_name, _, label = name.partition(":")
    return _cell(_item(item_name, profile), label)


@cache
def _item(name: str, profile: str) -> Item:
    """The item, built once for all combinations of a grid. Raises ConfigError."""
    named = items([name], profile)
    if len(named) != 1:
        raise ConfigError(f"cell: {name!r} is more than one item; write ITEM:LABEL")
    return named[0]


def _cell(item: Item, label: str) -> Experiment:
    labels = [cell.label for cell in item.cells]
    if label not in labels:
        raise ConfigError(f"cell: {item.name} has no cell {label!r}; {nearest(label, labels)}")
    return item.cell(label).experiment


def _environment(values: Mapping[str, Any], profile: str) -> Experiment:
    item = _item(ENVIRONMENTS[values.get("data", "digits")], profile)
    return _cell(item, f"{METHODS[values.get('method', 'crl')]}/{UNTUNED}")


def _sizes(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """K and C together. A cohort that is not given keeps its size, and is all clients where there are fewer."""
    K = values.get("K", experiment.federation.K)
    C = values.get("C", min(K, experiment.federation.C))
    return replace(experiment, federation=replace(experiment.federation, K=K, C=C))
