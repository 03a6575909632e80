"""`fssl agent` runs W&B's own agent on a sweep of this repository and derives the exit code from the run records.

`wandb agent` runs whatever command the server stores for a sweep, leaves its child processes running when it is
stopped, and exits with 0 while runs are missing. Therefore this command compares the server's sweep with the sweep file
before the agent starts, passes signals on, and computes the exit code from the run records.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.cli.main import ROOT, number
from benchmark.cli.shared_options import add_devices
from benchmark.errors import ConfigError, Diverged, FsslError, RunningElsewhere, Stopped, one_line
from benchmark.federated.devices import devices_named
from benchmark.federated.processes import CPU, sigterm_as_interrupt
from benchmark.records.record import run_folder
from benchmark.records.run_lock import is_held
from sweeps.grid import checked
from sweeps.launcher import named
from sweeps.plan import Plan, plan_of_runs
from sweeps.sweep_file import config, differences, read

SECONDS_TO_STOP = 120  # time for runs to save their last round, between the signal and SIGKILL


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="the sweep file, such as sweeps/wandb/ssfl/tab2.yaml")
    command.add_argument("sweep", metavar="ENTITY/PROJECT/ID", help="the sweep as `wandb sweep` printed it")
    command.add_argument("--count", type=number(1), help="stop after N runs", metavar="N")
    command.add_argument("--yes", action="store_true", help="accept a sweep file with more than 10,000 runs")
    command.add_argument(
        "--offline", action="store_true", help="run the agent online, but write its runs' histories offline"
    )
    add_devices(command, "agents, one on each (default: one agent, on the first device)")


def run_command(options: argparse.Namespace) -> int:
    """Run `wandb agent` on ENTITY/PROJECT/ID, a sweep that `wandb sweep FILE` created.

    The command runs nothing if the server's sweep differs from FILE. With --devices 0,1 it starts one agent on each
    GPU. The exit code depends on the run records: 0 if all runs are done, 70 if some diverged, 75 if other workers
    train the remaining runs, 76 if the agent was stopped, and 1 if runs are missing.
    """
    if options.sweep.count("/") != 2 or options.sweep.startswith("-"):
        raise ConfigError(
            f"{options.sweep!r} is not the name of a sweep; type ENTITY/PROJECT/ID as `wandb sweep` printed it"
        )
    from benchmark.records.wandb_mirror import unreachable  # needs seconds to load

    runs = checked(read(options.file), many=options.yes)
    if (why := unreachable()) is not None:
        raise ConfigError(f"W&B: {why}; `fssl work` runs a sweep's cells without it")
    if lines := differences(_config_on_server(options.sweep), config(options.file)):
        raise ConfigError(f"{options.sweep} is not the sweep of {options.file}, nothing was run: {'; '.join(lines)}")
    stopped = _run_agents(options)
    return _exit_code(plan_of_runs(runs, options.results, with_reference=False), options.results, stopped)


def _config_on_server(sweep: str) -> dict[str, object]:
    """Return the configuration that the server stores for the sweep. Raise ConfigError if W&B does not return it."""
    import wandb

    try:
        return dict(wandb.Api(timeout=20).sweep(sweep).config)
    except Exception as error:  # whatever W&B raises
        raise ConfigError(f"{sweep}: W&B does not answer for this sweep ({one_line(error)})") from None


def _run_agents(options: argparse.Namespace) -> bool:
    """Run an agent for each device to its end. Return whether they were stopped by a signal.

    Ctrl-C and SIGTERM are passed on to the agents, each time, and by them to their runs.
    """
    folder = options.results / "wandb"
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        # The agent starts `python`, which must be this interpreter.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "FSSL_RESULTS": str(options.results.resolve()),
        "WANDB_DIR": str(folder.resolve()),
        **({"FSSL_WANDB": "offline"} if options.offline else {}),
    }
    count = ["--count", str(options.count)] if options.count else []
    words = ["agent", "--forward-signals", "--term-timeout", str(SECONDS_TO_STOP), *count, options.sweep]
    command = [sys.executable, "-m", "benchmark.cli.wandb_agent", *words]
    processes = [
        subprocess.Popen(command, env=environment | seen, start_new_session=True)
        for seen in _devices_seen(devices_named(options.devices))
    ]
    stopped = False
    with sigterm_as_interrupt():
        while True:
            try:
                for process in processes:
                    process.wait()
                return stopped
            except KeyboardInterrupt:
                stopped = True
                for process in processes:
                    process.terminate()


def _devices_seen(devices: Sequence[str] | None) -> list[dict[str, str]]:
    """Return CUDA_VISIBLE_DEVICES for each agent's environment: its runs use the first device that they see."""
    seen = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    names = []
    for device in devices or ():
        number = device.removeprefix("cuda:")
        if number == CPU:
            names.append("")
        else:
            names.append(seen[int(number)] if seen else number)
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names] or [{}]


def _exit_code(planned: Plan, results: Path, stopped: bool) -> int:
    """Return the exit code of the sweep's records.

    Raise an FsslError if runs are missing: Stopped after a signal, RunningElsewhere if other workers train all of them,
    and a plain FsslError in all other cases.
    """
    missing = planned.missing
    print(f"{len(planned.runs) - len(missing)} of {len(planned.runs)} runs have their record")
    for run in missing:
        print(f"missing: {named(run)}", file=sys.stderr)
    if missing and stopped:
        raise Stopped(
            f"stopped; {len(missing)} runs are missing and resume from their last saves; type the same command again"
        )
    if missing and all(is_held(run_folder(results, run)) for run in missing):
        raise RunningElsewhere(f"{len(missing)} runs are missing, but other workers are training them")
    if missing:
        raise FsslError(f"{len(missing)} runs are missing; type the same command again, or `fssl work`, to run them")
    return Diverged.exit_code if planned.diverged else 0
