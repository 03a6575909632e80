"""Named random streams: every draw has a name, so that adding one never moves another.

`numpy_stream(seed, "partition")` and `torch_stream(seed, "client", 7, "round", 3)` depend on nothing
but their arguments: no global generator is read or written, and resuming a run restores no generator state.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed from `seed` and the stream's name, the same on every machine and Python version."""
    name = "\x1f".join([str(int(seed)), *(f"{type(part).__name__}:{part}" for part in names)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for host-side draws (partitions, cohorts, groups, batch order)."""
    return np.random.default_rng(stream_seed(seed, *names))


def torch_stream(seed: int, *names: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator for draws on tensors (augmentation, mixing, initial weights)."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, *names))


def shuffled(indices_N: npt.NDArray[np.int64], stream: np.random.Generator) -> npt.NDArray[np.int64]:
    """A shuffle from raw generator bits: NumPy promises these for ever, but not what `permutation` makes of them."""
    raw_N = stream.bit_generator.random_raw(len(indices_N))
    return indices_N[np.argsort(raw_N, kind="stable")].astype(np.int64)


def seed_global(seed: int) -> None:
    """What torch.manual_seed does to the generators of the CPU and of the CUDA devices in use.

    That notes the seed for devices that nobody has opened as well, with a trace of where it was called: a tenth of the
    time of a round of small jobs.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
