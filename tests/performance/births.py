"""What it costs until training processes are ready: each loading everything anew, and forked from one that has.

    python -m tests.performance.births [--repeats 5] [--json results/benchmarks/births.json]

One parent a measurement, a fresh Python that has loaded nothing but the standard library: CPU seconds of all its
processes until the last one is ready, the wall clock beside it, and their memory then (PSS: a page that several share
counts once). The two ways in turn; each figure is the median, with the lowest and the highest.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmark.federated.processes import births
from benchmark.records.cputime import cpu_seconds
from benchmark.records.provenance import hardware
from tests.conftest import ROOT

COUNTS = (1, 2, 8)


def ready(connection: Connection) -> None:
    """A process that trains, up to its first run."""
    import benchmark.records.run  # noqa: F401

    connection.send("ready")
    with contextlib.suppress(EOFError):
        connection.recv()  # nothing comes: it has been measured when its parent ends


def begin(count: int, fresh: bool) -> dict[str, float]:
    began, ends = time.monotonic(), []
    with births(fresh=fresh) as process:
        for _ in range(count):
            mine, theirs = Pipe()
            process(ready, theirs, daemon=True).start()
            theirs.close()
            ends.append(mine)
    for mine in ends:
        mine.recv()
    return {"cpu_seconds": cpu_seconds(), "seconds": time.monotonic() - began}


def measured(repeats: int) -> dict[str, Any]:
    from benchmark.bench.memory import tree_bytes  # loads torch, which the measured parent must not

    found: dict[tuple[int, bool], list[dict[str, float]]] = {}
    for _ in range(repeats):
        for count in COUNTS:
            for fresh in (True, False):
                words = [sys.executable, "-m", "tests.performance.births", "--begin", str(count), str(int(fresh))]
                with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
                    assert parent.stdout is not None
                    said = json.loads(parent.stdout.readline())
                    found.setdefault((count, fresh), []).append({**said, "gib": tree_bytes(parent.pid) / 2**30})
                    parent.communicate()
    return {
        f"{count} {'fresh' if fresh else 'forked'}": {
            name: [round(pick([each[name] for each in all_]), 2) for pick in (statistics.median, min, max)]
            for name in all_[0]
        }
        for (count, fresh), all_ in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--begin", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.begin:
        print(json.dumps(begin(options.begin[0], bool(options.begin[1]))), flush=True)
        sys.stdin.read()  # all live until the memory has been looked at
        return
    found = {"processes": measured(options.repeats), "repeats": options.repeats, "hardware": hardware()}
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
