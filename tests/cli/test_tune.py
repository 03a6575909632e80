"""`fssl tune`: what it prints and refuses; what it finds is in tests/sweeps/test_tune_*.py."""

import json
import subprocess
import sys

import pytest

from benchmark.cli.main import main
from sweeps.tune.catalogue import STUDIES
from tests.conftest import ROOT

TOY = "tests.sweeps.toy_study:TOY"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["fedswitch/opne"], 65, "did you mean 'fedswitch/open'"),
        ([], 65, "STUDY is missing; fedswitch/open"),
        ([TOY, "--profile", "laptop"], 65, "--profile: 'laptop'"),
        ([TOY, "--trials", "0"], 65, "--trials: 0"),
        ([TOY, "--seeds", "0"], 65, "--seeds: 0"),
        ([TOY, "--jobs", "0"], 65, "--jobs: 0"),
        ([TOY, "--timeout", "0"], 65, "--timeout: 0"),
        ([TOY, "--outage", "nan"], 65, "--outage: nan"),
        ([TOY, "--storage", "postgresql://ann:hunter2@h/d"], 65, "postgresql+psycopg://USER@HOST"),
        (
            [TOY, "--storage", "postgresql+psycopg://ann:hunter2@127.0.0.1:1/d", "--outage", "0"],
            73,
            "ann:***@127.0.0.1",
        ),
        ([TOY, "--storige", "x"], 65, "--storige"),
        (["fedswitch/open", "--profile", "laptop"], 66, "mnist"),
    ],
)
def test_wrong_words(capsys, tmp_path, monkeypatch, words, code, says):
    """One line, the code, no password; and nothing is left behind."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmark.data.sources.DOWNLOAD_TIMEOUT", 0.1)
    assert main(["tune", *words, "--results", str(tmp_path / "results")]) == code
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("fssl: ")]
    assert says in line and "hunter2" not in captured.err + captured.out and captured.out == ""
    assert "Traceback" not in captured.err and not (tmp_path / "results" / "studies").exists()


def test_the_list_tells_every_range_and_its_reason(capsys):
    assert main(["tune", "--list"]) == 0
    printed = capsys.readouterr().out
    for study in STUDIES.values():
        assert study.name in printed and study.reason in printed
        assert all(span.field in printed and span.reason in printed for span in study.space)
    assert main(["tune", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {name: len(spans) for name, spans in listed.items()} == {n: len(s.space) for n, s in STUDIES.items()}


def test_optuna_loads_when_a_study_begins_and_not_before():
    """Neither with the package, nor with the command's options, its list, or another command."""
    words = "parser('tune'); main(['tune', '--list']); main(['plan'])"
    code = f"import sys, benchmark; from benchmark.cli.main import main, parser; {words}; "
    code += "assert 'sweeps.tune.catalogue' in sys.modules and not {'optuna', 'sqlalchemy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
