"""Build the experiments of a grid, which has lists of values for some factors."""

import csv
import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from benchmark.config import scalar
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from sweeps.factors import check, long_enough

Grid: TypeAlias = Mapping[str, Sequence[Any]]  # factor -> its values, in order

MOST_RUNS = 10_000  # most runs of a grid without --yes


def grid_of_words(words: str) -> dict[str, list[Any]]:
    """Read a text such as "R=0,0.2 method=crl,grouping" as a grid.

    A value with blanks or commas is in double quotes. Raise ConfigError for a misspelt factor, for a factor without
    a value, and for a quote that is not closed.
    """
    if words.count('"') % 2:
        raise ConfigError("--grid contains a double quote that is not closed; write it at both ends of the value")
    grid: dict[str, list[Any]] = {}
    for word in re.findall(r'(?:[^\s"]|"[^"]*")+', words):
        name, equals, text = word.partition("=")
        texts = filter(None, next(csv.reader([text]), []))
        values = [value if isinstance(value := scalar(part), int | float) else part for part in texts]
        if not equals or not values:
            raise ConfigError(f"--grid: {word!r} has no values; write {name}=VALUE,VALUE")
        if name in grid:
            raise ConfigError(f"--grid: {name} is given twice; give it once, with all its values")
        if len(set(map(repr, values))) < len(values):
            raise ConfigError(f"--grid: {word!r} has a value twice; give each once")
        for value in values:
            check(name, value)
        grid[name] = values
    if not grid:
        raise ConfigError("--grid: no factors; give some, such as R=0,0.2,0.4")
    return grid


def checked(grid: Grid, *, many: bool = False) -> list[Experiment]:
    """Return every run of the grid once.

    Raise ConfigError for an empty grid, for a grid of more than MOST_RUNS runs unless `many` is true, and for the
    first combination that is not an experiment or ends before its clients train.
    """
    count = prod(map(len, grid.values()))
    if not count:
        raise ConfigError("the grid is empty: a factor has no values; give each at least one")
    if count > MOST_RUNS and not many:
        raise ConfigError(f"the grid has {count:,} runs, which is more than {MOST_RUNS:,}; type --yes to accept them")
    runs: dict[Experiment, None] = {}
    for values in product(*grid.values()):
        factors = dict(zip(grid, values, strict=True))
        try:
            runs[long_enough(factors)] = None
        except ConfigError as error:
            named = " ".join(f"{name}={value}" for name, value in factors.items())
            raise ConfigError(f"{named}: {error}") from None
    return list(runs)
