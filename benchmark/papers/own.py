"""Build a custom table: a TOML file with rows and columns, and the experiment fields that each of them sets.

README.md of this folder describes its keys. Every cell starts from `from`, a cell of the suite
("ITEM:LABEL"), or from the default of `fssl run`. Then its row's fields apply, and then its
column's.
"""

import json
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.config import merge, nearest
from benchmark.errors import ConfigError
from benchmark.experiment import (
    Data,
    Experiment,
    Federation,
    LabelSettingError,
    fill_dependent_defaults,
    from_json,
    read_method,
    to_json,
)
from benchmark.fractions import is_fraction
from benchmark.methods.calls import COLUMNS, RESERVED_STARTS
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.registry import METHODS, check_known, method_name
from benchmark.papers.item import EQUAL_IN_ALL_RUNS, PILOTS, ROUNDS_TO, Cell, Claim, Item, ItemEntry
from benchmark.papers.paper import WORDS
from benchmark.papers.published import KEYS, OF_PAPERS, Line, TableFile, claims_of, read_table
from benchmark.papers.published_line import check_lines, note_of, published_numbers
from benchmark.papers.scale import AUGMENTATIONS
from benchmark.papers.table import SELECTIONS, item_from
from benchmark.papers.warm_start import check_reaches_clients, notes_on_budgets
from benchmark.plain import check_once, dotted_names

OWN = "mine"  # "mine/leaves" is the item of leaves.toml
SHORT = {"data": "data.name", "network": "model.network"}  # short names of fields with names as values
CLAIM = {"quote": "", "source": "ours", "least": 0.005}
SEEDS = 3

# The default of `fssl run`, on data that installs with the package: within a minute, clients without labels improve
# over the supervised baseline. FedSwitch as in the method comparison, untuned; beta is the value for R = .4.
DEFAULT = Experiment(
    data=Data(augmentation=AUGMENTATIONS["digits"]),
    method=FedSwitch(beta=0.42, batch_size=25, labelled_batch_size=25, server_batch_size=25, warm_start_rounds=15),
    federation=Federation(C=5, rounds=60),
)
# Metrics that all runs have, whatever their method. `test_own.py` compares them with the metrics of runs and
# verdicts.
MEASURED = re.compile(
    r"(test|validation)/(accuracy|loss|auroc|precision|recall|unknown_(auroc|fpr95))|local_steps"
    r"|time/((round|cpu)_seconds|cpu_seconds_per_round)|pseudo/(kept|accuracy|class_balance|unknown|candidates|unselected_accuracy|kl_(uniform|kept|true|ratio|log_ratio|gap))"
    r"|comm/(bytes_(up|down|kept)|sat_out|shared_images|millions)|aggregation/labelled_weight|diversity/members"
    r"|diversity/(gradient|delta)/l[12]/(squared|plain|released)/(clients|with_server)(_in_group)?"
)
OF_UNKNOWN = re.compile(r"((test|validation)/unknown_\w+|pseudo/unknown)")  # only if clients have unknown classes
EXAMPLES = ("test/accuracy", "test/loss", "test/auroc", "pseudo/kept", "pseudo/accuracy", "local_steps")
# Metrics that the suite's own methods report begin with one of these; a custom method may report any metric.
REPORTED = ("client", "server", "aggregation", "helpers", "feddb", "fedswitch", "proxyfl")
ROUNDED = 1e-4  # how far a sum of weights such as 0.333333 may be from 0
MOST = 0.5  # from this value on, a smallest effect size of a fraction was meant in points

GROUPS = tuple(f.name for f in dataclass_fields(Experiment) if f.name not in ("seed", "profile"))
CLAIM_KEYS = ("name", "quote", "contrast", "least", "main", "metric", "endpoint")
_NOT_OF_CELLS = {"seed": "write seeds = 3 at the top of the file", "profile": "type --profile demo"}

CellNamed = Callable[[str, str], Experiment]  # ("ITEM:LABEL", profile) -> its experiment


