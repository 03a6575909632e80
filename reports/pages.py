"""What the templates show: plain values, tables and pictures for each kind of page."""

import functools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.papers.catalogue import ITEMS
from benchmark.papers.item import Item
from benchmark.papers.published import read_published
from benchmark.records.record import RunRecord, fall_in_words
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect, seeds_of
from benchmark.verdicts.statistics import summary
from reports.agreement import agreement, largest_gap
from reports.arena import arenas, is_arena, learned_nothing
from reports.figures import IntervalRow, Panel, Picture, curves, intervals
from reports.formatting import (
    NONE,
    is_fraction,
    megabytes,
    metric_name,
    number,
    points,
    shown,
    slug,
    thousands,
    unit_of,
)
from reports.item_figures import DIVERSITY, caption_of, joins
from reports.paper_table import (
    cell_page,
    ladder_table,
    method_of,
    notes_of,
    ours_entry,
)
from reports.properties import property_tables
from reports.provenance import commit_of, flat, marks_of, provenance, remarks
from reports.results import KEPT, KEPT_ACCURACY, is_number, series_of
from reports.style import Look, looks
from reports.tables import Entry, Table, table_of

Result: TypeAlias = tuple[Item, Records]
PROFILES = {
    "demo": "A whole table in minutes on two CPU cores, on scikit-learn's handwritten digits.",
    "laptop": "Real images at reduced size and length, a few minutes a run on two CPU cores.",
    "gpu": "Full data and network, fewer local steps.",
    "paper": "Exactly as published.",
}
MARKS = {
    "matches": "=",
    "differs": "\u2260",
    "holds": "\u2713",
    "contradicted": "\u2717",
    "no effect of interest": "\u2248",
    "undecided": "?",
    "not judged yet": "\u2026",
}
CURVES = (ACCURACY, KEPT, KEPT_ACCURACY, "pseudo/kl_uniform", DIVERSITY, "test/loss")
CURVE_POINTS = 160
HOLDERS = {"server": "The server", "client": "A client", "central": "The one holder"}


@functools.cache
def papers() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((Path(__file__).parent / "papers.toml").read_text())


def paper_of(item: Item) -> str:
    return item.name.split("/")[0]


def analysis_of(paper: str) -> Any:
    """The module of the paper's own questions; None where it has none."""
    module = papers().get(paper, {}).get("analysis")
    return import_module(module) if module else None


def declared(paper: str) -> int:
    """How many tables and figures of the paper the suite can run."""
    return sum(name.split("/")[0] == paper for name in ITEMS)


def item_row(item: Item, records: Records, href: str) -> dict[str, Any]:
    """What lists say of an item: cells and runs done, verdicts, the largest gap to print (profile paper alone)."""
    results = [result for result in collect(item, records).values() if result.awaited]
    judged = judge(item, records)
    agreed = [seen.verdict for result in results if (seen := agreement(item, result))]
    verdicts = [*agreed, *(one.verdict for one in judged)]
    gap = largest_gap(item, results)
    done, total = sum(result.status == "done" for result in results), len(results) + len(item.choices)
    return {
        "item": item,
        "paper": paper_of(item),
        "href": href,
        "judged": judged,
        "done": done,
        "total": total,
        "runs_done": sum(min(result.n, item.seeds) for result in results),
        "runs_wanted": item.seeds * total,
        "diverged": sum(len(result.diverged) for result in results),
        "verdicts": _tally(verdicts),
        "remarks": remarks((run for runs in records.values() for run in runs.values()), item.profile),
        "methods": _in_order(str(c.setting["method"]) for c in item.cells if "method" in c.setting),
        "data": _in_order(cell.experiment.data.name for cell in item.cells),
        "gap": f"{points(gap[1].difference)} ({gap[0].cell.label})" if gap else "",
    }


