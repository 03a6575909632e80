"""A job in a process whose address space may grow by 1.2 GB.

    python -m tests.federated.short_of_memory limited|free NORM

Its loss takes 256 MB an image beside what training needs, of which nothing is ever touched: a batch of 8 asks the
system for 2 GB and is refused, for real, by torch's allocator; 4 images fit. (With an address space that is all but
full, oneDNN itself ends the process by a segmentation fault instead of an error; nothing can name a client then.)
Prints one line of JSON.
"""

import json
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmark.errors import FsslError
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.micro_batches import IN_PARTS
from benchmark.methods.objectives import ServerUpdate
from benchmark.methods.protocol import SERVER, Batch, Job, Key, Limit, Networks, Stream
from tests.conftest import tiny_experiment

ROOM = 1_200_000_000  # bytes
AN_IMAGE = 1 << 26  # float32 numbers


@dataclass(frozen=True, kw_only=True)
class Hungry(ServerUpdate):
    mean_over_images: ClassVar[bool] = True

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        torch.empty(len(batch["labelled"].views["weak"]), AN_IMAGE)
        return super().loss(trainable, frozen, batch, draw)


def main(limited: bool, norm: Any) -> dict[str, object]:
    torch.set_num_threads(1)
    tiny = tiny_experiment()
    environment = prepare(replace(tiny, model=replace(tiny.model, norm=norm)))
    job = Job(
        key=Key(client=SERVER),
        update=Hungry(),
        receives={"student": weights_of(environment.network())},
        data={"labelled": Stream(part="labelled", batch_size=8, views=("weak",))},
        limit=Limit(steps=3),
    )
    before = resource.getrlimit(resource.RLIMIT_AS)
    if limited:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        (outcome,) = ReferenceEngine(environment).fit([job], 1, {})
    except FsslError as error:
        return {"error": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    sums = [float(value.double().sum()) for value in outcome.sends["student"].values()]
    return {"in_parts": outcome.metrics.get(IN_PARTS, 0.0), "steps": outcome.steps, "weights": sums}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1] == "limited", sys.argv[2])))
