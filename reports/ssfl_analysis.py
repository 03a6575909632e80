"""SSFL's own questions: does the server's weight explain grouping's gain, and does gradient diversity predict accuracy?

The paper holds that grouping helps because it lowers gradient diversity. Inside a group the server also weighs more.
The control is FedAvg whose server has that weight without any group. Cells that differ only in how the server averages
share data, partition and seeds, so that bootstrap intervals draw whole settings.

Legend: N cells, R rows (two that are correlated, and what is held fixed).
"""

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
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
from benchmark.verdicts.results import ACCURACY
from benchmark.verdicts.statistics import LEVEL, Summary, paired, summary
from reports.figures import Dots, Picture, scatter
from reports.formatting import NONE, count, percent, points, points_interval
from reports.paper_table import difference_entry, setting_text
from reports.reported import Reported
from reports.style import looks
from reports.tables import Table, table_of

Values: TypeAlias = npt.NDArray[np.float64]
Way: TypeAlias = Literal["FedAvg", "Control", "Grouping"]
WAYS: tuple[Way, ...] = ("FedAvg", "Control", "Grouping")
UPDATES = "diversity/delta/l2/squared/clients"
MEASURES = {
    UPDATES: "diversity of the local updates",
    "diversity/gradient/l2/squared/clients": "diversity of exact gradients",
}
OF_CELL = ["cell", "averaging", "setting", "data", "labelled", "collapsed", "server_weight"]
SAMPLES, SEED = 2000, 20080
FEWEST_CLUSTERS = 8  # a percentile interval over fewer says little
MOST_UNDEFINED = 0.05  # share of samples without a correlation, above which there is no interval
WEAK = 0.3  # an interval within +-this leaves room for a weak association only
NO_PROOF = "That is an association, not a proof."
TEXTS = tomllib.loads((Path(__file__).parent / "ssfl" / "analysis.toml").read_text())


def server_weight(experiment: Experiment) -> float | None:
    """The server's share of the averaged model; None where no server trains, or the method is another's."""
    averaging = getattr(experiment.method, "averaging", None)
    if averaging is None or experiment.data.label_setting not in ("server", "everywhere"):
        return None
    if averaging.server_weight is not None:
        return float(averaging.server_weight)
    return statistics.fmean(1 / (size + 1) for size in averaging.group_sizes(experiment.federation.C))


def runs_of(items: Iterable[Reported]) -> pd.DataFrame:
    """A row a finished run of the cells that have a server's weight: OF_CELL, seed, accuracy (a fraction, after the
    last round), and each measure of MEASURES in its median round (NaN where not measured): early rounds, in which next
    to nothing moves, must not decide. A cell that stands in several items has the name of the first.

    `setting`: what a cell shares with its counterparts, all but the averaging. `labelled`: clients train on labels, too
    (supervised bounds). `collapsed`: the cell's typical run ends below labels alone.
    """
    rows = []
    for one in items:
        for result in one.results.values():
            cell = result.cell
            weight = server_weight(cell.experiment)
            if weight is None:
                continue
            method = replace(cell.experiment.method, averaging=FedAvg())
            known = {
                "cell_key": cell.cell_key,
                "cell": f"{one.item.name}: {cell.label}",
                "averaging": _way(cell.experiment.method.averaging),
                "setting": replace(cell.experiment, method=method, evaluation=Evaluation()).cell_key,
                "data": cell.experiment.data.name,
                "labelled": cell.experiment.data.label_setting == "everywhere",
                "collapsed": result.collapsed,
                "server_weight": weight,
            }
            for run in result.runs:
                if run.status == "done" and run.selected(ACCURACY) is not None:
                    medians = {measure: run.median(measure) for measure in MEASURES}
                    rows.append({**known, "seed": run.seed, "accuracy": run.selected(ACCURACY), **medians})
    frame = pd.DataFrame(rows, columns=["cell_key", *OF_CELL, "seed", "accuracy", *MEASURES])
    frame["cell"] = frame.groupby("cell_key")["cell"].transform("first")
    frame["collapsed"] = frame.groupby("cell_key")["collapsed"].transform("any").astype(bool)
    return frame.drop_duplicates(["cell_key", "seed"]).astype(dict.fromkeys(MEASURES, float))


def _way(averaging: FedAvg | Grouping) -> Way:
    if isinstance(averaging, Grouping):
        return "Grouping"
    return "FedAvg" if averaging.server_weight is None else "Control"


