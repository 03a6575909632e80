"""What the machine can do at most: matrix products and a convolution at large sizes, in FLOPs a second.

Legend: N images, C channels, H W pixels; M K N rows and columns of matrices.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SIZE = 2048  # of square matrices
CONVOLUTION = (32, 256, 32)  # images, channels, pixels a side
CONVOLUTION_PEAK = "fp32 convolution 3x3, 256 -> 256, channels last"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """A kind of work, and what is reached at one thread and at all of them."""

    what: str
    threads: int
    gflops: float


def peaks(threads: int, seconds: float) -> list[Peak]:
    """Best rate of repeated calls over about `seconds` each, at 1 and at `threads` threads of this process."""
    before = torch.get_num_threads()
    found = []
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            found += [
                Peak(what=what, threads=count, gflops=best_rate(work, flops, seconds) / 1e9)
                for what, work, flops in kinds()
            ]
    finally:
        torch.set_num_threads(before)
    return found


def kinds() -> list[tuple[str, Callable[[], Tensor], float]]:
    """Name, one call, and its FLOPs."""
    draw = torch.Generator().manual_seed(0)
    left_MK, right_KN = (torch.rand(SIZE, SIZE, generator=draw) for _ in range(2))
    left_bf16_MK, right_bf16_KN = left_MK.bfloat16(), right_KN.bfloat16()
    N, C, side = CONVOLUTION
    images_NCHW = torch.rand(N, C, side, side, generator=draw).to(memory_format=torch.channels_last)
    kernel_CC33 = torch.rand(C, C, 3, 3, generator=draw).to(memory_format=torch.channels_last)
    found: list[tuple[str, Callable[[], Tensor], float]] = [
        ("fp32 matrix product, MKL", lambda: left_MK @ right_KN, matrix_flops(SIZE, SIZE, SIZE)),
    ]
    if torch.backends.mkldnn.is_available():
        product = torch.ops.mkldnn._linear_pointwise
        found.append(
            (
                "fp32 matrix product, oneDNN",
                lambda: product(left_MK, right_KN, None, "none", [], ""),
                matrix_flops(SIZE, SIZE, SIZE),
            )
        )
    found.append(
        (
            CONVOLUTION_PEAK,
            lambda: functional.conv2d(images_NCHW, kernel_CC33, padding=1),
            convolution_flops(N, C, C, side, side, 3),
        )
    )
    found.append(
        (
            "bf16 matrix product",
            lambda: left_bf16_MK @ right_bf16_KN,
            matrix_flops(SIZE, SIZE, SIZE),
        )
    )
    return found


def matrix_flops(M: int, K: int, N: int) -> float:
    """(M, K) times (K, N): a multiplication and an addition for each of M K N."""
    return 2.0 * M * K * N


def convolution_flops(images: int, channels_in: int, channels_out: int, rows: int, columns: int, kernel: int) -> float:
    """Of a convolution whose output has `rows` x `columns` pixels."""
    return 2.0 * images * channels_in * channels_out * rows * columns * kernel**2


@torch.no_grad()
def best_rate(work: Callable[[], Tensor], flops: float, seconds: float) -> float:
    """FLOPs a second of the fastest call, after one that is not counted."""
    work()
    fastest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or fastest == float("inf"):
        started = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - started)
    return flops / fastest


def convolution_peak(found: list[Peak]) -> float:
    """The fp32 convolution at the most threads, in GFLOP/s: what shares of the peak are shares of."""
    return max(peak.gflops for peak in found if peak.what == CONVOLUTION_PEAK)
