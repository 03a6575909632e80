"""An item with what its records say."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import ACCURACY, CellResult, Records, cell_result, counted
from benchmark.verdicts.collapse import collapsed_cells
from benchmark.verdicts.judge import Judged, judge
from reports.formatting import item_page

# What the site says of a paper before any run.
PAPERS: Mapping[str, Mapping[str, str]] = tomllib.loads((Path(__file__).parent / "papers.toml").read_text())
KEPT, KEPT_ACCURACY = "pseudo/kept", "pseudo/accuracy"
OTHER_DATA = "not comparable with published accuracy"  # in the note of a data set's files (datasets.toml)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far ours lies from the paper's number of one cell.

    The margin was fixed before any run. Only at profile `paper` are the two of one setting. Whether a sentence of the
    paper holds, its claims say.
    """

    difference: float  # ours - published, a fraction
    text: str  # "within the margin"; of other data, what the files say of them
    other_data: bool  # other images than the paper's


class Reported:
    """An item and its records, of its own seeds and of those that confirm; each question is asked of them once."""

    def __init__(self, item: Item, records: Records) -> None:
        self.item, self.records = item, counted(item, records)
        tried = (records.get(trial.cell_key, {}).get(trial.seed) for trial in item.tried)
        self.trials_done = sum(record is not None and bool(record.result) for record in tried)
        self.paper = item.name.split("/")[0]
        self.page = item_page(item)  # from the site's root
        self.of = functools.cache(self._of)
        self.same_profile = {item.name: self}  # the items whose runs may speak of a claim's sentence: see `connect`

    @functools.cached_property
    def judged(self) -> list[Judged]:
        """Every claim, with the evidence that it was judged by."""
        return judge(self.item, self.records)

    @functools.cached_property
    def results(self) -> dict[str, CellResult]:
        """Every cell's accuracy, by its label."""
        return self.of(ACCURACY)

    def _of(self, metric: str, endpoint: str = "last") -> dict[str, CellResult]:
        """Every cell's values of a metric at a claim's endpoint, by its label, in the item's order."""
        results = (cell_result(cell, self.records, self.item.seeds, metric, endpoint) for cell in self.item.cells)
        return {one.cell.label: replace(one, collapsed=one.cell.label in self._collapsed) for one in results}

    @functools.cached_property
    def _collapsed(self) -> frozenset[str]:
        return collapsed_cells(self.item, self.records)

    @functools.cached_property
    def agreements(self) -> dict[str, Agreement]:
        """Of each cell that is compared with its published accuracy, by its label."""
        item, agreements = self.item, dict[str, Agreement]()
        for label, result in self.results.items():
            seen, published = result.summary, result.cell.printed()
            if item.profile == "paper" and item.margin is not None and seen and published is not None:
                difference, other_data = seen.mean - published / 100, note_on_other_data(result)
                text = other_data or f"{'within' if abs(difference) <= item.margin else 'beyond'} the margin"
                agreements[label] = Agreement(difference=difference, text=text, other_data=bool(other_data))
        return agreements

    @property
    def largest_gap(self) -> tuple[str, Agreement] | None:
        """The cell farthest from its published number. None where none is compared on the paper's own data."""
        compared = [pair for pair in self.agreements.items() if not pair[1].other_data]
        return max(compared, key=lambda pair: abs(pair[1].difference), default=None)

    @functools.cached_property
    def runs(self) -> list[RunRecord]:
        return [run for result in self.results.values() for run in result.runs]


Places: TypeAlias = Sequence[tuple[Reported, CellResult]]  # cells, each where an item has it


def connect(every: Sequence[Reported]) -> Sequence[Reported]:
    """The same items, where each knows the others of its profile."""
    for one in every:
        one.same_profile = {other.item.name: other for other in every if other.item.profile == one.item.profile}
    return every


def note_on_other_data(result: CellResult) -> str:
    """What the files say that hold other images than the paper's. Empty where they hold the paper's."""
    notes = {run.data_note for run in result.runs if run.seed in result.values}
    return ", ".join(sorted(note for note in notes if OTHER_DATA in note))
