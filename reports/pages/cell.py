"""A cell's page: its curves seed by seed, its runs, its settings, its cost, and what was sent and kept."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, CellResult, Records, seeds_of
from benchmark.verdicts.statistics import summary
from reports.arena.text import megabytes, thousands
from reports.cells import SELECTED_ON_TEST
from reports.chart import chart
from reports.figures import variant_words
from reports.files import slug
from reports.ink import pdf, svg
from reports.numbers import series_csv
from reports.pages.paper import paper_page
from reports.plate import cell_plate
from reports.series import Series, seeds_series
from reports.style import Look, looks
from reports.trust import marks_of, remarks
from reports.views import PROFILES, Fact, provenance, resolved, run_view, value_view
from reports.words import aligned, metric_name, number

CURVES = (
    ACCURACY,
    "pseudo/kept",
    "pseudo/accuracy",
    "pseudo/kl_uniform",
    "diversity/delta/l2/squared/clients",
    "diversity/gradient/l2/squared/clients",
    "test/loss",
    "server/loss",
    "client/loss",
)
ALWAYS = (ACCURACY, "pseudo/kept", "pseudo/accuracy", "pseudo/kl_uniform", "diversity/delta/l2/squared/clients")
PAGE_POINTS = 160  # a line; a chart on a page has no more pixels to show them
HOLDERS = {"server": "The server", "client": "A client", "central": "The one holder"}


def run_page(record: RunRecord) -> str:
    """Relative to the site: runs/<cell_key>/seed-0.html."""
    return f"runs/{slug(record.cell_key)}/seed-{record.seed}.html"


def cell_values(
    item: Item,
    result: CellResult,
    records: Records,
    series: Mapping[str, Series],
    config_file: str,
    figures: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything the template shows, but the config file's own content, which `resolved` gives. `series`: those of
    `cell_series`; `figures`: the files beside the page."""
    runs = seeds_of(records, result.cell)
    return {
        "item": item,
        "paper": item.name.split("/")[0],
        "paper_page": paper_page(item.name.split("/")[0]),
        "profile_text": PROFILES.get(item.profile, ""),
        "cell": result.cell,
        "value": value_view(item, result),
        "selection": SELECTED_ON_TEST if result.selected_on_test else None,
        "setting": {key: str(value) for key, value in result.cell.setting.items()},
        "runs": _run_lines(runs, item.profile),
        "missing": [seed for seed in range(item.seeds) if seed not in {record.seed for record in runs}],
        "charts": charts(result, series),
        "unmeasured": [metric_name(name) for name in ALWAYS if name not in series],
        "figures": figures,
        "command": f"fssl run --config {config_file} --seed=0",
        "config": resolved(result, records),
        "config_file": config_file,
        "facts": settings_of(json.loads(resolved(result, records))),
        "cost": cost_of(runs),
        "exchange": exchange_of(runs),
        "remarks": remarks(runs, item.profile),
        "provenance": provenance(runs),
    }


def _run_lines(runs: Sequence[RunRecord], profile: str) -> list[dict[str, str]]:
    """The table of runs, numbers aligned on their decimal points."""
    shown = [run_view(run) for run in runs]
    columns = {name: aligned([line[name] for line in shown]) for name in ("accuracy", "loss", "kept", "pseudo", "wall")}
    return [
        {**line, **{name: column[place] for name, column in columns.items()},
         "href": run_page(run), "marks": "; ".join(marks_of(run, profile))}
        for place, (run, line) in enumerate(zip(runs, shown, strict=True))
    ]  # fmt: skip


def cell_series(result: CellResult, records: Records) -> dict[str, Series]:
    """What the page draws: the metrics that some run of the cell measured."""
    seen = {name for record in seeds_of(records, result.cell) for line in record.rounds for name in line}
    return {name: seeds_series(result, records, name, PAGE_POINTS) for name in CURVES if name in seen}


def look_of(result: CellResult) -> Look:
    """The method's, or where the cell has none, its own."""
    method = str(result.cell.setting.get("method", result.cell.label))
    return looks([method])[method]


def cell_figure(result: CellResult, series: Mapping[str, Series], name: str) -> dict[str, bytes]:
    """The page's curves for print and the numbers behind them, by file name; empty where nothing was measured."""
    if not series:
        return {}
    drawn = cell_plate(result.cell.label, look_of(result), series)
    numbers = series_csv((result.cell.label, metric, line) for metric, line in series.items())
    return {f"{name}.svg": svg(drawn), f"{name}.pdf": pdf(drawn), f"{name}.csv": numbers.encode()}


def charts(result: CellResult, series: Mapping[str, Series]) -> list[dict[str, Any]]:
    """A chart a measured metric; every seed thin, their mean and its band over it."""
    look = look_of(result)
    return [
        {
            "title": metric_name(metric),
            "variant": variant_words(metric) if metric.startswith("diversity/") else "",
            "svg": chart(metric, {"": (line, look)}, seeds=True),
        }
        for metric, line in series.items()
    ]


def settings_of(config: Mapping[str, Any]) -> list[Fact]:
    """The resolved experiment flat, one setting a line, by the names that the command line takes."""
    return [Fact(name=name, values=(text,), more=0, mixed=False) for name, text in _flat(config).items()]


def _flat(entries: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in entries.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        elif key == "kind":
            name = above.rstrip(".")
            if name.rpartition(".")[2] != value:  # "federation" is of kind federation
                found[name or key] = str(value)
        else:
            found[f"{above}{key}"] = json.dumps(value) if isinstance(value, list) else str(value)
    return dict(sorted(found.items()))


def cost_of(runs: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Means over the finished runs."""
    ended = [run for run in runs if run.status == "done"]
    costs = [cost for run in ended if isinstance(cost := run.result.get("cost"), Mapping)]
    walls = [run.result["wall_seconds"] for run in ended if isinstance(run.result.get("wall_seconds"), int | float)]
    named = {"local_steps": "local steps", "bytes_up": "MB up", "bytes_down": "MB down"}
    found = []
    for key, name in named.items():
        values = [float(cost[key]) for cost in costs if isinstance(cost.get(key), int | float)]
        if values:
            mean = summary(values).mean
            found.append((name, thousands(mean) if key == "local_steps" else megabytes(mean)))
    if walls:
        found.append(("minutes on its machine", number(summary(walls).mean / 60)))
    return found


def exchange_of(runs: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Who received, sent and kept what, by the names under which the method hands it over; from the first run that
    says so."""
    found = next((e for run in runs if isinstance(e := run.result.get("exchange"), Mapping)), None)
    holders = found.get("holders") if found else None
    if not isinstance(holders, Mapping):
        return []
    return [
        {
            "holder": HOLDERS.get(str(name), str(name)),
            **{way: _names(ways, way) for way in ("received", "sent", "kept")},
        }
        for name, ways in holders.items()
        if isinstance(ways, Mapping)
    ]


def _names(ways: Mapping[str, Any], way: str) -> str:
    """ "student (154 kB), sigma (1.2 MB)"; records hold name -> bytes."""
    names = ways.get(way)
    if isinstance(names, Mapping) and names:
        return ", ".join(f"{name} ({_bytes(size)})" for name, size in names.items())
    return "nothing"


def _bytes(size: object) -> str:
    if not isinstance(size, int | float):
        return "?"
    return f"{megabytes(size)} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
