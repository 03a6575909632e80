"""Provide fixtures for all tests: one tiny experiment on the embedded digits, and the place of the packed real data."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from benchmark.cli.main import main
from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.data.partition import ClassSkew
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import Model
from benchmark.optimizer import Optimizer
from benchmark.records.record import RunRecord, read_run

torch.set_num_threads(1)
settings.register_profile("any machine", deadline=None)  # however busy it is
settings.load_profile("any machine")
signal.signal(signal.SIGINT, signal.default_int_handler)  # "make test &" of a script starts with it ignored


ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def one_thread():
    """Restore one thread after each test, because sums in this process with two threads are rounded differently than in
    workers.
    """
    yield
    torch.set_num_threads(1)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Let new tensors be of float64, where two orders of additions differ by rounding only."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def pytest_collection_modifyitems(items):
    """Begin the file of W&B's clients first, next to tests that compute, because these clients mostly wait."""
    items.sort(key=lambda item: item.path.name != "test_agents.py")


def tiny_experiment(**changes) -> Experiment:
    """Return an experiment with 4 clients, 2 local steps and 3 rounds on 8x8 digits; tau 0.14 selects 61 % of the
    samples in round 1.
    """
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
        optimizer=Optimizer(lr=0.05),
        evaluation=Evaluation(every=1),
    )
    return replace(experiment, **changes)


@pytest.fixture
def tiny() -> Experiment:
    return tiny_experiment()


@pytest.fixture
def fssl(capsys):
    """Run a command in this process; return its exit code, standard output and standard error."""

    def called(*words):
        capsys.readouterr()  # of before
        return (main(list(map(str, words))), *capsys.readouterr())

    return called


@pytest.fixture
def printed(fssl):
    """Return the standard output of a command that ends with 0."""

    def said(*words):
        code, out, err = fssl(*words)
        assert code == 0, err
        return out

    return said


def record_of(folder: Path) -> RunRecord:
    """Return the record in a run's folder, which must exist."""
    record = read_run(folder)
    assert record is not None, f"{folder} holds no run"
    return record


def status_of(pid: int) -> list[str]:
    """Return the state, parent, group and session of a process; return nothing for a process that does not exist or
    that was not waited for.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return []
    return status if status[0] != "Z" else []


def alive(pid: int) -> bool:
    return bool(status_of(pid))


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
