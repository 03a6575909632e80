"""One run from an `Experiment` to its record: claimed, resumed, trained, written."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
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
from benchmark.tracking.files import locked, read_json
from benchmark.tracking.provenance import manifest
from benchmark.tracking.recorder import Recorder, run_folder


def run(
    experiment: Experiment,
    results: Path,
    *,
    data_root: Path | None = None,
    callbacks: Sequence[pl.Callback] = (),
    threads: int = 1,
    engine: str = "reference",
    workers: int | None = None,
) -> dict[str, Any]:
    """Train the experiment, or go on where its last checkpoint is, and return the content of `result.json`.

    A finished run is not trained again. `threads` share each tensor operation; their number decides the order of
    additions, so a run that goes on keeps the number it began with. `engine` and `workers`: see `build_engine`; both
    engines give the same bits.

    Raises ConfigError and DataError before anything is written, CannotWrite, RunningElsewhere, Diverged (after the
    record says so) and Stopped (after a checkpoint).
    """
    folder = run_folder(results, experiment)
    finished = read_json(folder / "result.json")
    if finished is not None:
        return finished
    keep_freed_memory()
    environment = prepare(experiment, data_root)
    with locked(folder):
        recorder = Recorder(folder, experiment)
        start = recorder.checkpoint
        began_with = (read_json(folder / "manifest.json") or {}).get("engine", {}).get("threads", threads)
        torch.set_num_threads(began_with if start else threads)
        with contextlib.closing(build_engine(engine, environment, workers, torch.get_num_threads())) as built:
            recorder.open(manifest(environment, built))
            return _train(recorder, environment, built, callbacks)


def _train(
    recorder: Recorder, environment: Environment, engine: Engine, callbacks: Sequence[pl.Callback]
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
    stop = StopOnSignal()
    trainer = build_trainer([diversity, recorder.exchange, stop, recorder, *callbacks])
    try:
        with stop.listening():
            fit(module, trainer)
    except Diverged as error:
        recorder.close("diverged", str(error))
        raise
    if module.rounds_done < experiment.federation.rounds:
        where = f"{recorder.folder}: stopped after round {module.rounds_done}"
        raise Stopped(f"{where}; the same command goes on from there")
    return recorder.close("done")


class StopOnSignal(pl.Callback):
    """Ctrl-C and SIGTERM end the run after the round in progress, with a checkpoint; a second Ctrl-C at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning puts its own handlers in place when fitting starts: ours come after."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        if self.asked:
            trainer.should_stop = True
