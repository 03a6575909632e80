"""What explains SSFL's results: the server's weight, and gradient diversity once that weight is held fixed.

Two questions that the paper leaves open. First: of what grouping gains on FedAvg, how much does FedAvg gain that gives
the server the weight it has inside a group (the control)? Second: over all cells, does a cell of larger gradient
diversity have a lower accuracy, also among cells in which the server weighs the same?
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.ssfl import SSFL
from benchmark.papers.census import unmeasured
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect
from benchmark.verdicts.statistics import Paired, paired
from reports.association import Association, Values, associated, partial_spearman, ratio_interval, spearman
from reports.cells import grid
from reports.figures import DIVERSITY

GRADIENTS = "diversity/gradient/l2/squared/clients"  # of exact gradients, where they were measured
MEASURES = (DIVERSITY, GRADIENTS)
Way: TypeAlias = Literal["FedAvg", "Control", "Grouping"]
FEDAVG = ("FedAvg", "CRL with GN")  # what grouping's counterpart is called in tables
TOLD_APART = 1e-9


@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell: means over its finished seeds. Cells that only measure more on the way are one."""

    name: str  # "ssfl/tab2: Grouping/full", the first item that has it
    way: Way
    setting: str  # what it shares with its counterparts: all but the averaging
    data: str
    labelled: bool  # clients train on labels, too (supervised bounds)
    server_weight: float  # share of the server in the average
    accuracy: float  # fraction, after the last round
    diversity: Mapping[str, float]  # of the median round, by measure; absent where no round measured it
    n: int  # finished seeds
    runs: Mapping[int, tuple[float, float | None]]  # seed -> accuracy, median diversity of local updates


def server_weight(experiment: Experiment) -> float | None:
    """The server's share of the averaged model; None where no server trains, or the method is none of SSFL's."""
    method = experiment.method
    if not isinstance(method, SSFL) or experiment.data.label_setting not in ("server", "everywhere"):
        return None
    if method.averaging.server_weight is not None:
        return float(method.averaging.server_weight)
    sizes = method.averaging.group_sizes(experiment.federation.C)
    return statistics.fmean(1 / (size + 1) for size in sizes)


def points_of(results: Iterable[tuple[Item, Records]]) -> list[Point]:
    """The cells of these items that have a finished run and a server's weight, each once."""
    names: dict[str, tuple[str, Experiment]] = {}
    runs: dict[str, dict[int, list[RunRecord]]] = {}
    for item, records in results:
        for cell in item.cells:
            key = unmeasured(cell.experiment)
            names.setdefault(key, (f"{item.name}: {cell.label}", cell.experiment))
            for seed, record in records.get(cell.cell_key, {}).items():
                if record.status == "done" and record.selected(ACCURACY) is not None:
                    runs.setdefault(key, {}).setdefault(seed, []).append(record)
    found = (_point(*names[key], seeds) for key, seeds in runs.items())
    return [point for point in found if point is not None]


def _point(name: str, experiment: Experiment, seeds: Mapping[int, Sequence[RunRecord]]) -> Point | None:
    weight = server_weight(experiment)
    if weight is None:
        return None
    averaging = experiment.method.averaging
    way: Way = "Grouping" if isinstance(averaging, Grouping) else "FedAvg" if _plain(averaging) else "Control"
    alone = replace(experiment, method=replace(experiment.method, averaging=FedAvg()), evaluation=Evaluation())
    each = {seed: (_accuracy(records), _median(records, DIVERSITY)) for seed, records in sorted(seeds.items())}
    medians = {measure: [_median(records, measure) for records in seeds.values()] for measure in MEASURES}
    return Point(
        name=name,
        way=way,
        setting=alone.cell_key,
        data=experiment.data.name,
        labelled=experiment.data.label_setting == "everywhere",
        server_weight=weight,
        accuracy=statistics.fmean(accuracy for accuracy, _ in each.values()),
        diversity={
            measure: statistics.fmean(known)
            for measure, values in medians.items()
            if (known := [value for value in values if value is not None])
        },
        n=len(each),
        runs=each,
    )


def _plain(averaging: FedAvg) -> bool:
    return averaging.server_weight is None


def _accuracy(records: Sequence[RunRecord]) -> float:
    return float(next(value for record in records if (value := record.selected(ACCURACY)) is not None))


