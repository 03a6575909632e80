"""SSFL's own questions: does the server's weight explain grouping's gain, and does gradient diversity predict accuracy?

The paper holds that grouping helps because it lowers gradient diversity. Inside a group the server also weighs more.
The control is FedAvg whose server has that weight without any group. Cells that differ only in how the server averages
share data, partition and seeds, so that bootstrap intervals draw whole settings.

Legend: N cells, B bootstrap samples.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.ssfl import SSFL
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, Records, collect, counted
from benchmark.verdicts.statistics import LEVEL, Paired, paired, summary
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, count, percent, points, points_interval
from reports.paper_table import grid, paired_entry, setting_text
from reports.style import looks
from reports.tables import Column, Entry, Row, Table

Values: TypeAlias = npt.NDArray[np.float64]
Way: TypeAlias = Literal["FedAvg", "Control", "Grouping"]
WAYS: tuple[Way, ...] = ("FedAvg", "Control", "Grouping")
PLAIN = ("FedAvg", "CRL with GN")  # what grouping's counterpart is called in tables
MEASURES = {
    "diversity/delta/l2/squared/clients": "diversity of the local updates",
    "diversity/gradient/l2/squared/clients": "diversity of exact gradients",
}
SAMPLES, SEED = 2000, 20080
FEWEST_CLUSTERS = 8  # a percentile interval over fewer says little
MOST_UNDEFINED = 0.05  # share of samples without a correlation, above which there is no interval
WEAK = 0.3  # an interval within +-this leaves room for a weak association only
NO_PROOF = "That is an association, not a proof."
TITLE = "What explains the claims"
LEAD = (
    "The paper holds that grouping helps because it lowers gradient diversity. Inside a group the server also weighs "
    "more. Here FedAvg gets that weight without any group (the control), and diversity is set against accuracy among "
    "cells of equal weight."
)
SCATTER_CAPTION = (
    "Each dot is a cell: final accuracy against median-round diversity, averaged over seeds. A grey line joins "
    "grouping to its control, which has its server's weight. Left: the accuracy axis is logarithmic in the error, "
    "not linear."
)
CORRELATIONS_CAPTION = (
    "Partial Spearman correlations: diversity, controlling for server weight; and server weight, controlling for "
    "diversity. Ranks within each data set; 95 % bootstrap intervals over settings. Settings differ in more than the "
    "server's weight: an association here need not be a cause."
)
GAINS_CAPTION = (
    "Whole gain: grouping - FedAvg; by the server's weight: control - FedAvg; the rest: grouping - control. Points of "
    "accuracy, paired by seed, with 95 % intervals. The share has Fieller's interval, and is given where the gain's "
    "interval lies above zero."
)


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
    diversity: Mapping[str, float]  # of the median measured round, by measure
    runs: Mapping[int, tuple[float, float | None]]  # seed -> accuracy, median diversity of local updates


def server_weight(experiment: Experiment) -> float | None:
    """The server's share of the averaged model; None where no server trains, or the method is another's."""
    method = experiment.method
    if not isinstance(method, SSFL) or experiment.data.label_setting not in ("server", "everywhere"):
        return None
    if method.averaging.server_weight is not None:
        return float(method.averaging.server_weight)
    return statistics.fmean(1 / (size + 1) for size in method.averaging.group_sizes(experiment.federation.C))


def points_of(results: Iterable[tuple[Item, Records]]) -> list[Point]:
    """The cells of these items that have a finished run and a server's weight, each once."""
    names: dict[str, tuple[str, Experiment]] = {}
    runs: dict[str, dict[int, list[RunRecord]]] = {}
    for item, records in results:
        for cell in item.cells:
            key = cell.cell_key
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
    way: Way = "Grouping" if isinstance(averaging, Grouping) else "FedAvg"
    if way == "FedAvg" and averaging.server_weight is not None:
        way = "Control"
    alone = replace(experiment, method=replace(experiment.method, averaging=FedAvg()), evaluation=Evaluation())
    accuracy = {
        seed: next(v for r in records if (v := r.selected(ACCURACY)) is not None) for seed, records in seeds.items()
    }
    medians = {measure: {seed: _median(records, measure) for seed, records in seeds.items()} for measure in MEASURES}
    known = {name: [v for v in found.values() if v is not None] for name, found in medians.items()}
    updates = medians[next(iter(MEASURES))]
    return Point(
        name=name,
        way=way,
        setting=alone.cell_key,
        data=experiment.data.name,
        labelled=experiment.data.label_setting == "everywhere",
        server_weight=weight,
        accuracy=statistics.fmean(accuracy.values()),
        diversity={measure: statistics.fmean(values) for measure, values in known.items() if values},
        runs={seed: (float(accuracy[seed]), updates[seed]) for seed in sorted(seeds)},
    )


