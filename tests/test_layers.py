"""Imports go one way, and the check that says so can fail."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the packages in `folder`, with the contracts of its pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    # A wide terminal, or long import chains are broken over lines.
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_imports_go_one_way() -> None:
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_imports_upwards_are_found(tmp_path: Path) -> None:
    for package in ("benchmark", "sweeps", "reports"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, forbidden in (("benchmark/data", "benchmark.models"), ("benchmark/records", "sweeps")):
        (tmp_path / module / "offender.py").write_text(f"import {forbidden}\n")
    outcome = lint_imports(tmp_path)
    assert outcome.returncode == 1
    assert "benchmark.data.offender -> benchmark.models" in outcome.stdout
    assert "benchmark.records.offender -> sweeps" in outcome.stdout


def test_every_package_has_a_layer() -> None:
    named = {
        name.strip() for layer in SETTINGS["contracts"][0]["layers"] for name in layer.replace("|", ":").split(":")
    }
    folders = {f"benchmark.{found.parent.name}" for found in (ROOT / "benchmark").glob("*/__init__.py")}
    modules = {f"benchmark.{found.stem}" for found in (ROOT / "benchmark").glob("*.py")} - {"benchmark.__init__"}
    assert named == folders | modules | {"sweeps", "reports"}
