"""Imports go one way; what has no layer is an error of the second contract in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def test_the_imports_go_one_way() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
