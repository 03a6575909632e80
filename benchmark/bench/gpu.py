"""`fssl bench --device cuda`: the same works by the gpu engine and by the plain loop on the same device, over C.

Nothing here but the check asks for CUDA, so that the tests run it on the CPU with another engine.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmark.bench.contenders import EngineContender, PlainContender, synchronise
from benchmark.bench.measuring import Contender, figures, interleave
from benchmark.bench.peaks import best_rate, matrix_flops
from benchmark.bench.sections import Options
from benchmark.bench.works import Work, environment_of, local_steps, passes_of, round_flops, with_clients
from benchmark.errors import ConfigError
from benchmark.federated.choice import build_engine

COHORTS = (10, 20, 47, 100)
IMAGES = 500  # of each client
MATRIX = 8192  # a side; 512 on a CPU
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
PLAIN, ENGINE = "plain loop", "gpu engine"


def require_cuda() -> None:
    """Raises ConfigError where torch finds no CUDA device."""
    if not torch.cuda.is_available():
        raise ConfigError("--device: 'cuda', but torch finds no CUDA device here; cpu would be right")


def measured(
    names: Sequence[str],
    options: Options,
    *,
    device: str = "cuda",
    engine: str = "gpu",
    cohorts: Sequence[int] = COHORTS,
) -> dict[str, Any]:
    """For each work and C: both contenders in turn, launches of a local step, and the rate that a peak is of."""
    reached = peaks(torch.device(device))
    rows = {
        name: [one(options.work(name), C, options, device, engine, reached) for C in cohorts_of(name, cohorts)]
        for name in names
    }
    return {"device": device_name(torch.device(device)), "device_peaks": reached, "gpu": rows}


def cohorts_of(name: str, cohorts: Sequence[int]) -> Sequence[int]:
    """Work C is large enough at the smallest cohort."""
    return cohorts[:1] if name == "C" else cohorts


def one(work: Work, C: int, options: Options, device: str, engine: str, reached: dict[str, float]) -> dict[str, Any]:
    """A work at one cohort size."""
    work = with_clients(work, K=C, C=C, images=10 if options.quick else IMAGES)
    environment = environment_of(work, options.data_root)
    plain = PlainContender(work, options.data_root, options.threads, device)
    with closing(plain), closing(build_engine(engine, environment, None, 1)) as built:
        ours = Finished(EngineContender(environment, built), device)
        contenders: dict[str, Contender] = {PLAIN: plain, ENGINE: ours}
        times = interleave(contenders, options.rounds, warm_up=2, say=options.say)
        counted = launches(events_of(lambda: ours.round(options.rounds + 3), device))
    flops, samples = round_flops(work, environment), passes_of(work, environment).trained
    return {
        "C": C,
        "plain": figures(times[PLAIN], times[PLAIN], flops, samples),
        "engine": figures(times[ENGINE], times[PLAIN], flops, samples),
        "launches_per_step": counted / local_steps(work, environment),
        "peak_gflops": max(reached["fp32"], reached["tf32"]),
    }


class Finished:
    """A contender whose round has ended when the device has done all of it."""

    def __init__(self, contender: Contender, device: str) -> None:
        self._contender, self._device = contender, torch.device(device)

    @property
    def pids(self) -> Sequence[int]:
        return self._contender.pids

    def round(self, number: int) -> None:
        self._contender.round(number)
        synchronise(self._device)


def events_of(work: Callable[[], object], device: str) -> list[tuple[str, int]]:
    """Names and numbers of what torch.profiler saw during a call."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as profiled:
        work()
    return [(event.key, event.count) for event in profiled.key_averages()]


def launches(events: Iterable[tuple[str, int]]) -> int:
    """Kernels and graphs that the host started; copies and fills are not among them."""
    return sum(count for name, count in events if name in LAUNCHES)


def peaks(device: torch.device) -> dict[str, float]:
    """GFLOP/s of square matrix products: float32, float32 through TF32 units where there are such, bfloat16."""
    size = MATRIX if device.type == "cuda" else 512
    left, right = (torch.rand(size, size, device=device) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    found = {}
    try:
        for name, allow, dtype in (
            ("fp32", False, torch.float32),
            ("tf32", True, torch.float32),
            ("bf16", False, torch.bfloat16),
        ):
            torch.backends.cuda.matmul.allow_tf32 = allow
            a, b = left.to(dtype), right.to(dtype)

            def product() -> torch.Tensor:
                c = a @ b  # noqa: B023  # called at once
                synchronise(device)
                return c

            found[name] = (
                best_rate(product, matrix_flops(size, size, size), 0.5 if device.type == "cuda" else 0.02) / 1e9
            )
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return found


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
