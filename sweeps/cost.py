"""What a run costs: counted exactly (local steps, FLOPs, bytes), and timed on this machine (seconds)."""

import os
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmark.data.augment import make_views
from benchmark.data.shapes import image_shape_of
from benchmark.experiment import Experiment
from benchmark.federated.memory import keep_freed_memory
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import CRL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import Model, build, forward_flops
from benchmark.streams import torch_stream

FORWARD_AND_BACKWARD = 3  # in forward passes: the backward pass computes two products where the forward has one


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Sums over runs. `core_seconds` is an estimate, the rest is counted."""

    local_steps: int = 0
    flops: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    core_seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def to_json(self) -> dict[str, Any]:
        cores = os.cpu_count() or 1
        counted = {name: value for name, value in asdict(self).items() if name != "core_seconds"}
        return {**counted, "hours": self.core_seconds / 3600 / cores, "cores": cores}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds on one core of this machine, and the network's size."""

    forward: float  # an image through the network
    forward_backward: float  # an image through the network and back
    augmented: float  # an image through the strong view
    forward_flops: int
    weight_bytes: int


def cost_of(experiment: Experiment, speed: Speed) -> Cost:
    """The cost of one run, evaluation on the test set left out. Stragglers and process starts are not in it."""
    federation, work = experiment.federation, _work(experiment)
    exchanged = federation.C * work.federated_rounds * speed.weight_bytes if work.clients else 0
    seconds = (
        work.images_only_forward * speed.forward
        + work.images_trained * speed.forward_backward
        + work.images_augmented * speed.augmented
    )
    return Cost(
        local_steps=work.local_steps,
        flops=speed.forward_flops * (FORWARD_AND_BACKWARD * work.images_trained + work.images_only_forward),
        bytes_up=exchanged,
        bytes_down=exchanged,
        core_seconds=seconds,
    )


def local_steps(experiment: Experiment) -> int:
    """All local steps of a run, at the server and at clients."""
    return _work(experiment).local_steps


@dataclass(frozen=True, kw_only=True)
class _Work:
    local_steps: int
    images_trained: int
    images_only_forward: int
    images_augmented: int
    federated_rounds: int = 0
    clients: bool = False


def _work(experiment: Experiment) -> _Work:
    """How many images go through the network how often, by method."""
    method, federation = experiment.method, experiment.federation
    T, rounds = federation.T, federation.rounds
    if isinstance(method, ServerOnly):
        images = T * rounds * min(method.batch_size, experiment.data.N_s)
        return _Work(local_steps=T * rounds, images_trained=images, images_only_forward=0, images_augmented=images)
    if isinstance(method, FixMatch):
        unlabelled = T * (rounds - method.warm_start_rounds) * method.batch_size * method.unlabelled_ratio
        labelled = T * rounds * min(method.batch_size, experiment.data.N_s)
        return _Work(
            local_steps=T * rounds,
            images_trained=labelled + unlabelled,
            images_only_forward=unlabelled,
            images_augmented=labelled + 2 * unlabelled,
        )
    if not isinstance(method, SSFL):
        raise TypeError(f"no cost is known for {type(method).__name__}")
    together = max(0, rounds - method.warm_start_rounds)
    servers = len(method.averaging.group_sizes(federation.C)) if method.server_models == "released_code" else 1
    server_steps = T * (min(rounds, method.warm_start_rounds) + together * servers)
    client_steps = T * together * federation.C
    labelled = server_steps * min(method.server_batch_size, experiment.data.N_s)
    unlabelled = client_steps * method.batch_size
    pseudo_labelled = unlabelled if not _is_supervised(method) else 0
    strong = unlabelled if isinstance(method.objective, CRL) else 0
    return _Work(
        local_steps=server_steps + client_steps,
        images_trained=labelled + unlabelled,
        images_only_forward=pseudo_labelled,
        images_augmented=labelled + unlabelled + strong,
        federated_rounds=together,
        clients=True,
    )


def _is_supervised(method: SSFL) -> bool:
    return "server" not in method.needs


def measure(experiment: Experiment, repeats: int = 3) -> Speed:
    """Time network and augmentation on one thread, on random images of the data set's shape; the fastest counts."""
    shape, num_classes = image_shape_of(experiment.data.name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(experiment, experiment.model, shape, num_classes, repeats)
    finally:
        torch.set_num_threads(threads)


def _measure(
    experiment: Experiment, model: Model, shape: tuple[int, int, int], num_classes: int, repeats: int
) -> Speed:
    keep_freed_memory()
    network = build(model, shape, num_classes, seed=0).to(memory_format=torch.channels_last)  # as runs have it
    batch = getattr(experiment.method, "batch_size", 64)
    draw = torch_stream(0, "probe")
    images = torch.randint(0, 256, (max(batch, 256), *shape), generator=draw, dtype=torch.uint8)
    channels = shape[0]
    x_NCHW = torch.rand((batch, *shape), generator=draw)

    def forward() -> None:
        with torch.no_grad():
            network(x_NCHW)

    def forward_backward() -> None:
        network(x_NCHW).logsumexp(dim=1).mean().backward()

    def augment() -> None:
        make_views(images, ("strong",), experiment.data.augmentation, (0.5,) * channels, (0.5,) * channels, draw)

    return Speed(
        forward=_fastest(forward, repeats) / batch,
        forward_backward=_fastest(forward_backward, repeats) / batch,
        augmented=_fastest(augment, repeats) / len(images),
        forward_flops=forward_flops(network, shape),
        weight_bytes=sum(value.numel() * value.element_size() for value in network.state_dict().values()),
    )


def _fastest(work: Any, repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(3):
            work()
        times.append((time.perf_counter() - started) / 3)
    return min(times)
