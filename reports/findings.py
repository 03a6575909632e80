"""Summarise all claims: their progress and scale, and the two pages of findings.

`findings.toml` names the main sentences of each paper with their limits; every number is from the records. The short
page has three sentences per paper, and the full page has all of them, with tables of the decided claims. Sentences of
papers and questions of ours are counted separately. A sentence counts once, whatever the number of claims that test it
(sentences.py).
"""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from benchmark.papers import items as paper_items
from benchmark.papers.item import Claim, Item
from benchmark.papers.published import check_keys
from benchmark.papers.scale import PROFILES
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.families import owner
from reports.claims import ClaimRow, listed, rows_of, without_runs
from reports.formatting import count, data_name, has, points, shown, slug
from reports.item_results import PAPERS, ItemResults
from reports.rendering import article, render
from reports.sentences import IN_PART, STATUSES, Sentence, sentences_of

MAIN = Path(__file__).with_name("findings.toml")
IN_FULL = "findings_in_full.md"  # the page with all main sentences, beside findings.md
RULES = "\n## How claims are judged\n"  # the heading in templates/findings_in_full.md
SENTENCES, QUESTIONS = "sentences of the papers", "questions of ours"
IN_PART_TEXT = (
    "In part: the sentence has further claims, or is about a larger number of clients, for which there is no decision."
)
NOT_DECIDED = {  # the phrases on one sentence or question, and on several
    "no room": (
        "leaves no room for improvement (its cells are near the best possible accuracy)",
        "leave no room for improvement (their cells are near the best possible accuracy)",
    ),
    "undecided": ("has confirmatory runs but is undecided", "have confirmatory runs but are undecided"),
    "pilots only": ("has only pilot runs", "have only pilot runs"),
    "not run": ("has no seed with all of its cells", "have no seed with all of their cells"),
}


def furthest(every: Sequence[ItemResults]) -> dict[tuple[str, str], ClaimRow]:
    """Return each claim at the profile with the most informative runs, by item and name.

    A decided claim is the most informative, then one that is undecided after confirmatory seeds, then one with pilot
    runs only, and then one without a run.
    """
    best: dict[tuple[str, str], ClaimRow] = {}
    for row in (row for reported in every for row in rows_of(reported)):
        best[row.key] = max(best.get(row.key, row), row, key=_known)
    return best


def _known(row: ClaimRow) -> tuple[bool, bool, int, int, int]:
    """Return a sort key that is larger the more is known; for equal knowledge the larger profile is first."""
    judged, profile = row.judged, row.item.profile
    size = PROFILES.index(profile) if profile in PROFILES else 0
    return judged.is_decided, judged.verdict == "undecided", judged.looks, judged.n, size


def declared_claims() -> tuple[tuple[Item, Claim], ...]:
    """Return every claim of the papers with its item at the smallest profile.

    A contrast that several tables have is returned once, for the table that judges it.
    """
    every = [(item, claim) for item in paper_items.items(paper_items.ITEMS, "demo") for claim in item.claims]
    return tuple(one for one in every if _is_owner(*one))


def _is_owner(item: Item, claim: Claim) -> bool:
    judged_in, owned = owner(item, claim)
    return (judged_in.name, owned.name) == (item.name, claim.name)


def claim_rows(every: Sequence[ItemResults], paper: str = "") -> list[ClaimRow]:
    """Return every declared claim once, and the claims of a user's tables; for one paper, or for all.

    Claims that do not count in summaries are left out (`counts_in_summaries`).
    """
    rows = {(item.name, claim.name): without_runs(item, claim) for item, claim in declared_claims()}
    for key, row in furthest(every).items():
        if key in rows or (counts_in_summaries(row) and _is_owner(row.item, row.claim)):
            rows[key] = max(row, rows.get(key, row), key=_known)
    return [row for row in rows.values() if paper in ("", row.reported.paper)]


def counts_in_summaries(row: ClaimRow) -> bool:
    """Return whether the claim counts for its paper.

    Variants of an item, which are built differently (`VARIANTS`), add no claim. The exception is a further reduced
    setting, whose claims count from their first interim analysis on.
    """
    name = row.item.name
    return name not in paper_items.VARIANTS or (bool(paper_items.base_of(name)) and row.judged.looks > 0)


