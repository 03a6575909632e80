"""Collects what became of the tests that name a fault: pytest --faults=FILE runs these tests alone and writes FILE."""

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import FAULTS


class Outcomes:
    """`fault(4, 5, counts="bytes flipped and caught", each=2)`: the faults that a test is of, and the figure to which
    each of its cases adds (`each`: by how much; default 1)."""

    def __init__(self, file: Path) -> None:
        self.file, self.began = file, time.monotonic()
        self.marks: dict[str, pytest.Mark] = {}
        self.cases: dict[str, Counter[str]] = defaultdict(Counter)
        self.reasons: dict[str, str] = {}
        self.figures: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [(item, mark) for item in items for mark in item.iter_markers("fault")]
        self.marks = {item.nodeid: mark for item, mark in chosen}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.marks])
        items[:] = [item for item in items if item.nodeid in self.marks]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        test = report.nodeid.partition("[")[0]
        self.cases[test][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[test] = report.longrepr[2].removeprefix("Skipped: ")
        counts = self.marks[report.nodeid].kwargs
        if report.passed and "counts" in counts:
            self.figures[counts["counts"]] += counts.get("each", 1)

    def pytest_sessionfinish(self) -> None:
        of_faults: dict[int, set[str]] = defaultdict(set)
        for node, mark in self.marks.items():
            for number in mark.args:
                of_faults[number].add(node.partition("[")[0])
        found: dict[str, Any] = {
            "command": f"python -m pytest --faults={self.file}",
            "seconds": round(time.monotonic() - self.began),
            "figures": dict(sorted(self.figures.items())),
            "tests": {
                test: {**dict(sorted(cases.items())), **({"why": self.reasons[test]} if test in self.reasons else {})}
                for test, cases in sorted(self.cases.items())
            },
            "faults": {str(number): sorted(tests) for number, tests in sorted(of_faults.items())},
        }
        self.file.write_text(json.dumps(found, indent=1) + "\n")


def check(item: pytest.Item) -> None:
    """A mark names faults of the table. Raises UsageError."""
    for mark in item.iter_markers("fault"):
        unknown = [number for number in mark.args if number not in FAULTS]
        if unknown or not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: fault({unknown}); numbers of tests/faults/table.py would be right")
