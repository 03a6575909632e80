"""What explains the results: the server's weight by hand, cells once, and sentences that say what the numbers do."""

from dataclasses import replace
from typing import Any

import pytest

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import SSFL
from benchmark.papers.item import Cell, Item
from reports.association import Association
from reports.explained import Explained, Point, Way, explained, gain, gains_over, points_of, server_weight, twins
from reports.explained_figure import scatter
from reports.explained_words import on_diversity, on_gain, on_twins
from reports.figures import DIVERSITY
from reports.pages.explained import explained_values, item_gains
from tests.reports.fakes import make_record

WAYS: dict[str, FedAvg | Grouping] = {
    "FedAvg": FedAvg(),
    "Control": FedAvg(server_weight=1 / 6),
    "Grouping": Grouping(S=2),
}


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
    found = enumerate(accuracies)
    return {seed: make_record(one, seed, {"test/accuracy": value}, rounds=rounds) for seed, value in found}


def test_the_server_s_weight_by_hand():
    """C = 10: FedAvg 1/11; two groups of five 1/6 each; groups of 4, 4 and 2 as released (1/5 + 1/5 + 1/3) / 3; none
    where clients hold the few labels or the method is another's."""
    assert server_weight(experiment(FedAvg())) == pytest.approx(1 / 11)
    assert server_weight(experiment(Grouping(S=2))) == pytest.approx(1 / 6)
    assert server_weight(experiment(Grouping(S=3, sizes="released_code"))) == pytest.approx((0.4 + 1 / 3) / 3)
    assert server_weight(experiment(FedAvg(server_weight=0.25))) == 0.25
    assert server_weight(experiment(FedAvg(), data=Data(N_s=0, label_setting="share", labelled_share=0.1))) is None
    assert server_weight(replace(experiment(FedAvg()), method=SemiFL())) is None


def test_a_cell_is_one_point_whatever_is_measured_on_the_way():
    """The same training under another cadence of evaluation, in another item: its seeds join the first one's."""
    one = cell("FedAvg")
    again = replace(one, experiment=replace(one.experiment, evaluation=Evaluation(gradient_diversity_every=2)))
    first = (item([one]), {one.cell_key: runs(one, [0.9, 0.8], 0.5)})
    extra = {2: runs(again, [0.1, 0.1, 0.7], 0.7)[2]}
    (point,) = points_of([first, (item([again], "ssfl/fig6"), {again.cell_key: extra})])
    assert (point.name, point.way, point.n) == ("ssfl/tab2: FedAvg/R=0.4", "FedAvg", 3)
    assert point.accuracy == pytest.approx(0.8)
    assert point.diversity[DIVERSITY] == pytest.approx(
        (0.5 + 0.5 + 0.7) / 3
    )  # medians: the 9.0 of round 1 is not in it


def point(way: Way, setting: str, weight: float, diversity: float, accuracy: float, data: str = "mnist") -> Point:
    return Point(
        name=f"{setting} {way}",
        way=way,
        setting=setting,
        data=data,
        labelled=False,
        server_weight=weight,
        accuracy=accuracy,
        diversity={DIVERSITY: diversity},
        n=2,
        runs={0: (accuracy + 0.01, diversity), 1: (accuracy - 0.01, diversity)},
    )


def test_gains_by_hand():
    """Grouping .90 .92 .94, FedAvg .80 .82 .84, control .88 .90 .94: gain .10, of which .0867 by the weight."""
    values: dict[Way, dict[int, float]] = {
        "FedAvg": {0: 0.80, 1: 0.82, 2: 0.84},
        "Control": {0: 0.88, 1: 0.90, 2: 0.94},
        "Grouping": {0: 0.90, 1: 0.92, 2: 0.94, 3: 0.1},
    }
    found = gain("full", values)
    assert found is not None and found.share is not None
    assert found.whole.mean == pytest.approx(0.10) and found.by_weight.mean == pytest.approx(0.26 / 3)
    assert found.rest.mean == pytest.approx(0.04 / 3) and found.whole.seeds == (0, 1, 2)
    assert found.share[0] == pytest.approx(0.26 / 0.30)
    assert found.share[1][0] < found.share[0] < found.share[1][1]
    assert gain("none", {**values, "Control": {7: 0.5}}) is None
    unsure = gain("unsure", {**values, "FedAvg": {0: 0.95, 1: 0.7, 2: 0.9}})
    assert unsure is not None and unsure.share is None  # the gain's interval holds zero


