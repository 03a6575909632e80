"""`fssl agent`: a W&B agent that runs only this repository's sweep, stops with its children, and is not believed.

The real `wandb agent` does the work. It runs whatever command the server has for a sweep, leaves its children behind
when it is stopped, and ends with 0 where cells are missing: hence the comparison with the sweep file before it is
started, signals that it always passes on, and an exit code that comes from the records.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.cli.main import ROOT, add_places, number
from benchmark.errors import ConfigError, DataError, Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.records.claim import is_held
from benchmark.records.record import result_if_whole, run_folder
from benchmark.records.wandb_mirror import unreachable
from sweeps.grid import checked
from sweeps.sweep_file import config, read, same

SECONDS_TO_STOP = 120  # from the signal to SIGKILL, for saving the last round


class Missing(FsslError):
    """The agent has ended, and cells of the sweep have no record."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Runs `wandb agent` on ENTITY/PROJECT/ID, which `wandb sweep FILE` made, after comparing the server's sweep "
        "with FILE. Exit code by the records: 0 all done, 70 some diverged, 75 others are at what is left, 76 stopped, "
        "1 runs are missing."
    )
    command.add_argument("file", type=Path, metavar="FILE", help="the sweep file, such as sweeps/wandb/ssfl/tab2.yaml")
    command.add_argument("sweep", metavar="ENTITY/PROJECT/ID", help="as `wandb sweep` printed it")
    command.add_argument("--count", type=number(1), help="so many runs, then end")
    command.add_argument("--yes", action="store_true", help="take a sweep file of more than 10,000 runs")
    command.add_argument("--offline", action="store_true", help="the agent online, its runs' histories offline")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    if options.sweep.count("/") != 2 or options.sweep.startswith("-"):
        raise ConfigError(f"{options.sweep!r} is no sweep; write ENTITY/PROJECT/ID, as `wandb sweep` printed it")
    runs = checked(read(options.file), many=options.yes)
    if (why := unreachable()) is not None:
        raise ConfigError(f"W&B: {why}; `fssl work` runs a sweep's cells without it")
    if told := same(_of_server(options.sweep), config(options.file)):
        raise ConfigError(f"{options.sweep} is not the sweep of {options.file}, nothing was run: {'; '.join(told)}")
    stopped = _agent(options)
    return _from_records(runs, options, stopped)


def _of_server(sweep: str) -> dict[str, object]:
    import wandb

    try:
        return dict(wandb.Api(timeout=20).sweep(sweep).config)
    except Exception as error:  # whatever W&B raises
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{sweep}: W&B does not tell this sweep ({said})") from None


def _agent(options: argparse.Namespace) -> bool:
    """Run the agent to its end; whether it was told to stop."""
    place = options.results / "wandb"
    place.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # it starts `python`
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "FSSL_RESULTS": str(options.results.resolve()),
        "WANDB_DIR": str(place.resolve()),
        **({"FSSL_DATA": str(options.data_root.resolve())} if options.data_root else {}),
        **({"FSSL_WANDB": "offline"} if options.offline else {}),
    }
    words = ["--forward-signals", "--term-timeout", str(SECONDS_TO_STOP)]
    count = ["--count", str(options.count)] if options.count else []
    command = [sys.executable, "-m", "benchmark.cli.wandb_agent", "agent", *words, *count, options.sweep]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    with _passed_on(process) as signals:
        process.wait()
    return bool(signals)


@contextlib.contextmanager
def _passed_on(process: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """SIGINT and SIGTERM go to the agent, which passes them on to its run; the signals that came."""
    came: list[int] = []

    def send(number: int, frame: object) -> None:
        came.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_records(runs: Sequence[Experiment], options: argparse.Namespace, stopped: bool) -> int:
    folders = {run: run_folder(options.results, run) for run in runs}
    results = {run: result_if_whole(folder) for run, folder in folders.items()}
    missing = [run for run in runs if not results[run]]
    print(f"{len(runs) - len(missing)} of {len(runs)} runs have their record")
    for run in missing:
        print(f"missing: cell {run.cell_key}, seed {run.seed}", file=sys.stderr)
    if missing and stopped:
        raise Stopped(f"stopped; {len(missing)} runs are left, and go on from their last saves")
    if missing and all(is_held(folders[run]) for run in missing):
        raise RunningElsewhere(f"{len(missing)} runs are left, and others are at them")
    if missing:
        raise Missing(f"{len(missing)} runs are missing; the same command, or `fssl work`, runs them")
    if any(result["status"] == "diverged" for result in results.values()):
        return Diverged.exit_code
    return DataError.exit_code if any(result["status"] != "done" for result in results.values()) else 0
