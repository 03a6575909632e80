"""Measure how fast the engines are on this machine, compared with a plain loop.

    python -m tests.performance.engines [--work A B] [--rounds 5] [--json results/benchmarks/engines.json]
    python -m tests.performance.engines --device cuda       local steps there, as a table to paste into an issue

"ours" is the pool, as `fssl run` has it. They take turns as peers do (`tests/performance/turns.py`).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Precision
from benchmark.federated.devices import devices_named
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.processes import CPU, usable_cores
from tests.performance import local_steps
from tests.performance.turns import Contender, compare, options_of


def contenders(workers: int, threads: int) -> list[Contender]:
    here = Path(sys.executable)
    return [
        Contender(name="ours", driver="ours", python=here, tuned=True, processes=workers),
        Contender(name="reference", driver="ours", python=here, tuned=True, processes=0, threads=threads),
        Contender(name="plain loop", driver="plain_loop", python=here, tuned=False, processes=0, threads=threads),
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = options_of(__doc__)
    parser.set_defaults(work=["A", "B"])
    parser.add_argument("--workers", type=int, default=usable_cores(), help="of the pool (default: one a core)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of the others (default: one a core)")
    parser.add_argument("--device", help="cuda, cuda:1 or cpu: what local steps cost there, and nothing else")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32", help="of these local steps")
    options = parser.parse_args(words)
    if options.device is None:
        compare(contenders(options.workers, options.threads), options)
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        (device,) = devices_named(options.device) or (CPU,)
        for line in local_steps.table(device, options.precision, options.rounds, options.small):
            print(line, flush=True)
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
