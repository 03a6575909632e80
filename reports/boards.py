"""The boards: how far the claims of each paper are judged, and the findings that are shown first."""

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
from benchmark.verdicts.judge import DECIDED, Judged
from reports.claims import STATUSES, BoardRow, judged_in_brief
from reports.formatting import count
from reports.reported import Reported
from reports.scope import against_lines, scope_text, so_far_lines, verdict_text

MAIN = Path(__file__).with_name("findings.toml")  # of each paper its main sentences
MOST_FINDINGS, MOST_IN_README = 8, 5


def furthest(every: Sequence[Reported]) -> dict[tuple[str, str], tuple[Reported, Judged]]:
    """Each claim at the profile where most is known of it, by item and name.

    Decided comes first, then undecided by confirming seeds, then pilots alone, then no run.
    """
    best: dict[tuple[str, str], tuple[Reported, Judged]] = {}
    for reported in every:
        for judged in reported.judged:
            key = (reported.item.name, judged.claim.name)
            best[key] = max(best.get(key, (reported, judged)), (reported, judged), key=_known)
    return best


def _known(pair: tuple[Reported, Judged]) -> tuple[bool, bool, int, int, int]:
    """Of equals, the larger profile."""
    reported, judged = pair
    size = PROFILES.index(reported.item.profile) if reported.item.profile in PROFILES else 0
    return judged.is_decided, judged.verdict == "undecided", judged.looks, judged.n, size


def declared_claims() -> tuple[tuple[Item, Claim], ...]:
    """Every claim of the papers, with its item at the smallest profile. A contrast counts once, where it is judged."""
    every = [(item, claim) for item in catalogue.items(catalogue.ITEMS, "demo") for claim in item.claims]
    return tuple(one for one in every if _is_owner(*one))


def _is_owner(item: Item, claim: Claim) -> bool:
    judged_in, owned = owner(item, claim)
    return (judged_in.name, owned.name) == (item.name, claim.name)


def board(every: Sequence[Reported], paper: str = "") -> list[BoardRow]:
    """Every declared claim once, and a user's own. Of one paper, or of all. An item that is built otherwise
    (`VARIANTS`) adds none."""
    rows = {(item.name, claim.name): BoardRow(item=item, claim=claim) for item, claim in declared_claims()}
    for key, (reported, judged) in furthest(every).items():
        if key in rows or (key[0] not in catalogue.VARIANTS and _is_owner(reported.item, judged.claim)):
            rows[key] = BoardRow(item=reported.item, claim=judged.claim, reported=reported, judged=judged)
    return [row for row in rows.values() if paper in ("", row.paper)]


def sentences(rows: Iterable[BoardRow]) -> list[BoardRow]:
    """Those on a paper's own words."""
    return [row for row in rows if row.claim.quote and not row.claim.withdrawn]


def questions(rows: Iterable[BoardRow]) -> list[BoardRow]:
    """Those that no paper asks."""
    return [row for row in rows if not row.claim.quote and not row.claim.withdrawn]


def own_sentences(reported: Reported) -> list[Judged]:
    """The item's sentences of the paper that are judged in it."""
    sentences = [judged for judged in reported.judged if judged.claim.quote and not judged.claim.withdrawn]
    return [judged for judged in sentences if not judged.judged_in]


def variant_rows(every: Sequence[Reported], paper: str = "") -> dict[str, list[BoardRow]]:
    """The decided claims of VARIANTS, by how their items are built.

    They count for no paper.
    """
    rows: dict[str, list[BoardRow]] = {}
    for reported, judged in furthest(every).values():
        variant = catalogue.variant_of(reported.item.name) if reported.item.name in catalogue.VARIANTS else None
        if variant and judged.is_decided and not judged.claim.withdrawn and paper in ("", reported.paper):
            row = BoardRow(item=reported.item, claim=judged.claim, reported=reported, judged=judged)
            rows.setdefault(variant.title, []).append(row)
    return rows


def state_text(every: Sequence[Reported]) -> str:
    """How far the judging of all claims has come."""
    rows = board(every)
    kinds = {"sentence of the papers": sentences(rows), "question of ours": questions(rows)}
    withdrawn = len(rows) - sum(map(len, kinds.values()))
    text = f"{count(len(rows), 'claim')} are declared, each contrast once."
    for kind, own in kinds.items():
        decided = sum(row.status in DECIDED for row in own)
        name = kind if len(own) == 1 else kind.replace("sentence", "sentences").replace("question", "questions")
        text += f" Of {len(own)} {name} {decided or 'none'} {'is' if decided < 2 else 'are'} decided."
    counts = Counter(row.status for own in kinds.values() for row in own)
    if counts["undecided"]:
        has = "has" if counts["undecided"] == 1 else "have"
        text += f" {counts['undecided']} {has} confirming runs without a decision."
    if counts["pilots only"]:
        only = "has pilot runs only, which show" if counts["pilots only"] == 1 else "have pilot runs only, which show"
        text += f" {counts['pilots only']} {only} a direction and decide nothing."
    if withdrawn:
        text += f" {withdrawn} are withdrawn, since their form is not their sentence's: the items' pages say why."
    return text + (
        "" if any(reported.item.profile == "paper" for reported in every) else " All runs are at reduced scale."
    )


