"""SSFL's own questions: does the server's weight explain grouping's gain, and does gradient diversity predict accuracy?

The paper holds that grouping helps because it lowers gradient diversity. Inside a group the server also weighs more.
The control is FedAvg whose server has that weight without any group. Cells that differ only in how the server averages
share data, partition and seeds, so that bootstrap intervals draw whole settings.

Legend: N cells, B bootstrap samples.
"""

import math
import statistics
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.ssfl import FedAvg, Grouping
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, Records, counted
from benchmark.verdicts.statistics import LEVEL, Paired, paired, summary
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, count, percent, points, points_interval
from reports.paper_table import paired_entry, setting_text
from reports.style import looks
from reports.tables import Entry, Table, table_of

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
TEXTS = tomllib.loads((Path(__file__).parent / "ssfl" / "analysis.toml").read_text())


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
    averaging = getattr(experiment.method, "averaging", None)
    if averaging is None or experiment.data.label_setting not in ("server", "everywhere"):
        return None
    if averaging.server_weight is not None:
        return float(averaging.server_weight)
    return statistics.fmean(1 / (size + 1) for size in averaging.group_sizes(experiment.federation.C))


def points_of(results: Iterable[tuple[Item, Records]]) -> list[Point]:
    """The cells of these items that have a finished run and a server's weight, each once."""
    names: dict[str, tuple[str, Experiment]] = {}
    runs: dict[str, dict[int, list[RunRecord]]] = {}
    for item, records in results:
        for cell in item.cells:
            if server_weight(cell.experiment) is None:
                continue
            names.setdefault(cell.cell_key, (f"{item.name}: {cell.label}", cell.experiment))
            for seed, record in records.get(cell.cell_key, {}).items():
                if record.status == "done" and record.selected(ACCURACY) is not None:
                    runs.setdefault(cell.cell_key, {}).setdefault(seed, []).append(record)
    return [_point(*names[key], seeds) for key, seeds in runs.items()]


def _point(name: str, experiment: Experiment, seeds: Mapping[int, Sequence[RunRecord]]) -> Point:
    averaging, weight = experiment.method.averaging, server_weight(experiment)
    assert weight is not None
    alone = replace(experiment, method=replace(experiment.method, averaging=FedAvg()), evaluation=Evaluation())
    accuracy = {
        seed: next(v for r in records if (v := r.selected(ACCURACY)) is not None) for seed, records in seeds.items()
    }
    medians = {measure: {seed: _median(records, measure) for seed, records in seeds.items()} for measure in MEASURES}
    known = {name: [v for v in found.values() if v is not None] for name, found in medians.items()}
    updates = medians[next(iter(MEASURES))]
    return Point(
        name=name,
        way="Grouping"
        if isinstance(averaging, Grouping)
        else "FedAvg"
        if averaging.server_weight is None
        else "Control",
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


def gains_over(found: Sequence[Point]) -> list[Gain]:
    """One for each setting that has all three ways."""
    gains = []
    for grouping, fedavg, control in _trios(found):
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
    """A row a setting."""
    rows = []
    for one in gains:
        share = Entry()
        if one.share is not None:
            value, (low, high) = one.share
            share = Entry(text=f"{100 * value:.0f} %", below=(f"[{100 * low:.0f}, {100 * high:.0f}]",))
        rows.append((one.name, *(paired_entry(seen) for seen in (one.whole, one.by_weight, one.rest)), share))
    heads = ("Setting", "Whole gain", "By the server's weight", "The rest", "Weight's share")
    return table_of("gains", TEXTS["gains"], heads, rows)


def item_section(item: Item, records: Records) -> dict[str, Any] | None:
    """For an item's own page; None where it does not compare the three ways."""
    if not _own(item):
        return None
    places = {
        f"{item.name}: {cell.label}": setting_text({k: v for k, v in cell.setting.items() if k != "method"}) or "all"
        for cell in item.cells
    }
    gains = [replace(one, name=places[one.name]) for one in gains_over(points_of([(item, records)]))]
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
    return {"title": TEXTS["title"], "lead": TEXTS["lead"], "sections": sections} if sections else None


def _section(profile: str, found: Sequence[Point]) -> dict[str, Any]:
    measures = [explained(found, measure) for measure in MEASURES]
    gains = gains_over([point for point in found if not point.labelled])
    picture = _scatter(measures[0])
    return {
        "profile": profile,
        "sentences": [on_gain(gains), on_diversity(measures[0]), on_twins(twins(found))],
        "pictures": [(picture, TEXTS["scatter"])] if picture else [],
        "tables": [_correlations(measures), *([gains_table(gains)] if gains else []), _cells(found)],
    }


def _correlations(measures: Sequence[Explained]) -> Table:
    heads = ("Measure", "Cells", "Settings", "As measured", "Controlling for server weight", "Server weight itself")
    rows = [
        (MEASURES[one.measure], *map(str, (one.held.n, one.held.clusters, one.plain, one.held, one.weight)))
        for one in measures
    ]
    return table_of("correlations", TEXTS["correlations"], heads, rows)


def _cells(found: Sequence[Point]) -> Table:
    """Accuracies in the CSV are fractions."""
    frame = pd.DataFrame(
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
    heads = ("Cell", "Averaging", "Server's weight", "Accuracy (%)", "Diversity of updates", "Runs")
    rows = []
    for point in found:
        diversity = point.diversity.get(next(iter(MEASURES)))
        numbers = (
            f"{point.server_weight:.3f}",
            percent(point.accuracy),
            NONE if diversity is None else f"{diversity:.3f}",
        )
        rows.append((point.name, point.way, *numbers, str(len(point.runs))))
    return table_of("cells", "The cells; accuracies in the CSV are fractions.", heads, rows, words=2, data=frame)


def _scatter(found: Explained) -> Picture | None:
    """As measured, and ranks with the server's weight taken out; None with fewer than three cells."""
    if len(found.points) < 3:
        return None
    points = found.points
    joined = [(a.name, b.name) for a, _, b in _trios(points) if b is not None]
    columns = [np.asarray(c) for c in ([p.diversity[found.measure] for p in points], [p.accuracy for p in points])]
    weights = np.asarray([point.server_weight for point in points])

    def panel(x_N: Values, y_N: Values, **more: Any) -> Dots:
        known = {"kind": [p.way for p in points], "name": [p.name for p in points]}
        return Dots(dots=pd.DataFrame({**known, "x": x_N, "y": y_N}), joined=joined, **more)

    name = MEASURES[found.measure]
    measured = panel(
        columns[0],
        100 * columns[1],
        title=f"As measured: {found.plain}",
        x_title=name[0].upper() + name[1:],
        y_title="Accuracy, % (log of the error)",
        log_error=True,
    )
    rest = panel(
        *(rank_residuals(column, weights) for column in columns),
        title=f"Server weight removed: {found.held}",
        x_title="Diversity: residual rank after removing server weight",
        y_title="Accuracy: residual rank",
        cross=True,
    )
    return scatter([measured, rest], looks(WAYS))
