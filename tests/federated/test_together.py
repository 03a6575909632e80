"""Seeds of a cell that train in one process and one stack give the numbers of each seed alone."""

import contextlib
import json
import math
import os
import random
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from benchmark.errors import ConfigError, Diverged, Stopped
from benchmark.experiment import Experiment
from benchmark.federated import stopping
from benchmark.federated.batches import JobBatches
from benchmark.federated.engines import EngineOptions, ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.together import Seat, Together
from benchmark.federated.trees import leaves
from benchmark.methods import protocol as fl
from benchmark.methods.shared import SupervisedUpdate, mean_of
from benchmark.methods.ssfl import ConsistencyUpdate
from benchmark.models.small_cnn import TinyCnn
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.run_lock import NAME as LOCK
from tests.conftest import tiny_experiment
from tests.federated.test_capture import Recorder
from tests.federated.test_stacked import MOST, ONE_AT_A_TIME, difference, longer
from tests.methods.golden import TRACES
from tests.records.conftest import When

STACKED = EngineOptions(engine="stacked")


def states_of(module: FederatedModule, rounds: int) -> list[dict[str, Any]]:
    """Return the state after each round."""
    states = []
    for number in range(1, rounds + 1):
        module.training_step(number, 0)
        states.append({"server": module.state.server, "clients": dict(module.state.clients)})
    return states


def apart_and_together(
    experiment: Experiment, rounds: Sequence[int], recorder: Recorder | None = None
) -> tuple[float, Together]:
    """Return the largest difference between seeds that train together and each seed trained separately on the reference
    engine.

    Seed s runs `rounds[s]` rounds.
    """
    environments = [prepare(experiment.with_seed(seed)) for seed in range(len(rounds))]
    pairs = list(zip(environments, rounds, strict=True))
    alone = [states_of(FederatedModule(each, ReferenceEngine(each)), number) for each, number in pairs]
    together = Together(most=MOST)
    together.shared.recorder = recorder

    def play(number: int, seat: Seat) -> list[dict[str, Any]]:
        environment = environments[number]
        return states_of(FederatedModule(environment, seat.engine(environment)), rounds[number])

    played = together.play([partial(play, number) for number in range(len(rounds))])
    return difference(by_name(alone), by_name(played)), together


def by_name(runs: Sequence[Any]) -> dict[str, Any]:
    """Return the states of the runs as one tree. Raise the error that ended a run."""
    tree: dict[str, Any] = {}
    for seed, states in enumerate(runs):
        if isinstance(states, BaseException):
            raise states
        tree[str(seed)] = {str(number): state for number, state in enumerate(states)}
    return tree


@pytest.mark.parametrize("name", sorted(ONE_AT_A_TIME))
def test_three_seeds_agree_with_each_alone(name, in_float64):
    off, together = apart_and_together(longer(TRACES[name], 3), rounds=(2, 2, 2))
    counts = together.shared.counts
    assert counts.together and not counts.reasons
    assert off < 1e-11
    assert counts.steps > counts.ticks


@pytest.mark.parametrize("name", ["crl-fedavg", "semifl-static-batch-norm", "sage", "easgd"])
def test_jobs_of_several_runs_and_clients_are_one_group(name, in_float64):
    off, together = apart_and_together(longer(TRACES[name], 3), rounds=(2, 2))
    assert together.shared.counts.together and off < 1e-11


@pytest.mark.parametrize("name", ["crl-fedavg", "fixmatch"])
def test_recorded_steps_of_runs_that_end_one_by_one(name, in_float64):
    """Each number of runs has a group and a recording of its own."""
    recorder = Recorder()
    off, together = apart_and_together(longer(TRACES[name], 3, T=4), rounds=(1, 2, 3), recorder=recorder)
    assert len(recorder.graphs) >= 3 and all(graph.replayed for graph in recorder.graphs)
    assert not together.shared.counts.not_recorded and off < 1e-11


class Results:
    """What runs left on the disk."""

    def __init__(self, results: Path, runs: Sequence[Experiment]) -> None:
        self.folders = [run_folder(results, each) for each in runs]

    def numbers(self, number: int) -> list[dict[str, float]]:
        lines = (self.folders[number] / "rounds.jsonl").read_text().splitlines()
        rounds = [json.loads(line) for line in lines]
        left_out = ("cell_key", "time/round_seconds", "time/server_seconds", "time/cpu_seconds")
        numbers = []
        for line in rounds:
            numbers.append({name: value for name, value in line.items() if name not in left_out})
        return numbers

    def weights(self, number: int) -> dict[str, Any]:
        files = sorted((self.folders[number] / "weights").iterdir())
        return {file.name: torch.load(file, weights_only=True) for file in files}


