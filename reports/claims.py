"""Describe claims for readers: the verdict in words, with its seeds, interim analyses and caveats."""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmark.papers.computed import COMPUTED
from benchmark.papers.item import CONFIRMING, Claim, Item
from benchmark.papers.items import ITEMS, items
from benchmark.verdicts.judge import DECIDED, Estimate, Judged, judge, share_text, waiting
from benchmark.verdicts.others import Other, numbers, others_of
from benchmark.verdicts.signed_ranks import typical
from benchmark.verdicts.spread import comes_out_again, spread_per_run
from benchmark.verdicts.statistics import contrast, in_unit
from reports.formatting import (
    WORDS,
    amount,
    count,
    data_name,
    difference,
    difference_interval,
    metric_name,
    plain_quote,
    shown,
    slug,
)
from reports.item_results import ItemResults
from reports.provenance import pre_registration
from reports.tables import Table, table_of

RANGE = "smallest to largest difference"
OPEN = ("undecided", "no room", "pilots only", "not run")  # statuses of a claim without a decision


@dataclass(frozen=True, kw_only=True)
class Larger:
    """A claim's sentence at more clients than the claim has: at the largest K of any table or figure on it."""

    K: int
    item: str  # the table or figure, such as "ssfl/tabj1"
    data: tuple[str, ...] = ()  # the data sets of its cells there
    verdict: str = ""  # of the claim on this contrast in that table; empty if no claim judges it
    runs: str = ""  # the estimate of its runs: "+32.86 points (n = 16)"
    is_known: bool = True  # False if the run records of that table were not read


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim of a table or figure with its verdict, and the texts about it on pages."""

    reported: ItemResults
    judged: Judged
    has_page: bool = True

    @property
    def item(self) -> Item:
        return self.reported.item

    @property
    def claim(self) -> Claim:
        return self.judged.claim

    @property
    def key(self) -> tuple[str, str]:
        return self.item.name, self.claim.name

    @property
    def page(self) -> str:
        """Return the address of the claim on the page of its table, from the site's root; "" without a page."""
        return f"{self.reported.page}#claim-{slug(self.claim.name)}" if self.has_page else ""

    @property
    def status(self) -> str:
        """Return the verdict of a decided claim, and one of `OPEN` for an open claim."""
        if self.judged.estimate is None:
            return OPEN[-1]
        return self.judged.verdict if self.judged.verdict in (*DECIDED, *OPEN) else "pilots only"

    @property
    def verdict_text(self) -> str:
        """Return the verdict as pages print it.

        If the sentence is also about more clients, name K: "contradicted at K = 10; not judged at K = 470, where runs
        show +30.30 points (n = 3, exploratory)". Also name the data sets if they differ.
        """
        verdict, larger = self.verdict, self.larger
        if larger is None:
            return verdict
        own = f"{verdict} at K = {max(numbers(self.item, self.claim.labels, 'K'))}"
        at = f"at K = {larger.K}"
        if self.data != larger.data:
            own, at = f"{own} on {listed(self.data)}", f"{at} on {listed(larger.data)}"
        if larger.verdict:
            return f"{own}; {larger.verdict} {at}: {larger.runs}"
        if not larger.is_known:
            return f"{own}; {at} see {larger.item}"
        return f"{own}; not judged {at}" + (f", where runs show {larger.runs}" if larger.runs else "")

    @property
    def is_open_at_larger(self) -> bool:
        """Return whether the sentence is also about more clients than any verdict on it covers."""
        return self.larger is not None and self.larger.verdict not in DECIDED

    @functools.cached_property
    def larger(self) -> Larger | None:
        """Return the sentence of a decided claim at the largest K; None unless that K exceeds the claim's own.

        The claim names the contrasts on its sentence in other tables (`elsewhere`).
        """
        own = max(numbers(self.item, self.claim.labels, "K"), default=0)
        if self.judged.verdict not in (*DECIDED, "no room") or not own:
            return None
        places = [place.item for place in self.claim.elsewhere]
        found = [one for name in dict.fromkeys(places) for one in self._at_larger(name, own)]
        return max(found, key=lambda one: (one.K, bool(one.verdict), bool(one.runs)), default=None)

    def _at_larger(self, name: str, own: int) -> list[Larger]:
        """Return the contrasts of a table or figure on the sentence that have more than `own` clients."""
        place = self.reported.same_profile.get(name)
        if place is None and name not in ITEMS:  # an item of a test, or of a paper that this suite does not have
            return []
        item = place.item if place else items([name], self.item.profile)[0]
        labels = [cell.label for cell in item.cells]
        found = []
        seen = {tuple(other.contrast.items()): other for other in self.others if other.item == name}
        contrasts = (each for one in self.claim.elsewhere if one.item == name for each in one.contrasts_in(labels))
        for coefficients in contrasts:
            K = max(numbers(item, coefficients, "K"), default=0)
            other = seen.get(tuple(coefficients.items()))
            verdict, runs = (other.verdict or "", self._shown(other)) if other else ("", "")
            if own < K:
                data = data_of(item, coefficients)
                found.append(Larger(K=K, item=name, data=data, verdict=verdict, runs=runs, is_known=place is not None))
        return found

    @functools.cached_property
    def others(self) -> list[Other]:
        """Return the results of other tables and figures on the same sentence."""
        return others_of(self.judged, self.reported.same_profile)

    def _shown(self, other: Other) -> str:
        """Return the estimate with its number of seeds: "+30.00 points (n = 3, exploratory)"."""
        return f"{amount(self.claim, other.estimate)} (n = {other.n}{'' if other.confirmatory else ', exploratory'})"

    @property
    def caveats(self) -> list[str]:
        """Return the caveats of the verdict, one sentence each."""
        evidence = self.judged.evidence
        phrases = self.judged.caveats or (evidence.caveats if evidence else ())
        return [f"{phrase[:1].upper()}{phrase[1:]}." for phrase in phrases]

    @property
    def statistics(self) -> list[str]:
        """Return further statistics, one sentence each.

        These are the sign test, the smallest detectable effect of an open claim, a remark if the cells leave no room
        for an effect, and the share of repetitions with the same verdict.
        """
        judged = self.judged
        lines: list[str] = []
        if signs := judged.signs:
            said = f"{signs.better} of {signs.better + signs.worse} seeds above zero, {signs.worse} below"
            lines.append(f"Sign test: {said}, p = {signs.p:.2g}.")
        if found := judged.detectable:
            spread = f"by a spread of {in_unit(self.claim.metric, found.spread)} over {found.n} seeds"
            smallest = in_unit(self.claim.metric, found.value)
            lines.append(f"Smallest detectable effect at {found.seeds} seeds: {smallest} (power 80 %, {spread}).")
        if judged.no_room and judged.room is not None:
            left = in_unit(self.claim.metric, judged.room)
            lines.append(f"No room: its cells leave {left}, less than four times the smallest effect size of interest.")
        share = comes_out_again(judged)
        if share is not None:
            repeated = f"The verdict is the same in {100 * share:.0f} % of simulated repetitions"
            spread = f"{100 * spread_per_run():.2g} points (RMS), as between two processors"
            lines.append(f"{repeated} in which each run's accuracy varies by {spread}.")
        return lines

    @property
    def verdict(self) -> str:
        """Return the verdict; "not judged yet" if only some of the claim's contrasts have runs."""
        return "not judged yet" if self.so_far else self.judged.verdict

    @property
    def topic(self) -> str:
        topics = WORDS["topics"]
        start = self.claim.metric.split("/")[0]
        return str(topics.get(self.claim.endpoint) or topics.get(start, start))

    @property
    def endpoint(self) -> str:
        rounds = self.claim.endpoint.removeprefix("last_")
        return str(WORDS["endpoints"].get(self.claim.endpoint, f"mean over the last {rounds} rounds"))

    @property
    def data(self) -> tuple[str, ...]:
        """Return the names of the data sets of the claim's cells."""
        return data_of(self.item, self.claim.labels)

    @property
    def scope(self) -> str:
        return scope_text(self.item, self.claim.labels)

    @property
    def quote(self) -> str:
        claim = self.claim
        if claim.quote:
            return f"“{plain_quote(claim.quote)}” ({claim.source})"
        about = claim.source.removeprefix("our question: ")
        return "a question of ours" if about == "ours" else f"a question of ours: {about}"

    @property
    def estimate(self) -> str:
        return amount(self.claim, self.judged.estimate)

    @property
    def interval(self) -> str:
        """Write "95.0 % interval [+0.3, +1.2]", or "no interval"."""
        seen = self.judged.at_look
        if seen is None or not seen.interval:
            return "no interval"
        return f"{math.floor(1000 * self.judged.level) / 10:.1f} % interval {self.interval_of(seen)}"

    def interval_of(self, seen: Estimate) -> str:
        return difference_interval(self.claim.metric, seen.interval) + (f" ({RANGE})" if seen.is_range else "")

    @property
    def reason(self) -> str:
        """Return the reason of the verdict; for an open claim also the smallest interim analysis that can decide it."""
        seeds = self.judged.could_decide
        return self.judged.reason.replace("+-", "±") + (f"; {seeds} confirmatory seeds can decide it" if seeds else "")

    @property
    def difference_of(self) -> str:
        """Return the metric's name, with its direction if fewer are better, since a positive difference supports the
        claim.
        """
        name = metric_name(self.claim.metric)
        return f"{name} (fewer is positive)" if self.claim.endpoint == "reached" else name

    @property
    def computed(self) -> str:
        """Return the contrast of a computed claim: "FedSwitch - FedRGD", or "the smallest of 4 differences"."""
        contrasts = self.claim.contrasts
        return f"the smallest of {len(contrasts)} differences" if contrasts[1:] else sum_text(contrasts[0])

    @property
    def finding(self) -> str:
        """Describe in one or two sentences the measurement, its setting and its result."""
        judged = self.judged
        metric = self.difference_of
        start = f"{metric}, {self.endpoint}, {self.scope}"
        if judged.estimate is None:
            return f"{start}. {' '.join(self.so_far)}" if self.so_far else "No seed has all of its cells yet."
        if self.claim.endpoint == "arithmetic":
            return f"{metric}: {self.computed} is {self.estimate}. This is computed, without statistics."
        seeds = "confirmatory seed" if judged.is_judged else "exploratory seed"
        what = f"{self.estimate}, {self.interval}, over {count(judged.n, seeds)}."
        text = f"{'' if judged.is_decided else 'Not decided. '}{start}: the Hodges-Lehmann estimate is {what}"
        if judged.waits_for:
            waits = waiting(judged.waits_for, judged.blocked)
            return f"{text} {waits[0].upper()}{waits[1:]}." if judged.blocked else f"{text} It {waits}."
        return text if judged.is_judged else f"{text} Exploratory seeds are not judged."

    @property
    def brief(self) -> str:
        """Write the result in one sentence: "Test accuracy at K = 10, C = 2 on MNIST: +0.87 points (n = 9)."

        A decided claim also has its interval, and its estimate over all seeds if there are more of them.
        """
        judged, claim, seen = self.judged, self.claim, self.judged.at_look
        if judged.estimate is None:
            return "No seed has all of its cells yet." if self.has_page else "No run has been made."
        metric = self.difference_of
        if claim.endpoint == "arithmetic":
            return f"{metric}: {self.computed} is {self.estimate}, computed, no statistics."
        quantity = f"{metric} ({self.topic})" if claim.endpoint in ("speed", "spread") else metric
        level = f"{math.floor(1000 * judged.level) / 10:.1f} %"
        interval = f", {level} interval {self.interval_of(seen)}" if seen and seen.interval else ""
        kind = "" if judged.is_judged else ", exploratory"
        over_all = judged.over_all
        more = f"; {amount(claim, over_all.value)} over all {over_all.n} seeds" if over_all else ""
        return f"{quantity} {self.scope}: {self.estimate}{interval} (n = {judged.n}{kind}){more}."

    @property
    def brief_caveats(self) -> list[str]:
        """Return the caveats of a decided claim in a few words each; a caveat without a short form is whole."""
        phrases = []
        for caveat in self.caveats if self.judged.is_decided else ():
            whole = f"{caveat[:1].lower()}{caveat[1:].removesuffix('.')}"
            short = [text for start, text in WORDS["brief_caveats"].items() if whole.startswith(start)]
            phrases.append(short[0] if short else whole)
        return phrases

    @property
    def context(self) -> list[str]:
        """Return caveats for readers of the verdict, one sentence each.

        These are the caveats of a decided claim, the estimate over all seeds if there are more than the interim
        analysis used, the number of collapsed runs of each cell, and contradicting results.
        """
        return [*(self.caveats if self.judged.is_decided else []), *self.more]

    @property
    def more(self) -> list[str]:
        """Return the context without the caveats, which `reason` already contains."""
        judged, over_all, lines = self.judged, self.judged.over_all, list[str]()
        if over_all:
            what = f"{amount(self.claim, over_all.value)} {self.interval_of(over_all)}"
            lines.append(f"Over all {over_all.n} confirmatory seeds: {what}.")
        if any(judged.collapsed.values()):
            shares = (f"{label} {share_text(fallen, judged.n)}" for label, fallen in judged.collapsed.items())
            lines.append(f"Collapsed: {', '.join(shares)}.")
        if judged.runs_fall:
            most = max(judged.collapsed.values())
            lines.append(f"{most} of {judged.n} collapsed in one cell: the sign test has to agree, too.")
        return [*lines, *self.against, *self.so_far]

    @functools.cached_property
    def against(self) -> list[str]:
        """Return pilot runs that disagree with a decided verdict, and results of other tables, as sentences."""
        pilots = self.judged.pilots
        lines = []
        if pilots and (how := self._says(pilots.value)) not in ("", "say the same"):
            shown = "show the opposite" if how == "say the other way" else how
            seen = f"{amount(self.claim, pilots.value)} (n = {pilots.n})"
            lines.append(f"Pilot runs of the same cells {shown}: {seen}.")
        return [*lines, *map(self._said_by, self.others)]

    def _said_by(self, other: Other) -> str:
        how = self._says(other.estimate)
        item = self.reported.same_profile[other.item].item
        where = f"{scope_text(item, other.contrast)} ({other.item}: {sum_text(other.contrast)})"
        says = how or "show"
        runs = "Runs" if other.confirmatory else "Pilot runs"
        return f"{runs} {where} {says}: {amount(self.claim, other.estimate)} (n = {other.n})."

    def _says(self, value: float) -> str:
        """Say whether the value agrees with a decided verdict, or is on the other side of the margin that the verdict
        is about; "" if the claim is open.
        """
        claim, verdict = self.claim, self.judged.verdict
        if verdict not in DECIDED:
            return ""
        about_margin = claim.form == "comparable" or verdict == "no effect of interest"
        supports = abs(value) <= claim.least if about_margin else value > 0
        if supports == (verdict != "contradicted"):
            return "say the same"
        if about_margin:
            return f"show a {'smaller' if supports else 'larger'} difference"
        return "say the other way"

    @functools.cached_property
    def so_far(self) -> list[str]:
        """Describe a claim on several contrasts if only some have runs; return nothing for all other claims.

        One sentence names the cells without confirmatory runs, and one gives the estimates of the other contrasts.
        """
        claim, reported = self.claim, self.reported
        labels = {cell.label for cell in self.item.cells}
        several = claim.form in ("every", "order")
        if self.judged.verdict != "not run" or not several or not labels.issuperset(claim.labels):
            return []
        seen = {sum_text(each): list(differences(reported, claim, each).values()) for each in claim.contrasts}
        shown = [
            f"{each}: {amount(claim, typical(values))} (n = {len(values)})" for each, values in seen.items() if values
        ]
        if not shown:
            return []
        runs = reported.of(claim.metric, claim.endpoint)
        without = [label for label in claim.labels if not runs[label].values.keys() & set(CONFIRMING)]
        return [
            f"Cells without confirmatory runs: {', '.join(without)}.",
            f"So far, not judged; a difference above zero supports the claim: {'; '.join(shown)}.",
        ]

    @property
    def facts(self) -> dict[str, str]:
        """Return how the claim is judged, as names with values."""
        claim = self.claim
        sums = [*map(sum_text, claim.contrasts)]
        least = in_unit(claim.metric, claim.least)
        primary = "; a primary claim" if claim.main else ""
        return {
            "Quantity": f"{metric_name(claim.metric)}, {self.endpoint}",
            **{f"Difference {n}" if sums[1:] else "Difference": text for n, text in enumerate(sums, start=1)},
            "Holds if": f"it is {WORDS['rules'][claim.form].format(least)}",
            "Smallest effect size of interest": least,
            "Error of all interim analyses together": f"{100 * self.judged.error:.2g} %{primary}",
            **pre_registration(self.reported, claim),
        }

    @property
    def seeds(self) -> Table | None:
        """Return a table with one row per seed: the value of each cell and each contrast.

        Return None if no seed has all cells.
        """
        metric, seen = self.claim.metric, self.judged.evidence
        seeds = [*seen.pilots, *seen.confirming] if seen else []
        if seen is None or not seeds:
            return None
        names = [f"Difference {n}" for n in range(1, len(seen.differences) + 1)]
        heads = ["Seed", *seen.results, *(names if names[1:] else ["Difference"])]
        rows = []
        for seed in seeds:
            name = f"seed {seed}" if seed in CONFIRMING else f"seed {seed}, exploratory"
            values = [shown(metric, result.values.get(seed)) for result in seen.results.values()]
            values += [difference(metric, by_seed[seed]) for by_seed in seen.differences]
            rows.append((name, *values))
        return table_of("seeds", f"{metric_name(metric)}, {self.endpoint}", heads, rows)


