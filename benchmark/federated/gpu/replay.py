"""A step on fixed memory, replayed: as a CUDA graph on a CUDA device, as what it is elsewhere.

Legend: K clients, N images of a batch, A reported scalars.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.federated.gpu.branch import Found

# Steps taken eagerly before one is captured: the libraries choose their kernels and allocate workspaces in the first,
# which a capture does not allow. They are steps of the job like any other; capturing takes none.
EAGER_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class FoundTogether:
    """What a step of K clients reports."""

    names: tuple[str, ...]
    scalars_KA: Tensor
    labels_KN: Tensor | None
    kept_KN: Tensor | None

    def of(self, client: int) -> Found:
        return Found(
            names=self.names,
            scalars_A=self.scalars_KA[client],
            labels_N=None if self.labels_KN is None else self.labels_KN[client],
            kept_N=None if self.kept_KN is None else self.kept_KN[client],
        )

    def cloned(self) -> "FoundTogether":
        """Out of the memory that the next replay overwrites."""
        return FoundTogether(
            names=self.names,
            scalars_KA=self.scalars_KA.clone(),
            labels_KN=None if self.labels_KN is None else self.labels_KN.clone(),
            kept_KN=None if self.kept_KN is None else self.kept_KN.clone(),
        )


class Replay:
    """Takes `step` eagerly `EAGER_STEPS` times, then captures it once and replays the graph.

    Where a capture fails, steps stay eager and `failure` says why. On another device than CUDA they always are.
    """

    def __init__(self, step: Callable[[], FoundTogether], device: torch.device) -> None:
        self._step = step
        self._eager_left = EAGER_STEPS
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: FoundTogether | None = None
        self.failure: str | None = None if device.type == "cuda" else "no CUDA device"

    def __call__(self) -> FoundTogether:
        if self.failure is None and self._graph is None and self._eager_left == 0:
            self._capture()
        if self._graph is None or self._found is None:
            self._eager_left = max(0, self._eager_left - 1)
            return self._step()
        self._graph.replay()
        return self._found.cloned()

    def _capture(self) -> None:
        """Record the step on the current stream, on which the eager ones ran, so that its handles are made."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._found = self._step()
            self._graph = graph
        except RuntimeError as error:
            self.failure = str(error).splitlines()[0]
