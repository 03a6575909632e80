"""`fssl doctor`: what is wrong with this machine, and what to do about it.

Nothing that a broken machine breaks is imported before it was looked at.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark.cli.main import add_places
from benchmark.records.provenance import hardware

PYTHONS = ((3, 11), (3, 13))  # the first and the last that are supported
LEAST_ROOM = 1 << 30  # bytes: less holds few records and checkpoints
PACKAGES = ("numpy", "pytorch-lightning", "torchmetrics", "scikit-learn", "scipy", "pandas", "matplotlib", "optuna")
NVIDIA = Path("/proc/driver/nvidia/version")
SECONDS = 3.0  # for a Ray cluster to answer


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line: `trouble` where something is wrong, and the text then says what to do."""

    name: str
    text: str
    trouble: bool = False


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "Looks at everything that runs need here; each line that begins with !! says what to do."
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    """Exit 1 where anything is wrong."""
    found = list(findings(options.results, options.data_root))
    for finding in found:
        print(f"{'!!' if finding.trouble else 'ok'}  {finding.name}: {finding.text}")
    return 1 if any(finding.trouble for finding in found) else 0


def findings(results: Path, data_root: Path | None) -> Iterator[Finding]:
    yield python()
    pair = torch_and_torchvision()
    yield pair
    yield from packages()
    yield processor()
    if not pair.trouble:  # else torch itself may be what is broken
        yield features_and_threads()
        yield accelerator()
        yield data_sets(data_root)
    yield data_folder(data_root)
    yield results_folder(results)
    yield room(results)
    yield wandb()
    yield ray()
    yield sweeps()


def python() -> Finding:
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    here = platform.python_version()
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Finding(name="Python", text=here)
    return Finding(name="Python", text=f"{here}; {first} to {last} would be right", trouble=True)


def torch_and_torchvision() -> Finding:
    """By what torchvision says it was compiled for, then by importing both: other pairs break every import of
    Lightning, with a message that names neither."""
    name = "torch and torchvision"
    installed = {package: version_of(package) for package in ("torch", "torchvision")}
    missing = [package for package, version in installed.items() if version is None]
    if missing:
        return Finding(name=name, text=f"{missing[0]} is not installed; `make setup` installs it", trouble=True)
    needed = torch_needed()
    both = f"torch {installed['torch']}, torchvision {installed['torchvision']}"
    remedy = "Lightning does not even import then; `make setup` installs both from the lock file"
    if needed is not None and needed != str(installed["torch"]).partition("+")[0]:
        text = f"no pair: {both}, which was made for torch {needed}; {remedy}"
        return Finding(name=name, text=text, trouble=True)
    try:
        for package in ("torch", "torchvision"):
            importlib.import_module(package)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        return Finding(name=name, text=f"no pair: {both} ({one_line(error)}); {remedy}", trouble=True)
    return Finding(name=name, text=f"a matching pair: {both}")


def torch_needed() -> str | None:
    """The torch release that the installed torchvision names; None where it names none."""
    for line in importlib.metadata.requires("torchvision") or []:
        named = re.match(r"torch\s*\(?==\s*([0-9.]+)", line)
        if named:
            return named.group(1)
    return None


def packages() -> Iterator[Finding]:
    missing = [package for package in PACKAGES if version_of(package) is None]
    for package in missing:
        yield Finding(name=package, text="is not installed; `make setup` installs it", trouble=True)
    present = [f"{package} {version_of(package)}" for package in PACKAGES if package not in missing]
    yield Finding(name="packages", text=", ".join(present))


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> Finding:
    found = hardware()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding(
        name="processor", text=f"{found['processor']}, {found['cores']} cores, {usable} of them for this process"
    )


def features_and_threads() -> Finding:
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    threads = torch.get_num_threads()
    text = f"torch computes with {capability} on {threads} threads (runs set their own: `--threads`, `--workers`)"
    if capability == "DEFAULT" and platform.machine() in ("x86_64", "AMD64"):
        return Finding(name="vector units", text=f"{text}; without AVX2 runs take several times as long", trouble=True)
    return Finding(name="vector units", text=text)


