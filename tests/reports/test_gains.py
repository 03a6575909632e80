"""The differences that papers publish, next to those of the runs."""

from dataclasses import replace

import pytest

from benchmark.papers.item import ACCURACY, Gain, Item
from benchmark.papers.items import ITEMS
from benchmark.verdicts.cell_results import Records
from reports.gains import gains_table
from reports.item_results import ItemResults
from tests.papers.conftest import item_of
from tests.reports.fakes import accuracies, make_cell

GAIN = Gain(name="a part", of="with", over="without", published={ACCURACY: 2.2}, data="SVHN", source="section 4.4")


def toy() -> tuple[Item, Records]:
    cells = tuple(make_cell(label, {"method": label}, key) for key, label in enumerate(("with", "without"), 1))
    item = Item(name="toy/tab1", title="Toy", profile="laptop", cells=cells, gains=(GAIN,), seeds=3)
    return item, accuracies([(cells[0], [0.83, 0.85, 0.9]), (cells[1], [0.8, 0.81])], 0)


def test_a_difference_is_the_mean_over_the_common_seeds():
    """.83 - .80 and .85 - .81: 3 and 4 points; the third seed has one cell only."""
    item, records = toy()
    table = gains_table(item, ItemResults(item, records).of)
    assert table is not None
    (row,) = table.rows
    _, published, ours = row.entries
    assert (published.text, ours.text, ours.spread, ours.below) == ("+2.2", "+3.50", "±0.71", ("n = 2",))
    assert [column.group for column in table.columns] == ["", "as published", "runs (profile laptop)"]


def test_without_runs_the_published_difference_stays_and_without_it_there_is_no_table():
    item, _ = toy()
    table = gains_table(item, ItemResults(item, {}).of)
    assert table is not None and [entry.text for entry in table.rows[0].entries[1:]] == ["+2.2", "–"]
    assert gains_table(replace(item, gains=()), ItemResults(item, {}).of) is None


def test_published_differences_are_those_of_the_published_values():
    """Up to their rounding: AUCs have one digit in Tables 2 and 4, and differences up to two."""
    found = 0
    for name in ITEMS:
        item = item_of(name, "paper")
        for gain in item.gains:
            for metric, published in gain.published.items():
                better, other = (item.cell(label).published_value(metric) for label in (gain.of, gain.over))
                if better is None or other is None:  # a figure without values
                    continue
                assert published == pytest.approx(better - other, abs=0.1 + 1e-9), (name, gain.name)
                found += 1
    assert found == 12 + 12


@pytest.mark.parametrize("profile", ["demo", "laptop"])
def test_reduced_profiles_have_the_same_differences(profile):
    for name in ("rscfed/tab2", "rscfed/tab4"):
        item = item_of(name, profile)
        labels = {cell.label for cell in item.cells}
        assert len(item.gains) == 6 and labels.issuperset(gain.of for gain in item.gains)
