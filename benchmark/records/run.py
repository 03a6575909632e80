"""Run an `Experiment` until its record is complete: lock, resume, train, publish."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.errors import CannotWrite, DataError, Diverged, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, to_json
from benchmark.federated import stopping
from benchmark.federated.engines import Engine, EngineOptions, build_engine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule, fit
from benchmark.federated.processes import load_ahead
from benchmark.federated.stacked.together import Seat
from benchmark.models.build import network_class
from benchmark.records import state
from benchmark.records.cpu_clock import CpuClock
from benchmark.records.fingerprint import INITIAL_WEIGHTS, initial_weights
from benchmark.records.identity import look_again, read_manifest, seed_folder, why_apart
from benchmark.records.provenance import manifest
from benchmark.records.record import measurements, read_result, run_name
from benchmark.records.recorder import UNFINISHED_FILES, Recorder, remove
from benchmark.records.run_lock import PATIENCE, RunLockLost, locked, refuse_if_held
from benchmark.records.sources import all_sources
from benchmark.records.state import RunState

GOES_ON = "the same command resumes it"
REFERENCE = EngineOptions()
# Errors after which a run is not "failed": it has a result, was stopped, or depends on another process or the disk.
NOT_FAILURES = (Diverged, Stopped, stopping.Preempted, RunningElsewhere, CannotWrite)


def run(
    experiment: Experiment,
    results: Path,
    *,
    callbacks: Sequence[pl.Callback] = (),
    engine: EngineOptions = REFERENCE,
    patience: float = PATIENCE,
    begun_under: Callable[[], Mapping[str, Any]] = dict,
    seat: Seat | None = None,
) -> dict[str, Any]:
    """Train the experiment, or resume it from its last saved round, and return the content of `result.json`.

    A finished run is not trained again, unless its data or the user's custom code have changed.
    Then it is trained in a separate folder (`identity`), with a line on standard error.

    A run that resumes keeps its first engine, except for the number of workers, which changes no
    bit. `patience` is the number of seconds without a heartbeat after which a run is taken over
    from a process that may still exist. `begun_under` returns entries of the manifest, such as the
    claims that the run will judge; it is called when the run begins. `seat` is given for a run that
    trains together with other runs of its cell, in a separate thread.

    Raise ConfigError and DataError before anything is written; CannotWrite; RunningElsewhere, also
    if another process took the run over in the meantime; Diverged, after this is recorded; and
    Stopped for SIGTERM or Ctrl-C, with the last finished round saved.
    """
    # Imports a custom network, because unpickling in a worker only imports the method.
    network_class(experiment.model.network)
    here = to_json(experiment)
    runs = results / "runs" / experiment.cell_key
    look_again()
    folder = seed_folder(runs, here)
    if reason := why_apart(folder, here):
        print(f"fssl: {reason}", file=sys.stderr)
    if (finished := _finished(folder)) is not None:
        return finished
    refuse_if_held(folder, patience)  # before time is spent on data; `locked` makes the final decision
    stop = stopping.StopOnSignal()
    clock = seat or CpuClock()
    try:
        with stop.listening():
            keep_freed_memory()
            if engine.processes(experiment) > 1:  # raises ConfigError if the devices do not suit the experiment
                load_ahead()  # in the background, while data are prepared
            computed_from = {"sources": all_sources(here), INITIAL_WEIGHTS: initial_weights(here)}
            environment = prepare(experiment) if seat is None else seat.prepare(experiment)
            with locked(folder, patience=patience) as lock:
                if seed_folder(runs, here) != folder:
                    raise RunningElsewhere(f"another process began {folder} on different data or code; call again")
                if (finished := _finished(folder)) is not None:  # by another process, which had the lock until now
                    return finished
                resumed = _resumed(folder, experiment)
                if resumed:
                    engine = engine.as_recorded(read_manifest(folder))
                chosen = build_engine(engine, environment, seat)
                recorder = Recorder(lock, experiment, resumed, clock)
                with contextlib.closing(chosen):
                    recorder.begin({**manifest(environment, chosen), **computed_from, **begun_under()})
                    with _failure_noted(recorder):
                        module = _module(environment, chosen, resumed, recorder.rounds_done)
                        return _train(module, recorder, stop, callbacks)
    except stopping.Preempted as preempted:
        raise Stopped(f"{folder}: stopped by {preempted.signal}; {GOES_ON}") from None


def _finished(folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, or None if it is not finished. Remove a state that a
    killed process left.
    """
    result = read_result(folder)
    if result is not None:
        with contextlib.suppress(OSError):
            remove(folder, UNFINISHED_FILES)
    return result


def _resumed(folder: Path, experiment: Experiment) -> RunState | None:
    """Return the state to resume from, or None, with a warning, if there is no usable one."""
    measured = measurements(experiment.evaluation)
    try:
        saved = state.load(folder, run_name(experiment))
        if saved is None or saved.measured == measured:
            return saved
        reason = f"{folder} was measured with {saved.measured} until now, not with {measured}"
    except DataError as error:
        reason = str(error)
    print(f"fssl: warning: {reason}; the run starts from round 1", file=sys.stderr)
    return None


@contextlib.contextmanager
def _failure_noted(recorder: Recorder) -> Iterator[None]:
    """Note an error in the run's folder, for `fssl status`, if the run has failed with it."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, NOT_FAILURES):
            recorder.note_failure(error)
        raise


def _module(environment: Environment, engine: Engine, resumed: RunState | None, rounds_done: int) -> FederatedModule:
    if resumed is None:
        return FederatedModule(environment, engine, None, rounds_done, None)
    return FederatedModule(environment, engine, resumed.state, rounds_done, resumed.downloaded)


def _train(
    module: FederatedModule, recorder: Recorder, stop: stopping.StopOnSignal, callbacks: Sequence[pl.Callback]
) -> dict[str, Any]:
    """Train the remaining rounds and return the result. However training ends, the last finished round is saved."""
    diversity = GradientDiversity(every=module.experiment.evaluation.gradient_diversity_every)
    try:
        fit(module, [diversity, recorder.exchange, recorder.measures, stop, recorder, *callbacks])
        if len(module.remaining_rounds()):  # a callback has ended it
            raise Stopped(f"{recorder.folder}: stopped after round {module.rounds_done}; {GOES_ON}")
        models = {name: module.environment.whole(weights) for name, weights in module.models().items()}
        return recorder.publish("done", models)
    except Diverged as error:
        recorder.publish("diverged", error=str(error))
        raise
    except BaseException:
        signal = stopping.received()  # also if a worker ended first, because the signal went to the whole process group
        with contextlib.suppress(*(() if signal else (CannotWrite, RunLockLost))):  # only the first error is reported
            recorder.save()
        if signal is None:
            raise
        where = f"{recorder.folder}: stopped by {signal} after round {recorder.rounds_done}"
        raise Stopped(f"{where}; {GOES_ON}") from None
