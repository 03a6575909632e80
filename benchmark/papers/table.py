"""From a transcribed table or figure to an `Item`: one way for all papers.

`results/published/PAPER/ITEM.toml` holds what is printed; the paper's file (`Paper`) turns a printed line into the
experiment behind it, and has the stand-ins of the reduced profiles. README.md of this folder has the keys of a file.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from benchmark.config import nearest
from benchmark.data.datasets import image_shape_of
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, to_json
from benchmark.methods.central import Central
from benchmark.models.build import Model, build, count_parameters, forward_flops
from benchmark.papers.beside import bounds
from benchmark.papers.item import ACCURACY, CONFIRMING, Cell, Claim, Item, Printed, Shown
from benchmark.papers.published import claims_of, drawing_of, read_published
from benchmark.papers.scale import FULL_SIZE, PROFILES, REDUCED, Scale, check_profile, scaled, tenth

Line = Mapping[str, Any]  # one cell of a file
Rule = Literal["paper", "released_code"]
Factor = str | int | float

# Keys of any line, beside the settings of its paper, the table's rows and columns, and its metrics:
# `value` of the first metric with its `spread` over runs; `quoted` from `source`, `also_quoted` and trained on request
# alone; `not_yet`, why nothing can be trained; `departs` from the `row` of settings; `block`, `mark` of the print.
LINE_KEYS = {
    *("label", "method", "value", "spread", "source", "quoted", "also_quoted", "not_yet"),
    *("note", "row", "departs", "block", "mark", "measured"),
}
WORDS = {  # as papers print them
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "emnist_balanced": "EMNIST",
    "stl10": "STL-10",
    "isic2018": "ISIC 2018",
    "wresnet28x2": "WResNet28x2",
    "resnet18": "ResNet18",
    "resnet9": "ResNet9",
    "fedavg_cnn": "CNN",
}
BY_THE_PRINT = "-printed"  # ends the name of an item under `--rule paper`
SELECTIONS = {
    "last": "Selection: the last round's model. Test data chose nothing.",
    "best_on_test": "Selection: the best round on the test set, as released: test data chose the round.",
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Another way to build a paper's items, each of them an item of its own."""

    suffix: str  # ends their names: "-printed" of "ssfl/tab2-printed"
    title: str  # in brackets behind an item's title
    note: str  # at the foot of their tables
    experiment: Callable[[Any], Experiment]  # a setting at the paper's scale
    profiles: tuple[str, ...] = PROFILES  # in which their runs differ from those of the paper's own items
    switches: bool = False  # whether PAPER/departures is built so, too
    named_by: str = ""  # a note of the paper's own items; {name} is the item that is built this way
    family: str = ""  # what manifests put behind the paper's name for the family of its claims
    confirms_from: int = CONFIRMING.start  # the first seed of its claims

    def of(self, built: Item) -> Item:
        """The item under its own name and title."""
        title, notes = f"{built.title} ({self.title})", (*built.notes, self.note)
        return replace(built, name=built.name + self.suffix, title=title, notes=notes)


