"""The page of findings: of each paper its main sentences, what came out, and what can be said against it.

`findings.toml` names the claims and has the objections; every number is from the records.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmark.papers.item import Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import ACCURACY, Records
from reports.boards import board, furthest, main_sentences, questions, sentences, state_text, variant_rows
from reports.claims import ClaimRow, finding_text
from reports.formatting import count, points, shown
from reports.pages import papers
from reports.rendering import render
from reports.reported import Reported, connect
from reports.scope import context_lines


def findings_page(every: Sequence[Reported], *, links: bool) -> str:
    """As Markdown; with `links` a claim leads to its page, from the site's root. Raises ConfigError."""
    known = furthest(every)
    sections = []
    for paper, main in main_sentences().items():
        rows = board(every, paper)
        kinds = {"decided sentence of the paper": sentences(rows), "decided question of ours": questions(rows)}
        for title, own in variant_rows(every, paper).items():
            kinds[f"decided, but of a withdrawn setting and counted for no paper ({title})"] = own
        sections.append(
            {
                **papers()[paper],
                "sentences": [(known.get(row.key, row), against) for row, against in main],
                "decided": {kind: [row for row in own if row.judged.is_decided] for kind, own in kinds.items()},
            }
        )
    return render(
        "findings.md",
        papers=sections,
        state=state_text(every),
        links=links,
        outcome=_outcome,
        compared=_compared_with_print(every),
    )


def _outcome(row: ClaimRow) -> str:
    """Where the claim was judged, what was measured, and what else has to be known."""
    reported, judged = row.reported, row.judged
    if not row.has_page:
        return "No run has been made."
    where = f"{row.item.name} at profile {row.item.profile}"
    looks = f", {count(judged.looks, 'look')}" if judged.looks else ""
    more = f" {judged.could_decide} confirming seeds can decide it." if judged.could_decide else ""
    context = context_lines(reported, judged) if judged.estimate is not None else ()
    return " ".join((f"{where}{looks}. {finding_text(reported, judged)}{more}", *context))


def _compared_with_print(every: Sequence[Reported]) -> list[str]:
    """The cells at profile `paper` with their printed accuracy; a cell that two tables print alike once."""
    texts: dict[tuple[str, float | None], str] = {}
    for reported in every:
        for label, agreed in reported.agreements.items():
            result, printed = reported.results[label], reported.item.cell(label).printed()
            if result.summary is None or printed is None:
                continue
            ours = f"{shown(ACCURACY, result.summary.mean)} % ({count(result.summary.n, 'run')})"
            text = f"{reported.item.name}, {result.cell.label}: {ours}, printed {printed:.2f} %"
            text += f": {points(agreed.difference)} points"
            text += f". Data: {agreed.other_data}." if agreed.other_data else f", {agreed.text}."
            texts.setdefault((result.cell.cell_key, printed), text)
    return list(texts.values())


def write_findings(results: Sequence[tuple[Item, Records]], path: Path) -> None:
    """The page of findings. Raises CannotWrite."""
    every = connect([Reported(item, records) for item, records in results])
    write_atomically(path, findings_page(every, links=False).encode())