def cells_of(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a cell: means over its seeds, and their number `n`."""
    grouped = runs.groupby(OF_CELL, sort=False)
    return grouped[["accuracy", *MEASURES]].mean().assign(n=grouped.size()).reset_index()


@dataclass(frozen=True, kw_only=True)
class Association:
    """A rank correlation in [-1, 1], NaN where a quantity does not vary. No interval over too few settings."""

    estimate: float
    interval: tuple[float, float] | None
    n: int  # cells
    clusters: int  # settings

    def __str__(self) -> str:
        """ "-0.41 [-0.63, -0.12]"."""
        if math.isnan(self.estimate):
            return "not defined"
        if self.interval is None:
            return f"{self.estimate:+.2f} (no interval)"
        return f"{self.estimate:+.2f} [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"


def partial_spearman(x_N: Values, y_N: Values, fixed_N: Values) -> float:
    """Spearman's correlation of x and y with `fixed` held fixed: Pearson's of what is left of their ranks less their
    least-squares lines on its ranks (Kendall and Stuart, chapter 27). Where `fixed` does not vary it is plain Spearman.
    NaN where x or y does not vary, or has the ranks of `fixed`."""
    x_N, y_N, fixed_N = stats.rankdata((x_N, y_N, fixed_N), axis=1) - (len(x_N) + 1) / 2
    square = fixed_N @ fixed_N or 1.0
    a_N, b_N = (row_N - (fixed_N @ row_N / square) * fixed_N for row_N in (x_N, y_N))
    left = (a_N @ a_N) * (b_N @ b_N)
    if left <= 1e-9 * (x_N @ x_N) * (y_N @ y_N):
        return math.nan
    return float(np.clip(a_N @ b_N / math.sqrt(left), -1.0, 1.0))


def associated(table_RN: Values, clusters: Sequence[Any], samples: int = SAMPLES) -> Association:
    """`partial_spearman` of the rows, and its percentile interval over draws of as many clusters as there are, with
    replacement. The same table always gives the same interval."""
    codes_N, names = pd.factorize(np.asarray(clusters))
    members = [np.flatnonzero(codes_N == code) for code in range(len(names))]
    estimate, interval = partial_spearman(*table_RN) if members else math.nan, None
    if not math.isnan(estimate) and len(members) >= FEWEST_CLUSTERS:
        draw = np.random.default_rng(SEED)
        drawn = (draw.integers(len(members), size=len(members)) for _ in range(samples))
        values = [partial_spearman(*table_RN[:, np.concatenate([members[i] for i in chosen])]) for chosen in drawn]
        if np.isnan(values).mean() <= MOST_UNDEFINED:
            low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            interval = (float(low), float(high))
    return Association(estimate=estimate, interval=interval, n=len(codes_N), clusters=len(members))


def explained(cells: pd.DataFrame, measure: str) -> dict[str, Association]:
    """Of the measure with accuracy, over the cells that measured it: "plain", "held" (controlling for the server's
    weight), and "weight" (of the server's weight with accuracy, controlling for diversity). Ranks are taken within each
    data set, as the share of its cells that lie below, ties counted half."""
    known = cells.dropna(subset=measure)
    by_data = known.groupby("data")[[measure, "accuracy", "server_weight"]]
    diversity_N, accuracy_N, weight_N = ((by_data.rank() - 0.5) / by_data.transform("count")).to_numpy().T
    rows = {
        "plain": (diversity_N, accuracy_N, np.zeros(len(known))),
        "held": (diversity_N, accuracy_N, weight_N),
        "weight": (weight_N, accuracy_N, diversity_N),
    }
    return {name: associated(np.stack(row), known["setting"].tolist()) for name, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What grouping gains on FedAvg in one setting, and how much of it the server's weight alone gives; fractions."""

    cells: Mapping[Way, str]
    whole: Summary  # grouping - FedAvg
    by_weight: Summary  # control - FedAvg
    rest: Summary  # grouping - control
    diversity: float  # of local updates, grouping - control; NaN where not measured


def gain(ways: Mapping[Way, pd.DataFrame]) -> Gain | None:
    """`ways`: the runs of each way. Over the seeds that all three have; None without one."""
    seeds = {way: ways[way].set_index("seed") for way in WAYS}
    common = seeds["FedAvg"].index.intersection(seeds["Control"].index).intersection(seeds["Grouping"].index)
    each = {way: found.loc[common, "accuracy"].to_dict() for way, found in seeds.items()}
    whole = paired(each["Grouping"], each["FedAvg"])
    by_weight, rest = paired(each["Control"], each["FedAvg"]), paired(each["Grouping"], each["Control"])
    if whole is None or by_weight is None or rest is None:
        return None
    more = (seeds["Grouping"][UPDATES] - seeds["Control"][UPDATES]).mean()
    cells = {way: str(found["cell"].iloc[0]) for way, found in ways.items()}
    return Gain(cells=cells, whole=whole, by_weight=by_weight, rest=rest, diversity=float(more))


def gains_over(runs: pd.DataFrame) -> list[Gain]:
    """One for every grouping cell that has FedAvg in its setting, and there the control of its server's weight."""
    gains = []
    for _, same in runs.groupby("setting", sort=False):
        for _, grouping in same[same["averaging"] == "Grouping"].groupby("cell", sort=False):
            equal = np.isclose(same["server_weight"], grouping["server_weight"].iloc[0], rtol=0, atol=1e-9)
            fedavg, control = same[same["averaging"] == "FedAvg"], same[equal & (same["averaging"] == "Control")]
            if len(fedavg) and len(control):
                gains.append(gain({"FedAvg": _first(fedavg), "Control": _first(control), "Grouping": grouping}))
    return [one for one in gains if one is not None]


def _first(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the first cell: others differ from it in what is measured alone."""
    return runs[runs["cell"] == runs["cell"].iloc[0]]


def on_diversity(measure: str, held: Association) -> str:
    """What the partial correlation says, for people who will quote it."""
    name = MEASURES[measure]
    if not held.n:
        return f"No cell has measured the {name} yet."
    over = f"over {count(held.n, 'cell')} in {count(held.clusters, 'setting')}"
    if math.isnan(held.estimate):
        return f"Whether the {name} goes with accuracy cannot be said {over}: one of them does not vary."
    said = f"Controlling for the server's weight, the rank correlation of the {name} with accuracy is"
    if held.interval is None:
        return f"{said} {held.estimate:+.2f} {over}: too few settings to say more."
    low, high = held.interval
    told = f"{said} {held.estimate:+.2f} (95 % interval {low:+.2f} to {high:+.2f}, {over})"
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

    def told(seen: Summary) -> str:
        return f"{points(seen.mean)} {points_interval(seen.interval)}".rstrip()

    text = (
        f"Over {count(len(gains), 'setting')}, grouping gains {told(whole)} points on FedAvg. Giving FedAvg's server a "
        f"group's weight gains {told(part)} points; grouping adds {told(rest)} to that."
    )
    return text if whole.interval and whole.interval[0] > 0 else f"{text} The gain is not distinguishable from zero."


def on_twins(gains: Sequence[Gain]) -> str:
    """Grouping against its control, at exactly the same server's weight; empty where no diversity was measured."""
    known = [one for one in gains if not math.isnan(one.diversity)]
    lower = [one for one in known if one.diversity < 0]
    better, both = (sum(one.rest.mean > 0 for one in some) for some in (known, lower))
    if not known:
        return ""
    return (
        f"Grouping and its control share the server's weight. In {count(len(known), 'such pair')} grouping has the "
        f"lower diversity of local updates in {len(lower)}, the higher accuracy in {better}, and both in {both}."
    )


def gains_table(gains: Sequence[Gain], names: Mapping[str, str] | None = None) -> Table:
    """A row a setting. `names`: by grouping's cell, where its own name says too much."""
    names = names or {one.cells["Grouping"]: one.cells["Grouping"] for one in gains}
    rows = [
        (names[one.cells["Grouping"]], *map(difference_entry, (one.whole, one.by_weight, one.rest))) for one in gains
    ]
    heads = ("Setting", "Whole gain", "By the server's weight", "The rest")
    return table_of("gains", TEXTS["gains"], heads, rows)


def item_section(one: Reported) -> dict[str, Any] | None:
    """For an item's own page; None where it does not compare the three ways."""
    item = one.item
    if not _own(item):
        return None
    places = {
        f"{item.name}: {cell.label}": setting_text({k: v for k, v in cell.setting.items() if k != "method"}) or "all"
        for cell in item.cells
    }
    runs = runs_of([one])
    gains = gains_over(standing(runs))
    text = f"{on_gain(gains)} {on_collapsed(runs)}".rstrip()
    return {"title": "What explains the gain", "text": text, "table": gains_table(gains, places)} if gains else None


def standing(runs: pd.DataFrame) -> pd.DataFrame:
    """Without the cells that collapsed: diversity and gains say nothing where nothing is learned."""
    return runs[~runs["collapsed"]]


def on_collapsed(runs: pd.DataFrame) -> str:
    left_out = runs[runs["collapsed"]]["cell"].nunique()
    if not left_out:
        return ""
    below = "labels alone or, where that bound has not run, below its own accuracy before clients join"
    return f"Left out: {count(left_out, 'cell')} whose typical run ends below {below}."


def _own(item: Item) -> bool:
    """The departures' cells differ in more than the averaging, and stand on their own page."""
    return not item.methods_are_rows and not item.name.endswith("/departures")


def page(items: Sequence[Reported]) -> dict[str, Any] | None:
    """The page over all of the paper's items, a section a profile; None without a record."""
    sections = []
    for profile in dict.fromkeys(one.item.profile for one in items):
        runs = runs_of(one for one in items if one.item.profile == profile and _own(one.item))
        if not runs.empty:
            sections.append(_section(profile, runs))
    return {"title": TEXTS["title"], "lead": TEXTS["lead"], "sections": sections} if sections else None


def _section(profile: str, runs: pd.DataFrame) -> dict[str, Any]:
    up = standing(runs)
    cells = cells_of(up)
    measures = {measure: explained(cells, measure) for measure in MEASURES}
    gains = gains_over(up[~up["labelled"]])
    picture = _scatter(cells.dropna(subset=UPDATES), measures[UPDATES]["plain"], gains)
    sentences = [on_gain(gains), on_diversity(UPDATES, measures[UPDATES]["held"]), on_twins(gains), on_collapsed(runs)]
    return {
        "profile": profile,
        "sentences": [sentence for sentence in sentences if sentence],
        "pictures": [(picture, TEXTS["scatter"])] if picture else [],
        "tables": [_correlations(measures), *([gains_table(gains)] if gains else []), _cells(cells_of(runs))],
    }


def _correlations(measures: Mapping[str, Mapping[str, Association]]) -> Table:
    heads = ("Measure", "Cells", "Settings", "As measured", "Controlling for server weight", "Server weight itself")
    rows = [
        (MEASURES[name], m["held"].n, m["held"].clusters, m["plain"], m["held"], m["weight"])
        for name, m in measures.items()
    ]
    return table_of("correlations", TEXTS["correlations"], heads, rows)


def _cells(cells: pd.DataFrame) -> Table:
    """Accuracies in the CSV are fractions."""
    heads = ("Cell", "Averaging", "Server's weight", "Accuracy (%)", "Diversity of updates", "Runs", "")
    rows = [
        (name, way, f"{weight:.3f}", percent(accuracy), NONE if math.isnan(diversity) else f"{diversity:.3f}", n)
        + ("collapsed" if below else "",)
        for name, way, weight, accuracy, diversity, n, below in cells[
            ["cell", "averaging", "server_weight", "accuracy", UPDATES, "n", "collapsed"]
        ].itertuples(index=False)
    ]
    caption = "The cells; accuracies in the CSV are fractions."
    return table_of("cells", caption, heads, rows, words=2, data=cells.drop(columns="labelled").to_dict("records"))


def _scatter(cells: pd.DataFrame, found: Association, gains: Sequence[Gain]) -> Picture | None:
    """None with fewer than three cells."""
    if len(cells) < 3:
        return None
    named = cells.rename(columns={"averaging": "kind", "cell": "name"})[["kind", "name"]]
    shown, pairs = set(named["name"]), [(one.cells["Grouping"], one.cells["Control"]) for one in gains]
    name = MEASURES[UPDATES]
    plain = Dots(
        dots=named.assign(x=cells[UPDATES], y=100 * cells["accuracy"]),
        joined=[pair for pair in pairs if shown.issuperset(pair)],
        title=f"Rank correlation: {found}",
        x_title=name[0].upper() + name[1:],
        y_title="Accuracy, % (log of the error)",
        log_error=True,
    )
    return scatter(plain, looks(WAYS))
