"""Read PAPER.toml: the experiment of a published line, and the reduced settings of the profiles.

`paper` is the experiment as published, and `gpu` has a tenth of its rounds. `demo` and `laptop`
need a reduced setting, which is a `Scale` in the paper's TOML file: surrogate data, a small
network, fewer clients and rounds. A `Scale` lists the fields that change, for any experiment with
any method. All other fields stay as in the paper: label setting, streams, pooled tests, local
epochs and the method's own switches.
"""

import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.config import from_plain, merge, nearest
from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.data.randaugment import RandAugment
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment, from_json, to_json
from benchmark.models.build import Model
from benchmark.optimizer import Cosine, Optimizer

PROFILES = ("demo", "laptop", "gpu", "paper")  # from the smallest to the published one
REDUCED = ("demo", "laptop")  # profiles with reduced settings
FULL_SIZE = ("gpu", "paper")

# Augmentations of the surrogate data sets, by their name in PAPER.toml. Digits are not mirrored, because a mirrored
# 2 is not a 2. The released codes mirror them; this is a deviation of the reduced settings.
_UNMIRRORED = Weak(flip=0.0, padding_mode="zero")
AUGMENTATIONS: Mapping[str, Augmentation] = {
    "mnist": Augmentation(weak=_UNMIRRORED, strong=RandAugment(pool="ssfl")),
    "digits": Augmentation(weak=_UNMIRRORED, strong=Gentle(translate=0.0, contrast_probability=0.0, cutout=0.25)),
    "unshifted_digits": Augmentation(
        weak=replace(_UNMIRRORED, crop_padding=0.0),
        strong=Gentle(translate=0.125, geometry_probability=0.9, contrast_probability=0.0, cutout=0.25),
    ),
}


