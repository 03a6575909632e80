"""What explains SSFL's results: weights and gains by hand, correlations against scipy."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment, Federation
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import SSFL, FedAvg, Grouping
from benchmark.papers.item import Cell, Item
from reports.item_results import ItemResults
from reports.ssfl_analysis import cells_of, correlations, gains_over, gains_text, page, partial_correlation, runs_of
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


@settings(max_examples=25)
@given(LISTS)
def test_partial_correlations_are_those_of_what_a_regression_leaves(rows: Any) -> None:
    """Pearson of what scipy's regressions on the ranks of z leave of the ranks of x and y."""
    x, y, z = (stats.rankdata(column) for column in columns(rows))
    assume(min(len(set(c)) for c in (x, y, z)) > 1)
    left = [c - stats.linregress(z, c).intercept - stats.linregress(z, c).slope * z for c in (x, y)]
    assume(min(np.std(part) for part in left) > 1e-3)
    pairs = (stats.pearsonr(*pair).statistic for pair in ((x, y), (x, z), (y, z)))
    assert partial_correlation(*pairs) == pytest.approx(stats.pearsonr(*left).statistic, abs=1e-9)
    assert partial_correlation(0.4, np.nan, np.nan) == 0.4 and np.isnan(partial_correlation(0.5, 1.0, 0.5))


def cell(way: str, R: float) -> Cell:
    federation = Federation(K=10, C=10, T=4, rounds=5)
    experiment = Experiment(method=SSFL(averaging=WAYS[way]), federation=federation, partition=ClassSkew(R=R))
    return Cell(label=f"{way}/R={R:g}", setting={"method": way, "R": R}, experiment=experiment)


def runs(one: Cell, accuracies: list[float], diversity: float) -> dict:
    """Make one record per seed; three rounds of diversity, the first far off."""
    rounds = [{"round": t, DIVERSITY: value} for t, value in enumerate((9.0, diversity, diversity), start=1)]
    return {s: make_record(one, s, {"test/accuracy": value}, rounds=rounds) for s, value in enumerate(accuracies)}


def row(way: str, setting: str, weight: float, diversity: float, accuracy: float, **more: Any) -> dict:
    start = {"cell": f"{setting} {way}", "averaging": way, "setting": setting, "server_weight": weight, "data": "mnist"}
    rest = {"accuracy": accuracy, DIVERSITY: diversity, EXACT: np.nan, "labelled": False, "collapsed": False, "seed": 0}
    return {**start, **rest, **more}


def test_gains_by_hand() -> None:
    """FedAvg .5 .6 .7; control + .10 .12 .14; grouping + .20 .22 .24, and more diverse by .2."""
    ends = {"FedAvg": (0.5, 0.6, 0.7), "Control": (0.60, 0.72, 0.84), "Grouping": (0.70, 0.82, 0.94)}
    ways = {"FedAvg": (1 / 11, 0.5), "Control": (1 / 6, 0.5), "Grouping": (1 / 6, 0.7)}
    every = [(way, seed, end) for way in ends for seed, end in enumerate(ends[way])]
    runs = pd.DataFrame(row(way, "a", *ways[way], end, seed=seed) for way, seed, end in every)
    gains = gains_over(runs)
    assert len(gains) == 1
    gain = gains.iloc[0]
    assert gain[["whole", "by_weight", "rest", "diversity"]].tolist() == pytest.approx([0.22, 0.12, 0.1, 0.2])
    assert (gain["cell"], gain["control"], gain["n"]) == ("a Grouping", "a Control", 3)
    assert [int(number) for number in re.findall(r"\d+", gains_text(gains).splitlines()[-1])[-4:]] == [1, 0, 1, 0]
    assert "+22.00" in gains_text(gains)
    other = runs.assign(setting="b", cell="b " + runs["averaging"], data="cifar10")  # grouping loses 10 of 100 points
    other["accuracy"] = runs["accuracy"].where(runs["averaging"] != "Grouping", runs["accuracy"] - 0.32)
    mnist, cifar10, _ = re.split(r"(?<=that\.) ", gains_text(gains_over(pd.concat([runs, other]))))
    assert "MNIST" in mnist and "+22.00" in mnist and "CIFAR-10" in cifar10 and "-10.00" in cifar10
    control = runs["averaging"] == "Control"
    for changed in ({"seed": runs["seed"] + 7}, {"server_weight": 1 / 4}):  # no seed in common; another weight
        assert gains_over(runs.assign(**{n: runs[n].mask(control, new) for n, new in changed.items()})).empty


def test_data_sets_are_ranked_apart() -> None:
    """MNIST's cells are all better and more diverse than CIFAR-10's; inside each the order is reversed: rho is -1."""
    cells = [
        row("FedAvg", f"{data}{i}", 0.1, start + i, 0.1 * start - 0.01 * i, data=data)
        for data, start in (("mnist", 9.0), ("cifar10", 1.0))
        for i in range(5)
    ]
    known = correlations(cells_of(pd.DataFrame(cells)), DIVERSITY)
    assert known["plain"] == pytest.approx(-1.0) and known["held"] == pytest.approx(-1.0)
    assert np.isnan(known["weight"]) and (known["cells"], known["settings"]) == (10, 10)


def test_the_page_from_records() -> None:
    """Three ways in nine settings: grouping gains 4 points, the control 3."""
    cells = [cell(way, R) for R in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for way in WAYS]
    gains = {"FedAvg": 0.0, "Control": 0.03, "Grouping": 0.04}
    records = {}
    for i, c in enumerate(cells):
        end = 0.9 - float(c.setting["R"]) / 9 + gains[str(c.setting["method"])]
        records[c.cell_key] = runs(c, [end + s / 90 for s in range(3)], 0.5 + i / 50)
    one = Item(name="ssfl/tab2", title="", profile="laptop", cells=tuple(cells), seeds=3)
    found = page([ItemResults(one, records)])
    assert found is not None
    (section,) = found["sections"]
    assert "+4.00" in section["sentences"][0] and "+3.00" in section["sentences"][0]
    assert [len(table.rows) for table in section["tables"]] == [2, 9, 27]
    ((picture, caption),) = section["pictures"]
    assert sum(len(one["points"]) for one in picture.data[0]["lines"]) == 27 and caption
    # Labels alone at .825 beside FedAvg's .811, .822 and .833 at R = .8: that setting is shown, and not averaged.
    alone = Cell(label="alone", setting={}, role="bound", experiment=replace(cells[0].experiment, method=ServerOnly()))
    with_bound = replace(one, cells=(*one.cells, alone))
    found = page([ItemResults(with_bound, {**records, alone.cell_key: runs(alone, [0.825] * 3, 0.0)})])
    assert found is not None
    (section,) = found["sections"]
    assert "8 settings" in section["sentences"][0] and "1 cell" in section["sentences"][-1]
    assert [len(table.rows) for table in section["tables"]] == [2, 8, 27]
    assert page([ItemResults(replace(one, cells=()), {})]) is None and gains_text(gains_over(runs_of([])))[:2] == "No"