def agree(results: Results, other: Results, number: int) -> None:
    for line, expected in zip(results.numbers(number), other.numbers(number), strict=True):
        assert line == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert difference(results.weights(number), other.weights(number)) < 1e-11


def all_together(
    runs: Sequence[Experiment], results: Path, callbacks: Sequence[Sequence[pl.Callback]]
) -> tuple[list[Any], Together]:
    together = Together(most=MOST)

    def play(number: int, seat: Seat) -> dict[str, Any]:
        return run(runs[number], results, engine=STACKED, callbacks=callbacks[number], seat=seat)

    with stopping.StopOnSignal(at_once=False).listening():
        return together.play([partial(play, number) for number in range(len(runs))]), together


class Spoil(pl.Callback):
    """Makes the server's weights NaN when so many rounds are done."""

    def __init__(self, done: int) -> None:
        self._done = done

    def on_train_batch_start(self, trainer, pl_module, *args):
        if pl_module.rounds_done == self._done:
            for _, value in leaves(pl_module.state.server):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.fill_(math.nan)


def preempt() -> None:
    raise stopping.Preempted("SIGTERM")


def test_a_run_that_diverges_one_that_stops_and_one_that_resumes_disturb_no_other(tmp_path, in_float64):
    experiment = longer(TRACES["crl-fedavg"], 3)
    evaluation = replace(experiment.evaluation, gradient_diversity_every=3)
    experiment = replace(experiment, data=replace(experiment.data, images=100), evaluation=evaluation)
    runs = [experiment.with_seed(seed) for seed in range(4)]
    for each in runs:
        run(each, tmp_path / "alone", engine=STACKED)
    alone, here = Results(tmp_path / "alone", runs), Results(tmp_path / "here", runs)
    ended, together = all_together(runs[:3], tmp_path / "here", [[], [Spoil(1)], [When(1, preempt)]])
    assert [type(each) for each in ended] == [dict, Diverged, Stopped]
    agree(here, alone, 0)
    assert "diversity/members" in here.numbers(0)[-1]
    diverged = json.loads((here.folders[1] / "result.json").read_text())
    assert diverged["status"] == "diverged" and diverged["rounds"] == 1
    assert here.numbers(1) == [pytest.approx(line, rel=1e-10, abs=1e-12) for line in alone.numbers(1)[:1]]
    assert not (here.folders[2] / "result.json").exists()
    # The stopped run goes on in its second round, beside one that begins.
    ended, together = all_together(runs[2:], tmp_path / "here", [[], []])
    assert [each["status"] for each in ended] == ["done", "done"]
    for number in (2, 3):
        agree(here, alone, number)
    manifest = json.loads((here.folders[2] / "manifest.json").read_text())
    assert [attempt["from_round"] for attempt in manifest["attempts"]] == [0, 1]
    assert (manifest["engine"]["name"], manifest["engine"]["together"]) == ("stacked", 2)
    assert together.shared.counts.together["ConsistencyUpdate"] == 4 * (2 + 3)  # clients, and the rounds of both runs
    assert not any((folder / LOCK).exists() for folder in here.folders)


def refuse_if_nan(weights: Iterable[torch.Tensor]) -> None:
    if any(bool(torch.isnan(tensor).any()) for tensor in weights):
        raise ConfigError("this run has a fault")


