"""The room that a claim's cells leave, and what becomes of its verdict."""

from dataclasses import replace

import pytest

from benchmark.methods.central import FixMatch
from benchmark.papers.item import Item
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.judge import judge, without_room
from benchmark.verdicts.room import ceiling, room_of
from tests.reports.fakes import accuracies, begun_under, make_cell, pair


def upper(item: Item) -> Item:
    """Return the item with central FixMatch, which has all images in one place."""
    cell = make_cell("central", {"method": "FixMatch"}, 33)
    return replace(item, cells=(*item.cells, replace(cell, experiment=replace(cell.experiment, method=FixMatch()))))


def runs(item: Item, *ends: float, first: int = 100) -> Records:
    """Make 24 runs of each cell; those of the first cell differ by +-.02 points from its typical end."""
    noise = [0.0002 * (-1) ** seed for seed in range(24)]
    first_cell, *others = zip(item.cells, ends, strict=True)
    of_cells = [(first_cell[0], [first_cell[1] + d for d in noise])]
    for cell, end in others:
        of_cells.append((cell, [end] * len(noise)))
    return begun_under(item, accuracies(of_cells, first))


def test_the_room_is_that_above_the_worse_cell():
    """a = .97, b = .96, central .98: .02 whichever of a and b is in front; without the central cell 1 - .96. Of a
    weighted contrast: what a could gain (.5 x .01), or what b could."""
    item = upper(pair())
    records = runs(item, 0.97, 0.96, 0.98)
    assert room_of(item, records, item.claims[0]) == pytest.approx(0.02)
    turned = replace(item.claims[0], contrasts=({"b": 1.0, "a": -1.0},))
    assert room_of(item, records, turned) == pytest.approx(0.02)
    halved = replace(item.claims[0], contrasts=({"b": 0.25, "a": -0.5},))
    assert room_of(item, records, halved) == pytest.approx(0.005, abs=2e-4)
    assert room_of(pair(), records, item.claims[0]) == pytest.approx(0.04)
    assert ceiling(item, runs(item, 0.99, 0.96, 0.98), {item.cells[0].experiment.data.name}) == pytest.approx(
        0.99, abs=3e-4
    )
    for claim in ({"metric": "pseudo/kept"}, {"endpoint": "collapse"}):
        assert room_of(item, records, replace(item.claims[0], **claim)) is None  # type: ignore[arg-type]
    assert room_of(item, {}, item.claims[0]) is None


def test_no_effect_without_room_is_no_room():
    """Equal cells at .97 under .98, margin one point: .01 of room is less than four margins. At .7 there is room."""
    item = upper(pair())
    (full,) = judge(item, runs(item, 0.97, 0.97, 0.98))
    assert (full.verdict, full.no_room, full.is_decided, full.could_decide) == ("no room", True, False, 0)
    assert any("of room" in caveat for caveat in full.caveats)
    (free,) = judge(item, runs(item, 0.7, 0.7, 0.98))
    assert (free.verdict, free.no_room, free.room) == ("no effect of interest", False, pytest.approx(0.28, abs=1e-3))
    (held,) = judge(item, runs(item, 0.98, 0.96, 0.98))
    assert (held.verdict, held.no_room) == ("holds", True)
    (lost,) = judge(item, runs(item, 0.96, 0.98, 0.98))
    assert (lost.verdict, lost.no_room) == ("contradicted", True)
    alike = upper(pair(form="comparable"))
    (same,) = judge(alike, runs(alike, 0.97, 0.97, 0.98))
    assert (same.verdict, same.no_room) == ("holds", True)


def test_only_what_was_not_found_has_no_room():
    improves, comparable = pair().claims[0], pair(form="comparable").claims[0]
    moved = {
        verdict: without_room(verdict, improves) for verdict in ("holds", "contradicted", "not judged yet", "not run")
    }
    assert all(before == after for before, after in moved.items())
    assert without_room("no effect of interest", improves) == without_room("undecided", improves) == "no room"
    assert without_room("undecided", comparable) == "undecided"