def _tally(verdicts: Iterable[str]) -> dict[str, int]:
    """How often each verdict occurs, in the order of MARKS."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in (*MARKS, *counts) if verdict in counts}


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def filters(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What a list of items can be filtered by."""
    return {
        "profile": _in_order(row["item"].profile for row in rows),
        "methods": _in_order(method for row in rows for method in row["methods"]),
        "data": _in_order(data for row in rows for data in row["data"]),
    }


def front_values(results: Sequence[Result], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`results`: of the items' own seeds; `rows`: their `item_row`."""
    cards: list[dict[str, Any]] = []
    for name, paper in papers().items():
        mine = [row for row in rows if row["paper"] == name]
        lines = []
        for profile in _in_order(row["item"].profile for row in mine):
            of_profile = [row for row in mine if row["item"].profile == profile]
            done, total = (sum(row[key] for row in of_profile) for key in ("done", "total"))
            verdicts = _tally(v for row in of_profile for v, n in row["verdicts"].items() for _ in range(n))
            lines.append({"profile": profile, "done": done, "total": total, "verdicts": verdicts})
        cards.append({**paper, "name": name, "lines": lines, "declared": declared(name)})
    boards = []
    for (item, records), row in zip(results, rows, strict=True):
        first = next((one for one in arenas(item, records) if one.compared), None) if is_arena(item) else None
        if first is not None:
            boards.append({"row": row, "arena": first, "said": learned_nothing(first)})
    begun = [card["short"] for card in cards if card["lines"]]
    full = any(line["profile"] == "paper" for card in cards for line in card["lines"])
    state = f"So far: {', '.join(begun) or 'none'}{'' if full else ', at reduced scale'}."
    return {"cards": cards, "boards": boards, "rows": rows, "filters": filters(rows), "state": state}


def claims_pictures(judged: Sequence[Judged]) -> list[Picture]:
    """Every claim's interval, those of one unit on one axis; none of claims without an estimate."""
    units: dict[str, list[IntervalRow]] = {}
    for one in judged:
        metric, name = one.claim.metric, one.claim.name
        scale, unit = (100.0, "points") if is_fraction(metric) else (1.0, unit_of(metric))
        row = IntervalRow(
            name=f"{name if len(name) < 46 else name[:44] + '...'} {MARKS.get(one.verdict, '')}",
            mean=None if one.estimate is None else scale * one.estimate,
            interval=(scale * one.interval[0], scale * one.interval[1]) if one.interval else None,
            margin=scale * one.claim.least,
        )
        units.setdefault(f"{metric_name(metric)}: difference" + (f", {unit}" if unit else ""), []).append(row)
    known = {title: rows for title, rows in units.items() if any(row.mean is not None for row in rows)}
    return [intervals(rows, title, zero=True, names=3.4) for title, rows in known.items()]


def item_values(item: Item, records: Records, row: Mapping[str, Any], departures: str) -> dict[str, Any]:
    """`records`: of the item's own seeds; `departures`: the paper's handwritten ones."""
    results = collect(item, records)
    runs = [run for cell in item.cells for run in seeds_of(records, cell)]
    return {
        **row,
        "profile_text": PROFILES.get(item.profile, ""),
        "arena": is_arena(item),
        "properties": property_tables(item, records) if is_arena(item) or "exchange/privacy" in item.metrics else [],
        "notes": item.notes if is_arena(item) else notes_of(item, results.values()),
        "ladder": ladder_table(item, records),
        "forests": claims_pictures(row["judged"]),
        "pages": {label: cell_page(label) for label in results},
        "margin": _margin(item),
        "caption": caption_of(item),
        "ambiguities": ambiguities(item, departures),
        "open_questions": open_questions(item),
        "command": f"fssl reproduce {item.name} --profile {item.profile}",
        "alone": f"fssl report {item.name} --profile {item.profile} --out FOLDER",
        "provenance": provenance(runs),
        "n_runs": len(runs),
    }


def _margin(item: Item) -> str:
    """Whose choice it is that two numbers count as equal; empty where none are compared."""
    if item.profile != "paper" or item.margin is None or all(cell.printed() is None for cell in item.cells):
        return ""
    return (
        f"A published and a reproduced accuracy count as equal within ±{100 * item.margin:.1f} points. That margin is "
        "our choice, fixed in the file of published numbers before any run; the paper names none."
    )


def ambiguities(item: Item, departures: str) -> list[dict[str, str]]:
    """Settings in which the paper and its released code differ: what the cells take, and what is written of it."""
    taken: dict[str, Counter[str]] = {}
    for cell in item.cells:
        for name, value in flat(to_json(cell.experiment)).items():
            if value in ("paper", "released_code") and name != "profile":
                taken.setdefault(name, Counter())[value] += 1
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\s*\d+\. |\|)|\n\n", departures)]
    entries.sort(key=lambda entry: entry.startswith("|"))  # rows of a table say less than a paragraph
    words = {"paper": "the paper", "released_code": "the released code"}
    return [
        {
            "name": name,
            "taken": ", ".join(f"{words[v]} ({n} cells)" if len(counts) > 1 else words[v] for v, n in counts.items()),
            "text": next((e.strip("| ").replace(" | ", "; ") for e in entries if f"`{name}`" in e), ""),
        }
        for name, counts in sorted(taken.items())
    ]


