"""Batches in parts, for a holder whose batches do not fit into memory: gradients of the parts add up to the batch's.

That is so where no image's output depends on the others of its batch, nothing is drawn while it passes, and the loss is
a mean over images (beside terms of the weights alone). Then parts of equal size give the same mean in another order of
adding: weights within 1e-6 of the whole batch's after a job, not the same bits. A round in which a job was taken so
says it in its line (`IN_PARTS`).
"""

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from benchmark.federated.batches import LocalBatch
from benchmark.methods.protocol import Batch, Job
from benchmark.models.build import has_batch_statistics

IN_PARTS = "memory/jobs_in_parts"  # how many jobs of a round were taken so; only in lines of rounds with such jobs


def why_whole(job: Job, network: nn.Module, precision: str) -> str | None:
    """Why the job's batches cannot be taken in parts; None where they can.

    An update says `mean_over_images = True` in its own class: a class that inherits from it may have another loss.
    """
    if not vars(type(job.update)).get("mean_over_images", False):
        return f"the loss of {type(job.update).__name__} is not known to be a mean over images"
    if has_batch_statistics(network):
        return "its network has batch norm, which would see other batches"
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in network.modules()):
        return "its network has dropout, whose masks would be others"
    if precision != "fp32":
        return f"{precision} rounds too much for the sums to be equal"
    return None


def most_parts(job: Job) -> int:
    """Into how many parts a batch of the job may be cut: one image of each stream a part."""
    return math.gcd(*(stream.batch_size for stream in job.data.values()))


def in_parts(batch: LocalBatch, wanted: int) -> Sequence[LocalBatch]:
    """The batch in at least so many parts of equal size in every stream, or in as many as its sizes allow."""
    if wanted == 1:
        return (batch,)
    common = math.gcd(*(len(next(iter(stream.views.values()))) for stream in batch.streams.values()))
    count = next((n for n in range(wanted, common) if common % n == 0), common)
    return [
        LocalBatch(
            streams={name: _part(stream, number, count) for name, stream in batch.streams.items()},
            truth_N=_cut(batch.truth_N, number, count),
            phase=batch.phase,
        )
        for number in range(count)
    ]


def _part(stream: Batch, number: int, count: int) -> Batch:
    return Batch(
        views={name: images.chunk(count)[number] for name, images in stream.views.items()},
        labels_N=_cut(stream.labels_N, number, count),
        pseudo_labels_N=_cut(stream.pseudo_labels_N, number, count),
    )


def _cut(tensor_N: Tensor | None, number: int, count: int) -> Tensor | None:
    return None if tensor_N is None else tensor_N.chunk(count)[number]
