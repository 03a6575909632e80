"""`fssl doctor`: whether versions, device, data and the results folder are as runs need them, and what to do.

Nothing that a broken machine breaks is imported before it was looked at.
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

PYTHONS = ((3, 11), (3, 13))  # the first and the last that are supported
NVIDIA = Path("/proc/driver/nvidia/version")


class Trouble(Exception):
    """What is wrong, and what to do."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "Checks versions, device, data and the results folder; lines with !! say what to do."
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    """Exit 1 where anything is wrong. Without the right versions nothing else can be checked."""
    code = 0
    checks = {"versions": versions, "device": device, "data": data, "results": results}
    for name, check in checks.items():
        try:
            print(f"ok  {name}: {check(options)}")
        except Trouble as trouble:
            code = 1
            print(f"!!  {name}: {trouble}")
            if name == "versions":
                break
    return code


def versions(options: argparse.Namespace) -> str:
    """By importing torch and torchvision: a pair that does not match breaks Lightning without naming either."""
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise Trouble(f"Python {platform.python_version()}; install {first} to {last}")
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise Trouble(f"{package} is not installed; `make setup` installs it") from None
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    try:
        importlib.import_module("torch")
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        said = " ".join(str(error).split())
        raise Trouble(f"{text}: torch and torchvision do not match ({said}); `make setup` installs both") from error
    return text


def device(options: argparse.Namespace) -> str:
    import torch

    from benchmark.federated.start import usable_cores

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    if NVIDIA.exists():
        driver = NVIDIA.read_text().splitlines()[0]
        raise Trouble(f"torch with CUDA {torch.version.cuda} cannot use the driver ({driver}); install a newer driver")
    return f"the CPU, {usable_cores()} cores"


def data(options: argparse.Namespace) -> str:
    from benchmark.data.datasets import DATASETS, at_hand

    root = options.data_root
    given = root or os.environ.get("FSSL_DATA")
    if given and not Path(given).expanduser().is_dir():
        raise Trouble(f"{given} is not a folder; --data-root or $FSSL_DATA has to name one")
    here = [name for name in DATASETS if at_hand(name, root)]
    lacking = [name for name in DATASETS if name not in here]
    return ", ".join(here) + (f"; not here: {', '.join(lacking)} (see `fssl list data`)" if lacking else "")


def results(options: argparse.Namespace) -> str:
    """By writing a file there, or where it would be made."""
    folder: Path = options.results
    path = folder.absolute()
    place = next(place for place in (path, *path.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        said = f"{folder} cannot be written ({error.strerror})"
        raise Trouble(f"{said}; name a folder of yours by --results or $FSSL_RESULTS") from error
    return f"{folder} can be written"
