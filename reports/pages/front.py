"""The front page: the four papers as cards, the arena's ranking, when and on what it was made, and every item."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import judge
from benchmark.verdicts.results import Records, collect, counted
from reports.aggregate import aggregate
from reports.agreement import largest_gap
from reports.arena.table import columns, method_of, methods
from reports.chart import swatch
from reports.files import slug
from reports.pages.item import heading
from reports.pages.paper import PAPERS, Paper, arena_entries, declared, paper_page
from reports.style import looks
from reports.trust import commits, remarks
from reports.views import MARKS, PROFILES, cell_page, points_free
from reports.words import percent, points

Result = tuple[Item, Records]


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
            if item.methods_are_rows and not row["same_as"] and (ranking := _ranking(item, records, row["href"]))
        ],
        "items": rows,
        "profiles": _in_order(item.profile for item, _ in shown),
        "methods": _in_order(name for row in rows for name in row["methods"]),
        "data": _in_order(name for row in rows for name in row["data"]),
        "made": made(record for _, records in shown for runs in records.values() for record in runs.values()),
        "troubles": list(troubles),
        "marks": MARKS,
    }


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _row(item: Item, records: Records, hrefs: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    results, judged = collect(item, records), judge(item, records)
    seen = heading(item, results, judged)
    gap = largest_gap(item, list(results.values()))
    return {
        **seen,
        "judged": judged,
        "href": hrefs[item.name, item.profile],
        "remarks": remarks((run for runs in records.values() for run in runs.values()), item.profile),
        "share": f"{100 * seen['runs_done'] / max(1, seen['runs_wanted']):.1f}",
        "methods": _in_order(str(c.setting["method"]) for c in item.cells if "method" in c.setting),
        "data": _in_order(cell.experiment.data.name for cell in item.cells),
        "gap": {
            "text": points(gap[1].difference),
            "size": abs(gap[1].difference),
            "cell": gap[0].cell.label,
            "href": f"{hrefs[item.name, item.profile].rsplit('/', 1)[0]}/{cell_page(gap[0].cell.label)}.html",
        }
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
    return {
        "paper": paper,
        "href": paper_page(paper.name),
        "departures": f"{slug(paper.name)}/departures.html",
        "declared": declared(paper.name),
        "profiles": [line for line in profiles if line["items"]],
        "arena": {} if mine else _by_method(arena_entries(paper, shown, rows)),
    }


def _by_method(entries: Sequence[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Method -> one entry an item; where it has several cells there, the entry leads to the item's page."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for entry in entries:
        first = found.setdefault(entry["method"], {}).setdefault(f"{entry['item']} {entry['profile']}", entry)
        if first is not entry:
            found[entry["method"]][f"{entry['item']} {entry['profile']}"] = {**entry, "href": entry["page"]}
    return {method: list(places.values()) for method, places in found.items()}


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
                # a number over several cells leads to the page that has them all beside each other
                "href": href
                if found[1:]
                else f"{href.rsplit('/', 1)[0]}/{cell_page(cells[found[0].name][name].cell.label)}.html",
                "colour": chosen[name].colour,
                "key": swatch(chosen[name]),
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
        "profiles": sorted({str(record.experiment.get("profile", "unknown")) for record in runs}),
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