def _median(records: Sequence[RunRecord], measure: str) -> float | None:
    """Of the rounds that measured it: early rounds, in which next to nothing moves, must not decide."""
    values = [value for record in records if (value := record.median(measure)) is not None]
    return statistics.fmean(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Association:
    """A rank correlation in [-1, 1]; None where a quantity does not vary. No interval over too few settings."""

    estimate: float | None
    interval: tuple[float, float] | None
    n: int  # cells
    clusters: int  # settings

    def __str__(self) -> str:
        """ "-0.41 [-0.63, -0.12]"."""
        if self.estimate is None:
            return "not defined"
        if self.interval is None:
            return f"{self.estimate:+.2f} (no interval)"
        return f"{self.estimate:+.2f} [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"


def ranks(values_N: Values) -> Values:
    """Ranks less their mean, ties at their mean."""
    return np.asarray(stats.rankdata(values_N) - (len(values_N) + 1) / 2, dtype=np.float64)


def _correlation(a_N: Values, b_N: Values) -> float | None:
    scale = math.sqrt(float(a_N @ a_N) * float(b_N @ b_N))
    return float(a_N @ b_N) / scale if scale > 0 else None


def partial_spearman(x_N: Values, y_N: Values, fixed_N: Values) -> float | None:
    """Spearman's correlation of x and y with `fixed` held fixed: (r_xy - r_xf r_yf) / sqrt((1 - r_xf^2)(1 - r_yf^2)).

    Kendall and Stuart, chapter 27. Where `fixed` does not vary it is plain Spearman. None where x or y does not vary,
    or has the ranks of `fixed`.
    """
    a_N, b_N, c_N = ranks(x_N), ranks(y_N), ranks(fixed_N)
    r_xy, r_xf, r_yf = _correlation(a_N, b_N), _correlation(a_N, c_N), _correlation(b_N, c_N)
    if r_xy is None or r_xf is None or r_yf is None:
        return r_xy
    left = (1 - r_xf**2) * (1 - r_yf**2)
    return None if left < 1e-9 else max(-1.0, min(1.0, (r_xy - r_xf * r_yf) / math.sqrt(left)))


def rank_residuals(values_N: Values, fixed_N: Values) -> Values:
    """The ranks of `values` less their least-squares line on the ranks of `fixed`: what a partial correlation is of."""
    ranks_N, line_N = ranks(values_N), ranks(fixed_N)
    spread = float(line_N @ line_N)
    return ranks_N - (float(line_N @ ranks_N) / spread if spread else 0.0) * line_N


def associated(
    columns: Mapping[str, Sequence[float]],
    clusters: Sequence[Hashable],
    statistic: Callable[[Mapping[str, Values]], float | None],
    samples: int = SAMPLES,
) -> Association:
    """`statistic` of the cells, and its percentile interval over draws of as many clusters as there are, with
    replacement. The same columns always give the same interval."""
    table = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    members: dict[Hashable, list[int]] = {}
    for place, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(place)
    rows = [np.asarray(places) for places in members.values()]
    estimate = statistic(table) if rows else None
    interval = None
    if estimate is not None and len(rows) >= FEWEST_CLUSTERS:
        draw = np.random.default_rng(SEED)
        drawn = (np.concatenate([rows[i] for i in draw.integers(len(rows), size=len(rows))]) for _ in range(samples))
        values = [statistic({name: column[chosen] for name, column in table.items()}) for chosen in drawn]
        known = [value for value in values if value is not None]
        if len(known) >= (1 - MOST_UNDEFINED) * samples:
            low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            interval = (float(low), float(high))
    return Association(estimate=estimate, interval=interval, n=len(clusters), clusters=len(rows))


def ratio_interval(top: Sequence[float], bottom: Sequence[float]) -> tuple[float, tuple[float, float]] | None:
    """mean(top) / mean(bottom) of paired values, with Fieller's 95 % interval: all r for which a t test of
    top - r bottom does not reject zero. None for fewer than three pairs, and where no finite
    interval holds the ratio."""
    a_N, b_N = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    n = len(a_N)
    if n < 3:
        return None
    t2 = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) ** 2 / n
    covariance = np.cov(a_N, b_N, ddof=1)
    a, b = float(a_N.mean()), float(b_N.mean())
    A, B, C = b * b - t2 * covariance[1, 1], a * b - t2 * covariance[0, 1], a * a - t2 * covariance[0, 0]
    if A <= 0:
        return None
    root = math.sqrt(max(0.0, float(B * B - A * C)))
    return a / b, (float(B - root) / float(A), float(B + root) / float(A))


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Rank correlations of one measure of diversity with accuracy. Ranks are taken within each data set."""

    measure: str
    plain: Association
    held: Association  # controlling for the server's weight
    weight: Association  # of the server's weight with accuracy, controlling for diversity
    points: tuple[Point, ...]


def explained(found: Sequence[Point], measure: str) -> Explained:
    """Over the cells that measured it."""
    chosen = tuple(point for point in found if measure in point.diversity)
    data = [point.data for point in chosen]
    columns = {
        "diversity": _within(data, [point.diversity[measure] for point in chosen]),
        "accuracy": _within(data, [point.accuracy for point in chosen]),
        "weight": _within(data, [point.server_weight for point in chosen]),
    }
    clusters = [point.setting for point in chosen]

    def of(x: str, fixed: str = "") -> Association:
        def statistic(table: Mapping[str, Values]) -> float | None:
            if not fixed:
                return _correlation(ranks(table[x]), ranks(table["accuracy"]))
            return partial_spearman(table[x], table["accuracy"], table[fixed])

        return associated(columns, clusters, statistic)

    return Explained(
        measure=measure,
        plain=of("diversity"),
        held=of("diversity", "weight"),
        weight=of("weight", "diversity"),
        points=chosen,
    )


def _within(data: Sequence[str], values: Sequence[float]) -> list[float]:
    """Ranks within each data set, as the share of its cells that lie below, ties counted half."""
    frame = pd.DataFrame({"data": data, "value": values}, dtype=object).astype({"value": float})
    groups = frame.groupby("data")["value"]
    return ((groups.rank() - 0.5) / groups.transform("count")).tolist()


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What grouping gains on FedAvg in one setting, and how much of it the server's weight alone gives; fractions."""

    name: str
    whole: Paired  # grouping - FedAvg
    by_weight: Paired  # control - FedAvg
    rest: Paired  # grouping - control
    share: tuple[float, tuple[float, float]] | None  # by_weight / whole; None where the gain may be none


