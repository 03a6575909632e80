"""`--budget`: the missing runs that tell most, as far as they fit into a time; stopped in time, and written down.

What is chosen is told before anything starts. Runs go in waves: each cell's first seed, then what the verdicts ask for
as they then stand. `results/budgets/<time>/` keeps the plan with its estimates, and the outcome beside it.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.cli.launchers import AUTO, devices_named, side_by_side
from benchmark.cli.train import train
from benchmark.errors import ConfigError, FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.records.cputime import cpu_seconds
from benchmark.records.record import run_folder
from benchmark.verdicts.next_runs import left_out, steps
from sweeps.budget import SECONDS_TO_START, SECONDS_TO_STOP, Budget, Fit, Gate, fitting, in_words, parsed
from sweeps.budgets import write_outcome, write_plan
from sweeps.estimates import Estimates, outcome_of, stretch
from sweeps.local import Standing
from sweeps.plan import Plan, restricted

MOST_NAMED = 12  # cells that are listed


def add_budget(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--budget",
        metavar="TIME",
        help="the most informative runs that fit into 90m, 2h (wall time, jobs side by side) or 4core-h: every cell "
        "once, then the seeds that would decide claims; the rest is named, and left for a later call",
    )


def budget_of(options: argparse.Namespace) -> Budget | None:
    """Raises ConfigError."""
    if options.budget is None:
        return None
    budget = parsed(options.budget)
    if budget.kind == "gpu" and not any(name.startswith("cuda") for name in _devices(options)):
        raise ConfigError(
            f"--budget: {options.budget!r}, but runs are trained on the CPU; 4core-h or 2h would be right"
        )
    return budget


def _devices(options: argparse.Namespace) -> Sequence[str]:
    """Those of the launch, or of this machine where nothing is launched (`fssl plan`)."""
    if getattr(options, "gpus_per_run", None):
        return ("cuda",)  # of Ray's nodes
    named: str | Sequence[str] | None = getattr(options, "devices", AUTO)
    return devices_named(named) if isinstance(named, str) else named or ()


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a budget is to be spent on."""

    fit: Fit
    wave: tuple[Experiment, ...]  # of those taken, what is run before the records are asked again
    seconds: Mapping[Experiment, float]  # of the budget, for each missing run


class Spending:
    """A budget while it is spent: estimates in its unit, and what the runs that ended cost."""

    def __init__(self, budget: Budget, results: Path, data_root: Path | None, jobs: int, start: float) -> None:
        begun = cpu_seconds()
        self.gate = Gate(budget, used=lambda: cpu_seconds() - begun, start=start)
        self.jobs, self._results = jobs, results
        self._estimates = Estimates(results, data_root)
        self._per_cpu_second = stretch(jobs) if budget.kind == "wall" else 1.0
        self.whole: dict[Experiment, float] = {}  # CPU seconds, as estimated before anything was run
        self._noted: set[Experiment] = set()

    def choose(self, planned: Plan) -> Chosen:
        missing = [run for run in planned.missing if run not in self.gate.refused]
        for run in missing:
            if run not in self.whole:
                self.whole[run] = self._estimates.whole(run)
        share = {run: self._estimates.share_left(run) for run in missing}
        seconds = {run: self.whole[run] * share[run] * self._per_cpu_second for run in missing}
        self.gate.expect(seconds)
        found = steps(planned.items, restricted(planned.records, planned.runs), missing, seconds.__getitem__)
        correction = self.gate.correction
        fit = fitting(
            [run for step in found for run in step],
            lambda run: seconds[run] * correction,
            self.gate.left_for(self.jobs),
            self.gate.budget.kind,
            self.jobs,
        )
        taken = set(fit.taken)
        wave = next((kept for step in found if (kept := tuple(run for run in step if run in taken))), ())
        return Chosen(fit=fit, wave=wave, seconds=seconds)

    def note(self, standing: Standing) -> None:
        """Correct the estimates by the runs that ended since the last time."""
        for run in standing.finished:
            if run in self._noted:
                continue
            self._noted.add(run)
            outcome = outcome_of(run_folder(self._results, run))
            if outcome is not None:
                wall = self.gate.budget.kind != "core"
                cost = outcome.wall_seconds if wall else outcome.cpu_seconds
                self.gate.ended(run, self.whole[run] * self._per_cpu_second, cost)


def spend(
    budget: Budget, look: Callable[[], Plan], options: argparse.Namespace, console: Console, *, start: float
) -> Plan:
    """Train what fits and return the plan as it then stands. `start`: when the command was begun (`time.monotonic`).

    Raises ConfigError where not one run fits. A run that fails costs the others nothing: its error is raised in the
    end, after the outcome is written down.
    """
    planned, jobs = look(), side_by_side(options)
    if not planned.missing:
        return planned
    spending = Spending(budget, options.results, options.data_root, jobs, start)
    chosen = spending.choose(planned)
    if not chosen.fit.taken:
        raise ConfigError(nothing_fits(options.budget, chosen))
    tell(budget, chosen, planned.items, console)
    folder = write_plan(options.results, budget, planned.items, jobs, chosen.fit, spending.whole)
    asked, failures = set(planned.missing), list[FsslError]()
    try:
        while chosen.wave and not spending.gate.is_closed():
            wave = replace(planned, missing=chosen.wave)
            try:
                train(wave, options, console, gate=spending.gate, noted=spending.note)
            except Stopped:
                raise
            except FsslError as error:
                failures.append(error)
                spending.gate.refused.update(chosen.wave)  # no second time in this call
            planned = look()
            asked.update(planned.missing)
            chosen = spending.choose(planned)
    finally:
        write_outcome(folder, options.results, spending.gate, spending.whole, asked)
    used = f"{in_words(spending.gate.used)} of {in_words(budget.seconds)} used"
    console.print(f"budget: {used}, {len(planned.missing)} runs are left; record: {folder}", soft_wrap=True)
    for line in _names(planned.items, planned.missing):
        console.print(f"  missing: {line}", highlight=False, soft_wrap=True)
    if failures:
        raise failures[0]
    return planned


def nothing_fits(word: str, chosen: Chosen) -> str:
    least = min(chosen.seconds.values()) + SECONDS_TO_START + SECONDS_TO_STOP
    return f"--budget: {word!r} is too short: the least missing run takes about {in_words(least)}; more would be right"


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


def as_json(chosen: Chosen, budget: Budget, items: Sequence[Item]) -> dict[str, Any]:
    """For `fssl plan --budget --json`."""
    return {
        "budget_seconds": budget.seconds,
        "budget_kind": budget.kind,
        "fitting_runs": len(chosen.fit.taken),
        "fitting_seconds": round(chosen.fit.seconds, 1),
        "left_out": {name: list(seeds) for name, seeds in left_out(items, chosen.fit.left_out).items()},
    }
