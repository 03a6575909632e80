"""Published and reproduced numbers: compared at profile paper alone, by difference and margin."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.data.datasets import DATASETS
from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY
from reports.formatting import item_page
from reports.paper_table import ours_entry
from reports.reported import Reported
from reports.site import build
from tests.reports.fakes import accuracies, make_cell, printed
from tests.reports.test_site import words


def item(profile: str = "paper", margin: float | None = 0.01) -> Item:
    """A was printed at 90 %, B at 80 %."""
    cells = tuple(
        make_cell(m, {"method": m}, 900 + i, published=printed(p))
        for i, (m, p) in enumerate([("A", 90.0), ("B", 80.0)])
    )
    return Item(name="toy/tab1", title="Toy", profile=profile, cells=cells, seeds=3, margin=margin)


def test_only_profile_paper_is_compared(tmp_path: Path) -> None:
    """A lies 3 points above its published number, B half a point; the margin is one point."""
    shown = item()
    records = accuracies([(shown.cells[0], [0.92, 0.93, 0.94]), (shown.cells[1], [0.805])])
    reported = Reported(shown, records)
    agreements = reported.agreements
    assert reported.largest_gap == ("A", agreements["A"])
    assert [seen.difference for seen in agreements.values()] == pytest.approx([0.03, 0.005])
    assert [seen.text for seen in agreements.values()] == ["beyond the margin", "within the margin"]
    build([(shown, records)], tmp_path)
    text = words(tmp_path / item_page(shown))
    assert "+3.00 to the paper" in text and "margin of a published and a reproduced accuracy is ±1.0 points" in text
    for other in (item("laptop"), item(margin=None)):
        assert not Reported(other, records).agreements


@pytest.mark.parametrize(("data", "comparable"), [("digits", True), ("cifar10", True), ("cifar100", False)])
def test_other_data_than_the_papers_get_their_note(data: str, comparable: bool) -> None:
    """The packed CIFAR-100 is a lossy copy with a split of its own; 161 images of the packed CIFAR-10 are."""
    shown, note = item(), DATASETS[data].packed_note
    records = accuracies([(shown.cells[0], [0.93])])
    records = {  # with the note that the files leave in a manifest
        key: {seed: replace(run, manifest={**run.manifest, "data": {"note": note}}) for seed, run in runs.items()}
        for key, runs in records.items()
    }
    reported = Reported(shown, records)
    below = ours_entry(reported, "A", ACCURACY).below
    assert "+3.00 to the paper" in below
    assert (note in below) == (not comparable) and ("beyond the margin" in below) == comparable
    assert (reported.largest_gap is None) == (not comparable)
