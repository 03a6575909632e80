"""Describe the headline sentence of each paper: the results at every setting, in words and as one picture.

`papers.toml` names the claim with the sentence of a paper's headline. The choice does not depend on the results. All
numbers are from the records.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes

from benchmark.fractions import is_fraction
from benchmark.papers.item import CONFIRMING, PILOTS, Claim
from benchmark.papers.items import base_of
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.judge import DECIDED
from benchmark.verdicts.others import Other, numbers
from benchmark.verdicts.signed_ranks import Interval, typical
from reports.claims import ClaimRow, at_setting, data_of, differences, rows_of, setting_text
from reports.figures import GRID, INK, PALETTE, Picture, canvas, styled, titled
from reports.findings import claim_rows
from reports.formatting import amount, metric_name, plain_quote, unit_text
from reports.item_results import PAPERS, ItemResults
from reports.sentences import Sentence, sentences_of

NOT_JUDGED = "not judged"
MOST_PANELS = 4


@dataclass(frozen=True, kw_only=True)
class SentenceOutcome:
    """The result of one setting on a sentence.

    Differences are in the metric's unit, and a positive difference supports the sentence.
    """

    claim: Claim  # the claim that is judged in this setting, or the sentence's claim in a different table
    name: str  # of the comparison
    verdict: str  # of the claim in this setting; NOT_JUDGED without one
    setting: str  # "K = 10, C = 2 and 10"; empty without clients
    K: int = 0  # the largest, or 0 without clients
    data: tuple[str, ...] = ()  # names of the data sets
    estimate: float | None = None  # Hodges-Lehmann, or None if no seed has all cells
    interval: Interval | None = None
    n: int = 0
    is_exploratory: bool = False
    leads: bool = False  # whether it is of a further reduced setting, which is shown first
    is_below_baseline: bool = False  # the median run of one of its cells ends below the supervised baseline
    differences: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by contrast, one for each seed
    page: str = ""  # from the site's root; empty without one

    @property
    def is_judged(self) -> bool:
        return self.verdict != NOT_JUDGED

    @property
    def scope(self) -> str:
        """Return the setting with its data: "at K = 10, C = 2 and 10 on MNIST"."""
        return at_setting(self.setting, self.data)

    @property
    def text(self) -> str:
        """Return the verdict with its setting and its estimate.

        "contradicted at K = 10, C = 2 and 10 on MNIST: -0.82 points (n = 9)".
        """
        start = f"{self.verdict} {self.scope}".rstrip()
        if self.estimate is None:
            return start
        shown = amount(self.claim, self.estimate)
        if self.claim.metric != ACCURACY:
            shown += f" ({metric_name(self.claim.metric)})"
        if self.claim.endpoint == "arithmetic":
            return f"{start}: {shown}, computed, no statistics"
        if self.has_several_differences:
            return f"{start}: {self._of_several(shown)}{self._below_baseline}"
        if self.is_judged:
            return f"{start}: {shown} (n = {self.n}){self._below_baseline}"
        kind = "exploratory runs" if self.is_exploratory else "runs"
        return f"{start}, where {kind} show {shown} (n = {self.n}){self._below_baseline}"

    @property
    def estimate_text(self) -> str:
        """Return the estimate with its number of seeds: ": -0.82 points (n = 9)"; empty without one."""
        if self.estimate is None:
            return ""
        shown = amount(self.claim, self.estimate)
        text = self._of_several(shown) if self.has_several_differences else f"{shown} ({self._seeds})"
        return f": {text}{self._below_baseline}"

    @property
    def has_several_differences(self) -> bool:
        return len(self.differences) > 1

    @property
    def _seeds(self) -> str:
        return f"n = {self.n}{', exploratory' if self.is_exploratory else ''}"

    @property
    def _below_baseline(self) -> str:
        """Return a remark if a cell typically ends below the supervised baseline; empty if none does."""
        return "; some runs end below the supervised baseline" if self.is_below_baseline else ""

    def _of_several(self, smallest: str) -> str:
        """Say that each difference has to be above zero, how many are, and the smallest one with its seeds."""
        required = f"it requires all {len(self.differences)} differences above zero"
        return f"{required} ({self.above_zero}; the smallest is {smallest}, {self._seeds})"

    @property
    def above_zero(self) -> str:
        """Return how many of several differences are above zero: "6 are"."""
        above = sum(typical(values) > 0 for values in self.differences.values())
        return f"{above} {'is' if above == 1 else 'are'}"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A paper's headline sentence with its outcomes, the judged ones first."""

    paper: str
    short: str  # name of the paper
    words: str  # the sentence in our words
    sentence: Sentence
    outcomes: tuple[SentenceOutcome, ...]

    @property
    def quote(self) -> str:
        """Return the paper's own words with their place; empty for a question of ours."""
        claim = self.sentence.rows[0].claim
        return f"“{plain_quote(claim.quote)}” ({claim.source})" if claim.quote else ""

    @property
    def has_several_comparisons(self) -> bool:
        """Return whether outcomes of one setting are about different comparisons, so that names are needed."""
        return len({outcome.scope for outcome in self.outcomes}) < len(self.outcomes)

    @property
    def shown(self) -> list[SentenceOutcome]:
        """Return every decided outcome, and of the open ones the first of each setting."""
        chosen: dict[tuple[str, str], SentenceOutcome] = {}
        for outcome in self.outcomes:
            name = outcome.name if outcome.verdict in DECIDED else ""
            chosen.setdefault((name, outcome.scope), outcome)
        return list(chosen.values())

    @property
    def n_left_out(self) -> int:
        """Return how many open comparisons `shown` leaves out."""
        return len(self.outcomes) - len(self.shown)

    @property
    def verdict(self) -> str:
        """Return the verdicts of all settings, each with its number of clients and its estimate.

        Data sets are named if they differ between settings.
        "contradicted at K = 10: -0.82 points (n = 9); holds at K = 470: +32.86 points (n = 16)".
        """
        texts = []
        every_data = {outcome.data for outcome in self.outcomes if outcome.data}
        for outcomes in self._by_scope.values():
            estimate = outcomes[0].estimate_text if len(outcomes) == 1 else ""
            first = outcomes[0]
            data = f" on {', '.join(first.data)}" if len(every_data) > 1 and first.data else ""
            at = f" at K = {first.K}{data}" if first.K else ""
            texts.append(f"{_counted(outcomes)}{at}{estimate}")
        return "; ".join(texts)

    @property
    def scope(self) -> str:
        """Return all settings: "K = 10, C = 2 and 10 on CIFAR-10 and MNIST; K = 470, C = 10 and 30 on MNIST"."""
        data_at: dict[str, dict[str, None]] = {}  # the values are ordered sets
        for outcome in self.outcomes:
            data_at.setdefault(outcome.setting, {}).update(dict.fromkeys(outcome.data))
        scopes = [at_setting(setting, [*data]) for setting, data in data_at.items()]
        return "; ".join(scope.removeprefix("at ").removeprefix("on ") for scope in scopes)

    @property
    def _by_scope(self) -> dict[str, list[SentenceOutcome]]:
        by_scope: dict[str, list[SentenceOutcome]] = {}
        for outcome in self.outcomes:
            by_scope.setdefault(outcome.scope, []).append(outcome)
        return by_scope

    @property
    def picture(self) -> Picture | None:
        """Draw the differences seed by seed, with one panel for each outcome. Return None without a run."""
        drawn = [outcome for outcome in self.shown if outcome.differences][:MOST_PANELS]
        return _draw(drawn, named=self.has_several_comparisons) if drawn else None