def kinds(rows: Sequence[ClaimRow]) -> dict[str, list[ClaimRow]]:
    """Split claims into claims on a paper's own words and questions of ours; withdrawn claims are left out.

    Pages count the sentences of these claims (`sentences_of`).
    """
    counted = [row for row in rows if not row.claim.withdrawn]
    quoted = [row for row in counted if row.claim.quote]
    ours = [row for row in counted if not row.claim.quote]
    return {SENTENCES: quoted, QUESTIONS: ours}


def statuses(reported: ItemResults) -> dict[str, Counter[str]]:
    """Count the statuses of the sentences that are judged in this table, by kind.

    Both the page of the table and the terminal show these counts.
    """
    counted = {}
    for kind, rows in kinds(rows_of(reported)).items():
        judged_here = [row for row in rows if not row.judged.judged_in]
        counted[kind] = Counter(sentence.status for sentence in sentences_of(judged_here))
    return counted


def statuses_in_words(reported: ItemResults) -> str:
    """Return "sentences of the papers: holds 1, undecided 2; questions of ours: holds 2"; empty without claims."""
    parts = []
    for kind, counts in statuses(reported).items():
        shown = [f"{status} {counts[status]}" for status in STATUSES if counts[status]]
        if shown:
            parts.append(f"{kind}: {', '.join(shown)}")
    return "; ".join(parts)


def shown_kinds(every: Sequence[ItemResults], paper: str = "") -> dict[str, list[ClaimRow]]:
    """Return the claims that pages list for a paper, or for all papers, by kind.

    Decided claims of a withdrawn setting are a kind of their own.
    """
    apart: dict[str, list[ClaimRow]] = {}
    for row in furthest(every).values():
        variant = paper_items.VARIANT_OF.get(row.item.name)
        if variant is None or variant.is_further_setting:
            continue
        if row.judged.is_decided and not row.claim.withdrawn and paper in ("", row.reported.paper):
            apart.setdefault(f"claims of a withdrawn setting, counted for no paper ({variant.title})", []).append(row)
    return kinds(claim_rows(every, paper)) | apart


def state_text(every: Sequence[ItemResults]) -> str:
    """Say how far the judging of all claims has come, in sentences of the papers and questions of ours."""
    rows = claim_rows(every)
    by_kind = {kind: sentences_of(own) for kind, own in kinds(rows).items()}
    status = Counter(sentence.status for own in by_kind.values() for sentence in own)
    counted = sum(len(sentence.rows) for own in by_kind.values() for sentence in own)
    further = sum(bool(paper_items.base_of(row.item.name)) for row in rows)
    parts = [_decisions_text(kind, own) for kind, own in by_kind.items()]
    if status[IN_PART]:
        parts.append(IN_PART_TEXT)
    not_decided = []
    for name, (singular, plural) in NOT_DECIDED.items():
        if number := status[name]:
            not_decided.append(f"{number} {singular if number == 1 else plural}")
    if not_decided:
        parts.append(f"Of the sentences and questions without a decision, {listed(not_decided)}.")
    of_further = f", {further} of them in a further reduced setting" if further else ""
    meaning = "A sentence is tested by one claim or several, and a claim has one contrast of cells or several"
    parts.append(f"{meaning}: {count(counted, 'claim')} in all, duplicates counted once{of_further}.")
    if withdrawn := len(rows) - counted:
        parts.append(f"{withdrawn} more are withdrawn: the pages of their tables give the reasons.")
    if all(reported.item.profile != "paper" for reported in every):
        parts.append("All runs are at reduced scale.")
    return " ".join(parts)


def _decisions_text(kind: str, sentences: Sequence[Sentence]) -> str:
    """Return "Of 9 questions of ours, 3 have been decided: holds 2, contradicted 1."."""
    decided = Counter(sentence.status for sentence in sentences if sentence.has_decision)
    number = decided.total()
    by_status = ", ".join(f"{status} {decided[status]}" for status in STATUSES if decided[status])
    how = f": {by_status}" if by_status else ""
    return f"Of {len(sentences)} {kind}, {number or 'none'} {has(number)} been decided{how}."


