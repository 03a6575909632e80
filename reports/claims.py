"""Claims for readers: the board of all of them, a page each with its seeds and looks, and what was found in sentences.

What a sentence says comes from the verdict alone. Where nothing is judged yet, the main claims are shown with what
pilot seeds say, under that name: they are chosen by their place and their number of seeds, not by what came out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from benchmark.papers import catalogue
from benchmark.papers.item import CONFIRMING, Claim, Item
from benchmark.verdicts.endpoints import to_target, value_at
from benchmark.verdicts.evidence import contrasts, evidence
from benchmark.verdicts.families import owner
from benchmark.verdicts.judge import DECIDED, Judged
from benchmark.verdicts.results import Records, cell_result, seeds_of
from reports.formatting import (
    NONE,
    count,
    difference,
    difference_interval,
    in_unit,
    is_fraction,
    metric_name,
    plain_quote,
    shown,
    slug,
    unit_of,
)
from reports.provenance import pre_registration
from reports.reported import Reported
from reports.tables import Column, Entry, Row, Table, table_of

STANDINGS = (*DECIDED, "undecided", "pilots only", "not run")
TOPICS = {
    "test": "accuracy",
    "diversity": "gradient diversity",
    "pseudo": "pseudo-labels",
    "aggregation": "weights of clients",
    "exchange": "what is sent",
    "comm": "traffic",
}
OF_ENDPOINTS = {"speed": "speed", "spread": "stability", "arithmetic": "counts and sizes"}
ENDPOINTS = {
    "last": "after the last round",
    "end": "mean over the last tenth of the rounds",
    "throughout": "mean of the evaluations since clients take part",
    "speed": "mean log-odds over the rounds, given as an accuracy",
    "spread": "standard deviation over the last third of a run",
    "arithmetic": "counted",
}
MOST_FINDINGS = 4
BELOW_END = 0.01  # of accuracy: below the end by so much is a target that runs of the cell come to


def topic_of(claim: Claim) -> str:
    start = claim.metric.split("/")[0]
    return OF_ENDPOINTS.get(claim.endpoint) or TOPICS.get(start, start)


def claim_page(claim: Claim) -> str:
    """The file name of its page, beside the item's."""
    return f"claim-{slug(claim.name)}.html"


def contrast_text(claim: Claim) -> str:
    """ "FedAvg/small - FedAvg/full"; several contrasts stand one after another."""
    return "; ".join(map(_sum_text, contrasts(claim)))


def _sum_text(one: Any) -> str:
    terms = (f"{'+' if f > 0 else '-'} {'' if abs(f) == 1 else f'{abs(f):.3g} '}{label}" for label, f in one.items())
    return " ".join(terms).removeprefix("+ ")


def rule_text(claim: Claim) -> str:
    """What has to be seen for the claim to hold."""
    return {
        "improves": "above zero",
        "trend": "above zero, over the ordered factor",
        "comparable": f"within ±{in_unit(claim.metric, claim.least)}",
        "every": "each of them above zero",
        "order": "each of them above zero, one after another",
    }[claim.form]


def unit_text(claim: Claim) -> str:
    return "points" if is_fraction(claim.metric) else unit_of(claim.metric)


def estimate_text(judged: Judged) -> str:
    text = difference(judged.claim.metric, judged.estimate)
    return f"{text} {unit_text(judged.claim)}".rstrip() if judged.estimate is not None else text


def interval_text(judged: Judged) -> str:
    """ "95.0 % interval [+0.3, +1.2]", or why there is none."""
    found = difference_interval(judged.claim.metric, judged.interval)
    if not found:
        return "no interval"
    return f"{math.floor(1000 * judged.level) / 10:.1f} % interval {found}"


def collapsed_text(judged: Judged) -> str:
    """ "14 of 16 of SemiFL/K=2": the cells of which runs collapsed."""
    return ", ".join(f"{fallen} of {judged.n} of {label}" for label, fallen in judged.collapsed.items())


def quote_text(claim: Claim) -> str:
    quote = f"\u201c{plain_quote(claim.quote)}\u201d ({claim.source})"
    return quote if claim.quote else f"a question of ours: {claim.source}"


def reason_text(judged: Judged) -> str:
    """Why the verdict is what it is, and for an open one the smallest look that can decide it."""
    more = f"; {judged.could_decide} confirming seeds can decide it" if judged.could_decide else ""
    return judged.reason.replace("+-", "±") + more


