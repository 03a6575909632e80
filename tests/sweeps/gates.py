"""Define a method that waits before some of its rounds until the test continues it, so that faults hit the intended
round.

`GATE.3` in the folder is what lets it into round 3.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmark.federated.stopping import check
from benchmark.methods.protocol import State, World
from benchmark.methods.ssfl import SSFL
from benchmark.records import recorder

SECONDS = 600.0  # then the test has failed anyway


@dataclass(frozen=True, kw_only=True)
class Gated(SSFL):
    """SSFL, gated before `rounds` (comma-separated)."""

    folder: str = ""
    rounds: str = ""

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        recorder.SECONDS_BETWEEN_SAVES, recorder.MOST_OF_A_RUN = 0.0, float("inf")  # saved is what was done
        gate = Path(self.folder) / f"GATE.{world.round}"
        deadline = time.monotonic() + SECONDS
        while str(world.round) in self.rounds.split(",") and not gate.exists():
            assert time.monotonic() < deadline, f"{gate} was never opened"
            check()  # as work between local steps does
            time.sleep(0.02)  # short, so that a task that Ray interrupts notices
        return super().round(state, world)


def begun(folder: Path) -> int:
    """Return the number of attempts at the run in `folder`, if the last one has its first round, and 0 if not."""
    manifest, rounds = folder / "manifest.json", folder / "progress.jsonl"
    if not manifest.exists() or not rounds.exists() or b"\n" not in rounds.read_bytes():
        return 0
    if rounds.stat().st_mtime_ns < manifest.stat().st_mtime_ns:  # of the attempt before
        return 0
    return len(json.loads(manifest.read_text())["attempts"])
