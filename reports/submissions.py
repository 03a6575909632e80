"""Read the accepted submissions for the site, and draw the table of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmark.data.folder import public_name
from benchmark.errors import DataError
from benchmark.records.seeds import seeds_text
from benchmark.sharing.bundle import Bundle, check_bundle, noted, opened
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.statistics import summary
from reports.entries import mean_entry
from reports.formatting import NONE, shown
from reports.provenance import remarks
from reports.tables import Table, TableEntry, table_of

HEADS = ("Result", "Method and data", "Trained again here", "Not trained again", "Accuracy (%)", "95 % interval", "n")


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An accepted submission."""

    name: str  # of its file
    bundle: Bundle
    retrained: Sequence[str]  # names of the records that were trained again
    believed: Sequence[str]  # parts that were accepted without a check
    verified: Sequence[Mapping[str, Any]]  # who trained which records again: "by", "hardware", "code", "runs"

    @property
    def table(self) -> Table:
        """Return a table with one row per cell."""
        return table_of("submitted", "", HEADS, _rows(self.bundle, self.retrained), words=4)


def submissions_in(folder: Path) -> tuple[list[Submission], list[str]]:
    """Return the valid submissions in the folder, and one line per submission that is invalid."""
    submissions, troubles = [], []
    for path in sorted(folder.glob("*.zip")):
        try:
            bundle, note = opened(path), noted(path)
            for fault in check_bundle(bundle, trusted=False, with_data=False)[0]:
                raise DataError(fault)
            parts = {name: note[name] for name in ("retrained", "believed", "verified")}
            submissions.append(Submission(name=path.name, bundle=bundle, **parts))
        except DataError as error:
            troubles.append(f"{folder.name}/{path.name}: {error}")
    return submissions, troubles


def _rows(bundle: Bundle, again: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each cell. A run's accuracy follows the run's selection rule; diverged runs are in no mean."""
    for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1)):
        runs = [run for run in bundle.records if run.cell_key == key]
        selected = [run.selected(ACCURACY) for run in runs if run.status == "done"]
        values = [value for value in selected if value is not None]
        seen = summary(values) if values else None
        interval = ", ".join(shown(ACCURACY, edge) for edge in seen.interval) if seen and seen.interval else ""
        experiment = runs[0].experiment
        data_notes = dict.fromkeys(run.data_note for run in runs if run.data_note)
        trained_again, not_again = bundle.split_seeds(key, again)
        yield (
            TableEntry(text=label, below=(f"cell {key}", *remarks(runs, str(experiment.get("profile"))))),
            TableEntry(text=experiment["method"]["kind"], below=(public_name(experiment["data"]["name"]), *data_notes)),
            seeds_text(trained_again) if trained_again else NONE,
            seeds_text(not_again) if not_again else NONE,
            mean_entry(seen),
            f"[{interval}]" if interval else NONE,
            TableEntry(text=str(len(values)), below=(f"of {len(runs)} runs",) if len(values) < len(runs) else ()),
        )