def gain(name: str, values: Mapping[Way, Mapping[int, float]]) -> Gain | None:
    """`values`: seed -> accuracy of each way. Over the seeds that all three have; None without one."""
    seeds = sorted(set.intersection(*(set(values[way]) for way in WAYS)))
    each = {way: {seed: values[way][seed] for seed in seeds} for way in WAYS}
    whole = paired(each["Grouping"], each["FedAvg"])
    by_weight, rest = paired(each["Control"], each["FedAvg"]), paired(each["Grouping"], each["Control"])
    if whole is None or by_weight is None or rest is None:
        return None
    top, bottom = ([each[way][seed] - each["FedAvg"][seed] for seed in seeds] for way in ("Control", "Grouping"))
    share = ratio_interval(top, bottom) if whole.interval is not None and whole.interval[0] > 0 else None
    return Gain(name=name, whole=whole, by_weight=by_weight, rest=rest, share=share)


def gains_of(item: Item, records: Records) -> list[Gain]:
    """One for each row of the item's table that has finished runs of all three ways."""
    found, results, gains = grid(item), collect(item, records), []
    for place, row in found.rows if found else ():
        plain = next((row[method] for method in PLAIN if method in row), None)
        if plain is not None and "Control" in row and "Grouping" in row:
            ways = {"FedAvg": plain, "Control": row["Control"], "Grouping": row["Grouping"]}
            values = {way: results[entry.label].values for way, entry in ways.items() if entry.label in results}
            gains.append(gain(setting_text(place) or "all", values) if len(values) == 3 else None)  # type: ignore[arg-type]
    return [one for one in gains if one is not None]