def by_the_print(experiment: Callable[[Any], Experiment]) -> Variant:
    """The items by the print, where the released code contradicts it. Stand-ins have numbers of their own."""
    note = "By the print, where the released code contradicts it. The code of the printed numbers was another."
    return Variant(
        suffix=BY_THE_PRINT,
        title="by the print",
        note=note,
        experiment=experiment,
        profiles=FULL_SIZE,
        family=BY_THE_PRINT,
    )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What `table` has to know of a paper."""

    name: str
    setting: type[Any]  # a dataclass of the paper's file: what of a line makes its experiment
    experiment: Callable[[Any], Experiment]  # a setting at the paper's scale
    variants: tuple[Variant, ...] = ()
    scale: Callable[[Any, str], Scale]  # its stand-in under "demo" or "laptop"
    # A setting's values that are so usual in the paper that no label says them: {"E": 300}.
    usual: Callable[[Any], Mapping[str, Any]] = lambda setting: {}
    # Cells of ours beside an item's, made from them: controls, rungs of a ladder.
    beside: Callable[[str, Sequence[Cell]], Iterable[Cell]] = lambda name, cells: ()
    computed: Mapping[str, Callable[[Experiment], float | str]] = field(default_factory=dict)  # further columns
    # As FACTORS, of its own keys: they look at the setting, too.
    factors: Mapping[str, Callable[[Any, Experiment], Factor]] = field(default_factory=dict)
    bounded: bool = False  # whether `bounds` stand beside the cells of items that show accuracies
    changes: Mapping[str, Callable[[Experiment], Experiment]] = field(default_factory=dict)  # named by its switches
    seeds: Mapping[str, int] = field(default_factory=lambda: {"demo": 3, "laptop": 5})  # else the paper's number
    # The first seed of its claims; a later hundred where cells that were judged before were wrong.
    confirms_from: int = CONFIRMING.start

    @property
    def keys(self) -> set[str]:
        """Of a line, those of its setting."""
        return {f.name for f in fields(self.setting)}

    @property
    def printed(self) -> Callable[[Any], Experiment] | None:
        """A setting by the print alone, where `experiment` follows the released code that contradicts it."""
        return next((one.experiment for one in self.variants if one.suffix == BY_THE_PRINT), None)

    def built_by(self, variant: Variant) -> "Paper":
        return replace(self, experiment=variant.experiment, variants=(), confirms_from=variant.confirms_from)

    def variants_of(self, item: str) -> Iterator[str]:
        """Notes that name what the item is called where it is built otherwise."""
        return (one.named_by.format(name=f"{item}{one.suffix}") for one in self.variants if one.named_by)

    def setting_of(self, line: Line) -> Any:
        """What is not of the setting (value, row, notes) is left out."""
        return self.setting(**{key: value for key, value in line.items() if key in self.keys})


def item(paper: Paper, name: str, profile: str, variant: Variant | None = None) -> Item:
    """The item of that file under a profile. Raises ConfigError for an unknown profile or a damaged file."""
    check_profile(profile)
    if variant is not None:
        return variant.of(item(paper.built_by(variant), name, profile))
    file = read_published(f"{paper.name}/{name}")
    lines = [{"measured": file.get("measured", False), **line} for line in file["cells"]]
    _check_lines(paper, file, lines)
    trained = [line for line in lines if "not_yet" not in line]
    scales = [paper.scale(paper.setting_of(line), profile) if profile in REDUCED else None for line in trained]
    cells: dict[str, Cell] = {}  # a place that is printed twice, or that a stand-in makes equal, is there once
    for line, scale in zip(trained, scales, strict=True):
        cell = _cell(paper, file, line, profile, scale)
        cells.setdefault(cell.label, cell)
    stand_ins = list(dict.fromkeys(scale.title for scale in scales if scale))
    stand_in_notes = dict.fromkeys(note for scale in scales if scale for note in scale.notes)
    selections = dict.fromkeys(cell.experiment.evaluation.selection for cell in cells.values())
    pairs = zip(trained, scales, strict=True)
    data = {line["data"]: _word("data", line["data"], scale) for line, scale in pairs if "data" in line}
    all_cells = (*cells.values(), *paper.beside(name, tuple(cells.values())))
    if paper.bounded and file["metrics"][0] == ACCURACY and "cells_of" not in file:  # else bounded there
        all_cells = (*all_cells, *bounds(all_cells))
    claims = claims_of(file, data)
    shown = tuple(_shown(file, line) for line in lines if "not_yet" in line)
    _check_labels(f"{paper.name}/{name}", claims, [one.label for one in (*all_cells, *shown)])
    return Item(
        name=f"{paper.name}/{name}",
        title=file["title"] + (f" (stand-in: {', '.join(stand_ins)})" if stand_ins else ""),
        profile=profile,
        cells=all_cells,
        shown=shown,
        claims=claims,
        seeds=paper.seeds.get(profile, file["seeds"]),
        notes=(
            *(stand_in_notes if stand_ins else (*file["notes"], *_rule_notes(paper, trained))),
            *(SELECTIONS[selection] for selection in selections),
            *paper.variants_of(f"{paper.name}/{name}"),
        ),
        metrics=tuple(file["metrics"]),
        rows=tuple(file["rows"]),
        columns=tuple(file["columns"]),
        drawing=drawing_of(file),
        margin=file.get("margin"),
        confirms_from=paper.confirms_from,
    )


def items(paper: Paper, names: Iterable[str]) -> dict[str, Callable[..., Item]]:
    """The items of these files, for the catalogue."""
    return {name: partial(item, paper, name) for name in names}


def differences(paper: Paper, lines: Iterable[Line]) -> dict[str, list[tuple[Any, Any]]]:
    """Fields of the experiments that the print and the released code set differently: name with dots -> the pairs
    (released, printed) that occur. Empty for a paper with one rule."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    if paper.printed is None:
        return found
    for line in lines:
        setting = paper.setting_of(line)
        released, printed = _flat(to_json(paper.experiment(setting))), _flat(to_json(paper.printed(setting)))
        for name in (*released, *(name for name in printed if name not in released)):
            pair = released.get(name), printed.get(name)
            if pair[0] != pair[1] and pair not in found.setdefault(name, []):
                found[name].append(pair)
    return {name: pairs for name, pairs in found.items() if pairs}


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    parts = [_flat(part, f"{name}.{key}" if name else key) for key, part in value.items()]
    return {key: part for found in parts for key, part in found.items()}


