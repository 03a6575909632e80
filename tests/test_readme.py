"""The README's code and commands are run, so that they cannot rot."""

import json
import os
import re
import subprocess
import sys

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def block(language, containing):
    (found,) = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in b]
    return found


def test_the_method_in_the_readme_runs(tmp_path):
    """Written to a file outside the package and run through `fssl run --method my_method:ServerLast`."""
    (tmp_path / "my_method.py").write_text(block("python", "class ServerLast"))
    words = ["--federation.K=3", "--federation.C=2", "--federation.T=2", "--federation.rounds=2", "--data.N_s=20"]
    method = ["--method", "my_method:ServerLast", "--method.threshold=0.9"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmark.cli.main", "run", "--json", "--results", tmp_path, *words, *method],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["status"] == "done" and result["cost"]["bytes_up"] > 0
    assert "diversity/delta/l2/squared/clients" in result["last"] and "pseudo/kept" in result["last"]
    experiment = json.loads((tmp_path / "runs" / result["cell_key"] / "seed=0" / "experiment.json").read_text())
    assert experiment["method"] == {"kind": "my_method:ServerLast", "threshold": 0.9, "batch_size": 32}


def test_the_commands_of_the_readme_are_understood(capsys, tmp_path):
    """Every `fssl` line resolves: settings are built and printed, plans are made, nothing is trained."""
    from benchmark.cli.main import main

    lines = [line.split("#")[0].strip() for line in block("sh", "--federation.K=20").splitlines()]
    for line in lines:
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
        if words[:2] == ["fssl", "run"]:
            assert main([*words[1:], "--print-config"]) == 0
    assert capsys.readouterr().out.count("cell_key") == 2


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w%-]+):", makefile, re.MULTILINE))
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert target in targets or (target.startswith("reproduce-") and "reproduce-%" in targets)