def read_own(path: str, profile: str, cell_named: CellNamed) -> Item:
    """Return the item of a custom file. Raise ConfigError that names the file and the entry."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if path in _reading:
        raise ConfigError(f"{path} starts from itself; let `from` name a cell of a different file")
    _reading.append(path)
    try:
        return _read_once(path, text, profile, cell_named)
    finally:
        _reading.remove(path)


def own_item(path: str, text: str, profile: str, cell_named: CellNamed, *, trusted: bool = True) -> Item:
    """Return the item of the text of a custom file. Raise ConfigError that names the file.

    With `trusted`, modules that the text names are imported; without it, as for a text from run
    records, they are not.
    """
    try:
        _check_top_level(tomllib.loads(text))
        file = read_table(text)
        for key in OF_PAPERS:
            if getattr(file, key):
                raise ConfigError(f"{key} is not allowed in a custom table; remove it")
        seeds = SEEDS if file.seeds is None else file.seeds
        if not 1 <= seeds <= len(PILOTS):
            raise ConfigError(f"seeds is {seeds}, but it must be 1 to 100; type --seeds N for confirmatory seeds")
        return _item(path, replace(file, seeds=seeds), profile, cell_named, trusted)
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


_read_once = cache(own_item)  # a grid asks for it at every combination
_reading: list[str] = []  # files that are being read, to detect a file that starts from itself


def _item(path: str, file: TableFile, profile: str, cell_named: CellNamed, trusted: bool) -> Item:
    rows, columns = file.rows, file.columns or {"": {}}
    for name, axis in (("rows", rows), ("columns", columns)):
        if not isinstance(axis, Mapping):
            raise ConfigError(
                f'{name} has the wrong form; write {name} = {{ Mine = {{ method = "my_module:MyMethod" }}, ... }}'
            )
    published = _published(file, rows, columns)
    cells = []
    for row, of_row in rows.items():
        for column, of_column in columns.items():
            line = published.pop((row, column), {})
            try:
                experiment = _experiment((file.fields, of_row, of_column), profile, cell_named, trusted)
            except LabelSettingError as error:
                needs = _needs(file, cell_named, profile)
                raise ConfigError(f"{_label(row, column)}: {error}; {_settings_for_all(needs)}") from None
            except ConfigError as error:
                raise ConfigError(f"{_label(row, column)}: {error}") from None
            entry = _entry(file, row, column, line, experiment.data.name)
            cells.append(Cell(**vars(entry), experiment=experiment, role="own"))
    _check_labels_differ(cells)
    selections = dict.fromkeys(SELECTIONS[cell.experiment.evaluation.selection] for cell in cells)
    name = f"{OWN}/{Path(path).stem}"
    shown = tuple(_entry(file, row, column, line) for (row, column), line in published.items())
    item = item_from(
        file,
        cells,
        claims_of({**CLAIM, **claim} for claim in file.claims),
        name=name,
        title=file.title or Path(path).stem,
        profile=profile,
        shown=shown,
        seeds=file.seeds,
        notes=(*file.notes, *selections, *notes_on_budgets(cells)),
        columns=("column",) if file.columns else (),
        claims_of=name,
        typed=path,
    )
    _check_metrics(item)
    for claim in item.claims:
        try:
            _check_claim(claim, item)
        except ConfigError as error:
            raise ConfigError(f"claim {claim.name!r}: {error}") from None
    return item


def _check_top_level(file: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the right place, for a key at the top of the file that belongs
    elsewhere.
    """
    for key, value in file.items():
        if key in KEYS:
            continue
        if key == "profile":
            raise ConfigError(f"{key} cannot be set in the file; {_NOT_OF_CELLS[key]}")
        if key in SHORT or key.partition(".")[0] in GROUPS:
            shown = f'"{key}"' if "." in key else key
            example = json.dumps(value) if isinstance(value, str | int | float) else "..."
            raise ConfigError(f"{key} is a field of the cells; write fields = {{ {shown} = {example} }}, or in a row")
        if key in CLAIM_KEYS:
            raise ConfigError(f"{key} belongs to a claim; write it below a line [[claims]]")


