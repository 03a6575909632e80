"""The README's commands are parsed by the real parsers, its method is trained, and the script for Slurm runs."""

import json
import re
import shlex
import sys
from signal import SIGTERM

import pytest

from benchmark.cli import report
from benchmark.cli.main import VERBS, main, parser
from benchmark.cli.shared_options import chosen_items, seeds_of
from sweeps.deciding import open_claims
from sweeps.plan import plan
from tests.conftest import ROOT
from tests.readme import README, own_method, own_table, shell_lines, short_table
from tests.sweeps.agents import signalled, small_sweep

PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "sweeps/README.md", "reports/README.md")),
    *sorted((ROOT / "benchmark").glob("*/README.md")),
]


def commands() -> list[str]:
    """Return every `fssl ...` line of a code block, without prompts, variables in front, pipes and comments."""
    found = []
    for page in PAGES:
        for line in shell_lines(page.read_text()) if page.exists() else []:
            line = re.sub(r"^\s*(\$ |until |ExecStart=\S+/(?=fssl))?([A-Z_]+=\S+ )*", "", line)
            if line.startswith("fssl ") and "..." not in line:
                found.append(re.split(r" [|>&] ?| #|;", line)[0].strip())
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("command", commands())
def test_a_command_is_understood(command: str) -> None:
    """Its options exist and take these values; fields of an experiment exist. Nothing is run."""
    words = shlex.split(command)[1:]
    assert words[0] in VERBS, words
    if "--help" in words:
        return
    options, rest = parser(words[0]).parse_known_args(words)
    if not [word for word in rest if word.startswith("--")]:  # nothing, or what the command itself reads
        return
    assert hasattr(options, "fields_of"), rest
    own = [word for word in rest if re.search(r"\w+:[A-Z]\w+", word)]  # my_module:MyMethod: only there when it is run
    if not own:
        assert main([*(words if words[0] == "run" else ["run", *rest]), "--print-config"]) == 0


JUDGING = [command for command in commands() if "reproduce" in command and "--seeds" in command and "./" not in command]


@pytest.mark.parametrize("command", JUDGING)
def test_seeds_that_a_page_shows_can_decide_a_claim_that_is_open(command: str) -> None:
    """By the committed records, unless all claims are decided."""
    options = parser("reproduce").parse_args(shlex.split(command)[1:])
    planned = plan(chosen_items(options), ROOT / "results", seeds=seeds_of(options))
    claims = [open_claims(item, planned.records, options.seeds) for item in planned.items]
    is_open = any(of_item.others for of_item in claims)
    assert any(of_item.decidable for of_item in claims) or not is_open


@pytest.fixture
def method_of_readme(tmp_path, monkeypatch) -> str:
    """Write the README's method into a file outside the package, and run the test in its folder; return its name."""
    code, name = own_method()
    (tmp_path / "my_method.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "my_method", None)  # another test's
    del sys.modules["my_method"]
    return f"my_method:{name}"


def test_the_item_in_the_readme_is_trained(method_of_readme, tmp_path, monkeypatch, printed) -> None:
    """With the README's method, for one round; the papers' pages are left out."""
    for name in ("ITEMS", "VARIANTS"):
        monkeypatch.setattr(report, name, {})
    (tmp_path / "mine.toml").write_text(short_table())
    assert len(own_table().splitlines()) <= 15
    done = printed("reproduce", "./mine.toml", "--json", "--profile", "demo", "--pilots", "1", "--results", ".")
    assert [row["n"] for row in json.loads(done)["cells"]] == [1] * 4


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w%-]+):", makefile, re.MULTILINE))
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert target in targets or (target.startswith("reproduce-") and "reproduce-%" in targets)


def test_what_the_script_is_submitted_with_is_understood():
    """It goes to `fssl work`."""
    asked = re.findall(r"sbatch .*?sweeps/slurm\.sh ([^#\n]*)", (ROOT / "sweeps" / "README.md").read_text())
    assert len(asked) == 2
    for words in asked:
        assert parser("work").parse_known_args(["work", *shlex.split(words)])[1] == []


@pytest.mark.slow
def test_sigterm_to_the_script_stops_the_worker_with_76_and_queues_the_job_again(tmp_path):
    """As Slurm starts it, but for `scontrol`, which is a stand-in that writes down what it was asked for."""
    called, results, bin_folder = tmp_path / "called", tmp_path / "results", tmp_path / ".venv" / "bin"
    path, experiment = small_sweep(tmp_path)
    bin_folder.mkdir(parents=True)
    (bin_folder / "activate").write_text(f'PATH="{bin_folder}:$PATH"\n')
    fssl, scontrol = f'exec {sys.executable} -m benchmark.cli.main "$@"', f'echo "$@" > {called}'
    for name, does in (("fssl", fssl), ("scontrol", scontrol)):
        (bin_folder / name).write_text(f"#!/bin/bash\n{does}\n")
        (bin_folder / name).chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "1"}
    code, _, said = signalled(["bash", ROOT / "sweeps" / "slurm.sh", path], SIGTERM, results, experiment, **slurm)
    assert code == 76 and "fssl: stopped" in said, said
    assert called.read_text() == "requeue 42\n"
    assert list(results.glob("runs/*/*/state.pt"))
