"""RSCFed and Fed-Consist: whole rounds against plain torch, subsets, warm start, who is sent and keeps what."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from benchmark.federated.batches import JobBatches
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.mean_teacher import LabelledUpdate
from benchmark.methods.protocol import Job, Key, Limit, Outcome, Stream
from benchmark.methods.rscfed import RSCFed
from benchmark.optim.sgd import SGD, Constant
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal
from tests.methods.watch import tiny_with, watched

SGD_OF_TWO_RATES = SGD(lr=0.02, server_lr=0.05, schedule=Constant(), weight_decay=0.0, nesterov=False)


def experiment_of(method, setting="some_clients", **changes):
    """4 clients on the 8x8 digits, of whom one is labelled, or each partly."""
    return replace(tiny_with(method, setting), optimizer=SGD_OF_TWO_RATES, **changes)


def rounds_of(experiment, rounds=1):
    """The module after these rounds, and the jobs and outcomes of each."""
    module, watch = watched(experiment, rounds)
    logs = [Log(*map(list, zip(*watch.seen[number], strict=True))) for number in range(1, rounds + 1)]
    return module, logs


class Log(NamedTuple):
    jobs: list[Job]
    outcomes: list[Outcome]


TWO_STEPS = Limit(steps=2)  # T of the tiny experiment


# --- whole rounds, independently ---


ALPHA, LAMBDA_U = 0.3, 5.0


def client_by_plain_torch(environment, number, client, student, teacher):
    """Two local steps in round `number`, in place; sharpening with tau = .5 is p^2 / sum p^2."""
    labelled = bool(environment.labelled[client])
    stream = (
        Stream(part="labelled", batch_size=8, views=("weak",), drop_last=False)
        if labelled
        else Stream(part="unlabelled", batch_size=8, views=("weak", "weak2"), drop_last=False)
    )
    job = Job(
        key=Key(client=client),
        update=LabelledUpdate(method=RSCFed()),
        receives={},
        data={stream.part: stream},
        limit=TWO_STEPS,
    )
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05 if labelled else 0.02, momentum=0.9)
    for batch in JobBatches(environment, job, number):
        images: Any = batch.streams[stream.part]
        if labelled:
            loss = nn.functional.cross_entropy(student(images.views["weak"]), images.labels_N)
        else:
            with torch.no_grad():
                target_ND = teacher.eval()(images.views["weak"]).softmax(1) ** 2
            errors_ND = target_ND / target_ND.sum(1, keepdim=True) - student(images.views["weak2"]).softmax(1)
            loss = LAMBDA_U * (errors_ND**2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.copy_(mine + ALPHA * (theirs - mine))


def by_plain_torch(experiment, share, rounds):
    """The same rounds without the suite's local step, losses or averages: the mean, and the teachers.

    All clients once a round, from the mean; teachers from the initial weights. `share`: of the labelled client; None:
    by images.
    """
    environment = prepare(experiment)
    mean, clients = weights_of(environment.network()), range(environment.K)
    students = {k: environment.network() for k in clients}
    teachers = {k: environment.network() for k in clients}
    sizes, labelled = environment.sizes, environment.labelled
    total, others = sum(sizes[k] for k in clients), sum(sizes[k] for k in clients if not labelled[k])
    weight = {k: sizes[k] / total for k in clients}
    if share is not None:
        weight = {k: share if labelled[k] else (1 - share) * sizes[k] / others for k in clients}
    for number in range(1, rounds + 1):
        for k in clients:
            students[k].load_state_dict(mean)
            client_by_plain_torch(environment, number, k, students[k], teachers[k])
        states = {k: weights_of(students[k]) for k in clients}
        mean = {name: torch.stack([weight[k] * states[k][name] for k in clients]).sum(0) for name in mean}
    return mean, {k: weights_of(teachers[k]) for k in clients}


SAME: dict[str, Any] = {"batch_size": 8, "alpha": ALPHA, "unlabelled_weight": LAMBDA_U}


@pytest.mark.parametrize(
    "method, share",
    [
        (RSCFed(M=1, subset=4, beta=0.0, labelled_weight="by_size", **SAME), None),
        (RSCFed(M=1, subset=4, beta=0.0, **SAME), 0.5),
        (FedConsist(**SAME), 0.5),
        (FedConsist(labelled_share=None, **SAME), None),
    ],
)
def test_the_limits_are_weighted_fedavg(method, share):
    """No distance, one subset of all clients: three rounds of FedAvg, students and teachers alike."""
    experiment = experiment_of(method)
    module, _ = rounds_of(experiment, rounds=3)
    mean, teachers = by_plain_torch(experiment, share, rounds=3)
    assert difference(module.models()["student"], mean) < 1e-6
    for client, kept in module.state.clients.items():
        if "teacher" in kept:
            assert difference(kept["teacher"], teachers[int(client)]) < 1e-6
    unlabelled = [str(k) for k, labels in module.environment.labelled.items() if not labels and k >= 0]
    assert [k for k, kept in sorted(module.state.clients.items()) if "teacher" in kept] == unlabelled
    start = weights_of(module.environment.network())
    assert difference(mean, start) > 1e-2  # three rounds of something


# --- subsets, and a client drawn twice ---


def test_subsets_are_drawn_without_replacement_and_anew():
    module, logs = rounds_of(experiment_of(RSCFed(M=3, subset=3, batch_size=8)), rounds=2)
    draws = [[job.key.client for job in log.jobs] for log in logs]
    for clients in draws:
        assert all(len(set(clients[first : first + 3])) == 3 for first in (0, 3, 6)) and len(clients) == 9
    assert draws[0] != draws[1]
    assert all(len({job.key for job in log.jobs}) == 9 for log in logs)


def test_a_client_drawn_twice_trains_twice_from_the_global_model():
    """Both subsets are everyone. The second job is sent nothing, and yet equals a fresh job that is sent the model; the
    teacher goes on from what the first left, with 2 steps each."""
    experiment = experiment_of(RSCFed(M=2, subset=4, batch_size=8))
    start = weights_of(prepare(experiment).network())
    module, (log,) = rounds_of(experiment)
    model_bytes = sum(value.nbytes for value in start.values())
    assert module.metrics["comm/bytes_down"] == 4 * model_bytes and module.metrics["comm/bytes_up"] == 8 * model_bytes
    second = {job.key.client: (job, out) for job, out in zip(log.jobs, log.outcomes, strict=True) if job.key.draw == 1}
    assert len(second) == 4 and all(job.receives == {} for job, _ in second.values())
    labelled = next(k for k in range(4) if module.environment.labelled[k])
    job, outcome = second[labelled]
    (fresh,) = ReferenceEngine(module.environment).fit([replace(job, receives={"student": start})], 1, {})
    assert equal(outcome.sends["student"], fresh.sends["student"])
    assert not equal(
        outcome.sends["student"], next(o for o in log.outcomes if o.key.client == labelled).sends["student"]
    )
    for client, kept in module.state.clients.items():
        assert set(kept) == (set() if int(client) == labelled else {"teacher", "teacher_steps"})
        assert kept.get("teacher_steps", 4) == 4


def test_a_reused_model_counts_in_both_subsets():
    """Two subsets of everyone: one job a client, and the result of M = 1, up to the order of the sums."""
    module, (log,) = rounds_of(experiment_of(RSCFed(M=2, subset=4, batch_size=8, beta=50.0, drawn_twice="reused")))
    once, _ = rounds_of(experiment_of(RSCFed(M=1, subset=4, batch_size=8, beta=50.0)))
    assert len(log.jobs) == 4
    assert difference(module.models()["student"], once.models()["student"]) < 1e-7


def test_the_round_is_the_mean_of_the_subsets():
    """Eq. 7 from the outcomes: beta 0 and by size, subsets of two, (n1 w1 + n2 w2) / (n1 + n2), the mean of 3."""
    module, (log,) = rounds_of(experiment_of(RSCFed(M=3, subset=2, batch_size=8, beta=0.0, labelled_weight="by_size")))
    sent = [(module.environment.sizes[o.key.client], o.sends["student"]["fc2.bias"].double()) for o in log.outcomes]
    pairs = [sent[first : first + 2] for first in (0, 2, 4)]
    expected = sum((n1 * w1 + n2 * w2) / (n1 + n2) for (n1, w1), (n2, w2) in pairs) / 3
    assert torch.allclose(module.models()["student"]["fc2.bias"].double(), expected, atol=1e-7)


# --- what is sent and kept ---


@pytest.mark.parametrize("teacher_start", ["paper", "released_code"])
def test_the_first_global_model_is_sent_to_clients_that_come_late(teacher_start):
    """One client a round. The paper's teachers start at theta_glob^0, which is known in round 1, not needed by the
    labelled client, and sent once to any other."""
    method = RSCFed(M=1, subset=1, batch_size=8, teacher_start=teacher_start)
    module, logs = rounds_of(
        experiment_of(method, federation=replace(tiny_experiment().federation, rounds=12)), rounds=12
    )
    start, met = weights_of(module.environment.network()), set()
    sent = 0
    for number, log in enumerate(logs, start=1):
        (job,) = log.jobs
        client = job.key.client
        late = number > 1 and client not in met and not module.environment.labelled[client]
        assert set(job.receives) == ({"student", "teacher"} if late and teacher_start == "paper" else {"student"})
        if "teacher" in job.receives:
            sent += 1
            assert equal(job.receives["teacher"], start) and not equal(job.receives["student"], start)
        met.add(client)
    assert len(met) > 2 and (sent > 0) == (teacher_start == "paper")


def test_momentum_is_kept_or_reset():
    """Round 1 is the same; kept buffers move round 2."""
    reset, kept = (
        rounds_of(experiment_of(method), rounds=2)[0]
        for method in (FedConsist(batch_size=8), FedConsist(batch_size=8, momentum="released_code"))
    )
    assert all("momentum" in private for private in kept.state.clients.values()) and len(kept.state.clients) == 4
    assert not any("momentum" in private for private in reset.state.clients.values())
    assert difference(reset.models()["student"], kept.models()["student"]) > 1e-4


def test_warm_start_is_the_labelled_client_alone():
    """One job, whose result is the new global model and, for the teachers, theta_glob^0."""
    module, (first, second) = rounds_of(
        experiment_of(RSCFed(M=2, subset=3, batch_size=8, warm_start_rounds=1)), rounds=2
    )
    (job,), (outcome,) = first.jobs, first.outcomes
    assert module.environment.labelled[job.key.client] and job.learning_rate == "server"
    assert equal(module.state.server["first"], outcome.sends["student"])
    assert equal(second.jobs[0].receives["student"], outcome.sends["student"]) and len(second.jobs) == 6
    assert not any("teacher" in job.receives for job in second.jobs)


def test_warm_start_weighs_by_labels():
    """ "share": (l1 w1 + ... + l4 w4) / (l1 + ... + l4), and no image without a label is seen."""
    module, (log,) = rounds_of(experiment_of(FedConsist(batch_size=8, warm_start_rounds=1), setting="share"))
    labels = [module.environment.labelled[outcome.key.client] for outcome in log.outcomes]
    sent = [outcome.sends["student"]["fc2.bias"].double() for outcome in log.outcomes]
    expected = sum(n * w for n, w in zip(labels, sent, strict=True)) / sum(labels)
    assert torch.allclose(module.models()["student"]["fc2.bias"].double(), expected, atol=1e-7)
    assert len(set(labels)) > 1 and all(set(job.data) == {"labelled"} for job in log.jobs)


@pytest.mark.parametrize("setting, streams", [("share", {"labelled", "unlabelled"}), ("one_more_client", None)])
def test_streams_are_those_that_a_client_has(setting, streams):
    module, (log,) = rounds_of(experiment_of(RSCFed(M=3, subset=4, batch_size=8), setting=setting))
    for job in log.jobs:
        extra = {"labelled"} if job.key.client == 4 else {"unlabelled"}
        assert set(job.data) == (streams or extra)
        assert job.learning_rate == ("server" if "labelled" in job.data else "client")
    assert ("aggregation/labelled_share" in module.metrics) == (setting == "one_more_client")
