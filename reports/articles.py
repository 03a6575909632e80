"""Pages written by hand, from Markdown: a paper's departures with their measured effects, and performance.

An entry of departures names a switch as "(ssfl/departures: momentum)": a pair of cells of that item, our default and
the other way.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.statistics import paired, summary
from reports.formatting import cell_address, count, mean_spread, points
from reports.provenance import flat
from reports.reported import Reported
from reports.tables import Entry, Table, table_of

LONG = re.compile(r"(?<![\w.])-?\d+\.\d{5,}(?:e-?\d+)?(?![\w.])")  # a number with more digits than a reader needs
NAMED = re.compile(r"\(([a-z0-9]+/departures):\s+([a-z0-9-]+)\)")


@functools.cache
def _parser() -> MarkdownIt:
    """Without HTML in the source: what is no Markdown is text."""
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def article(text: str) -> Markup:
    """A handwritten page as HTML, without its first heading."""
    html = _parser().render(re.sub(r"\A\s*# .*\n", "", text))
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="region"><table>')
    return Markup(html.replace("</table>", "</table></div>"))


def performance(written: Path, benchmarks: Path) -> dict[str, Any]:
    """What is written, and each measurement. Both may be absent."""
    return {
        "written": article(written.read_text()) if written.is_file() else "",
        "measured": [_measured(path) for path in sorted(benchmarks.glob("*.json"))],
    }


def _measured(path: Path) -> dict[str, Any]:
    """Its values, and a table for each work of engines that was timed."""
    try:
        values = json.loads(path.read_text())
        works = values.pop("ratios", {})
        tables = [_work_table(name, work) for name, work in works.items()]
        facts = {
            name: LONG.sub(lambda match: f"{float(match[0]):.4g}", text)
            for name, text in flat(values, joint=" ").items()
        }
    except (OSError, ValueError, AttributeError, KeyError) as error:
        tables, facts = [], {"cannot be read": str(error)}
    return {"name": path.stem, "tables": tables, "facts": [(name, [(value, "")]) for name, value in facts.items()]}


def _work_table(name: str, work: Mapping[str, Any]) -> Table:
    def spread(times: Mapping[str, float]) -> Entry:
        return Entry(text=f"{times['median']:.2f}", below=(f"{times['least']:.2f} to {times['most']:.2f}",))

    rows = [
        (label, spread(row["wall_seconds"]), spread(row["ratio"]), spread(row["cpu_ratio"]))
        for label, row in work["contenders"].items()
    ]
    caption = f"Work {name}: {work['what']}. Medians, with least and most; above 1 is faster than the plain loop."
    return table_of("work", caption, ("Engine", "Seconds a round", "Ratio", "Ratio of CPU time"), rows)


def departures(text: str, mine: Sequence[Reported]) -> Markup:
    """The page, with what was measured in place of each switch's name."""
    lines_of = effects(mine)

    def measured(name: re.Match[str]) -> str:
        lines = Markup("; ").join(lines_of.get((name[1], name[2]), ["not run"]))
        said = Markup('<small class="measured"><b>Measured</b> <code>{}</code>: {}.</small>')
        return str(said.format(name[2], lines))

    return Markup(NAMED.sub(measured, article(text)))


def effects(mine: Sequence[Reported]) -> Mapping[tuple[str, str], list[Markup]]:
    """(item, switch) -> a line for each profile that has one of its runs."""
    lines: dict[tuple[str, str], list[Markup]] = {}
    for reported in mine:
        item, cells = reported.item, reported.results if reported.item.name.endswith("/departures") else {}
        for label, other in cells.items():
            name, way = label.rsplit("/", 1)
            if way == "other" and f"{name}/default" in cells:
                line = _effect(item, cells[f"{name}/default"], other)
                lines.setdefault((item.name, name), []).append(line)
    return lines


def _effect(item: Item, default: CellResult, other: CellResult) -> Markup:
    seen = paired(other.values, default.values)
    seeds = sorted(other.values.keys() & default.values.keys())
    if seen is None:
        text = Markup("profile {}: not run").format(item.profile)
    else:
        text = Markup('{}; profile {}: <a href="{}">{} | {}</a>, difference <b>{}</b> points, n={}').format(
            other.cell.setting.get("switch", ""),
            item.profile,
            "../" + cell_address(other.cell, bool(other.runs)),
            *(mean_spread(summary(result.values[seed] for seed in seeds)) for result in (default, other)),
            points(seen.mean),
            seen.n,
        )
    diverged = len(default.diverged) + len(other.diverged)
    return text + escape(f", {count(diverged, 'run')} diverged") if diverged else text
