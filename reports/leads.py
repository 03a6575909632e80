"""Show in which settings a method leads over the reference method: the settings of a table as rows, methods as columns.

A table has this comparison if it names a reference (`Item.reference`). Each entry is the mean difference of the last
test accuracies, paired by seed, with its interval. A method is ahead in a setting if the interval lies above zero, and
behind if it lies below. Nothing is judged: with many settings, some intervals miss the true difference by chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import INTERVAL_SEEDS, LEVEL, Summary, paired
from reports.entries import method_of, setting_text
from reports.formatting import NONE, count, points
from reports.item_results import ItemResults
from reports.tables import Table, TableEntry, row_of, table_of

Side = Literal["ahead", "behind", "open", "few seeds", "not run"]
WORDS: Mapping[Side, str] = {  # in a sentence on a method
    "behind": "behind in",
    "open": "not clearly different in",
}
LOOKS: Mapping[Side, str] = {
    "ahead": "holds",
    "behind": "contradicted",
    "open": "",
    "few seeds": "",
    "not run": "missing",
}


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The lead of a method over the reference in one setting."""

    method: str
    setting: str
    difference: Summary | None = None  # None if no seed is common to both

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.difference.interval if self.difference else None

    @property
    def side(self) -> Side:
        """Return on which side of zero the interval lies; "open" if it contains zero, or if the seeds do not differ."""
        if self.difference is None:
            return "not run"
        if self.difference.n < INTERVAL_SEEDS:
            return "few seeds"
        if self.interval is None:
            return "open"
        low, high = self.interval
        if low > 0:
            return "ahead"
        return "behind" if high < 0 else "open"


def leads_of(reported: ItemResults) -> dict[str, list[Lead]]:
    """Return the leads of each method except the reference, in the order of the settings."""
    item = reported.item
    by_setting: dict[str, dict[str, CellResult]] = {}
    for result in reported.results.values():
        name = setting_text(result.cell.setting, item.rows)
        by_setting.setdefault(name, {})[method_of(result.cell)] = result
    methods = dict.fromkeys(method_of(result.cell) for result in reported.results.values())
    leads: dict[str, list[Lead]] = {method: [] for method in methods if method != item.reference}
    for setting, results in by_setting.items():
        base = results.get(item.reference)
        for method, own in leads.items():
            compared = results.get(method)
            has_both = base is not None and compared is not None
            difference = paired(compared.values, base.values) if has_both and compared and base else None
            own.append(Lead(method=method, setting=setting, difference=difference))
    return leads


def lead_text(reported: ItemResults) -> str:
    """Say in a sentence per method in how many settings it is ahead of the reference, and where it is not.

    Settings in which a difference has too few seeds for an interval are named in a last sentence, and not counted.
    """
    reference = reported.item.reference
    sentences: list[str] = []
    waiting: dict[str, None] = {}
    for method, leads in leads_of(reported).items():
        named: dict[Side, list[str]] = {}
        for lead in leads:
            named.setdefault(lead.side, []).append(lead.setting)
        waiting.update(dict.fromkeys(named.pop("few seeds", ())))
        named.pop("not run", None)
        settings = sum(map(len, named.values()))
        if not settings:
            continue
        text = f"{method} is ahead of {reference} in {len(named.get('ahead', ()))} of {count(settings, 'setting')}"
        for side, words in WORDS.items():
            if side in named:
                text += f"; {words} {len(named[side])} ({'; '.join(named[side])})"
        sentences.append(f"{text}.")
    if waiting:
        few = count(len(waiting), "setting")
        sentences.append(
            f"In {few} ({'; '.join(waiting)}), differences do not have the {INTERVAL_SEEDS} seeds of an interval yet."
        )
    return " ".join(sentences) or "No method has a run in common with the reference yet."


def lead_table(reported: ItemResults) -> Table:
    """Return the differences from the reference: a row per setting, a column per method."""
    item, leads = reported.item, leads_of(reported)
    rows = []
    for place, setting in enumerate(dict.fromkeys(lead.setting for own in leads.values() for lead in own)):
        rows.append(row_of((setting, *(_entry(own[place]) for own in leads.values()))))
    level = f"{100 * LEVEL:g} % interval"
    brief = (
        f"Accuracy minus that of {item.reference} in points, paired by seed, with its {level} (from {INTERVAL_SEEDS} "
        "seeds on). No verdicts: intervals are not corrected for their number"
    )
    caption = f"{item.title}. {brief}. {lead_text(reported).removesuffix('.')}"
    heads = ("Setting", *leads)
    return table_of("leads", caption, heads, rows, title=f"Lead over {item.reference}", brief=brief)


def _entry(lead: Lead) -> TableEntry:
    if lead.difference is None:
        return TableEntry(text=NONE, look=LOOKS["not run"])
    number = f"n={lead.difference.n}"
    below = (number,)
    if lead.interval is not None:
        low, high = lead.interval
        below = (f"{points(low)} to {points(high)}, {number}",)
    mean = lead.difference.mean
    return TableEntry(text=points(mean), below=below, look=LOOKS.get(lead.side, ""), sort=mean)


def lead_rows(reported: ItemResults) -> list[dict[str, Any]]:
    """Return the leads as JSON values: fractions, and the side of the interval (`Lead.side`)."""
    rows = []
    for own in leads_of(reported).values():
        for lead in own:
            low, high = lead.interval or (None, None)
            seen = lead.difference
            rows.append(
                {
                    "method": lead.method,
                    "setting": lead.setting,
                    "difference": seen.mean if seen else None,
                    "interval_low": low,
                    "interval_high": high,
                    "n": seen.n if seen else 0,
                    "side": lead.side,
                }
            )
    return rows
