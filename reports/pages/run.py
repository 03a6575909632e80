"""A run's page: where its numbers come from, what became of its attempts, and how to run it again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmark.records.record import RunRecord
from reports.trust import marks_of
from reports.views import provenance, run_view
from reports.words import aligned, is_fraction, metric_name, number, percent

Place = Mapping[str, str]  # "href" of a cell's page and "text" that names it


def run_values(record: RunRecord, places: Sequence[Place], config_file: str) -> dict[str, Any]:
    """`places`: the pages of the cells that the run stands in. `config_file`: its experiment, from the run's page."""
    return {
        "run": run_view(record),
        "cell_key": record.cell_key,
        "profile": str(record.experiment.get("profile", "unknown")),
        "places": list(places),
        "marks": marks_of(record, str(record.experiment.get("profile", "unknown"))),
        "metrics": metrics_of(record),
        "attempts": attempts_of(record),
        "provenance": provenance([record]),
        "config_file": config_file,
        "command": f"fssl run --config {config_file.rsplit('/', 1)[-1]} --seed={record.seed}",
        "wandb": wandb_link(record),
    }


def metrics_of(record: RunRecord) -> list[dict[str, str]]:
    """Every number of the result: after the last round, and in the round that was best."""
    last, best = (_numbers(record.result.get(name)) for name in ("last", "best"))
    names = sorted({*last, *best} - {"round"})
    columns = [aligned([_text(name, found) for name in names]) for found in (last, best)]
    return [
        {"name": metric_name(name), "metric": name, "last": of_last, "best": of_best}
        for name, of_last, of_best in zip(names, *columns, strict=True)
    ]


def _numbers(found: object) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, int | float)}


def _text(name: str, found: Mapping[str, float]) -> str:
    if name not in found:
        return ""
    if is_fraction(name):
        return percent(found[name])
    whole = math.isfinite(found[name]) and found[name] == int(found[name])
    return f"{int(found[name]):,}" if whole else number(found[name])


def attempts_of(record: RunRecord) -> list[dict[str, str]]:
    """Each start of the run: when, and from which round. More than one: it was stopped and taken up again."""
    found = record.manifest.get("attempts")
    return [
        {"started": str(entry.get("started", "unknown")), "from_round": str(entry.get("from_round", "unknown"))}
        for entry in (found if isinstance(found, list) else [])
        if isinstance(entry, Mapping)
    ]


def wandb_link(record: RunRecord) -> dict[str, str | None] | None:
    """The mirror on W&B, if the manifest names one: a link where it is an https address with a host, else text."""
    url = record.wandb_url
    if not url:
        return None
    return {"text": url, "href": url if is_web(url) else None}


def is_web(url: str) -> bool:
    """Whether following the address can do no more than open a page: https, a host, nothing that hides another."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and not set(url) & set(" \"'<>\\`")
    return plain and parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc
