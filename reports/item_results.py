"""Join a table or figure with its run records, and answer each question about them once."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import ACCURACY, CellResult, Records, cell_result, without_trials
from benchmark.verdicts.collapse import cells_below_baseline
from benchmark.verdicts.judge import Judged, judge
from reports.formatting import item_page

# Names and texts of the papers, which need no run.
PAPERS: Mapping[str, Mapping[str, str]] = tomllib.loads((Path(__file__).parent / "papers.toml").read_text())
KEPT, KEPT_ACCURACY = "pseudo/kept", "pseudo/accuracy"
OTHER_DATA = "not comparable with published accuracy"  # in the note of a data set's files (datasets.toml)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The difference between our accuracy of one cell and the published one.

    The margin was fixed before any run. The two accuracies have the same setting only at profile `paper`. Claims decide
    whether a sentence of the paper holds, and not this difference.
    """

    difference: float  # ours - published, a fraction
    text: str  # "within the margin"; for different images, the note of the data files on them
    other_data: bool  # whether the images differ from the paper's


class ItemResults:
    """An item with the run records of its pilot and confirmatory seeds. Each answer is computed once and kept."""

    def __init__(self, item: Item, records: Records) -> None:
        self.item = item
        self.records = without_trials(item, records)
        tried = (records.get(trial.cell_key, {}).get(trial.seed) for trial in item.tried)
        self.trials_done = sum(record is not None and bool(record.result) for record in tried)
        self.paper = item.name.split("/")[0]
        self.page = item_page(item)  # from the site's root
        self.of = functools.cache(self._of)
        self.same_profile = {item.name: self}  # items with runs that may bear on a claim's sentence: see `connect`

    @functools.cached_property
    def judged(self) -> list[Judged]:
        """Return every claim with its verdict and the evidence behind it."""
        return judge(self.item, self.records)

    @functools.cached_property
    def results(self) -> dict[str, CellResult]:
        """Return the accuracy of every cell by its label."""
        return self.of(ACCURACY)

    def _of(self, metric: str, endpoint: str = "last") -> dict[str, CellResult]:
        """Return the values of a metric at a claim's endpoint for every cell by its label, in the item's order."""
        results = (cell_result(cell, self.records, self.item.seeds, metric, endpoint) for cell in self.item.cells)
        below = self._below_baseline
        return {one.cell.label: replace(one, is_below_baseline=one.cell.label in below) for one in results}

    @functools.cached_property
    def _below_baseline(self) -> frozenset[str]:
        return cells_below_baseline(self.item, self.records)

    @functools.cached_property
    def agreements(self) -> dict[str, Agreement]:
        """Return the agreement of each cell that is compared with its published accuracy, by its label."""
        item = self.item
        agreements: dict[str, Agreement] = {}
        for label, result in self.results.items():
            seen, published = result.summary, result.cell.published_value()
            if item.profile == "paper" and item.margin is not None and seen and published is not None:
                difference = seen.mean - published / 100
                other_data = note_on_other_data(result)
                text = other_data or f"{'within' if abs(difference) <= item.margin else 'beyond'} the margin"
                agreements[label] = Agreement(difference=difference, text=text, other_data=bool(other_data))
        return agreements

    @property
    def largest_gap(self) -> tuple[str, Agreement] | None:
        """Return the cell with the largest difference from its published number.

        Return None if no cell is compared on the paper's own data.
        """
        compared = [pair for pair in self.agreements.items() if not pair[1].other_data]
        return max(compared, key=lambda pair: abs(pair[1].difference), default=None)

    @functools.cached_property
    def runs(self) -> list[RunRecord]:
        return [run for result in self.results.values() for run in result.runs]


Places: TypeAlias = Sequence[tuple[ItemResults, CellResult]]  # cells, each with an item that contains it


def connect(every: Sequence[ItemResults]) -> Sequence[ItemResults]:
    """Make the items of each profile known to each other, and return all items."""
    for one in every:
        one.same_profile = {other.item.name: other for other in every if other.item.profile == one.item.profile}
    return every


def note_on_other_data(result: CellResult) -> str:
    """Return the note of data files with different images than the paper's; empty if the images are the paper's."""
    notes = {run.data_note for run in result.runs if run.seed in result.values}
    return ", ".join(sorted(note for note in notes if OTHER_DATA in note))
