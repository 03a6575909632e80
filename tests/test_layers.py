"""Imports go one way, and the check that says so can fail.

Each way of breaking the order is put into a copy of the packages, where import-linter must find it.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("benchmark", "sweeps", "reports")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
EVERY_LAYER, INSIDE_BENCHMARK = SETTINGS["contracts"]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the packages in `folder`, with the contracts of its pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    # A wide terminal, or long import chains are broken over lines.
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copied_packages(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=lambda folder, names: _all_but_python(folder, names))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _all_but_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or (Path(folder, name) / "__init__.py").is_file())]


def modules_of(package: Path) -> set[str]:
    """Names of the modules and sub-packages directly inside a package."""
    folders = {found.parent.name for found in package.glob("*/__init__.py")}
    return folders | {found.stem for found in package.glob("*.py")} - {"__init__"}


def layer_names(layers: list[str]) -> list[str]:
    return [name.strip() for layer in layers for name in layer.replace("|", ":").split(":")]


def test_the_imports_go_one_way() -> None:
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "2 kept, 0 broken" in outcome.stdout


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("benchmark/data", "benchmark.models"),
        ("benchmark/losses", "benchmark.federated"),
        ("benchmark/methods", "benchmark.papers"),
        ("benchmark/records", "sweeps"),
        ("sweeps", "reports"),
        ("reports", "benchmark.cli"),
    ],
)
def test_an_import_upwards_is_found(copied_packages: Path, module: str, forbidden: str) -> None:
    (copied_packages / module / "offender.py").write_text(f"import {forbidden}\n")
    outcome = lint_imports(copied_packages)
    assert outcome.returncode == 1
    assert f"{module.replace('/', '.')}.offender -> {forbidden}" in outcome.stdout


def test_the_command_line_may_import_everything(copied_packages: Path) -> None:
    (copied_packages / "benchmark/cli/all.py").write_text("import benchmark.data\nimport reports\nimport sweeps\n")
    assert lint_imports(copied_packages).returncode == 0


def test_a_module_without_a_layer_is_found(copied_packages: Path) -> None:
    (copied_packages / "benchmark/helpers.py").write_text("import benchmark.cli\n")
    outcome = lint_imports(copied_packages)
    assert outcome.returncode == 1
    assert "benchmark.helpers" in outcome.stdout


def test_the_contracts_name_every_package_on_disk_in_one_order() -> None:
    """The second contract repeats the first without sweeps and reports, which lie outside its container."""
    named = layer_names(EVERY_LAYER["layers"])
    assert set(named) == {f"benchmark.{name}" for name in modules_of(ROOT / "benchmark")} | {"sweeps", "reports"}
    inside = [name.removeprefix("benchmark.") for name in named if name.startswith("benchmark.")]
    assert layer_names(INSIDE_BENCHMARK["layers"]) == inside
