"""What a tuning study is: plain data. Which fields, over which ranges and why, from which experiment, how many trials.

Nothing here knows Optuna: `sampling` turns spans into its distributions.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.papers.arena import TRIAL_SEED, with_field

METRIC = "validation/accuracy"  # of the last round, on labels held out at the server
DIGITS = 3  # significant ones that a value is tried with: finer differences are noise, and a diff stays readable


class Scale(Protocol):
    """How a span is searched: a strictly monotone map from a field's value to a coordinate, and back."""

    log: ClassVar[bool]  # whether the coordinate is searched on a logarithmic scale
    name: ClassVar[str]  # for people

    def inner(self, value: float) -> float: ...
    def outer(self, coordinate: float) -> float: ...


@dataclass(frozen=True)
class Linear:
    log: ClassVar[bool] = False
    name: ClassVar[str] = "linear"

    def inner(self, value: float) -> float:
        return value

    def outer(self, coordinate: float) -> float:
        return rounded(coordinate)


@dataclass(frozen=True)
class Log:
    log: ClassVar[bool] = True
    name: ClassVar[str] = "logarithmic"

    def inner(self, value: float) -> float:
        return value

    def outer(self, coordinate: float) -> float:
        return rounded(coordinate)


@dataclass(frozen=True)
class LogBelowOne:
    """For an EMA ratio or a momentum: what counts is 1 / (1 - value), so 1 - value is searched by its logarithm."""

    log: ClassVar[bool] = True
    name: ClassVar[str] = "logarithmic in 1 - value"

    def inner(self, value: float) -> float:
        return 1 - value

    def outer(self, coordinate: float) -> float:
        return round(1 - rounded(coordinate), 12)  # 1 - 0.077 has a 17th digit


def rounded(value: float) -> float:
    """To `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A field that is searched between two values, ends included."""

    field: str  # of the experiment, with dots: "method.ratio"
    low: float
    high: float
    reason: str  # why this range
    scale: Scale = Linear()
    declared: str | None = None  # the keyword in the study's declaration, where it is not the field's last part

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"{self.field}: from {self.low} to {self.high}; two finite ends in order would be right")
        if self.scale.log and min(self.bounds) <= 0:
            raise ConfigError(f"{self.field}: {self.low} to {self.high} has no logarithm; ends inside would be right")

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest coordinate."""
        ends = (self.scale.inner(self.low), self.scale.inner(self.high))
        return min(ends), max(ends)

    @property
    def keyword(self) -> str:
        return self.declared or self.field.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Where an experiment's defaults stand in the source: `NAME = Class(keyword=value, ...)`."""

    file: str  # relative to the repository's root
    name: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question to which no paper prints the answer."""

    name: str  # "fedswitch/open"
    title: str
    reason: str  # what is not reported, with its source
    experiment: Callable[[str], Experiment]  # the defaults, for a profile. Raises ConfigError for another one
    profiles: tuple[str, ...]
    space: tuple[Span, ...]
    trials: int = 24
    seeds: int = 3  # a trial
    startup: int = 10  # trials at random (the first is the default) before TPE looks at what they gave
    # Wilcoxon's one-sided p below which a trial is given up against the best one, seed by seed. Two seeds can give
    # 1/4 at best, three 1/8, four 1/16: at .26 a trial ends that loses on each of its first two seeds.
    prune_below: float = 0.26
    declarations: Mapping[str, Declaration] = field(default_factory=dict)  # profile -> what a diff changes

    def __post_init__(self) -> None:
        names = [span.field for span in self.space]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"{self.name}: its space is {', '.join(names) or 'empty'}; each field once would be right"
            )
        for name in ("trials", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{self.name}: {name} is {getattr(self, name)}; at least 1 would be right")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study at a profile, with the numbers that were asked for."""

    study: Study
    profile: str
    trials: int
    seeds: int

    def __post_init__(self) -> None:
        for name, value in (("--trials", self.trials), ("--seeds", self.seeds)):
            if value < 1:
                raise ConfigError(f"{name}: {value}; at least 1 would be right")
        if self.profile not in self.study.profiles:
            right = " or ".join(self.study.profiles)
            raise ConfigError(f"--profile: {self.profile!r} is not one of {self.study.name}'s; {right} would be right")
        if not self.default.data.N_validation:
            raise ConfigError(
                f"{self.study.name}: data.N_validation is 0; a study chooses on labels held out at the server, and "
                "never on test data"
            )
        outside = [
            span.field for span in self.study.space if not span.low <= field_of(self.default, span.field) <= span.high
        ]
        if outside:
            raise ConfigError(
                f"{self.study.name}: the default of {outside[0]} is outside its span; a wider one would be right"
            )

    @property
    def default(self) -> Experiment:
        return self.study.experiment(self.profile)

    @property
    def defaults(self) -> dict[str, float]:
        """Field -> the value that it has before the study."""
        return {span.field: field_of(self.default, span.field) for span in self.study.space}

    @property
    def trial_seeds(self) -> tuple[int, ...]:
        """Apart from a table's seeds 0, 1, ..., as the arena's trials are."""
        return tuple(TRIAL_SEED + place for place in range(self.seeds))

    def runs(self, values: Mapping[str, float]) -> tuple[Experiment, ...]:
        """The trial's runs, one a seed: measured once, after the last round, on held-out labels. Raises ConfigError."""
        experiment = self.default
        for name, value in values.items():
            experiment = with_field(experiment, name, value)
        rounds = experiment.federation.rounds
        experiment = replace(experiment, evaluation=Evaluation(every=rounds, validation=True))
        return tuple(experiment.with_seed(seed) for seed in self.trial_seeds)

    @property
    def key(self) -> str:
        """8 hexadecimal digits that name the question: another experiment, space or number of seeds is another study,
        whatever the storage holds. The number of trials is not in it: more of them go on with the same study."""
        told = {
            "study": self.study.name,
            "default": self.runs(self.defaults)[0].cell_key,
            "space": [(s.field, s.low, s.high, s.scale.name) for s in self.study.space],
            "seeds": self.seeds,
            "sampler": (self.study.startup, self.study.prune_below),
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def slug(self) -> str:
        """For file names: fedswitch-open-demo."""
        return f"{self.study.name.replace('/', '-')}-{self.profile}"


def field_of(value: Any, path: str) -> float:
    """A number in nested dataclasses, named with dots. Raises ConfigError."""
    for name in path.split("."):
        if not hasattr(value, name):
            raise ConfigError(
                f"{path}: {type(value).__name__} has no {name!r}; a field of the experiment would be right"
            )
        value = getattr(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: {value!r} is no number; a study searches numbers")
    return float(value)
