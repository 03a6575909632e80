"""What is installed is ours and pinned: package names, the lock, the entry point, and the Makefile in front of them."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmark.papers.catalogue import ITEMS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / ".lock" / "requirements.txt").read_text()


def locked() -> dict[str, str]:
    """Name -> requirement of the lock, hashes left on: one entry runs over all its backslash-continued lines."""
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    return {canonicalize_name(re.split(r"[=; ]", entry, maxsplit=1)[0]): entry for entry in entries}


def locked_version(name: str) -> str:
    found = re.match(r"[^=\s]+==(\S+)", locked()[name])
    assert found, f"{name} is not pinned to one version"
    return found.group(1)


@pytest.mark.parametrize("name", ["benchmark", "sweeps", "reports"])
def test_the_packages_are_ours(name: str) -> None:
    origin = importlib.import_module(name).__file__
    assert origin is not None
    assert Path(origin).resolve() == (ROOT / name / "__init__.py").resolve()


def test_the_other_sweeps_is_not_installed() -> None:
    """W&B's package of that name would be imported in the place of ours, or ours in its place."""
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.distribution("sweeps")
    assert "sweeps" not in locked()


def test_the_lock_pins_and_hashes_everything_and_names_no_address() -> None:
    """A lock with an index address would tie users to the machine that wrote it."""
    assert not re.search(r"://|@ file|--index|--extra-index|--find-links|^-[a-z]", LOCK, flags=re.MULTILINE)
    for name, entry in locked().items():
        assert locked_version(name), name
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), f"{name} has no hash"


def test_the_lock_holds_every_declared_dependency() -> None:
    declared = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(locked_version(canonicalize_name(requirement.name))), requirement


def test_torch_and_torchvision_are_a_pair() -> None:
    """torchvision names the one torch release it was compiled for; the installed pair must be the locked one."""
    torchvision = metadata.distribution("torchvision")
    needs = [Requirement(line) for line in torchvision.requires or []]
    (needed_torch,) = [requirement for requirement in needs if requirement.name == "torch"]
    assert torchvision.version.partition("+")[0] == locked_version("torchvision")
    assert needed_torch.specifier.contains(locked_version("torch"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and what its set-up depends on, but no .venv."""
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".lock").mkdir()
    (tmp_path / ".lock" / "requirements.txt").touch()
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its own settings down to every make below it, this one included.
    ours = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PROFILE", "ARGS", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = ["make", "--silent", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["reproduce-ssfl-tab2"], "fssl reproduce ssfl/tab2 --profile laptop"),
        (["reproduce-fedswitch-fig-3a", "PROFILE=gpu"], "fssl reproduce fedswitch/fig-3a --profile gpu"),
        (["reproduce-all", "ARGS=--seeds 2"], "fssl reproduce all --profile laptop --seeds 2"),
        (["demo"], "fssl reproduce ssfl/tab2 --profile demo --main --seeds 9"),
        (["report"], "fssl report"),
    ],
)
def test_make_calls_fssl(checkout: Path, arguments: list[str], command: str) -> None:
    """Run for real, with a stand-in for `fssl` that prints its arguments, and a set-up declared done."""
    stand_in = checkout / ".venv" / "bin" / "fssl"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text('#!/bin/sh\necho "fssl $*"\n')
    stand_in.chmod(0o755)
    (checkout / ".venv" / ".installed").touch()
    outcome = make(checkout, *arguments)
    assert (outcome.returncode, outcome.stdout.strip()) == (0, command), outcome.stderr


def test_every_item_has_its_target(checkout: Path) -> None:
    """The target's name with its first dash as a slash is the item's, and each is one that `fssl` knows."""
    stand_in = checkout / ".venv" / "bin" / "fssl"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text('#!/bin/sh\necho "$2"\n')
    stand_in.chmod(0o755)
    (checkout / ".venv" / ".installed").touch()
    outcome = make(checkout, *(f"reproduce-{name.replace('/', '-')}" for name in (*ITEMS, "ssfl", "all")))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == [*ITEMS, "ssfl", "all"]


def test_make_without_a_python_says_which_it_needs(checkout: Path) -> None:
    outcome = make(checkout, "demo", "PYTHON=no-such-python")
    assert outcome.returncode != 0
    assert "error: no Python 3.11, 3.12 or 3.13 found (tried no-such-python)" in outcome.stderr


def test_an_interrupted_setup_is_taken_up_again(checkout: Path) -> None:
    """A lock that cannot be installed stands for the interruption: no stamp is left, so the next make tries again."""
    (checkout / ".lock" / "requirements.txt").write_text("no hash and no such package\n")
    outcome = make(checkout, "demo", f"PYTHON={sys.executable}")
    assert outcome.returncode != 0 and "Invalid requirement" in outcome.stderr
    assert not (checkout / ".venv" / ".installed").exists()


@pytest.mark.slow
def test_a_wheel_works_from_an_unrelated_folder(tmp_path: Path) -> None:
    """Built and installed as a user would, with the locked packages but not the checkout in sight: what is run and
    shown goes to the working folder, and nothing to where the package lies. The sdist has the tests and the lock."""
    source, target, work = (tmp_path / name for name in ("source", "target", "work"))
    for folder in (source, work):
        folder.mkdir()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith("results/reference/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."], cwd=source, check=True, timeout=100
    )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True, timeout=100)
    build = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True, timeout=100)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"tests/test_packaging.py", ".lock/requirements.txt", "results/published/ssfl/tab2.toml"} <= names

    # The interpreter below the virtual environment, whose packages are given by name: its link to the checkout is not.
    packages = sysconfig.get_paths()["purelib"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), packages])}
    python = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name

    def fssl(*words: str) -> str:
        command = [str(python), "-m", "benchmark.cli.main", *words]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    installed = {path for path in target.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    item = ["fedswitch/tab1", "--profile", "demo"]
    assert fssl("--version") == f"fssl {metadata.version('fssl-bench')}\n"
    assert "fedswitch/tab1:" in fssl("sweep", *item)
    assert "3 (0 done already)" in fssl("plan", *item, "--pilots", "1")
    assert "report: reports/site/fedswitch/tab1/demo/index.html" in fssl("reproduce", *item, "--pilots", "1")
    assert len(list((work / "results" / "runs").glob("*/seed=0/result.json"))) == 3
    assert fssl("report") == "reports/site/index.html\n"
    assert "departures" in (work / "reports" / "site" / "ssfl" / "index.html").read_text()
    assert installed == {path for path in target.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
