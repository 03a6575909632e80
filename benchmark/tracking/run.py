"""One run from an `Experiment` to its record: claimed, resumed, trained, written."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.errors import Diverged, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.choice import build_engine
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.trainer import build_trainer, fit
from benchmark.tracking.export import export
from benchmark.tracking.files import locked, read_json
from benchmark.tracking.provenance import manifest
from benchmark.tracking.recorder import SECONDS_BETWEEN_CHECKPOINTS, Recorder, run_folder
from benchmark.tracking.signals import Preempted, StopOnSignal


def run(
    experiment: Experiment,
    results: Path,
    *,
    data_root: Path | None = None,
    callbacks: Sequence[pl.Callback] = (),
    threads: int = 1,
    engine: str = "reference",
    workers: int | None = None,
    device: str | None = None,
    gpu_candidate: str = "measured",
    seconds_between: float = SECONDS_BETWEEN_CHECKPOINTS,
) -> dict[str, Any]:
    """Train the experiment, or go on where its last checkpoint is, and return the content of `result.json`.

    A finished run is not trained again. `threads` share each tensor operation; their number decides the order of
    additions, so a run that goes on keeps the number it began with. `engine`, `workers`, `device` and `gpu_candidate`:
    see `build_engine`; all engines but gpu give the same bits. `seconds_between` checkpoints: a run that is killed does
    so much again.

    Raises ConfigError and DataError before anything is written, CannotWrite, RunningElsewhere, Diverged (after the
    record says so) and Stopped (SIGTERM or Ctrl-C: the last finished round is on disk).
    """
    folder = run_folder(results, experiment)
    finished = read_json(folder / "result.json")
    if finished is not None:
        return finished
    stop = StopOnSignal()
    try:
        with stop.listening():
            keep_freed_memory()
            environment = prepare(experiment, data_root)
            with locked(folder):
                finished = read_json(folder / "result.json")  # another process may have been at it until now
                if finished is not None:
                    return finished
                recorder = Recorder(folder, experiment, seconds_between)
                start = recorder.checkpoint
                began_with = (read_json(folder / "manifest.json") or {}).get("engine", {}).get("threads", threads)
                torch.set_num_threads(began_with if start else threads)
                chosen = build_engine(
                    engine,
                    environment,
                    workers,
                    torch.get_num_threads(),
                    device=device,
                    gpu_candidate=gpu_candidate,
                )
                with contextlib.closing(chosen) as built:
                    recorder.open(manifest(environment, built))
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
    )
    diversity = GradientDiversity(every=experiment.evaluation.gradient_diversity_every)
    trainer = build_trainer([diversity, recorder.exchange, stop, recorder, *callbacks])
    try:
        try:
            fit(module, trainer)
        finally:
            recorder.chose(getattr(engine, "choices", {}))
    except Diverged as error:
        recorder.close("diverged", str(error))
        raise
    except BaseException:
        # Also a worker's end, where the signal went to the whole process group.
        if stop.asked is None:
            raise
        recorder.preempted(stop.asked.signal)
        where = f"{recorder.folder}: stopped by {stop.asked.signal} after round {recorder.rounds_done}"
        raise Stopped(f"{where}; the same command goes on from there") from None
    with stop.waiting():
        if module.rounds_done < experiment.federation.rounds:
            where = f"{recorder.folder}: stopped after round {module.rounds_done}"
            raise Stopped(f"{where}; the same command goes on from there")
        export(recorder.folder, module, recorder.last, recorder.best)
        return recorder.close("done")
