"""Networks whose parameters are tied: one tensor under two names is sent once."""

from pathlib import Path

import torch
from torch import nn

from benchmark.federated.environment import prepare
from benchmark.records.run import run
from tests.conftest import tiny_experiment

TIED = """
from torch import nn

class Tied(nn.Module):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        TIE
        self.head = nn.Linear(64, num_classes)

    def forward(self, images_NCHW):
        return self.head(self.second(self.first(images_NCHW.flatten(1)).relu()).relu())
"""


def bytes_up(folder: Path, monkeypatch, name: str, tie: str) -> float:
    (folder / f"{name}.py").write_text(TIED.replace("TIE", tie))
    monkeypatch.syspath_prepend(str(folder))
    experiment = tiny_experiment()
    model = type(experiment.model)(network=f"{name}:Tied", norm="none")
    result = run(tiny_experiment(model=model), folder / "results")
    state = prepare(tiny_experiment(model=model)).network().state_dict()
    assert {"first.weight", "second.weight"} <= state.keys()
    return float(result["cost"]["bytes_up"])


def test_a_tied_weight_is_counted_once(tmp_path, monkeypatch):
    """64 x 64 weights of 4 bytes less for each of the clients that send them: 4 clients in 3 rounds less 1 warm one."""
    own = bytes_up(tmp_path, monkeypatch, "untied_net", "pass")
    tied = bytes_up(tmp_path, monkeypatch, "tied_net", "self.second.weight = self.first.weight")
    whole = sum(
        value.nbytes
        for value in nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)).state_dict().values()
    )
    clients = own / whole
    assert clients == int(clients) and own - tied == clients * torch.empty(64, 64).nbytes
