"""Where a number comes from: commit, versions, data and partition hashes, hardware.

Imports nothing that a broken machine breaks: `fssl doctor` asks it, too.
"""

import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who only asks for the commit loads nothing that trains
    from benchmark.federated.engines import Engine
    from benchmark.federated.environment import Environment

PACKAGES = ("torch", "torchvision", "pytorch-lightning", "numpy", "scipy", "scikit-learn")
ROOT = Path(__file__).resolve().parents[2]


def manifest(environment: "Environment", engine: "Engine") -> dict[str, Any]:
    """What a reader needs to judge whether two runs may be compared. No name of a person, host or path is in it."""
    return {
        "code": commit(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "hardware": hardware(),
        "engine": dict(engine.settings),
        "data": {
            "name": environment.data.name,
            "hash": environment.data.content_hash,
            "note": environment.data.note,
            "partition": environment.split.hash(),
        },
    }


def identity(environment: "Environment") -> dict[str, str]:
    """What has to be the same on all ranks of a run: the experiment, the data, and the code, a method's own too."""
    from benchmark.experiment import NUMERICS

    experiment, code = environment.experiment, commit()
    method = inspect.getsourcefile(type(experiment.method))
    return {
        "experiment": f"cell {experiment.cell_key}, seed {experiment.seed}, numerics {NUMERICS}",
        "data": f"{environment.data.name} with hash {environment.data.content_hash}",
        "partition": environment.split.hash(),
        "code": f"commit {code['commit']}, changes {code['changes']}",
        "method": f"source with hash {hashlib.sha256(Path(method).read_bytes()).hexdigest()[:16]}" if method else "",
        "torch": importlib.metadata.version("torch"),
    }


@cache
def commit() -> dict[str, Any]:
    """The commit, and the hash of what was changed since; "unknown" outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
        return done.stdout

    try:
        changes = git("diff", "HEAD", "--", "benchmark", "sweeps", "reports")
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "changes": hashlib.sha256(changes.encode()).hexdigest()[:16] if changes else None,
        }
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "changes": None}


def hardware() -> dict[str, Any]:
    """Processor and cores as the operating system names them."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux: the plain name has to do
    return {"processor": name, "cores": os.cpu_count() or 1}
