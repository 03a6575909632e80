"""Static batch normalisation (SemiFL section 3.4): participants measure the statistics outside of local training."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.methods import protocol as fl
from benchmark.methods.shared import ReadOnlyUpdate, sent
from benchmark.models.norms import mean_statistics


@dataclass(frozen=True, kw_only=True)
class StatisticsUpdate(ReadOnlyUpdate):
    """Local work that sends the statistics of each static batch norm over a data subset, and their weight."""

    part: fl.PartName
    pooled: bool
    batch_size: int = 250  # from the released data.py:242-254

    def read(self, received: fl.Tree, reader: fl.Reader) -> fl.Tree:
        statistics, count = reader.statistics(received["student"], self.part, self.batch_size, self.pooled)
        return {"statistics": statistics, "count": count} if count else {}


def with_static_statistics(
    weights: fl.Weights, world: fl.World, clients: Sequence[int], *, pooled: bool = True
) -> fl.Weights:
    """Measure the statistics of static batch norms, and return the weights with these statistics.

    The server measures them on its labelled images, and `clients` on all their images. If `pooled`, they are E[x] and
    Var[x], "where x represents the whole dataset" (section 3.4). If not, they are means over batches. This equals one
    pass over all participants' images in turn with PyTorch's batch norms of `momentum=None`, except that no batch has
    images of two participants. The variance then does not include the spread of the means between clients of different
    classes. The weights of networks without static batch norms are returned unchanged, without a pass.
    """
    if world.model.norm != "sbn":
        return weights
    asked: list[tuple[int, fl.PartName]] = []
    for participant in (fl.SERVER, *clients):
        if world.labelled[participant]:
            asked.append((participant, "labelled"))
        if world.unlabelled(participant):
            asked.append((participant, "unlabelled"))
    jobs = [
        world.job(participant, StatisticsUpdate(part=part, pooled=pooled), {"student": weights})
        for participant, part in asked
    ]
    shares = [(answer["statistics"], answer["count"]) for _, answer in sent(world.fit(jobs))]
    statistics = mean_statistics(shares, pooled=pooled)
    return {**weights, **{name: value.to(weights[name]) for name, value in statistics.items()}}
