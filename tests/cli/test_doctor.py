"""`fssl doctor` on machines with a fault each: the line that says so, what to do, and the exit code."""

import argparse
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
    if sys.platform == "linux":  # the kernel's own list of what the processor has
        assert ("bf16 by AMX" in device) == (" amx_bf16 " in Path("/proc/cpuinfo").read_text())
    assert data.startswith("ok  data: digits"), "scikit-learn brings the digits"
    assert results == f"ok  results: {tmp_path} can be written" and not list(tmp_path.iterdir())


def hidden_by(package: str, source: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """`fssl doctor` in a process of its own, where another package of this name comes first."""
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
    ended, other = hidden_by("sweeps", "", tmp_path), tmp_path / "sweeps" / "__init__.py"
    assert (ended.returncode, ended.stdout) == (65, "")
    assert ended.stderr == f"fssl: {other} hides our sweeps: `pip uninstall sweeps`\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that works")
def test_a_driver_that_torch_cannot_use(tmp_path, monkeypatch):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157\nGCC version: 9\n")
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", None)  # built for CPUs alone: a driver beside it is no fault
    assert " cores; " in doctor.device(argparse.Namespace())
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with pytest.raises(FsslError, match=r"Module  390.157\); install a newer driver"):
        doctor.device(argparse.Namespace())


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
