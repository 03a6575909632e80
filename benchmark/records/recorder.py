"""Write a run's folder: its start, its saved states, and once its result."""

import contextlib
import io
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from benchmark.diagnostics.communication import CommunicationSummary
from benchmark.diagnostics.own_measures import OwnMeasures
from benchmark.errors import CannotWrite, one_line
from benchmark.experiment import Experiment, to_json
from benchmark.failures import failure_of
from benchmark.federated.module import FederatedModule
from benchmark.files import json_bytes, put_once, remove_temporaries, replacing, write_atomically, write_json
from benchmark.methods.protocol import Weights
from benchmark.numerics import CURRENT, numerics_of
from benchmark.records import state
from benchmark.records.cpu_clock import Clock, CpuClock
from benchmark.records.fingerprint import INITIAL_WEIGHTS
from benchmark.records.identity import read_manifest
from benchmark.records.record import (
    FAILED,
    MEASURES,
    PROGRESS,
    RESULT,
    ROUNDS,
    json_lines,
    measurements,
    run_digest,
    run_name,
)
from benchmark.records.result import result_of
from benchmark.records.run_lock import RunLock, RunLockLost
from benchmark.records.state import RunState
from benchmark.records.wandb_mirror import agents_run

SECONDS_BETWEEN_SAVES = 2.0
# Share of the run time that saving may use; if a save needs more than a tenth of a second, saves are further apart.
MOST_OF_A_RUN = 0.05
ATTEMPT_ENTRIES = ("code", "packages", "hardware")  # of the manifest; they may change when a run resumes
# Of the manifest; a run that resumes keeps these from its beginning.
COMPUTED_FROM = ("data", "sources", INITIAL_WEIGHTS)
OLD_FILES = ("checkpoints", "leases", "attempts", "exchange.json")  # of an unfinished run of an older version
UNFINISHED_FILES = (state.NAME, PROGRESS, MEASURES, FAILED, "checkpoints")  # files that a finished run no longer needs


