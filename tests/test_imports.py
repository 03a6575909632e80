"""What importing costs and what it must not bring, each in a process of its own; and which way it goes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HEAVY = ("torch", "pytorch_lightning", "pandas", "matplotlib", "sklearn", "scipy", "optuna")
OPTIONAL = ("wandb", "ray", "psycopg", "pytest", "hypothesis", "playwright")  # for a few, who ask for them
PARSER = "from benchmark.cli.main import main, parser\n"
# `make setup` leaves triton out: None among the modules is a package that is not there. Neither training nor counting
# says a word about it.
TRAIN = f"""{PARSER}
import sys
sys.modules["triton"] = None
parser("reproduce")
import benchmark.records.run, torch
from benchmark.models.build import FlopCounter
layer = torch.nn.Linear(3, 5)
with FlopCounter() as counter:
    layer(torch.ones(2, 3)).sum().backward()
torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9).step()
assert counter.flops == 2 * (2 * 2 * 3 * 5), counter.flops  # the product, and its gradient by the weights
"""


@pytest.mark.parametrize(
    ("code", "names"),
    [
        # The doctor has to answer where importing torch is what fails.
        pytest.param(
            f"import benchmark\n{PARSER}parser('doctor')\ntry: main(['--help'])\nexcept SystemExit: pass",
            HEAVY + OPTIONAL,
            id="package, help, doctor",
        ),
        pytest.param(TRAIN, (*OPTIONAL, "optuna"), id="train"),
        # Lightning takes seconds to load; an agent, which starts runs, and what reads records need none of it. A table
        # of which nothing is missing is printed at once; figures are drawn where a page is built.
        pytest.param(
            f"{PARSER}import reports.terminal, sys\n"
            "for verb in ('reproduce', 'agent', 'status', 'sweep', 'verify', 'wandb-rebuild'): parser(verb)\n"
            "assert not {'matplotlib', 'scipy.optimize', 'sklearn'} & sys.modules.keys()\nparser('report')",
            ("pytorch_lightning", "torchvision"),
            id="no training",
        ),
    ],
)
def test_what_is_imported_brings_nothing_that_it_does_not_need(code: str, names: tuple[str, ...]) -> None:
    words = [sys.executable, "-c", f"{code}\nimport sys\nprint(*({set(names)!r} & sys.modules.keys()))"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("", "")


def test_imports_go_one_way() -> None:
    """What has no layer is an error of the second contract in pyproject.toml."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
