"""Compose the front page: the scale of the results, three numbers, a headline per paper, one table of methods.

This module also writes README's table of headlines and the committed page of findings.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.data.folder import public_name
from benchmark.files import write_atomically
from benchmark.papers.items import ITEMS
from reports.arena import methods_overview
from reports.claims import DATA
from reports.findings import SENTENCES, board, findings_page, kinds
from reports.formatting import count
from reports.headlines import headlines
from reports.item_results import PAPERS, ItemResults
from reports.rendering import render
from reports.sentences import STATUSES, sentences_of

SMALL = {"demo", "laptop", "gpu"}  # profiles that reduce the published setting


def front_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the front page; all numbers are from the records."""
    return {
        "banner": scale_text(every),
        "has_runs": bool(_runs_by_profile(every)),
        "numbers": three_numbers(every),
        "headlines": headlines(every),
        "methods": methods_overview(every),
    }


def scale_text(every: Sequence[ItemResults]) -> str:
    """Say how many runs are in reduced settings, and how many verdicts rest on a published setting."""
    profiles = _runs_by_profile(every)
    total = profiles.total()
    if not total:
        return "Nothing has been run yet."
    reduced = sum(number for profile, number in profiles.items() if profile in SMALL)
    if not reduced:
        return "Every run has a published setting."
    profile_of_verdict = []
    for reported in every:
        trained = [row for row in reported.judged if row.is_decided and row.claim.endpoint != "arithmetic"]
        profile_of_verdict += [reported.item.profile] * len(trained)
    at_scale = sum(profile not in SMALL for profile in profile_of_verdict)
    runs = f"{reduced:,} of {total:,} runs are in reduced settings: smaller images, smaller networks, fewer rounds"
    if not profile_of_verdict:
        verdicts = "No verdict rests on them yet."
    elif at_scale:
        verdicts = f"{at_scale} of {count(len(profile_of_verdict), 'verdict')} rest on a published setting."
    else:
        verdicts = "No verdict is at the scale of a paper."
    return f"{runs} ({_data_of(every)}). {verdicts}"


def _runs_by_profile(every: Sequence[ItemResults]) -> Counter[str]:
    """Count the runs of the papers and comparisons by the profile of their table, each run once."""
    profiles: dict[tuple[str, int], str] = {}
    for reported in every:
        for run in reported.runs:
            profiles.setdefault((run.cell_key, run.seed), reported.item.profile)
    return Counter(profiles.values())


def _data_of(every: Sequence[ItemResults]) -> str:
    """Return the data sets with most runs: "mostly MNIST, CIFAR-10, SVHN"."""
    runs = {(run.cell_key, run.seed): run for reported in every for run in reported.runs}
    names = Counter(run.experiment["data"]["name"] for run in runs.values())
    first = [DATA.get(name, public_name(name)) for name, _ in names.most_common(3)]
    return "mostly " + ", ".join(first) if len(names) > len(first) else ", ".join(first)


def three_numbers(every: Sequence[ItemResults]) -> list[tuple[str, str]]:
    """Return three numbers, each with what it counts: tables and figures, sentences with a decision, runs."""
    declared = [name for name in ITEMS if name.partition("/")[0] in PAPERS]
    with_runs = {reported.item.name for reported in every if reported.item.name in declared}
    sentences = sentences_of(kinds(board(every))[SENTENCES])
    decided = Counter(sentence.status for sentence in sentences if sentence.has_decision)
    parts = [f"{status} {decided[status]}" for status in STATUSES if decided[status]]
    how = f": {', '.join(parts)}" if parts else ""
    runs = _runs_by_profile(every).total()
    papers = count(len(PAPERS), "paper")
    return [
        (f"{len(with_runs)} of {len(declared)}", f"tables and figures of {papers} have runs"),
        (f"{decided.total()} of {len(sentences)}", f"sentences of the papers have a decision{how}"),
        (f"{runs:,}", "runs" if runs != 1 else "run"),
    ]


def papers_table(every: Sequence[ItemResults]) -> str:
    """Return README's table as Markdown: one row per paper with its verdict at each setting, and one line of state."""
    return render("board.md", headlines=headlines(every), state=state_line(every))


def state_line(every: Sequence[ItemResults]) -> str:
    """Say how far the judging has come, in one line."""
    by_kind = {kind: sentences_of(rows) for kind, rows in kinds(board(every)).items()}
    parts = []
    for kind, sentences in by_kind.items():
        decided = sum(sentence.has_decision for sentence in sentences)
        parts.append(f"{decided} of {len(sentences)} {kind}")
    return f"{' and '.join(parts)} have a decision. {scale_text(every)}"


def write_findings(every: Sequence[ItemResults], page: Path, readme: Path) -> None:
    """Write the page of findings, and README's table between its two marks. Raise CannotWrite."""
    write_atomically(page, findings_page(every, links=False).encode())
    start, end = "<!-- claims: fssl report --readme -->\n", "<!-- end of claims -->"
    before, _, rest = readme.read_text().partition(start)
    write_atomically(readme, (before + start + papers_table(every) + end + rest.partition(end)[2]).encode())
