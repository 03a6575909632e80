"""The record of a run while it is made: saves as rounds end, and the result, which is put in place once."""

import contextlib
import json
import math
import os
import shutil
import sys
import time
from typing import Any

import pytorch_lightning as pl

from benchmark.diagnostics.exchange import Exchange
from benchmark.errors import CannotWrite
from benchmark.experiment import NUMERICS, Experiment, to_json
from benchmark.federated.module import FederatedModule
from benchmark.records import state as states
from benchmark.records.claim import Claim, ClaimLost
from benchmark.records.cputime import CpuClock
from benchmark.records.fall import fall_of
from benchmark.records.files import json_bytes, put_once, read_json, remove_temporaries, replacing, write_json
from benchmark.records.record import PROGRESS, RESULT, ROUNDS, json_lines, measurements, run_digest
from benchmark.records.state import RunState
from benchmark.records.wandb_mirror import agents_run

SECONDS_BETWEEN_SAVES = 2.0
MOST_OF_A_RUN = 0.05  # that saving may take: where a save takes longer than a second, saves are further apart
OF_OLDER_VERSIONS = ("checkpoints", "leases", "attempts", "exchange.json")  # in a run's folder


class Recorder(pl.Callback):
    """Saves after the first round, by the clock, at the end, and when the run is broken off.

    It writes nothing once its claim is lost.

    `found`: the state to go on from, if there is one. `clock` runs since the run was begun, so that the first round's
    CPU time holds what went into the data. Raises ClaimLost and CannotWrite from any method that writes.
    """

    def __init__(
        self,
        claim: Claim,
        experiment: Experiment,
        found: RunState | None = None,
        seconds_between: float | None = None,
        clock: CpuClock | None = None,
    ) -> None:
        self.folder, self.experiment, self._claim = claim.folder, experiment, claim
        self._run = f"{experiment.cell_key}/seed={experiment.seed}"
        self._lines = list(found.lines) if found else []
        self.last: dict[str, float] = dict(found.last) if found else {}
        self.best = dict(found.best) if found and found.best else None
        self.exchange = Exchange(found.exchange if found else None)  # a callback of its own
        self._state: RunState | None = found  # after the last finished round
        self._saved = self.rounds_done  # the last round that is on disk
        self._seconds_between, self._saving_took = seconds_between, 0.0
        self._saved_at = float("-inf")  # what saving costs, or that it cannot be, shows after the first round
        self._round_started = time.monotonic()
        self._clock = clock or CpuClock()

    @property
    def rounds_done(self) -> int:
        """The last finished round."""
        return len(self._lines)

    def begin(self, manifest: dict[str, Any]) -> None:
        """Write what is known before the first round, and remove what nobody goes on from."""
        self._claim.check()
        remove_temporaries(self.folder)
        if self._state is None:
            self._remove_what_is_old()
        write_json(self.folder / "experiment.json", to_json(self.experiment))
        attempt: dict[str, Any] = {
            "from_round": self.rounds_done,
            "started": _now(),
            **{name: manifest[name] for name in ("code", "packages", "hardware") if name in manifest},
        }
        if self._claim.after is not None:
            attempt["after"] = self._claim.after
        if (mirrored := agents_run(os.environ)) is not None:
            attempt["wandb"] = mirrored
        previous = read_json(self.folder / "manifest.json") or {}
        if "claims" in previous:  # those, and the rule, that it was begun under
            manifest = {name: value for name, value in manifest.items() if name != "rule"}
            manifest |= {name: previous[name] for name in ("claims", "rule") if name in previous}
        attempts = [*previous.get("attempts", []), attempt]
        self._write("manifest.json", json_bytes({**manifest, "attempts": attempts}))
        self._write(PROGRESS, "".join(self._lines).encode())

    def stopped_by(self, signal: str) -> None:
        """Save the last finished round, and note in the manifest that this attempt was ended from outside."""
        self.save()
        manifest = read_json(self.folder / "manifest.json")
        manifest["attempts"][-1]["stopped"] = {"by": signal, "after_round": self.rounds_done, "at": _now()}
        self._write("manifest.json", json_bytes(manifest))

    def _remove_what_is_old(self) -> None:
        (self.folder / ROUNDS).unlink(missing_ok=True)  # of a run whose state is gone
        there = [path for name in OF_OLDER_VERSIONS if (path := self.folder / name).exists()]
        if there:
            print(f"fssl: {self.folder}: an older version began this run; it starts from round 1", file=sys.stderr)
        for path in there:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _write(self, name: str, content: bytes) -> None:
        with replacing(self.folder / name, self._claim.check) as file:
            file.write(content)

    def on_train_batch_start(self, *args: object) -> None:
        self._round_started = time.monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        metrics = {name: value for name, value in pl_module.metrics.items() if math.isfinite(value)}
        self.last.update(metrics)
        self._note_best(pl_module.rounds_done, metrics)
        self._lines.append(self._line(pl_module.rounds_done, metrics))
        self._state = RunState(
            state=pl_module.state,
            lines=tuple(self._lines),
            last=dict(self.last),
            best=self.best,
            exchange=self.exchange.summary(),
        )
        self.save_when_due()

    def on_train_end(self, *args: object) -> None:
        self.save()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Whatever ended the run, what is finished is kept; where that fails, too, the first reason counts."""
        with contextlib.suppress(CannotWrite, ClaimLost):
            self.save()

    def _line(self, round_number: int, metrics: dict[str, float]) -> str:
        line = {
            "cell_key": self.experiment.cell_key,
            "seed": self.experiment.seed,
            "round": round_number,
            **dict(sorted(metrics.items())),
            "time/round_seconds": round(time.monotonic() - self._round_started, 6),
            "time/cpu_seconds": round(self._clock.lap(), 3),  # since the line before: with what is between rounds
        }
        return json.dumps(line, allow_nan=False) + "\n"

    def _note_best(self, round_number: int, metrics: dict[str, float]) -> None:
        for name in ("test/accuracy", "validation/accuracy"):
            if name in metrics and (self.best is None or metrics[name] > self.best[name]):
                measured = {key: value for key, value in metrics.items() if key.split("/")[0] == name.split("/")[0]}
                self.best = {"round": round_number, **measured}

    def save_when_due(self) -> None:
        """By the clock, and so far apart that saving takes no more than `MOST_OF_A_RUN`."""
        seconds = SECONDS_BETWEEN_SAVES if self._seconds_between is None else self._seconds_between
        if time.monotonic() - self._saved_at >= max(seconds, self._saving_took / MOST_OF_A_RUN):
            self.save()

    def save(self) -> None:
        """Put the last finished round on disk, if it is not there."""
        self._claim.check()
        if self._state is None or self._state.round == self._saved:
            return
        started = time.monotonic()
        states.save(self.folder, self._state, self._run, self._claim.check)
        self._write(PROGRESS, "".join(self._lines).encode())
        self._saved, self._saved_at = self._state.round, time.monotonic()
        self._saving_took = self._saved_at - started

    def publish(self, status: str, error: str | None = None) -> dict[str, Any]:
        """Put `rounds.jsonl` and `result.json` in place; what stands there. The first process's stand, and no other's.

        `result.json` is the run's last act. What only an unfinished run needs is removed after it.
        """
        self._claim.check()
        rounds = json_lines(put_once(self.folder / ROUNDS, "".join(self._lines).encode()), self.folder / ROUNDS)
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
        self._claim.check()
        published: dict[str, Any] = json.loads(put_once(self.folder / RESULT, json_bytes(result)))
        for name in (states.NAME, PROGRESS):
            (self.folder / name).unlink(missing_ok=True)
        return published


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
