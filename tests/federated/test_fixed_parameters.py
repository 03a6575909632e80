"""What is not trained is neither sent, averaged nor counted; each client downloads it once.

`Backbone` has 4,160 frozen parameters (64 x 64 weights and 64 biases, 16,640 bytes) and a head of 650 trained ones
(2,600 bytes). `Adapters` puts a trained layer without frozen parts between the two.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.engines import EngineOptions, build_engine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import leaves
from benchmark.models.build import Model, build
from benchmark.records.run import run
from sweeps.cost import cost_of
from tests.conftest import record_of, tiny_experiment
from tests.federated.helpers import agree, difference
from tests.federated.test_stacked import Both
from tests.methods.golden import TRACES
from tests.records.conftest import stopped_after

NETWORKS = """
import torch
from torch import nn

from benchmark.models.classifier import Classifier


class Backbone(Classifier):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        pixels = image_shape[0] * image_shape[1] * image_shape[2]
        self.backbone = nn.Linear(pixels, 64)
        self.fc = nn.Linear(64, num_classes)
        self.backbone.requires_grad_(False)

    def features(self, images_NCHW):
        return torch.relu(self.backbone(images_NCHW.flatten(1)))


class Buffered(Backbone):
    '''The same network, whose backbone consists of buffers.'''

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for name in ("weight", "bias"):
            value = getattr(self.backbone, name).detach().clone()
            del self.backbone._parameters[name]
            self.backbone.register_buffer(name, value)


class Adapters(Backbone):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__(image_shape, num_classes, norm)
        self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

    def features(self, images_NCHW):
        features_NF = super().features(images_NCHW)
        return features_NF + self.up(torch.relu(self.down(features_NF)))
"""
FIXED, HEAD, ADAPTERS = 4 * (64 * 64 + 64), 4 * (64 * 10 + 10), 4 * 2 * 64 * 4


@pytest.fixture(autouse=True)
def networks(tmp_path, monkeypatch) -> Iterator[None]:
    (tmp_path / "fixed_nets.py").write_text(NETWORKS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    sys.modules.pop("fixed_nets", None)


def with_network(name: str, **changes: Any) -> Experiment:
    return tiny_experiment(model=Model(network=f"fixed_nets:{name}", norm="none"), **changes)


def played(experiment: Experiment, **options: Any) -> tuple[list[dict[str, float]], FederatedModule]:
    environment = prepare(experiment)
    engine = build_engine(EngineOptions(**options), environment)
    try:
        module = FederatedModule(environment, engine)
        lines = []
        for number in range(1, experiment.federation.rounds + 1):
            module.training_step(number, 0)
            lines.append(dict(module.metrics))
        return lines, module
    finally:
        engine.close()


@pytest.mark.parametrize(("network", "trained"), [("Backbone", HEAD), ("Adapters", HEAD + ADAPTERS)])
def test_bytes_are_those_of_what_is_trained(network: str, trained: int) -> None:
    lines, _ = played(with_network(network))
    assert [line["comm/bytes_up"] for line in lines] == [4 * trained] * 3
    assert [line["comm/bytes_down"] for line in lines] == [4 * (trained + FIXED), 4 * trained, 4 * trained]


def test_the_numbers_are_those_of_a_network_with_the_same_constants() -> None:
    """A backbone of buffers is sent and averaged like every buffer; what is trained has the same bits."""
    lines, fixed = played(with_network("Backbone"))
    others, buffered = played(with_network("Buffered"))
    (mine,) = fixed.models().values()
    (theirs,) = buffered.models().values()
    assert set(mine) == {"fc.weight", "fc.bias"} < set(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for line, other in zip(lines, others, strict=True):
        assert line["test/accuracy"] == other["test/accuracy"]
    assert others[0]["comm/bytes_up"] == 4 * (HEAD + FIXED)  # a buffer is sent as before


def test_the_pool_gives_the_same() -> None:
    experiment = with_network("Adapters")
    alone, module = played(experiment, engine="pool", workers=1)
    by_two, other = played(experiment, engine="pool", workers=2)
    assert alone == by_two and agree(module.state.server, other.state.server)


def test_joint_training_gives_the_same(in_float64: None) -> None:
    both = Both(with_network("Adapters"))
    both.play(2)
    assert both.engine.runner.counts.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


def test_a_run_that_resumes_counts_the_first_download_once_and_writes_whole_weights(tmp_path: Path) -> None:
    """With 2 of 4 clients a round, a client's first round may be before the stop or after it."""
    experiment = with_network("Backbone")
    experiment = replace(experiment, federation=replace(experiment.federation, C=2, rounds=6))
    run(experiment, tmp_path / "unbroken")
    stopped_after(2, experiment, tmp_path / "broken")
    run(experiment, tmp_path / "broken")
    found = []
    for place in ("unbroken", "broken"):
        folder = next((tmp_path / place / "runs" / experiment.cell_key).iterdir())
        record = record_of(folder)
        found.append([line["comm/bytes_down"] for line in record.rounds])
        network = build(experiment.model, (1, 8, 8), 10, experiment.seed)
        fresh = {name: value.clone() for name, value in network.state_dict().items()}
        (file,) = (folder / "weights").iterdir()
        network.load_state_dict(torch.load(file, weights_only=True))
        after = network.state_dict()
        changed = {name for name in fresh if not torch.equal(fresh[name], after[name])}
        assert changed == {"fc.weight", "fc.bias"}
    assert found[0] == found[1]
    clients = (sum(found[0]) - 6 * 2 * HEAD) / FIXED
    assert clients in (2, 3, 4)  # each client that took part, once