def finding_text(judged: Judged) -> str:
    """One or two sentences for the front page."""
    if judged.estimate is None:
        return "No seed has all of its cells yet."
    metric = metric_name(judged.claim.metric)
    if judged.claim.endpoint == "arithmetic":
        return f"{metric}: the difference is {estimate_text(judged)}. It is counted, and the same for every seed."
    measured = f"{metric}, {endpoint_text(judged.claim)}"
    what = f"{estimate_text(judged)}, {interval_text(judged)}"
    if judged.collapsed:
        what += f" ({collapsed_text(judged)} collapsed)"
    if judged.verdict in DECIDED:
        return f"{measured}: the typical difference is {what}, over {count(judged.n, 'confirming seed')}."
    seeds = "confirming seed" if judged.verdict == "undecided" else "pilot seed"
    start = f"Not decided. {measured}: the typical difference is {what}, over {count(judged.n, seeds)}."
    if judged.waits_for:
        return f"{start} It waits for {judged.waits_for}, a main claim before it."
    return f"{start} Pilot seeds are not judged." if seeds == "pilot seed" else start


def findings(shown: Sequence[Reported], most: int = MOST_FINDINGS) -> list[tuple[Reported, Judged]]:
    """Decided claims, or where there are none, those that have seeds: main ones, then those with the most seeds. The
    papers take turns, and of a paper each verdict comes once before one comes again. What is merely counted is left
    out, but for a paper's first."""
    begun = furthest(shown).values()
    decided = [pair for pair in begun if pair[1].verdict in DECIDED]
    by_paper: dict[str, dict[str, tuple[Reported, Judged]]] = {}
    for one, judged in sorted(decided or begun, key=lambda pair: (not pair[1].claim.main, -pair[1].n)):
        by_paper.setdefault(one.paper, {}).setdefault(judged.claim.name, (one, judged))
    papers = [_verdicts_in_turn(list(pairs.values())) for pairs in by_paper.values()]
    papers = [[*own[:1], *(one for one in own[1:] if one[1].claim.endpoint != "arithmetic")] for own in papers]
    turns = [own[turn] for turn in range(max(map(len, papers), default=0)) for own in papers if turn < len(own)]
    return turns[:most]


def _verdicts_in_turn(pairs: Sequence[tuple[Reported, Judged]]) -> list[tuple[Reported, Judged]]:
    before = Counter[str]()
    turns = []
    for pair in pairs:
        turns.append(before[pair[1].verdict])
        before[pair[1].verdict] += 1
    return [pair for _, pair in sorted(zip(turns, pairs, strict=True), key=lambda one: one[0])]


def furthest(every: Sequence[Reported]) -> dict[tuple[str, str], tuple[Reported, Judged]]:
    """Each claim that has seeds, by its item's name and its own, at the profile where most is known of it: decided,
    then undecided by confirming seeds, then with pilots alone."""
    found: dict[tuple[str, str], tuple[Reported, Judged]] = {}
    for one in every:
        for judged in one.judged:
            if judged.estimate is not None:
                key = (one.item.name, judged.claim.name)
                found[key] = max(found.get(key, (one, judged)), (one, judged), key=lambda pair: _known(pair[1]))
    return found


def _known(judged: Judged) -> tuple[bool, bool, int, int]:
    return judged.verdict in DECIDED, judged.verdict == "undecided", judged.looks, judged.n


def standings(every: Sequence[Reported]) -> dict[str, Counter[str]]:
    """By paper, how many of its claims stand where; an item that is built otherwise (`VARIANTS`) adds none."""
    counts: dict[str, Counter[str]] = {}
    known = furthest(every)
    declared = [(item.name, claim.name) for item, claim in declared_claims()]
    for key in dict.fromkeys([*declared, *(one for one in known if one[0] not in catalogue.VARIANTS)]):
        says = known[key][1].verdict if key in known else STANDINGS[-1]
        paper = counts.setdefault(key[0].partition("/")[0], Counter())
        paper[says if says in STANDINGS else "pilots only"] += 1
    return counts


