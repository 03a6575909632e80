"""A network in a user's own file, the README's: trained by `fssl run`, or refused in one line."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.models.build import Model, build
from tests.conftest import ROOT

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
        ("my_net:MyNet", "norm_groups: 3 does not divide 16 channels; choose 1, 2, 4, 8 or 16"),
        ("my_net:MyNt", "'my_net:MyNt' cannot be imported"),
        ("no_such_file:MyNet", "cannot be imported .*No module named 'no_such_file'"),
        ("broken_net:MyNet", "cannot be imported .invalid syntax"),
        ("my_net:function", "not a subclass of torch.nn.Module"),
        ("my_net:OtherArguments", r"made by \(image_shape, num_classes, norm\), but too many positional arguments"),
        ("my_net:TooFew", r"my_net:TooFew returns \(2, 9\) for 2 images of 10 classes"),
        ("my_net:Breaks", r"my_net:Breaks fails on images .1, 8, 8. .*mat1 and mat2"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(own_file, network, message):
    with pytest.raises(ConfigError, match=message) as actual:
        build(Model(network=network, norm_groups=3 if network == "my_net:MyNet" else 4), (1, 8, 8), 10, seed=0)
    assert "\n" not in str(actual.value)
