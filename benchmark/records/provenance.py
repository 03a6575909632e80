"""Where a number comes from: commit, versions, data and partition hashes, hardware.

Imports nothing that a broken machine breaks: `fssl doctor` asks it, too.
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

if TYPE_CHECKING:  # who only asks for the commit loads nothing that trains
    from benchmark.federated.engines import Engine
    from benchmark.federated.environment import Environment

PACKAGES = ("torch", "torchvision", "pytorch-lightning", "numpy", "scipy", "scikit-learn")
CODE = ("benchmark", "sweeps", "reports")  # what can move a number or how it is shown
ROOT = Path(__file__).resolve().parents[2]


def manifest(environment: "Environment", engine: "Engine") -> dict[str, Any]:
    """What a reader needs to judge whether two runs may be compared. No name of a person, host or path is in it."""
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
    """Whether two runs of one experiment have to agree bit by bit, as far as their manifests tell: an equal engine
    (whatever the number of its workers), processor and packages. Older manifests have no model of the processor, whose
    name stands for several ("AMD EPYC"), so they promise nothing to one that has it."""

    def facts(run: Mapping[str, Any]) -> tuple[Any, ...]:
        processor = [run.get("hardware", {}).get(name) for name in ("processor", "model")]
        return {**run.get("engine", {}), "workers": None}, processor, run.get("packages")

    return facts(one) == facts(other) and bool(one.get("engine", {}).get("bit_equal", True))


@cache
def commit() -> dict[str, Any]:
    """The commit, and the hash of what was changed or added since; "unknown" outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=True).stdout

    unknown = {"commit": "unknown", "changes": None}
    try:
        if Path(git("rev-parse", "--show-toplevel").removesuffix("\n")).resolve() != ROOT.resolve():
            return unknown  # installed inside another project's checkout
        changes = git("diff", "HEAD", "--", *CODE)
        for name in git("ls-files", "-z", "--others", "--exclude-standard", "--", *CODE).split("\0")[:-1]:
            if (ROOT / name).is_file():  # a link to nothing is an editor's lock
                changes += f"{name}\n{(ROOT / name).read_bytes().hex()}\n"
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "changes": hashlib.sha256(changes.encode(errors="surrogateescape")).hexdigest()[:16] if changes else None,
        }
    except (OSError, subprocess.CalledProcessError):
        return unknown


@cache
def hardware() -> dict[str, Any]:
    """Processor and cores as the operating system names them; on Linux also the processor's vendor, family and model,
    since virtual machines give several types one name."""
    facts = dict[str, str]()
    with suppress(OSError):  # not Linux: the plain name has to do
        pairs = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
    name = facts.get("model name") or platform.processor() or platform.machine()
    model = " ".join(facts[key] for key in ("vendor_id", "cpu family", "model") if key in facts)
    return {"processor": name, "cores": os.cpu_count() or 1, **({"model": model} if model else {})}