def declared_claims() -> tuple[tuple[Item, Claim], ...]:
    """Every claim of the papers, with its item at the smallest profile; one contrast once, where it is judged."""
    every = [(item, claim) for item in catalogue.items(catalogue.ITEMS, "demo") for claim in item.claims]
    return tuple(one for one in every if owner(*one) == one)


def state_text(every: Sequence[Reported]) -> str:
    """How far the judging of all claims has come."""
    counts = sum(standings(every).values(), Counter())
    decided, undecided, pilots = sum(counts[says] for says in DECIDED), counts["undecided"], counts["pilots only"]
    scale = "" if any(one.item.profile == "paper" for one in every) else " All runs so far are at reduced scale."
    said = f"Of {counts.total()} claims {decided or 'none'} {'is' if decided < 2 else 'are'} decided."
    if undecided:
        said += f" {undecided} {'has' if undecided == 1 else 'have'} confirming runs without a decision."
    if pilots:
        only = "has pilot runs only, which show" if pilots == 1 else "have pilot runs only, which show"
        said += f" {pilots} {only} a direction and decide nothing."
    return said + scale


def papers_table(every: Sequence[Reported]) -> str:
    """For the README, as Markdown: of each paper how many claims stand where, and where it has runs; then findings."""
    numbers = "---:|" * (1 + len(STANDINGS))
    lines = [f"| paper | claims | {' | '.join(STANDINGS)} | runs at |", f"|---|{numbers}---|"]
    for paper, counts in standings(every).items():
        profiles = ", ".join(dict.fromkeys(one.item.profile for one in every if one.paper == paper))
        numbers = " | ".join(str(counts[says]) for says in STANDINGS)
        lines.append(f"| {paper} | {counts.total()} | {numbers} | {profiles or 'none'} |")
    found = [
        f"- {judged.claim.name} ({one.item.name}): **{judged.verdict}**, {_in_brief(judged)}"
        for one, judged in findings(every)
    ]
    return "\n".join([*lines, *([""] if found else []), *found]) + "\n"


def _in_brief(judged: Judged) -> str:
    if judged.claim.endpoint == "arithmetic":
        return f"{estimate_text(judged)}, counted"
    return f"{estimate_text(judged)}, {interval_text(judged)}, n = {judged.n}"


def judged_by(judged: Judged) -> str:
    """ "end", "speed", "collapse", "counted"."""
    return "counted" if judged.claim.endpoint == "arithmetic" else judged.claim.endpoint


