"""Networks: one a file, with the normalisation passed in."""

from benchmark.models.build import (
    NETWORKS,
    ImageShape,
    Model,
    build,
    count_parameters,
    forward_flops,
)
from benchmark.models.norms import has_batch_statistics

__all__ = ["NETWORKS", "ImageShape", "Model", "build", "count_parameters", "forward_flops", "has_batch_statistics"]
