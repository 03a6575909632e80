"""The page on what explains SSFL's results, and the part of an item's page that says it of the item."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, counted
from benchmark.verdicts.statistics import Paired
from reports.drawing import inline, pdf, svg
from reports.explained import (
    DIVERSITY,
    MEASURES,
    Explained,
    Gain,
    Point,
    explained,
    gains_of,
    gains_over,
    points_of,
    twins,
)
from reports.explained_figure import scatter
from reports.explained_words import NAMES, coefficient, on_diversity, on_gain, on_twins
from reports.views import PROFILES
from reports.words import csv_safe, percent, points, points_interval

PAPER = "ssfl"
COLUMNS = ("cell", "averaging", "setting", "data", "server_weight", "accuracy", *MEASURES, "runs")


def explaining(paper: str, results: Sequence[tuple[Item, Records]]) -> list[tuple[Item, Records]]:
    """The paper's own items; none but SSFL's compare grouping with FedAvg. The departures' cells differ in more than
    the averaging, and stand on their own page."""
    return [pair for pair in results if paper == PAPER and pair[0].name.startswith(f"{PAPER}/") and _own(pair[0])]


def _own(item: Item) -> bool:
    return not item.methods_are_rows and not item.name.endswith("/departures")


def explained_values(results: Sequence[tuple[Item, Records]]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The page of a paper's items, a section a profile, and the files beside it: the cells as CSV, figures as SVG and
    PDF."""
    sections, files = [], {}
    for profile in dict.fromkeys(item.profile for item, _ in results):
        found = points_of((item, counted(item, records)) for item, records in results if item.profile == profile)
        if not found:
            continue
        measures = [explained(found, measure) for measure in MEASURES]
        gains = gains_over(found)
        files[f"{profile}-cells.csv"] = _csv(found).encode()
        figure, drawn = _figure(measures[0], profile)
        files |= drawn
        sections.append(
            {
                "profile": profile,
                "profile_text": PROFILES.get(profile, ""),
                "sentences": [on_gain(gains), on_diversity(measures[0]), on_twins(twins(found))],
                "measures": [_measure_view(measure) for measure in measures],
                "gains": [gain_view(gain) for gain in gains],
                "figure": figure,
                "files": [f"{profile}-cells.csv", *drawn],
                "cells": [_cell_view(point) for point in found],
            }
        )
    return {"sections": sections}, files


def _figure(found: Explained, profile: str) -> tuple[Markup | None, dict[str, bytes]]:
    figure = scatter(found)
    if figure is None:
        return None, {}
    text = svg(figure)
    files = {f"{profile}-diversity.svg": text.encode(), f"{profile}-diversity.pdf": pdf(figure)}
    return Markup(inline(text, f"explained-{profile}")), files


def _measure_view(found: Explained) -> dict[str, Any]:
    return {
        "name": NAMES[found.measure],
        "cells": found.held.n,
        "settings": found.held.clusters,
        "plain": coefficient(found.plain),
        "held": coefficient(found.held),
        "weight": coefficient(found.weight),
    }


def _cell_view(point: Point) -> dict[str, str]:
    return {
        "name": point.name,
        "way": point.way,
        "weight": f"{point.server_weight:.3f}",
        "accuracy": percent(point.accuracy),
        "diversity": f"{point.diversity[DIVERSITY]:.3f}" if DIVERSITY in point.diversity else "-",
        "n": str(point.n),
    }


def gain_view(gain: Gain) -> dict[str, Any]:
    share = "-" if gain.share is None else f"{100 * gain.share[0]:.0f} %"
    return {
        "name": gain.name,
        "parts": [_part(part) for part in (gain.whole, gain.by_weight, gain.rest)],
        "share": share,
        "share_interval": "" if gain.share is None else f"[{100 * gain.share[1][0]:.0f}, {100 * gain.share[1][1]:.0f}]",
        "n": gain.whole.n,
    }


def _part(seen: Paired) -> dict[str, str]:
    interval = seen.interval if seen.has_spread else None
    sign = "" if interval is None else "up" if interval[0] > 0 else "down" if interval[1] < 0 else ""
    return {"mean": points(seen.mean), "interval": points_interval(interval), "sign": sign}


def item_gains(item: Item, records: Records) -> Mapping[str, Any] | None:
    """For the item's own page; None where it does not compare grouping with FedAvg and the control."""
    if not item.name.startswith(f"{PAPER}/") or not _own(item):
        return None
    gains = gains_of(item, records)
    return {"sentence": on_gain(gains), "rows": [gain_view(gain) for gain in gains]} if gains else None


def _csv(found: Sequence[Point]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for p in found:
        measured = [p.diversity.get(measure, "") for measure in MEASURES]
        row = [p.name, p.way, p.setting, p.data, p.server_weight, p.accuracy, *measured, p.n]
        writer.writerow([csv_safe(value) for value in row])
    return text.getvalue()
