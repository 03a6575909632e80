"""Rounds of mean teachers (RSCFed, Fed-Consist, FedIRM) without the suite's local step, losses or averages."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.experiment import Experiment
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.methods.protocol import Job, Key, Limit, LocalUpdate, Stream, Weights
from benchmark.optim.sgd import SGD, Constant
from tests.methods.watch import tiny_with

SGD_OF_TWO_RATES = SGD(lr=0.02, server_lr=0.05, schedule=Constant(), weight_decay=0.0, nesterov=False)


def experiment_of(method: Any, setting: Any = "some_clients", **changes: Any) -> Experiment:
    """4 clients on the 8x8 digits, of whom one is labelled, or each partly."""
    return replace(tiny_with(method, setting), optimizer=SGD_OF_TWO_RATES, **changes)


def rounds_by_plain_torch(
    experiment: Experiment,
    rounds: int,
    *,
    weights: Callable[[Environment, Mapping[int, Weights]], Mapping[int, float]],
    loss_of: Callable[[nn.Module, nn.Module, Mapping[str, Tensor], int], Tensor],
    alpha: float,
    on_labels: Callable[[Environment, nn.Module, int], None] = lambda environment, student, client: None,
    label_views: tuple[str, ...] = ("weak",),
    smoothing: float = 0.0,
    warm: int = 0,
) -> tuple[Weights, dict[int, Weights]]:
    """The mean, and the teachers. All clients once a round, T = 2, from the mean; teachers from the first mean.

    `weights` of the clients' trained students in the mean; `loss_of` student, teacher and views in a round, without
    labels; `on_labels` is called with the trained student of each labelled client, before any other trains. Losses of
    labels, smoothed, are added over `label_views`. In the first `warm` rounds the one labelled client is alone.
    """
    environment = prepare(experiment)
    mean, clients = weights_of(environment.network()), range(environment.K)
    students, teachers = ({k: environment.network() for k in clients} for _ in range(2))
    labelled = environment.labelled
    for number in range(1, rounds + 1):
        if number == warm + 1:
            for teacher in teachers.values():
                teacher.load_state_dict(mean)
        for k in sorted((k for k in clients if labelled[k] or number > warm), key=lambda k: not labelled[k]):
            student, teacher = students[k], teachers[k].eval()
            student.load_state_dict(mean)
            part: Any = "labelled" if labelled[k] else "unlabelled"
            views = label_views if labelled[k] else ("weak", "weak2")
            stream = Stream(part=part, batch_size=8, views=views, drop_last=False)
            job = Job(key=Key(client=k), update=LocalUpdate(), receives={}, data={part: stream}, limit=Limit(steps=2))
            optimizer = torch.optim.SGD(student.parameters(), lr=0.05 if labelled[k] else 0.02, momentum=0.9)
            for batch in JobBatches(environment, job, number):
                images: Any = batch.streams[part]
                if labelled[k]:
                    loss = torch.zeros(())
                    for view in label_views:
                        log_ND = student(images.views[view]).log_softmax(1)
                        right_N = log_ND.gather(1, images.labels_N[:, None])
                        loss = loss - (1 - smoothing) * right_N.mean() - smoothing * log_ND.mean()
                else:
                    loss = loss_of(student, teacher, images.views, number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                        mine.copy_(mine + alpha * (theirs - mine))
            if labelled[k]:
                on_labels(environment, student, k)
        if number <= warm:
            (alone,) = (k for k in clients if labelled[k])
            mean = weights_of(students[alone])
            continue
        states = {k: weights_of(students[k]) for k in clients}
        weight = weights(environment, states)
        mean = {name: torch.stack([weight[k] * states[k][name] for k in clients]).sum(0) for name in mean}
    return mean, {k: weights_of(teachers[k]) for k in clients}
