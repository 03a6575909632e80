"""1,000 clients that keep their models, and what that takes: python -m tests.records.many_clients FOLDER

Prints one line of JSON. The clients share the images of the embedded digits.
"""

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.store import ClientStore
from benchmark.methods.protocol import World
from benchmark.records.checkpoints import Checkpoint, save
from benchmark.records.client_files import FOLDER, ClientFiles
from tests.methods.golden import TRACES

CLIENTS, COHORT, RUN = 1000, 40, "x/seed=0"


def measured(folder: Path) -> dict[str, float]:
    """Rounds of cohorts, each once over all clients, with a checkpoint every ten rounds."""
    torch.set_num_threads(1)
    keep_freed_memory()
    easgd = TRACES["easgd"]
    environment = prepare(easgd)
    many = replace(easgd, federation=replace(easgd.federation, K=CLIENTS, C=COHORT, T=1))
    few_N = tuple(np.arange(client % 1000, client % 1000 + 8) for client in range(CLIENTS))
    held = replace(environment.held, labelled=few_N, unlabelled=few_N)
    environment = replace(environment, experiment=many, held=held)
    shelf = ClientFiles(folder=folder / FOLDER, run=RUN)
    store = ClientStore(shelf=shelf, memory=8 << 20)
    module = FederatedModule(environment, ReferenceEngine(environment), store=store)
    world = module._world

    def in_turn(number: int) -> World:  # so that 25 rounds meet all
        first = (number - 1) * COHORT
        generator: Any = lambda *names: _Turn(first)  # noqa: E731
        return replace(world(number), generator=generator)

    module._world = in_turn  # type: ignore[method-assign, assignment]
    for number in range(1, CLIENTS // COHORT + 1):
        if number == 4:
            before = peak()
        module.training_step(number, 0)
        if number % 10 == 0:
            save(folder, Checkpoint(round=number, state=module.state, best=None, last={}), RUN)
    clients = module.state.clients
    one = sum(value.numel() * 4 for tree in clients["0"].values() for value in leaves(tree))
    return {
        "clients": len(clients),
        "state_megabytes": round(one * len(clients) / 1e6, 1),
        "grown_megabytes": round(peak() - before, 1),
        "disk_megabytes": round(sum(path.stat().st_size for path in folder.rglob("*.pt")) / 1e6, 1),
    }


class _Turn:
    """In place of a random stream: the clients of this round first."""

    def __init__(self, first: int) -> None:
        self.first = first

    def permutation(self, K: int) -> np.ndarray:
        return np.roll(np.arange(K), -self.first)


def leaves(tree: dict) -> list[torch.Tensor]:
    return [leaf for value in tree.values() for leaf in (leaves(value) if isinstance(value, dict) else [value])]


def peak() -> float:
    """The most memory that this process ever had, in MB (ru_maxrss is in kB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]))))
