"""Walk through README.md as a newcomer does: its commands in their order, in an empty folder without records.

`python -m tests.newcomer` prints each command with its seconds and exit code, and exits with 1 if one of them failed.
The commands are read from README.md; only the table of one's own is shortened to one round.
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
from tests.readme import command_of_readme, own_method, short_table

# How the commands begin. Those that are left out set up a machine, train for longer, or wait to be stopped.
STARTS = (
    "fssl list",
    "fssl plan ssfl/tab2",
    "fssl run --federation.K=10",
    "fssl run --print-config",
    "fssl reproduce ./mine.toml",
    "fssl sweep --grid",
    "fssl plan grid.yaml",
    "fssl report ssfl --out",
    "fssl submit ./mine.toml",
    "fssl verify b.zip",
)
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


def walk(folder: Path) -> Iterator[Step]:
    """Run the commands one after another in `folder`, with README's method and table as files beside them."""
    environment = environment_of(folder)
    (folder / "my_method.py").write_text(own_method()[0])
    (folder / "mine.toml").write_text(short_table())
    for start in STARTS:
        command = command_of_readme(start)
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