def _counted(outcomes: Sequence[SentenceOutcome]) -> str:
    """Return "holds", or "contradicted in 1 of 3 comparisons, not judged in 2" if verdicts differ."""
    times = Counter(outcome.verdict for outcome in outcomes)
    if len(outcomes) == 1:
        return outcomes[0].verdict
    if len(times) == 1:
        return f"{outcomes[0].verdict} in {len(outcomes)} of {len(outcomes)} comparisons"
    (verdict, number), *rest = sorted(times.items(), key=lambda pair: pair[0] not in DECIDED)
    more = "".join(f", {other} in {others}" for other, others in rest)
    return f"{verdict} in {number} of {len(outcomes)} comparisons{more}"


def headlines(every: Sequence[ItemResults]) -> list[Headline]:
    """Return the headline of each paper, in the order of `papers.toml`. A paper without any claim has none."""
    rows = claim_rows(every)
    found = []
    for paper in PAPERS:
        sentence = _headline_sentence(paper, [row for row in rows if row.reported.paper == paper])
        if sentence is not None:
            about = PAPERS[paper]
            words = about.get("headline_words") or sentence.rows[0].claim.name
            outcomes = tuple(outcomes_of(sentence, every))
            short = about["short"]
            found.append(Headline(paper=paper, short=short, words=words, sentence=sentence, outcomes=outcomes))
    return found


def _headline_sentence(paper: str, rows: Sequence[ClaimRow]) -> Sentence | None:
    """Return the sentence that `papers.toml` names, or the sentence of the first primary claim that has a run."""
    named = PAPERS[paper].get("headline")
    sentences = sentences_of(rows)
    for sentence in sentences:
        by_name = {f"{row.item.name}: {row.claim.name}": row for row in sentence.rows}
        if named in by_name:
            others = [row for name, row in by_name.items() if name != named]
            return Sentence(rows=(by_name[named], *others))
    return min(sentences, key=_importance, default=None)


