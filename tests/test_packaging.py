"""What is installed is ours and pinned, the Makefile in front of it, and what importing it costs."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import benchmark
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = ("benchmark", "sweeps", "reports")
EXTRAS = {extra: list(map(Requirement, lines)) for extra, lines in PROJECT["optional-dependencies"].items()}


def locked(lock: str) -> dict[str, str]:
    """Name -> requirement, hashes left on: one entry runs over all its backslash-continued lines."""
    entries = re.split(r"\n(?=\S)", (ROOT / ".lock" / lock).read_text().strip())
    return {canonicalize_name(re.split(r"[=; ]", entry, maxsplit=1)[0]): entry for entry in entries}


RUN, DEV = locked("run.txt"), locked("dev.txt")


def version_of(entry: str) -> str:
    found = re.match(r"[^=\s]+==(\S+)", entry)
    assert found, f"{entry.splitlines()[0]} is not pinned to one version"
    return found.group(1)


def test_the_locks_pin_and_hash_everything_and_name_no_address() -> None:
    """A lock with an index address would tie users to the machine that wrote it. W&B's package `sweeps` would be
    imported in the place of ours, or ours in its place."""
    assert RUN.items() <= DEV.items()  # the same versions, markers and hashes
    for name, entry in DEV.items():
        assert not re.search(r"://|@ file|--index|--extra-index|--find-links|^-[a-z]", entry, flags=re.MULTILINE), name
        assert version_of(entry), name
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), f"{name} has no hash"
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.distribution("sweeps")
    assert "sweeps" not in DEV


def test_each_lock_holds_what_is_declared() -> None:
    """`make setup` builds with the locked setuptools, and leaves to `make setup-dev` what only tests and Ray need."""
    back_end = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in [*map(Requirement, PROJECT["dependencies"] + back_end), *EXTRAS["postgres"]]:
        assert requirement.specifier.contains(version_of(RUN[canonicalize_name(requirement.name)])), requirement
    for requirement in EXTRAS["dev"] + EXTRAS["ray"]:
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(version_of(DEV[canonicalize_name(requirement.name)])), requirement
            assert requirement.name not in RUN
    assert "triton" not in DEV


def test_what_the_code_imports_is_in_the_run_lock() -> None:
    """All imports of the three packages, also those within functions; Ray alone has to be asked for."""
    sources = [path for package in OURS for path in (ROOT / package).rglob("*.py")]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    modules = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {*OURS}
    packages = metadata.packages_distributions()
    assert {"torch", "wandb", "sqlalchemy"} <= modules
    assert {name for name in modules if not {*map(canonicalize_name, packages[name])} & RUN.keys()} == {"ray"}


def test_torch_and_torchvision_are_a_pair() -> None:
    """torchvision names the one torch release it was compiled for: the installed two fit, and so do the locked two."""
    torchvision = metadata.distribution("torchvision")
    needed = [Requirement(line) for line in torchvision.requires or []]
    (needed_torch,) = [requirement for requirement in needed if requirement.name == "torch"]
    assert needed_torch.specifier.contains(metadata.version("torch").partition("+")[0])
    if torchvision.version.partition("+")[0] == version_of(RUN["torchvision"]):
        assert needed_torch.specifier.contains(version_of(RUN["torch"]))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a folder with the Makefile and the files that its set-up depends on, but no .venv."""
    for folder in (".lock", ".package"):
        (tmp_path / folder).mkdir()
    for name in ("Makefile", "pyproject.toml", ".package/torch_build.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for name in ("run.txt", "dev.txt"):
        (tmp_path / ".lock" / name).touch()
    return tmp_path


def make(checkout: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its own settings down to every make below it, this one included.
    ours = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PROFILE", "ARGS", "PYTHON", "TORCH")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | settings
    command = ["make", "--silent", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ["reproduce-fedswitch-fig-3a", "PROFILE=gpu", "ARGS=--seeds 2"],
            "fssl reproduce fedswitch/fig-3a --profile gpu --seeds 2",
        ),
        (["reproduce-all"], "fssl reproduce all --profile laptop"),
        (["demo"], "fssl reproduce ssfl/tab2 --profile demo --main --seeds 9"),
    ],
)
def test_make_calls_fssl(checkout: Path, arguments: list[str], command: str) -> None:
    """Run for real, with a stand-in for `fssl` that prints its arguments, and a set-up declared done."""
    stand_in = checkout / ".venv" / "bin" / "fssl"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text('#!/bin/sh\necho "fssl $*"\n')
    stand_in.chmod(0o755)
    (checkout / ".venv" / ".run").touch()
    outcome = make(checkout, *arguments)
    assert (outcome.returncode, outcome.stdout.splitlines()[-1]) == (0, command), outcome.stderr


