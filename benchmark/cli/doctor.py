"""`fssl doctor`: what is wrong with this machine, and what to do about it.

Nothing that a broken machine breaks is imported before it was looked at.
"""

import argparse
import importlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

from benchmark.cli.main import add_places, clash
from benchmark.records.provenance import hardware

PYTHONS = ((3, 11), (3, 13))  # the first and the last that are supported
LEAST_ROOM = 1 << 30  # bytes: less holds few records and states
PACKAGES = ("numpy", "pytorch-lightning", "scikit-learn", "scipy", "pandas", "matplotlib", "optuna")
NVIDIA = Path("/proc/driver/nvidia/version")
SECONDS = 3.0  # for a Ray cluster to answer
PAIR = "torch and torchvision"
NEEDS_TORCH = ("processor", "accelerator", "data sets")


class Trouble(Exception):
    """What is wrong, and what to do."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "Looks at everything that runs need here; each line that begins with !! says what to do."
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    """Exit 1 where anything is wrong."""
    found = list(findings(options.results, options.data_root))
    for name, text, trouble in found:
        print(f"{'!!' if trouble else 'ok'}  {name}: {text}")
    return 1 if any(trouble for _, _, trouble in found) else 0


def findings(results: Path, data_root: Path | None) -> Iterator[tuple[str, str, bool]]:
    """(name, text, whether something is wrong) of each check; those that import torch only where it can be imported."""
    checks: dict[str, Callable[[], str]] = {
        "Python": python,
        PAIR: torch_and_torchvision,
        "packages": packages,
        "processor": processor,
        "accelerator": accelerator,
        "data sets": partial(data_sets, data_root),
        "results folder": partial(results_folder, results),
        "W&B": wandb,
        "Ray": ray,
        "package sweeps": sweeps,
    }
    torch_works = True
    for name, check in checks.items():
        if name in NEEDS_TORCH and not torch_works:
            continue
        try:
            yield name, check(), False
        except Trouble as trouble:
            torch_works = torch_works and name != PAIR
            yield name, str(trouble), True


def python() -> str:
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise Trouble(f"{platform.python_version()}; install one from {first} to {last}")
    return platform.python_version()


def torch_and_torchvision() -> str:
    """By what torchvision says it was compiled for, then by importing both: other pairs break every import of
    Lightning, with a message that names neither."""
    installed = {package: version_of(package) for package in ("torch", "torchvision")}
    for package, version in installed.items():
        if version is None:
            raise Trouble(f"{package} is not installed; `make setup` installs it")
    both = f"torch {installed['torch']}, torchvision {installed['torchvision']}"
    remedy = "Lightning does not even import then; `make setup` installs both from the lock file"
    named = [re.match(r"torch\s*\(?==\s*([0-9.]+)", line) for line in metadata.requires("torchvision") or []]
    for needed in (match.group(1) for match in named if match):
        if needed != str(installed["torch"]).partition("+")[0]:
            raise Trouble(f"no pair: {both}, which was made for torch {needed}; {remedy}")
    try:
        for package in ("torch", "torchvision"):
            importlib.import_module(package)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise Trouble(f"no pair: {both} ({' '.join(str(error).split())}); {remedy}") from error
    return f"a matching pair: {both}"


def packages() -> str:
    versions = {package: version_of(package) for package in PACKAGES}
    if missing := [package for package, version in versions.items() if version is None]:
        raise Trouble(f"{', '.join(missing)} not installed; `make setup` installs them")
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    import torch

    found, capability = hardware(), torch.backends.cpu.get_cpu_capability()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{found['processor']}, {found['cores']} cores, {usable} of them for this process; torch uses {capability}"
    if capability == "DEFAULT" and platform.machine() in ("x86_64", "AMD64"):
        raise Trouble(f"{text}: without AVX2 runs take several times as long; use another machine")
    return text


def accelerator() -> str:
    import torch

    driver = NVIDIA.read_text().splitlines()[0] if NVIDIA.exists() else None
    if torch.cuda.is_available():
        cards = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return f"{cards}; CUDA {torch.version.cuda}, driver: {driver or 'unknown'}"
    if driver is None:
        return "none: runs go to the CPU"
    raise Trouble(
        f"the driver is there ({driver}), but torch {torch.__version__} with CUDA {torch.version.cuda} cannot use it: "
        "too old a driver, no permission for /dev/nvidia*, or CUDA_VISIBLE_DEVICES; runs would go to the CPU"
    )


def data_sets(data_root: Path | None) -> str:
    from benchmark.data.datasets import DATASETS, at_hand

    root = data_root or os.environ.get("FSSL_DATA")
    if root and not Path(root).expanduser().is_dir():
        raise Trouble(f"{root} is no folder; --data-root or $FSSL_DATA has to name one")
    found = [name for name in DATASETS if at_hand(name, data_root)]
    lacking = [name for name in DATASETS if name not in found]
    elsewhere = f"; not here: {', '.join(lacking)} (`fssl list data` says what to do)" if lacking else ""
    return f"{', '.join(found)}{elsewhere}"


def results_folder(results: Path) -> str:
    """By writing a file there, or where it would be made."""
    path = results.absolute()
    place = next(place for place in (path, *path.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        said = f"{results} cannot be written ({error.strerror})"
        raise Trouble(f"{said}; name a folder of yours by --results or $FSSL_RESULTS") from error
    free = shutil.disk_usage(place).free
    if free < LEAST_ROOM:
        raise Trouble(f"{results}: {free / 1e9:.1f} GB free; runs end with exit 73 when the disk is full: make room")
    return f"{results} can be written, {free / 1e9:.1f} GB free"


def wandb() -> str:
    """Never a trouble: without W&B runs are recorded all the same."""
    from benchmark.records.wandb_mirror import unreachable

    version, why = version_of("wandb"), unreachable()
    if version is None:
        return "not installed: runs are recorded here alone"
    return f"{version}, can be reached" if why is None else f"{version}, runs would be mirrored offline: {why}"


def ray() -> str:
    """A trouble only where a cluster is named that does not answer."""
    address = os.environ.get("RAY_ADDRESS", "")
    if importlib.util.find_spec("ray") is None:
        missing = "not installed (only for several machines: `pip install 'fssl-bench[ray]'`)"
        if address:
            raise Trouble(missing)
        return missing
    if address in ("", "auto", "local"):
        return f"{version_of('ray')}, no cluster named ($RAY_ADDRESS)"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, ValueError) as error:
        raise Trouble(
            f"$RAY_ADDRESS {address} does not answer ({error}); `ray start --head` there, or unset it"
        ) from error
    return f"{version_of('ray')}, {address} answers"


def sweeps() -> str:
    """W&B has a package of that name, too."""
    if (trouble := clash()) is not None:
        raise Trouble(trouble)
    return "ours"
