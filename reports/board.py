"""The board: methods compared in one environment per table, with rows of this suite and of accepted submissions.

An environment is everything that all its rows share: images, their division among clients, network, K, C, T and rounds.
A submitted cell belongs to it if its experiment is equal in all of them; its method's code is not imported to find out.
"""

import functools
import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.config import from_plain
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, from_record, to_json
from benchmark.papers import items as paper_items
from benchmark.papers.item import ACCURACY, Cell
from benchmark.papers.items import items
from benchmark.records.record import RunRecord
from benchmark.sharing.bundle import OURS
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import INTERVAL_SEEDS, paired, summary
from reports.costs_and_curves import costs_of
from reports.entries import mean_entry, method_of
from reports.formatting import NONE, cell_address, count, difference_interval, megabytes, points, thousands
from reports.item_results import ItemResults
from reports.paper_table import best_of
from reports.provenance import code_versions
from reports.submissions import Submission
from reports.tables import Column, Table, TableEntry, row_of, table_of
from sweeps.status import in_words

NOBODY = "nobody yet"
SHARED = ("data", "partition", "model", "federation", "precision")  # parts of an experiment that an environment fixes
HEADS = (
    Column(name="Method", left=True),
    Column(name="Accuracy (%)", below="mean ± sd, n"),
    Column(name="To the reference", below="points, 95 % interval"),
    Column(name="MB up + down", below="per run"),
    Column(name="Local steps", below="per run"),
    Column(name="Wall time", below="per run"),
    Column(name="Trials", below="tuning"),
    Column(name="Trained by", left=True),
    Column(name="Trained again by", left=True),
    Column(name="Code", left=True),
)
WANTED_HEADS = ("Row", "Environment", "What it needs", "Why")


@dataclass(frozen=True, kw_only=True)
class BoardEnvironment:
    """An entry of board.toml."""

    name: str
    title: str
    about: str
    item: str
    profile: str
    reference: str
    setting: Mapping[str, Any]
    trial: bool = False

    def has(self, cell: Cell) -> bool:
        """Return whether the cell of its item is one of its rows."""
        return all(cell.setting.get(key) == value for key, value in self.setting.items()) and cell.role != "ladder"


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """One row: a cell of one party, with the accuracies of its finished runs by seed."""

    method: str
    values: Mapping[int, float]
    runs: Sequence[RunRecord]
    diverged: int
    trials: int | None  # None if not stated
    by: str
    verified: tuple[str, ...]  # each with the hardware and the number of runs
    href: str = ""
    competes: bool = True  # a supervised baseline does not

    @property
    def may_be_best(self) -> bool:
        return self.competes and len(self.values) >= INTERVAL_SEEDS


@functools.cache
def declared() -> tuple[tuple[BoardEnvironment, ...], tuple[Mapping[str, str], ...]]:
    """Return the environments and the wanted rows of board.toml. Raise ConfigError for a wrong entry."""
    file = tomllib.loads(Path(__file__).with_name("board.toml").read_text())
    environments = []
    for entry in file["environments"]:
        environments.append(from_plain(BoardEnvironment, {"setting": {}, **entry}, f"board.toml: {entry.get('name')}"))
    return tuple(environments), tuple(file["wanted"])


def shown_environments() -> list[BoardEnvironment]:
    """Return the environments with a table in this suite."""
    return [
        environment for environment in declared()[0] if environment.item in (*paper_items.ITEMS, *paper_items.VARIANTS)
    ]


def board_values(every: Sequence[ItemResults], submissions: Sequence[Submission]) -> dict[str, Any]:
    """Return the content of the page."""
    known = {(reported.item.name, reported.item.profile): reported for reported in every}
    parts = []
    for environment in shown_environments():
        reported = known.get((environment.item, environment.profile)) or _without_runs(environment)
        rows = rows_of_environment(environment, reported, submissions)
        if rows:
            table = board_table(environment, rows)
            parts.append(
                {"name": environment.name, "title": environment.title, "about": environment.about, "table": table}
            )
    return {"environments": parts, "wanted": wanted_table()}