def _rule_notes(paper: Paper, lines: Iterable[Line]) -> tuple[str, ...]:
    """What is as released where it contradicts the print."""
    fields = [
        f"{name} " + ", ".join(f"{released} (printed: {printed})" for released, printed in pairs)
        for name, pairs in differences(paper, lines).items()
        if not name.startswith("evaluation.")
    ]
    return (
        (f"As released where it contradicts the print: {'; '.join(fields)}. --rule paper runs the print.",)
        if fields
        else ()
    )


def _check_lines(paper: Paper, file: Mapping[str, Any], lines: Iterable[Line]) -> None:
    short = {metric.rpartition("/")[2] for metric in file["metrics"]}
    known = LINE_KEYS | paper.keys | short | {*file["rows"], *file["columns"]}
    for line in lines:
        for key in line:
            if key not in known:
                raise ConfigError(f"{paper.name}/{file['item']}: unknown key {key!r} of a cell; {nearest(key, known)}")


def _check_labels(item: str, claims: Iterable[Claim], labels: Sequence[str]) -> None:
    for claim in claims:
        for label in claim.labels:
            if label not in labels:
                raise ConfigError(f"{item}: claim {claim.name!r}: no cell {label!r}; {nearest(label, labels)}")


def _cell(paper: Paper, file: Mapping[str, Any], line: Line, profile: str, scale: Scale | None) -> Cell:
    full = paper.experiment(paper.setting_of(line))
    if scale:
        experiment = scaled(full, scale, profile)
    else:
        experiment = tenth(full) if profile == "gpu" else replace(full, profile=profile)
    return Cell(
        label=_label(paper, file, line, scale),
        setting=_setting(paper, file, line, scale, _factors(paper, line, experiment)),
        experiment=experiment,
        published=_printed(file, line),
        computed={name: {**COMPUTED, **paper.computed}[name](experiment) for name in file.get("computed", ())},
        role=_role(file, line),
        note="; ".join(_notes(paper, file, line, experiment)),
    )


def _role(file: Mapping[str, Any], line: Line) -> Literal["published", "quoted", "partition"]:
    if file.get("figure", {}).get("kind") == "class_counts":
        return "partition"
    return "quoted" if line.get("also_quoted") else "published"


def _shown(file: Mapping[str, Any], line: Line) -> Shown:
    """A line that nothing is trained for."""
    keys = [key for key in (*file["rows"], *file["columns"]) if key in line]
    label = _named(line, None) or "/".join(str(line[key]) for key in keys)
    setting = {key: _word(key, line[key], None) for key in ("method", *keys)}
    return Shown(label=label, setting=setting, published=_printed(file, line), note=line["not_yet"])


def _place(paper: Paper, file: Mapping[str, Any], line: Line) -> dict[str, Any]:
    """What rows and columns say of a cell besides its method, as printed."""
    usual = paper.usual(paper.setting_of(line))
    keys = [key for key in (*file["rows"], *file["columns"]) if key in line and key != "method"]
    return {key: line[key] for key in keys if line[key] != usual.get(key)}


