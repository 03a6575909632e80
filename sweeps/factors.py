"""Build an experiment from a few factors, which are named by the papers' letters.

    {"R": 0.4, "T": 8, "method": "grouping"}     factors, set in the comparison's environment for the data set
    {"cell": "ssfl/tab2:Grouping/full"}          a paper's cell

Both forms accept "profile", "seed" and any field by its dotted name ("optimizer.lr"). Other fields keep the values of
the environment or the cell.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from benchmark.config import choose, full_name, merge, nearest, scalar
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, fill_dependent_defaults, from_json, to_json
from benchmark.papers.arena import ENTRIES, FILE, UNTUNED
from benchmark.papers.items import cell_named, items
from benchmark.papers.scale import PROFILES
from benchmark.papers.warm_start import check_reaches_clients, ends_in_warm_start

DEFAULT_PROFILE = "laptop"
ENVIRONMENTS: Mapping[str, str] = {name: f"arena/{name}" for name in FILE["environments"]}
METHODS: Mapping[str, str] = {entry.word: entry.name for entry in ENTRIES}  # untuned entries
# Maps each factor to the field of the experiment that it sets.
FIELDS: Mapping[str, str] = {
    "R": "partition.R",
    "alpha": "partition.alpha",
    "T": "federation.T",
    "N_s": "data.N_s",
    "S": "method.averaging.S",
    "K": "federation.K",
    "C": "federation.C",
}
CHOICES: Mapping[str, Mapping[str, str]] = {"method": METHODS, "data": ENVIRONMENTS}
GROUPS = tuple(f.name for f in fields(Experiment) if f.name not in ("seed", "profile"))  # first parts of dotted names
NAMES = (*FIELDS, *CHOICES, "seed", "profile", "cell")


def experiment_of(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment of these factors. Raise ConfigError that names the factor, its value and a valid value."""
    for name, value in values.items():
        check(name, value)
    seed = values.get("seed", 0)
    if not isinstance(seed, int):
        raise ConfigError(f"seed: {seed!r} is not a whole number")
    return _at_first_seed(tuple((name, value) for name, value in values.items() if name != "seed")).with_seed(seed)


def long_enough(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment of these factors. Raise ConfigError also if it ends before its clients train.

    A paper's cell that does so by design passes.
    """
    experiment = experiment_of(values)
    if ends_in_warm_start(experiment):
        profile = values.get("profile", DEFAULT_PROFILE)
        check_reaches_clients(experiment, cell_named(str(values["cell"]), profile) if "cell" in values else None)
    return experiment


def check(name: str, value: Any) -> None:
    """Raise ConfigError for a name that is not a factor, and for an unknown method, data set or profile.

    Whether a number suits its field is checked when the experiment is made.
    """
    if "." in name and name.partition(".")[0] in GROUPS:
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(f"{name} is {value!r}, which is not the value of a single field; give one value")
        return
    if name not in NAMES:
        raise ConfigError(f"unknown factor {name!r}; {full_name(name, Experiment) or nearest(name, NAMES)}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ConfigError(f"{name} is {value!r}, which is neither a number nor a name")
    if name in FIELDS and isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}, but it must be a number")
    words = {**CHOICES, "profile": PROFILES}.get(name)
    if words is not None and value not in words:
        meant = _named_so(str(value)) if name == "method" else ""
        raise ConfigError(f"unknown {name} {value!r}; {meant or nearest(str(value), words)}")


def _named_so(text: str) -> str:
    """Return a hint if the text is a part of a method's name: for "fedavg", which is in "SSFL, FedAvg", name crl.

    Return an empty text if there is no such method.
    """
    typed = _letters(text)
    meant = [f"{word!r} ({name})" for word, name in METHODS.items() if typed and typed in _letters(name)]
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


@cache  # a grid requests each of these experiments with many seeds
def _at_first_seed(given: tuple[tuple[str, Any], ...]) -> Experiment:
    values = dict(given)
    profile = values.pop("profile", DEFAULT_PROFILE)
    if "cell" in values:
        name = values.pop("cell")
        if letters := [factor for factor in values if "." not in factor]:
            raise ConfigError(f"{min(letters)} is fixed by the cell; leave out cell, or give a field by its name")
        return with_fields(to_json(cell_named(str(name), profile)), values)
    if {"R", "alpha"} <= values.keys():
        raise ConfigError("R and alpha are both given, but images are divided by one rule; give one of the two")
    plain = to_json(_untuned(values.get("data", "digits"), values.get("method", "crl"), profile))
    if "R" in values and plain["partition"]["kind"] != "class_skew":
        plain["partition"] = {"kind": "class_skew"}
    if "alpha" in values and plain["partition"]["kind"] != "dirichlet":
        plain["partition"] = {"kind": "dirichlet", "min_size": 2}  # as in arena/alpha
    if "S" in values and "S" not in plain["method"].get("averaging", {}):
        raise ConfigError(f"S is {values['S']}, but the method has no groups; give method=grouping")
    by_letter = {field: values[name] for name, field in FIELDS.items() if name in values}
    by_name = {name: value for name, value in values.items() if "." in name}
    if twice := by_letter.keys() & by_name.keys():
        raise ConfigError(f"{min(twice)} is also given by its letter; give it once")
    return with_fields(plain, by_letter | by_name)


def _untuned(data: str, method: str, profile: str) -> Experiment:
    """Return the untuned cell of the method. Raise ConfigError if the comparison lacks the method on that data."""
    label = f"{METHODS[method]}/{UNTUNED}"
    known = {}
    for name, item in ENVIRONMENTS.items():
        known[name] = {cell.label: cell for cell in items([item], profile)[0].cells}
    if label not in known[data]:
        others = choose(f"data={name}" for name, cells in known.items() if label in cells)
        raise ConfigError(f"method {method!r} does not suit data={data}; {others}")
    return known[data][label].experiment


def with_fields(plain: dict[str, Any], values: Mapping[str, Any], given: Iterable[str] = ()) -> Experiment:
    """Return the experiment of these JSON values after setting `values` by dotted names.

    `given` are other fields that the user set. A kind is set before its fields, whatever their order, since a
    different kind drops fields that were set before.
    """
    for name in sorted(values, key=lambda name: name.removesuffix(".kind").count(".")):
        merge(plain, {name: scalar(values[name]) if isinstance(values[name], str) else values[name]})
    fill_dependent_defaults(plain, {*values, *given})
    return from_json(plain)
