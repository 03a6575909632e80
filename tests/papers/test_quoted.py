"""Cells that a paper quotes from others are shown, and run on request."""

import json
from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.papers.catalogue import items
from reports.exports import item_result
from sweeps.grid import grid_of_item
from sweeps.plan import Seeds, plan, restricted
from tests.reports.fakes import make_record


def test_quoted_cells_run_on_request_alone_and_show_where_somebody_ran_them(tmp_path):
    """Table 3: 4 cells of grouping and 3 bounds are trained, 4 of FedMatch shown; a record of one of those is there."""
    (plain,), (asked,) = (items(["ssfl/tab3"], "demo", also_quoted=also) for also in (False, True))
    two = Seeds(pilots=2)
    assert len(plan([plain], tmp_path, seeds=two).runs) == 2 * plan([plain], tmp_path, seeds=two).cells == 2 * 7
    assert plan([asked], tmp_path, seeds=two).cells == 11
    assert all("FedMatch" not in cell for cell in grid_of_item(plain)["cell"])
    quoted = next(cell for cell in plain.cells if cell.role == "quoted")

    def recorded(*_: object, **__: object) -> dict:
        return {quoted.cell_key: {0: make_record(quoted, 0, {"test/accuracy": 0.5})}}

    planned = plan([plain], tmp_path, seeds=Seeds(pilots=1), read=recorded)
    one = replace(plain, seeds=1)
    shown = {c["cell_key"]: c for c in item_result(one, {})["cells"]}
    assert len(shown) == 11 and sum(cell["published"] is not None for cell in shown.values()) == 8
    cells = item_result(one, restricted(planned.records, planned.shown))["cells"]
    assert [cell["mean"] for cell in cells if cell["cell_key"] == quoted.cell_key] == pytest.approx([0.5])


def test_plan_counts_shared_runs_once(tmp_path, capsys):
    """Figures D.3 and D.4 are the same runs, Table 2's: 6 of the paper and 3 controls."""
    words = ["plan", "ssfl/figd3", "ssfl/figd4", "--profile", "demo", "--pilots", "1", "--json", "--also-quoted"]
    assert main([*words, "--results", str(tmp_path)]) == 0
    one, other, both = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [counts["runs"] for counts in (one, other, both)] == [9, 9, 9]
    assert both["local_steps"] == one["local_steps"]
