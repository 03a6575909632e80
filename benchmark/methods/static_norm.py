"""Static batch normalisation (SemiFL section 3.4): statistics asked from holders of images, between local training."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.methods import protocol as fl
from benchmark.methods.shared import ReadOnlyUpdate, sent
from benchmark.models.norms import mean_statistics


@dataclass(frozen=True, kw_only=True)
class StatisticsUpdate(ReadOnlyUpdate):
    """The statistics of each static batch norm over a holder's images, and their weight."""

    part: fl.PartName
    pooled: bool
    batch_size: int = 250  # released: data.py:242-254

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        statistics, count = reader.statistics(received["student"], self.part, self.batch_size, self.pooled)
        return {"statistics": statistics, "count": count} if count else {}


def with_static_statistics(
    weights: fl.Weights, world: fl.World, clients: Sequence[int], *, pooled: bool = True
) -> fl.Weights:
    """The weights with static batch norms' statistics of the holders' images.

    They are asked from the server, for its labelled images, and from `clients`, for all theirs. pooled: E[x] and
    Var[x], "where x represents the whole dataset" (section 3.4). Else a mean over batches: with batch norms of
    PyTorch's `momentum=None` the same as one pass over everyone's images in turn, except that no batch has images of
    two holders; between clients of different classes the means' own spread is then lost. Other networks are returned as
    they are, without a pass.
    """
    if world.model.norm != "sbn":
        return weights
    asked: list[tuple[int, fl.PartName]] = []
    for holder in (fl.SERVER, *clients):
        if world.labelled[holder]:
            asked.append((holder, "labelled"))
        if world.unlabelled(holder):
            asked.append((holder, "unlabelled"))
    jobs = [
        world.job(holder, StatisticsUpdate(part=part, pooled=pooled), {"student": weights}) for holder, part in asked
    ]
    shares = [(answer["statistics"], answer["count"]) for _, answer in sent(world.fit(jobs))]
    statistics = mean_statistics(shares, pooled=pooled)
    return {**weights, **{name: value.to(weights[name]) for name, value in statistics.items()}}
