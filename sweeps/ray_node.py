"""What runs on a node of a Ray cluster: a look whether it can train at all, and the training of one run.

Nothing heavy is imported before it is needed, so that a look costs a node no more than Ray itself does.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_TO_SEE = 5.0  # for a file that another machine has just written: network folders may show it late


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The same for all runs of a launch."""

    results: Path  # absolute
    token: str  # name of a file in it, there as long as the launcher is
    data_root: Path | None
    usual_data: str | None  # the launcher's $FSSL_DATA, for nodes that have none
    patience: float  # see `records.run`
    device: str
    code: dict[str, Any]  # the launcher's `provenance.commit()`


def unseen(orders: Orders) -> str | None:
    """Why no record can be written from this node, in one line; None: it can."""
    deadline = time.monotonic() + SECONDS_TO_SEE
    while not (orders.results / orders.token).exists():
        if time.monotonic() > deadline:
            return f"does not see {orders.results}; a folder of results that all nodes share would be right"
        time.sleep(0.2)
    if not os.access(orders.results, os.W_OK):
        return f"cannot write to {orders.results}; a folder of results that all nodes may write to would be right"
    return None


def looked(orders: Orders) -> tuple[str | None, str | None]:
    """Why this node can write no record; why its records would not be the launcher's (other code)."""
    from benchmark.records.provenance import commit

    here, wanted = commit(), orders.code
    if here == wanted:
        return unseen(orders), None
    return unseen(orders), f"has other code (commit {_short(here)}); {_short(wanted)} as here would be right"


def trained(data: dict[str, Any], orders: Orders) -> tuple[bool, Any, str | None]:
    """Train one run, given as JSON: whether it was trained here, its error or None, and why this node cannot.

    A cancelled task is interrupted as if by Ctrl-C: the run leaves its checkpoint and comes back as Stopped.
    """
    why = unseen(orders)
    if why is not None:
        return False, None, f"node {socket.gethostname()} {why}"
    if orders.usual_data is not None:
        os.environ.setdefault("FSSL_DATA", orders.usual_data)
    from benchmark.experiment import from_json
    from sweeps.crew import attempted

    here, error = attempted(from_json(data), orders.results, orders.data_root, orders.patience, orders.device)
    return here, error, None


def _short(code: dict[str, Any]) -> str:
    return str(code["commit"])[:10] + (" with changes" if code["changes"] else "")
