"""The tool that times the engines runs, and its yardstick does the same work as they."""

import json
import math
from dataclasses import replace

import pytest

from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.optim.sgd import Constant
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference
from tests.performance.engines import main
from tests.performance.plain_loop import PlainLoop

UNCHANGED = Augmentation(
    weak=Weak(flip=0.0, crop_padding=0.0),
    strong=Gentle(geometry_probability=0.0, brightness_probability=0.0, contrast_probability=0.0, cutout=0.0),
)
ALL = 10**6  # a batch of all images


def test_the_plain_loop_gives_the_reference_engine_s_average():
    """Batches of all images, and views that change nothing: no random draw decides, and the average is one."""
    tiny = tiny_experiment(method=SSFL(objective=CRL(threshold=0.14), batch_size=ALL, server_batch_size=ALL))
    data, optimizer = replace(tiny.data, augmentation=UNCHANGED), replace(tiny.optimizer, schedule=Constant())
    environment = prepare(replace(tiny, data=data, optimizer=optimizer))
    module, loop = FederatedModule(environment, ReferenceEngine(environment)), PlainLoop(environment)
    module.training_step(1, 0)
    loop.round(range(tiny.federation.C))
    average = module.models()["average"]
    assert difference(average, loop.weights) < 1e-5 and 0.1 < module.metrics["pseudo/kept"] < 0.9
    assert difference(average, environment.setup().initial_weights()) > 1e-3


def test_the_tool_says_how_it_is_used(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--work" in capsys.readouterr().out


@pytest.mark.slow
def test_a_quick_run_prints_and_writes_its_rows(capsys, tmp_path):
    path = tmp_path / "engines.json"
    main(["--quick", "--work", "B", "--rounds", "1", "--workers", "1", "--threads", "1", "--json", str(path)])
    assert "B  plain loop" in capsys.readouterr().out
    rows = json.loads(path.read_text())["ratios"]["B"]["contenders"]
    assert rows["plain loop"]["ratio"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert all(
        math.isfinite(row["cpu_seconds"]["median"]) and row["cpu_seconds"]["median"] > 0 for row in rows.values()
    )