def gains_over(found: Sequence[Point]) -> list[Gain]:
    """One for each setting without labels at the clients that has all three ways."""
    gains = []
    for grouping, fedavg, control in _trios([point for point in found if not point.labelled]):
        if fedavg is not None and control is not None:
            ways: dict[Way, Point] = {"FedAvg": fedavg, "Control": control, "Grouping": grouping}
            values = {way: {seed: run[0] for seed, run in point.runs.items()} for way, point in ways.items()}
            gains.append(gain(grouping.name, values))
    return [one for one in gains if one is not None]


def _trios(found: Sequence[Point]) -> list[tuple[Point, Point | None, Point | None]]:
    """Every grouping cell with FedAvg of its setting and the control of its server's weight."""
    trios = []
    for grouping in (point for point in found if point.way == "Grouping"):
        members = [point for point in found if point.setting == grouping.setting]
        fedavg = next((point for point in members if point.way == "FedAvg"), None)
        same = (p for p in members if p.way == "Control" and abs(p.server_weight - grouping.server_weight) < 1e-9)
        trios.append((grouping, fedavg, next(same, None)))
    return trios


def twins(found: Sequence[Point]) -> list[tuple[float, float]]:
    """Grouping less its control: diversity of local updates and accuracy, means over the seeds of both."""
    pairs = []
    for grouping, _, control in _trios(found):
        both = [(grouping.runs[s], control.runs[s]) for s in grouping.runs if s in control.runs] if control else []
        known = [(a[1] - b[1], a[0] - b[0]) for a, b in both if a[1] is not None and b[1] is not None]
        if known:
            diversity, accuracy = (statistics.fmean(column) for column in zip(*known, strict=True))
            pairs.append((diversity, accuracy))
    return pairs


def on_diversity(found: Explained) -> str:
    """What the partial correlation says, for people who will quote it."""
    name, held = MEASURES[found.measure], found.held
    if not held.n:
        return f"No cell has measured the {name} yet."
    over = f"over {count(held.n, 'cell')} in {count(held.clusters, 'setting')}"
    if held.estimate is None:
        return f"Whether the {name} goes with accuracy cannot be said {over}: one of them does not vary."
    numbers = (
        f"controlling for the server's weight, the rank correlation of the {name} with accuracy is {held.estimate:+.2f}"
    )
    if held.interval is None:
        return f"{numbers[0].upper()}{numbers[1:]} {over}: too few settings to say more."
    low, high = held.interval
    told = f"{numbers[0].upper()}{numbers[1:]} (95 % interval {low:+.2f} to {high:+.2f}, {over})"
    if high < 0:
        return f"{told}: more diverse cells tend to be less accurate, as the paper says. {NO_PROOF}"
    if low > 0:
        return f"{told}: more diverse cells tend to be more accurate, against the paper's explanation. {NO_PROOF}"
    if low > -WEAK and high < WEAK:
        return f"{told}: at most a weak association."
    return f"{told}: these records do not show whether diversity predicts accuracy at equal server weight."


