"""Render Jinja templates as pages and Markdown, and pages that are written by hand.

Handwritten are the pages on deviations and on performance. An entry of a page on deviations names an implementation
choice as "(ssfl/departures: momentum)". Its two cells in that item, our default and the other way, are an ablation.
"""

import functools
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markdown_it import MarkdownIt
from markupsafe import Markup

from benchmark import __version__
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.judge import share_text
from benchmark.verdicts.statistics import paired, summary
from reports import formatting
from reports.entries import LABELS, mean_entry
from reports.item_results import ItemResults
from reports.tables import markdown

TEMPLATES = Path(__file__).parent / "templates"
CITATION = Path(__file__).parents[1] / "CITATION.cff"  # exists only in a checkout
MARKS = formatting.WORDS["verdicts"]
FILTERS = (formatting.sentence, formatting.slug, formatting.plain_quote, markdown, share_text, shlex.quote)
PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")  # HTML in a page is shown as text
NAMED = re.compile(r"\(([a-z0-9]+/departures):\s+([a-z0-9-]+)\)")


def render(template: str, **values: Any) -> str:
    """Render a template with these values. Only HTML is escaped.

    The template of a page needs `root`, the relative path from the page to the site's root: "../".
    """
    return _environment().get_template(template).render(**values).rstrip() + "\n"


def page_file(path: str, template: str, **values: Any) -> dict[str, bytes]:
    """Render a page of the site and return its content by its path from the site's root."""
    return {path: render(template, root="../" * path.count("/"), **values).encode(errors="backslashreplace")}


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "suite": {"version": __version__, **(yaml.safe_load(CITATION.read_text()) if CITATION.is_file() else {})},
        "labels": LABELS,
        "marks": MARKS,
        "count": formatting.count,
        "difference": formatting.difference,
        "difference_interval": formatting.difference_interval,
    }
    environment.filters |= {
        "css": css_class,
        "points": formatting.points,
        "mean_spread": lambda seen: mean_entry(seen).line,
        **{function.__name__: function for function in FILTERS},
    }
    return environment


def css_class(text: str) -> str:
    """Return a CSS class for a text: "not judged yet" -> "not-judged-yet"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def article(text: str) -> Markup:
    """Convert a handwritten page to HTML, without its first heading."""
    html = PARSER.render(re.sub(r"\A\s*# .*\n", "", text))
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="region"><table>')
    return Markup(html.replace("</table>", "</table></div>"))


def departures(text: str, mine: Sequence[ItemResults]) -> Markup:
    """Convert a page on deviations to HTML, with the measured effect in place of each implementation choice's name."""
    measured = effects(mine)

    def effect(name: re.Match[str]) -> str:
        return render("effect.html", switch=name[2], pairs=measured.get((name[1], name[2]), ())).rstrip()

    return Markup(NAMED.sub(effect, article(text)))


def _end(result: CellResult, seeds: Iterable[int]) -> str:
    """Return the mean of a cell over these seeds, or how many of its runs diverged if it has no finished run."""
    if result.values:
        return mean_entry(summary(result.values[seed] for seed in sorted(seeds))).line
    return f"{formatting.count(len(result.diverged), 'run')} diverged" if result.diverged else "not run"


def effects(mine: Sequence[ItemResults]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the measured effects of each implementation choice by (item, switch), one per profile with its cells.

    An effect compares our default with the other way over their common seeds.
    """
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for reported in mine:
        cells = reported.results if reported.item.name.endswith("/departures") else {}
        for label, other in cells.items():
            switch, way = label.rsplit("/", 1)
            default = cells.get(f"{switch}/default")
            if way != "other" or default is None:
                continue
            common = other.values.keys() & default.values.keys()
            pair = {
                "profile": reported.item.profile,
                "setting": other.cell.setting.get("switch", ""),
                "page": formatting.cell_address(other),
                "difference": paired(other.values, default.values),
                "ends": [_end(cell, common or cell.values) for cell in (default, other)],
                "diverged": len(default.diverged) + len(other.diverged),
            }
            pairs.setdefault((reported.item.name, switch), []).append(pair)
    return pairs
