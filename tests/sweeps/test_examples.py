"""The worked examples of `sweeps/README.md` and `sweeps/slurm.sh`: their commands are understood, the script runs."""

import os
import re
import shlex
import subprocess
import sys
from signal import SIGTERM

import pytest

from benchmark.cli.main import parser
from benchmark.records.record import run_folder
from sweeps.grid import checked
from sweeps.sweep_file import read, written
from tests.conftest import ROOT
from tests.sweeps.gates import wait_for_a_round

SCRIPT = ROOT / "sweeps" / "slurm.sh"
README = (ROOT / "sweeps" / "README.md").read_text()


def commands(text: str) -> list[list[str]]:
    """Every `fssl ...`, to the end of its line, comment or clause, with variables set."""
    matches = re.findall(r"^[^#]*?\bfssl ([a-z]+ [^#;`\n]*)", text, re.MULTILINE)
    plain = [re.sub(r'"\$\{\w+:-(\w+)\}"', r"\1", words).replace('"$@"', "ssfl/tab2").rstrip(" &") for words in matches]
    return [shlex.split(words) for words in plain]


SHELL = "\n".join(re.findall(r"```(?:sh|ini)\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("words", [*commands(SHELL), *commands(SCRIPT.read_text())], ids=" ".join)
def test_the_commands_are_understood(words):
    words = [word for word in words if word != "${jobs[@]}"]
    options, rest = parser(words[0]).parse_known_args(words)
    named = {"run": "cell", "sweep": "grid", "agent": "file"}.get(words[0])
    if words[0] == "tune":  # a study, or a method of one's own to search
        assert options.search and rest or rest == ["fedswitch/open"]
        return
    items = [getattr(options, named)] if named else options.items
    assert rest == [] and items and all(f"{item}" == "grid.yaml" or "/" in item or "=" in item for item in items)


def test_what_the_script_is_submitted_with_is_understood():
    """It goes to `fssl work`, in the README and in the script's own comment."""
    asked = re.findall(r"sbatch .*?sweeps/slurm\.sh ([^#\n]*)", README + SCRIPT.read_text())
    assert len(asked) == 4
    for words in asked:
        assert parser("work").parse_known_args(["work", *shlex.split(words)])[1] == []


@pytest.mark.slow
def test_sigterm_to_the_script_stops_the_worker_with_76_and_queues_the_job_again(tmp_path):
    """As Slurm starts it, but for `scontrol`, which is a stand-in that writes down what it was asked for."""
    path, called = tmp_path / "sweep.yaml", tmp_path / "called"
    path.write_text(written({"T": [8], "profile": ["demo"], "seed": [0]}, name="small", made_by="a test"))
    (experiment,) = checked(read(path))
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text(f'PATH="{bin_folder}:$PATH"\n')
    fssl, scontrol = f'exec {sys.executable} -m benchmark.cli.main "$@"', f'echo "$@" > {called}'
    for name, does in (("fssl", fssl), ("scontrol", scontrol)):
        (bin_folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (bin_folder / name).chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "1"}
    env = {**os.environ, **slurm, "FSSL_RESULTS": str(tmp_path / "results"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(["bash", SCRIPT, str(path)], env=env, stderr=subprocess.PIPE, text=True) as job:
        wait_for_a_round(run_folder(tmp_path / "results", experiment), job)
        job.send_signal(SIGTERM)
        _, said = job.communicate(timeout=300)
    assert job.returncode == 76 and "fssl: stopped" in said, said
    assert called.read_text() == "requeue 42\n"
    assert list(tmp_path.glob("results/runs/*/*/state.pt"))