class Recorder(pl.Callback):
    """A callback that saves a run after its first round and then at intervals, and publishes its result.

    It checks its lock before each write, and raises RunLockLost if the lock is lost. Any method
    that writes raises CannotWrite.
    """

    def __init__(
        self, lock: RunLock, experiment: Experiment, resumed: RunState | None = None, clock: Clock | None = None
    ) -> None:
        """Create the recorder; `resumed` is the state that the run resumes from.

        `clock` runs since the run began, so that the first round's CPU time includes the
        preparation of the data.
        """
        self.folder, self.experiment, self._lock = lock.folder, experiment, lock
        self._state = resumed
        self._lines = list(resumed.lines) if resumed else []
        self.exchange = CommunicationSummary(resumed.exchange if resumed else None)  # a separate callback
        self.measures = OwnMeasures(resumed.measures if resumed else None)  # a separate callback
        self._saved = self.rounds_done  # the last round that is on disk
        self._next_save = 0.0  # the cost of saving, or its failure, shows after the first round
        self._round_started = time.monotonic()
        self._clock: Clock = clock or CpuClock()

    @property
    def rounds_done(self) -> int:
        """Return the number of the last finished round."""
        return len(self._lines)

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Write all that is known before the first round, and remove the files of an earlier
        attempt.
        """
        self._lock.check()
        remove_temporaries(self.folder)
        remove(self.folder, (FAILED,))
        if self._state is None:
            if any((self.folder / name).exists() for name in OLD_FILES):
                print(f"fssl: {self.folder}: an older version began this run; it starts from round 1", file=sys.stderr)
            remove(self.folder, (ROUNDS, *OLD_FILES))  # rounds without a state
        write_json(self.folder / "experiment.json", to_json(self.experiment))
        previous = read_manifest(self.folder)
        fixed = list(COMPUTED_FROM) if self._state is not None and previous else []
        if "claims" in previous:  # a run judges the claims that existed when it began, under the rule of that time
            fixed += ["claims", "rule"]
        kept = {name: previous[name] for name in fixed if name in previous}
        manifest = {name: value for name, value in manifest.items() if name not in fixed} | kept
        if self._state is not None and previous:  # rounds of an older version keep that version
            before = numerics_of(to_json(self.experiment), previous, self._metrics())
            manifest["numerics"] = {part: min(now, before[part]) for part, now in CURRENT.items()}
        attempt = {  # this process's part of the run; a run that resumed has several
            "from_round": self.rounds_done,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **{name: manifest.get(name) for name in ATTEMPT_ENTRIES},
            "after": self._lock.after,
            "wandb": agents_run(os.environ),
        }
        known = {name: value for name, value in attempt.items() if value is not None}
        attempts = [*previous.get("attempts", []), known]
        write_json(self.folder / "manifest.json", {**manifest, "attempts": attempts})
        self._write_progress()

    def _metrics(self) -> set[str]:
        """Return the names of the metrics that the finished rounds measured."""
        return {name for line in self._lines for name in json.loads(line)}

    def on_train_batch_start(self, *args: object) -> None:
        self._round_started = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        if self._state is None:  # checked in the first round of this process, because hours later it would be too late
            state.check_types(pl_module.state)
        self._lines.append(self._line(pl_module.rounds_done, pl_module.metrics, pl_module.server_seconds))
        self._state = RunState(
            state=pl_module.state,
            lines=tuple(self._lines),
            measured=measurements(self.experiment.evaluation),
            exchange=self.exchange.summary(),
            measures=self.measures.summary(),
            downloaded=dict(pl_module.downloaded),
        )
        self.save_when_due()

    def _line(self, round_number: int, metrics: Mapping[str, float], server_seconds: float) -> str:
        line = {
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "round": round_number,
            **{name: metrics[name] for name in sorted(metrics) if math.isfinite(metrics[name])},
            "time/round_seconds": round(time.monotonic() - self._round_started, 6),
            "time/server_seconds": round(server_seconds, 6),
            # Since the previous line, including the time between rounds.
            "time/cpu_seconds": round(self._clock.lap(), 3),
        }
        return json.dumps(line, allow_nan=False) + "\n"

    def save_when_due(self) -> None:
        """Save if enough time has passed, so that saving uses at most `MOST_OF_A_RUN` of the run time."""
        if time.monotonic() >= self._next_save:
            self.save()

    def save(self) -> None:
        """Save the last finished round, unless it is already saved."""
        self._lock.check()
        if self._state is None or self._state.round == self._saved:
            return
        started = time.monotonic()
        state.save(self.folder, self._state, run_name(self.experiment), self._lock.check)
        self._write_progress()
        ended = time.monotonic()
        self._saved = self._state.round
        self._next_save = ended + max(SECONDS_BETWEEN_SAVES, (ended - started) / MOST_OF_A_RUN)

    def note_failure(self, error: Exception) -> None:
        """Write down how the attempt failed, for `fssl status`, unless the folder cannot be written any more."""
        failure = failure_of(error)
        text = failure.line() if failure is not None else f"{type(error).__name__}: {one_line(error)}"
        with contextlib.suppress(CannotWrite, RunLockLost):
            self._lock.check()
            write_json(self.folder / FAILED, {"error": text})

    def publish(
        self, status: str, models: Mapping[str, Weights] | None = None, error: str | None = None
    ) -> dict[str, Any]:
        """Write the weights, `rounds.jsonl` and `result.json`, and return the result.

        If a different process was faster, its rounds and its result stay and are returned. Remove
        the files that only an unfinished run needs.
        """
        self._lock.check()
        for name, weights in (models or {}).items():
            _export(self.folder, name, weights)
        rounds = put_once(self.folder / ROUNDS, "".join(self._lines).encode())
        result = result_of(
            self.experiment,
            json_lines(rounds, self.folder / ROUNDS),
            status=status,
            exchange=self.exchange.summary(),
            measures=self.measures.summary(),
            cpu_seconds_after=self._clock.lap(),
            error=error,
        )
        result["digest"] = run_digest(self.folder, result)
        self._lock.check()
        published: dict[str, Any] = json.loads(put_once(self.folder / RESULT, json_bytes(result)))
        remove(self.folder, UNFINISHED_FILES)
        return published

    def _write_progress(self) -> None:
        with replacing(self.folder / PROGRESS, self._lock.check) as file:
            file.write("".join(self._lines).encode())
        if measured := self.measures.summary():
            write_json(self.folder / MEASURES, measured)


def _export(folder: Path, name: str, weights: Mapping[str, Tensor]) -> None:
    """Write a model for other uses: `weights/<name>.pt`, a plain state dict. Raise CannotWrite."""
    if not name or name.startswith(".") or Path(name).name != name:
        raise CannotWrite(f"the method calls a model {name!r}, which cannot be a file name; use letters and digits")
    buffer = io.BytesIO()
    # A copy in the usual memory format, so that a user of the file need not know that training is channels last.
    torch.save({tensor: value.cpu().contiguous().clone() for tensor, value in weights.items()}, buffer)
    write_atomically(folder / "weights" / f"{name}.pt", buffer.getbuffer())


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove these files and folders. Raise OSError."""
    for path in (folder / name for name in names):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
