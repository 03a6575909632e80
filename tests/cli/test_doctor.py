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
from benchmark.cli.main import main
from benchmark.errors import FsslError
from benchmark.federated.start import usable_cores
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def no_data_named(monkeypatch):
    monkeypatch.setenv("FSSL_DATA", "")  # which `--data-root` sets


@pytest.mark.skipif(doctor.NVIDIA.exists(), reason="this machine has a GPU")
def test_a_machine_without_fault(capsys, tmp_path):
    assert main(["doctor", "--results", str(tmp_path)]) == 0
    versions, device, data, results = capsys.readouterr().out.splitlines()
    assert versions.startswith("ok  versions: Python 3.") and f"torch {metadata.version('torch')}," in versions
    assert device.startswith(f"ok  device: the CPU, {usable_cores()} cores; ")
    if sys.platform == "linux":  # the kernel's own list of what the processor has
        assert ("bf16 by AMX" in device) == (" amx_bf16 " in Path("/proc/cpuinfo").read_text())
    assert data.startswith("ok  data: digits"), "scikit-learn brings the digits"
    assert results == f"ok  results: {tmp_path} can be written" and not list(tmp_path.iterdir())


def test_a_torchvision_that_does_not_load_is_named(tmp_path):
    """In a process of its own, where Lightning cannot be imported either: one line, no traceback."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    command = [sys.executable, "-m", "benchmark.cli.main", "doctor", "--results", str(tmp_path / "results")]
    places = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = subprocess.run(command, env=places, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and ended.stderr == ""
    (line,) = ended.stdout.splitlines()
    assert line.startswith("!!  versions: Python ") and f"torch {metadata.version('torch')}" in line
    assert line.endswith("do not match (operator nms does not exist); `make setup` installs both")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that works")
@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, "bf16 by AMX: "),
        ({"amx_bf16": False, "avx512_bf16": True}, "bf16 by AVX-512: "),
        ({}, "no AMX or AVX-512 for bf16: stay with fp32"),
    ],
)
def test_units_for_bfloat16_are_named(monkeypatch, has, says):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(torch.version, "cuda", None)  # built for CPUs alone: a driver beside it is no fault
    monkeypatch.setattr(doctor, "NVIDIA", Path(__file__))
    assert f" cores; {says}" in doctor.device(argparse.Namespace())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that works")
def test_a_driver_that_torch_cannot_use(capsys, tmp_path, monkeypatch):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157\nGCC version: 9\n")
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "version")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert main(["doctor", "--results", str(tmp_path)]) == 1
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("!!  device: ") and line.endswith("Module  390.157); install a newer driver")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PYTHONS", ((3, 98), (3, 99)), "install 3.98 to 3.99"),
        ("PACKAGES", ("numpy", "no-such"), "no-such is not installed; `make setup` installs it"),
    ],
)
def test_wrong_versions_are_the_one_line(capsys, tmp_path, monkeypatch, name, value, says):
    monkeypatch.setattr(doctor, name, value)
    assert main(["doctor", "--results", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("!!  versions: ") and line.endswith(says)


def test_a_data_folder_that_is_not_there(capsys, tmp_path):
    assert main(["doctor", "--results", str(tmp_path), "--data-root", str(tmp_path / "none")]) == 1
    assert f"!!  data: {tmp_path / 'none'} is not a folder; --data-root or $FSSL_DATA" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["a file", "a file/below", "/proc/results"])
def test_results_that_cannot_be_written(tmp_path, place):
    (tmp_path / "a file").touch()
    with pytest.raises(FsslError, match=r"cannot be written.*--results or \$FSSL_RESULTS") as raised:
        doctor.results(argparse.Namespace(results=tmp_path / place))
    assert str(tmp_path / place) in str(raised.value)
    later = argparse.Namespace(results=Path(tmp_path, "made", "later"))
    assert "can be written" in doctor.results(later) and not (tmp_path / "made").exists()


@pytest.mark.parametrize("verb", ["doctor", "list"])
def test_another_package_named_sweeps_is_the_one_line(tmp_path, verb):
    """W&B has one. Every command ends with 65 and says what to type."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "__init__.py").touch()
    places = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmark.cli.main", verb]
    ended = subprocess.run(command, env=places, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    other = tmp_path / "sweeps" / "__init__.py"
    assert (ended.returncode, ended.stdout) == (65, "")
    assert ended.stderr == f"fssl: {other} hides our sweeps: `pip uninstall sweeps`\n"
