"""`fssl doctor` on machines with a fault each: the line that says so, what to do, and the exit code."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch

from benchmark.cli import doctor
from benchmark.cli.main import main
from tests.conftest import ROOT
from tests.records.wandb_server import Server

LINES = ("Python", "torch and torchvision", "packages", "processor", "accelerator", "data sets", "results folder",
         "W&B", "Ray", "package sweeps")  # fmt: skip


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def found_here(results: Path, data_root: Path | None = None) -> dict[str, tuple[str, bool]]:
    """name -> (text, trouble)"""
    return {name: (text, trouble) for name, text, trouble in doctor.findings(results, data_root)}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch):
    for name in ("RAY_ADDRESS", "WANDB_API_KEY", "WANDB_BASE_URL", "FSSL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", os.devnull)


def test_every_line_is_there_and_the_exit_code_follows_from_them(capsys, tmp_path):
    code = main(["doctor", "--results", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"[:] ", line[4:])[0] for line in lines] == list(LINES)
    assert all(line[:4] in ("ok  ", "!!  ") for line in lines)
    assert code == (1 if any(line.startswith("!!") for line in lines) else 0)
    text = "\n".join(lines)
    assert f"a matching pair: torch {metadata.version('torch')}" in text and "Ray: " in text
    assert f"{len(os.sched_getaffinity(0))} of them for this process" in text
    assert re.search(r"data sets: digits", text), "scikit-learn brings the digits"


def test_a_torchvision_for_another_torch_is_named_in_words(tmp_path):
    """The real doctor beside a torchvision that does not load, and says that it was made for torch 2.5.0: Lightning
    cannot be imported then, and the doctor has to answer all the same; what lies in torch is left out."""
    for name, content in (("torchvision", "raise RuntimeError()"), ("sweeps", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(content)
    (tmp_path / "torchvision-0.20.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.20.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\nRequires-Dist: torch (==2.5.0)\n"
    )
    command = [sys.executable, "-m", "benchmark.cli.main", "doctor", "--results", str(tmp_path / "results")]
    places = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    found = subprocess.run(command, env=places, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and found.stderr == ""
    lines = found.stdout.splitlines()
    here = metadata.version("torch")
    pair = f"!!  torch and torchvision: no pair: torch {here}, torchvision 0.20.0, which was made for torch 2.5.0; "
    assert f"{pair}Lightning does not even import then; `make setup` installs both from the lock file" in lines
    other = tmp_path / "sweeps" / "__init__.py"
    assert f"!!  package sweeps: {other} hides our sweeps: `pip uninstall sweeps`" in lines
    assert len(lines) == len(LINES) - 3 and "accelerator" not in found.stdout


def test_a_pair_that_only_importing_shows_to_be_none(monkeypatch):
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    with pytest.raises(doctor.Trouble, match="no pair: .*operator torchvision::nms does not exist.*`make setup`"):
        doctor.torch_and_torchvision()


@pytest.mark.skipif(doctor.platform.machine() not in ("x86_64", "AMD64"), reason="names x86's vector units")
def test_a_processor_without_vector_units_is_told(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with pytest.raises(doctor.Trouble, match="torch uses DEFAULT: without AVX2 runs take"):
        doctor.processor()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that works")
def test_no_gpu_is_no_trouble_and_a_driver_that_torch_cannot_use_is_one(tmp_path, monkeypatch):
    assert doctor.accelerator() == "none: runs go to the CPU"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157\nGCC version: 9\n")
    monkeypatch.setattr(doctor, "NVIDIA", tmp_path / "version")
    with pytest.raises(doctor.Trouble, match="Module  390.157.*too old a driver"):
        doctor.accelerator()


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        (lambda patch: patch.setattr(doctor, "PYTHONS", ((3, 98), (3, 99))), "Python", "install one from 3.98 to 3.99"),
        (
            lambda patch: patch.setattr(doctor, "PACKAGES", ("numpy", "no-such")),
            "packages",
            "no-such not installed; `make setup`",
        ),
        (
            lambda patch: patch.setattr(doctor, "LEAST_ROOM", 1 << 60),
            "results folder",
            "when the disk is full: make room",
        ),
        (lambda patch: patch.setenv("FSSL_DATA", "/nowhere/at/all"), "data sets", "/nowhere/at/all is no folder"),
        (lambda patch: patch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}"), "Ray", "does not answer"),
        (lambda patch: patch.setenv("RAY_ADDRESS", "cluster"), "Ray", "$RAY_ADDRESS cluster does not answer"),
    ],
)
def test_what_lacks_is_named_with_what_to_do(
    tmp_path, monkeypatch, change: Callable[[pytest.MonkeyPatch], None], name: str, says: str
):
    before = {name for name, (_, trouble) in found_here(tmp_path).items() if trouble}
    change(monkeypatch)
    found = found_here(tmp_path)
    assert says in found[name][0]
    assert {name for name, (_, trouble) in found.items() if trouble} - before == {name}


@pytest.mark.parametrize("place", ["a file", "a file/below", "/proc/results"])
def test_results_that_cannot_be_written(tmp_path, place):
    (tmp_path / "a file").touch()
    with pytest.raises(doctor.Trouble, match=r"cannot be written.*--results or \$FSSL_RESULTS") as found:
        doctor.results_folder(tmp_path / place)
    assert str(tmp_path / place) in str(found.value)
    assert "can be written" in doctor.results_folder(tmp_path / "made" / "later") and not (tmp_path / "made").exists()


def test_whether_wandb_answers(monkeypatch):
    """No key, an address where nobody listens, a server that does: each within the time that `unreachable` states."""
    assert "runs would be mirrored offline: there is no API key" in doctor.wandb()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port()}")
    began = time.monotonic()
    assert "offline: 127.0.0.1 cannot be reached" in doctor.wandb() and time.monotonic() - began < 5
    with Server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        assert doctor.wandb().endswith("can be reached")


@pytest.mark.skipif(doctor.importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_whether_a_ray_cluster_answers(monkeypatch, form):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", form.format(f"127.0.0.1:{server.getsockname()[1]}"))
        assert doctor.ray().endswith("answers")


def test_ray_that_is_not_installed_is_a_trouble_only_where_a_cluster_is_named(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'fssl-bench[ray]'" in doctor.ray()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    with pytest.raises(doctor.Trouble):
        doctor.ray()
