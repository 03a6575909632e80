"""One run from an `Experiment` to its record: claimed, resumed, trained, written."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.errors import ConfigError, DataError, Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, from_record, to_json
from benchmark.federated.engines import Engine, build_engine, check_engine, engine_again, processes_of
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.start import load_ahead
from benchmark.federated.store import MEMORY
from benchmark.federated.trainer import build_trainer, fit
from benchmark.records.cputime import CpuClock
from benchmark.records.export import export
from benchmark.records.files import read_json
from benchmark.records.lease import PATIENCE, claimed, is_held
from benchmark.records.provenance import equal_bits_expected, manifest
from benchmark.records.record import FINISHED, RunRecord, covers, disagreement, read_result, read_run, run_folder
from benchmark.records.recorder import SECONDS_BETWEEN_CHECKPOINTS, Recorder
from benchmark.records.signals import Preempted, StopOnSignal

AGAIN = "again"  # in results: runs that are trained again to measure more


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
    seconds_between: float = SECONDS_BETWEEN_CHECKPOINTS,
    patience: float = PATIENCE,
    client_memory: int = MEMORY,
    like: Mapping[str, Any] | None = None,
    begun_under: Callable[[], Mapping[str, Any]] = dict,
) -> dict[str, Any]:
    """Train the experiment, or go on where its last checkpoint is, and return the content of `result.json`.

    A finished run is not trained again, unless more is to be measured than it has (`record.covers`): then it is trained
    beside its record, with the measurements of both, and replaces it where all numbers that both have are equal: bit by
    bit on an equal engine and machine, else to six digits. An unfinished one that measured less begins anew.

    `engine`, `workers`, `threads` and `device`: see `build_engine`. How many workers there are moves
    no bit; the rest does, so a run that goes on keeps what it began with. `seconds_between` checkpoints: a run that is
    killed does so much again. `patience`: seconds without a sign of life after which a run that another machine, or a
    stopped process, is at is taken over. `client_memory`: bytes of what clients keep between rounds that stay in
    memory, beside the state of the round's clients; the rest lies in files beside the checkpoints. It moves no bit.
    `like`: an engine's settings in a manifest; where that engine is still there, it goes before `engine`.
    `begun_under`: gives entries of the manifest, such as the claims that the run is to judge; asked when it begins.

    Raises ConfigError and DataError before anything is written, DataError for a run that was trained again and gave
    other numbers (both records are kept), CannotWrite, RunningElsewhere (also where another
    process took the run over in the meantime), Diverged (after the record says so) and Stopped (SIGTERM, Ctrl-C: the
    last finished round is on disk).
    """
    check_engine(engine, workers, threads, device)

    def train(experiment: Experiment, folder: Path, like: Mapping[str, Any] | None = like) -> dict[str, Any]:
        """The run in this folder; a finished one is left as it is, whatever it measures."""
        finished = read_result(folder)
        if finished is not None:
            return finished
        experiment = _as_begun(experiment, folder)
        stop, clock = StopOnSignal(), CpuClock()
        try:
            with stop.listening():
                keep_freed_memory()
                if is_held(folder, patience):  # told before time goes into data; `claimed` is what decides
                    raise RunningElsewhere(f"{folder}: another process is at this run; wait for it or stop it")
                if processes_of(engine, experiment, workers, threads, device) > 1:
                    load_ahead()  # beside the preparing of data
                environment = prepare(experiment, data_root)
                with claimed(folder, patience=patience) as lease:
                    finished = read_result(folder)  # another process may have been at it until now
                    if finished is not None:
                        return finished
                    recorder = Recorder(lease, experiment, seconds_between, clock, client_memory)
                    chosen = _engine_of(recorder, environment, workers, like, device=device)
                    if chosen is None:
                        chosen = build_engine(engine, environment, workers, threads, device=device)
                    entries = {**manifest(environment, chosen), **begun_under()}
                    with contextlib.closing(chosen), recorder.opened(entries):
                        return _train(recorder, environment, chosen, [*callbacks], stop)
        except Preempted as preempted:
            raise Stopped(
                f"{folder}: stopped by {preempted.signal}; the same command goes on from the last finished round"
            ) from None

    folder, beside = run_folder(results, experiment), run_folder(results / AGAIN, experiment)
    if not folder.exists() and (beside / "result.json").exists():  # killed between the two renames of `_measured_again`
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.rename(beside, folder)
    record = read_run(folder) if (folder / "result.json").exists() else None
    if record is None or record.status not in FINISHED or covers(record, experiment):
        return train(experiment, folder)
    return _measured_again(record, experiment, folder, beside, train)


def _engine_of(
    recorder: Recorder,
    environment: Environment,
    workers: int | None,
    like: Mapping[str, Any] | None,
    *,
    device: str | None,
) -> Engine | None:
    """The engine that the run began with; else one of the settings `like`, where it is still there; else None."""
    began_with = (read_json(recorder.folder / "manifest.json") or {}).get("engine") if recorder.checkpoint else None
    if began_with:
        return engine_again(began_with, environment, workers, device=device)
    if like:
        with contextlib.suppress(ConfigError):
            return engine_again(like, environment, workers, device=device)
    return None


def _measured_again(
    record: RunRecord, experiment: Experiment, folder: Path, beside: Path, train: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """Train a finished run once more in the folder `beside`, and put that in its place. Raises DataError."""
    more = experiment.measuring_also(from_record(record.experiment))
    earlier = read_run(beside)
    if earlier is not None and earlier.result and not covers(earlier, more):
        shutil.rmtree(beside)  # of an earlier call that asked for less
    print(f"fssl: {folder}: more is to be measured than it has; it is trained again beside it", file=sys.stderr)
    with contextlib.suppress(Diverged):  # its record says so, too
        train(more, beside, like=record.manifest.get("engine"))
    with claimed(folder):
        before, now = read_run(folder), read_run(beside)
        if before is None or now is None:
            raise RunningElsewhere(f"{folder}: another process has just replaced this record; call the command again")
        exact = equal_bits_expected(before.manifest, now.manifest)
        why = disagreement(before, now, exact=exact)
        if why is not None:
            to = "bit by bit" if exact else "to six digits"
            raise DataError(
                f"{folder}: trained again to measure more, and not equal {to} ({why}); both are kept, the new one in "
                f"{beside}: remove the one that is wrong"
            )
        replaced = beside.with_name(f"{beside.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(folder, replaced)
        with contextlib.suppress(FileNotFoundError):  # who saw no folder in that moment has moved it there
            os.rename(beside, folder)
        shutil.rmtree(replaced, ignore_errors=True)
    return dict(now.result)


def _as_begun(experiment: Experiment, folder: Path) -> Experiment:
    """With the measurements that the unfinished run in the folder began with, too."""
    try:
        return experiment.measuring_also(from_record(read_json(folder / "experiment.json") or to_json(experiment)))
    except FsslError:  # damaged: it is written anew
        return experiment


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
        export(recorder.folder, module)
        return recorder.close("done")
