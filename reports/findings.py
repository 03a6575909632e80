"""The page of findings: of each paper its main sentences, what came out, and what can be said against it.

`findings.toml` names the claims and has the objections; every number is from the records.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmark.papers.item import Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.judge import Judged, share_text
from benchmark.verdicts.results import ACCURACY, Records
from reports.boards import BoardRow, board, furthest, main_sentences, questions, sentences, state_text, variant_rows
from reports.claims import estimate_text, finding_text, judged_by, quote_text
from reports.formatting import (
    NONE,
    claim_page,
    count,
    difference,
    difference_interval,
    markdown,
    points,
    sentence,
    shown,
)
from reports.pages import papers
from reports.reported import Reported
from reports.scope import context_lines, range_text, scope_text, verdict_text

LEAD = """# Findings

Of each paper its main sentences, and all claims that are decided. A claim is decided by seeds that were used for \
nothing else; a pilot shows a direction and decides nothing. `fssl report --readme` writes this page from the records.

A verdict holds only for the setting named with it. A positive difference supports the claim. A claim that two \
methods are equal (no faster, no more) holds if the interval lies within a margin that was fixed in advance. The \
difference is the typical one (Hodges-Lehmann) over confirming seeds, which are looked at when there are 9, 16, 24 \
and 32 of them. All looks and claims on a paper's first hundred of seeds share an error of 5 %. The estimate of an \
early look lies too far from zero on average; the one over all confirming seeds stands next to it. *Judged by*: \
*end* is accuracy at the end of the run; *speed* is the mean log-odds over the rounds, given as accuracy. \
*Collapsed*: runs that end at least 5 points below a model of the labelled images alone, or 20 below their own best; \
the cell with the most of them is shown, with an exact interval. *The server weight alone* (SSFL) is a control of \
ours: FedAvg without groups, with the server weight that grouping has inside a group.
"""

DECIDED_HEAD = """| {kind} | verdict | at | judged by | difference | n | over all seeds | collapsed |
|---|---|---|---|---:|---:|---:|---:|"""
COMPARED = """Test accuracy by the paper's rule: where the paper chose the round on test data, so does the row. \
No claim judges these differences."""


def findings_page(every: Sequence[Reported], also: Sequence[Reported] = (), *, links: bool) -> str:
    """As Markdown. With `links` a claim leads to its page, from the site's root. `also`: items without a page, whose
    runs may speak of a claim's sentence, too. Raises ConfigError."""
    lines = [LEAD, state_text(every)]
    known = furthest(every)
    for paper, findings in main_sentences().items():
        lines += [f"\n## {papers()[paper]['short']}\n\n{papers()[paper]['title']}. {papers()[paper]['where']}.\n"]
        for number, (item, name, against) in enumerate(findings, start=1):
            reported, judged = known.get((item.name, name), (None, None))
            (claim,) = (claim for claim in item.claims if claim.name == name)
            page = claim_page(reported.item, claim) if reported and judged else ""
            title = f"[{markdown(name)}]({page})" if links and page else markdown(name)
            verdict = verdict_text(reported, judged) if reported and judged else "not run"
            lines += [
                f"{number}. **{title}**: {verdict}. {markdown(sentence(quote_text(claim)))}\\",
                f"   {_outcome(reported, judged, [*every, *also])}\\",
                f"   *What can be said against it:* {markdown(against)}",
            ]
        rows = board(every, paper)
        lines += _decided("decided sentence of the paper", sentences(rows))
        lines += _decided("decided question of ours", questions(rows))
        for title, own in variant_rows(every, paper).items():
            lines += _decided(f"decided, but of a withdrawn setting and counted for no paper ({title})", own)
    if printed := _compared_with_print(every):
        lines += [f"\n## At a paper's own length and network\n\n{COMPARED}\n", *printed]
    return "\n".join(lines) + "\n"


def _compared_with_print(every: Sequence[Reported]) -> list[str]:
    """The cells at profile `paper` with their printed accuracy. A cell that two tables print alike once."""
    rows: dict[tuple[str, float | None], str] = {}
    for reported in every:
        for label, agreed in reported.agreements.items():
            result, printed = reported.results[label], reported.item.cell(label).printed()
            if result.summary is None or printed is None:
                continue
            ours = f"{shown(ACCURACY, result.summary.mean)} % ({count(result.summary.n, 'run')})"
            text = f"{reported.item.name}, {result.cell.label}: {ours}, printed {printed:.2f} %"
            text += f": {points(agreed.difference)} points"
            text += f". Data: {agreed.other_data}." if agreed.other_data else f", {agreed.text}."
            rows.setdefault((result.cell.cell_key, printed), f"- {markdown(text)}")
    return list(rows.values())


def write_findings(results: Sequence[tuple[Item, Records]], path: Path) -> None:
    """The page of findings. Raises CannotWrite."""
    page = findings_page([Reported(item, records) for item, records in results], links=False)
    write_atomically(path, page.encode())


def _outcome(reported: Reported | None, judged: Judged | None, every: Sequence[Reported]) -> str:
    if reported is None or judged is None:
        return "No run has been made."
    where = f"{reported.item.name} at profile {reported.item.profile}"
    looks = f", {count(judged.looks, 'look')}" if judged.looks else ""
    more = f" {judged.could_decide} confirming seeds can decide it." if judged.could_decide else ""
    context = context_lines(reported, judged, every) if judged.estimate is not None else ()
    return markdown(" ".join((f"{where}{looks}. {finding_text(reported, judged)}{more}", *context)))


def _decided(kind: str, claims: Sequence[BoardRow]) -> list[str]:
    """A table of those that are decided; empty without any."""
    rows = [_decided_row(row.item, row.judged) for row in claims if row.judged and row.judged.is_decided]
    return ["", DECIDED_HEAD.format(kind=kind), *rows] if rows else []


def _decided_row(item: Item, judged: Judged) -> str:
    metric, over_all = judged.claim.metric, judged.over_all
    interval = difference_interval(metric, judged.interval)
    entries = (
        judged.claim.name,
        judged.verdict,
        f"{scope_text(item, judged.claim).removeprefix('at ')} ({item.name} {item.profile})",
        judged_by(judged),
        f"{estimate_text(judged)} {interval}{range_text(judged.seen is not None and judged.seen.is_range)}".rstrip(),
        NONE if judged.claim.endpoint == "arithmetic" else str(judged.n),
        f"{difference(metric, over_all.value)} {difference_interval(metric, over_all.interval)}" if over_all else NONE,
        share_text(max(judged.collapsed.values()), judged.n) if judged.collapsed else NONE,
    )
    return f"| {' | '.join(map(markdown, entries))} |"
