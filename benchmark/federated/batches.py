"""Draw the batches of jobs, augment them for many local steps and several jobs at once, and return them step by step.

Shapes: N images, C channels, H W pixels, P positions of a stream over several steps, D draws per image.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from benchmark.data.augment import draws_of, views_of
from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError
from benchmark.federated.environment import Environment, Part
from benchmark.federated.stopping import check
from benchmark.federated.trees import moved
from benchmark.methods.protocol import Batch, Job, Key, Selected
from benchmark.streams import numpy_stream, torch_stream

# How much is augmented at once. On a CPU, SPAN images: large enough to amortise the cost of each tensor operation, and
# small enough to stay in cache. On other devices, MOST_BYTES bytes of views. The draws come image by image from the
# job's stream, so that these numbers do not change any result.
SPAN = 512
MOST_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class LocalBatch:
    """The batches of one local step, and the hidden labels for evaluating pseudo-labels."""

    streams: Mapping[str, Batch]
    truth_N: Tensor | None  # labels of the stream "unlabelled", which the method's loss does not get
    phase: int = 0  # index of the update's loss that is computed on it

    def to(self, device: torch.device) -> "LocalBatch":
        """Return the same batches on `device`; a Lightning Trainer calls this."""
        streams = {name: Batch(**moved(vars(batch), device)) for name, batch in self.streams.items()}
        return LocalBatch(streams=streams, truth_N=moved(self.truth_N, device), phase=self.phase)


def passes(size: int, batch_size: int, steps: int, drop_last: bool, draw: np.random.Generator) -> list[np.ndarray]:
    """Draw the positions of `steps` batches from reshuffled passes over `size` images.

    If a participant has fewer images than a batch, every batch contains all of them.
    """
    batch = min(batch_size, size)
    batches: list[np.ndarray] = []
    while len(batches) < steps:
        order = draw.permutation(size)
        end = size - size % batch if drop_last else size
        batches += [order[first : first + batch] for first in range(0, end, batch)]
    return batches[:steps]


def sizes_of(size: int, batch_size: int, steps: int, drop_last: bool) -> list[int]:
    """Return the sizes of the batches of `passes`."""
    batch = min(batch_size, size)
    whole, rest = divmod(size, batch)
    of_pass = [batch] * whole
    if rest > 0 and not drop_last:
        of_pass.append(rest)
    return (of_pass * -(-steps // len(of_pass)))[:steps]


def sources_of(
    job: Job, environment: Environment, round_number: int, selected: Mapping[str, Selected]
) -> dict[str, Part]:
    """Return the images that each stream of a job draws from: a data subset, or the part that `start` selected."""
    parts = {name: environment.part(job.key.client, stream.part, round_number) for name, stream in job.data.items()}
    for name, some in selected.items():
        if name in parts:
            at_N = parts[name].positions_N[some.positions_N]
            parts[name] = replace(parts[name], positions_N=at_N, pseudo_labels_N=some.labels_N)
    return parts


def steps_of(job: Job, sources: Mapping[str, Part]) -> int:
    """Return a job's number of local steps: given, or for passes over its longest stream, times its phases."""
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
    """The batches of one job, in order, which depend only on the seed, the round, the job's key and its streams."""

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
            raise ConfigError(f"{job.key.participant} has no images for the stream {empty[0]!r} of its local training")
        if not job.data:
            raise ConfigError(f"{job.key.participant} has no images for its local training")
        self.steps = steps_of(job, self._sources)

    def __len__(self) -> int:
        return self.steps

    def sizes(self) -> list[tuple[int, ...]]:
        """Return the sizes of each step's batches, in the order of the streams."""
        steps = self.steps // self.phases
        of_streams = []
        for name, stream in self._job.data.items():
            of_streams.append(sizes_of(len(self._sources[name]), stream.batch_size, steps, stream.drop_last))
        return list(zip(*of_streams, strict=True))

    def __iter__(self) -> "BatchIterator":
        """Return an iterator over the batches; every batch occurs once per phase."""
        return BatchIterator({name: self._stream(name) for name in self._job.data}, self.steps, self.phases)

    def _stream(self, name: str) -> "StreamBatches":
        """Return one stream's batches from the first one.

        Their order is drawn in this call; their views are drawn when they are computed.
        """
        source, stream = self._sources[name], self._job.data[name]
        seed = self._environment.experiment.seed
        order = passes(
            len(source),
            stream.batch_size,
            self.steps // self.phases,
            stream.drop_last,
            numpy_stream(seed, *self._names, name, "order"),
        )
        draw = torch_stream(seed, *self._names, name, "augmentation")
        return StreamBatches(self._environment, source, self._chosen.get(name), stream.views, order, draw)


