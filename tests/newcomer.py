"""Walk through README.md as a newcomer does: its commands in their order, in an empty folder without records.

`python -m tests.newcomer` prints each command with its seconds and exit code, and exits with 1 if one of them failed.
The commands are read from README.md. The custom table is shortened to one round.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT
from tests.readme import README, own_method, shell_lines, short_table

# Commands that are left out, by their beginning, and why.
LEFT_OUT = {
    "fssl reproduce ssfl": "trains for an hour or more",
    "fssl reproduce arena/digits": "trains all methods",
    "fssl verify --retrain 3": "checks the committed records, which the empty folder lacks",
    "fssl agent": "needs an account of W&B",
    "fssl work grid.yaml": "trains 36 runs",
}
# Options that are added, by the beginning of the command.
SHORTER = {"fssl tune": "--trials 2", "fssl reproduce arena/robustness": "--pilots 1"}
LONGEST = 1800  # seconds of one command, on a busy machine


@dataclass(frozen=True)
class Step:
    """A command that ended."""

    command: str
    code: int
    seconds: float
    errors: str  # what it said on standard error

    def __str__(self) -> str:
        line = f"{self.seconds:6.1f} s  exit {self.code}  {self.command}"
        return line if self.code == 0 else f"{line}\n{self.errors}"


def environment_of(folder: Path) -> dict[str, str]:
    """Put a command `fssl` of this checkout on the path, and the folder of records, which is empty, into `folder`."""
    programs = folder / "bin"
    programs.mkdir()
    fssl = programs / "fssl"
    fssl.write_text(f'#!/bin/bash\nexec {sys.executable} -m benchmark.cli.main "$@"\n')
    fssl.chmod(0o755)
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "FSSL_RESULTS": str(folder / "results"),
        "FSSL_WANDB": "off",
    }


def commands() -> list[str]:
    """List README's commands of fssl in their order, without those that are left out."""
    lines = [line for line in shell_lines(README) if line.startswith("fssl ")]
    found = []
    for line in lines:
        if not line.startswith(tuple(LEFT_OUT)):
            options = [more for start, more in SHORTER.items() if line.startswith(start)]
            command, _, _ = line.partition(" #")
            found.append(" ".join([command.strip(), *options]))
    return found


def walk(folder: Path) -> Iterator[Step]:
    """Run the commands one after another in `folder`, with README's method and table as files beside them."""
    environment = environment_of(folder)
    (folder / "my_method.py").write_text(own_method()[0])
    (folder / "mine.toml").write_text(short_table())
    for command in commands():
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        yield Step(command, done.returncode, time.monotonic() - began, done.stderr)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        codes = []
        for step in walk(Path(folder)):
            print(step, flush=True)
            codes.append(step.code)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
