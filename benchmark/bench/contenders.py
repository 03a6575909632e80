"""Who takes part: the project's engines in this process, and the plain loop in a process of its own.

The plain loop does not share this process, because an engine's settings (one thread, an allocator that keeps freed
memory) are not what a user of plain PyTorch would have.
"""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import torch
import torch.multiprocessing

from benchmark.bench.works import Work, environment_of
from benchmark.errors import FsslError
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment
from benchmark.federated.module import FederatedModule
from benchmark.federated.workers import CpuEngine

PLAIN_LOOP = Path(__file__).resolve().parents[2] / "tests" / "performance" / "plain_loop.py"


class EngineContender:
    """A run of its own over an engine, which several runs may share; `threads` of this process while it runs."""

    def __init__(self, environment: Environment, engine: Engine, threads: int = 1) -> None:
        self.module = FederatedModule(environment, engine)
        self._threads = threads
        self.pids: Sequence[int] = engine.pids if isinstance(engine, CpuEngine) else ()

    def round(self, number: int) -> None:
        torch.set_num_threads(self._threads)
        self.module.training_step(number, 0)


class PlainContender:
    """The plain loop (`tests/performance/plain_loop.py`) in its own process, with a thread for each core.

    Raises FsslError where the checkout's tests are not there, or the loop ended.
    """

    def __init__(self, work: Work, data_root: Path | None, threads: int, device: str = "cpu") -> None:
        if not PLAIN_LOOP.exists():
            raise FsslError(
                f"fssl bench: the yardstick {PLAIN_LOOP.name} is not here; a checkout with tests/ is needed"
            )
        context = torch.multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, work, data_root, threads, device), daemon=True)
        with default_threads():
            self._process.start()
        theirs.close()
        self._answer()

    @property
    def pids(self) -> Sequence[int]:
        assert self._process.pid is not None  # it has been started
        return (self._process.pid,)

    def round(self, number: int) -> None:
        self._connection.send(number)
        self._answer()

    def close(self) -> None:
        self._connection.close()
        self._process.kill()  # it holds nothing
        self._process.join(timeout=5)

    def _answer(self) -> None:
        try:
            self._connection.recv()
        except EOFError:
            raise FsslError("fssl bench: the plain loop's process ended; see its traceback above") from None


@contextlib.contextmanager
def default_threads() -> Iterator[None]:
    """Processes started in here choose their threads themselves."""
    before = os.environ.pop("OMP_NUM_THREADS", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def serve(connection: Connection, work: Work, data_root: Path | None, threads: int, device: str) -> None:
    """The plain loop's process: a round for every number that comes, until the pipe closes."""
    torch.set_num_threads(threads)
    environment = environment_of(work, data_root)
    loop = plain_loop().loop_of(environment, torch.device(device))
    cohort = range(work.cohort)
    with contextlib.suppress(EOFError, OSError):  # nobody asks any more
        connection.send(None)
        while True:
            number = connection.recv()
            loop.round(cohort)
            synchronise(torch.device(device))
            connection.send(number)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plain_loop() -> ModuleType:
    """The module of the plain loop, from its file: `tests` is no package of the project."""
    name = "fssl_plain_loop"
    spec = importlib.util.spec_from_file_location(name, PLAIN_LOOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
