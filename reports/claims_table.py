"""Convert claims to rows: of a table for readers, and to plain values for JSON and CSV."""

from collections.abc import Sequence
from typing import Any

from benchmark.fractions import is_fraction
from benchmark.verdicts.judge import share_text
from reports.claims import ClaimRow, sum_text
from reports.formatting import NONE, difference, unit_of
from reports.tables import Column, Row, Table, TableEntry, csv_of, row_of, table_of


def claim_values(row: ClaimRow) -> dict[str, Any]:
    """Return a claim as plain JSON values; estimate, interval and `least` are in the metric's unit."""
    claim, judged, over_all = row.claim, row.judged, row.judged.over_all
    return {
        "name": claim.name,
        "text": claim.quote or claim.name,
        "source": claim.source,
        "scope": row.scope,
        "metric": claim.metric,
        "unit": "fraction" if is_fraction(claim.metric) else unit_of(claim.metric) or "none",
        "form": claim.form,
        "least": float(claim.least),
        "verdict": judged.verdict,
        "at_largest_K": _at_largest_K(row),
        "caveats": row.caveats,
        "estimate": judged.estimate,
        "interval": None if judged.interval is None else list(judged.interval),
        "level": judged.level,
        "n": judged.n,
        "look": judged.looks or None,
        "over_all_seeds": None
        if over_all is None
        else {"estimate": over_all.value, "interval": list(over_all.interval or ()) or None, "n": over_all.n},
        "collapsed": {label: [fallen, judged.n] for label, fallen in judged.collapsed.items()},
        "could_decide": judged.could_decide or None,
        "gaps": dict(judged.gaps),
        "withdrawn": row.item.withdrawal_of(claim) or None,
        "reason": judged.reason,
    }


def _at_largest_K(row: ClaimRow) -> dict[str, Any] | None:
    """Return the verdict at the largest K if the sentence is also about more clients, and None for other claims."""
    larger = row.larger
    if larger is None:
        return None
    return {"K": larger.K, "item": larger.item, "verdict": larger.verdict or None, "runs": larger.runs or None}


def claims_csv(rows: Sequence[ClaimRow]) -> bytes:
    """Return these claims as CSV, one row each, with all numbers at full precision."""
    return csv_of([_csv_values(row) for row in rows])


def _csv_values(row: ClaimRow) -> dict[str, Any]:
    """Return the values of `claim_values` as a flat row of CSV."""
    values = claim_values(row)
    low, high = values.pop("interval") or (None, None)
    over_all = values.pop("over_all_seeds") or {}
    values["collapsed"] = "; ".join(f"{label} {k} of {n}" for label, (k, n) in values["collapsed"].items())
    values["gaps"] = "; ".join(f"seed {seed}: {why}" for seed, why in values["gaps"].items())
    return {
        "item": row.item.name,
        "profile": row.item.profile,
        **values,
        "at_largest_K": row.verdict_text if values["at_largest_K"] else "",
        "caveats": " ".join(values["caveats"]),
        "contrast": "; ".join(map(sum_text, row.claim.contrasts)),
        "estimate_over_all": over_all.get("estimate"),
        "n_over_all": over_all.get("n"),
        "low": low,
        "high": high,
    }


def claims_table(rows: Sequence[ClaimRow]) -> Table:
    """Return a row for each claim, which leads to its page."""
    words = (Column(name=name, left=True) for name in ("Collapsed", "Of", "Profile", "Topic"))
    notes = tuple(f"{row.claim.name}: {row.quote}" for row in rows if row.has_page)
    return table_of(
        "claims",
        "Claims; differences are paired by seed, their intervals at the level of the interim analysis",
        ("Claim", "Verdict", "Hodges-Lehmann estimate", "n", *words),
        map(_table_row, rows),
        words=2,
        data=[_csv_values(row) for row in rows if row.has_page],
        notes=notes,
    )


def _table_row(row: ClaimRow) -> Row:
    claim, judged, over_all = row.claim, row.judged, row.judged.over_all
    profile = row.item.profile if row.has_page or judged.is_decided else NONE
    typical_below = [row.interval_of(judged.at_look)] if judged.at_look else []
    if over_all:
        interval = row.interval_of(over_all)
        typical_below.append(f"all {over_all.n}: {difference(claim.metric, over_all.value)} {interval}")
    most = max(judged.collapsed.values(), default=0)  # collapsed runs of the cell that has most of them
    fallen = [f"{label}: {share_text(k, judged.n)}" for label, k in judged.collapsed.items() if k]
    entries = (
        TableEntry(
            text=claim.name,
            href=row.page,
            detail=(*row.against, *row.so_far),
            below=(f"withdrawn from the summary tables: {row.item.withdrawal_of(claim)}",) if claim.withdrawn else (),
        ),
        TableEntry(text=row.verdict_text, look=judged.verdict),
        TableEntry(text=row.estimate, below=tuple(filter(None, typical_below)), sort=judged.estimate),
        judged.n,
        TableEntry(
            text=f"{most} of {judged.n}" if judged.collapsed else NONE,
            below=(*(["runs collapse"] if judged.runs_fall else []), *fallen),
            sort=most / judged.n if judged.collapsed else None,
        ),
        TableEntry(text=row.item.name, below=(row.scope,) if row.has_page else ()),
        profile,
        row.topic,
    )
    return row_of(entries, paper=row.reported.paper, profile=profile, verdict=judged.verdict, topic=row.topic)
