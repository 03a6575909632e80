"""How far a reproduced accuracy lies from the published one.

Only at profile `paper` are the two of one setting. The difference is shown with the margin that the published file
fixed before any run; whether a sentence of the paper holds, its claims say. All values are fractions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult

OTHER_DATA = "not comparable with published accuracy"  # in the note of a data set's files (datasets.toml)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Ours against the paper's number of one cell."""

    difference: float  # ours - published
    margin: float
    other_data: str = ""  # what the files say that hold other images than the paper's

    @property
    def text(self) -> str:
        """ "within the margin"; of other data, what they are."""
        return self.other_data or ("within the margin" if abs(self.difference) <= self.margin else "beyond the margin")


def agreement(item: Item, result: CellResult) -> Agreement | None:
    """None where nothing is compared: another profile than `paper`, no margin, no published or no own value."""
    results, published = result.summary, result.cell.printed()
    if item.profile != "paper" or item.margin is None or results is None or published is None:
        return None
    return Agreement(
        difference=results.mean - published / 100, margin=item.margin, other_data=note_on_other_data(result)
    )


def note_on_other_data(result: CellResult) -> str:
    """What the files say that hold other images than the paper's. Empty where they hold the paper's."""
    return ", ".join(note for note in result.data_notes if OTHER_DATA in note)


def largest_gap(agreements: Mapping[str, Agreement]) -> tuple[str, Agreement] | None:
    """The cell farthest from its published number. None where none is compared on the paper's own data."""
    compared = [pair for pair in agreements.items() if not pair[1].other_data]
    return max(compared, key=lambda pair: abs(pair[1].difference), default=None)
