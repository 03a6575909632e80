"""Reading a record imports no module that it names, whether as its method or as its network."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.experiment import to_json
from benchmark.records.run import run
from tests.conftest import tiny_experiment

STRANGER = """
import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from benchmark.methods.ssfl import SSFL

Path(os.environ["CANARY"]).touch()


@dataclass(frozen=True, kw_only=True)
class Method(SSFL):
    pass


class Net(nn.Sequential):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""
NAMED = {"network": ("model", "network", "stranger:Net"), "method": ("method", "kind", "stranger:Method")}
COMMANDS = {
    "verify": ("verify",),
    "report": ("report", "--site", "site"),
    "wandb-rebuild": ("wandb-rebuild", "--offline"),
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder with one record, and a stranger's file next to it."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("ITEMS", "VARIANTS"):
        monkeypatch.setattr(f"benchmark.cli.report.{name}", ())
    run(tiny_experiment(), tmp_path / "results")
    importlib.invalidate_caches()
    yield tmp_path / "results"
    sys.modules.pop("stranger", None)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", NAMED)
def test_no_command_that_reads_records_imports_what_they_name(results, kind, command, fssl):
    part, field, name = NAMED[kind]
    (path,) = results.glob("runs/*/seed=0/experiment.json")
    content = json.loads(path.read_text())
    content[part][field] = name
    if kind == "network":
        content["model"]["norm"] = "none"
    path.write_text(json.dumps(content))
    code, out, err = fssl(*COMMANDS[command], "--results", results)
    assert not Path(os.environ["CANARY"]).exists() and "stranger" not in sys.modules
    assert name in out + err + "".join(page.read_text() for page in Path().glob("site/index.html"))
    assert code == {"verify": 66, "report": 0, "wandb-rebuild": 66}[command]


def test_a_network_that_the_user_names_is_read(results, fssl):
    plain = to_json(tiny_experiment())
    plain["model"] |= {"network": "stranger:Net", "norm": "none", "norm_groups": 32}
    (path,) = results.glob("runs/*/seed=0/experiment.json")
    path.write_text(json.dumps(plain))
    code, out, _ = fssl("verify", "--results", results, "--network", "stranger:Net")
    assert Path(os.environ["CANARY"]).exists()
    assert code == 66 and "cell_key" in out and "--network" not in out  # it is read, and of another cell
