"""The front page: the four papers as cards, the arena's ranking, when and on what it was made, and every item."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.item import Item
from benchmark.tracking.record import RunRecord
from reports.aggregate import aggregate
from reports.agreement import largest_gap
from reports.arena.table import columns, method_of, methods
from reports.cells import Records, collect, counted
from reports.pages.item import heading
from reports.style import looks
from reports.trust import commits
from reports.verdicts import judge
from reports.views import MARKS, PROFILES, cell_page, points_free
from reports.words import percent, points

Result = tuple[Item, Records]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a card says of a paper before any run."""

    name: str  # as in "ssfl/tab2"
    short: str
    title: str
    where: str


PAPERS = (
    Paper(
        name="ssfl",
        short="SSFL",
        title="Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models",
        where="Zhang et al., arXiv:2008.11364",
    ),
    Paper(
        name="semifl",
        short="SemiFL",
        title="SemiFL: Communication Efficient Semi-Supervised Federated Learning with Unlabeled Clients",
        where="Diao, Ding, Tarokh, arXiv:2106.01432",
    ),
    Paper(
        name="rscfed",
        short="RSCFed",
        title="RSCFed: Random Sampling Consensus Federated Semi-supervised Learning",
        where="Liang et al., CVPR 2022, arXiv:2203.13993",
    ),
    Paper(
        name="fedswitch",
        short="FedSwitch",
        title="When does the student surpass the teacher? Federated Semi-supervised Learning with Teacher-Student EMA",
        where="Zhao et al., 2023",
    ),
)


