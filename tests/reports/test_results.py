"""Frames and series: what is in them equals the records, and bands are intervals computed by hand."""

import math

import pytest

from benchmark.verdicts.results import cell_result
from reports.results import curve_rows, series_of
from tests.reports.fakes import make_cell, make_record

CELL = make_cell("a", {"method": "A"}, 5)


def rounds(*values: float | None) -> list[dict[str, float]]:
    return [
        {"round": t, **({} if value is None else {"test/accuracy": value})} for t, value in enumerate(values, start=1)
    ]


def test_a_band_is_the_t_interval_of_each_round() -> None:
    """In percent. Round 1: 10 20 30 20 20, mean 20, std 7.07, t(.975, 4) / sqrt 5 = 1.2417. Round 2 has three values:
    a mean, and no width. Round 3 has two: nothing. Round 4: 99 to 100, and no interval goes beyond."""
    lines = [
        (0.1, 0.5, 0.1, 1),
        (0.2, 0.7, 0.1, 1),
        (0.3, 0.6, None, 1),
        (0.2, *[None] * 2, 1),
        (0.2, *[None] * 2, 0.99),
    ]
    records = {
        CELL.cell_key: {s: make_record(CELL, s, {"test/accuracy": 0.5}, rounds=rounds(*v)) for s, v in enumerate(lines)}
    }
    series = series_of(cell_result(CELL, records, 5), "test/accuracy", 300)
    assert list(series.band.index) == [1, 2, 4] and series.band.loc[1, "mean"] == pytest.approx(20)
    assert series.band.loc[1, "high"] == pytest.approx(20 + 1.2417 * 7.07, abs=1e-2)
    assert series.band.loc[2].tolist() == pytest.approx([60, 60, 60, 3]) and series.band.loc[4, "high"] == 100
    assert series.runs[2].dropna().tolist() == [30, 60, 100]


def test_unfinished_and_diverged_runs_join_no_mean() -> None:
    made = {s: make_record(CELL, s, {"test/accuracy": 0.5}, rounds=rounds(0.5)) for s in range(2)}
    made[2] = make_record(CELL, 2, status="unfinished", rounds=rounds(0.9))
    made[3] = make_record(CELL, 3, status="diverged", rounds=rounds(0.1, math.nan))
    records = {CELL.cell_key: made}
    series = series_of(cell_result(CELL, records, 4), "test/accuracy", 300)
    assert series.band.empty and series.finished == [0, 1] and list(series.diverged) == [3]
    assert series.runs[2].tolist() == [90] and series.runs[3].tolist() == [10]


def test_curves_have_every_measured_value() -> None:
    made = make_record(CELL, 0, {"test/accuracy": 0.9}, rounds=rounds(0.5, None, 0.9))
    rows = curve_rows(cell_result(CELL, {CELL.cell_key: {0: made}}, 1), ["test/accuracy"])
    assert [(row["label"], row["round"], row["value"]) for row in rows] == [("a", 1, 0.5), ("a", 3, 0.9)]