BatchWithTruth = tuple[Batch, Tensor | None]  # a batch of one stream, and the hidden labels of its images


class BatchIterator(Iterator[LocalBatch]):
    """An iterator over a job's batches, which computes views for several steps at once unless `make_together` did."""

    def __init__(self, streams: Mapping[str, "StreamBatches"], steps: int, phases: int) -> None:
        self.streams = streams
        self._phases = phases
        self._left = steps // phases
        self._next: deque[LocalBatch] = deque()  # the same batch, once per phase

    @property
    def bytes_of_views(self) -> int:
        """Return the bytes of all views that are not computed yet."""
        return sum(sum(stream.sizes) * stream.bytes_of_image for stream in self.streams.values())

    def __next__(self) -> LocalBatch:
        if not self._next:
            if not self._left:
                raise StopIteration
            check()
            self._left -= 1
            given = {name: stream.take() for name, stream in self.streams.items()}
            truth_N = given["unlabelled"][1] if "unlabelled" in given else None
            batches = {name: batch for name, (batch, _) in given.items()}
            for phase in range(self._phases):
                self._next.append(LocalBatch(streams=batches, truth_N=truth_N, phase=phase))
        return self._next.popleft()


class StreamBatches:
    """One stream of a job: the positions of all its batches, and the batches with views that are already computed.

    The views are drawn from `draw` batch by batch, so that they depend neither on how many batches are computed at once
    nor on other streams.
    """

    def __init__(
        self,
        environment: Environment,
        source: Part,
        chosen_N: Tensor | None,
        views: Sequence[str],
        order: Sequence[np.ndarray],
        draw: torch.Generator,
    ) -> None:
        self._environment = environment
        self.source, self.views, self.draw = source, views, draw
        self._chosen_N = chosen_N
        self.sizes = deque(len(batch) for batch in order)  # sizes of the batches that are not computed yet
        self._in_source = deque(order)
        self._made: deque[BatchWithTruth] = deque()
        self.device = source.images_NCHW.device
        self.bytes_of_image = 4 * max(1, len(views)) * math.prod(environment.data.image_shape)

    @property
    def recipe(self) -> tuple[object, ...]:
        """Return the recipe of the views, which determines their operations; streams with equal recipes are augmented
        together.
        """
        data = self._environment.data
        tables = (self.source.images_NCHW, self.source.labels_N, self.source.truth_N)
        how = (self._environment.augmentation, tuple(data.mean), tuple(data.std))
        return (*map(id, tables), tuple(self.views), *how, self.source.pseudo_labels_N is None)

    def take(self) -> BatchWithTruth:
        """Return the next batch."""
        if not self._made:
            make([(self, self._span())])
        return self._made.popleft()

    def _span(self) -> int:
        """Return how many batches are computed at once by default."""
        size = max(1, self.sizes[0])
        return max(1, SPAN // size if self.device.type == "cpu" else MOST_BYTES // (size * self.bytes_of_image))

    def drawn(self, batches: int) -> "Drawn":
        """Draw the positions and views of the next `batches` batches, or of all remaining ones if these are fewer."""
        sizes = [self.sizes.popleft() for _ in range(min(batches, len(self.sizes)))]
        in_source_P = torch.from_numpy(np.concatenate([self._in_source.popleft() for _ in sizes]))
        given_N = self.source.pseudo_labels_N
        return Drawn(
            stream=self,
            sizes=sizes,
            at_P=self.source.positions_N[in_source_P],
            in_subset_P=in_source_P if self._chosen_N is None else self._chosen_N[in_source_P],
            pseudo_labels_P=None if given_N is None else given_N[in_source_P],
            draws_PD=draws_of(sum(sizes), self._environment.augmentation, self.draw),
        )

    def add(self, batches: Iterable[BatchWithTruth]) -> None:
        """Append batches that were computed from the last draws."""
        self._made.extend(batches)

    def views_of(self, images_NCHW: Tensor, draws_ND: Tensor) -> dict[str, Tensor]:
        """Return the stream's views of these images."""
        data = self._environment.data
        return views_of(images_NCHW, self.views, self._environment.augmentation, data.mean, data.std, draws_ND)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """The draws that determine several batches of a stream, on the host."""

    stream: StreamBatches
    sizes: Sequence[int]
    at_P: Tensor  # positions in the whole set of images
    in_subset_P: Tensor  # positions in the participant's data subset
    pseudo_labels_P: Tensor | None  # pseudo-labels that `start` assigned
    draws_PD: Tensor


def make_together(jobs: Sequence[BatchIterator], steps: int | None = None) -> None:
    """Compute the batches of the next `steps` steps of several jobs at once, or of all their steps.

    They are bit-equal to the batches that each job computes separately. The caller must limit the memory; see
    `BatchIterator.bytes_of_views`.
    """
    of_each = [job.streams.values() for job in jobs]
    streams = [stream for stream in chain.from_iterable(of_each) if stream.sizes]
    make([(stream, len(stream.sizes) if steps is None else steps) for stream in streams])


def make(asked: Sequence[tuple[StreamBatches, int]]) -> None:
    """Compute the next batches of several streams; streams with the same recipe are gathered and augmented together."""
    by_recipe: dict[object, list[Drawn]] = defaultdict(list)
    for stream, batches in asked:
        by_recipe[stream.recipe].append(stream.drawn(batches))
    for drawn in by_recipe.values():
        _made_of(drawn)


def _made_of(drawn: Sequence[Drawn]) -> None:
    """Compute the drawn batches of streams with one recipe, on the images' device.

    Positions and draws are copied to the device once.
    """
    stream = drawn[0].stream
    source, device = stream.source, stream.device

    def there(values: Sequence[Tensor]) -> Tensor:
        return to_device(torch.cat(list(values)) if len(values) > 1 else values[0], device)

    sizes = list(chain.from_iterable(part.sizes for part in drawn))
    at_P = there([part.at_P for part in drawn])
    pseudo_labels = [part.pseudo_labels_P for part in drawn if part.pseudo_labels_P is not None]
    known_P = [there(pseudo_labels) if pseudo_labels else None]
    known_P += [None if values_N is None else values_N[at_P] for values_N in (source.labels_N, source.truth_N)]
    pseudo, labels, truth = ([None] * len(sizes) if values_P is None else values_P.split(sizes) for values_P in known_P)
    positions = there([part.in_subset_P for part in drawn]).split(sizes)
    draws_ND = torch.cat([part.draws_PD for part in drawn]) if len(drawn) > 1 else drawn[0].draws_PD
    views = stream.views_of(source.images_NCHW[at_P], draws_ND)
    pieces = zip(*(view_NCHW.split(sizes) for view_NCHW in views.values()), strict=True)
    made: list[BatchWithTruth] = []
    for index, of_batch in enumerate(pieces):
        batch = Batch(
            views=dict(zip(views, of_batch, strict=True)),
            labels_N=labels[index],
            pseudo_labels_N=pseudo[index],
            positions_N=positions[index],
        )
        made.append((batch, truth[index]))
    first = 0
    for part in drawn:
        part.stream.add(made[first : first + len(part.sizes)])
        first += len(part.sizes)


def key_names(key: Key) -> tuple[str | int, ...]:
    """Return a job's key as the name of its random streams."""
    return ("client", key.client, "draw", key.draw)
