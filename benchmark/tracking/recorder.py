"""The record of a run on disk: one self-describing line a round, checkpoints, and the result, written last."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.exchange import Exchange
from benchmark.errors import CannotWrite
from benchmark.experiment import NUMERICS, Experiment, to_json
from benchmark.federated.module import FederatedModule
from benchmark.tracking.checkpoints import Checkpoint, newest, save
from benchmark.tracking.files import read_json, write_atomically, write_json
from benchmark.tracking.reading import read_rounds

SECONDS_BETWEEN_CHECKPOINTS = 20.0


def run_folder(results: Path, experiment: Experiment) -> Path:
    return results / "runs" / experiment.cell_key / f"seed={experiment.seed}"


class Recorder(pl.Callback):
    """Writes `rounds.jsonl` as rounds end, and checkpoints by the clock, at the end and when asked to stop."""

    def __init__(self, folder: Path, experiment: Experiment, seconds_between: float = SECONDS_BETWEEN_CHECKPOINTS):
        self.folder, self.experiment = folder, experiment
        self.run = f"{experiment.cell_key}/seed={experiment.seed}"
        self.checkpoint = newest(folder / "checkpoints", self.run)
        self.best = self.checkpoint.best if self.checkpoint else None
        self.last: dict[str, float] = dict(self.checkpoint.last) if self.checkpoint else {}
        self.exchange = Exchange(read_json(folder / "exchange.json"))  # a callback of its own, beside this one
        self._seconds_between = seconds_between
        self._saved_at = self._round_started = time.monotonic()

    def open(self, manifest: dict[str, Any]) -> None:
        """Write what is known before the first round; move lines of rounds that have to be done again aside."""
        write_json(self.folder / "experiment.json", to_json(self.experiment))
        previous = read_json(self.folder / "manifest.json") or {}
        attempts = [*previous.get("attempts", []), {"from_round": self._done(), "started": _now()}]
        write_json(self.folder / "manifest.json", {**manifest, "attempts": attempts})
        self._set_aside()

    def _done(self) -> int:
        return self.checkpoint.round if self.checkpoint else 0

    def _set_aside(self) -> None:
        path = self.folder / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["round"] <= self._done()]
        if len(kept) < len(lines):
            number = len(list((self.folder / "attempts").glob("*.jsonl"))) + 1
            write_atomically(self.folder / "attempts" / f"{number}.jsonl", "".join(lines[len(kept) :]).encode())
            write_atomically(path, "".join(kept).encode())

    def on_train_batch_start(self, *args: object) -> None:
        self._round_started = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        metrics = {name: value for name, value in pl_module.metrics.items() if math.isfinite(value)}
        self.last.update(metrics)
        self._note_best(pl_module.rounds_done, metrics)
        self._append(pl_module.rounds_done, metrics)
        due = time.monotonic() - self._saved_at > self._seconds_between
        if due or trainer.should_stop or pl_module.rounds_done == self.experiment.federation.rounds:
            self.save(pl_module)

    def _append(self, round_number: int, metrics: dict[str, float]) -> None:
        line = {
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "round": round_number,
            **dict(sorted(metrics.items())),
            "time/round_seconds": round(time.monotonic() - self._round_started, 6),
        }
        try:
            with open(self.folder / "rounds.jsonl", "a") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
                file.flush()
        except OSError as error:
            raise CannotWrite(f"{self.folder / 'rounds.jsonl'}: {error.strerror}") from None

    def _note_best(self, round_number: int, metrics: dict[str, float]) -> None:
        for name in ("test/accuracy", "validation/accuracy"):
            if name in metrics and (self.best is None or metrics[name] > self.best[name]):
                measured = {key: value for key, value in metrics.items() if key.split("/")[0] == name.split("/")[0]}
                self.best = {"round": round_number, **measured}

    def save(self, module: FederatedModule) -> None:
        write_json(self.folder / "exchange.json", self.exchange.summary())
        checkpoint = Checkpoint(round=module.rounds_done, state=module.state, best=self.best, last=self.last)
        save(self.folder / "checkpoints", checkpoint, self.run)
        self._saved_at = time.monotonic()

    def close(self, status: str, error: str | None = None) -> dict[str, Any]:
        """Write and return `result.json`: the run's last act."""
        rounds = read_rounds(self.folder / "rounds.jsonl")
        result = {
            "status": status,
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "profile": self.experiment.profile,
            "numerics": NUMERICS,
            "rounds": len(rounds),
            "selection": self.experiment.evaluation.selection,
            "last": dict(sorted(self.last.items())),
            "best": self.best,
            "cost": {
                "local_steps": sum(line.get("local_steps", 0) for line in rounds),
                "bytes_up": sum(line.get("comm/bytes_up", 0) for line in rounds),
                "bytes_down": sum(line.get("comm/bytes_down", 0) for line in rounds),
            },
            "exchange": self.exchange.summary(),
            "wall_seconds": round(sum(line["time/round_seconds"] for line in rounds), 3),
            **({"error": error} if error else {}),
        }
        write_json(self.folder / "result.json", result)
        return result


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