def _needs(file: TableFile, cell_named: CellNamed, profile: str) -> dict[str, frozenset[str]]:
    """Find the label settings that the method of each row can use, in all of its columns."""
    needs: dict[str, frozenset[str]] = {}
    for row, of_row in file.rows.items():
        for of_column in (file.columns or {"": {}}).values():
            _, plain, _ = _fields((file.fields, of_row, of_column), profile, cell_named)
            of_method = frozenset(read_method(plain["method"], "method").needs)
            needs[row] = needs.get(row, of_method) & of_method
    return needs


def _settings_for_all(needs: Mapping[str, frozenset[str]]) -> str:
    """Describe which label settings suit the methods of all rows, or which suit each row if none suits all."""
    if common := frozenset.intersection(*needs.values()):
        names = " or ".join(f'"data.label_setting" = "{name}"' for name in sorted(common))
        return f"for all rows of this table write {names} in fields"
    each = "; ".join(f"{row}: {', '.join(sorted(settings))}" for row, settings in needs.items())
    return f"no label setting suits all rows of this table ({each}), so that it has to be two tables"


def _label(row: str, column: str) -> str:
    return f"{row}/{column}" if column else row


def _published(
    file: TableFile, rows: Mapping[str, object], columns: Mapping[str, object]
) -> dict[tuple[str, str], Line]:
    """Return the published values by row and column.

    Raise ConfigError for a line of no cell, unless it is only shown (`not_yet`).
    """
    check_lines(replace(file, rows=(), columns=()), file.cells, {"column"})
    lines = {}
    for number, line in enumerate(file.cells):
        if "column" in line and not file.columns:
            raise ConfigError(f"cells[{number}] has a column, but the table has no columns; remove it")
        place = (str(line.get("method", "")), str(line.get("column", "")))
        for key, name, axis in (("method", place[0], rows), ("column", place[1], columns)):
            if name not in axis and not line.get("not_yet"):
                raise ConfigError(
                    f"cells[{number}].{key} is {name!r}, which the table does not have; {nearest(name, axis)} "
                    '(not_yet = "why" shows a value that nothing is trained for)'
                )
        if place in lines:
            raise ConfigError(f"cells[{number}] gives {_label(*place)!r} a second time; remove one of them")
        lines[place] = line
    return lines


def _entry(file: TableFile, row: str, column: str, line: Line, data: str = "") -> ItemEntry:
    """Build the entry of that row and column, with its published values. `data` is the data set
    that is trained on.
    """
    setting = {"method": row, "column": column} if column else {"method": row}
    published = published_numbers(file, line, runs=1)
    published_setting = {"data": WORDS.get(data, data)} if published and data else {}
    note = "; ".join(filter(None, (line.get("not_yet", ""), note_of(line))))
    return ItemEntry(
        label=_label(row, column), setting=setting, published=published, published_setting=published_setting, note=note
    )


def _check_labels_differ(cells: Sequence[Cell]) -> None:
    """Raise ConfigError if two cells have labels that look the same to a reader."""
    seen: dict[str, str] = {}
    for cell in cells:
        words = unicodedata.normalize("NFC", cell.label).replace("/", " / ").split()
        read = " ".join(words)
        if read in seen:
            raise ConfigError(f"two cells have the label {cell.label!r}; rename a row or a column")
        seen[read] = cell.label


def _check_metrics(item: Item) -> None:
    """Raise ConfigError for a metric that none of the cells measures."""
    drawn = () if item.drawing is None else item.drawing.metrics
    for metric in (*item.metrics, *drawn):
        if not any(measures(cell.experiment, metric) for cell in item.cells):
            raise ConfigError(f"metrics contains {metric!r}, which no cell measures; {_instead(metric)}")


