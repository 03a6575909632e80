"""Training what a plan lacks, as `reproduce` and `work` do it: options, checks, and progress on standard error."""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from benchmark.cli.launchers import LAUNCHERS, add_launcher, checked_launcher
from benchmark.cli.progress import TableProgress
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Experiment
from benchmark.records.lease import BEAT, PATIENCE
from sweeps.local import Gate, Standing, Watch, launch_by
from sweeps.plan import Plan


def add_launch(command: argparse.ArgumentParser) -> None:
    """How runs are trained; `checked_launch` is to be called before anything else."""
    add_launcher(command)
    command.add_argument(
        "--takeover-after",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"of silence before a run of another machine is taken over (default: {PATIENCE:g}); at once where its "
        "process ended on this machine",
    )


def checked_launch(options: argparse.Namespace) -> None:
    """Raises ConfigError."""
    checked_launcher(options)
    if not options.takeover_after >= 3 * BEAT:
        raise ConfigError(f"--takeover-after: {options.takeover_after}; at least {3 * BEAT:g} seconds would be right")


def train(
    planned: Plan,
    options: argparse.Namespace,
    console: Console,
    *,
    wait: bool = True,
    gate: Gate | None = None,
    noted: Watch = lambda standing: None,
) -> Standing:
    """Train the plan's missing runs; those that others are at are waited for, or left to them. `gate`: see `launch_by`;
    `noted` is told how far it is, as the progress on standard error is."""
    _check_data(planned, options.data_root)
    labels = {cell.cell_key: cell.label for item in planned.items for cell in item.cells}
    done = len(planned.runs) - len(planned.missing)
    names = ", ".join(f"{item.name} ({item.profile})" for item in planned.items) or "sweep"
    later = f", {planned.waiting} more when the trials among them are done" if planned.waiting else ""
    started = time.monotonic()
    with LAUNCHERS[options.launcher](options, len(planned.missing)) as crew:
        side = min(crew.size, len(planned.missing))
        console.print(f"{names}: {len(planned.missing)} runs to train, {done} done, {side} side by side{later}")
        with TableProgress(planned.missing, options.results, console, labels) as progress:

            def watch(standing: Standing) -> None:
                progress.watch(standing)
                noted(standing)

            standing = launch_by(
                crew,
                planned.missing,
                options.results,
                watch=watch,
                wait=wait,
                patience=options.takeover_after,
                gate=gate,
            )
    others = len(standing.finished) - standing.trained
    elsewhere = f", {others} by others" if others else ""
    console.print(f"trained {standing.trained} runs{elsewhere} in {(time.monotonic() - started) / 60:.1f} min")
    return standing


def diverged(planned: Plan) -> list[Experiment]:
    """The runs that have no number; a diverged trial is merely not chosen, and does not count."""
    counted = [run for run in planned.runs if not run.evaluation.validation]
    recorded = ((run, planned.records.get(run.cell_key, {}).get(run.seed)) for run in counted)
    return [run for run, record in recorded if record is not None and record.status == "diverged"]


def _check_data(planned: Plan, root: Path | None) -> None:
    """A missing data set is told before any process is started."""
    from benchmark.data.datasets import load

    for name in dict.fromkeys(run.data.name for run in planned.missing):
        try:
            load(name, root)
        except DataError as error:
            print(f"fssl: {len(planned.missing)} runs wait for {name}", file=sys.stderr)
            raise error