class Faults:
    """Functions of an update that fail in a run whose weights are NaN."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        refuse_if_nan(received["student"].values())
        return START(self, received, private, reader)  # type: ignore[arg-type]

    def loss(self, step: fl.Step) -> fl.Loss:
        refuse_if_nan(step.student.parameters())
        return LOSS(self, step)  # type: ignore[arg-type]

    def finish(self, local: fl.Local) -> fl.Tree:
        refuse_if_nan(local.trainable["student"].values())
        return FINISH(self, local)  # type: ignore[arg-type]


START, LOSS, FINISH = ConsistencyUpdate.start, ConsistencyUpdate.loss, ConsistencyUpdate.finish


@pytest.mark.parametrize("place", ["start", "loss", "finish"])
def test_an_error_of_one_run_is_raised_there_alone(place, tmp_path, in_float64, monkeypatch):
    """A group has the jobs of all runs. (A loss that reads numbers is not stacked.)"""
    runs = [longer(TRACES["crl-fedavg"], 2).with_seed(seed) for seed in range(2)]
    run(runs[0], tmp_path / "alone", engine=STACKED)
    monkeypatch.setattr(ConsistencyUpdate, place, getattr(Faults, place))
    with pytest.warns(UserWarning, match="one at a time") if place == "loss" else contextlib.nullcontext():
        ended, together = all_together(runs, tmp_path / "here", [[], [Spoil(1)]])
    assert isinstance(ended[0], dict) and isinstance(ended[1], ConfigError)
    assert bool(together.shared.counts.together["ConsistencyUpdate"]) == (place != "loss")
    agree(Results(tmp_path / "here", runs), Results(tmp_path / "alone", runs), 0)


def test_sigterm_stops_all_runs_at_their_last_finished_round(tmp_path):
    """The main thread has the signal; those that wait for their jobs look at its flag."""

    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while stopping.received() is None:
            time.sleep(0.01)

    runs = [longer(tiny_experiment(), 4).with_seed(seed) for seed in range(3)]
    before = signal.getsignal(signal.SIGTERM)
    ended, _ = all_together(runs, tmp_path, [[], [When(2, terminate)], []])
    assert [type(each) for each in ended] == [Stopped] * 3
    assert signal.getsignal(signal.SIGTERM) is before and stopping.received() is None
    ended, _ = all_together(runs, tmp_path, [[], [], []])
    manifests = [json.loads((run_folder(tmp_path, each) / "manifest.json").read_text()) for each in runs]
    assert [len(manifest["attempts"]) for manifest in manifests] == [2, 2, 2]
    done = [manifest["attempts"][1]["from_round"] for manifest in manifests]
    assert done[1] == 2 and {done[0], done[2]} <= {1, 2}  # their second round may not have been over


@dataclass(frozen=True, kw_only=True)
class Drawing(fl.Method):
    """A user's method that draws from the global generators before, between and after its jobs."""

    needs = frozenset({"every_client", "everywhere"})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        data = {"labelled": fl.Stream.whole("labelled", 8)}
        update = Noting(reports="client/loss")
        received = {"student": state.server["student"]}
        drawn = [self._draw()]
        outcomes = []
        for outcome in world.fit([world.job(client, update, received, data) for client in world.cohort()]):
            outcomes.append(outcome)
            drawn.append(self._draw() + float(outcome.sends["drawn"]))
        drawn.append(self._draw())
        weights = mean_of(outcomes, state.server["student"])
        shifted = {name: value + 1e-3 * sum(drawn) * value.is_floating_point() for name, value in weights.items()}
        return fl.State(server={"student": shifted}), {}

    def _draw(self) -> float:
        return random.random() + float(np.random.random()) + float(torch.rand(()))


@dataclass(frozen=True, kw_only=True)
class Noting(SupervisedUpdate):
    """An update whose `finish` draws."""

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"student": local.trainable["student"], "drawn": torch.rand(()) + random.random()}


@pytest.mark.parametrize("network", ["tiny_cnn", f"{__name__}:Seeded"])
def test_what_a_user_draws_does_not_depend_on_the_other_runs(network, tmp_path, in_float64):
    trace = TRACES["supervised-fl-every-client"]
    experiment = longer(replace(trace, method=Drawing(), model=replace(trace.model, network=network)), 2)
    runs = [experiment.with_seed(seed) for seed in range(2)]
    for each in runs:
        run(each, tmp_path / "alone", engine=STACKED)
    ended, together = all_together(runs, tmp_path / "here", [[], []])
    assert [each["status"] for each in ended] == ["done", "done"] and not together.shared.counts.reasons
    for number in range(2):
        agree(Results(tmp_path / "here", runs), Results(tmp_path / "alone", runs), number)


class Seeded(TinyCnn):
    """A user's network that keeps a number of its run beside its weights."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.own = float(torch.rand(()))

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        return super().forward(images_NCHW) * (1.0 + self.own)


def test_runs_have_their_images_once(tiny):
    """So the views of all their jobs can be made at once."""
    together = Together()

    def play(seed: int, seat: Seat) -> tuple[Any, ...]:
        environment = seat.prepare(tiny.with_seed(seed))
        job = first_job(environment)
        batches = iter(JobBatches(seat.engine(environment).runner._environment, job, 1))
        return next(iter(batches.streams.values())).recipe, environment.split.server_N.tolist()

    (recipe, server), (other, others) = together.play([partial(play, seed) for seed in range(2)])  # type: ignore[misc]
    assert recipe == other and server != others


def first_job(environment: Environment) -> fl.Job:
    jobs: list[fl.Job] = []
    module = FederatedModule(environment, ReferenceEngine(environment))
    module.observers.append(SimpleNamespace(on_job=lambda job, number: jobs.append(job), on_outcome=lambda *_: None))  # type: ignore[arg-type]
    module.training_step(1, 0)
    return jobs[0]


def test_cpu_seconds_are_divided_among_the_runs():
    clock = iter([1.0, 4.0, 10.0])
    together = Together(lap=lambda: next(clock, 0.0))
    taken = together.play([lambda seat: seat.lap(), lambda seat: seat.lap()])
    assert taken == [1.0, 10.0]  # the 4 seconds are those of the first after its read
