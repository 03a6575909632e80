"""Jinja templates as pages and Markdown."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from benchmark import __version__
from benchmark.verdicts.judge import share_text
from reports import formatting
from reports.paper_table import LABELS, mean_entry

TEMPLATES = Path(__file__).parent / "templates"
MARKS = formatting.WORDS["verdicts"]
FILTERS = (formatting.sentence, formatting.slug, formatting.plain_quote, formatting.markdown, share_text)


def render(template: str, **values: Any) -> str:
    """The template with these values; only HTML is escaped. A page takes `root`, its way to the site's root: "../"."""
    return _environment().get_template(template).render(**values).rstrip() + "\n"


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
        "suite": _citation(),
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


def _citation() -> Mapping[str, Any]:
    """What CITATION.cff says; without a checkout, nothing."""
    path = Path(__file__).parents[1] / "CITATION.cff"
    return {"version": __version__, **(yaml.safe_load(path.read_text()) if path.is_file() else {})}


def css_class(text: str) -> str:
    """ "not judged yet" -> "not-judged-yet"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
