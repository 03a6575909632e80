"""Tuning studies: the values that a paper does not report, the searched ranges, and the reasons.

Each study is a TOML file, such as `fedswitch_open.toml` in this folder. A custom study has the same fields. `cells`
names the cell where the search begins for each profile, and `fields` has the values that differ from the cell's.
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
from benchmark.plain import dotted_names, read_table
from benchmark.records.sources import own_names, sources
from sweeps.factors import with_fields

FIRST_SEED = 1000  # different from the seeds of tables
DIGITS = 3  # significant digits of the values that are tried, since finer differences are noise
EVALUATIONS = 5  # evaluations per run; after each of them a trial may be pruned
SETS_ITSELF = ("seed", "profile", "evaluation")  # set by the study, so that searching them has no effect
HELD_OUT = 100  # default number of held-out labels at the server, unless it trains on more
SCALES = {"linear": "linear", "log": "logarithmic", "log below one": "logarithmic in 1 - value"}  # for readers
Value: TypeAlias = float | str  # value of a field; also int or bool


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """A field that is searched in a closed range or among some values. Raise ConfigError for a range without values.

    The storage contains a coordinate: the value itself, or 1 - value if the scale is "log below one". This scale suits
    a momentum or an EMA ratio m, which averages over 1 / (1 - m) steps.
    """

    field: str  # dotted name of a field of the experiment: "method.ratio"
    low: float = math.nan
    high: float = math.nan
    scale: Literal["linear", "log", "log below one"] = "linear"
    values: tuple[Any, ...] = ()  # instead of low and high
    reason: str = ""

    def __post_init__(self) -> None:
        if self.values and math.isnan(self.low) and math.isnan(self.high):
            return
        if self.values or not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"{self.field}: {self.low} to {self.high} is not a range; give low below high, or values")
        if self.scale != "linear" and self.coordinates[0] <= 0:
            limits = "above 0" if self.scale == "log" else "below 1"
            span = f"{self.low} to {self.high}"
            raise ConfigError(
                f"{self.field}: a logarithmic range must lie {limits}, but it is {span}; change the limit"
            )

    @property
    def coordinates(self) -> tuple[float, float]:
        """Return the ends of the range as coordinates, the lower one first."""
        first, last = self.coordinate(self.low), self.coordinate(self.high)
        return min(first, last), max(first, last)

    def coordinate(self, value: Any) -> Any:
        return round(1 - value, 12) if self.scale == "log below one" else value

    def value(self, coordinate: Any) -> Any:
        """Return the field's value at a coordinate after rounding the coordinate to `DIGITS` significant digits."""
        if self.values or isinstance(coordinate, int):
            return coordinate
        return self.coordinate(float(f"{coordinate:.{DIGITS}g}"))  # `coordinate` is also the inverse

    def suggested(self, trial: Trial, *, whole: bool = False) -> Value:
        """Return the value that the trial suggests; only whole numbers if `whole` is true."""
        if self.values:
            return cast(Value, trial.suggest_categorical(self.field, self.values))
        low, high = self.coordinates
        if whole:
            return trial.suggest_int(self.field, math.ceil(low), math.floor(high), log=self.scale == "log")
        return cast(Value, self.value(trial.suggest_float(self.field, low, high, log=self.scale != "linear")))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that describe the hyperparameter to readers."""
        ends = {"values": list(self.values)} if self.values else {"low": self.low, "high": self.high}
        scale = {} if self.values else {"scale": SCALES[self.scale]}
        return {"field": self.field, **ends, **scale, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Study(Checked):
    """A search, at a profile, for values that no paper reports. Raise ConfigError if the fields are inconsistent."""

    name: str  # "fedswitch/open"
    title: str
    reason: str  # which value is not reported, with its source
    profile: str
    experiment: Experiment  # the defaults, where the search begins
    space: tuple[Hyperparameter, ...]
    trials: Count = 24
    seeds: Count = 3  # runs per trial
    startup: Whole = 10  # random trials before TPE learns from them; the first one has the defaults
    typed: str = ""  # its name on a command line, if this differs from `name`

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = [span.field for span in self.space]
        if not fields:
            raise ConfigError("space is empty; give one field or more to search")
        for span in self.space:
            if twice := [value for value in span.values if span.values.count(value) > 1]:
                raise ConfigError(f"{span.field} has the value {twice[0]} more than once; give each value once")
        for field in fields:
            if fields.count(field) > 1:
                raise ConfigError(f"{field} is searched twice; give it once")
            if field.partition(".")[0] in SETS_ITSELF:
                raise ConfigError(f"{field} is set by the study itself; search a different field")
        if not self.experiment.data.N_validation:
            raise ConfigError("data.N_validation is 0: a study chooses on labels held out at the server; set it")
        for span in self.space:
            default = self.defaults[span.field]
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            if default is not None and type(default) not in (bool, int, float, str):
                raise ConfigError(
                    f"{span.field} is a table of fields or a list, which cannot be searched; search one of its fields"
                )
            if not span.values and not is_number:
                raise ConfigError(
                    f"{span.field} is {quoted(default)}, which is not a number; give values instead of a range"
                )
            if default not in span.values and (span.values or not span.low <= default <= span.high):
                raise ConfigError(
                    f"{span.field} has the default {default}, which is not among the searched values; add it"
                )
        for field, value in ((s.field, value) for s in self.space for value in s.values or (s.low, s.high)):
            self.runs({**self.defaults, field: value})

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Return the value of each field before the search."""
        return {span.field: _value(self.experiment, span.field) for span in self.space}

    @property
    def coordinates(self) -> dict[str, Any]:
        """Return the coordinates of the defaults."""
        return {span.field: span.coordinate(self.defaults[span.field]) for span in self.space}

    def suggested(self, trial: Trial) -> dict[str, Value]:
        """Return the values that the trial tries."""
        return {s.field: s.suggested(trial, whole=isinstance(self.defaults[s.field], int)) for s in self.space}

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each field from the coordinates of a trial."""
        return {span.field: span.value(params[span.field]) for span in self.space}

    def runs(self, values: Mapping[str, Any]) -> tuple[Experiment, ...]:
        """Return the runs of a trial, one per seed. Raise ConfigError if no experiment accepts these values."""
        experiment = with_fields(to_json(self.experiment), values)
        evaluation = Evaluation(every=max(1, experiment.federation.rounds // EVALUATIONS), validation=True)
        experiment = replace(experiment, evaluation=evaluation)
        return tuple(experiment.with_seed(FIRST_SEED + index) for index in range(self.seeds))

    @cached_property
    def key(self) -> str:
        """Return 8 hexadecimal digits that identify the study.

        They depend on the experiment, the space and the number of seeds, and on custom code or a custom image folder.
        They do not depend on the number of trials, so that more trials extend the same study.
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
        """Return the study's name in file names, such as fedswitch-open-demo."""
        return re.sub(r"[^\w.]+", "-", f"{self.name}-{self.profile}")


