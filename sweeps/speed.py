"""Times a device, so that counted work becomes seconds.

Two sizes of a plain training step say how long an operation takes and how long a FLOP; each view is timed apart. A step
of any job then takes as long as its operations, FLOPs and views together.
"""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import nn

from benchmark.data.augment import VIEWS, Augmentation, make_views
from benchmark.experiment import Precision
from benchmark.federated.batches import SPAN
from benchmark.federated.devices import memory_format, prepare_torch
from benchmark.federated.environment import Environment
from benchmark.federated.local import pass_in_bfloat16
from benchmark.federated.machine import faster_products, keep_freed_memory
from benchmark.federated.processes import CPU
from benchmark.models.build import Model, build
from benchmark.models.classifier import ImageShape
from sweeps.meta import META, WithoutNumbers, network_on_meta

FEW, MANY = 2, 32  # images of the timed steps, the smallest that every norm can be trained on and a usual one
AFFORDABLE = 1e10  # FLOPs of a timed step on a CPU: one step of a heavy network with fewer images is timed
LONG_SECONDS = 0.2  # the memory that the first time takes is a small share of so much
TIMED_SECONDS, TIMED_TIMES = 0.04, 16  # what is timed is done for about so long, and so many times at most


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a device has to do."""

    flops: float = 0
    operations: float = 0  # that it is given one after another
    views: Mapping[str, float] = field(default_factory=dict)  # images to make, by the name of their view


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How many seconds a device takes for an operation, for a FLOP, and for an image of each view."""

    operation: float
    flop: float
    views: Mapping[str, float]

    def seconds_of(self, work: Work) -> float:
        in_views = sum(images * self.views[view] for view, images in work.views.items())
        return work.operations * self.operation + work.flops * self.flop + in_views


def speed_for(environment: Environment, device: str) -> Speed:
    """Time one core, or the device, with a run's network and views; what runs share is timed once."""
    run, data = environment.experiment, environment.data
    keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        operation, flop = _of_steps(run.model, data.image_shape, data.num_classes, run.precision, device)
        views = _of_views(run.data.augmentation, data.image_shape, device)
    finally:
        torch.set_num_threads(threads)
    return Speed(operation=operation, flop=flop, views=views)


@cache
def _of_steps(
    model: Model, image_shape: ImageShape, num_classes: int, precision: Precision, name: str
) -> tuple[float, float]:
    """Return the seconds of an operation and of a FLOP, by steps of few images and of many."""
    device = torch.device(name)
    prepare_torch(device, precision, model)
    empty = copy.deepcopy(network_on_meta(model, image_shape, num_classes))
    real = build(model, image_shape, num_classes, seed=0).to(device)
    real = real.to(memory_format=memory_format(device, precision, model))
    if precision == "bf16":
        pass_in_bfloat16(real)

    def work_of(images: int) -> Work:
        with WithoutNumbers() as counter:
            training(empty, images, image_shape, META)(1)
        return Work(flops=counter.flops, operations=counter.operations)

    def seconds_of(images: int) -> float:
        with faster_products():
            return seconds_once(training(real, images, image_shape, device), device)

    few = work_of(FEW)
    affordable = round(AFFORDABLE / few.flops * FEW) if device.type == CPU else MANY
    if affordable < MANY:  # beside so many FLOPs its operations take no time
        images = max(FEW, affordable)
        return 0.0, seconds_of(images) / work_of(images).flops
    seconds_of_few, seconds_of_many = seconds_of(FEW), seconds_of(MANY)
    flop = max(0.0, (seconds_of_many - seconds_of_few) / (work_of(MANY).flops - few.flops))
    return max(0.0, seconds_of_few - flop * few.flops) / few.operations, flop


def training(network: nn.Module, images: int, image_shape: ImageShape, device: torch.device) -> Callable[[int], None]:
    """Return a function that trains the network on labels for some steps, as launchers do."""
    images_NCHW = torch.zeros(images, *image_shape, device=device)
    labels_N = torch.zeros(images, dtype=torch.int64, device=device)
    on_meta = device == META  # torch has no fused kernel for it
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, foreach=on_meta, fused=not on_meta)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images_NCHW), labels_N).backward()
            optimizer.step()

    return train


@cache
def _of_views(augmentation: Augmentation, image_shape: ImageShape, name: str) -> Mapping[str, float]:
    """Return the seconds of an image of each view."""
    device = torch.device(name)
    images_NCHW = torch.zeros(SPAN, *image_shape, dtype=torch.uint8, device=device)
    mean, std, draw = (0.5,) * image_shape[0], (0.5,) * image_shape[0], torch.Generator()

    def make(view: str) -> Callable[[int], None]:
        def make_often(times: int) -> None:
            for _ in range(times):
                make_views(images_NCHW, (view,), augmentation, mean, std, draw)

        return make_often

    return {view: seconds_once(make(view), device) / SPAN for view in VIEWS}


def seconds_once(work: Callable[[int], object], device: torch.device) -> float:
    """Return the seconds of the work once, from doing it often enough."""
    first = _seconds(work, 1, device)  # it also takes its memory
    if first > LONG_SECONDS:
        return first
    often = min(TIMED_TIMES, round(TIMED_SECONDS / max(first, 1e-9))) if device.type == CPU else TIMED_TIMES
    return _seconds(work, max(1, often), device) / max(1, often)


def _seconds(work: Callable[[int], object], times: int, device: torch.device) -> float:
    began = clock(device)
    work(times)
    return clock(device) - began


def clock(device: torch.device) -> float:
    """Return CPU seconds of this process; for a CUDA device the time, once it has done all that it was given."""
    if device.type == CPU:
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()