def front_values(results: Sequence[Result], hrefs: Mapping[tuple[str, str], str], troubles: Sequence[str]) -> dict:
    """`hrefs`: (item, profile) -> its page. `troubles`: what could not be read."""
    shown = [(item, counted(item, records)) for item, records in results]
    rows = [_row(item, records, hrefs) for item, records in shown]
    _mark_the_same(shown, rows)
    return {
        "papers": [_card(paper, shown, rows) for paper in PAPERS],
        "rankings": [
            ranking
            for (item, records), row in zip(shown, rows, strict=True)
            if item.rows == "methods" and not row["same_as"] and (ranking := _ranking(item, records, row["href"]))
        ],
        "items": rows,
        "profiles": _in_order(item.profile for item, _ in shown),
        "methods": _in_order(name for row in rows for name in row["methods"]),
        "data": _in_order(name for row in rows for name in row["data"]),
        "made": made(record for _, records in shown for runs in records.values() for record in runs.values()),
        "troubles": list(troubles),
        "marks": MARKS,
        "departures": _in_order(item.name.split("/")[0] for item, _ in shown),
    }


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _row(item: Item, records: Records, hrefs: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    results = collect(item, records)
    seen = heading(item, results, judge(item, records))
    gap = largest_gap(item, list(results.values()))
    return {
        **seen,
        "href": hrefs[item.name, item.profile],
        "share": f"{100 * seen['runs_done'] / max(1, seen['runs_wanted']):.1f}",
        "methods": _in_order(str(c.setting["method"]) for c in item.cells if "method" in c.setting),
        "data": _in_order(cell.experiment.data.name for cell in item.cells),
        "gap": {"text": points(gap[1].difference), "size": abs(gap[1].difference), "cell": gap[0].cell.label}
        if gap
        else None,
        "same_as": "",
    }


def _mark_the_same(shown: Sequence[Result], rows: Sequence[dict[str, Any]]) -> None:
    """An item whose cells are the same experiments under several profiles has the same runs in all of them: the later
    rows say so, that nobody takes them for further evidence."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    for (item, _), row in zip(shown, rows, strict=True):
        same = first.setdefault((item.name, tuple(cell.cell_key for cell in item.cells)), item.profile)
        row["same_as"] = "" if same == item.profile else same


def _card(paper: Paper, shown: Sequence[Result], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A paper over all its items, a line a profile."""
    mine = [row for (item, _), row in zip(shown, rows, strict=True) if item.name.split("/")[0] == paper.name]
    profiles = [_summed(profile, [r for r in mine if r["item"].profile == profile]) for profile in PROFILES]
    return {"paper": paper, "profiles": [line for line in profiles if line["items"]]}


def _summed(profile: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    done, total = sum(row["done"] for row in rows), sum(row["total"] for row in rows)
    gaps = [row["gap"] for row in rows if row["gap"]]
    return {
        "profile": profile,
        "items": len(rows),
        "done": done,
        "total": total,
        "share": f"{100 * done / max(1, total):.1f}",
        "verdicts": {mark: sum(row["verdicts"][mark] for row in rows) for mark in MARKS},
        "gap": max(gaps, key=lambda gap: gap["size"], default=None),
        "compared": profile == "paper",
    }


def _ranking(item: Item, records: Records, href: str) -> dict[str, Any] | None:
    """The methods by the interquartile mean over the columns that all of them have finished; a column of tuned
    hyperparameters stands for itself, so the first is taken. None before two methods have a finished run."""
    found = [column for column in columns(item, records) if column.entries]
    if found and found[0].key == "hyperparameters":
        found = found[:1]
    cells = {column.name: {method_of(e.cell): e for e in column.entries} for column in found}
    names = [name for name in methods(item) if cells and all(name in entries for entries in cells.values())]
    if len(names) < 2:
        return None
    strata = {
        name: {where: list(entries[name].result.values.values()) for where, entries in cells.items()} for name in names
    }
    seen = {name: aggregate(values) for name, values in strata.items()}
    chosen = looks(methods(item))
    lowest = min((s.interval or (s.mean, s.mean))[0] for s in seen.values())
    highest = max((s.interval or (s.mean, s.mean))[1] for s in seen.values())
    width = highest - lowest or 1.0
    return {
        "item": item,
        "href": href,
        "columns": len(found),
        "what": found[0].name if len(found) == 1 else f"{len(found)} settings of {found[0].key}",
        "rows": [
            {
                "method": name,
                "href": f"{href.rsplit('/', 1)[0]}/{cell_page(cells[found[0].name][name].cell.label)}.html",
                "colour": chosen[name].colour,
                "mean": percent(one.mean),
                "interval": points_free(one.interval) or "no interval",
                "n": one.n,
                "low": f"{100 * ((one.interval or (one.mean,))[0] - lowest) / width:.2f}",
                "length": f"{100 * ((one.interval[1] - one.interval[0]) if one.interval else 0) / width:.2f}",
                "at": f"{100 * (one.mean - lowest) / width:.2f}",
            }
            for name, one in sorted(seen.items(), key=lambda pair: -pair[1].mean)
        ],
    }


def made(records: Iterable[RunRecord]) -> dict[str, Any]:
    """When and on what the records were made, from the records alone: the site has no clock of its own."""
    runs = {(record.cell_key, record.seed): record for record in records}.values()
    days = sorted(day for record in runs if (day := _day(record)))
    return {
        "runs": len(runs),
        "first": days[0] if days else "",
        "last": days[-1] if days else "",
        "processors": sorted({_at(record, "hardware", "processor") for record in runs} - {""}),
        "torch": sorted({_at(record, "packages", "torch") for record in runs} - {""}),
        "commits": len(commits(runs)) if runs else 0,
    }


def _day(record: RunRecord) -> str:
    """The day on which the run was last started: 2026-11-21; empty where the manifest does not say."""
    attempts = record.manifest.get("attempts")
    newest = attempts[-1] if isinstance(attempts, list) and attempts else {}
    return str(newest.get("started", ""))[:10] if isinstance(newest, Mapping) else ""


def _at(record: RunRecord, part: str, name: str) -> str:
    found = record.manifest.get(part)
    return str(found.get(name, "")) if isinstance(found, Mapping) else ""