def open_questions(item: Item) -> list[str]:
    """What the published file notes of the item and the page does not say already."""
    try:
        found = read_published(item.name)
    except ConfigError:
        return []
    return [str(note) for note in found.get("notes", ()) if note not in item.notes]


def look_of(result: CellResult) -> Look:
    method = method_of(result.cell)
    return looks([method])[method]


def cell_pictures(result: CellResult, records: Records) -> list[tuple[str, Picture]]:
    """A picture for each measured metric: every run thin, their mean and its band over it."""
    found = []
    for metric in CURVES:
        series = series_of(result, records, metric, CURVE_POINTS)
        if series:
            panel = Panel(title="", metric=metric, lines={"": series}, joins=joins([result.cell]))
            found.append((metric_name(metric), curves([[panel]], {"": look_of(result)}, width=4.2, height=2.1)))
    return found


def cell_values(item: Item, result: CellResult, records: Records) -> dict[str, Any]:
    """All but the pictures and the names of files."""
    runs = seeds_of(records, result.cell)
    return {
        "item": item,
        "paper": paper_of(item),
        "result": result,
        "entry": ours_entry(item, result, item.metrics[0]),
        "agreement": agreement(item, result),
        "runs": _runs_table(item, runs),
        "cost": cost_of(runs),
        "exchange": exchange_table(runs),
        "settings": [(name, value, False) for name, value in sorted(flat(settings_of(result, runs)).items())],
        "remarks": remarks(runs, item.profile),
        "provenance": provenance(runs),
    }


def settings_of(result: CellResult, runs: Sequence[RunRecord]) -> Mapping[str, Any]:
    """The experiment as a run recorded it, else as the item asks for it."""
    return {**(runs[0].experiment if runs else to_json(result.cell.experiment)), "seed": 0}


def run_page(record: RunRecord) -> str:
    """From the site's root: runs/<cell_key>/seed-0.html."""
    return f"runs/{slug(record.cell_key)}/seed-{record.seed}.html"


def _runs_table(item: Item, runs: Sequence[RunRecord]) -> Table:
    heads = ("Seed", "Status", "Accuracy (%)", "Loss", "Kept (%)", "Accuracy of kept (%)", "Rounds", "Time", "Commit")
    rows: list[list[Any]] = []
    for run in runs:
        href = "../" * (len(item.name.split("/")) + 1) + run_page(run)
        texts = (
            run.status,
            shown(ACCURACY, run.selected(ACCURACY)),
            shown("test/loss", run.selected("test/loss")),
            shown(KEPT, run.last(KEPT)),
            shown(KEPT_ACCURACY, run.last(KEPT_ACCURACY)),
            str(run.result.get("rounds", len(run.rounds))),
            minutes(run),
            commit_of(run),
        )
        look = run.status if run.status in ("diverged", "failed") else ""
        name = Entry(text=f"seed {run.seed}", href=href, below=tuple(marks_of(run, item.profile)))
        rows.append([name, *(Entry(text=text, look=look) for text in texts)])
    for seed in sorted(set(range(item.seeds)) - {run.seed for run in runs}):
        rows.append([f"seed {seed}", Entry(text="not run", look="missing"), *[NONE] * 7])
    return table_of("runs", "Runs", heads, rows, words=2)


