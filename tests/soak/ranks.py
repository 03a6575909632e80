"""Runs on two ranks that a kill meets, with the answers of `tests.records.forks`."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmark.errors import Stopped
from benchmark.experiment import Experiment
from tests.federated.ranks_here import RanksHere
from tests.records.forks import lines_of

RANKS = 2
PATIENCE = 120.0  # seconds after which ranks that should have ended are given up
MEETING = 5.0  # seconds after which what torchrun would do is done: ranks still waiting for the killed one are ended


def run(
    experiment: Experiment,
    results: Path,
    draw: random.Random,
    *,
    faults: dict[str, Any] | None = None,
    lines: int = 0,
    delay: float = 0.0,
    signals: Sequence[int] = (),
) -> dict[str, Any]:
    """One run; where `signals` are given, either rank is killed, as `draw` says. "code" is -SIGKILL where any was."""
    everyone = {-1: {"seconds_between_checkpoints": 0.0}, **({0: faults} if faults else {})}
    ranks = RanksHere([experiment] * RANKS, results, everyone)
    try:
        if signals:
            _kill(ranks, results, draw.randrange(RANKS), lines, delay)
            if not lines:  # perhaps they had not met: then nothing tells a rank that the other one is gone
                ranks.wait(MEETING)
                ranks.kill()
        codes = ranks.wait(PATIENCE)
    finally:
        ranks.kill()
    left = [pid for pid, code in zip(ranks.pids, codes, strict=True) if code is None]
    said = "\n".join(text for text in ranks.said if text)
    killed = -SIGKILL in codes and set(codes) <= {-SIGKILL, 0, Stopped.exit_code}
    wrong = next((code for code in codes if code not in (0, -SIGKILL)), 0)
    return {"code": -SIGKILL if killed else wrong, "said": said, "left": left}


def _kill(ranks: RanksHere, results: Path, rank: int, lines: int, delay: float) -> None:
    began = time.monotonic()
    while lines_of(str(results)) < lines and None in ranks.wait(0.0) and time.monotonic() - began < PATIENCE:
        time.sleep(0.002)
    time.sleep(delay)
    if ranks.wait(0.0)[rank] is None:
        os.kill(ranks.pids[rank], SIGKILL)