def claim_rows(item: Item, judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """A row a claim, in the metric's unit."""
    rows = []
    for one in judged:
        values = {"item": item.name, "profile": item.profile, **claim_values(one), "contrast": contrast_text(one.claim)}
        low, high = values.pop("interval") or (None, None)
        rows.append({**values, "low": low, "high": high})
    return rows


def claim_values(judged: Judged) -> dict[str, Any]:
    """A claim as plain JSON values; estimate, interval and `least` in the metric's unit."""
    claim = judged.claim
    return {
        "name": claim.name,
        "text": claim.quote or claim.name,
        "source": claim.source,
        "metric": claim.metric,
        "unit": "fraction" if is_fraction(claim.metric) else unit_of(claim.metric) or "none",
        "form": claim.form,
        "least": float(claim.least),
        "verdict": judged.verdict,
        "estimate": judged.estimate,
        "interval": None if judged.interval is None else list(judged.interval),
        "level": judged.level,
        "n": judged.n,
        "could_decide": judged.could_decide or None,
        "reason": judged.reason,
    }


def claims_table(
    shown: Iterable[tuple[Item, Sequence[Judged]]],
    href: Callable[[Item, Claim], str] = lambda item, claim: claim_page(claim),
    more: Iterable[tuple[Item, Claim]] = (),
) -> Table:
    """A row a claim, which leads to its page. `more`: claims of items without a run, which have no page."""
    shown = list(shown)
    rows = [_claim_row(item, one.claim, one, href(item, one.claim)) for item, judged in shown for one in judged]
    rows += [_claim_row(item, claim, None, "") for item, claim in more]
    return Table(
        name="claims",
        caption="Claims; differences are paired by seed, their intervals at the level of the look",
        columns=(
            *(Column(name=name, left=True) for name in ("Claim", "Verdict")),
            *(Column(name=name) for name in ("Typical difference", "n")),
            *(Column(name=name, left=True) for name in ("Of", "Profile", "Topic")),
        ),
        rows=tuple(rows),
        data=[row for item, judged in shown for row in claim_rows(item, judged)],
        notes=tuple(f"{one.claim.name}: {quote_text(one.claim)}" for _, judged in shown for one in judged),
    )


def _claim_row(item: Item, claim: Claim, judged: Judged | None, href: str) -> Row:
    verdict = judged.verdict if judged else "not run"
    profile = item.profile if judged else NONE
    told = difference_interval(claim.metric, judged.interval) if judged else ""
    typical_one = Entry(
        text=estimate_text(judged) if judged else NONE,
        below=(told,) if told else (),
        sort=judged.estimate if judged else None,
    )
    entries = (
        Entry(text=claim.name, href=href),
        Entry(text=verdict, look=slug(verdict)),
        typical_one,
        Entry(text=str(judged.n) if judged else "0"),
        *(Entry(text=text) for text in (item.name, profile, topic_of(claim))),
    )
    paper = item.name.split("/")[0]
    return Row(
        entries=entries, values={"paper": paper, "profile": profile, "verdict": verdict, "topic": topic_of(claim)}
    )


def seeds_table(item: Item, records: Records, claim: Claim) -> Table:
    """A row a seed: the value of each cell, and the contrasts."""
    found = {
        label: cell_result(item.cell(label), records, item.seeds, claim.metric, claim.endpoint).values
        for label in claim.labels
        if label in {cell.label for cell in item.cells}
    }
    seen = evidence(item, records, claim)
    seeds = [*seen.pilots, *seen.confirming]
    several = len(seen.differences) > 1
    heads = [
        "Seed",
        *found,
        *(f"Difference {n}" if several else "Difference" for n in range(1, len(seen.differences) + 1)),
    ]
    rows = [
        (
            f"seed {seed}" + ("" if seed in CONFIRMING else ", pilot"),
            *(shown(claim.metric, values.get(seed)) for values in found.values()),
            *(difference(claim.metric, values[seed]) for values in seen.differences),
        )
        for seed in seeds
    ]
    return table_of("seeds", f"{metric_name(claim.metric)}, {endpoint_text(claim)}", heads, rows)


def target_table(item: Item, records: Records, claim: Claim) -> Table | None:
    """Beside a claim on speed: a row a cell, its rounds and bytes to a point below the lowest of the cells' ends."""
    if claim.endpoint != "speed":
        return None
    runs = {cell.label: seeds_of(records, cell) for cell in item.cells if cell.label in claim.labels}
    ends = {
        label: [value for run in every if (value := value_at(run, claim.metric, "end")) is not None]
        for label, every in runs.items()
    }
    if not all(ends.values()):
        return None
    target = min(median(values) for values in ends.values()) - BELOW_END
    rows = []
    for label, every in runs.items():
        came = sorted(found for run in every if (found := to_target(run, claim.metric, target)) is not None)
        middle = came[len(every) // 2] if len(every) // 2 < len(came) else None
        told = (str(middle[0]), f"{middle[1] / 1e6:.1f} MB") if middle else (NONE, NONE)
        rows.append((label, *told, f"{len(came)} of {len(every)}"))
    caption = f"To {shown(claim.metric, target)} %, the middle run of each cell: a point below the lowest of their ends"
    return table_of("target", caption, ["Cell", "Rounds", "Sent both ways", "Runs that came there"], rows)


def endpoint_text(claim: Claim) -> str:
    rounds = claim.endpoint.removeprefix("last_")
    return ENDPOINTS.get(claim.endpoint, f"mean over the last {rounds} rounds")


def claim_page_values(one: Reported, judged: Judged) -> dict[str, Any]:
    """What the claim's template shows."""
    claim = judged.claim
    return {
        "one": judged,
        "item": one.item,
        "paper": one.paper,
        "seeds": seeds_table(one.item, one.records, claim),
        "target": target_table(one.item, one.records, claim),
        "contrasts": [_sum_text(contrast) for contrast in contrasts(claim)],
        "endpoint": endpoint_text(claim),
        "topic": topic_of(claim),
        "least": in_unit(claim.metric, claim.least),
        "hash": one.item.hash_of(claim),
        "registered": pre_registration(one.item, one.records, claim),
        "pages": {cell.label: cell.label for cell in one.item.cells},
    }