def _importance(sentence: Sentence) -> tuple[bool, bool]:
    has_run = any(row.judged.estimate is not None for row in sentence.rows)
    return not has_run, not any(row.claim.main for row in sentence.rows)


def outcomes_of(sentence: Sentence, every: Sequence[ItemResults]) -> list[SentenceOutcome]:
    """Return the outcomes of the sentence at every setting, judged ones first, then by number of clients.

    These are the sentence's claims at the profile with the most informative runs, decided verdicts on the same claims
    at other profiles, and judged claims of other tables on the same contrast. Runs without a verdict are added if
    they have more clients than any verdict, or data that no verdict covers.
    """
    judged: list[SentenceOutcome] = []
    unjudged: list[SentenceOutcome] = []
    for row in sentence.rows:  # the headline's own claim first
        judged.append(_outcome(row))
        judged += [_outcome(other) for other in _at_other_profiles(row, every)]
        for other in row.others:
            claimed = _claim_on(row.reported.same_profile[other.item], other)
            if claimed is None:
                unjudged.append(_without_claim(row, other))
            else:
                judged.append(_outcome(claimed))
    unjudged += [_without_records(row) for row in sentence.rows if row.larger and not row.larger.is_known]
    found = [*judged, *_not_covered(unjudged, judged)]
    distinct: dict[tuple[str, str, str], SentenceOutcome] = {}
    for outcome in found:
        distinct.setdefault((outcome.name, outcome.scope, outcome.page), outcome)
    return sorted(distinct.values(), key=_place)


def _place(outcome: SentenceOutcome) -> tuple[bool, bool, int, str]:
    """Return the sort key of an outcome: those of a further reduced setting come first, and then decided ones."""
    return not outcome.leads, outcome.verdict not in DECIDED, outcome.K, outcome.scope


def _not_covered(unjudged: Iterable[SentenceOutcome], judged: Sequence[SentenceOutcome]) -> list[SentenceOutcome]:
    """Select the unjudged outcomes that have more clients than any judged one, or different data; one per data set."""
    most = max((outcome.K for outcome in judged), default=0)
    known = {data for outcome in judged for data in outcome.data}
    chosen: dict[tuple[str, ...], SentenceOutcome] = {}
    for outcome in unjudged:
        if most < outcome.K or not known.issuperset(outcome.data):
            before = chosen.get(outcome.data, outcome)
            chosen[outcome.data] = max(before, outcome, key=lambda one: (one.K, one.n))
    return list(chosen.values())


def _at_other_profiles(row: ClaimRow, every: Iterable[ItemResults]) -> list[ClaimRow]:
    """Return the decided rows of the same claim at other profiles: on other data, networks or lengths."""
    others = [one for one in every if one.item.name == row.item.name and one.item.profile != row.item.profile]
    rows = [other for reported in others for other in rows_of(reported)]
    return [other for other in rows if other.key == row.key and other.judged.is_decided]


def _claim_on(place: ItemResults, other: Other) -> ClaimRow | None:
    """Return the judged claim of that table on the contrast, or None without one."""
    if other.verdict is None:
        return None
    return next((row for row in rows_of(place) if row.claim.contrasts == (other.contrast,)), None)


def _outcome(row: ClaimRow) -> SentenceOutcome:
    judged, claim = row.judged, row.claim
    verdict = row.verdict if row.verdict != "not judged yet" else NOT_JUDGED
    seen, by_contrast = judged.evidence, dict[str, Sequence[float]]()
    if seen is not None and judged.estimate is not None and claim.endpoint != "arithmetic":
        seeds = (seen.confirming or seen.pilots)[: judged.n]
        for number, name in enumerate(_contrast_names(claim.contrasts)):
            by_contrast[name] = seen.differences_at(seeds, number)
    return SentenceOutcome(
        claim=claim,
        name=claim.name,
        verdict=verdict,
        setting=setting_text(row.item, claim.labels),
        K=max(numbers(row.item, claim.labels, "K"), default=0),
        data=data_of(row.item, claim.labels),
        estimate=judged.estimate,
        interval=judged.interval,
        n=judged.n,
        is_exploratory=seen is not None and not seen.confirming,
        leads=bool(base_of(row.item.name)),
        is_below_baseline=seen is not None and bool(seen.below),
        differences=by_contrast,
        page=row.page,
    )


