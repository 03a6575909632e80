"""Compare the estimates of a claim at several scales: does a reduced setting predict a larger one?

A claim is measured at a scale if its item has runs of all cells of a contrast at that profile. The sentence of a claim
may also have runs in other items, with more clients or on other data. This module judges no claim: a verdict is always
about the claim at its own profile.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from scipy.stats import binomtest, spearmanr

from benchmark.fractions import is_fraction
from benchmark.papers.item import Claim
from benchmark.papers.items import base_of
from benchmark.papers.paper import ON_CIFAR10
from benchmark.papers.scale import PROFILES
from benchmark.verdicts.judge import DECIDED, JUDGED
from benchmark.verdicts.others import numbers
from benchmark.verdicts.rule import FAMILY_ERROR
from benchmark.verdicts.signed_ranks import Interval
from reports.claims import ClaimRow, data_of, rows_of, scope_text
from reports.formatting import NONE, amount, count, difference_interval, has
from reports.item_results import ItemResults
from reports.tables import Row, Table, TableEntry, row_of, table_of

# Settings of the suite, from the smallest to the published one: the profiles, and the further reduced settings.
SETTINGS = (*PROFILES[:2], f"{PROFILES[1]}{ON_CIFAR10}", *PROFILES[2:])
FEWEST = 5  # the smallest number of pairs of estimates for a rank correlation


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The results of runs of one setting for a claim. The estimate has the sign of the claim's difference."""

    claim: Claim
    where: str  # "laptop: at K = 10 on MNIST"
    estimate: float  # in the metric's unit
    n: int
    verdict: str  # "not judged" without confirmatory seeds
    interval: Interval | None = None
    page: str = ""  # from the site's root

    @property
    def is_decided(self) -> bool:
        """Return whether the claim has a verdict in this setting."""
        return self.verdict in DECIDED

    @property
    def entry(self) -> TableEntry:
        """Return the estimate with its interval, its verdict and its number of seeds."""
        interval = difference_interval(self.claim.metric, self.interval)
        below = (f"{interval} {self.where}".strip(), f"{self.verdict}, n = {self.n}")
        return TableEntry(text=amount(self.claim, self.estimate), href=self.page, below=below, sort=self.estimate)


@dataclass(frozen=True, kw_only=True)
class ScaleAgreement:
    """How well the estimates of one setting predict the estimates of a larger one."""

    smaller: str
    larger: str
    pairs: Sequence[tuple[Measured, Measured]]

    @property
    def same_sign(self) -> int:
        """Return how many pairs of estimates have the same sign; a zero agrees with nothing."""
        return sum(small.estimate * large.estimate > 0 for small, large in self.pairs)

    @property
    def decided(self) -> list[tuple[Measured, Measured]]:
        """Return the pairs that have a verdict in both settings."""
        return [(small, large) for small, large in self.pairs if small.is_decided and large.is_decided]

    @property
    def same_verdict(self) -> int:
        """Return how many claims with a verdict in both settings have the same verdict."""
        return sum(small.verdict == large.verdict for small, large in self.decided)

    @property
    def in_points(self) -> list[tuple[Measured, Measured]]:
        """Return the pairs of estimates in percentage points, the only ones that can be ranked together."""
        return [(small, large) for small, large in self.pairs if is_fraction(small.claim.metric)]

    @property
    def rank_correlation(self) -> float | None:
        """Return Spearman's rank correlation of `in_points`, or None for fewer than five pairs or equal values."""
        small = [one.estimate for one, _ in self.in_points]
        large = [one.estimate for _, one in self.in_points]
        if len(small) < FEWEST or len(set(small)) == 1 or len(set(large)) == 1:
            return None
        return float(spearmanr(small, large).statistic)

    @property
    def text(self) -> str:
        """Say in a sentence or two how far the smaller setting predicts the larger one."""
        n = len(self.pairs)
        has_equality = any(small.claim.form == "comparable" for small, _ in self.pairs)
        including = ", including claims of equality," if has_equality else ""
        same = self.same_sign
        said = f"{same} of {count(n, 'pair')} of estimates{including} {has(same)} the same sign"
        correlation = self.rank_correlation
        if correlation is None:
            said += f"; fewer than {FEWEST} different ones are in points, too few for a rank correlation"
        else:
            said += f"; Spearman's rank correlation of the {len(self.in_points)} in points is {correlation:.2f}"
        return f"{said}. {self.verdicts_text}"

    @property
    def verdicts_text(self) -> str:
        """Say how many of the pairs with a verdict in both settings have the same one."""
        number = len(self.decided)
        if not number:
            return "No pair has a verdict in both settings."
        return f"In {self.same_verdict} of {count(number, 'pair')} with a verdict in both settings, the verdicts agree."


