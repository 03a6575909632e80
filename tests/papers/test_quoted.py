"""Cells that a paper quotes from others are shown, and run on request."""

from dataclasses import replace

import pytest

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
