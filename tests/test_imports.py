"""What importing costs, and what it must not bring: each in a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = ("torch", "pytorch_lightning", "pandas", "matplotlib", "sklearn", "scipy", "optuna")
OPTIONAL = ("wandb", "ray", "psycopg", "pytest", "hypothesis", "playwright")  # for a few, who ask for them
PARSER = "from benchmark.cli.main import parser\n"


def printed(*words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True).stdout


def loaded(code: str, names: tuple[str, ...]) -> set[str]:
    out = printed("-c", f"import sys\n{code}\nprint(*(set({names!r}) & set(sys.modules)))")
    return set(out.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "names"),
    [
        pytest.param("import benchmark", HEAVY + OPTIONAL, id="the package"),
        pytest.param(
            "from benchmark.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: print()",
            HEAVY + OPTIONAL,
            id="help",
        ),
        # The doctor has to answer where importing torch is what fails.
        pytest.param(f"{PARSER}parser('doctor')", HEAVY + OPTIONAL, id="doctor"),
        pytest.param(f"{PARSER}import benchmark.records.run\nparser('reproduce')", (*OPTIONAL, "optuna"), id="train"),
        # Lightning takes seconds to load; an agent, which starts runs, and what reads records need none of it.
        pytest.param(
            f"{PARSER}for verb in ('agent', 'report', 'status', 'sweep', 'verify', 'wandb-rebuild'): parser(verb)",
            ("pytorch_lightning", "torchvision"),
            id="no training",
        ),
        # A table of which nothing is missing is printed at once; figures are drawn where a page is built.
        pytest.param(
            f"{PARSER}parser('reproduce')\nimport reports.terminal",
            ("pytorch_lightning", "torchvision", "matplotlib", "scipy.optimize", "sklearn"),
            id="a table on the terminal",
        ),
    ],
)
def test_what_is_imported_brings_nothing_that_it_does_not_need(code: str, names: tuple[str, ...]) -> None:
    assert loaded(code, names) == set()


def test_training_and_counting_say_nothing_where_triton_is_not_installed() -> None:
    """`make setup` leaves it out: None among the modules is a package that is not there."""
    code = """
import sys
sys.modules["triton"] = None
import benchmark.records.run, torch
from benchmark.models.build import FlopCounter
layer = torch.nn.Linear(3, 5)
with FlopCounter() as counter:
    layer(torch.ones(2, 3)).sum().backward()
torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9).step()
print(counter.flops)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (int(done.stdout), done.stderr) == (2 * (2 * 2 * 3 * 5), "")  # the product, and its gradient by the weights
