"""Batches of one job: drawn, augmented many local steps at once, and handed out one step at a time.

Legend: N images, C channels, H W pixels, P positions of a stream over several steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from benchmark.data.augment import make_views
from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError
from benchmark.federated.environment import Environment, Part
from benchmark.federated.stopping import check
from benchmark.federated.trees import moved
from benchmark.methods.protocol import Batch, Job, Key, Selected
from benchmark.streams import numpy_stream, torch_stream

# Images augmented in one go: large enough to spread the cost of each tensor operation, small enough to stay in cache.
# The draws come image by image from the job's stream, so that this number moves no result.
SPAN = 512


@dataclass(frozen=True, kw_only=True)
class LocalBatch:
    """One local step's batches, and the hidden labels that pseudo-labels are measured with."""

    streams: Mapping[str, Batch]
    truth_N: Tensor | None  # of the stream "unlabelled"; the method's loss does not get it
    phase: int = 0  # which of the update's losses is taken on it

    def to(self, device: torch.device) -> "LocalBatch":
        """The same batches on `device`; a Lightning Trainer moves them so."""
        streams = {name: Batch(**moved(vars(batch), device)) for name, batch in self.streams.items()}
        return LocalBatch(streams=streams, truth_N=moved(self.truth_N, device), phase=self.phase)


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


def sources_of(
    job: Job, environment: Environment, round_number: int, selected: Mapping[str, Selected]
) -> dict[str, Part]:
    """What each stream of a job draws from: a part, or the images of it that the job's `start` selected."""
    parts = {name: environment.part(job.key.client, stream.part, round_number) for name, stream in job.data.items()}
    for name, some in selected.items():
        if name in parts:
            at_N = parts[name].positions_N[some.positions_N]
            parts[name] = replace(parts[name], positions_N=at_N, pseudo_labels_N=some.labels_N)
    return parts


def steps_of(job: Job, sources: Mapping[str, Part]) -> int:
    """The number of local steps of a job: given, or passes over its longest stream (each once for each phase)."""
    phases = len(job.update.phases)
    if job.limit.steps is not None:
        return job.limit.steps * phases
    assert job.limit.epochs is not None
    lengths = []
    for name, stream in job.data.items():
        size = len(sources[name])
        batch = min(stream.batch_size, size)
        lengths.append(size // batch if stream.drop_last else -(-size // batch))
    return job.limit.epochs * max(lengths) * phases


class JobBatches:
    """The batches of one job, in order. Depends on nothing but the seed, the round, the job's key and its streams."""

    def __init__(
        self,
        environment: Environment,
        job: Job,
        round_number: int,
        purpose: str = "train",
        selected: Mapping[str, Selected] | None = None,
    ) -> None:
        self._environment = environment
        self._job = job
        self._names = (purpose, "round", round_number, *key_names(job.key))
        selected = selected or {}
        self._sources = sources_of(job, environment, round_number, selected)
        self._chosen = {name: some.positions_N for name, some in selected.items()}
        self.phases = len(job.update.phases)
        empty = [name for name, source in self._sources.items() if not len(source)]
        if empty:
            raise ConfigError(
                f"holder {job.key.client} has no images for the stream {empty[0]!r} of its local training"
            )
        if not job.data:
            raise ConfigError(f"holder {job.key.client} has no images for its local training")
        self.steps = steps_of(job, self._sources)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[LocalBatch]:
        """Every batch comes once for each phase."""
        streams = {name: self._stream(name) for name in self._job.data}
        for _ in range(self.steps // self.phases):
            check()
            drawn = {name: next(stream) for name, stream in streams.items()}
            truth_N = drawn["unlabelled"][1] if "unlabelled" in drawn else None
            batches = {name: batch for name, (batch, _) in drawn.items()}
            for phase in range(self.phases):
                yield LocalBatch(streams=batches, truth_N=truth_N, phase=phase)

    def _stream(self, name: str) -> Iterator[tuple[Batch, Tensor | None]]:
        """One stream's batches with the truth of their images, on the images' device.

        Positions are sent there once a job. A view's draws are made span by span.
        """
        source, stream, data = self._sources[name], self._job.data[name], self._environment.data
        seed, device = self._environment.experiment.seed, source.images_NCHW.device
        order = passes(
            len(source),
            stream.batch_size,
            self.steps // self.phases,
            stream.drop_last,
            numpy_stream(seed, *self._names, name, "order"),
        )
        sizes = [len(batch) for batch in order]
        draw = torch_stream(seed, *self._names, name, "augmentation")
        in_source_P = torch.from_numpy(np.concatenate(order))
        at_P = to_device(source.positions_N[in_source_P], device)
        given_N, chosen_N = source.pseudo_labels_N, self._chosen.get(name)
        in_subset_P = in_source_P if chosen_N is None else chosen_N[in_source_P]
        known = [None if given_N is None else to_device(given_N[in_source_P], device)]
        known += [None if values_N is None else values_N[at_P] for values_N in (source.labels_N, source.truth_N)]
        pseudo, labels, truth = (
            repeat(None) if values_P is None else iter(values_P.split(sizes)) for values_P in known
        )
        positions = iter(to_device(in_subset_P, device).split(sizes))
        per_span = max(1, SPAN // max(1, sizes[0]))
        spans = [sizes[first : first + per_span] for first in range(0, len(sizes), per_span)]
        for span, at_S in zip(spans, at_P.split(list(map(sum, spans))), strict=True):
            images_NCHW = source.images_NCHW[at_S]
            views = make_views(images_NCHW, stream.views, self._environment.augmentation, data.mean, data.std, draw)
            for pieces in zip(*(images.split(span) for images in views.values()), strict=True):
                batch_views = dict(zip(views, pieces, strict=True))
                batch = Batch(
                    views=batch_views,
                    labels_N=next(labels),
                    pseudo_labels_N=next(pseudo),
                    positions_N=next(positions),
                )
                yield batch, next(truth)


def key_names(key: Key) -> tuple[str | int, ...]:
    """A job's key as the name of its random streams."""
    return ("client", key.client, "draw", key.draw)
