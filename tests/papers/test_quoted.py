"""Cells that the paper quotes from others' settings are shown, and run on request; and how the whole is counted."""

import json
from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.papers.catalogue import items
from benchmark.papers.item import census
from reports.exports import item_result
from sweeps.grid import grid_of_item
from sweeps.plan import Seeds, plan, restricted
from tests.reports.fakes import make_record


def test_the_paper_has_131_runs_and_135_with_the_quoted_ones():
    """116 behind printed values and curves, 3 of central FixMatch, 12 announced; the exact gradients of Figures 6, D.1
    and D.2 are measured in 6 of Table 2; the 4 of FedMatch are quoted."""
    counted, asked = census(items(["ssfl"], "paper")), census(items(["ssfl"], "paper", also_quoted=True))
    assert (counted["published"], counted["quoted"]) == (131, 4)
    assert asked == {**counted, "published": 135, "quoted": 0}


def test_quoted_cells_run_on_request_alone_and_show_where_somebody_ran_them(tmp_path):
    """Table 3: 4 cells of grouping and 3 bounds are trained, 4 of FedMatch shown; a record of one of those is there."""
    (plain,), (asked,) = (items(["ssfl/tab3"], "demo", also_quoted=also) for also in (False, True))
    two = Seeds(pilots=2)
    assert len(plan([plain], tmp_path, seeds=two).runs) == 2 * plan([plain], tmp_path, seeds=two).cells == 2 * 7
    assert plan([asked], tmp_path, seeds=two).cells == 11
    assert all("FedMatch" not in cell for cell in grid_of_item(plain)["cell"])
    quoted = next(cell for cell in plain.cells if cell.role == "quoted")

    def found(*_: object, **__: object) -> dict:
        return {quoted.cell_key: {0: make_record(quoted, 0, {"test/accuracy": 0.5})}}

    planned = plan([plain], tmp_path, seeds=Seeds(pilots=1), read=found)
    one = replace(plain, seeds=1)
    shown = {c["cell_key"]: c for c in item_result(one, {})["cells"]}
    assert len(shown) == 11 and sum(cell["published"] is not None for cell in shown.values()) == 8
    told = item_result(one, restricted(planned.records, planned.shown))["cells"]
    assert [cell["mean"] for cell in told if cell["cell_key"] == quoted.cell_key] == pytest.approx([0.5])


def test_plan_tells_the_whole(tmp_path, capsys):
    """Figures D.3 and D.4 are the same runs, Table 2's: 6 of the paper and 3 controls, in both together as in each."""
    words = ["plan", "ssfl/figd3", "ssfl/figd4", "--profile", "demo", "--pilots", "1", "--json", "--also-quoted"]
    assert main([*words, "--results", str(tmp_path)]) == 0
    one, other, both = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [found["runs"] for found in (one, other, both)] == [9, 9, 9]
    assert (both["published"], both["controls"], both["quoted"]) == (6, 3, 0)
    assert both["local_steps"] == one["local_steps"] and "published" not in one
