"""Which claims have which verdict: sentences of papers and questions of ours, counted apart."""

from collections import Counter
from collections.abc import Sequence

from benchmark.papers import catalogue
from benchmark.papers.item import Claim, Item
from benchmark.papers.scale import PROFILES
from benchmark.verdicts.families import owner
from benchmark.verdicts.judge import DECIDED
from reports.claims import ClaimRow, rows_of, without_runs
from reports.formatting import count
from reports.reported import Reported

SENTENCES, QUESTIONS = "sentences of the papers", "questions of ours"


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


def kinds(rows: Sequence[ClaimRow]) -> dict[str, list[ClaimRow]]:
    """A board's claims on a paper's own words, and those that no paper asks; without the withdrawn."""
    counted = [row for row in rows if not row.claim.withdrawn]
    return {
        SENTENCES: [row for row in counted if row.claim.quote],
        QUESTIONS: [row for row in counted if not row.claim.quote],
    }


def shown_kinds(every: Sequence[Reported], paper: str = "") -> dict[str, list[ClaimRow]]:
    """What is listed of a paper, or of all: its claims by kind, and those of withdrawn settings apart."""
    apart: dict[str, list[ClaimRow]] = {}
    for row in furthest(every).values():
        variant = catalogue.VARIANT_OF.get(row.item.name)
        if variant and row.judged.is_decided and not row.claim.withdrawn and paper in ("", row.paper):
            apart.setdefault(f"claims of a withdrawn setting, counted for no paper ({variant.title})", []).append(row)
    return kinds(board(every, paper)) | apart


def state_text(every: Sequence[Reported]) -> str:
    """How far the judging of all claims has come."""
    rows = board(every)
    by_kind = kinds(rows)
    status = Counter(row.status for own in by_kind.values() for row in own)
    parts = [f"{count(len(rows), 'claim')} are declared, each contrast once."]
    for kind, own in by_kind.items():
        decided = sum(row.status in DECIDED for row in own)
        parts.append(f"Of {len(own)} {kind} {decided or 'none'} {'is' if decided < 2 else 'are'} decided.")
    has = {True: "has", False: "have"}
    if undecided := status["undecided"]:
        parts.append(f"{undecided} {has[undecided == 1]} confirming runs without a decision.")
    if pilots := status["pilots only"]:
        parts.append(f"{pilots} {has[pilots == 1]} pilot runs only, which show a direction and decide nothing.")
    if withdrawn := len(rows) - status.total():
        parts.append(f"{withdrawn} are withdrawn, since their form is not their sentence's: the items' pages say why.")
    if all(reported.item.profile != "paper" for reported in every):
        parts.append("All runs are at reduced scale.")
    return " ".join(parts)


def counts(rows: Sequence[ClaimRow], every: Sequence[Reported]) -> list[tuple[str, Counter[str], str]]:
    """A row a paper: its claims by status, and the profiles at which it has runs."""
    profiles: dict[str, dict[str, None]] = {}
    for reported in every:
        if reported.item.name not in catalogue.VARIANTS:
            profiles.setdefault(reported.paper, {})[reported.item.profile] = None
    return [
        (paper, Counter(row.status for row in rows if row.paper == paper), ", ".join(profiles.get(paper, ())) or "none")
        for paper in dict.fromkeys(row.paper for row in rows)
    ]
