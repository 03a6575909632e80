"""What a paper's table or figure is to the suite: cells to run, values to compare with, claims to judge.

Plain data, shared by the papers (which declare items), the sweeps (which run them) and the reports (which show them).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmark.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One entry of a published table, or a control or rung of ours beside it: a full setting without the seed."""

    label: str  # unique in the item: "fedavg/C=47"; claims refer to it
    setting: Mapping[str, str | int | float]  # what the row and column say, for people: {"method": "FedAvg", "C": 47}
    experiment: Experiment  # seed 0 stands for every seed
    published: float | None = None  # as the paper prints it, percent; None: the paper has no such number
    role: Literal["published", "control", "ladder"] = "published"

    @property
    def cell_key(self) -> str:
        return self.experiment.cell_key


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper (or a question of ours) and, fixed before any run, what would bear it out.

    The estimand is a linear contrast of cells, paired by seed: sum over cells of coefficient x last value of `metric`.
    "beyond": holds where the corrected interval lies above zero, contradicted where it lies below.
    "within": holds where the interval lies inside +-margin ("hardly", "comparable"), contradicted where outside it.
    """

    name: str
    quote: str  # verbatim from the paper; empty for a question of ours
    source: str  # "section 4.2"
    contrast: Mapping[str, float]  # cell label -> coefficient
    test: Literal["beyond", "within"]
    margin: float  # least difference of interest, in the metric's unit (accuracy: fraction)
    metric: str = "test/accuracy"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper under one profile."""

    name: str  # "ssfl/tab2"
    title: str
    profile: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...] = ()
    seeds: int = 1
    notes: tuple[str, ...] = field(default=())  # stand-ins, scale, selection rule: printed wherever the table is

    def cell(self, label: str) -> Cell:
        """The cell of that label. Raises KeyError."""
        return {cell.label: cell for cell in self.cells}[label]
