"""`--budget`: the missing runs that tell most are run, as far as they fit into a time.

In waves: each cell's first seed, then what the verdicts ask for as they then stand. What is chosen is told before
anything starts.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from benchmark.cli.reproduce import train
from benchmark.cli.scope import side_by_side
from benchmark.errors import ConfigError, FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.verdicts.next_runs import left_out
from sweeps.budget import SECONDS_TO_START, SECONDS_TO_STOP, Budget, Chosen, Spending
from sweeps.plan import Plan
from sweeps.status import in_words

MOST_NAMED = 12  # cells that are listed


def spend(
    budget: Budget, look: Callable[[], Plan], options: argparse.Namespace, console: Console, *, start: float
) -> Plan:
    """Train what fits and return the plan as it then stands. `start`: when the command was begun (`time.monotonic`).

    Raises ConfigError where not one run fits. A run that fails costs the others nothing: its error is raised in the
    end.
    """
    planned, jobs = look(), side_by_side(options)
    if not planned.missing:
        return planned
    spending = Spending(budget, options.results, options.data_root, jobs, start)
    chosen = spending.choose(planned)
    if not chosen.fit.taken:
        least = min(chosen.seconds.values()) + SECONDS_TO_START + SECONDS_TO_STOP
        raise ConfigError(
            f"--budget: {options.budget!r} is too short: the least missing run takes about {in_words(least)}"
        )
    tell(budget, chosen, planned.items, console)
    failures: list[FsslError] = []
    while chosen.wave and not spending.gate.is_closed():
        wave = replace(planned, missing=chosen.wave)
        try:
            train(wave, options, console, gate=spending.gate, noted=lambda standing: spending.note(standing.finished))
        except Stopped:
            raise
        except FsslError as error:
            failures.append(error)
            spending.gate.refused.update(chosen.wave)  # no second time in this call
        planned = look()
        chosen = spending.choose(planned)
    used = f"{in_words(spending.gate.used)} of {in_words(budget.seconds)} used"
    console.print(f"budget: {used}, {len(planned.missing)} runs are left")
    for line in _names(planned.items, planned.missing):
        console.print(f"  missing: {line}", highlight=False, soft_wrap=True)
    if failures:
        raise failures[0]
    return planned


def tell(budget: Budget, chosen: Chosen, items: Sequence[Item], console: Console) -> None:
    """What fits and what is left out."""
    fit = chosen.fit
    number = len(fit.taken) + len(fit.left_out)
    console.print(f"budget: {budget}; {len(fit.taken)} of {number} missing runs fit, in about {in_words(fit.seconds)}")
    for line in _names(items, fit.left_out):
        console.print(f"  left out: {line}", highlight=False, soft_wrap=True)


def _names(items: Sequence[Item], runs: Sequence[Experiment]) -> list[str]:
    found = left_out(items, runs)
    lines = [f"{name}, seed{'s' * (len(seeds) > 1)} {_span(seeds)}" for name, seeds in found.items()]
    more = len(lines) - MOST_NAMED
    return lines if more <= 1 else [*lines[:MOST_NAMED], f"and runs of {more} more cells"]


def _span(seeds: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0 to 2, 5"."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{part[0]}" if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
