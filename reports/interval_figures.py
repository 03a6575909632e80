"""Pictures of intervals: what a claim's looks say, all claims of an item, an arena's methods; every seed is a dot.

They stand apart from the tables of claims and arenas, so that a terminal's table is printed without matplotlib.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.papers.item import Claim, Item
from benchmark.verdicts.judge import Judged, looked_at, readings_at
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.rule import LOOKS
from benchmark.verdicts.signed_ranks import typical
from benchmark.verdicts.statistics import summary
from reports.arena import Arena, methods
from reports.figures import IntervalRow, Picture, intervals
from reports.formatting import count, is_fraction, metric_name, unit_text
from reports.paper_table import method_of
from reports.style import Look, looks


def forest(judged: Judged, *, seeds: bool) -> Picture | None:
    """What pilots and each look say, with every seed as a dot, and (`seeds`) a row a seed. Of several contrasts: the
    one that the verdict tells of. None without a seed, and for what is counted."""
    claim, seen = judged.claim, judged.evidence
    if seen is None or claim.endpoint == "arithmetic" or not (seen.pilots or seen.confirming):
        return None
    scale = 100.0 if is_fraction(claim.metric) else 1.0
    least = min(
        range(len(seen.differences)), key=lambda k: typical(seen.differences_at(seen.confirming or seen.pilots, k))
    )
    shown = looked_at(seen, judged.error).contrast if judged.looks else least
    values = {seed: scale * value for seed, value in seen.differences[shown].items()}
    rows = []
    if seen.pilots:
        known = [values[seed] for seed in seen.pilots]
        rows.append(_row(f"{count(len(known), 'pilot')}, not judged", claim, known, None, hollow=True))
    for look, n in enumerate(LOOKS[: judged.looks]):
        reading = readings_at(seen, judged.error, look)[shown]
        of_look = [values[seed] for seed in seen.confirming[:n]]
        rows.append(_row(f"look {look + 1}: {n} seeds", claim, of_look, _scaled(reading.interval, scale)))
    if judged.over_all:
        over_all = [values[seed] for seed in seen.confirming]
        rows.append(_row(f"all {len(over_all)} seeds", claim, over_all, _scaled(judged.over_all.interval, scale)))
    if seen.confirming and not judged.looks:
        known = [values[seed] for seed in seen.confirming]
        rows.append(_row(f"{count(len(known), 'seed')} of {LOOKS[0]}", claim, known, None))
    if seeds:
        every = [*seen.pilots, *seen.confirming]
        rows += [_row(f"seed {s}", claim, [values[s]], None, hollow=s not in seen.confirming) for s in every]
    unit = unit_text(claim)
    title = f"{metric_name(claim.metric)}: difference" + (f", {unit}" if unit else "")
    return intervals(rows, title, zero=True, names=1.7, width=5.2 if seeds else 2.8)


def _scaled(found: tuple[float, float] | None, scale: float) -> tuple[float, float] | None:
    return None if found is None else (scale * found[0], scale * found[1])


def _row(name: str, claim: Claim, values: list[float], told: Any, hollow: bool = False) -> IntervalRow:
    scale = 100.0 if is_fraction(claim.metric) else 1.0
    mean = typical(values) if len(values) > 1 else None
    return IntervalRow(name=name, mean=mean, interval=told, dots=values, margin=scale * claim.least, hollow=hollow)


def claims_pictures(judged: Sequence[Judged]) -> list[Picture]:
    """Every claim's interval, those of one unit on one axis; none of claims without an estimate."""
    units: dict[str, list[IntervalRow]] = {}
    for one in judged:
        if one.estimate is None:
            continue
        metric, name, unit = one.claim.metric, one.claim.name, unit_text(one.claim)
        scale = 100.0 if is_fraction(metric) else 1.0
        row = IntervalRow(
            name=name,
            mean=scale * one.estimate,
            interval=_scaled(one.interval, scale),
            margin=scale * one.claim.least,
        )
        units.setdefault(f"{metric_name(metric)}: difference" + (f", {unit}" if unit else ""), []).append(row)
    wide = {title: 0.2 + 0.068 * max(len(row.name) for row in rows) for title, rows in units.items()}
    return [intervals(rows, title, zero=True, names=wide[title]) for title, rows in units.items()]


def dots(item: Item, arena: Arena) -> Picture | None:
    """Accuracy at equal rounds, every seed a dot, best first; bounds hollow. None without a finished run."""
    if not arena.compared:
        return None
    chosen = looks(methods(item))

    def row(result: CellResult, values: Mapping[int, float], look: Look | None) -> IntervalRow:
        seen = summary(values.values())
        return IntervalRow(
            name=method_of(result.cell),
            mean=100 * seen.mean,
            interval=(max(0.0, 100 * seen.interval[0]), min(100.0, 100 * seen.interval[1])) if seen.interval else None,
            dots=[100 * value for value in values.values()],
            look=look or Look(colour=2),
            hollow=look is None,
        )

    rows = [row(one.result, one.places["rounds"].values, chosen[method_of(one.result.cell)]) for one in arena.compared]
    rows += [row(result, result.values, None) for result in arena.bounds if result.values]
    return intervals(rows, "Test accuracy (%) at equal rounds; line: 95 % interval, tick: mean", names=1.6)
