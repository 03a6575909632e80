"""Where a verdict was reached, and what else the records say of its sentence."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from benchmark.methods.central import Central
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.columns import WORDS
from benchmark.papers.item import CONFIRMING, Claim, Item
from benchmark.verdicts.evidence import contrasts
from benchmark.verdicts.judge import DECIDED, Judged, share_text
from benchmark.verdicts.signed_ranks import typical
from benchmark.verdicts.statistics import contrast
from reports.formatting import amount, difference_interval
from reports.reported import Reported

DATA = {**WORDS, "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "digits": "8x8 digits", "ham10000_64": "HAM10000"}


def scope_text(item: Item, claim: Claim) -> str:
    """ "at K = 10, C = 2 and 10 on MNIST": clients, cohorts and data of the claim's cells."""
    experiments = [cell.experiment for cell in item.cells if cell.label in claim.labels]
    with_clients = [
        experiment.federation for experiment in experiments if not isinstance(experiment.method, ServerOnly | Central)
    ]
    factors = [(name, {getattr(federation, name) for federation in with_clients}) for name in ("K", "C")]
    at = ", ".join(f"{name} = {_listed(map(str, sorted(values)))}" for name, values in factors if values)
    data = _listed(dict.fromkeys(DATA.get(experiment.data.name, experiment.data.name) for experiment in experiments))
    return " ".join([*(["at", at] if at else []), *(["on", data] if data else [])])


def _listed(words: Iterable[str]) -> str:
    """ "2, 6 and 10"."""
    *others, last = [*words] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def sum_text(coefficients: Mapping[str, float]) -> str:
    """ "FedAvg/small - FedAvg/full"."""
    terms = (
        f"{'+' if f > 0 else '-'} {'' if abs(f) == 1 else f'{abs(f):.3g} '}{label}" for label, f in coefficients.items()
    )
    return " ".join(terms).removeprefix("+ ")


def context_lines(reported: Reported, judged: Judged) -> list[str]:
    """What else a reader of a verdict has to know, a sentence each."""
    lines = [*over_all_lines(judged), *collapse_lines(judged), *against_lines(reported, judged)]
    return [*lines, *so_far_lines(reported, judged)]


def over_all_lines(judged: Judged) -> list[str]:
    """The estimate over all confirming seeds, where they are more than the look's."""
    if judged.over_all is None:
        return []
    interval = difference_interval(judged.claim.metric, judged.over_all.interval)
    text = f"Over all {judged.over_all.n} confirming seeds: {amount(judged.claim, judged.over_all.value)} {interval}"
    return [f"{text}{range_text(judged.over_all.is_range)}."]


def range_text(is_range: bool) -> str:
    return " (least and largest difference)" if is_range else ""


def collapse_lines(judged: Judged) -> list[str]:
    """How many runs of each cell collapsed, with the interval of Clopper and Pearson."""
    if not judged.collapsed:
        return []
    if not any(judged.collapsed.values()):
        return [f"Collapsed: no run of {', '.join(judged.collapsed)} ({share_text(0, judged.n)} each)."]
    shares = ", ".join(f"{label} {share_text(fallen, judged.n)}" for label, fallen in judged.collapsed.items())
    most = max(judged.collapsed.values())
    return [f"Collapsed: {shares}.", *([f"Runs fall: {most} of {judged.n}."] if judged.runs_fall else [])]


def against_lines(reported: Reported, judged: Judged) -> list[str]:
    """What other runs say of the sentence.

    Pilots whose sign disagrees with a decided verdict, and runs of other items."""
    lines = []
    if judged.pilots and _says(judged, judged.pilots.value) == "the other way":
        seen = f"{amount(judged.claim, judged.pilots.value)} (n = {judged.pilots.n})"
        lines.append(f"Pilots of the same cells say the other way: {seen}.")
    for place in judged.claim.elsewhere:
        if other := reported.same_profile.get(place.item):
            for coefficients in place.contrasts_in(cell.label for cell in other.item.cells):
                lines += _elsewhere_lines(other, judged, coefficients)
    return lines


def _elsewhere_lines(other: Reported, judged: Judged, coefficients: Mapping[str, float]) -> list[str]:
    claim = replace(judged.claim, contrast=coefficients, contrasts=())
    values = differences(other, claim, coefficients)
    if not values:
        return []
    runs = "Runs" if any(seed in CONFIRMING for seed in values) else "Pilots"
    seen = typical(list(values.values()))
    where = f"{scope_text(other.item, claim)} ({other.item.name}: {sum_text(coefficients)})"
    how = _says(judged, seen)
    says = f"say {how}" if how else "show"
    return [f"{runs} {where} {says}: {amount(claim, seen)} (n = {len(values)})."]


def _says(judged: Judged, value: float) -> str:
    """Whether a difference agrees with a decided verdict; empty for one that is open."""
    if judged.verdict not in DECIDED:
        return ""
    about_margin = judged.claim.form == "comparable" or judged.verdict == "no effect of interest"
    agrees = abs(value) <= judged.claim.least if about_margin else value > 0
    return "the same" if agrees == (judged.verdict != "contradicted") else "the other way"


def differences(reported: Reported, claim: Claim, coefficients: Mapping[str, float]) -> dict[int, float]:
    """Of a contrast by seed, over the seeds that have all of its cells; whatever the runs were begun under."""
    return dict(
        contrast(coefficients, {label: reported.values(label, claim.metric, claim.endpoint) for label in coefficients})
    )


def so_far_lines(reported: Reported, judged: Judged) -> list[str]:
    """Of a claim with several contrasts that is not run whole: those that have runs, and the cells that have none."""
    claim, labels = judged.claim, {cell.label for cell in reported.item.cells}
    if judged.verdict != "not run" or not claim.contrasts or not labels.issuperset(claim.labels):
        return []
    seen = [(each, differences(reported, claim, each)) for each in contrasts(claim)]
    if not any(values for _, values in seen):
        return []
    without = [label for label in claim.labels if not _confirming(reported, claim, label)]
    shown = [
        f"{sum_text(each)}: {amount(claim, typical(list(values.values())))} (n = {len(values)})"
        for each, values in seen
        if values
    ]
    return [
        f"Cells without confirming runs: {', '.join(without)}.",
        f"So far, not judged (above zero speaks for the claim): {'; '.join(shown)}.",
    ]


def verdict_text(reported: Reported, judged: Judged) -> str:
    """The verdict; of a claim of which some contrasts have runs "not judged yet"."""
    return "not judged yet" if so_far_lines(reported, judged) else judged.verdict


def _confirming(reported: Reported, claim: Claim, label: str) -> bool:
    return any(seed in CONFIRMING for seed in reported.values(label, claim.metric, claim.endpoint))
