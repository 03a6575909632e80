"""FSSL benchmark: federated semi-supervised learning, from an `Experiment` to a record."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__version__ = "0.1.0"

# A home that cannot be written is no news to a run, which draws nothing: Lightning's packages import Matplotlib.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # runs need no triton


def load(results: "str | Path") -> "pd.DataFrame":
    """All records in a folder of results as one table: `benchmark.records.collect.load`."""
    from benchmark.records import collect  # imports torch, which most commands wait for in vain

    return collect.load(results)