def accelerator() -> Finding:
    import torch

    driver = NVIDIA.read_text().splitlines()[0] if NVIDIA.exists() else None
    if torch.cuda.is_available():
        cards = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return Finding(name="accelerator", text=f"{cards}; CUDA {torch.version.cuda}, driver: {driver or 'unknown'}")
    if driver is None:
        return Finding(name="accelerator", text="none: runs go to the CPU")
    text = (
        f"the driver is there ({driver}), but torch {torch.__version__} with CUDA {torch.version.cuda} cannot use it: "
        "too old a driver, no permission for /dev/nvidia*, or CUDA_VISIBLE_DEVICES; runs would go to the CPU"
    )
    return Finding(name="accelerator", text=text, trouble=True)


def data_sets(data_root: Path | None) -> Finding:
    from benchmark.data.datasets import NAMES, at_hand

    found = [name for name in NAMES if at_hand(name, data_root)]
    lacking = [name for name in NAMES if name not in found]
    elsewhere = f"; not here: {', '.join(lacking)} (`fssl data list` says what to do)" if lacking else ""
    return Finding(name="data sets", text=f"{', '.join(found)}{elsewhere}")


def data_folder(data_root: Path | None) -> Finding:
    root = data_root or os.environ.get("FSSL_DATA")
    if not root:
        return Finding(name="data folder", text="not set: the cache is searched (--data-root or $FSSL_DATA)")
    if not Path(root).is_dir():
        text = f"{root} is no folder; --data-root or $FSSL_DATA has to name one"
        return Finding(name="data folder", text=text, trouble=True)
    return Finding(name="data folder", text=str(root))


def results_folder(results: Path) -> Finding:
    """By writing a file there, or where it would be made."""
    place = existing(results)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        text = f"{results} cannot be written ({error.strerror}); a folder of yours by --results or $FSSL_RESULTS"
        return Finding(name="results folder", text=text, trouble=True)
    return Finding(name="results folder", text=f"{results} can be written")


def room(results: Path) -> Finding:
    left = shutil.disk_usage(existing(results)).free
    text = f"{left / 1e9:.1f} GB free for results"
    if left < LEAST_ROOM:
        return Finding(name="disk", text=f"{text}; runs end with exit 73 when it is full: make room", trouble=True)
    return Finding(name="disk", text=text)


def existing(path: Path) -> Path:
    """The path, or the nearest one above it that is there."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def wandb() -> Finding:
    """Never a trouble: without W&B runs are recorded all the same."""
    from benchmark.records.wandb_mirror import unreachable

    version, why = version_of("wandb"), unreachable()
    if version is None:
        return Finding(name="W&B", text="is not installed: runs are recorded here alone")
    said = "can be reached" if why is None else f"runs would be mirrored offline: {why}"
    return Finding(name="W&B", text=f"{version}, {said}")


def ray() -> Finding:
    """A trouble only where a cluster is named that does not answer."""
    address = os.environ.get("RAY_ADDRESS", "")
    if importlib.util.find_spec("ray") is None:
        missing = "not installed (only for several machines: `pip install 'fssl-bench[ray]'`)"
        return Finding(name="Ray", text=missing, trouble=bool(address))
    if not address or address in ("auto", "local"):
        return Finding(name="Ray", text=f"{version_of('ray')}, no cluster named ($RAY_ADDRESS)")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, ValueError) as error:
        text = f"$RAY_ADDRESS {address} does not answer ({error}); `ray start --head` there, or unset it"
        return Finding(name="Ray", text=text, trouble=True)
    return Finding(name="Ray", text=f"{version_of('ray')}, {address} answers")


def sweeps() -> Finding:
    spec = importlib.util.find_spec("sweeps")
    ours = Path(__file__).resolve().parents[2] / "sweeps" / "__init__.py"
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == ours:
        return Finding(name="package sweeps", text="ours")
    hides = spec.origin if spec is not None else "nothing"
    return Finding(name="package sweeps", text=f"{hides} hides ours: `pip uninstall sweeps`", trouble=True)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