def scale_text(every: Sequence[ItemResults]) -> str:
    """Say how many runs are in reduced settings, and how many verdicts rest on a published setting."""
    profiles = runs_by_profile(every)
    total = profiles.total()
    if not total:
        return "Nothing has been run yet."
    reduced = sum(number for profile, number in profiles.items() if profile != "paper")
    if not reduced:
        return "Every run has a published setting."
    profile_of_verdict = []
    for reported in every:
        trained = [row for row in reported.judged if row.is_decided and row.claim.endpoint != "arithmetic"]
        profile_of_verdict += [reported.item.profile] * len(trained)
    at_scale = sum(profile == "paper" for profile in profile_of_verdict)
    what = "other or smaller images, smaller networks, fewer rounds"
    runs = f"{reduced:,} of {total:,} runs are in reduced settings: {what}"
    if not profile_of_verdict:
        verdicts = "No verdict rests on them yet."
    elif at_scale:
        verdicts = f"{at_scale} of {count(len(profile_of_verdict), 'verdict')} rest on a published setting."
    else:
        verdicts = "Every verdict that rests on training runs is for a reduced setting."
    return f"{runs} ({_data_of(every)}). {verdicts}"


def runs_by_profile(every: Sequence[ItemResults]) -> Counter[str]:
    """Count the runs by the profile of their table, each run once; runs of no table have the profile "custom"."""
    profiles: dict[tuple[str, int], str] = {}
    for reported in every:
        for run in reported.runs:
            profiles.setdefault((run.cell_key, run.seed), reported.item.profile)
    return Counter(profiles.values())


def _data_of(every: Sequence[ItemResults]) -> str:
    """Return the data sets with most runs: "mostly MNIST, CIFAR-10, SVHN"."""
    runs = {(run.cell_key, run.seed): run for reported in every for run in reported.runs}
    names = Counter(run.experiment["data"]["name"] for run in runs.values())
    first = [data_name(name) for name, _ in names.most_common(3)]
    return "mostly " + ", ".join(first) if len(names) > len(first) else ", ".join(first)


def state_line(every: Sequence[ItemResults]) -> str:
    """Say how far the judging has come, in one line."""
    by_kind = {kind: sentences_of(rows) for kind, rows in kinds(claim_rows(every)).items()}
    parts = []
    for kind, sentences in by_kind.items():
        decided = sum(sentence.has_decision for sentence in sentences)
        parts.append(f"{decided} of {len(sentences)} {kind}")
    return f"{' and '.join(parts)} have been decided. {scale_text(every)}"


@dataclass(frozen=True, kw_only=True)
class MainSentence:
    """A main sentence of a paper: its claim, and the limits of the result."""

    row: ClaimRow
    limits: str
    brief: str  # the limits in at most 20 words, for the short page; "" if only the full page has the sentence
    further: tuple[ClaimRow, ...] = ()  # the same claim in further reduced settings, if it counts there


def main_sentences() -> Mapping[str, list[MainSentence]]:
    """Return the main sentences of each paper without their runs. Raise ConfigError for a misspelt key."""
    claims = {f"{item.name}: {claim.name}": (item, claim) for item, claim in declared_claims()}
    main: dict[str, list[MainSentence]] = {}
    for paper, entries in tomllib.loads(MAIN.read_text()).items():
        for entry in entries:
            check_keys("reports/findings.toml", entry, {"claim", "against", "brief"})
            if entry["claim"] in claims:  # a test, or a user's paper, may have different tables
                row = without_runs(*claims[entry["claim"]])
                one = MainSentence(row=row, limits=entry["against"], brief=entry.get("brief", ""))
                main.setdefault(paper, []).append(one)
    return main


