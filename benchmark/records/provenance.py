"""Collect the provenance of a number: commit, versions, hashes of data and partition, and hardware.

The module imports nothing that a broken installation could break, because `fssl doctor` also uses
it.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.numerics import CURRENT

if TYPE_CHECKING:  # code that only needs the commit loads no training code
    from benchmark.federated.engines import Engine
    from benchmark.federated.environment import Environment

PACKAGES = ("torch", "torchvision", "pytorch-lightning", "numpy", "scipy", "scikit-learn")
CODE = ("benchmark", "sweeps", "reports")  # folders with code that can change a number or its presentation
ROOT = Path(__file__).resolve().parents[2]


def manifest(environment: "Environment", engine: "Engine") -> dict[str, Any]:
    """Return the information that a reader needs to judge whether two runs are comparable.

    It contains no name of a person, host or path.
    """
    return {
        "code": commit(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "hardware": hardware(),
        "engine": dict(engine.settings),
        "numerics": dict(CURRENT),
        "data": {
            "name": environment.data.name,
            "hash": environment.data.content_hash,
            "note": environment.data.note,
            "partition": environment.split.hash(),
            "class_counts": environment.class_counts,
        },
    }


def equal_bits_expected(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two runs of one experiment must agree bit by bit, according to their manifests.

    They must have the same engine, processor and packages; the number of workers does not matter. Older
    manifests do not contain the model of the processor, and its name covers several models ("AMD
    EPYC"). They therefore promise nothing relative to a manifest that has the model.
    """

    def facts(run: Mapping[str, Any]) -> tuple[Any, ...]:
        processor = [run.get("hardware", {}).get(name) for name in ("processor", "model")]
        return {**run.get("engine", {}), "workers": None}, processor, run.get("packages")

    return facts(one) == facts(other) and bool(one.get("engine", {}).get("bit_equal", True))


def git(*words: str) -> str:
    """Return git's output in this suite's folder. Raise OSError without git, and CalledProcessError if it fails."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=True).stdout


@cache
def commit() -> dict[str, Any]:
    """Return the commit, and a hash of the changes and new files since; "unknown" outside a checkout."""
    unknown = {"commit": "unknown", "changes": None}
    try:
        if Path(git("rev-parse", "--show-toplevel").removesuffix("\n")).resolve() != ROOT.resolve():
            return unknown  # installed inside the checkout of a different project
        changes = git("diff", "HEAD", "--", *CODE)
        for name in git("ls-files", "-z", "--others", "--exclude-standard", "--", *CODE).split("\0")[:-1]:
            if (ROOT / name).is_file():  # a link without a target is an editor's lock
                changes += f"{name}\n{(ROOT / name).read_bytes().hex()}\n"
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "changes": hashlib.sha256(changes.encode(errors="surrogateescape")).hexdigest()[:16] if changes else None,
        }
    except (OSError, subprocess.CalledProcessError):
        return unknown


@cache
def hardware() -> dict[str, Any]:
    """Return the processor and the number of cores according to the operating system.

    On Linux, add the processor's vendor, family and model, since virtual machines give several
    types one name.
    """
    facts = dict[str, str]()
    with suppress(OSError):  # not Linux: the plain name has to suffice
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    model = " ".join(facts[key] for key in ("vendor_id", "cpu family", "model") if key in facts)
    return {"processor": name, "cores": os.cpu_count() or 1, **({"model": model} if model else {})}
