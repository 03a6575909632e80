"""Which claims have which verdict: sentences of papers and questions of ours, counted apart, and what comes first."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from benchmark.papers import catalogue
from benchmark.papers.item import Claim, Item
from benchmark.papers.published import check_keys
from benchmark.papers.scale import PROFILES
from benchmark.verdicts.families import owner
from benchmark.verdicts.judge import DECIDED
from reports.claims import STATUSES, ClaimRow, judged_in_brief, rows_of, without_runs
from reports.formatting import count
from reports.rendering import render
from reports.reported import Reported
from reports.scope import against_lines, scope_text, so_far_lines, verdict_text

MAIN = Path(__file__).with_name("findings.toml")  # of each paper its main sentences
MOST_FINDINGS, MOST_IN_README = 8, 5


def furthest(every: Sequence[Reported]) -> dict[tuple[str, str], ClaimRow]:
    """Each claim at the profile where most is known of it, by item and name.

    Decided comes first, then undecided by confirming seeds, then pilots alone, then no run.
    """
    best: dict[tuple[str, str], ClaimRow] = {}
    for row in (row for reported in every for row in rows_of(reported)):
        best[row.key] = max(best.get(row.key, row), row, key=_known)
    return best


def _known(row: ClaimRow) -> tuple[bool, bool, int, int, int]:
    """Of equals, the larger profile."""
    judged, profile = row.judged, row.item.profile
    size = PROFILES.index(profile) if profile in PROFILES else 0
    return judged.is_decided, judged.verdict == "undecided", judged.looks, judged.n, size


def declared_claims() -> tuple[tuple[Item, Claim], ...]:
    """Every claim of the papers, with its item at the smallest profile. A contrast counts once, where it is judged."""
    every = [(item, claim) for item in catalogue.items(catalogue.ITEMS, "demo") for claim in item.claims]
    return tuple(one for one in every if _is_owner(*one))


def _is_owner(item: Item, claim: Claim) -> bool:
    judged_in, owned = owner(item, claim)
    return (judged_in.name, owned.name) == (item.name, claim.name)


def board(every: Sequence[Reported], paper: str = "") -> list[ClaimRow]:
    """Every declared claim once, and a user's own; of one paper, or of all. An item that is built otherwise
    (`VARIANTS`) adds none."""
    rows = {(item.name, claim.name): without_runs(item, claim) for item, claim in declared_claims()}
    for key, row in furthest(every).items():
        if key in rows or (key[0] not in catalogue.VARIANTS and _is_owner(row.item, row.claim)):
            rows[key] = row
    return [row for row in rows.values() if paper in ("", row.paper)]


def sentences(rows: Iterable[ClaimRow]) -> list[ClaimRow]:
    """Those on a paper's own words."""
    return [row for row in rows if row.claim.quote and not row.claim.withdrawn]


def questions(rows: Iterable[ClaimRow]) -> list[ClaimRow]:
    """Those that no paper asks."""
    return [row for row in rows if not row.claim.quote and not row.claim.withdrawn]


def variant_rows(every: Sequence[Reported], paper: str = "") -> dict[str, list[ClaimRow]]:
    """The decided claims of VARIANTS, by how their items are built.

    They count for no paper.
    """
    rows: dict[str, list[ClaimRow]] = {}
    for row in furthest(every).values():
        variant = catalogue.variant_of(row.item.name) if row.item.name in catalogue.VARIANTS else None
        if variant and row.judged.is_decided and not row.claim.withdrawn and paper in ("", row.paper):
            rows.setdefault(variant.title, []).append(row)
    return rows


def state_text(every: Sequence[Reported]) -> str:
    """How far the judging of all claims has come."""
    rows = board(every)
    kinds = {"sentences of the papers": sentences(rows), "questions of ours": questions(rows)}
    status = Counter(row.status for own in kinds.values() for row in own)
    parts = [f"{count(len(rows), 'claim')} are declared, each contrast once."]
    for kind, own in kinds.items():
        decided = sum(row.status in DECIDED for row in own)
        parts.append(f"Of {len(own)} {kind} {decided or 'none'} {'is' if decided < 2 else 'are'} decided.")
    if undecided := status["undecided"]:
        parts.append(f"{undecided} {'has' if undecided == 1 else 'have'} confirming runs without a decision.")
    if pilots := status["pilots only"]:
        has = "has pilot runs only, which show" if pilots == 1 else "have pilot runs only, which show"
        parts.append(f"{pilots} {has} a direction and decide nothing.")
    if withdrawn := len(rows) - status.total():
        parts.append(f"{withdrawn} are withdrawn, since their form is not their sentence's: the items' pages say why.")
    if all(reported.item.profile != "paper" for reported in every):
        parts.append("All runs are at reduced scale.")
    return " ".join(parts)


def papers_table(every: Sequence[Reported]) -> str:
    """For the README, as Markdown: of each paper its claims by status and the profiles it ran at; then findings."""
    rows = board(every)
    return render(
        "board.md",
        statuses=STATUSES,
        kinds={
            "sentences of the paper": _counts(sentences(rows), every),
            "questions of ours": _counts(questions(rows), every),
        },
        state=state_text(every),
        variants=variant_rows(every),
        findings=findings(every, MOST_IN_README),
        brief=_brief,
        against=lambda row: against_lines(row.reported, row.judged),
    )


def _counts(rows: Sequence[ClaimRow], every: Sequence[Reported]) -> list[tuple[str, Counter[str], str]]:
    """A row a paper: its claims by status, and the profiles at which it has runs."""
    profiles: dict[str, dict[str, None]] = {}
    for reported in every:
        if reported.item.name not in catalogue.VARIANTS:
            profiles.setdefault(reported.paper, {})[reported.item.profile] = None
    return [
        (paper, Counter(row.status for row in rows if row.paper == paper), ", ".join(profiles.get(paper, ())) or "none")
        for paper in dict.fromkeys(row.paper for row in rows)
    ]


def _brief(row: ClaimRow) -> str:
    """ "**holds** at K = 10, C = 2 and 10 on MNIST: +4.98 points, ..."."""
    start = f"**{verdict_text(row.reported, row.judged)}** {scope_text(row.item, row.claim)}"
    so_far = so_far_lines(row.reported, row.judged)
    return f"{start}. {' '.join(so_far)}" if so_far else f"{start}: {judged_in_brief(row.judged)}."


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


def findings(every: Sequence[Reported], most: int = MOST_FINDINGS) -> list[ClaimRow]:
    """The main sentences of each paper of which something is known.

    They come in the order of findings.toml, whatever the verdict; of a paper without any, its claims in their own
    order, main ones first. The papers take turns.
    """
    known = {
        key: row
        for key, row in furthest(every).items()
        if key[0] not in catalogue.VARIANTS
        and (row.judged.estimate is not None or so_far_lines(row.reported, row.judged))
    }
    main = main_sentences()
    papers = []
    for paper in dict.fromkeys(reported.paper for reported in every):
        named = [known[row.key] for row, _ in main.get(paper, ()) if row.key in known]
        others = [row for row in known.values() if row.paper == paper and not row.claim.withdrawn]
        papers.append(named or sorted(others, key=lambda row: not row.claim.main))
    turns = [row for turn in zip_longest(*papers) for row in turn if row is not None]
    return turns[:most]
