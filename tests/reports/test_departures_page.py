"""The departures page: a handwritten entry, and beside it what its switches did, from the records."""

from dataclasses import replace
from pathlib import Path

from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.verdicts.results import Records
from reports.pages.departures import departures_values
from reports.render import render
from tests.conftest import ROOT
from tests.reports.fakes import accuracies, make_record

TEXT = (ROOT / "reports" / "ssfl" / "departures.md").read_text()


def measured() -> tuple[Item, Records]:
    """Momentum: .90 .92 by default and .91 .95 the other way; another seed of one way alone; server-models diverged."""
    (item,) = items(["ssfl/departures"], "laptop")
    base, other, replicas = (
        item.cell(label) for label in ("momentum/default", "momentum/other", "server-models/other")
    )
    return replace(item, seeds=3), {
        **accuracies([(base, [0.90, 0.92, 0.5]), (other, [0.91, 0.95])]),
        replicas.cell_key: {0: make_record(replicas, 0, status="diverged")},
    }


def test_effects_are_paired_differences_by_hand():
    """Seeds 0 and 1 have both: +1 and +3 points, +2 in the mean, +-t_1(.975) x sqrt 2 / sqrt 2 = 12.7 points."""
    values = departures_values("ssfl", TEXT, [measured()])
    blocks = {block["text"].split(".")[0]: block for block in values["blocks"]}
    (momentum,) = blocks["5"]["switches"]
    assert "ssfl/departures" not in blocks["5"]["text"] and momentum["cell"] == "ssfl/departures: momentum"
    (effect,) = momentum["effects"]
    assert (effect["difference"], effect["interval"], effect["n"]) == ("+2.00", "[-10.7, +14.7]", 2)
    assert effect["href"].startswith("departures/laptop/cell-momentum-other")
    assert [s["cell"] for s in blocks["2"]["switches"]] == [
        "ssfl/departures: start-average",
        "ssfl/departures: start-last-group",
    ]
    (replicas,) = blocks["1"]["switches"]
    assert replicas["effects"][0]["difference"] is None and replicas["effects"][0]["diverged"] == 1
    assert blocks["3"]["switches"] == []


def shown(results: list[tuple[Item, Records]]) -> str:
    values = departures_values("ssfl", TEXT, results)
    return render(Path("ssfl/departures.html"), "departures.html", values).decode()


def test_what_was_not_run_is_said():
    page, some = (shown(results) for results in ([], [measured()]))
    assert page.count("not run.") == 13 and "(ssfl/departures" not in page
    assert "difference <b>+2.00</b> points [-10.7, +14.7], n=2" in some and "not run, 1 diverged" in some
