"""What stands beside a verdict: its setting, all its seeds, collapse, and runs that say otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Elsewhere, Item
from benchmark.verdicts.judge import Estimate, Judged
from benchmark.verdicts.results import Records
from reports.claims import ClaimRow, claim_values, rows_of, scope_text
from reports.reported import Reported, connect
from tests.reports.fakes import accuracies, make_record, pair


def federated(item: Item, factors: list[tuple[int, int]]) -> Item:
    """Its cells with these K and C."""
    cells = tuple(
        replace(cell, experiment=replace(cell.experiment, federation=replace(cell.experiment.federation, K=K, C=C)))
        for cell, (K, C) in zip(item.cells, factors, strict=True)
    )
    return replace(item, cells=cells)


def decided(verdict: str, **more: Any) -> Judged:
    claim = replace(pair().claims[0], elsewhere=(Elsewhere(item="toy/tab2", contrast={"a": 1.0, "b": -1.0}),))
    seen = Estimate(value=-0.02, n=9, interval=(-0.03, -0.01))
    values: dict[str, Any] = {"claim": claim, "verdict": verdict, "reason": "", "seen": seen, **more}
    return Judged(**values)


def elsewhere(a: float, b: float) -> Reported:
    """An item of 470 clients whose pilots end at a and b."""
    item = replace(federated(pair(), [(470, 10), (470, 30)]), name="toy/tab2")
    return Reported(item, accuracies([(item.cells[0], [a, a]), (item.cells[1], [b])]))


def test_a_verdict_names_clients_cohorts_and_data() -> None:
    item = pair()
    assert scope_text(federated(item, [(10, 2), (10, 10)]), item.claims[0]) == "at K = 10, C = 2 and 10 on 8x8 digits"
    assert scope_text(federated(item, [(30, 3), (10, 3)]), item.claims[0]) == "at K = 10 and 30, C = 3 on 8x8 digits"
    a, b = federated(item, [(10, 2), (1, 1)]).cells
    alone = replace(b, experiment=replace(b.experiment, method=ServerOnly(batch_size=64)))
    assert scope_text(replace(item, cells=(a, alone)), item.claims[0]) == "at K = 10, C = 2 on 8x8 digits"


@pytest.mark.parametrize(
    ("verdict", "form", "ends", "says"),
    [
        ("contradicted", "improves", (0.9, 0.6), "say the other way: +30.00 points (n = 1)"),
        ("contradicted", "improves", (0.6, 0.9), "say the same: -30.00 points (n = 1)"),
        ("holds", "improves", (0.6, 0.9), "say the other way: -30.00 points (n = 1)"),
        ("no effect of interest", "improves", (0.9, 0.6), "say the other way: +30.00 points (n = 1)"),
        ("no effect of interest", "improves", (0.6, 0.597), "say the same: +0.30 points (n = 1)"),
        ("holds", "comparable", (0.6, 0.9), "say the other way: -30.00 points (n = 1)"),
        ("contradicted", "comparable", (0.6, 0.597), "say the other way: +0.30 points (n = 1)"),
        ("undecided", "improves", (0.9, 0.6), "show: +30.00 points (n = 1)"),
    ],
)
def test_pilots_of_another_item_stand_beside_the_verdict(
    verdict: str, form: Any, ends: tuple[float, float], says: str
) -> None:
    """b has one run, so that one seed has both."""
    judged = decided(verdict)
    judged = replace(judged, claim=replace(judged.claim, form=form))
    here, there = Reported(pair(), {}), elsewhere(*ends)
    assert ClaimRow(reported=here, judged=judged).against == []
    connect([here, there])
    (line,) = ClaimRow(reported=here, judged=judged).against
    assert line == f"Pilots at K = 470, C = 10 and 30 on 8x8 digits (toy/tab2: a - b) {says}."


def test_each_data_set_of_the_other_item_has_a_line() -> None:
    place = Elsewhere(item="toy/tab2", contrast={"{data}/a": 1.0, "{data}/b": -1.0})
    labels = ("CIFAR-10/a", "CIFAR-10/b", "SVHN/a", "SVHN/b", "STL-10/a", "a")
    assert [list(one) for one in place.contrasts_in(labels)] == [["CIFAR-10/a", "CIFAR-10/b"], ["SVHN/a", "SVHN/b"]]
    assert Elsewhere(item="toy/tab2", contrast={"a": 1.0, "c": -1.0}).contrasts_in(labels) == ()


def test_pilots_of_the_same_cells_are_told_where_they_disagree() -> None:
    here = Reported(pair(), {})
    against = decided("contradicted", pilots=Estimate(value=0.05, n=3))
    assert ClaimRow(reported=here, judged=against).against == [
        "Pilots of the same cells say the other way: +5.00 points (n = 3)."
    ]
    agreeing = decided("contradicted", pilots=Estimate(value=-0.05, n=3))
    assert ClaimRow(reported=here, judged=agreeing).against == []


def test_all_seeds_and_collapse_have_lines_of_their_own_and_stand_in_the_json() -> None:
    """7 of 9: Clopper and Pearson give 39.99 to 97.19 %; 0 of 9: 0 to 33.63 %."""
    here = Reported(pair(), {})
    over_all = Estimate(value=-0.01, n=12, interval=(-0.04, 0.02), is_range=True)
    judged = decided("contradicted", over_all=over_all, collapsed={"a": 0, "b": 7}, runs_fall=True, looks=1)
    assert ClaimRow(reported=here, judged=judged).context == [
        "Over all 12 confirming seeds: -1.00 points [-4.00, +2.00] (least and largest difference).",
        "Collapsed: a 0 of 9, 0 to 34 %, b 7 of 9, 40 to 97 %.",
        "Runs fall: 7 of 9.",
    ]
    values = claim_values(ClaimRow(reported=here, judged=judged))
    assert values["scope"] == "at K = 10, C = 10 on 8x8 digits" and values["look"] == 1
    assert values["over_all_seeds"] == {"estimate": -0.01, "interval": [-0.04, 0.02], "n": 12}
    assert values["collapsed"] == {"a": [0, 9], "b": [7, 9]}
    none = replace(judged, over_all=None, collapsed={"a": 0, "b": 0}, runs_fall=False)
    assert ClaimRow(reported=here, judged=none).context == ["Collapsed: no run of a, b (0 of 9, 0 to 34 % each)."]


def test_of_a_claim_in_parts_those_with_runs_are_told() -> None:
    """a and b have a confirming seed and c has none: what a - b is so far is told, and nothing is judged."""
    item = pair()
    a, b = item.cells
    c = replace(a, label="c", experiment=replace(a.experiment, precision="bf16"))
    parts = ({"a": 1.0, "b": -1.0}, {"a": 1.0, "c": -1.0})
    claim = replace(item.claims[0], form="every", contrast={}, contrasts=parts)
    item = replace(item, cells=(a, b, c), claims=(claim,))
    records: Records = {
        cell.cell_key: {100: make_record(cell, 100, {"test/accuracy": end})} for cell, end in ((a, 0.9), (b, 0.8))
    }
    one = Reported(item, records)
    (row,) = rows_of(one)
    assert (row.judged.verdict, row.verdict) == ("not run", "not judged yet")
    lines = [
        "Cells without confirming runs: c.",
        "So far, not judged (above zero speaks for the claim): a - b: +10.00 points (n = 1).",
    ]
    assert row.so_far == lines
    assert replace(row, reported=Reported(item, {})).so_far == []
