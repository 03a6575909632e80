"""`fssl doctor` on machines with a fault each: the line that says so, what to do, and the exit code."""

import argparse
import ctypes
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from benchmark.cli import doctor
from benchmark.errors import FsslError
from benchmark.federated.processes import usable_cores
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def no_data_named(monkeypatch):
    monkeypatch.setenv("FSSL_DATA", "")  # which `--data-root` sets


@pytest.mark.skipif(doctor.NVIDIA.exists(), reason="this machine has a GPU")
def test_a_machine_without_fault(printed, tmp_path):
    versions, device, data, results = printed("doctor", "--results", tmp_path).splitlines()
    assert versions.startswith("ok  versions: Python 3.") and f"torch {metadata.version('torch')}," in versions
    assert device.startswith(f"ok  device: the CPU, {usable_cores()} cores; ")
    # The kernel has a list of its own of what the processor can do.
    if sys.platform == "linux" and hasattr(torch.cpu, "get_capabilities"):
        assert ("bf16 by AMX" in device) == (" amx_bf16 " in Path("/proc/cpuinfo").read_text())
    assert data.startswith("ok  data: digits"), "scikit-learn brings the digits"
    assert results == f"ok  results: {tmp_path} can be written" and not list(tmp_path.iterdir())


def test_a_torch_that_does_not_know_the_processor_s_units(printed, monkeypatch, tmp_path):
    """torch 2.9 has no list of the processor's capabilities."""
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    device = printed("doctor", "--results", tmp_path).splitlines()[1]
    assert f"the CPU, {usable_cores()} cores; " in device and not any(unit in device for unit in doctor.UNITS.values())


def hidden_by(package: str, source: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run `fssl doctor` in a separate process in which a different package of this name comes first."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(source)
    command = [sys.executable, "-m", "benchmark.cli.main", "doctor", "--results", str(folder / "results")]
    places = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return subprocess.run(command, env=places, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_torchvision_that_does_not_load_is_named(tmp_path):
    """Lightning cannot be imported there either: one line, no traceback."""
    ended = hidden_by("torchvision", "raise RuntimeError('operator nms does not exist')", tmp_path)
    assert ended.returncode == 1 and ended.stderr == ""
    (line,) = ended.stdout.splitlines()
    assert line.startswith("!!  versions: Python ") and f"torch {metadata.version('torch')}" in line
    assert line.endswith("do not match (operator nms does not exist); `make setup` installs both")


def test_another_package_named_sweeps_is_the_one_line(tmp_path):
    """W&B has one. Every command ends with 65 and says what to type."""
    ended = hidden_by("sweeps", "", tmp_path)
    other = tmp_path / "sweeps" / "__init__.py"
    assert (ended.returncode, ended.stdout) == (65, "")
    assert ended.stderr == f"fssl: {other} hides our sweeps: `pip uninstall sweeps`\n"


class Driver:
    """The driver's library as ctypes shows it."""

    def __init__(self, version: int) -> None:
        self.version = version

    def cuDriverGetVersion(self, place) -> int:  # noqa: N802  # NVIDIA's name
        place._obj.value = self.version
        return 0


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Simulate a machine with the driver's version in one of the three places, and no GPU that torch can use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "version")
    monkeypatch.setattr(doctor, "LIBRARY", "libno-such-driver.so")
    monkeypatch.setenv("PATH", str(tmp_path))

    def set_to(place: str, version: str) -> None:
        if place == "libcuda":
            major, minor = map(int, version.split("."))
            monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(1000 * major + 10 * minor))
        elif place == "nvidia-smi":
            (tmp_path / place).write_text(
                f"#!/bin/sh\necho '| Driver Version: 550.54.14   CUDA Version: {version} |'\n"
            )
            (tmp_path / place).chmod(0o755)
        else:
            (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}\nGCC: 9\n")

    return set_to


@pytest.mark.parametrize(
    ("place", "version", "cuda", "build"),
    [
        ("libcuda", "12.4", (12, 4), "cu126"),
        ("libcuda", "13.2", (13, 2), "cu130"),
        ("libcuda", "14.1", (14, 1), "cu130"),
        ("nvidia-smi", "12.2", (12, 2), "cu126"),
        ("nvidia-smi", "11.8", (11, 8), "cpu"),
        ("/proc", "390.157", (0, 0), "cpu"),
        ("/proc", "535.183.01", (12, 0), "cu126"),
        ("/proc", "580.65.06", (13, 0), "cu130"),
    ],
)
def test_the_build_that_fits_the_driver(driver, place, version, cuda, build):
    assert doctor.driver_cuda() is None
    driver(place, version)
    assert doctor.driver_cuda() == cuda
    assert doctor.build_for(cuda) == build


def test_a_torch_that_is_too_new_for_the_driver_is_replaced_by_one_command(driver, monkeypatch):
    driver("libcuda", "12.4")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(FsslError, match="CUDA 13.2.*CUDA 12.4 .*`make setup TORCH=cu126`"):
        doctor.device(argparse.Namespace())
    monkeypatch.setattr(doctor, "ROOT", Path("/no/checkout"))
    with pytest.raises(FsslError, match="`pip install .*torch torchvision --index-url .*/cu126`"):
        doctor.device(argparse.Namespace())
    monkeypatch.setattr(torch.version, "cuda", "12.8")  # it fits, and the GPU is hidden
    with pytest.raises(FsslError, match="CUDA_VISIBLE_DEVICES"):
        doctor.device(argparse.Namespace())


def test_a_torch_for_cpus_beside_a_driver_is_no_fault(driver, monkeypatch):
    driver("libcuda", "12.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "TORCH=cu126" in doctor.device(argparse.Namespace())
    driver("libcuda", "11.4")
    assert "TORCH" not in doctor.device(argparse.Namespace())


def test_wrong_versions_are_the_one_line(fssl, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such"))
    code, out, _ = fssl("doctor", "--results", tmp_path)
    assert code == 1 and out.count("\n") == 1 and out.startswith("!!  versions: ")
    assert "no-such is not installed; `make setup` installs it" in out


def test_folders_that_are_not_there_or_cannot_be_written(fssl, tmp_path):
    (tmp_path / "a file").touch()
    for place in ("a file", "a file/below", "/proc/results"):
        code, out, _ = fssl("doctor", "--results", tmp_path / place, "--data-root", tmp_path / "none")
        assert code == 1 and f"!!  data: {tmp_path / 'none'} is not a folder; --data-root or $FSSL_DATA" in out
        assert f"!!  results: {tmp_path / place}" in out and "--results or $FSSL_RESULTS" in out
    later = argparse.Namespace(results=tmp_path / "made" / "later")
    assert "can be written" in doctor.results(later) and not (tmp_path / "made").exists()
