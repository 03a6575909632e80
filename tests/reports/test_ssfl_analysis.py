"""What explains SSFL's results: weights and gains by hand, correlations against scipy, sentences that say no more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment, Federation
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import SSFL, FedAvg, Grouping
from benchmark.papers.item import Cell, Item
from reports.reported import Reported
from reports.ssfl_analysis import (
    cells_of,
    explained,
    gains_over,
    item_section,
    on_twins,
    page,
    partial_spearman,
)
from tests.reports.fakes import make_record

DIVERSITY, EXACT = "diversity/delta/l2/squared/clients", "diversity/gradient/l2/squared/clients"
LISTS = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=5, max_size=30)
WAYS: dict[str, FedAvg | Grouping] = {
    "FedAvg": FedAvg(),
    "Control": FedAvg(server_weight=1 / 6),
    "Grouping": Grouping(S=2),
}


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.asarray(column, dtype=float) for column in zip(*rows, strict=True)]


@given(LISTS)
def test_correlations_are_scipys(rows: Any) -> None:
    """Plain: scipy's Spearman. Partial: Pearson of what scipy's regression on the fixed ranks leaves."""
    x, y, z = columns(rows)
    assume(min(len(set(c)) for c in (x, y, z)) > 1)
    assert partial_spearman(x, y, np.ones(len(x))) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    places = [stats.rankdata(c) for c in (x, y, z)]
    left = []
    for values in places[:2]:
        line = stats.linregress(places[2], values)
        left.append(values - line.intercept - line.slope * places[2])
    assume(min(np.std(part) for part in left) > 1e-3)
    assert partial_spearman(x, y, z) == pytest.approx(stats.pearsonr(*left).statistic, abs=1e-9)


def experiment(averaging: FedAvg | Grouping, R: float = 0.4, **more: Any) -> Experiment:
    federation = Federation(K=10, C=10, T=4, rounds=5)
    return Experiment(method=SSFL(averaging=averaging), federation=federation, partition=ClassSkew(R=R), **more)


def cell(way: str, R: float = 0.4, **more: Any) -> Cell:
    return Cell(label=f"{way}/R={R:g}", setting={"method": way, "R": R}, experiment=experiment(WAYS[way], R, **more))


def item(cells: list[Cell], name: str = "ssfl/tab2") -> Item:
    return Item(name=name, title="", profile="laptop", cells=tuple(cells), seeds=3)


def runs(one: Cell, accuracies: list[float], diversity: float) -> dict:
    """One record a seed; three rounds of diversity, the first far off."""
    rounds = [{"round": t, DIVERSITY: value} for t, value in enumerate((9.0, diversity, diversity), start=1)]
    return {s: make_record(one, s, {"test/accuracy": value}, rounds=rounds) for s, value in enumerate(accuracies)}


def row(way: str, setting: str, weight: float, diversity: float, accuracy: float, data: str = "mnist") -> dict:
    return {
        "cell": f"{setting} {way}", "averaging": way, "setting": setting, "data": data, "labelled": False,
        "collapsed": False, "server_weight": weight, "seed": 0, "accuracy": accuracy, DIVERSITY: diversity,
        EXACT: np.nan,
    }  # fmt: skip


def ways(accuracies: dict[str, dict[int, float]], weight: float = 1 / 6) -> pd.DataFrame:
    """Runs by seed of each way in one setting: grouping is more diverse by .2 than its control."""
    weights, diversities = {"FedAvg": 1 / 11, "Control": weight, "Grouping": 1 / 6}, {"Grouping": 0.7}
    return pd.DataFrame(
        {**row(way, "a", weights[way], diversities.get(way, 0.5), value), "seed": seed}
        for way, values in accuracies.items()
        for seed, value in values.items()
    )


def test_gains_by_hand() -> None:
    """FedAvg .5 .6 .7; control + .10 .12 .14; grouping + .20 .22 .24."""
    values = {
        "FedAvg": {0: 0.5, 1: 0.6, 2: 0.7},
        "Control": {0: 0.60, 1: 0.72, 2: 0.84},
        "Grouping": {0: 0.70, 1: 0.82, 2: 0.94},
    }
    (found,) = gains_over(ways(values))
    assert found.whole.mean == pytest.approx(0.22) and found.rest.mean == pytest.approx(0.1)
    assert found.by_weight.mean == pytest.approx(0.12) and found.diversity == pytest.approx(0.2)
    assert (
        "In 1 such pair grouping has the lower diversity of local updates in 0, the higher accuracy in 1"
        in on_twins([found])
    )
    assert gains_over(ways({**values, "Control": {7: 0.5}})) == []  # no seed in common
    assert gains_over(ways(values, weight=1 / 4)) == []  # a control of another weight


def test_data_sets_are_ranked_apart() -> None:
    """MNIST's cells are all better and more diverse than CIFAR-10's; inside each the order is reversed: rho is -1."""
    cells = [
        row("FedAvg", f"{data}{i}", 0.1, start + i, 0.1 * start - 0.01 * i, data)
        for data, start in (("mnist", 9.0), ("cifar10", 1.0))
        for i in range(5)
    ]
    found = explained(cells_of(pd.DataFrame(cells)), DIVERSITY)
    assert found["plain"].estimate == pytest.approx(-1.0) and found["held"].estimate == pytest.approx(-1.0)
    assert found["plain"].clusters == 10


def test_page_and_item_from_the_same_records() -> None:
    """Three ways in nine settings: grouping gains 4 points, the control 3."""
    cells = [cell(way, R) for R in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for way in WAYS]
    gains = {"FedAvg": 0.0, "Control": 0.03, "Grouping": 0.04}
    records = {}
    for i, c in enumerate(cells):
        end = 0.9 - float(c.setting["R"]) / 9 + gains[str(c.setting["method"])]
        records[c.cell_key] = runs(c, [end + s / 90 for s in range(3)], 0.5 + i / 50)
    one = item(cells)
    found = page([Reported(one, records)])
    assert found is not None
    (section,) = found["sections"]
    assert "grouping gains +4.00" in section["sentences"][0] and "group's weight gains +3.00" in section["sentences"][0]
    assert [len(table.rows) for table in section["tables"]] == [2, 9, 27]
    ((picture, caption),) = section["pictures"]
    assert sum(len(one["points"]) for one in picture.data[0]["lines"]) == 27 and "Each dot is a cell" in caption
    shown = item_section(Reported(one, records))
    assert shown is not None and shown["table"].rows[0].entries[1].text == "+4.00"
    # Labels alone at .825 beside FedAvg's .811, .822 and .833 at R = .8: that setting is shown, and not averaged.
    alone = Cell(label="alone", setting={}, role="bound", experiment=replace(cells[0].experiment, method=ServerOnly()))
    with_bound = replace(one, cells=(*one.cells, alone))
    found = page([Reported(with_bound, {**records, alone.cell_key: runs(alone, [0.825] * 3, 0.0)})])
    assert found is not None
    (section,) = found["sections"]
    assert "Over 8 settings" in section["sentences"][0] and "Left out: 1 cell" in section["sentences"][-1]
    assert [len(table.rows) for table in section["tables"]] == [2, 8, 27]
    assert item_section(Reported(item(cells[:2]), records)) is None
    assert page([Reported(item([], "ssfl/tab1"), {})]) is None
