"""Static batch normalisation (SemiFL section 3.4): statistics asked from holders of images, between local training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmark.methods.objectives import StudentUpdate
from benchmark.methods.protocol import (
    SERVER,
    Batch,
    Job,
    Key,
    Limit,
    Local,
    Networks,
    PartName,
    Reader,
    Tree,
    Weights,
    World,
)  # fmt: skip
from benchmark.models.static_batch_norm import set_statistics


@dataclass(frozen=True, kw_only=True)
class StatisticsUpdate(StudentUpdate):
    """Trains nothing: the means over batches of what each static batch norm sees, and the number of batches."""

    part: PartName = "unlabelled"
    batch_size: int = 250  # released: data.py:242-254

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        statistics, batches = reader.statistics(received["student"], self.part, self.batch_size)
        return Local(trainable={}, found={"statistics": statistics, "batches": batches}) if batches else None

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        raise AssertionError("a job without trainable weights takes no local step")

    def finish(self, local: Local) -> Tree:
        return local.found


def with_static_statistics(weights: Weights, world: World, clients: Sequence[int]) -> Weights:
    """The weights with statistics from the server's labelled images and all images of `clients`.

    A mean over batches: with batch norms of PyTorch's `momentum=None` the same as one pass over everyone's images in
    turn, but that no batch holds images of two holders. Other networks come back as they are, without a pass.
    """
    if world.model.norm != "sbn":
        return weights
    asked: list[tuple[int, PartName]] = []
    for holder in (SERVER, *clients):
        if world.labelled[holder]:
            asked.append((holder, "labelled"))
        if world.sizes[holder] > world.labelled[holder]:
            asked.append((holder, "unlabelled"))
    jobs = [
        Job(
            key=Key(client=holder),
            update=StatisticsUpdate(part=part),
            receives={"student": weights},
            data={},
            limit=Limit(steps=0),
        )
        for holder, part in asked
    ]
    sums: dict[str, torch.Tensor] = {}
    batches = 0
    for outcome in world.fit(jobs):
        if outcome.sat_out:
            continue
        batches += outcome.sends["batches"]
        for name, value in outcome.sends["statistics"].items():
            sums[name] = sums.get(name, torch.zeros_like(value)) + value * outcome.sends["batches"]
    return set_statistics(weights, {name: value / batches for name, value in sums.items()}) if batches else weights
