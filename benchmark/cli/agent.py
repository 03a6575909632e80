"""`fssl agent`: W&B's own agent, limited to this repository's sweep, with an exit code from the records.

`wandb agent` runs whatever command the server has for a sweep, leaves its children running when it is stopped, and ends
with 0 while runs are missing. So the server's sweep is compared with the file before the agent starts, signals are
passed on, and the exit code is that of the records.
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

SECONDS_TO_STOP = 120  # from the signal to SIGKILL, for saving the last round


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="the sweep file, such as sweeps/wandb/ssfl/tab2.yaml")
    command.add_argument("sweep", metavar="ENTITY/PROJECT/ID", help="as `wandb sweep` printed it")
    command.add_argument("--count", type=number(1), help="end after N runs", metavar="N")
    command.add_argument("--yes", action="store_true", help="take a sweep file of more than 10,000 runs")
    command.add_argument("--offline", action="store_true", help="the agent online, its runs' histories offline")
    add_devices(command, "agents, one on each (default: one agent, on the first device)")


def run_command(options: argparse.Namespace) -> int:
    """Run `wandb agent` on ENTITY/PROJECT/ID, which `wandb sweep FILE` made.

    It does so if the server has the sweep of FILE; with --devices 0,1 one agent on each GPU. The exit code comes from
    the records: 0 all done, 70 some diverged, 75 other workers train the rest, 76 stopped, 1 runs are missing.
    """
    if options.sweep.count("/") != 2 or options.sweep.startswith("-"):
        raise ConfigError(f"{options.sweep!r} is not a sweep; write ENTITY/PROJECT/ID, as `wandb sweep` printed it")
    from benchmark.records.wandb_mirror import unreachable  # takes seconds to load

    runs = checked(read(options.file), many=options.yes)
    if (why := unreachable()) is not None:
        raise ConfigError(f"W&B: {why}; `fssl work` runs a sweep's cells without it")
    if lines := differences(_config_on_server(options.sweep), config(options.file)):
        raise ConfigError(f"{options.sweep} is not the sweep of {options.file}, nothing was run: {'; '.join(lines)}")
    stopped = _run_agents(options)
    return _exit_code(plan_of_runs(runs, options.results, with_reference=False), options.results, stopped)


def _config_on_server(sweep: str) -> dict[str, object]:
    """Raises ConfigError."""
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
        # The agent starts `python`.
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
    """Choose what each agent's environment says of CUDA devices: its runs take the first that they see."""
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

    Raise FsslError if runs are left: Stopped, RunningElsewhere or another.
    """
    missing = planned.missing
    print(f"{len(planned.runs) - len(missing)} of {len(planned.runs)} runs have their record")
    for run in missing:
        print(f"missing: {named(run)}", file=sys.stderr)
    if missing and stopped:
        raise Stopped(f"stopped; {len(missing)} runs are left, and go on from their last saves")
    if missing and all(is_held(run_folder(results, run)) for run in missing):
        raise RunningElsewhere(f"{len(missing)} runs are left; other workers train them")
    if missing:
        raise FsslError(f"{len(missing)} runs are missing; the same command, or `fssl work`, runs them")
    return Diverged.exit_code if planned.diverged else 0
