"""Shared by all tests: one tiny experiment on the embedded digits, and where the packed real data lies."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.data.partition import ClassSkew
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD
from benchmark.records.record import RunRecord, read_run

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # "make test &" of a script starts with it ignored


ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items):
    """W&B's clients wait more than they compute: their file is begun first, beside others that compute."""
    items.sort(key=lambda item: item.path.name != "test_agents.py")


def tiny_experiment(**changes) -> Experiment:
    """4 clients, 2 local steps, 3 rounds on 8x8 digits; tau 0.14 keeps 61 % of the samples in round 1."""
    experiment = Experiment(
        data=Data(
            name="digits",
            N_s=20,
            augmentation=Augmentation(weak=Weak(flip=0.0, padding_mode="zero"), strong=Gentle()),
        ),
        partition=ClassSkew(R=0.4),
        model=Model(network="tiny_cnn", norm="gn", norm_groups=4),
        method=SSFL(objective=CRL(threshold=0.14), batch_size=8, server_batch_size=8),
        federation=Federation(K=4, C=4, T=2, rounds=3),
        optimizer=SGD(lr=0.05),
        evaluation=Evaluation(every=1),
    )
    return replace(experiment, **changes)


@pytest.fixture
def tiny() -> Experiment:
    return tiny_experiment()


def record_of(folder: Path) -> RunRecord:
    """The record that has to be in a run's folder."""
    record = read_run(folder)
    assert record is not None, f"{folder} holds no run"
    return record


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
