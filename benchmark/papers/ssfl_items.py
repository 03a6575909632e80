"""SSFL (arXiv:2008.11364): its tables and figures as items, cell by cell from `results/published/ssfl/`.

Beside every pair of grouping and FedAvg stands the control that the paper lacks. Cells that are `not_yet` are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from benchmark.experiment import Experiment
from benchmark.papers.item import ACCURACY, Cell, Item, Printed
from benchmark.papers.published import claims_of, read_published
from benchmark.papers.ssfl_scales import SCALES, T_OF_PROFILES, scaled_experiment
from benchmark.papers.ssfl_settings import EPOCHS, Setting, control_of, setting_of

NAMES = {"cifar10": "CIFAR-10", "svhn": "SVHN", "emnist_balanced": "EMNIST", "stl10": "STL-10"}
FEDAVG = ("FedAvg", "CRL with GN")  # what the paper calls grouping's counterpart: "FedAvg" and, in section 3, the other
CONTROL = "Control"
WORDS = ("data", "training", "setting")  # what a row says in words; the rest are numbers
SEEDS = {"demo": 3, "laptop": 5}
SELECTION = "Selection: the last round's model. Test data chose nothing."


def table(name: str, profile: str) -> Item:
    """The item of a transcribed table or figure under a profile. Raises ConfigError for an unknown profile.

    Cells that are trained on request alone (`also_quoted`: FedMatch's in Table 3) have the role "quoted".
    """
    published = read_published(f"ssfl/{name}")
    cells = list(_unique(_cells(published, profile)))
    scale = SCALES.get(profile)
    found = {setting_of(raw).data for raw in shown(published)}
    return Item(
        name=f"ssfl/{name}",
        title=published["title"] + (f" (stand-in: {scale.data})" if scale else ""),
        profile=profile,
        cells=(*cells, *controls(cells)),
        claims=claims_of(published, {data: data_name(data, profile) for data in found}),
        seeds=SEEDS.get(profile, published["seeds"]),
        notes=(*notes_of(published, profile), *_gaps(published), SELECTION),
        margin=published.get("margin"),
    )


def shown(published: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells of the item: all that some method of the suite can train."""
    return [raw for raw in published["cells"] if "not_yet" not in raw]


def data_name(data: str, profile: str) -> str:
    return SCALES[profile].data if profile in SCALES else NAMES[data]


def _cells(published: Mapping[str, Any], profile: str) -> Iterator[Cell]:
    for raw in shown(published):
        setting = setting_of(raw)
        words, numbers = _place(raw, published["rows"], profile)
        experiment = scaled_experiment(setting, profile, measured=published.get("measured", False))
        yield Cell(
            label="/".join([*words.values(), setting.method, *(f"{key}={value:g}" for key, value in numbers.items())]),
            setting={"method": setting.method, **words, **_shown(numbers, experiment, profile, setting)},
            experiment=experiment,
            published={ACCURACY: Printed(value=raw["value"])} if "value" in raw else {},
            role="quoted" if raw.get("also_quoted") else "published",
            note="; ".join(_notes(raw, setting, experiment)),
        )


def _place(raw: Mapping[str, Any], rows: Iterable[str], profile: str) -> tuple[dict[str, str], dict[str, float]]:
    """What the row says of a cell, in words and in the paper's numbers; E only where it is not the data set's own."""
    own = EPOCHS[raw["data"]]
    rows = [key for key in rows if key in raw and not (key == "E" and raw[key] == own)]
    words = {key: data_name(raw[key], profile) if key == "data" else str(raw[key]) for key in rows if key in WORDS}
    return words, {key: raw[key] for key in rows if key not in WORDS}


def _shown(
    numbers: Mapping[str, float], experiment: Experiment, profile: str, setting: Setting
) -> dict[str, str | float]:
    """The row's numbers as they are under the profile."""
    here = actual(experiment)
    shown: dict[str, str | float] = {key: here[key] for key in numbers if key in here}
    if "E" in numbers:
        longer = f"{setting.E / EPOCHS[setting.data]:g} x the rounds"
        shown["E"] = longer if profile in SCALES else numbers["E"]
    return shown


def actual(experiment: Experiment) -> dict[str, float]:
    """The environmental factors of an experiment, by the paper's letters."""
    federation = experiment.federation
    return {
        "R": experiment.partition.R_nominal or 0.0,
        "T": federation.T,
        "N_s": experiment.data.N_s,
        "K": federation.K,
        "C": federation.C,
    }


def _notes(raw: Mapping[str, Any], setting: Setting, experiment: Experiment) -> Iterator[str]:
    if raw.get("quoted"):
        yield f"the paper quotes its number from {raw['source']}"
    if setting.method == "FixMatch":
        return  # one holder of all images: K, C and T say nothing
    paper = {"T": setting.T, "N_s": setting.N_s, "K": setting.K, "C": setting.C}
    other = {key: value for key, value in paper.items() if actual(experiment)[key] != value}
    if other:
        yield "stands for " + ", ".join(f"{key} = {value}" for key, value in other.items())


def _unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each place once: Table 1 prints a column twice, and a stand-in takes the first data set's place."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.label, cell)
    return list(first.values())


def controls(cells: Iterable[Cell]) -> Iterator[Cell]:
    """The control of every grouping cell that has FedAvg beside it."""
    places = {cell.label: cell for cell in cells}
    for label, cell in places.items():
        parts = label.split("/")
        if "Grouping" not in parts:
            continue
        at = parts.index("Grouping")
        renamed = {name: "/".join([*parts[:at], name, *parts[at + 1 :]]) for name in (*FEDAVG, CONTROL)}
        if any(renamed[name] in places for name in FEDAVG):
            yield replace(
                cell,
                label=renamed[CONTROL],
                setting={**cell.setting, "method": CONTROL},
                experiment=control_of(cell.experiment),
                published={},
                role="control",
            )


def notes_of(published: Mapping[str, Any], profile: str) -> tuple[str, ...]:
    """For the foot of the table: what the paper leaves open, or what a reduced profile makes of its settings."""
    if profile not in SCALES:
        return tuple(published["notes"])
    scale = SCALES[profile]
    return (
        f"{scale.data} stands in for the paper's data sets; where it has more than one, the first one's settings are "
        "taken. N_s keeps its ratios, T its values, and a run its number of local steps: "
        f"{scale.rounds * T_OF_PROFILES}, whatever T.",
        f"K and C are the paper's times {scale.share:g}. K is capped at {scale.most_clients}, so that every client "
        f"holds 8 images, and C at {scale.largest_cohort}; where all clients take part, they still do. Groups: 2.",
        "A warm start, in which the server trains alone, comes first.",
    )


def _gaps(published: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"Left out: {published['not_yet']}.",) if "not_yet" in published else ()


def items() -> dict[str, Callable[[str], Item]]:
    """The items that come from their files alone, by name."""
    names = ("fig2", "fig3", "fig4", "fig5_left", "fig5_middle", "fig5_right", "figb1", "figc1")
    tables = ("tab1", "tab3", "tab4", "tab5", "tabd1", "tabe1", "tabf1", "tabg1", "tabh1", "tabi1", "tabj1")
    return {name: partial(table, name) for name in (*tables, *names)}
