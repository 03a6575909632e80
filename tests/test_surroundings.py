"""Homes that cannot be written, terminals without an alphabet, numbers that no tensor holds."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmark.cli.main import ROOT, main

SMALL = ["--federation.rounds=1", "--federation.K=2", "--federation.C=2", "--federation.T=1"]


def fssl(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in another process, with these environment variables and no others of this user."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables}
    command = [sys.executable, "-m", "benchmark.cli.main", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")


def test_a_home_that_cannot_be_written_is_not_spoken_of(tmp_path):
    """As in a container that runs as any user. /proc takes no folder, whoever asks."""
    done = fssl(tmp_path, "run", *SMALL, "--results=results", HOME="/proc")
    assert done.returncode == 0 and "done after 1 rounds" in done.stdout
    assert "/proc" not in done.stderr and "atplotlib" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "data"], 0),
        (["doctor"], 0),
        (["data", "partition", "--data=mnist", "--federation.K=5"], 66),
        (["status", "--results=~/x"], 65),
        (["run", *SMALL, "--data=folder:~/x"], 65),
    ],
)
def test_a_user_without_a_home(words, code, tmp_path, monkeypatch, capsys):
    """As in a container whose user is a number that no file of names has."""
    for name in ("HOME", "FSSL_DATA", "FSSL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert main(words) == code and not any(tmp_path.iterdir())
    assert code == 0 or capsys.readouterr().err.startswith("fssl: ")


def test_names_that_a_terminal_cannot_show_are_written_by_number(tmp_path):
    """U+96EA is snow."""
    for grey, name in enumerate(("dog", "\u96ea")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(6):
            Image.new("L", (8, 8), 100 * grey + index).save(tmp_path / "images" / name / f"{index}.png")
    words = ["--data=folder:images", "--federation.K=2", "--federation.C=2", "--partition=iid", "--data.N_s=2"]
    shown = fssl(tmp_path, "data", "partition", *words, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert shown.returncode == 0 and "Traceback" not in shown.stderr
    assert r"\u96ea" in shown.stdout and shown.stdout.isascii()


@pytest.mark.parametrize("field", ["lr", "clip"])
def test_a_number_that_no_tensor_holds_is_refused(field, tmp_path, capsys):
    assert main(["run", *SMALL, f"--optimizer.{field}=1e308", f"--results={tmp_path}"]) == 65
    assert f"{field}: 1e+308; choose" in capsys.readouterr().err and not any(tmp_path.iterdir())