def _median(records: Sequence[RunRecord], measure: str) -> float | None:
    """Of the rounds that measured it: early rounds, in which next to nothing moves, must not decide."""
    values = [float(line[measure]) for record in records for line in record.rounds if line.get(measure) is not None]
    return statistics.median(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Rank correlations of one measure of diversity with accuracy. Ranks are taken within each data set."""

    measure: str
    plain: Association
    held: Association  # with the server's weight held fixed
    weight: Association  # of the server's weight with accuracy, with diversity held fixed
    points: tuple[Point, ...]


def explained(points: Sequence[Point], measure: str) -> Explained:
    """Over the cells that measured it; clusters are the settings, whose cells share data and seeds."""
    chosen = tuple(point for point in points if measure in point.diversity)
    columns = {
        "diversity": [point.diversity[measure] for point in chosen],
        "accuracy": [point.accuracy for point in chosen],
        "weight": [point.server_weight for point in chosen],
    }
    ranked = {name: _within([point.data for point in chosen], values) for name, values in columns.items()}
    clusters = [point.setting for point in chosen]

    def plain(table: Mapping[str, Values]) -> float | None:
        return spearman(table["diversity"], table["accuracy"])

    def held(table: Mapping[str, Values]) -> float | None:
        return partial_spearman(table["diversity"], table["accuracy"], table["weight"])

    def weight(table: Mapping[str, Values]) -> float | None:
        return partial_spearman(table["weight"], table["accuracy"], table["diversity"])

    return Explained(
        measure=measure,
        plain=associated(ranked, clusters, plain),
        held=associated(ranked, clusters, held),
        weight=associated(ranked, clusters, weight),
        points=chosen,
    )


def _within(data: Sequence[str], values: Sequence[float]) -> list[float]:
    """The share of its data set's cells that lie below a cell, ties counted half: data sets are not compared."""
    return [
        statistics.fmean(
            (values[j] < value) + (values[j] == value) / 2 for j in range(len(values)) if data[j] == data[i]
        )
        for i, value in enumerate(values)
    ]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What grouping gains on FedAvg in one setting, and how much of it the server's weight alone gives; fractions."""

    name: str
    whole: Paired  # grouping - FedAvg
    by_weight: Paired  # control - FedAvg
    rest: Paired  # grouping - control
    share: tuple[float, tuple[float, float]] | None  # by_weight / whole; None where the gain is not told from none


def gain(name: str, values: Mapping[Way, Mapping[int, float]]) -> Gain | None:
    """`values`: seed -> accuracy of each way. Over the seeds that all three have; None without one."""
    seeds = sorted(set.intersection(*(set(values[way]) for way in ("FedAvg", "Control", "Grouping"))))
    each: dict[Way, dict[int, float]] = {way: {seed: found[seed] for seed in seeds} for way, found in values.items()}
    whole = paired(each["Grouping"], each["FedAvg"])
    by_weight, rest = paired(each["Control"], each["FedAvg"]), paired(each["Grouping"], each["Control"])
    if whole is None or by_weight is None or rest is None:
        return None
    top = [each["Control"][seed] - each["FedAvg"][seed] for seed in seeds]
    bottom = [each["Grouping"][seed] - each["FedAvg"][seed] for seed in seeds]
    share = ratio_interval(top, bottom) if whole.interval is not None and whole.interval[0] > 0 else None
    return Gain(name=name, whole=whole, by_weight=by_weight, rest=rest, share=share)


def gains_of(item: Item, records: Records) -> list[Gain]:
    """One for each row of the item's table that has FedAvg, the control and grouping, with finished runs of each."""
    cells = grid(collect(item, records).values())
    found = [_row_gain(row.name or "all", row.results) for row in cells.rows] if cells else []
    return [one for one in found if one is not None]


def _row_gain(name: str, results: Mapping[str, CellResult]) -> Gain | None:
    plain = next((results[method] for method in FEDAVG if method in results), None)
    if plain is None or "Control" not in results or "Grouping" not in results:
        return None
    return gain(
        name,
        {"FedAvg": plain.values, "Control": results["Control"].values, "Grouping": results["Grouping"].values},
    )


def gains_over(points: Sequence[Point]) -> list[Gain]:
    """One for each setting without labels at the clients that has all three ways."""
    settings: dict[str, list[Point]] = {}
    for point in (point for point in points if not point.labelled):
        settings.setdefault(point.setting, []).append(point)
    found = []
    for members in settings.values():
        for grouping in (point for point in members if point.way == "Grouping"):
            ways = {"Grouping": grouping, **_counterparts(grouping, members)}
            if len(ways) == 3:
                values: dict[Way, dict[int, float]] = {
                    way: {seed: accuracy for seed, (accuracy, _) in ways[way].runs.items()}
                    for way in ("FedAvg", "Control", "Grouping")
                }
                found.append(gain(grouping.name, values))
    return [one for one in found if one is not None]


def _counterparts(grouping: Point, members: Sequence[Point]) -> dict[str, Point]:
    """FedAvg of the setting, and the control of that grouping."""
    found: dict[str, Point] = {point.way: point for point in members if point.way == "FedAvg"}
    for point in members:
        if point.way == "Control" and abs(point.server_weight - grouping.server_weight) < TOLD_APART:
            found["Control"] = point
    return found


@dataclass(frozen=True, kw_only=True)
class Twin:
    """Grouping less its control, at the same server's weight and setting: means over the seeds of both."""

    name: str
    diversity: float
    accuracy: float


def twins(points: Sequence[Point]) -> list[Twin]:
    """Every grouping cell with a control of its setting and weight, where both measured local updates' diversity."""
    found = []
    for grouping in (point for point in points if point.way == "Grouping"):
        members = [point for point in points if point.setting == grouping.setting]
        control = _counterparts(grouping, members).get("Control")
        if control is None:
            continue
        pairs = [(grouping.runs[seed], control.runs[seed]) for seed in grouping.runs if seed in control.runs]
        known = [(a[0] - b[0], a[1] - b[1]) for a, b in pairs if a[1] is not None and b[1] is not None]
        if known:
            accuracy, diversity = (statistics.fmean(column) for column in zip(*known, strict=True))
            found.append(Twin(name=grouping.name, diversity=diversity, accuracy=accuracy))
    return found
