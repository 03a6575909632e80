"""`fssl doctor`: check versions, device, data and the results folder, and say what to do.

Imports nothing that fails on a broken installation before it is checked.
"""

import argparse
import importlib
import os
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from benchmark.cli.main import add_places
from benchmark.records.provenance import PACKAGES

PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest supported
NVIDIA = Path("/proc/driver/nvidia/version")


class Problem(Exception):
    """What is wrong, and what to do."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "Checks versions, device, data and the results folder; lines with !! say what to do."
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    """Return 1 where anything is wrong. With wrong versions nothing else can be checked."""
    code = 0
    checks = {"versions": versions, "device": device, "data": data, "results": results}
    for name, check in checks.items():
        try:
            print(f"ok  {name}: {check(options)}")
        except Problem as problem:
            code = 1
            print(f"!!  {name}: {problem}")
            if name == "versions":
                break
    return code


def versions(options: argparse.Namespace) -> str:
    """Import torch and torchvision: where they do not match, Lightning fails and names neither."""
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise Problem(f"Python {platform.python_version()}; install {first} to {last}")
    installed = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise Problem(f"{package} is not installed; `make setup` installs it") from None
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    try:
        importlib.import_module("torch")
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise Problem(f"{text}: torch and torchvision do not match ({reason}); `make setup` installs both") from error
    return text


def device(options: argparse.Namespace) -> str:
    import torch

    from benchmark.federated.start import usable_cores

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    if NVIDIA.exists():
        driver = NVIDIA.read_text().splitlines()[0]
        raise Problem(f"torch with CUDA {torch.version.cuda} cannot use the driver ({driver}); install a newer driver")
    return f"the CPU, {usable_cores()} cores"


def data(options: argparse.Namespace) -> str:
    from benchmark.data.datasets import DATASETS, at_hand

    root = options.data_root
    given = root or os.environ.get("FSSL_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise Problem(f"{given} is not a folder; --data-root or $FSSL_DATA has to name one")
    here = [name for name in DATASETS if at_hand(name, root)]
    missing = [name for name in DATASETS if name not in here]
    return ", ".join(here) + (f"; not here: {', '.join(missing)} (see `fssl list data`)" if missing else "")


def results(options: argparse.Namespace) -> str:
    """Write a file there, or in the folder in which it would be made."""
    folder: Path = options.results
    path = folder.absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror})"
        raise Problem(f"{text}; name a folder of yours by --results or $FSSL_RESULTS") from error
    return f"{folder} can be written"
