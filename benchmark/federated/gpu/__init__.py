"""The engine for one CUDA device: a cohort's images augmented at once, and local steps of several clients together."""

from benchmark.federated.gpu.device import device_named
from benchmark.federated.gpu.engine import GpuEngine
from benchmark.federated.gpu.measure import CANDIDATES

__all__ = ["CANDIDATES", "GpuEngine", "device_named"]
