"""The arena's figures: every run is seen, and no panel has more lines than can be told apart."""

import pytest

from reports.arena.figures import dots, learning_curves
from reports.arena.table import columns, methods
from reports.style import LOOKS, looks
from tests.reports.arena_fakes import arena, arena_records, small


def test_every_run_is_a_dot_and_methods_stand_in_order() -> None:
    item, records = small()
    own, tuned = columns(item, records)
    figure = dots(item, own)
    assert figure is not None and dots(item, tuned) is None
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B", "S"]
    runs = [list(map(float, drawn.get_xdata())) for drawn in ax.lines if drawn.get_marker() not in ("|", "None")]  # type: ignore[arg-type]
    assert runs == [pytest.approx([90, 91, 92]), pytest.approx([80, 82, 81]), pytest.approx([65, 65, 65])]
    ticks = [float(drawn.get_xdata()[0]) for drawn in ax.lines if drawn.get_marker() == "|"]  # type: ignore[index,arg-type]
    assert ticks == pytest.approx([91, 81, 65])


def test_no_panel_of_the_curves_has_two_lines_of_one_look() -> None:
    """Eleven methods in two columns: four panels, six methods in the upper ones and five in the lower."""
    item = arena()
    figure = learning_curves(item, arena_records(item))
    assert len(figure.axes) == 4
    for ax in figure.axes:
        drawn = [(one.get_color(), str(one._unscaled_dash_pattern)) for one in ax.lines if one.get_linewidth() > 1]  # type: ignore[attr-defined]
        assert len(drawn) == len(set(drawn)) and 4 <= len(drawn) <= 6
    legends = [len(legend.get_texts()) for ax in figure.axes if (legend := ax.get_legend()) is not None]
    assert sorted(legends) == [5, 6]


def test_a_method_keeps_its_look() -> None:
    """A method of the suite has its own everywhere, and one that we do not know has the same beside any of ours; no two
    of eleven share a line."""
    found = looks(methods(arena()))
    assert len({(look.colour, look.dash) for look in found.values()}) == 11 == len(found)
    assert looks(["FedSwitch", "Mine"])["FedSwitch"] == looks(["Other", "FedSwitch"])["FedSwitch"]
    assert looks(["Mine"])["Mine"] == looks([*LOOKS, "Mine"])["Mine"] == looks(["RSCFed", "Mine", "SemiFL"])["Mine"]
