"""Workers in the place of processes: each run is over at once."""

from collections.abc import Callable, Iterator

from benchmark.errors import FsslError
from benchmark.experiment import Experiment


class Here:
    """`do` is called for each run, and returns how it ended."""

    size = 1

    def __init__(self, do: Callable[[Experiment], FsslError | None]) -> None:
        self.tried, self._do = list[Experiment](), do
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