def _label(paper: Paper, file: Mapping[str, Any], line: Line, scale: Scale | None) -> str:
    """Words, method and numbers of the print: "SVHN/Grouping/K=30/C=10"; or as the line has it."""
    place = _place(paper, file, line)
    words = [_word(key, value, scale) for key, value in place.items() if isinstance(value, str)]
    numbers = [f"{key}={value:g}" for key, value in place.items() if not isinstance(value, str)]
    return _named(line, scale) or "/".join([*words, line["method"], *numbers])


def _named(line: Line, scale: Scale | None) -> str:
    """The line's own label, "{data}" in it standing for the data set; empty where it has none."""
    return str(line.get("label", "")).replace("{data}", str(_word("data", line.get("data", ""), scale)))


def _setting(
    paper: Paper, file: Mapping[str, Any], line: Line, scale: Scale | None, here: Mapping[str, Factor]
) -> dict[str, Factor]:
    """What rows and columns say, with the factors that run under this profile."""
    place = _place(paper, file, line)
    return {"method": line["method"]} | {key: here.get(key, _word(key, value, scale)) for key, value in place.items()}


def _word(key: str, value: Any, scale: Scale | None) -> Any:
    if key == "data" and scale:
        return scale.title
    return WORDS.get(value, value)


# How an experiment reads by the papers' letters and words: what runs, whatever is printed.
FACTORS: Mapping[str, Callable[[Experiment], Factor]] = {
    "R": lambda e: e.partition.R_nominal or 0.0,
    "T": lambda e: e.federation.T,
    "N_s": lambda e: e.data.N_s,
    "K": lambda e: e.federation.K,
    "C": lambda e: e.federation.C,
    "rounds": lambda e: e.federation.rounds,
    "network": lambda e: WORDS.get(e.model.network, e.model.network),
}


def _factors(paper: Paper, line: Line, experiment: Experiment) -> dict[str, Factor]:
    setting = paper.setting_of(line)
    own = {key: read(setting, experiment) for key, read in paper.factors.items()}
    return {key: read(experiment) for key, read in FACTORS.items()} | own


def _printed(file: Mapping[str, Any], line: Line) -> dict[str, Printed]:
    """By metric: `value` is the first one's; others, and it, go by the last part of their name ("auroc = 94.2")."""
    first, runs = file["metrics"][0], file["seeds"]
    keys = {metric: metric.rpartition("/")[2] for metric in file["metrics"]}
    values = {metric: line[key] for metric, key in keys.items() if key in line}
    if "value" in line:
        values = {first: line["value"], **values}
    spread = {first: line.get("spread")}
    return {metric: Printed(value=v, spread=spread.get(metric), runs=runs) for metric, v in values.items()}


def _notes(paper: Paper, file: Mapping[str, Any], line: Line, experiment: Experiment) -> Iterator[str]:
    if line.get("note"):
        yield line["note"]
    if line.get("quoted"):
        yield f"the paper quotes its number from {line['source']}"
    here = _factors(paper, line, experiment)
    # One holder of all images: K, C and T say nothing.
    always = ("N_s",) if isinstance(experiment.method, Central) else ("T", "N_s", "K", "C")
    keys = dict.fromkeys((*always, *_place(paper, file, line)))
    other = {key: line[key] for key in keys if key in line and key in here and here[key] != line[key]}
    if other:
        yield "printed: " + ", ".join(f"{key} = {value}" for key, value in other.items())


@functools.cache
def _parameters(model: Model, data: str) -> int:
    return count_parameters(build(model, *image_shape_of(data), seed=0))


@functools.cache
def _flops(model: Model, data: str) -> int:
    shape, classes = image_shape_of(data)
    return forward_flops(build(model, shape, classes, seed=0), shape)


# Columns that need no run, of every paper.
COMPUTED: Mapping[str, Callable[[Experiment], float | str]] = {
    "parameters": lambda e: _parameters(e.model, e.data.name),
    "MFLOP": lambda e: _flops(e.model, e.data.name) / 1e6,  # of one image; 2 a multiplication with its addition
    "MB": lambda e: 4 * _parameters(e.model, e.data.name) / 2**20,  # of one model sent, float32
}
