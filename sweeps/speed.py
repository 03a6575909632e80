"""Measure the speed of this machine's devices, to convert counted costs to seconds on this machine.

Counted seconds are for a core of the reference processor (`sweeps.counting`). One plain training step of the run's
network is timed on a core of this machine, and its ratio to the counted seconds is used for all work of the run. The
seconds on a CUDA device are based on the times of its GPU (`sweeps.cards`). If the GPU was not measured, the timed
step gives its FLOP/s.
"""

import copy
import time
from functools import cache
from pathlib import Path

import torch
from torch import nn

from benchmark.experiment import Experiment, Precision
from benchmark.federated.devices import card_name, memory_format, prepare_torch
from benchmark.federated.local import pass_in_bfloat16
from benchmark.federated.machine import faster_products, keep_freed_memory
from benchmark.federated.processes import CPU
from benchmark.models.build import Model, build
from benchmark.models.classifier import ImageShape
from sweeps.blank_data import blank_data_set
from sweeps.cards import Card, cards
from sweeps.counting import Cost, step_seconds
from sweeps.meta import META, WithoutNumbers, network_on_meta

FEW = 2  # images of a timed step for a large network on a CPU
MANY = 16  # images of all other timed steps
AFFORDABLE = 5e9  # most FLOPs of a timed step on a CPU with MANY images
TIMED_STEPS = 8


def seconds_on(device: str, run: Experiment, cost: Cost, results: Path) -> float:
    """Return the seconds of a run with this cost on a device of this machine."""
    data = blank_data_set(run.data.name, run.data.pooled_test)
    step = (run.model, data.image_shape, data.num_classes, run.precision, device)
    if device == CPU:
        seconds, reference_seconds, _ = timed_step(*step)
        return cost.seconds * seconds / reference_seconds
    card = cards(results).get(card_name(device))
    if card is None:
        seconds, _, flops = timed_step(*step)
        card = Card(name=card_name(device), rows=(), rates={run.precision: flops / seconds})
    gflop_of_step = cost.flops / 1e9 / max(1.0, cost.local_steps)
    return cost.local_steps * card.step_seconds(run, gflop_of_step, "reference")[0]


@cache
def timed_step(
    model: Model, image_shape: ImageShape, num_classes: int, precision: Precision, device: str
) -> tuple[float, float, int]:
    """Return a training step's seconds on one core or the device, on the reference processor, and its FLOPs."""
    place = torch.device(device)
    network = copy.deepcopy(network_on_meta(model, image_shape, num_classes))
    flops, operations = counted_step(network, MANY, image_shape)
    images = MANY
    if place.type == CPU and flops > AFFORDABLE:
        images = FEW
        flops, operations = counted_step(network, images, image_shape)
    keep_freed_memory()
    prepare_torch(place, precision, model)
    real = build(model, image_shape, num_classes, seed=0).to(place)
    real = real.to(memory_format=memory_format(place, precision, model))
    if precision == "bf16":
        pass_in_bfloat16(real)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with faster_products():
            train(real, images, image_shape, place, 1)  # also allocates memory
            began = clock(place)
            steps = TIMED_STEPS if flops < AFFORDABLE / TIMED_STEPS else 1
            train(real, images, image_shape, place, steps)
            seconds = (clock(place) - began) / steps
    finally:
        torch.set_num_threads(threads)
    return seconds, step_seconds(flops, operations), flops


def counted_step(network: nn.Module, images: int, image_shape: ImageShape) -> tuple[int, int]:
    """Return the FLOPs and the operations of a training step of a network on the meta device."""
    with WithoutNumbers() as counter:
        train(network, images, image_shape, META, 1)
    return counter.flops, counter.operations


def train(network: nn.Module, images: int, image_shape: ImageShape, device: torch.device, steps: int) -> None:
    """Train the network on labels for some steps, with the optimizer of launchers."""
    images_NCHW = torch.zeros(images, *image_shape, device=device)
    labels_N = torch.zeros(images, dtype=torch.int64, device=device)
    is_fused = device != META  # torch has no fused kernel for it
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, foreach=not is_fused, fused=is_fused)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images_NCHW), labels_N).backward()
        optimizer.step()


def clock(device: torch.device) -> float:
    """Return the CPU seconds of this process. For a CUDA device, wait for its work and return the time instead."""
    if device.type == CPU:
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()
