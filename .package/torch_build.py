"""Install torch and torchvision in one build, such as cpu or cu126, from an index that pip's own settings name.

`.venv/bin/python .package/torch_build.py BUILD LOCK`: the versions of the lock if an index has them in this build,
otherwise the newest pair that pyproject.toml allows. CUDA's libraries come with the build; hashes are not checked.
"""

import contextlib
import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.version import Version

PAIR = ("torch", "torchvision")
MOST = 40  # pairs that are tried
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def locked(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock.read_text(), re.MULTILINE))


def offered(name: str, build: str) -> list[str]:
    """List the versions of this build that pip finds and pyproject.toml allows, the newest first."""
    project = tomllib.loads(Path("pyproject.toml").read_text()).get("project", {})
    bounds = [line for line in map(Requirement, project.get("dependencies", ())) if line.name == name]
    loud = [word for word in PIP if word != "--quiet"]  # quiet, it prints no versions
    done = subprocess.run([*loud, "index", "versions", name], capture_output=True, text=True)
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    versions = [Version(text) for text in found[1].split(", ")] if found else []
    allowed = [version for version in versions if version.local == build]
    for line in bounds:
        allowed = [version for version in allowed if line.specifier.contains(version)]
    return [str(version) for version in sorted(allowed, reverse=True)]


def pairs(build: str, lock: dict[str, str]) -> Iterator[list[str]]:
    """Yield the requirements of each pair that is worth trying; torchvision's metadata says which torch it needs."""
    yield [f"{name}=={lock[name]}+{build}" for name in PAIR]
    every = itertools.product(*(offered(name, build) for name in PAIR))
    for versions in itertools.islice(every, MOST):
        yield [f"{name}=={version}" for name, version in zip(PAIR, versions, strict=True)]


def install(build: str, lock: dict[str, str]) -> list[str]:
    """Return the pair that was installed. Exit with one line if no index has one."""
    others = [f"{name}=={version}" for name, version in lock.items() if name not in (*PAIR, "setuptools")]
    others = [line for line in others if not line.startswith(("cuda-", "nvidia-"))]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(others))
        file.flush()
        options = ["--no-deps"] if build == "cpu" else ["--constraint", file.name]
        for pair in pairs(build, lock):
            if build == "cpu" and pair != wanted(build, lock) and not fit_together(pair):
                continue
            if subprocess.run([*PIP, "install", *options, *pair], capture_output=True).returncode == 0:
                return pair
    print(
        f"error: no index of pip's settings has {' '.join(wanted(build, lock))}, nor an older pair of this build; set "
        f"one that has: pip config set global.extra-index-url https://download.pytorch.org/whl/{build}",
        file=sys.stderr,
    )
    sys.exit(1)


def wanted(build: str, lock: dict[str, str]) -> list[str]:
    return next(pairs(build, lock))


def fit_together(pair: list[str]) -> bool:
    """Return whether pip would install the two with their dependencies; `--no-deps` would not notice a mismatch."""
    words = ["install", "--dry-run", "--ignore-installed", *pair]
    return subprocess.run([*PIP, *words], capture_output=True).returncode == 0


def main(build: str, lock_file: str) -> None:
    lock = locked(Path(lock_file))
    pair = install(build, lock)
    kind = "versions of the lock" if pair == wanted(build, lock) else "not the versions of the lock"
    print(f"{' '.join(pair)}: {kind}, hashes not checked")
    if build == "cpu":  # remove the libraries of a different build
        gone = [name for name in lock if name.startswith(("cuda-", "nvidia-"))]
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run([*PIP, "--quiet", "uninstall", "--yes", *gone], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
