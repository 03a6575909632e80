"""Measure the cost of a local step on a device: `python -m tests.performance.engines --device cuda`.

Rounds of two clients and the server, as a run has them: with their views, averages and copies, on random images.
"""

import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.cli.doctor import NVIDIA
from benchmark.experiment import Data, Federation, Precision
from benchmark.federated.devices import card_name, check_precision
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.module import FederatedModule
from benchmark.federated.processes import CPU
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.semifl import SemiFL
from benchmark.models.build import Model
from benchmark.records.provenance import commit, hardware
from tests.performance.works import WORKS, Work, environment_of, quick, work_of

WRN = Model(network="wresnet28x2", norm="gn", norm_groups=8)
SWITCH = FedSwitch(beta=0.4, batch_size=64, labelled_batch_size=64, server_batch_size=64, threshold=0.0)
CIFAR = Data(name="cifar10", N_s=1000)
STEPS = {
    "EMNIST CNN, CRL": WORKS["A"],
    "WRN-28-2 GN, CRL": work_of("", 1000, data=CIFAR, model=WRN),
    "WRN-28-2 static BN, SemiFL": work_of(
        "",
        100,
        data=replace(CIFAR, N_s=50),
        model=Model(network="wresnet28x2", norm="sbn"),
        method=SemiFL(threshold=0.0, nothing_below="draw_from_all"),
        federation=Federation(K=10, C=10, rounds=1000, epochs=1),
    ),
    "ResNet-18 GN, FedSwitch": work_of("", 1000, data=CIFAR, model=Model(network="resnet18", norm="gn"), method=SWITCH),
}
HEAD = "| network, method | ms a step | steps a second | launches a step | peak memory |\n|---|--:|--:|--:|--:|"


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy: on CUDA each is a kernel at least."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view
        return func(*args, **(kwargs or {}))


def measured(work: Work, device: str, precision: Precision, rounds: int) -> str:
    """Return a row with the fastest of these rounds, after one round to warm up and one to count."""
    federation = replace(work.experiment.federation, K=2, C=2)
    experiment = replace(work.experiment, precision=precision, federation=federation)
    environment = environment_of(replace(work, experiment=experiment))
    module = FederatedModule(environment, ReferenceEngine(environment, device, fast=True))
    seconds = []
    for number in range(1, rounds + 2):
        wait_for(device)
        began = time.perf_counter()
        module.training_step(number, 0)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    steps = module.metrics["local_steps"]
    with Launches() as launches:
        module.training_step(rounds + 2, 0)
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # on Linux
    peak = torch.cuda.max_memory_allocated(device) if device != CPU else 1024 * kib
    step = min(seconds[1:]) / steps
    return f"{1000 * step:.2f} | {1 / step:,.0f} | {launches.number / steps:,.0f} | {peak / 2**20:,.0f} MiB"


def wait_for(device: str) -> None:
    if device != CPU:
        torch.cuda.synchronize(device)


def table(device: str, precision: Precision, rounds: int, small: bool) -> Iterator[str]:
    """Return lines of Markdown for an issue. Raise ConfigError if the device does not have the precision."""
    check_precision(precision, [device])
    name = card_name(device) if device != CPU else f"one core of {hardware()['processor']}"
    driver = NVIDIA.read_text().splitlines()[0].split(":", 1)[-1].strip() if NVIDIA.exists() else "none"
    yield f"**{name}**, {precision}: torch {torch.__version__}, CUDA {torch.version.cuda}, driver {driver},"
    yield f"commit {commit()['commit']:.10}{', quick: means nothing' if small else ''}\n\n{HEAD}"
    for label, work in STEPS.items():
        if device != CPU:
            torch.cuda.reset_peak_memory_stats(device)
        yield f"| {label} | {measured(quick(work) if small else work, device, precision, rounds)} |"
