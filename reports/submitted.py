"""The page of results that others sent: accepted bundles, apart from the suite's own records."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmark.data.folder import public_name
from benchmark.errors import DataError
from benchmark.records.bundle import Bundle, check_bundle, noted, opened
from benchmark.verdicts.results import ACCURACY
from benchmark.verdicts.statistics import summary
from reports.formatting import NONE, shown
from reports.paper_table import mean_entry
from reports.provenance import remarks, seeds_text
from reports.tables import Entry, table_of

HEADS = ("Result", "Method and data", "Trained again here", "Not trained again", "Accuracy (%)", "95 % interval", "n")


def bundles(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What the page shows of each bundle; and a line for each that is not, or no longer, as it has to be."""
    values, troubles = [], []
    for path in sorted(folder.glob("*.zip")):
        try:
            bundle, seen = opened(path), noted(path)
            for fault in check_bundle(bundle, trusted=False, with_data=False)[0]:
                raise DataError(fault)
            table = table_of("submitted", "", HEADS, _rows(bundle, seen["retrained"]), words=4)
            values.append({"bundle": bundle, "name": path.name, "table": table, "believed": seen["believed"]})
        except DataError as error:
            troubles.append(f"{folder.name}/{path.name}: {error}")
    return values, troubles


def _rows(bundle: Bundle, again: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """A row a cell. Runs count under their own rule of selection; those that diverged join no mean."""
    for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1)):
        runs = [run for run, _ in bundle.records if run.cell_key == key]
        values = [value for run in runs if run.status == "done" and (value := run.selected(ACCURACY)) is not None]
        seen = summary(values) if values else None
        interval = ", ".join(shown(ACCURACY, edge) for edge in seen.interval) if seen and seen.interval else ""
        experiment, data_notes = runs[0].experiment, dict.fromkeys(run.data_note for run in runs if run.data_note)
        yield (
            Entry(text=label, below=(f"cell {key}", *remarks(runs, str(experiment.get("profile"))))),
            Entry(text=experiment["method"]["kind"], below=(public_name(experiment["data"]["name"]), *data_notes)),
            *(seeds_text(seeds) if seeds else NONE for seeds in bundle.split_seeds(key, again)),
            mean_entry(seen),
            f"[{interval}]" if interval else NONE,
            Entry(text=str(len(values)), below=(f"of {len(runs)} runs",) if len(values) < len(runs) else ()),
        )
