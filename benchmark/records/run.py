"""One run from an `Experiment` to its record: claimed, resumed, trained, written."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.errors import Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, from_record, to_json
from benchmark.federated import stopping
from benchmark.federated.engines import Engine, build_engine, check_engine, engine_again, processes_of
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.start import load_ahead
from benchmark.federated.trainer import build_trainer, fit
from benchmark.records import state as states
from benchmark.records.claim import PATIENCE, claimed, holder_of
from benchmark.records.cputime import CpuClock
from benchmark.records.export import export
from benchmark.records.files import read_json
from benchmark.records.provenance import manifest
from benchmark.records.record import measurements, read_result, run_folder
from benchmark.records.recorder import Recorder
from benchmark.records.state import RunState


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
    seconds_between: float | None = None,
    patience: float = PATIENCE,
    like: Mapping[str, Any] | None = None,
    begun_under: Callable[[], Mapping[str, Any]] = dict,
) -> dict[str, Any]:
    """Train the experiment, or go on where it was saved last, and return the content of `result.json`.

    A finished run is finished, and one that goes on measures as it began, whatever the experiment asks to be measured.

    `engine`, `workers`, `threads` and `device`: see `build_engine`. How many workers there are moves no bit; the rest
    does, so a run that goes on keeps what it began with. `seconds_between` saves: a run that is killed does so much
    again. `patience`: seconds without a sign of life after which a run that another machine, or a stopped process, is
    at is taken over. `like`: an engine's settings in a manifest, which take precedence over `engine`. `begun_under`:
    gives entries of the manifest, such as the claims that the run is to judge; asked when it begins.

    Raises ConfigError and DataError before anything is written, CannotWrite, RunningElsewhere (also where another
    process took the run over in the meantime), Diverged (after the record says so) and Stopped (SIGTERM, Ctrl-C: the
    last finished round is on disk).
    """
    check_engine(engine, workers, threads, device)
    folder, stop, clock = run_folder(results, experiment), stopping.StopOnSignal(), CpuClock()
    finished = read_result(folder)
    if finished is not None:
        _say_if_other(finished.get("measured"), experiment, folder)
        return finished
    experiment = _as_begun(experiment, folder)
    try:
        with stop.listening():
            keep_freed_memory()
            if who := holder_of(folder, patience):  # before time goes into data; `claimed` is what decides
                raise RunningElsewhere(f"{folder}: {who}; wait for it or stop it")
            if processes_of(engine, experiment, workers, threads, device) > 1:
                load_ahead()  # while data are prepared
            environment = prepare(experiment, data_root)
            with claimed(folder, patience=patience) as claim:
                finished = read_result(folder)  # another process may have been at it until now
                if finished is not None:
                    return finished
                found, warning = states.load(folder, f"{experiment.cell_key}/seed={experiment.seed}")
                if warning is not None:
                    print(f"fssl: warning: {warning}", file=sys.stderr)
                settings = (read_json(folder / "manifest.json") or {}).get("engine") if found else like
                if settings:
                    chosen = engine_again(settings, environment, workers, device=device)
                else:
                    chosen = build_engine(engine, environment, workers, threads, device=device)
                recorder = Recorder(claim, experiment, found, seconds_between, clock)
                with contextlib.closing(chosen):
                    recorder.begin({**manifest(environment, chosen), **begun_under()})
                    return _train(recorder, found, environment, chosen, [*callbacks], stop)
    except stopping.Preempted as preempted:
        raise Stopped(
            f"{folder}: stopped by {preempted.signal}; the same command goes on from the last finished round"
        ) from None


def _as_begun(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment as the unfinished run in the folder began with it: all of its rounds measure the same."""
    if not (folder / states.NAME).exists():
        return experiment
    try:
        begun = from_record(read_json(folder / "experiment.json") or to_json(experiment))
    except FsslError:  # damaged: it is written anew
        return experiment
    if begun.cell_key != experiment.cell_key or begun.seed != experiment.seed:
        return experiment
    _say_if_other(measurements(begun.evaluation), experiment, folder)
    return begun


def _say_if_other(measured: object, experiment: Experiment, folder: Path) -> None:
    if isinstance(measured, Mapping) and measured != (asked := measurements(experiment.evaluation)):
        words = [
            f"evaluation.{name} {measured[name]}, not {asked[name]}"
            for name in asked
            if measured.get(name, asked[name]) != asked[name]
        ]
        print(
            f"fssl: {folder}: measured with {', '.join(words)}; without this folder it is trained anew", file=sys.stderr
        )


def _train(
    recorder: Recorder,
    found: RunState | None,
    environment: Environment,
    engine: Engine,
    callbacks: Sequence[pl.Callback],
    stop: stopping.StopOnSignal,
) -> dict[str, Any]:
    """Rounds from the saved state, or from the first, to the end."""
    experiment = environment.experiment
    module = FederatedModule(
        environment, engine, state=found.state if found else None, rounds_done=found.round if found else 0
    )
    diversity = GradientDiversity(every=experiment.evaluation.gradient_diversity_every)
    trainer = build_trainer([diversity, recorder.exchange, stop, recorder, *callbacks])
    try:
        fit(module, trainer)
    except Diverged as error:
        recorder.publish("diverged", str(error))
        raise
    except BaseException:
        signal = stopping.asked()
        if signal is None:
            raise
        recorder.stopped_by(signal)  # also where a worker's end came first: the signal went to the whole group
        where = f"{recorder.folder}: stopped by {signal} after round {recorder.rounds_done}"
        raise Stopped(f"{where}; the same command goes on from there") from None
    if module.rounds_done < experiment.federation.rounds:
        raise Stopped(
            f"{recorder.folder}: stopped after round {module.rounds_done}; the same command goes on from there"
        )
    recorder.save()  # also a look at the claim
    export(recorder.folder, module)
    return recorder.publish("done")