def _value(experiment: Experiment, field: str) -> Any:
    try:
        return attrgetter(field)(experiment)
    except AttributeError:
        known = list(dotted_names(to_json(experiment)))
        raise ConfigError(f"unknown field {quoted(field)} in --search; {nearest(field, known)}") from None


def study_of_words(words: Sequence[str], experiment: Experiment, *, typed: str, **given: int) -> Study:
    """Build a search from words such as "optimizer.lr=0.01..0.1:log" or "method.batch_size=16,32,64".

    It begins from `experiment`. `given` are numbers of trials and seeds. Raise ConfigError for a misspelt word.
    """
    data = experiment.data
    if not data.N_validation:
        experiment = replace(experiment, data=replace(data, N_validation=max(HELD_OUT, data.N_s)))
    method = method_name(experiment.method)
    space = tuple(map(_span, words))
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
    return replace(study, name=f"{study.name}-{study.key}")  # so that a different search has a different file


def _span(word: str) -> Hyperparameter:
    field, _, text = word.partition("=")
    low, dots, rest = text.partition("..")
    high, _, scale = rest.partition(":")
    values = [scalar(part) for part in text.split(",") if part]
    if not (dots and low and high) and len(values) < 2:
        examples = f"{field}=0.01..0.1, {field}=0.01..0.1:log or {field}=16,32,64"
        raise ConfigError(f"--search {word!r} is neither a range nor a list; write {examples}")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(f"--search {word!r} has {twice[0]} more than once; write each value once")
    span = {"low": low, "high": high, "scale": scale.replace("-", " ") or "linear"} if dots else {"values": values}
    try:
        return from_plain(Hyperparameter, {"field": field, **span})
    except ConfigError as error:
        text = str(error)
        of_field = text if text.startswith(f"{field}:") else f"{field}: {text}"
        raise ConfigError(f"--search {of_field}") from None


# Files

KIND = "# kind: study;"  # first words of a study's file; other TOML files of the folder name a different kind
FILES = [path for path in sorted(Path(__file__).parent.glob("*.toml")) if path.read_text().startswith(KIND)]
DECLARED = {tomllib.loads(path.read_text())["name"]: path for path in FILES}


def read_study(name: str, profile: str, **given: int) -> Study:
    """Read a declared study, or a study from a custom file, at a profile. Raise ConfigError if there is none.

    `given` are numbers of trials and seeds that replace the numbers in the file.
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
