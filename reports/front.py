"""Compose the front page: the scale of the results, three numbers, a headline per paper, one table of methods.

This module also writes README's table of headlines and the committed page of findings.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.files import write_atomically
from benchmark.papers.items import ITEMS
from reports.arena_tables import methods_overview
from reports.findings import (
    IN_FULL,
    SENTENCES,
    claim_rows,
    findings_in_full,
    findings_page,
    kinds,
    runs_by_profile,
    scale_text,
    state_line,
)
from reports.formatting import count
from reports.headlines import headlines
from reports.item_results import PAPERS, ItemResults
from reports.rendering import render
from reports.sentences import STATUSES, sentences_of


def front_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the front page; all numbers are from the records."""
    return {
        "banner": scale_text(every),
        "has_runs": bool(runs_by_profile(every)),
        "numbers": three_numbers(every),
        "headlines": headlines(every),
        "methods": methods_overview(every),
    }


def three_numbers(every: Sequence[ItemResults]) -> list[tuple[str, str]]:
    """Return three numbers, each with its unit: tables and figures, sentences with a decision, runs."""
    declared = [name for name in ITEMS if name.partition("/")[0] in PAPERS]
    with_runs = {reported.item.name for reported in every if reported.item.name in declared}
    sentences = sentences_of(kinds(claim_rows(every))[SENTENCES])
    decided = Counter(sentence.status for sentence in sentences if sentence.has_decision)
    parts = [f"{status} {decided[status]}" for status in STATUSES if decided[status]]
    how = f": {', '.join(parts)}" if parts else ""
    runs = runs_by_profile(every).total()
    papers = count(len(PAPERS), "paper")
    return [
        (f"{len(with_runs)} of {len(declared)}", f"tables and figures of {papers} have runs"),
        (f"{decided.total()} of {len(sentences)}", f"sentences of the papers have been decided{how}"),
        (f"{runs:,}", "runs" if runs != 1 else "run"),
    ]


def papers_table(every: Sequence[ItemResults]) -> str:
    """Return README's table as Markdown: one row per paper with its verdict at each setting, and one line of state."""
    return render("board.md", headlines=headlines(every), state=state_line(every))


def write_findings(every: Sequence[ItemResults], folder: Path, readme: Path) -> None:
    """Write both pages of findings into the folder, and README's table between its two marks. Raise CannotWrite."""
    write_atomically(folder / "findings.md", findings_page(every, links=False).encode())
    write_atomically(folder / IN_FULL, findings_in_full(every, links=False).encode())
    start, end = "<!-- claims: fssl report --readme -->\n", "<!-- end of claims -->"
    before, _, rest = readme.read_text().partition(start)
    write_atomically(readme, (before + start + papers_table(every) + end + rest.partition(end)[2]).encode())
