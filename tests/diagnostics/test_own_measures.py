"""A method's own measures come into the record, the status and the page, and change no number of a round."""

import json
import random
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark import load
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.federated.environment import prepare
from benchmark.methods.registry import read_method
from benchmark.models.build import build
from benchmark.papers.item import Cell, Item
from benchmark.records.copies import copied, copy_of
from benchmark.records.run import run
from benchmark.sharing.verify import compared
from reports.cells import cell_values
from reports.item_results import ItemResults
from tests.conftest import ROOT, record_of, tiny_experiment
from tests.records.conftest import stopped_after
from tests.records.equality import untimed

README = (ROOT / "benchmark" / "methods" / "README.md").read_text()
METHOD, _, MEASURES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OTHERS = """
import random

import numpy as np


class Draws(ServerLast):
    def measures(self, state, examiner):
        return {"own/drawn": random.random() + np.random.random() + float(torch.rand(()))}


class Spoils(ServerLast):
    def measures(self, state, examiner):
        next(iter(state.server["student"].values())).add_(1.0)
        return {}


class Reserved(ServerLast):
    def measures(self, state, examiner):
        return {"test/accuracy": 1.0}


class NoNumber(ServerLast):
    def measures(self, state, examiner):
        return {"own/best": "high"}


class Undefined(ServerLast):
    def measures(self, state, examiner):
        return {"own/late": 1.0} if float(examiner.labels_N[0]) < 0 else {"own/nothing": float("nan"), "own/one": 1.0}
"""


@pytest.fixture(autouse=True)
def my_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Define the README's method, with its measures in a subclass."""
    plain = METHOD.replace("from dataclasses", "import torch\nfrom dataclasses", 1)
    measured = f"class Measured(ServerLast):\n{textwrap.indent(MEASURES, '    ')}"
    (tmp_path / "my_measures.py").write_text(f"{plain}\n\n{measured}\n{OTHERS}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_measures", raising=False)
    yield
    sys.modules.pop("my_measures", None)


def with_method(name: str, every: int = 1, rounds: int = 3, **changes: Any) -> Experiment:
    method = read_method({"kind": f"my_measures:{name}", "threshold": 0.1, "batch_size": 8}, "method")
    experiment = tiny_experiment(method=method, **changes)
    federation = replace(experiment.federation, rounds=rounds)
    evaluation = replace(experiment.evaluation, every=every)
    return replace(experiment, federation=federation, evaluation=evaluation)


def folder_of(experiment: Experiment, results: Path) -> Path:
    (folder,) = (results / "runs" / experiment.cell_key).iterdir()
    return folder


def ended(folder: Path) -> dict[str, float]:
    """Return the last measurements."""
    return {name: values[max(values)] for name, values in record_of(folder).measures.items()}


def test_they_are_what_numpy_computes_from_the_final_weights(tmp_path: Path) -> None:
    experiment = with_method("Measured")
    run(experiment, tmp_path)
    folder = folder_of(experiment, tmp_path)
    network: Any = build(experiment.model, (1, 8, 8), 10, 0).eval()
    network.load_state_dict(torch.load(folder / "weights" / "student.pt", weights_only=True))
    environment = prepare(experiment)
    data, at_N = environment.data, environment.split.server_N

    def features(images_NCHW: Tensor) -> np.ndarray:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.mean, data.std))
        with torch.no_grad():
            return np.asarray(network.features((images_NCHW.float() / 255 - mean) / std).double())

    labels_N, known_M = data.test_labels_N.numpy(), data.train_labels_N.numpy()[at_N]
    features_NF, features_MF = features(data.test_images_NCHW), features(data.train_images_NCHW[at_N])
    prototypes = {d: features_MF[known_M == d].mean(axis=0) for d in sorted(set(known_M))}
    right = 0
    for features_F, label in zip(features_NF, labels_N, strict=True):
        distances = {d: float(np.linalg.norm(features_F - prototype)) for d, prototype in prototypes.items()}
        right += min(distances, key=distances.__getitem__) == label
    assert ended(folder)["own/prototype_accuracy"] == pytest.approx(right / len(labels_N), abs=2 / len(labels_N))
    assert list(record_of(folder).measures["own/overconfidence"]) == [1, 2, 3]