def test_a_record_is_confirmed_by_training_it_again(printed: Any, tmp_path: Path) -> None:
    run(with_network("Backbone"), tmp_path)
    said = json.loads(printed("verify", "--json", "--retrain", 1, "--results", tmp_path))
    assert not said["troubles"], said


def test_the_plan_counts_the_same_bytes(tmp_path: Path) -> None:
    """Exactly if all clients take part; otherwise K (1 - (1 - C / K)^rounds) clients are expected to."""
    experiment = with_network("Backbone")
    lines, _ = played(experiment)
    cost = cost_of(experiment, tmp_path)
    assert cost.bytes_up == sum(line["comm/bytes_up"] for line in lines)
    assert cost.bytes_down == sum(line["comm/bytes_down"] for line in lines)
    half = replace(experiment, federation=replace(experiment.federation, C=2))
    cost = cost_of(half, tmp_path)
    assert cost.bytes_down == pytest.approx(3 * 2 * HEAD + FIXED * 4 * (1 - 0.5**3))
    assert any("bytes_down" in note.about for note in cost.notes)


OF_EACH_METHOD = {trace.method.__class__.__name__: name for name, trace in reversed(TRACES.items())}


@pytest.mark.parametrize("name", OF_EACH_METHOD.values(), ids=OF_EACH_METHOD.keys())
def test_every_method_trains_the_head_only(name: str) -> None:
    """No state contains the backbone; methods that split or slice every parameter refuse the network."""
    trace = TRACES[name]
    model = Model(network="fixed_nets:Adapters", norm="none")
    experiment = replace(trace, model=model, federation=replace(trace.federation, rounds=1))
    if type(trace.method).__name__ in ("HeteroFL", "FedMatch"):
        with pytest.raises(ConfigError, match="backbone"):
            prepare(experiment)
        return
    _, module = played(experiment)
    names = [leaf for leaf, _ in leaves({"server": module.state.server, "clients": dict(module.state.clients)})]
    assert not [leaf for leaf in names if "backbone" in leaf]


def test_a_new_part_of_a_weight_set_is_still_missed(tiny: Experiment) -> None:
    """Only what is not trained may be left out of a weight set."""
    from benchmark.federated.local import load

    network: nn.Module = build(Model(network="fixed_nets:Backbone", norm="none"), (1, 8, 8), 10, 0)
    head: dict[str, Tensor] = {"fc.weight": torch.zeros(10, 64)}
    with pytest.raises(ConfigError, match=r"fc\.bias"):
        load(network, head)
    load(network, {**head, "fc.bias": torch.zeros(10)})
    loaded = network.get_submodule("fc").state_dict()
    assert difference(loaded, {"weight": torch.zeros(10, 64), "bias": torch.zeros(10)}) == 0
