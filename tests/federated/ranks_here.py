"""Ranks on this machine, as torchrun would start them: real processes and gloo, forked from one that has imported all.

Each has a log of what it said; `faults` are functions of `tests.records.faults` or of this module, with their
argument, by rank (-1: for all).
"""

import dataclasses
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment, to_json
from tests.records import faults as common_faults

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "benchmark.cli.run",
        "benchmark.records.run",
        "benchmark.federated.helper",
        "benchmark.cli.run_progress",
        __name__,
    ]
)
Faults = Mapping[int, Mapping[str, Any]]


class RanksHere:
    """Ranks that have been started. `codes` are exit codes, as `subprocess` has them."""

    def __init__(self, experiments: Sequence[Experiment], folder: Path, faults: Faults | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._processes = folder, []
        self._logs = [folder / f"rank{rank}.log" for rank in range(len(experiments))]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank, experiment in enumerate(experiments):
            config = folder / f"config{rank}.json"
            config.write_text(json.dumps(to_json(experiment)))
            environ = {"RANK": rank, "WORLD_SIZE": len(experiments), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            words = ["run", "--engine", "distributed", "--config", str(config), "--results", str(folder)]
            wanted = {**(faults or {}).get(-1, {}), **(faults or {}).get(rank, {})}
            said = {name: str(value) for name, value in environ.items()}
            process = CONTEXT.Process(target=be_a_rank, args=(words, said, str(self._logs[rank]), wanted), daemon=True)
            process.start()
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def said(self) -> list[str]:
        return [log.read_text() if log.exists() else "" for log in self._logs]

    def wait(self, seconds: float = 60.0) -> list[int | None]:
        """The exit codes, once all have ended or so many seconds have passed (None: still there)."""
        until = time.monotonic() + seconds
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        return [process.exitcode for process in self._processes]

    def wait_for_lines(self, lines: int, seconds: float = 60.0) -> None:
        """Until the record has so many rounds."""
        until = time.monotonic() + seconds
        while sum(len(path.read_text().splitlines()) for path in self.folder.rglob("rounds.jsonl")) < lines:
            assert time.monotonic() < until and self._processes[0].is_alive(), self.said
            time.sleep(0.02)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def be_a_rank(words: Sequence[str], environ: Mapping[str, str], log: str, faults: Mapping[str, Any]) -> None:
    """The main function of a rank: `fssl` with these words, in an environment as torchrun makes it."""
    from benchmark.cli.main import main

    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # where an engine of the tests' started what this is forked from
    os.environ.update(environ)
    common_faults.checkpoint_every_round()
    for name, argument in faults.items():
        (globals().get(name) or getattr(common_faults, name))(argument)
    sys.exit(main(words))


def patience(seconds: float) -> None:
    """A rank counts as lost after so many seconds of silence."""
    from benchmark.federated import ranks

    ranks.SILENCE = seconds


def seconds_between_checkpoints(seconds: float) -> None:
    """The command has no word for it."""
    from benchmark.records.run import run

    defaults = run.__kwdefaults__
    assert defaults is not None and "seconds_between" in defaults
    defaults["seconds_between"] = seconds


def other_data(wanted: bool) -> None:
    """This rank's images have been damaged, or exchanged: their hash is another."""
    from benchmark.federated import helper

    prepare = helper.prepare

    def changed(*arguments: Any) -> Any:
        environment = prepare(*arguments)
        return dataclasses.replace(environment, data=dataclasses.replace(environment.data, content_hash="0123abcd"))

    helper.prepare = changed  # type: ignore[assignment]


def no_data(wanted: bool) -> None:
    """This rank's host lacks the data set."""
    from benchmark.errors import DataError
    from benchmark.federated import helper

    def missing(*arguments: Any) -> Any:
        raise DataError("digits: not found; somewhere else would be right")

    helper.prepare = missing  # type: ignore[assignment]


def main() -> None:
    """As `torchrun -m tests.federated.ranks_here '{"sleep_in_round": 3}' run ...` starts it."""
    from benchmark.cli import main as command

    common_faults.checkpoint_every_round()
    for name, argument in json.loads(sys.argv[1]).items():
        getattr(common_faults, name)(argument)
    sys.exit(command.main(sys.argv[2:]))


if __name__ == "__main__":
    main()
