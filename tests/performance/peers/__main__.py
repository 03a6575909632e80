"""Compare other frameworks with ours on the same rounds, in turn.

    python -m tests.performance.peers --work laptop A --rounds 5 [--json results/benchmarks/peers.json]
        --blazefl PYTHON --flower PYTHON --pfl PYTHON

PYTHON is the interpreter of an environment that has the peer (its .txt in this folder) and torch; a peer left out is
not compared. Each has two processes of one thread. "our settings" beside a peer's name: with our order of memory
(channels last) and our allocator's settings.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.performance.turns import Contender, compare, options_of

PEERS = {"blazefl": "BlazeFL", "flower": "Flower", "pfl": "pfl-research"}


def contenders(pythons: Mapping[str, Path]) -> list[Contender]:
    """List our suite, and each peer with its default settings and with our settings."""
    found = [Contender(name="ours", driver="ours", python=Path(sys.executable), tuned=True)]
    for driver, python in pythons.items():
        for tuned in (False, True):
            name = PEERS[driver] + (", our settings" if tuned else "")
            found.append(Contender(name=name, driver=driver, python=python, tuned=tuned))
    return found


def main() -> None:
    parser = options_of(__doc__)
    parser.set_defaults(work=["A", "laptop"])
    for driver, name in PEERS.items():
        parser.add_argument(f"--{driver}", type=Path, metavar="PYTHON", help=f"interpreter that has {name}")
    options = parser.parse_args()
    paths = {driver: getattr(options, driver) for driver in PEERS}
    compare(contenders({driver: path for driver, path in paths.items() if path is not None}), options)


if __name__ == "__main__":
    main()
