"""One round in a process whose address space may grow by so many MB: python -m tests.faults.short_of_memory [MB] [NORM]

Prints one line of JSON: how many jobs were taken in parts and sums of the weights, or the error.
"""

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.parts import IN_PARTS
from tests.methods.golden import TRACES

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def experiment(batch_size: int, norm: str) -> Experiment:
    """A small network of many layers: few weights, and activations of 0.15 MB an image."""
    crl = TRACES["crl-fedavg"]
    return replace(
        crl,
        method=replace(crl.method, batch_size=batch_size, server_batch_size=8),
        model=replace(crl.model, network="resnet8", norm=norm),
        federation=replace(crl.federation, T=1),
    )


def one_round(chosen: Experiment) -> FederatedModule:
    environment = prepare(chosen)
    module = FederatedModule(environment, ReferenceEngine(environment))
    module.training_step(1, 0)
    return module


def main(megabytes: int | None, norm: str) -> dict[str, object]:
    torch.set_num_threads(1)
    one_round(experiment(8, norm))  # what the libraries load once is then loaded
    if megabytes is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 1_000_000, resource.RLIM_INFINITY))
    try:
        module = one_round(experiment(256, norm))
    except FsslError as error:
        return {"error": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)
    weights = next(iter(module.models().values()))
    sums = [float(value.double().sum()) for value in weights.values()]
    return {"parts": module.metrics.get(IN_PARTS, 0), "weights": sums}


if __name__ == "__main__":
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else None
    print(json.dumps(main(limit, sys.argv[2] if len(sys.argv) > 2 else "gn")))