def _without_runs(environment: BoardEnvironment) -> ItemResults:
    (item,) = items([environment.item], environment.profile)
    return ItemResults(item, {})


def rows_of_environment(
    environment: BoardEnvironment, reported: ItemResults, submissions: Sequence[Submission]
) -> list[BoardRow]:
    """Return this suite's rows with at least one finished run, and the rows of submissions; the best mean first."""
    results = [result for result in reported.results.values() if environment.has(result.cell)]
    rows = [_own_row(result) for result in results if result.n_finished]
    cells = [cell for cell in reported.item.cells if environment.has(cell)]
    keys = {environment_key(to_json(cell.experiment)) for cell in cells}
    example = next((cell.experiment for cell in cells if method_of(cell) == environment.reference), None)
    if example is not None:
        for submission in submissions:
            rows += _sent_rows(submission, keys, example)
    return sorted(rows, key=lambda row: (not row.competes, -_mean(row), row.method))


def _mean(row: BoardRow) -> float:
    return fmean(row.values.values()) if row.values else 0.0


def environment_key(experiment: Mapping[str, Any]) -> str:
    """Return the settings that an environment fixes, as text. Who has the labels is the method's business."""
    parts = {name: experiment.get(name) for name in SHARED}
    parts["data"] = {name: value for name, value in experiment["data"].items() if name != "label_setting"}
    return json.dumps(parts, sort_keys=True)


def key_of_record(record: RunRecord, example: Experiment) -> str | None:
    """Return `environment_key` of a stranger's record, with the method of `example` in place of the record's.

    Fields that are younger than the record get their defaults. Return None if the experiment cannot be read, for
    example because its network is the sender's.
    """
    method = to_json(example)["method"]
    data = {**record.experiment["data"], "label_setting": example.data.label_setting}
    try:
        read = from_record({**record.experiment, "method": method, "data": data})
    except ConfigError:
        return None
    return environment_key(to_json(read))


def _own_row(result: CellResult) -> BoardRow:
    again: dict[str, int] = {}
    for run in result.runs:
        for device in {copy.trained_by[1] for copy in run.copies}:
            again[device] = again.get(device, 0) + 1
    verified = [f"{OURS} on {device} ({count(number, 'run')})" for device, number in again.items()]
    finished = [run for run in result.runs if run.result]
    tuned = result.cell.setting.get("hyperparameters") == "tuned"
    return BoardRow(
        method=f"{method_of(result.cell)}{', tuned' if tuned else ''}",
        values=result.values,
        runs=finished,
        diverged=len(result.diverged),
        trials=result.cell.trials,
        by=OURS,
        verified=tuple(verified),
        href=cell_address(result),
        competes=result.cell.role != "bound",
    )


def _sent_rows(submission: Submission, keys: Collection[str], example: Experiment) -> list[BoardRow]:
    """Return the rows of a submission's cells in the environment with these keys."""
    bundle = submission.bundle
    rows = []
    for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1)):
        runs = [run for run in bundle.records if run.cell_key == key]
        if key_of_record(runs[0], example) not in keys:
            continue
        accuracies = {run.seed: run.selected(ACCURACY) for run in runs if run.status == "done"}
        values_by_seed = {seed: value for seed, value in accuracies.items() if value is not None}
        diverged = [run for run in runs if run.status == "diverged"]
        rows.append(
            BoardRow(
                method=label,
                values=values_by_seed,
                runs=runs,
                diverged=len(diverged),
                trials=bundle.card.get("trials"),
                by=bundle.card["by"] or "not stated",
                verified=_verified_by(submission, key),
                href="submitted/index.html",
            )
        )
    return rows


def _verified_by(submission: Submission, key: str) -> tuple[str, ...]:
    """Return a line on how many runs of the cell were trained again, by whom and on which hardware."""
    texts = []
    named: set[str] = set()
    for check in submission.verified:
        own = [name for name in check["runs"] if f"/{key}/" in name]
        named.update(own)
        if own:
            texts.append(f"{check['by']} on {check['hardware']} ({count(len(own), 'run')})")
    again, _ = submission.bundle.split_seeds(key, submission.retrained)
    if not named and again:
        texts.append(f"{OURS} ({count(len(again), 'run')})")
    return tuple(texts)