def read_data(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return fields of `Data`, with a name of an augmentation replaced by its entry of `AUGMENTATIONS`.

    Raise ConfigError if the name is unknown.
    """
    name = fields.get("augmentation")
    if name is None:
        return dict(fields)
    if name not in AUGMENTATIONS:
        raise ConfigError(f"{path}.augmentation is {name!r}, which is unknown; {nearest(name, AUGMENTATIONS)}")
    return {**fields, "augmentation": AUGMENTATIONS[name]}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A reduced setting: the fields that it changes. A field that is None or not named stays as in the paper."""

    title: str  # name of the surrogate data set for readers: "MNIST"
    data: Mapping[str, Any] = field(default_factory=dict, metadata={"read": read_data})  # fields of Data
    partition: Mapping[str, Any] = field(default_factory=dict)  # fields of the partition
    model: Model | None = None
    method: Mapping[str, Any] = field(default_factory=dict)  # fields, applied to the methods that have them
    batch_size: int | None = None  # of clients and server
    server_batch_size: int | None = None  # of the server, if it differs
    warm_start_rounds: int | None = None  # rounds with training on labels only
    K: int | None = None
    C: int | None = None
    T: int | None = None  # local steps, which replace the paper's epochs
    rounds: int | None = None
    optimizer: Optimizer | None = None
    evaluation: Evaluation | None = None
    notes: tuple[str, ...] = ()  # shown below the table
    own: Mapping[str, Any] = field(default_factory=dict)  # numbers that only the paper's `scale` function uses


def check_profile(name: str) -> None:
    """Raise ConfigError if there is no profile with that name."""
    if name not in PROFILES:
        raise ConfigError(f"unknown profile {name!r}; choose {', '.join(PROFILES[:-1])} or {PROFILES[-1]}")


def scaled(experiment: Experiment, scale: Scale, profile: str) -> Experiment:
    """Return the experiment with the fields of the reduced setting, whatever its method."""
    sizes = {name: getattr(scale, name) for name in ("K", "C", "T", "rounds")}
    federation = {name: size for name, size in sizes.items() if size is not None}
    if scale.T is not None:
        federation["epochs"] = None  # local steps replace epochs
    method: dict[str, Any] = dict(scale.method)
    if scale.batch_size is not None:
        method |= {"batch_size": scale.batch_size, "server_batch_size": scale.server_batch_size or scale.batch_size}
    if scale.warm_start_rounds is not None:
        method["warm_start_rounds"] = scale.warm_start_rounds
    return replace(
        experiment,
        data=replace(experiment.data, **scale.data),
        partition=replace(experiment.partition, **scale.partition),
        model=scale.model or experiment.model,
        method=with_fields(experiment.method, method),
        federation=replace(experiment.federation, **federation),
        optimizer=scale.optimizer or experiment.optimizer,
        evaluation=scale.evaluation or experiment.evaluation,
        profile=profile,
    )


def changed(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return the experiment with these fields, by their dotted names; "None" means no value. Raise ConfigError."""
    plain = to_json(experiment)
    merge(plain, dict(values))
    return from_json(plain)


def with_fields(method: Any, wanted: Mapping[str, Any]) -> Any:
    """Return the method with these values, for the fields that it has."""
    has = {f.name for f in fields(method)}
    return replace(method, **{name: value for name, value in wanted.items() if name in has})


def tenth(experiment: Experiment) -> Experiment:
    """Return the experiment under `gpu`: full data and network, a tenth of the rounds and of the
    learning-rate schedule.
    """
    federation = replace(experiment.federation, rounds=max(1, experiment.federation.rounds // 10))
    share = federation.rounds / experiment.federation.rounds
    optimizer = experiment.optimizer
    schedule = optimizer.schedule
    if isinstance(schedule, Cosine) and schedule.steps is not None:
        shorter = replace(schedule, steps=schedule.steps // 10, warmup_steps=schedule.warmup_steps // 10)
        optimizer = replace(optimizer, schedule=shorter)
    evaluation = replace(
        experiment.evaluation,
        every=max(1, 256 // federation.T) if federation.epochs is None else experiment.evaluation.every,  # local steps
        gradient_diversity_every=round(experiment.evaluation.gradient_diversity_every * share),
    )
    return replace(experiment, federation=federation, optimizer=optimizer, evaluation=evaluation, profile="gpu")


def profile_of(profile: str, available: Iterable[str]) -> str:
    """Return the available profile with the runs that `profile` would repeat: the largest one not
    above it, or the smallest if all are above it.

    Raise ConfigError if there is no profile with that name.
    """
    check_profile(profile)
    known = [name for name in PROFILES if name in set(available)]
    below = [name for name in known if PROFILES.index(name) <= PROFILES.index(profile)]
    return below[-1] if below else known[0]


# Reading PAPER.toml.


@cache
def values_of(paper: str) -> Mapping[str, Any]:
    """Read the file's tables. Raise ConfigError for an unknown `like`."""
    return alike(tomllib.loads(Path(__file__).with_name(f"{paper}.toml").read_text()), f"{paper}.toml")


def alike(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the tables with `like` resolved: such a table has the values of the table it names,
    except for the values that it sets.

    `like` names a table on the same level. Raise ConfigError that begins with `where` and the
    table's name.
    """
    whole = {}
    for name, own in tables.items():
        if isinstance(own, dict):
            like = own.get("like", name)
            if like not in tables:
                raise ConfigError(f"{where}.{name}.like is {like!r}, which is unknown; {nearest(like, tables)}")
            own = {key: value for key, value in {**tables[like], **own}.items() if key != "like"}
            own = alike(own, f"{where}.{name}")
        whole[name] = own
    return whole


def experiment_of(paper: str, line: Mapping[str, Any], fields: Mapping[str, Any] | None = None) -> Experiment:
    """Return the experiment of a published line, from [experiment] and [keys] of PAPER.toml.

    A key of [keys] is the dotted name of a field, or has a table of fields for each of its values.
    Keys apply in the file's order, and then `fields`; each overrides earlier values. Raise
    ConfigError for a value without a table.
    """
    file = values_of(paper)
    plain: dict[str, Any] = deepcopy(file["experiment"])
    for key, sets in file["keys"].items():
        value = line.get(key)
        if value is None:
            continue
        if isinstance(sets, str):
            merge(plain, {sets: value})
        elif str(value) in sets:
            merge(plain, deepcopy(sets[str(value)]))
        else:
            raise ConfigError(f"{key} is {value!r}, which no table of {paper} has; {nearest(str(value), sets)}")
    merge(plain, dict(fields or {}))
    return from_json(plain)


@cache
def reduced_settings(paper: str) -> Mapping[str, Mapping[str, Scale]]:
    """Return a paper's reduced settings by profile and name. Raise ConfigError."""
    reduced: dict[str, dict[str, Scale]] = {}
    for profile in REDUCED:
        tables = values_of(paper)[profile].items()
        reduced[profile] = {name: from_plain(Scale, table, f"{paper}.toml: {profile}.{name}") for name, table in tables}
    return reduced
