"""An item of one's own: a TOML file with rows, columns, and the fields of an experiment that each of them sets.

README.md of this folder has its keys. Every cell begins with `from`, a cell of the suite's ("ITEM:LABEL"), or with what
`fssl run` begins with; its row's fields come next, then its column's.
"""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.config import merge, quoted
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Experiment, Federation, follow, from_json, to_json
from benchmark.methods.catalogue import check_known
from benchmark.methods.fedswitch import FedSwitch
from benchmark.papers.item import ACCURACY, PILOTS, Cell, Item
from benchmark.papers.published import check_keys, claims_of, drawing_of
from benchmark.papers.scale import AUGMENTATIONS
from benchmark.papers.table import SELECTIONS, check_labels
from benchmark.plain import check_once, dotted_names

OWN = "mine"  # "mine/leaves" is the item of leaves.toml
KINDS = {  # key of a file -> what it holds
    **{"title": str, "from": str, "seeds": int, "rows": dict, "columns": dict, "fields": dict, "figure": dict},
    **{"metrics": list, "notes": list, "claims": list},
}
ENTRIES = {"metrics": str, "notes": str, "claims": dict}  # what is in its lists
WORDS = {"data": "data.name", "network": "model.network"}  # short names of fields whose value is a name
CLAIM = {"quote": "", "source": "ours", "least": 0.005}

# What `fssl run` begins with, on data that installs with the package: clients without labels gain over labels alone in
# a minute. FedSwitch as the arena has it untuned; beta by what R = .4 gives.
DEFAULT = Experiment(
    data=Data(augmentation=AUGMENTATIONS["digits"]),
    method=FedSwitch(beta=0.42, batch_size=25, labelled_batch_size=25, server_batch_size=25, warm_start_rounds=15),
    federation=Federation(C=5, rounds=60),
)
CellNamed = Callable[[str, str], Experiment]  # ("ITEM:LABEL", profile) -> its experiment


def read_own(path: str, profile: str, cell_named: CellNamed) -> Item:
    """The item of the user's file. Raises ConfigError that names the file and the entry."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if path in _reading:
        raise ConfigError(f"{path} begins with itself; let `from` name a cell of another file")
    _reading.append(path)
    try:
        return _read_once(path, text, profile, cell_named)
    finally:
        _reading.remove(path)


def own_item(path: str, text: str, profile: str, cell_named: CellNamed, *, trusted: bool = True) -> Item:
    """`trusted`: modules that the text names are imported; those of a text out of records are not."""
    try:
        file = tomllib.loads(text)
        check_keys("item", file, set(KINDS))
        for key, value in file.items():
            entries = value if isinstance(value, list) else ()
            if not (isinstance(value, KINDS[key]) and all(isinstance(entry, ENTRIES[key]) for entry in entries)):
                raise ConfigError(f"{key}: {quoted(value)} is not what it holds; see benchmark/papers/README.md")
        if (seeds := file.get("seeds", 3)) is True or not 1 <= seeds <= len(PILOTS):
            raise ConfigError(f"seeds: {seeds}; choose 1 to 100; --seeds N has those that judge claims")
        return _item(path, file, profile, cell_named, trusted)
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from None


_read_once = cache(own_item)  # a grid asks for it at every combination
_reading: list[str] = []  # files whose cells are asked for


def _item(path: str, file: Mapping[str, Any], profile: str, cell_named: CellNamed, trusted: bool) -> Item:
    file = {**file, "paper": OWN, "item": Path(path).stem}  # what messages name
    rows, columns = file.get("rows"), file.get("columns", {"": {}})
    for name, table in (("rows", rows), ("columns", columns)):
        if not isinstance(table, dict) or not table or not all(isinstance(entry, dict) for entry in table.values()):
            raise ConfigError(f'{name}: write {name} = {{ Mine = {{ method = "my_module:MyMethod" }}, ... }}')
    cells = []
    for row, of_row in rows.items() if rows else ():
        for column, of_column in columns.items():
            label = f"{row}/{column}" if column else row
            try:
                parts = ({"from": file["from"]} if "from" in file else {}, file.get("fields", {}), of_row, of_column)
                experiment = _experiment(parts, profile, cell_named, trusted)
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from None
            setting = {"method": row, "column": column} if column else {"method": row}
            cells.append(Cell(label=label, setting=setting, experiment=experiment))
    selections = dict.fromkeys(SELECTIONS[cell.experiment.evaluation.selection] for cell in cells)
    name = f"{OWN}/{Path(path).stem}"
    claims = claims_of({**file, "claims": [{**CLAIM, **claim} for claim in file.get("claims", ())]})
    check_labels("claims", claims, [cell.label for cell in cells])
    return Item(
        name=name,
        title=file.get("title", Path(path).stem),
        profile=profile,
        cells=tuple(cells),
        claims=claims,
        seeds=file.get("seeds", 3),
        notes=(*file.get("notes", ()), *selections),
        metrics=tuple(file.get("metrics", (ACCURACY,))),
        columns=("column",) if "columns" in file else (),
        drawing=drawing_of(file),
        claims_of=name,
        typed=path,
    )


def _experiment(parts: tuple[Mapping[str, Any], ...], profile: str, cell_named: CellNamed, trusted: bool) -> Experiment:
    """What the last `from` names, with the fields of all parts in their order."""
    starts = [part["from"] for part in parts if "from" in part]
    plain = to_json(cell_named(f"{starts[-1]}", profile) if starts else DEFAULT)
    given: set[str] = set()
    for part in parts:
        names = [WORDS.get(name, name) for name in dotted_names(part)]
        check_once(names)
        given.update(names)
        if wrong := given & {"seed", "profile"}:
            write = {"seed": "write seeds = 3 at the top of the file", "profile": "type --profile demo"}
            raise ConfigError(f"{min(wrong)}: cannot be set for a cell; {write[min(wrong)]}")
        fields = {key: value for key, value in part.items() if key != "from"}
        merge(plain, {WORDS.get(k, k) if isinstance(v, str) else k: v for k, v in fields.items()})  # data = "mnist"
    if not trusted:  # no class of the user's own is imported
        check_known(plain["method"]["kind"])
        check_known(plain["model"]["network"], "network")
    follow(plain, given)
    return from_json(plain)