def papers_table(every: Sequence[Reported]) -> str:
    """For the README, as Markdown: of each paper how far its claims are, and where it has runs. Then findings."""
    rows = board(every)
    lines = [*_counts("sentences of the paper", sentences(rows), every), ""]
    lines += [*_counts("questions of ours", questions(rows), every), ""]
    lines += [state_text(every), ""]
    for title, own in variant_rows(every).items():
        listed = "; ".join(f"{row.claim.name} ({row.item.name}): {_brief(row)}" for row in own)
        lines += [f"Withdrawn setting, counted for no paper ({title}): {listed}", ""]
    for reported, judged in findings(every, MOST_IN_README):
        brief = _brief(BoardRow(item=reported.item, claim=judged.claim, reported=reported, judged=judged))
        against = " ".join(against_lines(reported, judged, every))
        lines.append(f"- {judged.claim.name} ({reported.item.name}): {brief} {against}".rstrip())
    return "\n".join(lines).rstrip() + "\n"


def _counts(head: str, rows: Sequence[BoardRow], every: Sequence[Reported]) -> list[str]:
    lines = [f"| {head} | all | {' | '.join(STATUSES)} | runs at |", f"|---|{'---:|' * (1 + len(STATUSES))}---|"]
    for paper in dict.fromkeys(row.paper for row in rows):
        counts = Counter(row.status for row in rows if row.paper == paper)
        run = [
            reported for reported in every if reported.paper == paper and reported.item.name not in catalogue.VARIANTS
        ]
        profiles = ", ".join(dict.fromkeys(reported.item.profile for reported in run))
        numbers = " | ".join(str(counts[status]) for status in STATUSES)
        lines.append(f"| {paper} | {counts.total()} | {numbers} | {profiles or 'none'} |")
    return lines


def _brief(row: BoardRow) -> str:
    """ "**holds** at K = 10, C = 2 and 10 on MNIST: +4.98 points, ..."."""
    if row.reported is None or row.judged is None:
        return "**not run**."
    start = f"**{verdict_text(row.reported, row.judged)}** {scope_text(row.item, row.claim)}"
    so_far = so_far_lines(row.reported, row.judged)
    return f"{start}. {' '.join(so_far)}" if so_far else f"{start}: {judged_in_brief(row.judged)}."


def main_sentences() -> Mapping[str, list[tuple[Item, str, str]]]:
    """By paper: the item, the claim's name, and what is said against it. Raises ConfigError for a misspelt key."""
    claims = {f"{item.name}: {claim.name}": (item, claim.name) for item, claim in declared_claims()}
    main: dict[str, list[tuple[Item, str, str]]] = {}
    for paper, entries in tomllib.loads(MAIN.read_text()).items():
        for entry in entries:
            check_keys("reports/findings.toml", entry, {"claim", "against"})
            if entry["claim"] in claims:  # the items of a test, or of a user's own paper, may be others
                main.setdefault(paper, []).append((*claims[entry["claim"]], entry["against"]))
    return main


def findings(every: Sequence[Reported], most: int = MOST_FINDINGS) -> list[tuple[Reported, Judged]]:
    """The main sentences of each paper of which something is known.

    They come in the order of findings.toml, whatever the verdict; of a paper without any, its claims in their own
    order, main ones first. The papers take turns.
    """
    known = {
        key: (reported, judged)
        for key, (reported, judged) in furthest(every).items()
        if key[0] not in catalogue.VARIANTS and (judged.estimate is not None or so_far_lines(reported, judged))
    }
    main = main_sentences()
    papers = []
    for paper in dict.fromkeys(reported.paper for reported in every):
        named = [known[item.name, name] for item, name, _ in main.get(paper, ()) if (item.name, name) in known]
        others = [pair for pair in known.values() if pair[0].paper == paper and not pair[1].claim.withdrawn]
        papers.append(named or sorted(others, key=lambda pair: not pair[1].claim.main))
    turns = [pair for turn in zip_longest(*papers) for pair in turn if pair is not None]
    return turns[:most]
