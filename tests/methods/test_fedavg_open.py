"""The threshold and the energy baseline of the open-set setting: whole rounds against plain torch, and thresholds."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.federated.evaluate import logits_of
from benchmark.methods.fedavg_energy import FedAvgEnergy, accepting_threshold
from benchmark.methods.fedavg_fixmatch import FedAvgFixMatch
from benchmark.methods.protocol import SERVER, Key, Stream
from benchmark.streams import torch_stream
from tests.methods.plain_torch import PlainRounds, batches, compared, experiment_of, mean, step
from tests.methods.watch import watched

SIZES: dict[str, Any] = {"batch_size": 8, "server_batch_size": 8}
WAYS: dict[str, Any] = {
    "confident": FedAvgFixMatch(threshold=0.2, **SIZES),
    "more confident": FedAvgFixMatch(threshold=0.21, **SIZES),
    "low energy": FedAvgEnergy(accepted=0.5, **SIZES),
    "lower energy": FedAvgEnergy(accepted=0.25, **SIZES),
    "after a warm start": FedAvgEnergy(accepted=0.5, warm_start_rounds=1, **SIZES),
}


def of(way: str) -> Experiment:
    return experiment_of(WAYS[way], "open")


class Plain(PlainRounds):
    def _state_key(self, client: int, name: str) -> None:
        return None

    def play(self, cohort: list[int]) -> None:
        if self.number > self.method.warm_start_rounds:
            self.least = self.threshold()
            self.now = mean([self.job(client) for client in cohort])
        self.now = self.served()

    def threshold(self) -> float:
        """Return the energy, as a score, that this number of the server's 18 weak views have at most."""
        if isinstance(self.method, FedAvgFixMatch):
            return self.method.threshold
        draw = torch_stream(0, "train", "round", self.number, "client", SERVER, "draw", 1, "start")
        part = self.environment.part(SERVER, "labelled")
        scores = logits_of(self.network(), self.environment, part, "weak", draw).exp().sum(1).log()
        return sorted(scores.tolist())[len(scores) - {0.5: 9, 0.25: 5}[self.method.accepted]]

    def job(self, client: int) -> Any:
        student = self.network().train()
        sgd = self.optimizer(client, student)
        streams = {"unlabelled": Stream.whole("unlabelled", 8, "weak", "strong")}
        for batch in batches(self.environment, self.number, client, self.T, streams):
            weak, strong = batch["unlabelled"].views.values()
            with torch.no_grad():
                weak_ND = student(weak)
            confident = isinstance(self.method, FedAvgFixMatch)
            score_N = weak_ND.softmax(1).amax(1) if confident else weak_ND.exp().sum(1).log()
            losses_N = F.cross_entropy(student(strong), weak_ND.argmax(1), reduction="none")
            step(sgd, (losses_N * (score_N >= self.least)).sum() / len(weak))
        return weights_of(student)

    def served(self) -> Any:
        server = self.network().train()
        sgd = self.optimizer(SERVER, server, lr=0.05)
        streams = {"labelled": Stream.whole("labelled", 8)}
        for batch in batches(self.environment, self.number, Key(client=SERVER), self.T, streams):
            step(sgd, F.cross_entropy(server(batch["labelled"].views["weak"]), batch["labelled"].labels_N))
        return weights_of(server)


@pytest.mark.parametrize("way", WAYS)
def test_two_rounds_by_plain_torch(way):
    others = {"confident": "more confident", "low energy": "lower energy"}
    module, _ = compared(Plain, of(way), of(others.get(way, "confident")))
    assert 0.0 < module.metrics["pseudo/kept"] < 1.0 and "pseudo/unknown" in module.metrics


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [(1.0, 1.0), (0.95, 2.0), (0.951, 1.0), (0.5, 11.0), (0.05, 20.0), (0.01, 20.0)],
)
def test_the_threshold_accepts_at_least_the_share_by_hand(accepted, expected):
    """Of the scores 1 to 20, 19 are 95 %."""
    score_N = torch.arange(20, 0, -1).float()
    assert float(accepting_threshold(score_N, accepted)) == expected


def test_one_number_more_is_sent_down():
    """Four bytes for each of four clients, beside the weights; nothing more comes back."""
    (energy, _), (confident, _) = (watched(of(way)) for way in ("low energy", "confident"))
    down, up = (energy.metrics[name] - confident.metrics[name] for name in ("comm/bytes_down", "comm/bytes_up"))
    assert (down, up) == (16, 0)
