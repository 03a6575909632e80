"""An item's claims with their verdicts for other programs: CSV (full precision), LaTeX and Markdown (as printed)."""

import csv
import io

from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import Records
from reports.exports import tabular
from reports.words import csv_safe, difference, difference_interval, in_unit, markdown, without_dollars

WHAT = ("item", "profile", "claim", "quote", "source", "contrast", "metric", "test")
FOUND = ("margin", "estimate", "low", "high", "level", "n", "verdict", "reason")
HEAD = ("claim", "test", "estimate", "interval", "level", "n", "verdict")


def claims_csv(item: Item, records: Records) -> str:
    """One line a claim; estimate, interval and margin in the metric's unit (accuracies: fractions)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*WHAT, *FOUND])
    for one in judge(item, records):
        claim, (low, high) = one.claim, one.interval or (None, None)
        contrast = " ".join(f"{factor:+g}*{label}" for label, factor in claim.contrast.items())
        fields = (item.name, item.profile, claim.name, claim.quote, claim.source, contrast, claim.metric, claim.form)
        numbers = (claim.least, one.estimate, low, high, one.level, one.n, one.verdict, one.reason)
        writer.writerow(["" if field is None else csv_safe(field) for field in (*fields, *numbers)])
    return text.getvalue()


def claims_latex(item: Item, records: Records) -> str:
    """A booktabs tabular; above it, as a comment, what the level allows for."""
    body = [_printed(one) for one in judge(item, records)]
    head = f"% {item.name}, profile {item.profile}: claims, intervals paired by seed, at a level for all of them"
    return "\n".join([head.replace("\n", " "), *tabular(HEAD, body)]) + "\n"


def claims_markdown(item: Item, records: Records) -> str:
    """As `claims_latex`; below it the sentences of the paper."""
    judged = judge(item, records)
    rows = [HEAD, ("---", "---", *["---:"] * 4, "---"), *(_printed(one) for one in judged)]
    table = "\n".join(f"| {' | '.join(markdown(field) for field in row)} |" for row in rows)
    caption = f"Claims of {item.name}, profile {item.profile}; intervals paired by seed, at a level for all of them"
    quotes = [
        f"- {markdown(one.claim.name)}: {markdown(_sentence(one.claim.quote))} ({markdown(one.claim.source)})"
        for one in judged
    ]
    return "\n".join([markdown(caption), "", table, "", *quotes]) + "\n"


def _sentence(quote: str) -> str:
    return f"\u201c{without_dollars(quote)}\u201d" if quote else "a question of ours"


def _printed(one: Judged) -> tuple[str, ...]:
    claim = one.claim
    rule = {"improves": "above zero", "comparable": f"within \u00b1{in_unit(claim.metric, claim.least)}"}[claim.form]
    estimate = difference(claim.metric, one.estimate)
    interval = difference_interval(claim.metric, one.interval) if one.interval else "--"
    return (claim.name, rule, estimate, interval, f"{100 * one.level:.1f} %", str(one.n), one.verdict)
