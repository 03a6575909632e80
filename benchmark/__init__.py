"""FSSL benchmark: federated semi-supervised learning, from an `Experiment` to a record."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__version__ = "0.1.0"

# Lightning's packages import Matplotlib, which warns if the home folder is read-only. Runs draw no figures.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it warns without triton, which runs do not need


def load(results: "str | Path", *fields: str) -> "pd.DataFrame":
    """Return all run records in a results folder as one table (`benchmark.records.collect.load`).

    `fields` are dotted names of further settings that become columns, such as "method.threshold".
    """
    from benchmark.records import collect  # imports torch, which is slow to import and which most commands do not need

    return collect.load(results, *fields)