def measures(experiment: Experiment, metric: str) -> bool:
    """Return whether a run of the experiment may have the metric."""
    if EQUAL_IN_ALL_RUNS.fullmatch(metric):
        return True
    start = "test/" if ROUNDS_TO.fullmatch(metric) else metric.partition("/")[0] + "/"
    if start in ("test/", "validation/") and (start == "validation/") != experiment.evaluation.validation:
        return False
    if metric.startswith("diversity/gradient/") and not experiment.evaluation.gradient_diversity_every:
        return False
    if OF_UNKNOWN.fullmatch(metric) and experiment.data.label_setting != "open":
        return False
    if ROUNDS_TO.fullmatch(metric) or MEASURED.fullmatch(metric):
        return True
    if metric in COLUMNS or metric.startswith(RESERVED_STARTS):
        return False
    return method_name(experiment.method) not in METHODS or metric.partition("/")[0] in REPORTED


def _instead(metric: str) -> str:
    """Return the metric to write in place of one that is not measured."""
    if OF_UNKNOWN.fullmatch(metric):
        return "set data.label_setting to open, since other settings have no unknown classes"
    if metric.startswith("diversity/gradient/") and MEASURED.fullmatch(metric):
        return "set evaluation.gradient_diversity_every"
    if MEASURED.fullmatch(metric) or ROUNDS_TO.fullmatch(metric):
        return "set evaluation.validation, which decides between test/ and validation/"
    return nearest(metric, EXAMPLES)


def _check_claim(claim: Claim, item: Item) -> None:
    """Raise ConfigError for a claim that compares nothing, or has numbers that make no sense."""
    for contrast in claim.contrasts:
        cells: dict[str, str] = {}
        for label, weight in contrast.items():
            if weight == 0:
                raise ConfigError(f"the weight of {label!r} is 0; leave the cell out, or give it a different weight")
            cell = item.cell(label)
            if not measures(cell.experiment, claim.metric):
                raise ConfigError(f"{label!r} does not measure {claim.metric!r}; {_instead(claim.metric)}")
            if (first := cells.setdefault(cell.cell_key, label)) != label:
                raise ConfigError(
                    f"{first!r} and {label!r} are the same cell, with the same settings; change a field of one of them"
                )
        if is_fraction(claim.metric) and abs(total := sum(contrast.values())) > ROUNDED:
            raise ConfigError(
                f"the weights add up to {total:g}, so that the claim compares {claim.metric} with nothing; let them "
                "add up to 0, such as 1 and -1"
            )
    if is_fraction(claim.metric) and claim.least >= MOST:
        raise ConfigError(
            f"least is {claim.least:g}, but {claim.metric} is a fraction; for {claim.least:g} points write "
            f"least = {claim.least / 100:g}"
        )
    if claim.form == "comparable" and not claim.least:
        raise ConfigError("least is 0, but no two cells are equivalent within 0; write least = 0.01")


def _experiment(parts: tuple[Mapping[str, Any], ...], profile: str, cell_named: CellNamed, trusted: bool) -> Experiment:
    """Return the cell that the last `from` names, with the fields of all parts in their order. Raise ConfigError."""
    start, plain, given = _fields(parts, profile, cell_named)
    if not trusted:  # no custom class is imported
        check_known(plain["method"]["kind"])
        check_known(plain["model"]["network"], "network")
    fill_dependent_defaults(plain, given)
    experiment = from_json(plain)
    if trusted:  # the text of a record is shown as it is
        check_reaches_clients(experiment, start)
    return experiment


def _fields(
    parts: tuple[Mapping[str, Any], ...], profile: str, cell_named: CellNamed
) -> tuple[Experiment, dict[str, Any], set[str]]:
    """Return the experiment that the last `from` names, its fields with the fields of all parts, and their names."""
    starts = [part["from"] for part in parts if "from" in part]
    start = cell_named(f"{starts[-1]}", profile) if starts else DEFAULT
    plain = to_json(start)
    given: set[str] = set()
    for part in parts:
        names = [SHORT.get(name, name) for name in dotted_names(part)]
        check_once(names)
        given.update(names)
        if wrong := given & {"seed", "profile"}:
            raise ConfigError(f"{min(wrong)}: cannot be set for a cell; {_NOT_OF_CELLS[min(wrong)]}")
        fields = {key: value for key, value in part.items() if key != "from"}
        merge(plain, {SHORT.get(k, k) if isinstance(v, str) else k: v for k, v in fields.items()})  # data = "mnist"
    return start, plain, given
