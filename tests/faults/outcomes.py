"""Collects what became of the tests that name a fault: pytest --faults=FILE runs these tests alone and writes FILE.

With fewer tests (pytest --faults=FILE tests/x/test_y.py) their outcomes replace those that the file has of them.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import FAULTS


class Outcomes:
    """`fault(4, 5, counts="bytes flipped and caught", each=2)`: the faults that a test is of, and the figure to which
    each of its cases adds (`each`: by how much; default 1)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.marks: dict[str, pytest.Mark] = {}
        self.cases: dict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [(item, mark) for item in items for mark in item.iter_markers("fault")]
        self.marks = {item.nodeid: mark for item, mark in chosen}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.marks])
        items[:] = [item for item in items if item.nodeid in self.marks]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("[")[0]
        if report.when != "call" and report.passed:
            return
        self.cases[test][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[test] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_sessionfinish(self) -> None:
        before = json.loads(self.file.read_text()) if self.file.exists() else {"tests": {}}
        found = {**before["tests"], **{test: self._of(test) for test in self.cases}}
        self.file.write_text(json.dumps({"tests": dict(sorted(found.items()))}, indent=1) + "\n")

    def _of(self, test: str) -> dict[str, Any]:
        """What is kept of a test: its faults, its cases by outcome, and what it adds to a figure."""
        mark = next(mark for node, mark in self.marks.items() if node.partition("[")[0] == test)
        counts = {mark.kwargs["counts"]: mark.kwargs.get("each", 1)} if "counts" in mark.kwargs else {}
        why = {"why": self.reasons[test]} if test in self.reasons else {}
        return {"faults": list(mark.args), **self.cases[test], **why, "counts": counts}


def check(item: pytest.Item) -> None:
    """A mark names faults of the table. Raises UsageError."""
    for mark in item.iter_markers("fault"):
        unknown = [number for number in mark.args if number not in FAULTS]
        if unknown or not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: fault({unknown}); numbers of tests/faults/table.py would be right")
