"""An item with what its records say."""

import functools

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import CellResult, Records, collect, counted, seeds_of
from reports.formatting import item_page

KEPT, KEPT_ACCURACY = "pseudo/kept", "pseudo/accuracy"


class Reported:
    """An item and its records, of its own seeds and of those that confirm; each question is asked of them once."""

    def __init__(self, item: Item, records: Records) -> None:
        self.item, self.records = item, counted(item, records)
        self.paper = item.name.split("/")[0]
        self.page = item_page(item)  # from the site's root

    @functools.cached_property
    def judged(self) -> list[Judged]:
        return judge(self.item, self.records)

    @functools.cached_property
    def results(self) -> dict[str, CellResult]:
        """By accuracy."""
        return collect(self.item, self.records)

    @functools.cached_property
    def runs(self) -> list[RunRecord]:
        return [run for cell in self.item.cells for run in seeds_of(self.records, cell)]