@pytest.mark.parametrize("name", ["Measured", "Draws"])
def test_no_number_of_a_round_depends_on_them(name: str, tmp_path: Path) -> None:
    """Not even if a measure draws from every global generator."""
    records = []
    for method in ("ServerLast", name):
        experiment = with_method(method)
        run(experiment, tmp_path)
        records.append(folder_of(experiment, tmp_path))
    plain, measured = records
    texts = ["\n".join(untimed(folder)) for folder in records]
    first, second = (re.sub(r'"cell_key": "\w+"', "", text) for text in texts)
    assert first == second and len(first.splitlines()) == 3
    assert not record_of(plain).measures and record_of(measured).measures
    assert not any(name.startswith("own/") for line in record_of(measured).rounds for name in line)
    files = [torch.load(folder / "weights" / "student.pt", weights_only=True) for folder in records]
    assert all(torch.equal(files[0][tensor], files[1][tensor]) for tensor in files[0])


def test_a_stopped_run_goes_on_with_what_it_measured(tmp_path: Path, printed: Any) -> None:
    """Draws of a measure depend on the seed and the round only. They are taken in tested rounds: 2, 4 and the last."""
    experiment = with_method("Draws", every=2, rounds=5)
    run(experiment, tmp_path / "whole")
    stopped_after(2, experiment, tmp_path / "broken")
    (status,) = json.loads(printed("status", "--json", "--results", tmp_path / "broken"))["runs"]
    assert set(status["measures"]) == {"own/drawn"} and status["state"] == "stopped"
    random.random()
    run(experiment, tmp_path / "broken")
    whole, broken = (record_of(folder_of(experiment, tmp_path / place)) for place in ("whole", "broken"))
    assert whole.measures == broken.measures and list(whole.measures["own/drawn"]) == [2, 4, 5]
    assert len(set(whole.measures["own/drawn"].values())) == 3
    assert not (folder_of(experiment, tmp_path / "broken") / "measures.json").exists()


def test_they_are_in_copies_in_the_table_of_all_runs_in_the_status_and_on_the_page(
    tmp_path: Path, printed: Any
) -> None:
    experiment = with_method("Measured", every=2)
    for seed in (0, 1):
        run(experiment.with_seed(seed), tmp_path)
    folders = sorted((tmp_path / "runs" / experiment.cell_key).iterdir())
    records = {record.seed: record for record in map(record_of, folders)}
    values = {seed: ended(folder) for seed, folder in enumerate(folders)}
    copy = copy_of(copied(records[0]), tmp_path / experiment.cell_key / "seed=0.json.gz")
    assert copy.measures == records[0].measures and compared(records[0], records[0]).trouble is None
    frame = load(tmp_path).set_index(["seed", "round"])
    assert frame.loc[(1, 3), "own/prototype_accuracy"] == values[1]["own/prototype_accuracy"]
    assert np.isnan(frame.loc[(1, 1), "own/prototype_accuracy"])
    said = {
        run["seed"]: run["measures"] for run in json.loads(printed("status", "--json", "--results", tmp_path))["runs"]
    }
    assert said == values and "own/overconfidence" in printed("status", "--results", tmp_path)
    cell = Cell(label="mine", setting={"method": "mine"}, experiment=experiment)
    item = Item(name="mine/toy", title="Toy", profile="custom", cells=(cell,), seeds=2)
    reported = ItemResults(item, {experiment.cell_key: records})
    table = cell_values([(reported, reported.results["mine"])])["measures"]
    rows = {row.entries[0].text: row.entries[1].sort for row in table.rows}
    mean = sum(found["own/overconfidence"] for found in values.values()) / 2
    assert rows["own/overconfidence"] == pytest.approx(mean) and len(rows) == 2


@pytest.mark.parametrize(
    ("name", "words"), [("Spoils", "student.conv1.weight"), ("Reserved", "test/accuracy"), ("NoNumber", "own/best")]
)
def test_what_is_no_measure_is_refused(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        run(with_method(name), tmp_path)


def test_a_value_that_is_not_finite_counts_as_not_measured(tmp_path: Path) -> None:
    experiment = with_method("Undefined")
    run(experiment, tmp_path)
    measures = record_of(folder_of(experiment, tmp_path)).measures
    assert measures["own/nothing"] == {} and measures["own/one"] == {1: 1.0, 2: 1.0, 3: 1.0}


def test_trials_measure_on_held_out_labels(tmp_path: Path) -> None:
    """With 20 held-out images, each share is a multiple of one twentieth."""
    base = with_method("Measured", rounds=1)
    trial = replace(base, data=replace(base.data, N_validation=20), evaluation=Evaluation(every=1, validation=True))
    run(trial, tmp_path)
    share = ended(folder_of(trial, tmp_path))["own/prototype_accuracy"]
    assert share * 20 == pytest.approx(round(share * 20))