def _with_runs(every: Sequence[ItemResults]) -> dict[str, list[MainSentence]]:
    """Return the main sentences of each paper, each with its claim at the profile with the most informative runs.

    A further reduced setting adds its verdict on the claim to the sentence.
    """
    known = furthest(every)
    further: dict[tuple[str, str], list[ClaimRow]] = {}
    for row in known.values():
        base = paper_items.base_of(row.item.name)
        if base and counts_in_summaries(row) and not row.claim.withdrawn:
            further.setdefault((base, row.claim.name), []).append(row)
    found: dict[str, list[MainSentence]] = {}
    for paper, main in main_sentences().items():
        found[paper] = []
        for one in main:
            row = known.get(one.row.key, one.row)
            others = further.get(one.row.key, ())
            found[paper].append(replace(one, row=row, further=tuple(others)))
    return found


def findings_page(every: Sequence[ItemResults], *, links: bool) -> str:
    """Return the short page of findings as Markdown. Raise ConfigError for a misspelt key of `findings.toml`.

    `links`: for the site, where a claim leads to its page, from the site's root.
    """
    sections = []
    for paper, main in _with_runs(every).items():
        sentences = [(one.row, one.brief, one.further) for one in main if one.brief]
        sections.append({**PAPERS[paper], "sentences": sentences})
    in_full = IN_FULL.replace(".md", ".html") if links else IN_FULL
    return render("findings.md", papers=sections, state=state_line(every), links=links, in_full=in_full)


def findings_in_full(every: Sequence[ItemResults], *, links: bool) -> str:
    """Return the full page of findings as Markdown. Raise ConfigError for a misspelt key of `findings.toml`.

    `links`: for the site, where a claim leads to its page, and the page of all claims has the decided claims. Without
    it, the page also has tables of the decided claims.
    """
    sections = []
    for paper, main in _with_runs(every).items():
        decided = {} if links else {kind: _decided(rows) for kind, rows in shown_kinds(every, paper).items()}
        sentences = [(one.row, one.limits, one.further) for one in main]
        sections.append({**PAPERS[paper], "sentences": sentences, "decided": decided})
    compared = _compared_with_published(every)
    has_further = any(paper_items.base_of(row.item.name) for row in claim_rows(every))
    more = {"compared": compared, "has_further": has_further}
    return render(IN_FULL, papers=sections, state=state_text(every), links=links, **more)


def findings_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the site's short page of findings."""
    return {"written": _with_anchors(article(findings_page(every, links=True)))}


def in_full_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the site's full page of findings: the results, and the rules of judging to fold out."""
    results, _, rules = findings_in_full(every, links=True).partition(RULES)
    return {"written": _with_anchors(article(results)), "rules": article(rules)}


def _with_anchors(html: Markup) -> Markup:
    """Give the heading of each paper an id, so that links can lead to it."""
    text = str(html)
    for paper, about in PAPERS.items():
        heading = str(article(f"\n\n## {about['short']}")).strip()
        text = text.replace(heading, heading.replace("<h2>", f'<h2 id="{slug(paper)}">'))
    return Markup(text)


def _decided(rows: Sequence[ClaimRow]) -> list[tuple[Sentence, list[ClaimRow]]]:
    """Return the sentences that have a decision, each with its decided claims."""
    found = []
    for sentence in sentences_of(rows):
        decided = [row for row in sentence.rows if row.judged.is_decided]
        if decided:
            found.append((sentence, decided))
    return found


def _compared_with_published(every: Sequence[ItemResults]) -> list[str]:
    """Return one line per cell at profile `paper` with its published accuracy; each cell appears once."""
    texts: dict[tuple[str, float | None], str] = {}
    for reported in every:
        for label, agreed in reported.agreements.items():
            result = reported.results[label]
            published = reported.item.cell(label).published_value()
            if result.summary is None or published is None:
                continue
            ours = f"{shown(ACCURACY, result.summary.mean)} % ({count(result.summary.n, 'run')})"
            variant = paper_items.VARIANT_OF.get(reported.item.name)
            setting = f" (withdrawn setting: {variant.title})" if variant and variant.is_withdrawn else ""
            text = f"{reported.item.name}{setting}, {result.cell.label}: {ours}, published {published:.2f} %"
            text += f": {points(agreed.difference)} points"
            text += f". Data: {agreed.text}." if agreed.other_data else f", {agreed.text}."
            texts.setdefault((result.cell.cell_key, published), text)
    return list(texts.values())
