"""Compare each method's headline part as published and as in the released code: accuracy with it and without it.

`released_code.toml` names the two cells of each way, and all numbers are from their records. A verdict is the verdict
of a claim on the same two cells, because seeds that began under no claim confirm nothing.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmark.experiment import to_json
from benchmark.papers.item import PILOTS
from benchmark.papers.published import check_keys
from benchmark.verdicts.cell_results import ACCURACY, CellResult
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.statistics import paired, summary
from reports.entries import AT_CHANCE, at_chance
from reports.formatting import NONE, cell_address, count, difference_interval, percent, points, sentence
from reports.item_results import ItemResults
from reports.provenance import flat
from reports.tables import Table, TableEntry, table_of

PARTS = Path(__file__).with_name("released_code.toml")
SAYS = {
    "holds": "present",
    "contradicted": "reversed",
    "no effect of interest": "inert",
    "no room": "no room",
    "undecided": "undecided",
}
HEADS = ("Method", "Way", "Verdict", "Difference", "Seeds", "With", "Without")
Claims: TypeAlias = Mapping[tuple[str, str, str], Judged]  # profile, key of the better cell, key of the other


def parts() -> list[dict[str, Any]]:
    """Return the headline parts in the file's order. Raise ConfigError for a misspelt key."""
    tables: list[dict[str, Any]] = tomllib.loads(PARTS.read_text())["parts"]
    for table in tables:
        check_keys(PARTS.name, table, {"method", "part", "source", "ways"})
    return tables


def released_table(every: Sequence[ItemResults]) -> Table:
    """Return one row per way of a part and profile with runs; a way without runs has the row "not run"."""
    claims = _claims(every)
    profiles: dict[str, dict[str, CellResult]] = {}
    rows: list[list[TableEntry]] = []
    for reported in every:
        named = {f"{reported.item.name}: {label}": result for label, result in reported.results.items()}
        profiles.setdefault(reported.item.profile, {}).update(named)
    for part in parts():
        name = TableEntry(text=part["method"], below=(sentence(part["part"]), part["source"]))
        for way, names in part["ways"].items():
            known = {profile: cells for profile, cells in profiles.items() if cells.keys() >= set(names)}
            found = list[list[TableEntry]]()
            for profile, cells in known.items():
                with_it = [cells[on] for on, _ in part["ways"].values() if on in cells]
                row = _row(way, cells[names[0]], cells[names[1]], with_it, profile, claims)
                if row:
                    found.append([name if not found else TableEntry(text=part["method"]), *row])
            rows += found or [[name, *_without_runs(way, names, known)]]
            name = TableEntry(text=part["method"])
    return table_of("released", "Test accuracy in percent, its difference in points", HEADS, rows, words=3)


def _without_runs(way: str, names: Iterable[str], known: Mapping[str, Mapping[str, CellResult]]) -> list[TableEntry]:
    """Return the entries of a way that has no seed with both cells."""
    has_diverged = any(cells[cell].diverged for cells in known.values() for cell in names)
    state = "diverged" if has_diverged else "not run"
    return [TableEntry(text=text) for text in (way, state, *4 * [NONE])]


def _claims(every: Iterable[ItemResults]) -> Claims:
    """Return the judged claims that one cell ends better than one other, by profile and the keys of both cells."""
    claims = {}
    for reported in every:
        for judged in reported.judged:
            claim = judged.claim
            contrasts = reported.item.contrasts_of(claim)
            keys = {weight: key for key, weight in contrasts[0]}
            of_ends = claim.metric == ACCURACY and claim.endpoint in ("last", "end") and claim.form != "comparable"
            weights = sorted(weight for terms in contrasts for _, weight in terms)
            if of_ends and judged.is_judged and weights == [-1, 1]:
                claims[reported.item.profile, keys[1.0], keys[-1.0]] = judged
    return claims


def _row(
    way: str, on: CellResult, off: CellResult, with_it: Sequence[CellResult], profile: str, claims: Claims
) -> list[TableEntry]:
    """Return the row of one pair of cells; an empty list if they have no seed in common.

    It has the claim's estimate, or without a claim the mean difference over the common seeds.
    """
    seen = paired(on.values, off.values)
    seeds = on.values.keys() & off.values.keys()
    if seen is None:
        return []
    judged = claims.get((profile, on.cell.cell_key, off.cell.cell_key))
    value, n = (judged.estimate, judged.n) if judged else (seen.mean, seen.n)
    verdict = TableEntry(text=SAYS[judged.verdict], look=judged.verdict) if judged else TableEntry(text="not judged")
    pilots = "one pilot run" if n == 1 and min(seeds) in PILOTS else count(n, "seed")
    interval = difference_interval(ACCURACY, judged.interval) if judged else ""
    means = []
    for cell in (on, off):
        mean = summary(cell.values[seed] for seed in seeds).mean
        remarks = (AT_CHANCE,) if at_chance(cell) else ()
        means.append(TableEntry(text=percent(mean), below=remarks, href=cell_address(cell), sort=mean))
    return [
        TableEntry(text=way, below=(*_changed(on, with_it), f"without: {'; '.join(_changed(off, [on]))}")),
        verdict,
        TableEntry(text=points(value), below=(interval,) if interval else (), sort=value),
        TableEntry(text=f"n = {n}" if judged else pilots, below=(profile,), sort=n),
        *means,
    ]


def _changed(result: CellResult, others: Iterable[CellResult]) -> tuple[str, ...]:
    """Return the fields that differ between the cell and the others; only the method's name if the methods differ."""
    mine, *theirs = (flat(to_json(one.cell.experiment)) for one in (result, *others))
    changed = {}
    for field, value in mine.items():
        if any(other.get(field) != value for other in theirs):
            changed[field] = value
    if "method.kind" in changed:
        return (f"method = {changed['method.kind']}",)
    texts = (f"{field.removeprefix('method.')} = {value}" for field, value in changed.items())
    return tuple(re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.4g}", text) for text in texts)