def scope_text(item: Item, labels: Collection[str]) -> str:
    """Return the clients, cohorts and data of these cells: "at K = 10, C = 2 and 10 on MNIST"."""
    return at_setting(setting_text(item, labels), data_of(item, labels))


def setting_text(item: Item, labels: Collection[str]) -> str:
    """Return the clients and cohorts of these cells: "K = 10, C = 2 and 10"; empty without clients."""
    values_of = {name: numbers(item, labels, name) for name in ("K", "C")}
    return ", ".join(f"{name} = {listed(values)}" for name, values in values_of.items() if values)


def at_setting(setting: str, data: Sequence[str]) -> str:
    """Join the clients and the data sets of a scope: "at K = 10, C = 2 and 10 on MNIST"."""
    at = f"at {setting}" if setting else ""
    on = f"on {listed(data)}" if data else ""
    return f"{at} {on}".strip()


def data_of(item: Item, labels: Collection[str]) -> tuple[str, ...]:
    """Return the names of the data sets of these cells, each once."""
    names = [cell.experiment.data.name for cell in item.cells if cell.label in labels]
    return tuple(dict.fromkeys(data_name(name) for name in names))


def listed(values: Iterable[object]) -> str:
    """Write a list: "2, 6 and 10"."""
    *others, last = [*map(str, values)] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def sum_text(coefficients: Mapping[str, float]) -> str:
    """Write a contrast: "FedAvg/small - FedAvg/full"."""
    terms = (
        f"{'+' if f > 0 else '-'} {'' if abs(f) == 1 else f'{abs(f):.3g} '}{label}" for label, f in coefficients.items()
    )
    return " ".join(terms).removeprefix("+ ")


def differences(reported: ItemResults, claim: Claim, coefficients: Mapping[str, float]) -> dict[int, float]:
    """Compute a contrast by seed, over the seeds that have all of its cells, whatever claim the runs began under."""
    results = reported.of(claim.metric, claim.endpoint)
    return contrast(coefficients, {label: results[label].values for label in coefficients})


@functools.cache
def rows_of(reported: ItemResults) -> list[ClaimRow]:
    """Return the claims of the table or figure, in its order."""
    return [ClaimRow(reported=reported, judged=judged) for judged in reported.judged]


def without_runs(item: Item, claim: Claim) -> ClaimRow:
    """Return a row for a declared claim of an item that has no run, and thus no page.

    A claim on a computed quantity is judged at profile `paper`, which needs no run.
    """
    judged = Judged(claim=claim, verdict="not run", reason="no run")
    if claim.metric in COMPUTED:
        (item,) = items([item.name], "paper")
        judged = next(judged for judged in judge(item, {}) if judged.claim.name == claim.name)
    return ClaimRow(reported=ItemResults(item, {}), judged=judged, has_page=False)
