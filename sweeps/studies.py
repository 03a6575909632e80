"""Tuning studies: what a paper does not report, over which ranges, and why.

Each is a TOML file, such as `fedswitch_open.toml` in this folder; a user's own has the same fields. `cells` names the
cell where the search begins, for each profile, and `fields` what begins with another value than the cell's.
"""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from optuna.trial import Trial

from benchmark.config import Checked, Count, Whole, choose, from_plain, nearest, quoted, read_as, scalar
from benchmark.data.content import data_hash
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment, to_json
from benchmark.methods.registry import method_name
from benchmark.papers.items import cell_named
from benchmark.plain import read_table
from benchmark.records.identity import own_names, sources
from sweeps.factors import with_fields

FIRST_SEED = 1000  # apart from the seeds of tables
DIGITS = 3  # significant digits of a value that is tried: finer differences are noise
EVALUATIONS = 5  # of a run; after each of them a trial may be pruned
SETS_ITSELF = ("seed", "profile", "evaluation")  # a study does: to search them would do nothing
HELD_OUT = 100  # labels at the server by default, at least; else as many as it trains on
SCALES = {"linear": "linear", "log": "logarithmic", "log below one": "logarithmic in 1 - value"}  # for people
Value: TypeAlias = float | str  # of a field: also a whole number or a truth value


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """A field that is searched between two values, ends included, or among some. Raises ConfigError.

    The storage holds a coordinate: the value itself, or 1 - value where the scale is "log below one". That scale suits
    a momentum or an EMA ratio m, whose memory is 1 / (1 - m) steps.
    """

    field: str  # of the experiment, with dots: "method.ratio"
    low: float = math.nan
    high: float = math.nan
    scale: Literal["linear", "log", "log below one"] = "linear"
    values: tuple[Any, ...] = ()  # in place of low and high
    reason: str = ""

    def __post_init__(self) -> None:
        if self.values and math.isnan(self.low) and math.isnan(self.high):
            return
        if self.values or not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"{self.field}: {self.low} to {self.high} is not a range; give low below high, or values")
        if self.scale != "linear" and self.coordinates[0] <= 0:
            raise ConfigError(f"{self.field}: {self.low} to {self.high} has no logarithm; move the end inside")

    @property
    def coordinates(self) -> tuple[float, float]:
        """The ends as the storage has them, the lower one first."""
        first, last = self.coordinate(self.low), self.coordinate(self.high)
        return min(first, last), max(first, last)

    def coordinate(self, value: Any) -> Any:
        return round(1 - value, 12) if self.scale == "log below one" else value

    def value(self, coordinate: Any) -> Any:
        """The field's value at a coordinate, which is rounded to `DIGITS` significant digits."""
        if self.values or isinstance(coordinate, int):
            return coordinate
        return self.coordinate(float(f"{coordinate:.{DIGITS}g}"))  # which is its own inverse

    def suggested(self, trial: Trial, *, whole: bool = False) -> Value:
        """`whole`: whole numbers alone."""
        if self.values:
            return cast(Value, trial.suggest_categorical(self.field, self.values))
        low, high = self.coordinates
        if whole:
            return trial.suggest_int(self.field, math.ceil(low), math.floor(high), log=self.scale == "log")
        return cast(Value, self.value(trial.suggest_float(self.field, low, high, log=self.scale != "linear")))

    def to_json(self) -> dict[str, Any]:
        """For people and pages."""
        ends = {"values": list(self.values)} if self.values else {"low": self.low, "high": self.high}
        scale = {} if self.values else {"scale": SCALES[self.scale]}
        return {"field": self.field, **ends, **scale, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Study(Checked):
    """A question to which no paper prints the answer, at a profile. Raises ConfigError."""

    name: str  # "fedswitch/open"
    title: str
    reason: str  # what is not reported, with its source
    profile: str
    experiment: Experiment  # the defaults, where the search begins
    space: tuple[Hyperparameter, ...]
    trials: Count = 24
    seeds: Count = 3  # runs of a trial
    startup: Whole = 10  # trials at random before TPE learns from them; the first is the default
    typed: str = ""  # what names it on a command line, where that is not its name

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = [span.field for span in self.space]
        if not fields:
            raise ConfigError("space: is empty; give one field or more to search")
        for span in self.space:
            if twice := [value for value in span.values if span.values.count(value) > 1]:
                raise ConfigError(f"{span.field}: has the value {twice[0]} more than once; give each value once")
        for field in fields:
            if fields.count(field) > 1:
                raise ConfigError(f"{field}: is searched twice; give it once")
            if field.partition(".")[0] in SETS_ITSELF:
                raise ConfigError(f"{field}: is set by the study itself; search another field")
        if not self.experiment.data.N_validation:
            raise ConfigError("data.N_validation is 0: a study chooses on labels held out at the server; set it")
        for span in self.space:
            default = self.defaults[span.field]
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            if default is not None and type(default) not in (bool, int, float, str):
                raise ConfigError(
                    f"{span.field}: is a table of fields or a list, which cannot be searched; search a field of it"
                )
            if not span.values and not is_number:
                raise ConfigError(f"{span.field}: {quoted(default)} is not a number; give values in place of a range")
            if default not in span.values and (span.values or not span.low <= default <= span.high):
                raise ConfigError(f"{span.field}: its default {default} is not among what is searched; add it")
        for field, value in ((s.field, value) for s in self.space for value in s.values or (s.low, s.high)):
            self.runs({**self.defaults, field: value})

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Field -> its value before the search."""
        return {span.field: _value(self.experiment, span.field) for span in self.space}

    @property
    def coordinates(self) -> dict[str, Any]:
        """Of the defaults."""
        return {span.field: span.coordinate(self.defaults[span.field]) for span in self.space}

    def suggested(self, trial: Trial) -> dict[str, Value]:
        """The values that the trial is to try."""
        return {s.field: s.suggested(trial, whole=isinstance(self.defaults[s.field], int)) for s in self.space}

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Field -> value, from the coordinates of a trial."""
        return {span.field: span.value(params[span.field]) for span in self.space}

    def runs(self, values: Mapping[str, Any]) -> tuple[Experiment, ...]:
        """The runs of a trial, one for each seed. Raises ConfigError where no experiment takes these values."""
        experiment = with_fields(to_json(self.experiment), values)
        evaluation = Evaluation(every=max(1, experiment.federation.rounds // EVALUATIONS), validation=True)
        experiment = replace(experiment, evaluation=evaluation)
        return tuple(experiment.with_seed(FIRST_SEED + index) for index in range(self.seeds))

    @cached_property
    def key(self) -> str:
        """8 hexadecimal digits that name the question.

        Another experiment, space or number of seeds is another study, and so is other code or another folder of images
        of one's own. The number of trials is left out: more of them extend the same study.
        """
        question: dict[str, Any] = {
            "default": self.runs(self.defaults)[0].cell_key,
            "space": [(s.field, *(s.values or (s.low, s.high, s.scale))) for s in self.space],
            "seeds": self.seeds,
        }
        plain = to_json(self.experiment)
        if own := own_names(plain):
            question["own"] = [sources(plain), plain["data"]["name"] in own and data_hash(plain)]
        return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def slug(self) -> str:
        """For file names: fedswitch-open-demo."""
        return re.sub(r"[^\w.]+", "-", f"{self.name}-{self.profile}")


def _value(experiment: Experiment, field: str) -> Any:
    try:
        return attrgetter(field)(experiment)
    except AttributeError as error:
        raise ConfigError(f"{field}: {error}") from None


def study_of_words(words: Sequence[str], experiment: Experiment, *, typed: str, **given: int) -> Study:
    """A search from `experiment` over "optimizer.lr=0.01..0.1:log" or "method.batch_size=16,32,64". Raises ConfigError.

    `given`: numbers of trials and seeds.
    """
    data = experiment.data
    if not data.N_validation:
        experiment = replace(experiment, data=replace(data, N_validation=max(HELD_OUT, data.N_s)))
    method, space = method_name(experiment.method), tuple(map(_span, words))
    study = Study(
        name=f"mine/{method}",
        title=f"{method}: {', '.join(span.field for span in space)}",
        reason=f"Searched by fssl tune {typed}",
        profile=experiment.profile,
        experiment=experiment,
        space=space,
        typed=typed,
        **given,
    )
    return replace(study, name=f"{study.name}-{study.key}")  # another search is another file


def _span(word: str) -> Hyperparameter:
    field, _, text = word.partition("=")
    low, dots, rest = text.partition("..")
    high, _, scale = rest.partition(":")
    values = [scalar(part) for part in text.split(",") if part]
    if not (dots and low and high) and len(values) < 2:
        examples = f"{field}=0.01..0.1, {field}=0.01..0.1:log or {field}=16,32,64"
        raise ConfigError(f"--search: {word!r} is no range and no list; write {examples}")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(f"--search: {word!r} has {twice[0]} more than once; write each value once")
    span = {"low": low, "high": high, "scale": scale.replace("-", " ") or "linear"} if dots else {"values": values}
    return from_plain(Hyperparameter, {"field": field, **span}, "--search")


# Files

KIND = "# kind: study;"  # how a study's file begins; other TOML files of the folder begin with another kind
FILES = [path for path in sorted(Path(__file__).parent.glob("*.toml")) if path.read_text().startswith(KIND)]
DECLARED = {tomllib.loads(path.read_text())["name"]: path for path in FILES}


def read_study(name: str, profile: str, **given: int) -> Study:
    """A declared study, or that of the user's own file, at a profile. Raises ConfigError.

    `given`: trials and seeds in place of the file's.
    """
    if name not in DECLARED and not name.endswith(".toml"):
        raise ConfigError(f"unknown study {name!r}; {nearest(name, DECLARED)}, or give a file, such as ./mine.toml")
    path = DECLARED.get(name, Path(name))
    file = read_table(path)
    try:
        cells = read_as(Mapping[str, str], file.pop("cells", {}), "cells")
        fields = read_as(Mapping[str, Any], file.pop("fields", {}), "fields")
        if profile not in cells:
            raise ConfigError(f"unknown profile {profile!r}; {choose(cells or ['one that its cells name'])}")
        start = with_fields(to_json(cell_named(cells[profile], profile)), fields)
        return from_plain(Study, {**file, **given, "profile": profile, "experiment": start})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
