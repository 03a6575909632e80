"""Matrix products by oneDNN instead of MKL, where they stay float32.

MKL runs on AMD's processors at less than oneDNN's speed: at half of it on Zen 5, at .85 to .95 of it on Zen 4. The
switch that torch has for it is named after bfloat16, and where a processor multiplies in bfloat16 by itself (AMX) it
may do just that; so it is tried on one product and taken back where the result is not that of float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

SETTINGS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch says so of a module it makes
# Products of float32 of 256 terms near 1 are off by about 1e-7 relative to their size; of bfloat16 by 4e-3.
MOST = 1e-5


@contextmanager
def faster_products() -> Iterator[None]:
    """Inside, this process's float32 matrix products are oneDNN's, in all its threads; not where that is not float32.

    A job is inside and the evaluation is not, so that it gives the same bits whoever does the jobs.
    """
    before = SETTINGS.fp32_precision
    SETTINGS.fp32_precision = "bf16" if stay_float32() else before
    try:
        yield
    finally:
        SETTINGS.fp32_precision = before


@cache
def stay_float32() -> bool:
    """Whether one product under the switch is what it has to be."""
    before = SETTINGS.fp32_precision
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.rand(256, 256, generator=draw, dtype=torch.float64) for _ in range(2))
    SETTINGS.fp32_precision = "bf16"
    off = ((left.float() @ right.float()).double() - left.float().double() @ right.float().double()).abs().max()
    SETTINGS.fp32_precision = before
    return float(off / 256) < MOST