def _without_claim(row: ClaimRow, other: Other) -> SentenceOutcome:
    """Return the outcome of runs of a different table without a judged claim."""
    place = row.reported.same_profile[other.item]
    by_seed = differences(place, row.claim, other.contrast)
    seeds = CONFIRMING if other.confirmatory else PILOTS
    values = [value for seed, value in by_seed.items() if seed in seeds]
    return SentenceOutcome(
        claim=row.claim,
        name=row.claim.name,
        verdict=NOT_JUDGED,
        setting=setting_text(place.item, other.contrast),
        K=max(other.K, default=0),
        data=data_of(place.item, other.contrast),
        estimate=other.estimate,
        n=other.n,
        is_exploratory=not other.confirmatory,
        differences=dict(zip(_contrast_names([other.contrast]), [values], strict=True)),
        page=place.page,
    )


def _without_records(row: ClaimRow) -> SentenceOutcome:
    """Return an outcome for more clients without any record; its text names the table that has the runs."""
    assert row.larger is not None
    setting = f"K = {row.larger.K} (see {row.larger.item})"
    return SentenceOutcome(claim=row.claim, name=row.claim.name, verdict=NOT_JUDGED, setting=setting, K=row.larger.K)


def _contrast_names(contrasts: Sequence[Mapping[str, float]]) -> list[str]:
    """Name each contrast by the cell that is expected to be better, or by the other one if that distinguishes them."""
    better = [max(contrast, key=lambda label: contrast[label]) for contrast in contrasts]
    worse = [min(contrast, key=lambda label: contrast[label]) for contrast in contrasts]
    for names in (better, worse):
        if len(set(names)) == len(names):
            return names
    return [f"{number}" for number in range(1, len(contrasts) + 1)]


@styled
def _draw(outcomes: Sequence[SentenceOutcome], *, named: bool) -> Picture:
    """Draw a panel for each outcome and in it a row for each contrast. `named`: titles are the comparisons' names."""
    names = [_short_names(list(outcome.differences)) for outcome in outcomes]
    longest = max(len(name) for own in names for name in own)
    rows = max(map(len, names))
    left = 0.15 + 0.08 * longest
    height = 0.1 + 0.2 * rows
    figure, axes = canvas(len(outcomes), 1, {}, width=4.7 - left, height=height, left=left, titles=True)
    for [ax], outcome, own in zip(axes, outcomes, names, strict=True):
        _draw_panel(ax, outcome, own)
        words = outcome.name if named else f"{outcome.verdict} {outcome.scope}"
        unit = unit_text(outcome.claim) or metric_name(outcome.claim.metric)
        titled(ax, unit, title=words, margins=(0.05, 0.05))
        ax.set_ylim(len(own) - 0.4, -0.6)
    # Panels with axes and titles of their own need more room between them than panels that share an axis.
    above, between, below = 0.34, 0.74, 0.5
    total = above + len(outcomes) * height + (len(outcomes) - 1) * between + below
    figure.set_figheight(total)
    for number, [ax] in enumerate(axes):
        box = ax.get_position()
        bottom = total - above - height - number * (height + between)
        ax.set_position((box.x0, bottom / total, box.width, height / total))
    return Picture(figure=figure)


def _draw_panel(ax: Axes, outcome: SentenceOutcome, names: Sequence[str]) -> None:
    """Draw one dot per seed, hollow for exploratory seeds, over the band of the smallest effect size of interest."""
    scale = 100.0 if is_fraction(outcome.claim.metric) else 1.0
    least = scale * outcome.claim.least
    if least:
        ax.axvspan(-least, least, color=GRID, alpha=0.6, linewidth=0)
    ax.axvline(0, color=INK, linewidth=0.8)
    face = "none" if outcome.is_exploratory else PALETTE[0]
    for place, values in enumerate(outcome.differences.values()):
        dots = [scale * value for value in values]
        ax.plot(dots, [place] * len(dots), "o", color=PALETTE[0], markerfacecolor=face, markersize=4.5, alpha=0.75)
        ax.plot([scale * typical(values)], [place], "|", color=INK, markersize=11, markeredgewidth=1.6)
    if outcome.interval is not None and len(names) == 1:
        edges = [scale * edge for edge in outcome.interval]
        ax.plot(edges, [0, 0], color=PALETTE[0], linewidth=2.2, alpha=0.4, solid_capstyle="butt", zorder=1)
    ax.set_yticks(range(len(names)) if any(names) else [], names if any(names) else [])
    ax.grid(visible=False, axis="y")
    ax.spines["left"].set_visible(False)


def _short_names(labels: Sequence[str]) -> list[str]:
    """Return the parts that differ between the labels: "K=2/fewer"; empty for a single label."""
    parts = [label.split("/") for label in labels]
    if len({len(own) for own in parts}) > 1:
        return list(labels)
    values_at = [set(values) for values in zip(*parts, strict=True)]
    varying = [place for place, values in enumerate(values_at) if len(values) > 1]
    names = []
    for own in parts:
        names.append("/".join(own[place] for place in varying))
    return names
