"""What comes first of all claims: on the front page, in the README, and on a page of findings.

`findings.toml` names the main sentences of each paper and has the objections; every number is from the records.
"""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from benchmark.files import write_atomically
from benchmark.papers import catalogue
from benchmark.papers.published import check_keys
from benchmark.verdicts.results import ACCURACY
from reports.boards import board, counts, declared_claims, furthest, kinds, shown_kinds, state_text
from reports.claims import STATUSES, ClaimRow, without_runs
from reports.formatting import count, points, shown
from reports.rendering import render
from reports.reported import PAPERS, Reported

MAIN = Path(__file__).with_name("findings.toml")
MOST_FINDINGS = 8


def main_sentences() -> Mapping[str, list[tuple[ClaimRow, str]]]:
    """By paper: the claim without its runs, and what is said against it. Raises ConfigError for a misspelt key."""
    claims = {f"{item.name}: {claim.name}": (item, claim) for item, claim in declared_claims()}
    main: dict[str, list[tuple[ClaimRow, str]]] = {}
    for paper, entries in tomllib.loads(MAIN.read_text()).items():
        for entry in entries:
            check_keys("reports/findings.toml", entry, {"claim", "against"})
            if entry["claim"] in claims:  # the items of a test, or of a user's own paper, may be others
                main.setdefault(paper, []).append((without_runs(*claims[entry["claim"]]), entry["against"]))
    return main


def findings(every: Sequence[Reported]) -> list[ClaimRow]:
    """The main sentences of each paper of which something is known.

    They come in the order of findings.toml, whatever the verdict; of a paper without any, its claims in their own
    order, main ones first. The papers take turns.
    """
    known = {
        key: row
        for key, row in furthest(every).items()
        if key[0] not in catalogue.VARIANTS and (row.judged.estimate is not None or row.so_far)
    }
    main = main_sentences()
    by_paper = []
    for paper in dict.fromkeys(reported.paper for reported in every):
        named = [known[row.key] for row, _ in main.get(paper, ()) if row.key in known]
        others = [row for row in known.values() if row.paper == paper and not row.claim.withdrawn]
        by_paper.append(named or sorted(others, key=lambda row: not row.claim.main))
    return [row for turn in zip_longest(*by_paper) for row in turn if row is not None][:MOST_FINDINGS]


def papers_table(every: Sequence[Reported]) -> str:
    """For the README, as Markdown: of each paper its claims by status and the profiles it ran at."""
    return render(
        "board.md",
        statuses=STATUSES,
        kinds={kind: counts(rows, every) for kind, rows in kinds(board(every)).items()},
        state=state_text(every),
    )


def findings_page(every: Sequence[Reported], *, links: bool) -> str:
    """As Markdown; with `links` a claim leads to its page, from the site's root. Raises ConfigError."""
    known = furthest(every)
    sections = []
    for paper, main in main_sentences().items():
        rows = shown_kinds(every, paper)
        sections.append(
            {
                **PAPERS[paper],
                "sentences": [(known.get(row.key, row), against) for row, against in main],
                "decided": {kind: [row for row in own if row.judged.is_decided] for kind, own in rows.items()},
            }
        )
    compared = _compared_with_print(every)
    return render("findings.md", papers=sections, state=state_text(every), links=links, compared=compared)


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


def write_findings(every: Sequence[Reported], page: Path, readme: Path) -> None:
    """The page of findings, and the README's table between its two marks. Raises CannotWrite."""
    write_atomically(page, findings_page(every, links=False).encode())
    start, end = "<!-- claims: fssl report --readme -->\n", "<!-- end of claims -->"
    before, _, rest = readme.read_text().partition(start)
    write_atomically(readme, (before + start + papers_table(every) + end + rest.partition(end)[2]).encode())
