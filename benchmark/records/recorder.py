"""The record of a run on disk: one self-describing line a round, checkpoints, and the result, written last."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytorch_lightning as pl

from benchmark.diagnostics.exchange import Exchange
from benchmark.errors import CannotWrite, DataError
from benchmark.experiment import NUMERICS, Experiment, to_json
from benchmark.federated.module import FederatedModule
from benchmark.federated.store import MEMORY, ClientStore
from benchmark.records.checkpoints import Checkpoint, Found, drop, newest, save
from benchmark.records.client_files import FOLDER as CLIENTS
from benchmark.records.client_files import ClientFiles
from benchmark.records.cputime import CpuClock
from benchmark.records.files import (
    cannot_write,
    json_bytes,
    read_json,
    remove_temporaries,
    write_atomically,
    write_json,
)
from benchmark.records.lease import Lease, LeaseLost
from benchmark.records.record import fall_of, measurements, read_rounds, run_digest
from benchmark.records.wandb_mirror import agents_run

SECONDS_BETWEEN_CHECKPOINTS = 20.0
MOST_OF_A_RUN = 0.02  # that checkpoints may take: where one takes longer than 0.4 s, they are further apart


class Recorder(pl.Callback):
    """Writes `rounds.jsonl` as rounds end, and checkpoints by the clock, at the end, and when the run is broken off.

    Its folder has to be held: what a killed process left half written there is removed, and whatever is written comes
    after a look at the lease. Raises ConfigError for checkpoints of another run, LeaseLost from any method that writes.
    `clock`: runs since the run was begun, so that the first round's CPU time holds what went into the data.
    """

    def __init__(
        self,
        lease: Lease,
        experiment: Experiment,
        seconds_between: float = SECONDS_BETWEEN_CHECKPOINTS,
        clock: CpuClock | None = None,
        client_memory: int = MEMORY,
    ) -> None:
        folder = lease.folder
        self.folder, self.experiment, self._lease = folder, experiment, lease
        self._lines: BinaryIO | None = None  # rounds.jsonl, while the record is `opened`
        self._size = 0  # bytes of its whole lines
        self.run = f"{experiment.cell_key}/seed={experiment.seed}"
        lease.check()
        remove_temporaries(folder)
        begun = read_json(folder / "experiment.json")
        recorded = len(_whole_lines(folder / "rounds.jsonl"))
        found = newest(folder / "checkpoints", self.run, recorded, memory=client_memory, attempt=lease.attempt)
        if begun is not None and not _measures_alike(begun, experiment):
            found = Found(checkpoint=None, warnings=("more is to be measured now: the run starts from round 1",))
        shelf = ClientFiles(folder=folder / "checkpoints" / CLIENTS, run=self.run, attempt=lease.attempt)
        self.store = ClientStore(shelf=shelf, memory=client_memory)  # for a run that starts from round 1
        self.checkpoint, self.warnings = found.checkpoint, found.warnings
        self.best = self.checkpoint.best if self.checkpoint else None
        self.last: dict[str, float] = dict(self.checkpoint.last) if self.checkpoint else {}
        self.exchange = _exchange(folder, self.checkpoint)  # a callback of its own, beside this one
        self._seconds_between, self._saving_took = seconds_between, 0.0
        self._finished = self.checkpoint  # the last round that has its line
        self._saved = self.rounds_done  # the last round that is on disk
        self._saved_at = self._round_started = time.monotonic()
        self._clock = clock or CpuClock()

    def check(self) -> None:
        """Raises LeaseLost where another process has taken the run over."""
        self._lease.check()

    @contextlib.contextmanager
    def opened(self, manifest: dict[str, Any]) -> Iterator[None]:
        """Write what is known before the first round; move lines of rounds that have to be done again aside. Inside,
        rounds can be recorded."""
        self._begin(manifest)
        with open(self.folder / "rounds.jsonl", "ab", buffering=0) as self._lines:
            self._size = self._lines.tell()
            yield

    def _begin(self, manifest: dict[str, Any]) -> None:
        self._lease.check()
        for warning in self.warnings:
            print(f"fssl: warning: {self.folder / 'checkpoints'}: {warning}", file=sys.stderr)
        write_json(self.folder / "experiment.json", to_json(self.experiment))
        attempt: dict[str, Any] = {"from_round": self.rounds_done, "started": _now()}
        if self._lease.after is not None:
            attempt["after"] = self._lease.after
        if (mirrored := agents_run(os.environ)) is not None:
            attempt["wandb"] = mirrored
        if self.warnings:
            attempt["warnings"] = list(self.warnings)
        previous = read_json(self.folder / "manifest.json") or {}
        if "claims" in previous:  # those, and the rule, that it was begun under
            manifest = {name: value for name, value in manifest.items() if name != "rule"}
            manifest |= {name: previous[name] for name in ("claims", "rule") if name in previous}
        attempts = [*previous.get("attempts", []), attempt]
        write_json(self.folder / "manifest.json", {**manifest, "attempts": attempts})
        self._lease.check()
        self._set_aside()
        if self.checkpoint is None:  # one of an earlier attempt, which measured less, would be gone on from later
            drop(self.folder / "checkpoints", self._lease.attempt)

    def preempted(self, signal: str) -> None:
        """Note in the manifest that this attempt was ended from outside."""
        self._lease.check()
        manifest = read_json(self.folder / "manifest.json")
        manifest["attempts"][-1]["stopped"] = {"by": signal, "after_round": self.rounds_done, "at": _now()}
        write_json(self.folder / "manifest.json", manifest)

    @property
    def rounds_done(self) -> int:
        """The last round that is finished and recorded."""
        return self._finished.round if self._finished else 0

    def _set_aside(self) -> None:
        path = self.folder / "rounds.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        kept = lines[: self.rounds_done]
        if len(kept) < len(lines):
            number = len(list((self.folder / "attempts").glob("*.jsonl"))) + 1
            write_atomically(self.folder / "attempts" / f"{number}.jsonl", b"".join(lines[len(kept) :]))
        if path.exists():  # a new file, also where nothing is cut: a process that is woken later has the old one open
            write_atomically(path, b"".join(kept), anew=True)

    def on_train_batch_start(self, *args: object) -> None:
        self._round_started = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        metrics = {name: value for name, value in pl_module.metrics.items() if math.isfinite(value)}
        self.last.update(metrics)
        self._note_best(pl_module.rounds_done, metrics)
        self._append(pl_module.rounds_done, metrics)
        self._finished = Checkpoint(
            round=pl_module.rounds_done,
            state=pl_module.state,
            best=self.best,
            last=dict(self.last),
            exchange=self.exchange.summary(),
        )
        self.save_when_due()

    def on_train_end(self, *args: object) -> None:
        self.save()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Whatever ended the run, what is finished is kept; where that fails, too, the first reason counts."""
        with contextlib.suppress(CannotWrite, LeaseLost):
            self.save()

    def _append(self, round_number: int, metrics: dict[str, float]) -> None:
        line = {
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "round": round_number,
            **dict(sorted(metrics.items())),
            "time/round_seconds": round(time.monotonic() - self._round_started, 6),
            "time/cpu_seconds": round(self._clock.lap(), 3),  # since the line before: with what is between rounds
        }
        assert self._lines is not None  # `opened` comes first
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        self._lease.check()
        path = self.folder / "rounds.jsonl"
        try:
            written = self._lines.write(data)
            while written < len(data):  # the disk was full for a moment, or is
                written += self._lines.write(data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # no half of a line stays for the next one to be glued to
                self._lines.truncate(self._size)
            raise cannot_write(path, error) from None
        self._size += len(data)

    def _note_best(self, round_number: int, metrics: dict[str, float]) -> None:
        for name in ("test/accuracy", "validation/accuracy"):
            if name in metrics and (self.best is None or metrics[name] > self.best[name]):
                measured = {key: value for key, value in metrics.items() if key.split("/")[0] == name.split("/")[0]}
                self.best = {"round": round_number, **measured}

    def save_when_due(self) -> None:
        """By the clock, and so far apart that saving takes no more than `MOST_OF_A_RUN`."""
        wait = max(self._seconds_between, self._saving_took / MOST_OF_A_RUN)
        if time.monotonic() - self._saved_at >= wait:
            self.save()

    def save(self) -> None:
        """Put the last finished round on disk, if it is not there."""
        if self._finished is None or self._finished.round == self._saved:
            return
        assert self._lines is not None
        self._lease.check()
        started = time.monotonic()
        try:
            os.fsync(self._lines.fileno())  # its lines first: a checkpoint never knows more rounds than they
        except OSError as error:
            raise cannot_write(self.folder / "rounds.jsonl", error) from None
        save(self.folder / "checkpoints", self._finished, self.run, self._lease.attempt)
        self._saved, self._saved_at = self._finished.round, time.monotonic()
        self._saving_took = self._saved_at - started

    def close(self, status: str, error: str | None = None) -> dict[str, Any]:
        """Publish and return `result.json`: the run's last act."""
        rounds = read_rounds(self.folder / "rounds.jsonl")
        result = {
            "status": status,
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "profile": self.experiment.profile,
            "numerics": NUMERICS,
            "rounds": len(rounds),
            "selection": self.experiment.evaluation.selection,
            "measured": measurements(self.experiment.evaluation),
            "last": dict(sorted(self.last.items())),
            "best": self.best,
            **({"fall": fall} if (fall := fall_of(rounds)) else {}),
            "cost": {
                "local_steps": sum(line.get("local_steps", 0) for line in rounds),
                "bytes_up": sum(line.get("comm/bytes_up", 0) for line in rounds),
                "bytes_down": sum(line.get("comm/bytes_down", 0) for line in rounds),
            },
            "exchange": self.exchange.summary(),
            "wall_seconds": round(sum(line["time/round_seconds"] for line in rounds), 3),
            "cpu_seconds": round(sum(line.get("time/cpu_seconds", 0.0) for line in rounds) + self._clock.lap(), 3),
            **({"error": error} if error else {}),
        }
        result["digest"] = run_digest(self.folder, result)
        self._lease.publish(json_bytes(result))
        return result


def _exchange(folder: Path, checkpoint: Checkpoint | None) -> Exchange:
    """With what was seen up to the checkpoint. Raises DataError."""
    if checkpoint is None:
        return Exchange()
    path = folder / "exchange.json"  # of older versions, whose checkpoints have none
    before = checkpoint.exchange if checkpoint.exchange is not None else read_json(path)
    try:
        return Exchange(before)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is damaged ({error!r}); without this run's folder it is trained anew") from None


def _measures_alike(begun: Any, experiment: Experiment) -> bool:
    """Whether the rounds of an unfinished run measured what this experiment does."""
    there = begun.get("evaluation", {}) if isinstance(begun, dict) else {}
    return isinstance(there, dict) and measurements(experiment.evaluation).items() <= there.items()


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of rounds 1, 2, 3 ... up to the first that is missing or damaged."""
    whole: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            if not line.endswith(b"\n") or json.loads(line)["round"] != len(whole) + 1:
                break
        except (ValueError, LookupError, TypeError):
            break
        whole.append(line)
    return whole


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