def board_table(environment: BoardEnvironment, rows: Sequence[BoardRow]) -> Table:
    """Return the table of an environment.

    The best row is in bold only if the interval of its difference to the second best is above zero.
    """
    competing = {f"{place}": row for place, row in enumerate(rows) if row.may_be_best}
    values = {name: row.values for name, row in competing.items()}
    best = best_of(values, {name for name, row in competing.items() if row.diverged})
    references = [row for row in rows if row.by == OURS and row.method == environment.reference]
    reference = references[0] if references else None
    entries = []
    for place, row in enumerate(rows):
        section = "compared" if row.competes else "bounds"
        entries.append(row_of(_entries(row, reference, is_best=f"{place}" == best), section))
    few = sum(len(row.values) < INTERVAL_SEEDS for row in rows)
    bold = "the best mean over common seeds, if the interval of its difference to the second is above zero"
    caption = f"{environment.title}: {environment.item}, profile {environment.profile}; test accuracy. "
    caption += f"Reference: {environment.reference}; differences are paired by seed. Bold: {bold}. "
    caption += (
        f"Below {INTERVAL_SEEDS} seeds there is no interval, and a row is never bold ({few} of {len(rows)} rows)."
    )
    if any(not row.competes for row in rows):
        caption += " The last rows are supervised baselines."
    return table_of(environment.name, caption, HEADS, entries, title=environment.title)


def _entries(row: BoardRow, reference: BoardRow | None, *, is_best: bool) -> tuple[TableEntry | str, ...]:
    seen = summary(row.values.values()) if row.values else None
    below = [f"n={len(row.values)}"] + ([f"{row.diverged} diverged"] if row.diverged else [])
    costs = costs_of(row.runs)
    sent = costs.get("bytes_up", 0.0) + costs.get("bytes_down", 0.0)
    steps = costs.get("local_steps", 0.0)
    seconds = fmean(float(run.result.get("wall_seconds", 0.0)) for run in row.runs)
    versions = code_versions(row.runs)
    code = next(iter(versions)) if len(versions) == 1 else count(len(versions), "version")
    return (
        TableEntry(text=row.method, href=row.href),
        mean_entry(seen, below=tuple(below), best=is_best),
        _difference_entry(row, reference),
        TableEntry(text=megabytes(sent), sort=sent),
        TableEntry(text=thousands(steps), sort=steps),
        TableEntry(text=in_words(seconds), sort=seconds),
        TableEntry(text="not stated" if row.trials is None else f"{row.trials}", sort=_or_last(row.trials)),
        row.by,
        TableEntry(text="; ".join(row.verified) or NOBODY, sort=-float(len(row.verified))),
        code,
    )


def _or_last(trials: int | None) -> float:
    return float("1e9") if trials is None else float(trials)


def _difference_entry(row: BoardRow, reference: BoardRow | None) -> TableEntry:
    if reference is None:
        return TableEntry(text=NONE)
    if row is reference:
        return TableEntry(text="reference", sort=0.0)
    difference = paired(row.values, reference.values)
    if difference is None:
        return TableEntry(text=NONE, below=("no common seed",))
    interval = difference_interval(ACCURACY, difference.interval) or "no interval"
    return TableEntry(text=points(difference.mean), below=(f"{interval}, n={difference.n}",), sort=difference.mean)


def wanted_table() -> Table:
    """Return the list of wanted rows."""
    titles = {environment.name: environment.title for environment in declared()[0]}
    rows = []
    for entry in declared()[1]:
        where = titles.get(entry["environment"], entry["environment"])
        rows.append((entry["row"], where, entry["needs"].replace("`", ""), entry["why"]))
    return table_of("wanted", "Wanted rows", WANTED_HEADS, rows, words=4)
