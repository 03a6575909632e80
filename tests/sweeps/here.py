"""Replace worker processes by workers in this process, which train each run at once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from sweeps.workers import attempt


class Here:
    """`do` is called for each run, and returns how it ended."""

    size = 1

    def __init__(self, do: Callable[[Experiment], FsslError | None]) -> None:
        self.tried = list[Experiment]()
        self._do = do
        self.running: list[Experiment] = []

    def start(self, run: Experiment) -> None:
        self.tried.append(run)
        self.running.append(run)

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        while self.running:
            run = self.running.pop()
            yield run, self._do(run)

    def stop(self) -> None: ...

    def close(self) -> None: ...


def in_this_process(size: int, results: Path, *options: Any) -> Here:
    """Replace `LocalWorkers` in tests that need no separate processes, because each process needs seconds to load
    torch.
    """
    return Here(lambda experiment: attempt(experiment, results, "cpu"))