def test_twins_share_setting_and_weight():
    points = [
        point("Grouping", "a", 1 / 6, 0.7, 0.95),
        point("Control", "a", 1 / 6, 0.5, 0.96),
        point("FedAvg", "a", 1 / 11, 0.4, 0.90),
        point("Grouping", "b", 1 / 6, 0.3, 0.95),
        point("Control", "b", 1 / 4, 0.5, 0.96),  # another weight: no twin
    ]
    (twin,) = twins(points)
    assert (twin.diversity, twin.accuracy) == (pytest.approx(0.2), pytest.approx(-0.01))
    assert on_twins([twin]) == (
        "Grouping and its control share the server's weight exactly. In 1 such pair grouping has the lower diversity of"
        " local updates in 0, the higher accuracy in 0, and both in 0."
    )
    (only,) = gains_over(points)
    assert only.name == "a Grouping" and only.whole.mean == pytest.approx(0.05)


def test_data_sets_are_ranked_apart():
    """MNIST's cells are all better and more diverse than CIFAR-10's; inside each the order is reversed: rho is -1."""
    cells = [
        point("FedAvg", f"{data}{i}", 0.1, start + i, 0.1 * start - 0.01 * i, data)
        for data, start in (("mnist", 9.0), ("cifar10", 1.0))
        for i in range(5)
    ]
    found = explained(cells, DIVERSITY)
    assert found.plain.estimate == pytest.approx(-1.0) and found.held.estimate == pytest.approx(-1.0)
    assert found.plain.clusters == 10


def told(low: float, high: float, estimate: float = 0.0, clusters: int = 12) -> str:
    held = Association(estimate=estimate, interval=(low, high), n=30, clusters=clusters)
    return on_diversity(Explained(measure=DIVERSITY, plain=held, held=held, weight=held, points=()))


def test_the_sentence_follows_the_interval():
    assert "lower accuracy" in told(-0.8, -0.1) and "no proof of a cause" in told(-0.8, -0.1)
    assert "the opposite" in told(0.1, 0.6) and "no proof of a cause" in told(0.1, 0.6)
    assert "at most a weak association" in told(-0.2, 0.25)
    assert "do not show that diversity predicts" in told(-0.6, 0.2) and "nor that it does not" in told(-0.6, 0.2)
    assert "over 30 cells in 12 settings" in told(-0.6, 0.2)
    few = Association(estimate=-0.9, interval=None, n=6, clusters=3)
    assert "too few settings" in on_diversity(Explained(measure=DIVERSITY, plain=few, held=few, weight=few, points=()))
    assert on_gain([]).startswith("No setting") and on_twins([]).startswith("No setting")


def test_page_files_and_item_from_the_same_records(tmp_path):
    """Three ways in nine settings: the page has a section, a figure that is the same twice, and a row a cell."""
    cells = [cell(way, R) for R in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) for way in WAYS]
    gains = {"FedAvg": 0.0, "Control": 0.03, "Grouping": 0.04}
    records = {
        c.cell_key: runs(
            c,
            [0.9 - float(c.setting["R"]) / 9 + gains[str(c.setting["method"])] + s / 90 for s in range(3)],
            0.5 + i / 50,
        )
        for i, c in enumerate(cells)
    }
    one = item(cells)
    values, files = explained_values([(one, records)])
    (section,) = values["sections"]
    assert len(section["cells"]) == 27 and len(section["gains"]) == 9
    assert "gains +4.00 points on FedAvg" in section["sentences"][0] and "75 %" in section["sentences"][0]
    assert files == explained_values([(one, records)])[1]
    assert files["laptop-diversity.pdf"].startswith(b"%PDF") and b"<svg" in files["laptop-diversity.svg"]
    assert files["laptop-cells.csv"].count(b"\n") == 28
    shown = item_gains(one, records)
    assert shown is not None and len(shown["rows"]) == 9 and shown["rows"][0]["parts"][0]["mean"] == "+4.00"
    assert item_gains(item(cells[:2]), records) is None
    assert scatter(explained(points_of([(item(cells[:2]), records)]), DIVERSITY)) is None
