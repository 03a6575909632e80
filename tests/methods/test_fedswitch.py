"""FedSwitch and its baselines: whole rounds against plain torch, Eq. 3 by hand, and warm starts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy

from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.protocol import Stream
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA
from tests.federated.helpers import agree, difference
from tests.methods.plain_torch import PlainRounds, batches, compared, mean, partly_labelled, step
from tests.methods.watch import tiny_with, watched

SHARED: dict[str, Any] = {
    "threshold": 0.15,
    "unlabelled_weight": 2.0,
    "mu": 0.5,
    "batch_size": 8,
    "labelled_batch_size": 4,
    "server_batch_size": 8,
}
METHOD = FedSwitch(**SHARED, ratio=0.5, local_ratio=0.75, beta=0.02)
WAYS: dict[str, Any] = {
    "FedProx-FixMatch": FedProxFixMatch(**SHARED),
    "FedProx-FixMatch, full": FedProxFixMatch(**SHARED, proximal="full"),
    "TS-Server EMA": TSServerEMA(**SHARED, ratio=0.5),
    "TS-Client EMA": TSClientEMA(**SHARED, ratio=0.5),
    "TS-Client EMA, mean": TSClientEMA(**SHARED, ratio=0.5, server_teacher="mean"),
    "FedSwitch": METHOD,
    "one ratio": replace(METHOD, local_ratio=None),
    "algorithm": replace(METHOD, rule="algorithm"),
    "sum": replace(METHOD, divergence="sum"),
    "histogram": replace(METHOD, prediction="histogram"),
    "sure images": replace(METHOD, counted="kept"),
    "last known": replace(METHOD, rule="algorithm", unsent_teacher="keep_last"),
    "FedProx-FixMatch, originals": FedProxFixMatch(**SHARED, labeller_view="original"),
    "TS-Client EMA, originals": TSClientEMA(**SHARED, ratio=0.5, labeller_view="original"),
    "FedSwitch, originals": replace(METHOD, labeller_view="original"),
    "last known, originals": replace(METHOD, rule="algorithm", unsent_teacher="keep_last", labeller_view="original"),
}


MEASURED = ("sum", "histogram", "sure images")  # different numbers, which may lead to the same decisions


def of(way: str) -> Experiment:
    return partly_labelled(WAYS[way], T=2)


class Plain(PlainRounds):
    """The methods in plain torch: `known` are the divergences of teacher and student.

    `sent` lists whether the clients of each round received the teacher.
    """

    def begin(self) -> None:
        known: Any = (None, None)  # divergences of teachers and students
        self.teacher = self.now
        self.known = known
        self.sent = list[bool]()

    def _state_key(self, client: int, name: str) -> None:
        return None

    def play(self, cohort: list[int]) -> None:
        method = self.method
        teacher, student = self.known
        self.sent.append(not isinstance(method, FedProxFixMatch))
        if isinstance(method, FedSwitch) and teacher is not None:
            self.sent[-1] = (abs(teacher - method.beta) < abs(student - method.beta)) == (method.rule == "equation")
        students, teachers, divergences = zip(*[self.job(client) for client in cohort], strict=True)
        self.now = mean(students)
        known = []
        for column, old in zip(zip(*divergences, strict=True), self.known, strict=True):
            values = [value for value in column if value is not None]
            known.append(np.mean(values) if values else old)
        self.known = tuple(known)
        if isinstance(method, TSClientEMA):
            self.teacher = mean(teachers)
        if getattr(method, "server_teacher", "") != "mean":
            self.teacher = mean([self.teacher, self.now])

    def job(self, client: int) -> Any:
        method = self.method
        student, teacher, start = (self.network() for _ in range(3))
        if self.sent[-1]:
            teacher.load_state_dict(self.teacher)
        labeller = teacher if self.sent[-1] else student
        share = 1.0
        if isinstance(method, FedSwitch | TSClientEMA):
            share = getattr(method, "local_ratio", None) or method.ratio
        streams = {
            "labelled": Stream.whole("labelled", 4),
            "unlabelled": Stream.whole("unlabelled", 8, "plain", "weak", "strong"),
        }
        divergences: tuple[list[Any], list[Any]] = ([], [])
        sgd = self.optimizer(client, student)
        for batch in batches(self.environment, self.number, client, self.T, streams):
            labelled, (plain, weak, strong) = batch["labelled"], batch["unlabelled"].views.values()
            seen = plain if method.labeller_view == "original" else weak
            with torch.no_grad():
                p_ND, of_teacher_ND = labeller(seen).softmax(1), teacher(seen).softmax(1)
            strong_ND = student(strong)
            picked_N = F.cross_entropy(strong_ND, p_ND.argmax(1), reduction="none") * (p_ND.amax(1) >= method.threshold)
            loss = F.cross_entropy(student(labelled.views["weak"]), labelled.labels_N) + 2.0 * picked_N.mean()
            pairs = zip(student.parameters(), start.parameters(), strict=True)
            half = 2.0 if method.proximal == "half" else 1.0
            loss = loss + method.mu / half * sum((w - was.detach()).square().sum() for w, was in pairs)
            for values, of_ND in zip(divergences, (of_teacher_ND, strong_ND.detach().softmax(1)), strict=True):
                values.append(self.divergence(of_ND))
            step(sgd, loss)
            with torch.no_grad():
                for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                    t.copy_(share * t + (1 - share) * s)
        if getattr(method, "unsent_teacher", "") == "keep_last" and not self.sent[-1]:
            divergences[0].clear()
        add = np.sum if getattr(method, "divergence", "") == "sum" else np.mean
        reported = []
        for values in divergences:
            there = [value for value in values if value is not None]
            reported.append(add(there) if there else None)
        return weights_of(student), weights_of(teacher), reported

    def divergence(self, p_ND: torch.Tensor) -> float | None:
        """Compute the divergence from uniform; a batch without an image that counts has none."""
        counted_ND = p_ND.double()
        if getattr(self.method, "prediction", "") == "histogram":
            counted_ND = F.one_hot(p_ND.argmax(1), 10).double()
        if getattr(self.method, "counted", "") == "kept":
            counted_ND = counted_ND[p_ND.amax(1) >= self.method.threshold]
        return entropy(counted_ND.mean(0).numpy(), np.full(10, 0.1)) if len(counted_ND) else None


@pytest.mark.parametrize("way", WAYS)
def test_three_rounds_by_plain_torch(way):
    """Compare L_s + lambda_u L_u + mu/2

    S - S^s||^2, and the server's aggregation.
    """
    module, plain = compared(Plain, of(way), of(way if way in MEASURED else "FedSwitch"), 3)
    server = module.state.server
    if "teacher" in server:
        assert difference(server["teacher"], plain.teacher) < 1e-6
    assert way != "FedSwitch" or plain.sent == [True, False, True]
    if isinstance(WAYS[way], FedSwitch):
        assert (server["kl_teacher"], server["kl_student"]) == pytest.approx(plain.known, rel=1e-4)


@pytest.mark.parametrize("setting", ["server", "some_clients"])
@pytest.mark.parametrize("method", [FedProxFixMatch(**SHARED), METHOD])
def test_warm_start_trains_holders_of_labels_alone(method, setting):
    """Expect that only the server or the labelled client trains in round 1, and all train in round 2.

    After round 1 teacher and student are equal.
    """
    module, watch = watched(tiny_with(replace(method, warm_start_rounds=1), setting), 1)
    ((job, _),) = watch.seen[1]
    assert set(job.data) == {"labelled"} and module.environment.labelled[job.key.client] > 0
    server = module.state.server
    student = server["student"]
    assert student is not None and agree(student, server.get("teacher") or student)
    module.training_step(2, 0)
    assert {job.key.client for job in watch.jobs(2)} >= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("beta", "known", "sent"),
    [
        (0.0, (0.3, 0.5), True),  # .3 < .5
        (1.0, (0.3, 0.5), False),  # .7 > .5
        (0.5, (0.75, 0.25), False),  # .25 = .25: a tie is "otherwise" in Eq. 3
        (0.5, (0.7, 0.2), True),  # .2 < .3
    ],
)
def test_eq_3_by_hand(beta, known, sent):
    """Expect the opposite decision with the algorithms' rule. The first round has no divergences yet."""
    equation, algorithm = FedSwitch(beta=beta), FedSwitch(beta=beta, rule="algorithm")
    assert equation.sends_teacher(*known) is sent and algorithm.sends_teacher(*known) is not sent
    for method in (equation, algorithm):
        assert method.sends_teacher(None, None)
        assert not replace(method, first_round="student").sends_teacher(None, None)
