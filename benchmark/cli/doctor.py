"""`fssl doctor`: check versions, device, data and the results folder, and print what to do.

Imports nothing that fails on a broken installation before it is checked.
"""

import argparse
import ctypes
import os
import platform
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

from benchmark.errors import FsslError, one_line
from benchmark.plain import expanded
from benchmark.records.provenance import PACKAGES, ROOT

PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest supported
NVIDIA = Path("/proc/driver/nvidia/version")
LIBRARY = "libcuda.so.1"  # the driver's own library, also without nvidia-smi
# The first driver of each CUDA release, by its first number, from the table of minimum drivers in CUDA's release notes.
FIRST_DRIVERS = ((580, (13, 0)), (525, (12, 0)), (450, (11, 0)), (0, (0, 0)))
# By CUDA's minor version compatibility, a build runs with every driver of the same first number, so that the oldest
# build of each number fits the most drivers. torch 2.9 and later have no build for CUDA 11.
BUILDS = {13: "cu130", 12: "cu126"}
# A processor's units for bfloat16, the fastest first, and their effect (reports/performance.md).
UNITS = {
    "amx_bf16": "bf16 by AMX: 2.1 to 2.8 times as fast on the papers' larger networks, slower on the laptop's",
    "avx512_bf16": "bf16 by AVX-512: 0.7 to 1.8 times as fast, by network and processor",
}
NO_UNITS = "no AMX or AVX-512 for bf16: stay with fp32"
UNKNOWN_UNITS = "this torch does not know whether it has AMX or AVX-512 for bf16"  # torch 2.9


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--method",
        metavar="MODULE:CLASS",
        help="also check whether the jobs of a round of this custom method can train together on a GPU",
    )


def run_command(options: argparse.Namespace) -> int:
    """Check versions, device, data and the results folder. Lines that begin with !! are instructions."""
    code = 0
    checks = (versions, device, data, results, *([stacking] if options.method else []))
    for check in checks:
        try:
            print(f"ok  {check.__name__}: {check(options)}")
        except FsslError as problem:
            code = 1
            print(f"!!  {check.__name__}: {problem}")
            if check is versions:
                break  # with wrong ones all further checks would fail
    return code


def versions(options: argparse.Namespace) -> str:
    """Import torch and torchvision, because Lightning fails without naming either if their versions do not match."""
    text = f"Python {platform.python_version()}"
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise FsslError("{}; install {}.{} to {}.{}".format(text, *PYTHONS[0], *PYTHONS[1]))
    try:
        text = ", ".join([text, *(f"{package} {metadata.version(package)}" for package in PACKAGES)])
    except metadata.PackageNotFoundError as error:
        raise FsslError(f"{error.name} is not installed; `make setup` installs it") from None
    try:
        import_module("torch")
        import_module("torchvision")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        reason = one_line(error)
        raise FsslError(f"{text}: torch and torchvision do not match ({reason}); `make setup` installs both") from error
    return text


def device(options: argparse.Namespace) -> str:
    """Return the devices of runs. Raise FsslError, with the command that helps, if torch does not fit the driver."""
    import torch

    from benchmark.federated.processes import usable_cores

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    cpu = f"the CPU, {usable_cores()} cores; {bf16_units()}"
    driver = driver_cuda()
    if driver is None:
        return cpu
    build = build_for(driver)
    can = f"the driver can run CUDA {driver[0]}.{driver[1]}"
    if torch.version.cuda is None:
        return cpu if build == "cpu" else f"{cpu}; {can}, so `{install_command(build)}` installs torch for the GPU"
    if int(torch.version.cuda.partition(".")[0]) <= driver[0]:
        raise FsslError(
            f"torch for CUDA {torch.version.cuda} fits the driver, but finds no GPU; look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES"
        )
    raise FsslError(
        f"torch is built for CUDA {torch.version.cuda}, but {can} at most; `{install_command(build)}` installs the "
        f"build that fits ({build})"
    )


def bf16_units() -> str:
    """Return the effect of the processor's fastest unit for bfloat16."""
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        return UNKNOWN_UNITS
    found = torch.cpu.get_capabilities()
    meanings = [meaning for unit, meaning in UNITS.items() if found.get(unit)]
    return meanings[0] if meanings else NO_UNITS


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that NVIDIA's driver can run, such as (12, 4), or None without a driver.

    It is read from the driver's library; nvidia-smi also prints it. If a container has neither, it follows from the
    driver's version, with 0 as the second number.
    """
    number = ctypes.c_int(0)
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return number.value // 1000, number.value % 1000 // 10
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30, check=True).stdout
        if found := re.search(r"CUDA (?:UMD )?Version: *(\d+)\.(\d+)", printed):
            return int(found[1]), int(found[2])
    with suppress(OSError):
        if found := re.search(r"\b(\d{3})\.\d+", NVIDIA.read_text()):
            return next(cuda for first, cuda in FIRST_DRIVERS if int(found[1]) >= first)
    return None


def build_for(driver: tuple[int, int]) -> str:
    """Return the torch build that a driver for this CUDA version runs: "cu130", "cu126" or "cpu"."""
    newest = max(BUILDS)
    return BUILDS.get(min(driver[0], newest), "cpu")


def install_command(build: str) -> str:
    """Return the command that installs the build: of the checkout, or of pip if there is none."""
    if (ROOT / "Makefile").is_file():
        return f"make setup TORCH={build}"
    index = f"https://download.pytorch.org/whl/{build}"
    return f"pip install --force-reinstall torch torchvision --index-url {index}"


def data(options: argparse.Namespace) -> str:
    from benchmark.data.datasets import DATASETS, is_available

    given = os.environ.get("FSSL_DATA")
    if given and not expanded(given).is_dir():
        raise FsslError(f"{given} is not a folder; --data-root or $FSSL_DATA has to name one")
    here = [name for name in DATASETS if is_available(name)]
    missing = [name for name in DATASETS if name not in here]
    return ", ".join(here) + (f"; not here: {', '.join(missing)} (see `fssl list data`)" if missing else "")


def results(options: argparse.Namespace) -> str:
    """Write a file into the results folder, or into the closest parent that exists if the folder does not."""
    folder: Path = options.results
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
    except OSError as error:
        reason = f"{folder} cannot be written ({error.strerror})"
        raise FsslError(f"{reason}; name a folder of yours by --results or $FSSL_RESULTS") from error
    return f"{folder} can be written"


def stacking(options: argparse.Namespace) -> str:
    """Take a step of each kind of the method's jobs on a small network, one at a time and together.

    This needs no data set.
    """
    from benchmark.cli.run import resolve
    from sweeps.stacking import kinds_of

    small = ("--data=digits", "--model.network=tiny_cnn", "--model.norm_groups=4", "--federation.K=4")
    reasons = kinds_of(resolve(None, [f"--method={options.method}", *small, "--federation.C=4", "--federation.T=2"]))
    alone = [f"{kind} ({reason})" for kind, reason in reasons.items() if reason]
    if alone:
        raise FsslError(
            f"{options.method}: on a GPU these jobs train one at a time: {', '.join(alone)}; "
            "benchmark/methods/README.md explains how to write a loss for jobs that train together"
        )
    return f"the jobs of {options.method} train together on a GPU ({', '.join(reasons)})"