def minutes(run: RunRecord) -> str:
    """ "3.2 min" of wall time; empty where the record does not say."""
    wall = run.result.get("wall_seconds")
    return f"{wall / 60:.1f} min" if isinstance(wall, int | float) else ""


def cost_of(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Means over the finished runs."""
    ended = [run.result for run in runs if run.status == "done"]
    shapes: dict[str, tuple[str, Callable[[float], str]]] = {
        "local_steps": ("local steps", thousands),
        "bytes_up": ("MB up", megabytes),
        "bytes_down": ("MB down", megabytes),
        "wall_seconds": ("minutes on its machine", lambda seconds: number(seconds / 60)),
    }
    found = []
    for key, (name, text) in shapes.items():
        values = [{**result, **(result.get("cost") or {})}.get(key) for result in ended]
        known = [float(value) for value in values if isinstance(value, int | float)]
        if known:
            found.append((name, text(summary(known).mean)))
    return found


def exchange_table(runs: Sequence[RunRecord]) -> Table | None:
    """Who received, sent and kept what, by the names that the method gives it; from the first run that says so."""
    exchange = next((found for run in runs if (found := run.result.get("exchange"))), None)
    if exchange is None:
        return None
    rows = [
        (HOLDERS.get(name, name), *(_names(ways.get(way)) for way in ("received", "sent", "kept")))
        for name, ways in exchange["holders"].items()
    ]
    heads = ("Who", "Received", "Sent", "Kept between rounds")
    return table_of("exchange", "What was handed over", heads, rows, words=4)


def _names(sizes: Mapping[str, float] | None) -> str:
    """ "student (154 kB), sigma (1.2 MB)"; records hold name -> bytes."""
    found = (
        f"{name} ({f'{megabytes(size)} MB' if size >= 1e6 else f'{size / 1e3:.3g} kB'})"
        for name, size in (sizes or {}).items()
    )
    return ", ".join(found) or "nothing"


def run_values(run: RunRecord) -> dict[str, Any]:
    """All but where it stands."""
    profile = str(run.experiment.get("profile", "unknown"))
    return {
        "run": run,
        "profile": profile,
        "accuracy": shown(ACCURACY, run.selected(ACCURACY)),
        "wall": minutes(run),
        "marks_of_run": marks_of(run, profile),
        "metrics": _metrics_table(run),
        "fall": fall_in_words(run.result["fall"]) if run.result.get("fall") else None,
        "provenance": provenance([run]),
        "wandb": (run.wandb_url, is_web(run.wandb_url)) if run.wandb_url else None,
    }


def _metrics_table(run: RunRecord) -> Table:
    """Every number of the result: after the last round, and in the round that was best."""
    last, best = ({k: v for k, v in (run.result.get(way) or {}).items() if is_number(v)} for way in ("last", "best"))
    rows = [
        (
            Entry(text=metric_name(name), below=(name,) if metric_name(name) != name else ()),
            *(Entry(text=_value(name, found.get(name)), sort=found.get(name)) for found in (last, best)),
            Entry(text=unit_of(name)),
        )
        for name in sorted({*last, *best} - {"round"})
    ]
    table = table_of("metrics", "Numbers of this run", ("Metric", "Last round", "Best round", "Unit"), rows)
    return replace(table, columns=(*table.columns[:-1], replace(table.columns[-1], left=True)))


def _value(metric: str, value: float | None) -> str:
    if value is not None and not is_fraction(metric) and math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return shown(metric, value)


def is_web(url: str) -> bool:
    """Whether following the address can do no more than open a page: https, a host, nothing that hides another."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \"'<>\\`")
    return plain and parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