def on_gain(gains: Sequence[Gain]) -> str:
    """How much of grouping's gain the control has, over settings of equal weight in the mean."""
    if not gains:
        return "No setting has finished runs of FedAvg, the control and grouping yet."
    whole, part, rest = (summary(getattr(gain, name).mean for gain in gains) for name in ("whole", "by_weight", "rest"))

    def told(seen: Any) -> str:
        return f"{points(seen.mean)} {points_interval(seen.interval)}".rstrip()

    text = (
        f"Over {count(len(gains), 'setting')}, grouping gains {told(whole)} points on FedAvg. Giving FedAvg's server a "
        f"group's weight gains {told(part)} points; grouping adds {told(rest)} to that."
    )
    share = ratio_interval([gain.by_weight.mean for gain in gains], [gain.whole.mean for gain in gains])
    if share is None or whole.mean <= 0:
        return f"{text} The gain is not distinguishable from zero, so we give no share."
    value, (low, high) = share
    return (
        f"{text} The server's weight alone gives {100 * value:.0f} % of the gain [{100 * low:.0f}, {100 * high:.0f}]."
    )


def on_twins(pairs: Sequence[tuple[float, float]]) -> str:
    """Grouping against its control, at exactly the same server's weight."""
    if not pairs:
        return "No setting has grouping and its control measured yet."
    lower, better = sum(d < 0 for d, _ in pairs), sum(a > 0 for _, a in pairs)
    both = sum(d < 0 and a > 0 for d, a in pairs)
    return (
        f"Grouping and its control share the server's weight. In {count(len(pairs), 'such pair')} grouping has the "
        f"lower diversity of local updates in {lower}, the higher accuracy in {better}, and both in {both}."
    )


def gains_table(gains: Sequence[Gain]) -> Table:
    heads = ("Setting", "Whole gain", "By the server's weight", "The rest", "Weight's share")
    rows = []
    for one in gains:
        share = (
            Entry()
            if one.share is None
            else Entry(
                text=f"{100 * one.share[0]:.0f} %",
                below=(f"[{100 * one.share[1][0]:.0f}, {100 * one.share[1][1]:.0f}]",),
            )
        )
        parts = (paired_entry(seen) for seen in (one.whole, one.by_weight, one.rest))
        rows.append(Row(entries=(Entry(text=one.name), *parts, share)))
    columns = tuple(Column(name=head, left=head == "Setting") for head in heads)
    return Table(name="gains", caption=GAINS_CAPTION, columns=columns, rows=tuple(rows))


def item_section(item: Item, records: Records) -> dict[str, Any] | None:
    """For an item's own page; None where it does not compare the three ways."""
    gains = gains_of(item, records) if _own(item) else []
    return {"title": "What explains the gain", "text": on_gain(gains), "table": gains_table(gains)} if gains else None


def _own(item: Item) -> bool:
    """The departures' cells differ in more than the averaging, and stand on their own page."""
    return not item.methods_are_rows and not item.name.endswith("/departures")


def page(results: Sequence[tuple[Item, Records]]) -> dict[str, Any] | None:
    """The page over all of the paper's items, a section a profile; None without a record."""
    sections = []
    for profile in dict.fromkeys(item.profile for item, _ in results):
        own = [(item, counted(item, records)) for item, records in results if item.profile == profile and _own(item)]
        if found := points_of(own):
            sections.append(_section(profile, found))
    return {"title": TITLE, "lead": LEAD, "sections": sections} if sections else None


