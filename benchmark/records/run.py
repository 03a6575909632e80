"""One run from an `Experiment` to its record: claimed, resumed, trained, written."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.errors import Diverged, RunningElsewhere, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.choice import build_engine, engine_again, needs_workers
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.processes import load_ahead
from benchmark.federated.store import MEMORY
from benchmark.federated.trainer import build_trainer, fit
from benchmark.records.cputime import CpuClock
from benchmark.records.export import export
from benchmark.records.files import read_json
from benchmark.records.lease import PATIENCE, claimed, is_held
from benchmark.records.provenance import manifest
from benchmark.records.record import run_folder
from benchmark.records.recorder import SECONDS_BETWEEN_CHECKPOINTS, Recorder
from benchmark.records.signals import Preempted, StopOnSignal


def run(
    experiment: Experiment,
    results: Path,
    *,
    data_root: Path | None = None,
    callbacks: Sequence[pl.Callback] = (),
    threads: int = 1,
    engine: str = "reference",
    workers: int | None = None,
    confident_only: bool = True,
    device: str | None = None,
    seconds_between: float = SECONDS_BETWEEN_CHECKPOINTS,
    patience: float = PATIENCE,
    client_memory: int = MEMORY,
) -> dict[str, Any]:
    """Train the experiment, or go on where its last checkpoint is, and return the content of `result.json`.

    A finished run is not trained again. `engine`, `workers`, `threads`, `confident_only` and `device`: see
    `build_engine`. How many workers there are moves no bit; the rest does, so a run that goes on keeps what it began
    with. `seconds_between` checkpoints: a run that is killed does so much again. `patience`: seconds without a sign of
    life after which a run that another machine, or a stopped process, is at is taken over. `client_memory`: bytes of
    what clients keep between rounds that stay in memory, beside the state of the round's clients; the rest lies in
    files beside the checkpoints. It moves no bit.

    Raises ConfigError and DataError before anything is written, CannotWrite, RunningElsewhere (also where another
    process took the run over in the meantime), Diverged (after the record says so) and Stopped (SIGTERM, Ctrl-C: the
    last finished round is on disk).
    """
    folder = run_folder(results, experiment)
    finished = read_json(folder / "result.json")
    if finished is not None:
        return finished
    stop, clock = StopOnSignal(), CpuClock()
    try:
        with stop.listening():
            keep_freed_memory()
            if is_held(folder, patience):  # told before time goes into data; `claimed` is what decides
                raise RunningElsewhere(f"{folder}: another process is at this run; wait for it or stop it")
            if needs_workers(engine, experiment, workers, threads, device=device):
                load_ahead()  # beside the preparing of data
            environment = prepare(experiment, data_root)
            with claimed(folder, patience=patience) as lease:
                finished = read_json(folder / "result.json")  # another process may have been at it until now
                if finished is not None:
                    return finished
                recorder = Recorder(lease, experiment, seconds_between, clock, client_memory)
                start = recorder.checkpoint
                began_with = (read_json(folder / "manifest.json") or {}).get("engine") if start else None
                if began_with:
                    chosen = engine_again(began_with, environment, workers, device=device)
                else:
                    chosen = build_engine(
                        engine, environment, workers, threads, confident_only=confident_only, device=device
                    )
                with contextlib.closing(chosen) as built, recorder.opened(manifest(environment, built)):
                    return _train(recorder, environment, built, [*callbacks], stop)
    except Preempted as preempted:
        raise Stopped(
            f"{folder}: stopped by {preempted.signal}; the same command goes on from the last finished round"
        ) from None


def _train(
    recorder: Recorder,
    environment: Environment,
    engine: Engine,
    callbacks: Sequence[pl.Callback],
    stop: StopOnSignal,
) -> dict[str, Any]:
    """Rounds from the checkpoint, or from the first, to the end."""
    experiment, start = environment.experiment, recorder.checkpoint
    module = FederatedModule(
        environment,
        engine,
        state=start.state if start else None,
        rounds_done=start.round if start else 0,
        store=recorder.store,
    )
    diversity = GradientDiversity(every=experiment.evaluation.gradient_diversity_every)
    trainer = build_trainer([diversity, recorder.exchange, stop, recorder, *callbacks])
    try:
        fit(module, trainer)
    except Diverged as error:
        recorder.close("diverged", str(error))
        raise
    except BaseException:
        # Also a worker's end, where the signal went to the whole process group.
        if stop.asked is None:
            raise
        with stop.waiting():
            recorder.save()  # a signal may have cut Lightning's own report of the exception short
            recorder.preempted(stop.asked.signal)
        where = f"{recorder.folder}: stopped by {stop.asked.signal} after round {recorder.rounds_done}"
        raise Stopped(f"{where}; the same command goes on from there") from None
    with stop.waiting():
        if module.rounds_done < experiment.federation.rounds:
            where = f"{recorder.folder}: stopped after round {module.rounds_done}"
            raise Stopped(f"{where}; the same command goes on from there")
        recorder.check()
        export(recorder.folder, module, recorder.last, recorder.best)
        return recorder.close("done")
