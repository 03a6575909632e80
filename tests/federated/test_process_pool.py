"""The pool gives the bits of the same local step in this process, in job order, and leaves no worker behind.

What the fast local step gives: test_fast_step.py. Legend: N images of a batch, D classes.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.processes import process_context
from benchmark.losses import supervised_loss
from benchmark.methods.protocol import Job, Key, Limit, Local, Stream, Tree
from benchmark.methods.shared import StudentUpdate
from tests.conftest import alive, tiny_experiment, wait_until
from tests.federated.helpers import FastHere, agree, difference
from tests.methods.golden import TRACES

BASE = tiny_experiment()
UNLABELLED = Stream(part="unlabelled", batch_size=8, views=("weak",))


@dataclass(frozen=True, kw_only=True)
class ToConstant(StudentUpdate):
    """Pulls the prediction of any image towards class 0."""

    def loss(self, step):
        logits_ND = step.student(step.batch["unlabelled"].views["weak"])
        return supervised_loss(logits_ND, torch.zeros(len(logits_ND), dtype=torch.int64)), {}


@dataclass(frozen=True, kw_only=True)
class Counting(ToConstant):
    """The same client twice in a round: the second job sees the private state that the first left."""

    def start(self, received, private, reader):
        return Local(trainable={"student": received["student"]}, private={"times": 0, **(private or {})})

    def finish(self, local):
        local.private = {"times": local.private["times"] + 1, "student": local.trainable["student"]}
        return {"student": local.trainable["student"], "times": local.private["times"]}


@dataclass(frozen=True, kw_only=True)
class Sleeps(ToConstant):
    """Leaves a file when it begins, and sleeps for a minute if there was none."""

    folder: str

    def start(self, received, private, reader):
        here = Path(self.folder, str(received["number"]))
        if not here.exists():
            here.touch()
            time.sleep(60)
        return super().start(received, private, reader)


@dataclass(frozen=True, kw_only=True)
class Fails(ToConstant):
    def start(self, received, private, reader):
        if received["number"] == 1:
            raise ConfigError("tau: 7; choose 1")
        if received["number"] == 2:
            raise ZeroDivisionError("of the method's own")
        return super().start(received, private, reader)


@dataclass(frozen=True, kw_only=True)
class SaysItsThreads(ToConstant):
    def finish(self, local):
        return {"threads": torch.get_num_threads(), "pid": os.getpid(), "omp": os.environ.get("OMP_NUM_THREADS")}


@pytest.fixture(scope="module")
def environment() -> Environment:
    return prepare(BASE)


@pytest.fixture(scope="module")
def two(environment: Environment) -> Iterator[ProcessPool]:
    with closing(ProcessPool(environment, workers=2)) as engine:
        yield engine


def pids_of(engine: ProcessPool) -> list[int]:
    return [worker.process.pid for worker in engine._workers]


def jobs_of(environment: Environment, update, steps=(2, 2, 2, 2), draws=(0,)) -> list[Job]:
    """Make one job for each client and draw, all with the same weights."""
    weights = weights_of(environment.network())
    return [
        Job(
            key=Key(client=client, draw=draw),
            update=update,
            receives={"student": weights, "number": client},
            data={"unlabelled": UNLABELLED},
            limit=Limit(steps=steps[client]),
        )
        for draw in draws
        for client in range(4)
    ]


def same(environment: Environment, engine: Engine, jobs: list[Job]) -> bool:
    """Check whether the engine's outcomes equal the outcomes of this process, in this order, and so do the client
    states.
    """
    here, there = dict[str, Tree](), dict[str, Tree]()
    expected = map(vars, FastHere(environment).fit(jobs, 1, here))
    found = map(vars, engine.fit(jobs, 1, there))
    return agree(list(expected), list(found)) and agree(here, there)


# A start and a mean by all; slots with momentum; sat out and steps known after pseudo-labelling; a client twice, with a
# teacher and momentum that stay; two losses in turn and helpers; a sub-network; one after another, on the momentum that
# the last one left.
SHAPES = ["crl-released", "semifl", "rscfed-released", "fedmatch", "heterofl", "flexmatch-lpl"]


@pytest.mark.parametrize(("name", "workers"), [("crl-fedavg", 1), *((name, 2) for name in SHAPES)])
def test_a_whole_run_is_the_same_with_one_and_two_workers(name, workers):
    """Two rounds: weights, what clients keep and every metric, bit by bit."""
    environment = prepare(TRACES[name])
    with closing(ProcessPool(environment, workers=workers)) as pool:
        here, there = (FederatedModule(environment, engine) for engine in (FastHere(environment), pool))
        for number in (1, 2):
            for module in (here, there):
                module.training_step(number, 0)
    assert agree(vars(here.state), vars(there.state))
    assert here.metrics == there.metrics


def test_the_same_client_twice_draws_other_batches_and_sees_what_it_left(environment):
    kept: dict[str, Tree] = {}
    outcomes = FastHere(environment).fit(jobs_of(environment, Counting(), draws=(0, 1)), 1, kept)
    first, second = (outcome.sends for outcome in outcomes if outcome.key.client == 0)
    assert (first["times"], second["times"]) == (1, 2) and kept["0"]["times"] == 2
    assert difference(first["student"], second["student"]) > 0


def test_outcomes_come_in_job_order_however_long_the_jobs_are(environment, two):
    """The last job is the longest and begins first; two draws of one client keep their order."""
    assert same(environment, two, jobs_of(environment, Counting(), steps=(1, 2, 3, 9), draws=(0, 1)))


def test_gradients_are_the_reference_s(environment, two):
    jobs = jobs_of(environment, ToConstant())
    expected = list(FastHere(environment).gradients(jobs, 2, {}))
    found = list(two.gradients(jobs, 2, {}))
    assert len(found) == 4 and all(agree(*pair) for pair in zip(expected, found, strict=True))
    assert any(bool(value.any()) for value in found[0]["student"].values())


def test_each_worker_is_a_process_with_one_thread(environment, two):
    said = [outcome.sends for outcome in two.fit(jobs_of(environment, SaysItsThreads()), 1, {})]
    assert {(entry["threads"], entry["omp"]) for entry in said} == {(1, "1")}
    assert {entry["pid"] for entry in said} == set(pids_of(two)) and os.getpid() not in pids_of(two)


def test_a_failure_comes_when_its_outcome_is_due_and_with_the_worker_s_traceback(environment, two):
    """Client 0's outcome first; then client 1's error, of its own class; the engine goes on."""
    outcomes = two.fit(jobs_of(environment, Fails()), 1, {})
    assert next(outcomes).key.client == 0
    with pytest.raises(ConfigError, match="tau: 7; choose 1") as found:
        next(outcomes)
    assert str(found.value) == "tau: 7; choose 1"  # the one line that `fssl` prints
    assert "client 1 in round 1 (Fails)" in found.value.__notes__[0] and "in start" in found.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"(?s)client 2 in round 1 .*in start.*ZeroDivisionError: of the method"):
        list(two.fit(jobs_of(environment, Fails())[2:], 1, {}))
    assert same(environment, two, jobs_of(environment, ToConstant()))


def test_an_update_that_cannot_be_pickled_is_named(environment, two):
    @dataclass(frozen=True, kw_only=True)
    class Inside(ToConstant):
        pass

    with pytest.raises(FsslError, match=r"client 0 in round 1 \(Inside\) cannot be sent .* top level of a module"):
        list(two.fit(jobs_of(environment, Inside()), 1, {}))
    assert same(environment, two, jobs_of(environment, ToConstant()))


def test_leaving_off_half_way_leaves_the_engine_usable(environment, two):
    jobs = jobs_of(environment, Counting(), draws=(0, 1))
    kept: dict[str, Tree] = {}
    left_off = two.fit(jobs, 1, kept)
    next(left_off)
    left_off.close()  # what leaving a `for` loop comes to
    assert list(kept) == ["0"], "only what was handed out is kept"
    assert same(environment, two, jobs)


def test_a_killed_worker_is_one_error_and_not_a_hang(environment, tmp_path):
    """Killed in the middle of a job: the error comes within two seconds, and no worker is left."""
    killed_at = []
    with closing(ProcessPool(environment, workers=2)) as engine:
        pids = pids_of(engine)

        def kill() -> None:
            wait_until(lambda: len(os.listdir(tmp_path)) == 2)
            killed_at.append(time.monotonic())
            os.kill(pids[1], signal.SIGKILL)  # the job that is not due

        thread = threading.Thread(target=kill)
        thread.start()
        with pytest.raises(
            FsslError, match=rf"worker process {pids[1]} was ended by SIGKILL .* the job of client \d in"
        ):
            list(engine.fit(jobs_of(environment, Sleeps(folder=str(tmp_path))), 1, {}))
        assert time.monotonic() - killed_at[0] < 2.0
        thread.join()
        assert pids_of(engine) == [] and not any(map(alive, pids))
        with pytest.raises(FsslError, match="the pool was closed"):
            list(engine.fit(jobs_of(environment, ToConstant()), 1, {}))


def test_a_machine_that_starts_no_process_is_one_line(environment, monkeypatch):
    refused = Mock(side_effect=OSError(24, "Too many open files"))
    monkeypatch.setattr("benchmark.federated.process_pool.Pipe", refused)
    with pytest.raises(FsslError, match="Too many open files; choose --workers 1"):
        ProcessPool(environment, workers=2)


def test_an_exception_in_the_with_block_ends_the_workers(environment):
    with pytest.raises(KeyboardInterrupt), closing(ProcessPool(environment, workers=1)) as engine:
        (pid,) = pids_of(engine)
        raise KeyboardInterrupt
    assert not alive(pid)


def trains(folder: str) -> None:
    """Start a process with a worker that is busy with a job of a minute."""
    environment = prepare(BASE)
    engine = ProcessPool(environment, workers=1)  # in no `with` block
    Path(folder, "pid").write_text(str(*pids_of(engine)))
    list(engine.fit(jobs_of(environment, Sleeps(folder=folder)), 1, {}))


def test_no_worker_outlives_its_parent(tmp_path):
    """The parent is killed in the middle of a worker's job: the worker is gone within three seconds."""
    with process_context() as context:
        parent = context.Process(target=trains, args=(str(tmp_path),))
        parent.start()
    wait_until(lambda: (tmp_path / "0").exists())
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), seconds=3)
    parent.join(timeout=20)
    assert parent.exitcode == -signal.SIGKILL