def _section(profile: str, found: Sequence[Point]) -> dict[str, Any]:
    measures = [explained(found, measure) for measure in MEASURES]
    gains = gains_over(found)
    picture = _scatter(measures[0])
    return {
        "profile": profile,
        "sentences": [on_gain(gains), on_diversity(measures[0]), on_twins(twins(found))],
        "pictures": [(picture, SCATTER_CAPTION)] if picture else [],
        "tables": [_correlations(measures), *([gains_table(gains)] if gains else []), _cells(found)],
    }


def _correlations(measures: Sequence[Explained]) -> Table:
    heads = ("Measure", "Cells", "Settings", "As measured", "Controlling for server weight", "Server weight itself")
    rows = []
    for one in measures:
        texts = (MEASURES[one.measure], one.held.n, one.held.clusters, one.plain, one.held, one.weight)
        rows.append(Row(entries=tuple(Entry(text=str(text)) for text in texts)))
    columns = tuple(Column(name=head, left=head == "Measure") for head in heads)
    return Table(name="correlations", caption=CORRELATIONS_CAPTION, columns=columns, rows=tuple(rows))


def _cells(found: Sequence[Point]) -> Table:
    heads = ("Cell", "Averaging", "Server's weight", "Accuracy (%)", "Diversity of updates", "Runs")
    measure, rows = next(iter(MEASURES)), []
    for point in found:
        diversity = f"{point.diversity[measure]:.3f}" if measure in point.diversity else NONE
        texts = (
            point.name,
            point.way,
            f"{point.server_weight:.3f}",
            percent(point.accuracy),
            diversity,
            len(point.runs),
        )
        rows.append(Row(entries=tuple(Entry(text=str(text)) for text in texts)))
    data = pd.DataFrame(
        {
            "cell": point.name,
            "averaging": point.way,
            "setting": point.setting,
            "data": point.data,
            "server_weight": point.server_weight,
            "accuracy": point.accuracy,
            **{name: point.diversity.get(name) for name in MEASURES},
            "n": len(point.runs),
        }
        for point in found
    )
    columns = tuple(Column(name=head, left=head in heads[:2]) for head in heads)
    return Table(
        name="cells",
        caption="The cells; accuracies in the CSV are fractions.",
        columns=columns,
        rows=tuple(rows),
        data=data,
    )


def _scatter(found: Explained) -> Picture | None:
    """As measured, and ranks with the server's weight taken out; None with fewer than three cells."""
    if len(found.points) < 3:
        return None
    columns = ([p.diversity[found.measure] for p in found.points], [p.accuracy for p in found.points])
    weights = np.asarray([point.server_weight for point in found.points])
    left = dict(zip((p.name for p in found.points), ((x, 100 * y) for x, y in zip(*columns, strict=True)), strict=True))
    rest = [rank_residuals(np.asarray(column), weights) for column in columns]
    right = dict(zip(left, ((float(x), float(y)) for x, y in zip(*rest, strict=True)), strict=True))
    names: dict[str, list[str]] = {way: [p.name for p in found.points if p.way == way] for way in WAYS}
    joined = [(a.name, b.name) for a, _, b in _trios(found.points) if b is not None]

    def panel(places: Mapping[str, tuple[float, float]], **more: Any) -> Dots:
        return Dots(
            places={way: [places[name] for name in names[way]] for way in WAYS},
            names=names,
            joined=[(places[a], places[b]) for a, b in joined],
            **more,
        )

    name = MEASURES[found.measure]
    return scatter(
        [
            panel(
                left,
                title=f"As measured: {found.plain}",
                x_title=name[0].upper() + name[1:],
                y_title="Accuracy, % (log of the error)",
                y_scale="error",
            ),
            panel(
                right,
                title=f"Server weight removed: {found.held}",
                x_title="Diversity: residual rank after removing server weight",
                y_title="Accuracy: residual rank",
                cross=True,
            ),
        ],
        looks(WAYS),
    )