def test_make_without_a_python_says_which_it_needs(checkout: Path) -> None:
    outcome = make(checkout, "demo", "PYTHON=no-such-python")
    assert outcome.returncode != 0
    assert "error: no Python 3.11, 3.12 or 3.13 found (tried no-such-python)" in outcome.stderr


def wheel(folder: Path, name: str, version: str, *needs: str) -> str:
    """Build a package that only has its name. Return its line of a lock."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    requires = [f"Requires-Dist: {need}" for need in needs]
    files = {
        "METADATA": "\n".join([f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *requires, ""]),
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as packed:
        for file, text in files.items():
            packed.writestr(f"{name}-{version}.dist-info/{file}", text)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_a_torch_for_cpus_comes_from_where_pips_settings_say(checkout: Path) -> None:
    """Real pip, wheels of nothing. Without the index it is one line, and the set-up is taken up by the next make."""
    wheels, lock = checkout / "wheels", checkout / ".lock"
    wheels.mkdir()
    not_there = "".join(f"{name}==1.0 \\\n    --hash=sha256:{'0' * 64}\n" for name in ("nvidia_x", "cuda-toolkit"))
    run = wheel(wheels, "torchmetrics", "3.0") + wheel(wheels, "torch", "1.0") + wheel(wheels, "torchvision", "2.0")
    (lock / "run.txt").write_text(not_there.replace("_", "-") + run)
    (lock / "dev.txt").write_text(not_there.replace("_", "-") + run + wheel(wheels, "ruff", "4.0"))
    wheel(wheels, "fssl", "0")  # what building the project gives
    (checkout / "backend.py").write_text(
        "import shutil\n\ndef build_editable(folder, *options):\n"
        "    return shutil.copy('wheels/fssl-0-py3-none-any.whl', folder).rpartition('/')[2]\n"
    )
    (checkout / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    refused = make(checkout, "setup", "TORCH=cpu", f"PYTHON={sys.executable}", **settings)
    line, _ = refused.stderr.splitlines()  # the other is make's own
    assert line.startswith("error: ") and "torch==1.0+cpu torchvision==2.0+cpu" in line and "extra-index-url" in line
    assert refused.returncode != 0 and not (checkout / ".venv" / ".run-cpu").exists()

    wheel(wheels, "torch", "1.0+cpu")
    wheel(wheels, "torchvision", "2.0+cpu")
    done = make(checkout, "setup", "TORCH=cpu", **settings)
    assert done.returncode == 0, done.stderr
    assert "torch==1.0+cpu torchvision==2.0+cpu: versions of the lock, hashes not checked" in done.stdout
    done = make(checkout, "setup-dev", **settings)
    assert done.returncode == 0, done.stderr
    (packages,) = (checkout / ".venv").glob("lib/*/site-packages")
    found = {package.name: package.version for package in metadata.distributions(path=[str(packages)])}
    expected = {"torch": "1.0+cpu", "torchvision": "2.0+cpu", "torchmetrics": "3.0", "ruff": "4.0", "fssl": "0"}
    assert {name: version for name, version in found.items() if name not in ("pip", "setuptools")} == expected


def test_a_torch_for_an_older_driver_is_the_newest_pair_of_the_range(checkout: Path) -> None:
    """The index has no build of the locked version for this CUDA: an older pair is installed, and the line says so."""
    wheels, settings = checkout / "wheels", {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    wheels.mkdir()
    for version in ("2.8.0", "2.9.1", "2.11.0", "3.0.0"):
        wheel(wheels, "torch", f"{version}+cu126")
    wheel(wheels, "torchvision", "0.24.1+cu126", "torch==2.9.1")
    wheel(wheels, "torchvision", "0.26.0", "torch==2.11.0")  # not of this build
    (checkout / ".lock" / "run.txt").write_text("torch==2.15.0 \\\ntorchvision==0.29.2 \\\nnvidia-x==1 \\\n")
    (checkout / ".package" / "torch_build.py").write_text((ROOT / ".package" / "torch_build.py").read_text())
    subprocess.run([sys.executable, "-m", "venv", checkout / ".venv"], check=True, timeout=60)

    def build(name: str) -> subprocess.CompletedProcess[str]:
        command = [str(checkout / ".venv/bin/python"), ".package/torch_build.py", name, ".lock/run.txt"]
        environment = {**os.environ, **settings, "PIP_FIND_LINKS": str(wheels)}
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=120)

    done = build("cu126")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == "torch==2.9.1+cu126 torchvision==0.24.1+cu126: not the versions of the lock, hashes not checked\n"
    )
    refused = build("cu130")
    (line,) = refused.stderr.splitlines()
    assert refused.returncode != 0 and "torch==2.15.0+cu130" in line and "extra-index-url" in line


def test_make_refuses_a_torch_that_is_no_build(checkout: Path) -> None:
    refused = make(checkout, "setup", "TORCH=gpu")
    assert refused.returncode != 0 and "TORCH is cpu or a build for CUDA" in refused.stderr


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
    assert {
        "tests/test_packaging.py",
        ".package/build.py",
        ".lock/run.txt",
        "results/published/ssfl/tab2.toml",
    } <= names

    # The interpreter below the virtual environment, whose packages are given by name: its link to the checkout is not.
    packages = sysconfig.get_paths()["purelib"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), packages])}
    python = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name

    def fssl(*words: str) -> str:
        command = [str(python), "-m", "fssl", *words]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert {path.name.partition("-")[0] for path in target.iterdir()} == {"fssl", "bin"}  # one name, its metadata
    installed = {path for path in target.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    item = ["fedswitch/tab1", "--profile", "demo"]
    assert fssl("--version") == f"fssl {benchmark.__version__}\n"
    same = "import fssl.benchmark.errors as one; from benchmark import errors as other; assert one is other"
    subprocess.run([str(python), "-c", same], cwd=work, env=environment, check=True, timeout=60)
    assert "fedswitch/tab1:" in fssl("sweep", *item)
    assert "3 (0 done already)" in fssl("plan", *item, "--pilots", "1")
    assert "report: reports/site/fedswitch/tab1/demo/index.html" in fssl("reproduce", *item, "--pilots", "1")
    assert len(list((work / "results" / "runs").glob("*/seed=0/result.json"))) == 3
    assert fssl("report") == "reports/site/index.html\n"
    assert "departures" in (work / "reports" / "site" / "ssfl" / "index.html").read_text()
    assert installed == {path for path in target.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}


HEAVY = ("torch", "pytorch_lightning", "pandas", "matplotlib", "sklearn", "scipy", "optuna")
OPTIONAL = ("wandb", "ray", "psycopg", "pytest", "hypothesis", "playwright")  # for a few, who ask for them
PARSER = "from benchmark.cli.main import main, parser\n"
# `make setup` leaves triton out: None among the modules is a package that is not there. Neither training nor counting
# says a word about it.
TRAIN = f"""{PARSER}
import sys
sys.modules["triton"] = None
parser("reproduce")
import benchmark.records.run, torch
from sweeps.meta import META, WithoutNumbers
layer = torch.nn.Linear(3, 5, device=META)
with WithoutNumbers() as counter:
    layer(torch.ones(2, 3, device=META)).sum().backward()
torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9).step()
assert counter.flops == 2 * (2 * 2 * 3 * 5), counter.flops  # the product, and its gradient by the weights
"""


@pytest.mark.parametrize(
    ("code", "names"),
    [
        # The doctor has to answer where importing torch is what fails.
        pytest.param(
            f"import benchmark\n{PARSER}parser('doctor')\ntry: main(['--help'])\nexcept SystemExit: pass",
            HEAVY + OPTIONAL,
            id="package, help, doctor",
        ),
        pytest.param(TRAIN, (*OPTIONAL, "optuna"), id="train"),
        # Lightning takes seconds to load; an agent, which starts runs, and what reads records need none of it. A table
        # of which nothing is missing is printed at once; figures are drawn where a page is built.
        pytest.param(
            f"{PARSER}import reports.terminal, sys\n"
            "for verb in ('reproduce', 'agent', 'status', 'sweep', 'verify', 'wandb-rebuild'): parser(verb)\n"
            "assert not {'matplotlib', 'scipy.optimize', 'sklearn'} & sys.modules.keys()\nparser('report')",
            ("pytorch_lightning", "torchvision"),
            id="no training",
        ),
    ],
)
def test_what_is_imported_brings_nothing_that_it_does_not_need(code: str, names: tuple[str, ...]) -> None:
    """And says nothing, also where the home cannot be written, as in a container: /proc takes no folder."""
    words = [sys.executable, "-c", f"{code}\nimport sys\nprint(*({set(names)!r} & sys.modules.keys()))"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/proc"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")


def test_torch_loads_no_code() -> None:
    """Its default has been both, by version: each call says that it takes weights alone."""
    trees = {path: ast.parse(path.read_text()) for name in OURS for path in (ROOT / name).rglob("*.py")}
    calls = [(path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loads = [(path, call) for path, call in calls if ast.unparse(call.func) == "torch.load"]
    assert loads
    for path, call in loads:
        assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords], f"{path}:{call.lineno}"
