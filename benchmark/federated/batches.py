"""Batches of one job: drawn, augmented many local steps at once, and handed out one step at a time.

Legend: N images, C channels, H W pixels, P positions of a stream over several steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmark.data.augment import make_views
from benchmark.federated.environment import Environment, Part
from benchmark.methods.protocol import Batch, Job, Key, Stream
from benchmark.streams import numpy_stream, torch_stream

# Images augmented in one go: large enough to spread the cost of each tensor operation, small enough to stay in cache.
# Part of the numbers: the augmentation's draws are made per span.
SPAN = 512


@dataclass(frozen=True, kw_only=True)
class LocalBatch:
    """One local step's batches, and beside them the hidden labels for measuring pseudo-labels."""

    streams: Mapping[str, Batch]
    truth_N: Tensor | None  # of the stream "unlabelled"; the method's loss does not get it

    def to(self, device: torch.device) -> "LocalBatch":
        """The same batches on `device` (itself where they already are there)."""
        streams = {
            name: Batch(
                views={view: images.to(device) for view, images in batch.views.items()},
                labels_N=None if batch.labels_N is None else batch.labels_N.to(device),
            )
            for name, batch in self.streams.items()
        }
        return LocalBatch(streams=streams, truth_N=None if self.truth_N is None else self.truth_N.to(device))


def passes(size: int, batch_size: int, steps: int, drop_last: bool, draw: np.random.Generator) -> list[np.ndarray]:
    """Positions of `steps` batches from reshuffled passes over `size` images.

    A holder with fewer images than a batch gives all of them in every batch.
    """
    batch = min(batch_size, size)
    batches: list[np.ndarray] = []
    while len(batches) < steps:
        order = draw.permutation(size)
        end = size - size % batch if drop_last else size
        batches += [order[first : first + batch] for first in range(0, end, batch)]
    return batches[:steps]


def steps_of(job: Job, environment: Environment) -> int:
    """The number of local steps of a job: given, or passes over its longest stream."""
    if job.limit.steps is not None:
        return job.limit.steps
    assert job.limit.epochs is not None
    lengths = []
    for stream in job.data.values():
        size = len(environment.part(job.key.client, stream.part))
        batch = min(stream.batch_size, size)
        lengths.append(size // batch if stream.drop_last else -(-size // batch))
    return job.limit.epochs * max(lengths)


class JobBatches:
    """The batches of one job, in order. Depends on nothing but the seed, the round, the job's key and its streams."""

    def __init__(self, environment: Environment, job: Job, round_number: int, purpose: str = "train") -> None:
        self._environment = environment
        self._job = job
        self._names = (purpose, "round", round_number, *key_names(job.key))
        self.steps = steps_of(job, environment)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[LocalBatch]:
        streams = {name: self._stream(name, stream) for name, stream in self._job.data.items()}
        for _ in range(self.steps):
            drawn = {name: next(stream) for name, stream in streams.items()}
            truth_N = drawn["unlabelled"][1] if "unlabelled" in drawn else None
            yield LocalBatch(streams={name: batch for name, (batch, _) in drawn.items()}, truth_N=truth_N)

    def _stream(self, name: str, stream: Stream) -> Iterator[tuple[Batch, Tensor | None]]:
        part = self._environment.part(self._job.key.client, stream.part)
        seed = self._environment.experiment.seed
        order = passes(
            len(part),
            stream.batch_size,
            self.steps,
            stream.drop_last,
            numpy_stream(seed, *self._names, name, "order"),
        )
        draw = torch_stream(seed, *self._names, name, "augmentation")
        per_span = max(1, SPAN // max(1, len(order[0]))) if order else 1
        for first in range(0, len(order), per_span):
            yield from self._span(part, stream, order[first : first + per_span], draw)

    def _span(
        self, part: Part, stream: Stream, order: list[np.ndarray], draw: torch.Generator
    ) -> Iterator[tuple[Batch, Tensor | None]]:
        data = self._environment.data
        at_P = part.positions_N[torch.from_numpy(np.concatenate(order))]
        views = make_views(
            part.images_NCHW[at_P], stream.views, self._environment.augmentation, data.mean, data.std, draw
        )
        sizes = [len(batch) for batch in order]
        pieces = {name: images.split(sizes) for name, images in views.items()}
        labels = part.labels_N[at_P].split(sizes) if part.labels_N is not None else None
        truth = part.truth_N[at_P].split(sizes) if part.truth_N is not None else None
        for index in range(len(order)):
            images = {name: piece[index] for name, piece in pieces.items()}
            batch = Batch(views=images, labels_N=labels[index] if labels else None)
            yield batch, truth[index] if truth else None


def key_names(key: Key) -> tuple[str | int, ...]:
    """A job's key as the name of its random streams."""
    return ("client", key.client, "draw", key.draw)
