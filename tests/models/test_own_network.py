"""A network in a user's own file, the README's: trained by `fssl run`, or refused in one line."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federated.engines import EngineOptions, build_engine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.models.build import Model, build
from tests.conftest import ROOT, tiny_experiment

README = (ROOT / "benchmark" / "models" / "README.md").read_text()
(MY_NET,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MY_NET += """
class TooFew(MyNet):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__(image_shape, num_classes - 1, norm)

class Breaks(MyNet):
    def forward(self, images_NCHW):
        return self.fc(images_NCHW)

class OtherArguments(nn.Module):
    def __init__(self, width):
        super().__init__()

def function(image_shape, num_classes, norm):
    return MyNet(image_shape, num_classes, norm)
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    (tmp_path / "my_net.py").write_text(MY_NET)
    (tmp_path / "broken_net.py").write_text("class MyNet(:\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("my_net", None)


def test_it_is_trained_from_the_folder_of_its_file(own_file, monkeypatch, printed):
    sys.path.remove(str(own_file))
    monkeypatch.chdir(own_file)
    words = ["--federation.K=3", "--federation.C=2", "--federation.T=2", "--federation.rounds=1", "--data.N_s=20"]
    network = ["--model.network", "my_net:MyNet", "--results", own_file]
    folder = Path(json.loads(printed("run", "--json", "--engine", "reference", *words, *network))["folder"])
    assert json.loads((folder / "experiment.json").read_text())["model"]["network"] == "my_net:MyNet"
    first, again = (build(Model(network="my_net:MyNet", norm_groups=4), (1, 8, 8), 10, 7).state_dict() for _ in "12")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert "norm.weight" in first  # a group norm has one


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("my_net:MyNet", "norm_groups is 3, .* 16 channels; choose 1, 2, 4, 8 or 16"),
        ("my_net:MyNt", "'my_net:MyNt' cannot be imported"),
        ("no_such_file:MyNet", "cannot be imported .*No module named 'no_such_file'"),
        ("broken_net:MyNet", "cannot be imported .invalid syntax"),
        ("my_net:function", "not a subclass of torch.nn.Module"),
        ("my_net:OtherArguments", r"accept \(image_shape, num_classes, norm\), but too many positional arguments"),
        ("my_net:TooFew", r"my_net:TooFew returns \(2, 9\) for 2 images of 10 classes"),
        ("my_net:Breaks", r"my_net:Breaks fails on images .1, 8, 8. .*mat1 and mat2"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(own_file, network, message):
    with pytest.raises(ConfigError, match=message) as actual:
        build(Model(network=network, norm_groups=3 if network == "my_net:MyNet" else 4), (1, 8, 8), 10, seed=0)
    assert "\n" not in str(actual.value)


OTHERS = """
import random

import torch
from torch import nn


class Plain(nn.Module):
    '''A linear layer; subclasses have a fault.'''

    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.fc = nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], num_classes)

    def forward(self, images_NCHW):
        return self.fc(images_NCHW.flatten(1))


class Pair(Plain):
    '''Two outputs in training, as GoogLeNet.'''

    def forward(self, images_NCHW):
        logits_ND = super().forward(images_NCHW)
        return (logits_ND, logits_ND) if self.training else logits_ND


class Lazy(Plain):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__(image_shape, num_classes, norm)
        self.fc = nn.LazyLinear(num_classes)


class Nothing(nn.Module):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.D = num_classes

    def forward(self, images_NCHW):
        return images_NCHW.flatten(1)[:, : self.D]


class Frozen(Plain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.requires_grad_(False)


class Complex(Plain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))


class Extra(Plain):
    def get_extra_state(self):
        return {"calls": 1}

    def set_extra_state(self, state):
        pass


class ExtraTensor(Extra):
    def get_extra_state(self):
        return torch.ones(1)


class Scripted(Plain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.fc = torch.jit.script(self.fc)


class ManyClasses(Plain):
    def forward(self, images_NCHW):
        logits_ND = super().forward(images_NCHW)
        return torch.cat([logits_ND, logits_ND], dim=1) if self.training else logits_ND


class PartlyFrozen(Plain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.fc.bias.requires_grad_(False)


class Counts(Plain):
    '''Its forward passes, in a plain attribute, move its logits.'''

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.calls = 0

    def forward(self, images_NCHW):
        self.calls += 1
        return super().forward(images_NCHW) * (1 + 0.1 * self.calls)


class Draws(Plain):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = 1 + random.random()

    def forward(self, images_NCHW):
        return super().forward(images_NCHW) * (self.scale + random.random())
"""


@pytest.fixture
def others(own_file):
    (own_file / "other_nets.py").write_text(OTHERS)
    yield
    sys.modules.pop("other_nets", None)


@pytest.mark.parametrize(
    ("network", "named"),
    [
        ("Pair", "tuple"),
        ("ManyClasses", "20"),
        ("Lazy", "fc.weight"),
        ("Nothing", "no trained parameter"),
        ("Frozen", "no trained parameter"),
        ("Complex", "phase"),
        ("Extra", "_extra_state"),
        ("ExtraTensor", "_extra_state"),
        ("Scripted", "fc"),
    ],
)
def test_a_network_that_cannot_be_trained_here_is_refused_before_training(others, network, named):
    with pytest.raises(ConfigError, match=named) as refused:
        build(Model(network=f"other_nets:{network}", norm="none"), (1, 8, 8), 10, seed=0)
    assert "\n" not in str(refused.value)


def lines_of(network: str, workers: int = 1) -> list[dict[str, float]]:
    """Return the metrics of two rounds on this number of workers."""
    experiment = tiny_experiment(model=Model(network=f"other_nets:{network}", norm="none"))
    environment = prepare(experiment)
    engine = build_engine(EngineOptions(engine="pool", workers=workers), environment)
    try:
        module, lines = FederatedModule(environment, engine), []
        for round_number in (1, 2):
            module.training_step(round_number, 0)
            lines.append(dict(module.metrics))
        return lines
    finally:
        engine.close()


@pytest.mark.parametrize("network", ["Counts", "Draws", "PartlyFrozen"])
def test_nothing_but_weights_passes_from_job_to_job(others, network):
    """Plain attributes and draws give the same numbers for any number of workers, and again."""
    alone = lines_of(network)
    assert lines_of(network) == alone
    assert lines_of(network, workers=2) == alone


def test_an_evaluation_does_not_depend_on_those_before(others):
    experiment = tiny_experiment(model=Model(network="other_nets:Counts", norm="none"))
    environment = prepare(experiment)
    module = FederatedModule(environment, build_engine(EngineOptions(), environment))
    first, again = (module.evaluator.measure(module.tested()) for _ in "12")
    assert first == again


@pytest.mark.parametrize("name", ["test", "code"])
def test_a_file_that_has_the_name_of_a_module_of_python_s_own_is_named(own_file, monkeypatch, name):
    monkeypatch.chdir(own_file)
    (own_file / f"{name}.py").write_text(MY_NET)
    with pytest.raises(ConfigError, match=rf"{name}\.py"):
        Model(network=f"{name}:MyNet")
