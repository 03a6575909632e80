"""The batches of many jobs, all their images augmented at once on the device, with the reference's own draws.

Draws are made as `JobBatches` makes them, job by job and span by span, on the CPU; what is computed from them is row by
row, and so does not depend on which rows are computed together: on a CPU the batches are the reference's bit by bit.

Legend: N images of a batch, P images of streams with the same views, D draws per image, C channels, H W pixels.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmark.data.augment import draw_views, views_from
from benchmark.federated.batches import Drawn, JobBatches, LocalBatch
from benchmark.federated.environment import Environment
from benchmark.methods.protocol import Batch


def cohort_batches(
    environment: Environment, jobs: Sequence[JobBatches], device: torch.device
) -> list[list[LocalBatch]]:
    """For each job the batches of its local steps, in order; images and labels on `device`, the truth on the host.

    The environment's images have to be on `device`.
    """
    drawn = [list(job.drawn()) for job in jobs]
    by_views: dict[tuple[str, ...], list[tuple[int, Drawn]]] = defaultdict(list)
    for index, streams in enumerate(drawn):
        for stream in streams:
            by_views[stream.stream.views].append((index, stream))
    made: list[dict[str, Iterator[tuple[Batch, Tensor | None]]]] = [{} for _ in jobs]
    for members in by_views.values():
        joined = _joined(environment, [stream for _, stream in members], device)
        for (index, stream), batches in zip(members, joined, strict=True):
            made[index][stream.name] = batches
    return [list(job.local_steps(streams)) for job, streams in zip(jobs, made, strict=True)]


def bytes_of(environment: Environment, jobs: JobBatches) -> int:
    """Bytes of a job's batches on the device: its views as float32."""
    pixels = int(np.prod(environment.data.image_shape))
    return sum(
        4 * pixels * len(drawn.stream.views) * sum(len(batch) for span in drawn.spans for batch in span)
        for drawn in jobs.drawn()
    )


def _joined(
    environment: Environment, streams: Sequence[Drawn], device: torch.device
) -> Iterator[Iterator[tuple[Batch, Tensor | None]]]:
    """The batches of each of these streams, which have equal views."""
    data, augmentation = environment.data, environment.augmentation
    in_source = [torch.from_numpy(np.concatenate([at for span in s.spans for at in span])) for s in streams]
    at = [s.source.positions_N[of] for s, of in zip(streams, in_source, strict=True)]
    sizes = [len(positions) for positions in at]
    draws_PD = torch.cat(
        [draw_views(sum(map(len, span)), augmentation, stream.draw) for stream in streams for span in stream.spans]
    )
    images_PCHW = data.train_images_NCHW.index_select(0, torch.cat(at).to(device, non_blocking=True))
    views = views_from(images_PCHW, streams[0].stream.views, augmentation, data.mean, data.std, draws_PD)
    pieces = {name: images.split(sizes) for name, images in views.items()}
    for index, stream in enumerate(streams):
        images = {name: piece[index] for name, piece in pieces.items()}
        yield _cut(stream, images, at[index], in_source[index], device)


def _cut(
    drawn: Drawn, images: dict[str, Tensor], at_P: Tensor, in_source_P: Tensor, device: torch.device
) -> Iterator[tuple[Batch, Tensor | None]]:
    """One stream's images, labels and truth in batches."""
    source, sizes = drawn.source, [len(batch) for span in drawn.spans for batch in span]

    def split(values_N: Tensor | None, rows_P: Tensor, place: torch.device) -> Sequence[Tensor | None]:
        if values_N is None:
            return [None] * len(sizes)
        return values_N[rows_P].to(place, non_blocking=True).split(sizes)

    labels = split(source.part.labels_N, at_P, device)
    pseudo = split(source.pseudo_labels_N, in_source_P, device)
    truth = split(source.part.truth_N, at_P, torch.device("cpu"))
    views = {name: piece.split(sizes) for name, piece in images.items()}
    for index in range(len(sizes)):
        batch = Batch(
            views={name: pieces[index] for name, pieces in views.items()},
            labels_N=labels[index],
            pseudo_labels_N=pseudo[index],
        )
        yield batch, truth[index]