def trust_text(pairs: Sequence[tuple[Measured, Measured]]) -> str:
    """Say plainly how far a verdict of a reduced setting can be trusted in a larger one, given all pairs of estimates.

    By chance, half of the pairs have the same sign. Claims that two methods are equal are left out, since the sign of a
    difference says nothing about them. The binomial test of the signs treats the pairs as independent, although some of
    them share runs. No interval is given for the same reason.
    """
    signed = [pair for pair in pairs if pair[0].claim.form != "comparable"]
    if not signed:
        return "No claim has runs in two settings, so nothing is known about it."
    compared = ScaleAgreement(smaller="", larger="", pairs=signed)
    n, same = len(signed), compared.same_sign
    names = {small.claim.name for small, _ in signed}
    claims = count(len(names), "claim")
    pairs_text = f"{same} of {count(n, 'pair')} of estimates ({claims}) {has(same)} the same sign"
    signs = f"Without claims of equality, {pairs_text}; {n / 2:g} are expected by chance."
    test = "one-sided binomial test, which ignores that pairs share runs"
    advice = f"This agreement of signs can be due to chance ({test}), so a verdict applies only to its own setting."
    if binomtest(same, n, alternative="greater").pvalue <= FAMILY_ERROR / 2:
        advice = f"More signs agree than by chance ({test}), but a verdict still applies only to its own setting."
    return f"{signs} {compared.verdicts_text} {advice}"


def scales_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the content of the page "From small to large"."""
    by_claim = at_profiles(every)
    elsewhere = in_other_settings(every)
    compared = agreements(by_claim)
    all_pairs = list(elsewhere)
    for agreement in compared:
        all_pairs += agreement.pairs
    return {
        "trust": trust_text(all_pairs),
        "agreements": compared,
        "profiles": profiles_table(by_claim) if by_claim else None,
        "other": ScaleAgreement(smaller="", larger="", pairs=elsewhere) if elsewhere else None,
        "settings": settings_table(elsewhere) if elsewhere else None,
    }


def at_profiles(every: Iterable[ItemResults]) -> list[dict[str, Measured]]:
    """Return, for each claim with estimates in two or more settings, the estimates by profile.

    A further reduced setting is beside its profile, as "laptop-cifar10".
    """
    found: dict[tuple[str, str], dict[str, Measured]] = {}
    for row in _rows_with_estimates(every):
        base = base_of(row.item.name)
        suffix = row.item.name.removeprefix(base) if base else ""
        found.setdefault((base or row.item.name, row.claim.name), {})[row.item.profile + suffix] = _measured(row)
    return [measured for measured in found.values() if len(measured) > 1]


def _rows_with_estimates(every: Iterable[ItemResults]) -> list[ClaimRow]:
    """Return the claims that are measured by runs; withdrawn claims and computed quantities are left out."""
    rows = [row for reported in every for row in rows_of(reported)]
    return [
        row
        for row in rows
        if row.judged.estimate is not None and row.claim.endpoint != "arithmetic" and not row.claim.withdrawn
    ]


def _measured(row: ClaimRow) -> Measured:
    estimate = row.judged.estimate
    assert estimate is not None
    return Measured(
        claim=row.claim,
        where=f"{row.item.profile}: {row.scope}",
        estimate=estimate,
        n=row.judged.n,
        verdict=row.judged.verdict if row.judged.is_judged else "not judged",
        interval=row.judged.interval,
        page=row.page,
    )


def agreements(by_claim: Sequence[dict[str, Measured]]) -> list[ScaleAgreement]:
    """Return how well each setting predicts each larger one, for the pairs that have a claim in common."""
    found = []
    for smaller, larger in combinations(SETTINGS, 2):
        both = [measured for measured in by_claim if smaller in measured and larger in measured]
        pairs = [(measured[smaller], measured[larger]) for measured in both]
        if pairs:
            found.append(ScaleAgreement(smaller=smaller, larger=larger, pairs=pairs))
    return found


def profiles_table(by_claim: Sequence[dict[str, Measured]]) -> Table:
    """Return a row for each claim with its estimates side by side, from the smallest profile to the largest."""
    found = set().union(*by_claim)
    shown = [setting for setting in SETTINGS if setting in found]
    rows = []
    for measured in by_claim:
        claim = next(iter(measured.values())).claim
        entries = [measured[profile].entry if profile in measured else NONE for profile in shown]
        rows.append(row_of([TableEntry(text=claim.name, detail=(claim.source,)), *entries]))
    return table_of(
        "scales", "Estimates of each claim, by profile and further reduced setting", ("Claim", *shown), rows, words=1
    )


def in_other_settings(every: Iterable[ItemResults]) -> list[tuple[Measured, Measured]]:
    """Return, for each claim with runs in other items, its estimate and the one with more clients or on other data.

    A claim of a further reduced setting is left out, because its base has the same other items.
    """
    pairs = []
    for row in _rows_with_estimates(every):
        if base_of(row.item.name):
            continue
        own_data = data_of(row.item, row.claim.labels)
        own_K = max(numbers(row.item, row.claim.labels, "K"), default=0)
        for other in row.others:
            place = row.reported.same_profile[other.item].item
            is_larger = max(other.K, default=0) > own_K or data_of(place, other.contrast) != own_data
            if is_larger:
                measured = Measured(
                    claim=row.claim,
                    where=f"{other.item}: {scope_text(place, other.contrast)}",
                    estimate=other.estimate,
                    n=other.n,
                    verdict=other.verdict if other.verdict in JUDGED else "not judged",
                )
                pairs.append((_measured(row), measured))
    return pairs


def settings_table(pairs: Iterable[tuple[Measured, Measured]]) -> Table:
    """Return a row for each claim and other setting of its sentence, with both estimates."""
    rows: list[Row] = []
    for own, other in pairs:
        name = TableEntry(text=own.claim.name, detail=(own.claim.source,))
        rows.append(row_of([name, own.entry, other.entry]))
    heads = ("Claim", "In its own setting", "With more clients, or on other data")
    return table_of("settings", "Estimates of the same sentence in several settings", heads, rows, words=1)
