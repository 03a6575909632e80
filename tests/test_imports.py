"""What importing costs, and what it must not bring: each measured in a process of its own."""

import os
import resource
import subprocess
import sys

from benchmark.cli.main import VERBS
from tests.conftest import ROOT

HEAVY = ("torch", "pytorch_lightning", "pandas", "matplotlib", "sklearn", "scipy", "optuna")
OPTIONAL = ("wandb", "ray", "psycopg", "pytest", "hypothesis", "playwright")  # for a few, who ask for them


def in_a_process(*words: str) -> tuple[str, float]:
    """What it printed, and the seconds of processor time it took: those on the wall are the machine's other work's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return out, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loaded(code: str, names: tuple[str, ...]) -> set[str]:
    out, _ = in_a_process("-c", f"import sys\n{code}\nprint(*(set({names!r}) & set(sys.modules)))")
    return set(out.splitlines()[-1].split())


def test_importing_the_package_takes_less_than_two_and_a_half_seconds_and_brings_nothing():
    assert min(in_a_process("-c", "import benchmark")[1] for _ in range(2)) < 2.5
    assert loaded("import benchmark", HEAVY + OPTIONAL) == set()


def test_help_answers_in_half_a_second_without_torch():
    found = [in_a_process("-m", "benchmark.cli.main", "--help") for _ in range(2)]
    assert all(verb in found[0][0] for verb in VERBS) and min(seconds for _, seconds in found) < 0.5
    code = "from benchmark.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: print()"
    assert loaded(code, HEAVY + OPTIONAL) == set()


def test_doctor_begins_without_torch():
    """It has to answer where importing torch is what fails."""
    assert loaded("from benchmark.cli.main import parser\nparser('doctor')", HEAVY + OPTIONAL) == set()


def test_what_trains_brings_no_package_that_only_a_few_need():
    """The command that trains tables, with all that it imports: the engines, the recorder, the report."""
    code = "import benchmark.records.run\nfrom benchmark.cli.main import parser\nparser('reproduce')"
    assert loaded(code, (*OPTIONAL, "optuna")) == set()


def test_what_trains_nothing_loads_no_trainer():
    """Lightning takes seconds to load; an agent, which starts runs, and what reads records need none of it."""
    verbs = ("agent", "report", "status", "sweep", "verify", "wandb-rebuild")
    code = f"from benchmark.cli.main import parser\nfor verb in {verbs}: parser(verb)"
    assert loaded(code, ("pytorch_lightning", "torchvision")) == set()
