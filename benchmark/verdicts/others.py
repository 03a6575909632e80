"""Find the contrasts that test a claim's sentence in other settings, such as a different number of
clients or cohort size.

A claim names these contrasts (`Claim.elsewhere`). They are shown as estimates next to the verdict.
As everywhere, only a registered claim on confirmatory seeds has a verdict.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmark.methods.central import Central
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import CONFIRMING, PILOTS, Claim, Item
from benchmark.verdicts.cell_results import Records, cell_result
from benchmark.verdicts.judge import Judged, Verdict
from benchmark.verdicts.signed_ranks import typical
from benchmark.verdicts.statistics import contrast


class Place(Protocol):
    """An item with its records and judged claims."""

    @property
    def item(self) -> Item: ...
    @property
    def records(self) -> Records: ...
    @property
    def judged(self) -> Sequence[Judged]: ...


@dataclass(frozen=True, kw_only=True)
class Other:
    """A contrast of a different item that tests a claim's sentence."""

    item: str
    contrast: Mapping[str, float]
    K: tuple[int, ...]  # of its cells with clients, each value once
    C: tuple[int, ...]
    estimate: float  # Hodges-Lehmann, in the metric's unit, over the seeds that all of its cells have
    n: int
    confirmatory: bool  # whether the seeds are confirmatory; if not, they are exploratory
    verdict: Verdict | None  # of that item's claim on this contrast, or None if no claim is judged there


def others_of(judged: Judged, places: Mapping[str, Place]) -> list[Other]:
    """Return all contrasts in other items that have runs. `places` contains the items of the same
    profile, by name.
    """
    found = []
    for elsewhere in judged.claim.elsewhere:
        if (place := places.get(elsewhere.item)) is not None:
            for cells in elsewhere.contrasts_in(cell.label for cell in place.item.cells):
                found += _other(place, cells, judged.claim)
    return found


def _other(place: Place, cells: Mapping[str, float], claim: Claim) -> list[Other]:
    item = place.item
    results = {
        label: cell_result(item.cell(label), place.records, item.seeds, claim.metric, claim.endpoint) for label in cells
    }
    by_seed = contrast(cells, {label: result.values for label, result in results.items()})
    confirmed = [value for seed, value in by_seed.items() if seed in CONFIRMING]
    values = confirmed or [value for seed, value in by_seed.items() if seed in PILOTS]
    if not values:
        return []
    verdicts = [one.verdict for one in place.judged if one.claim.contrasts == (cells,) and one.is_judged]
    return [
        Other(
            item=item.name,
            contrast=cells,
            K=numbers(item, cells, "K"),
            C=numbers(item, cells, "C"),
            estimate=typical(values),
            n=len(values),
            confirmatory=bool(confirmed),
            verdict=verdicts[0] if verdicts else None,
        )
    ]


def numbers(item: Item, labels: Collection[str], name: str) -> tuple[int, ...]:
    """Return the numbers of clients ("K") or cohort sizes ("C") of these cells, without cells that
    train no client.
    """
    experiments = [cell.experiment for cell in item.cells if cell.label in labels]
    federations = [e.federation for e in experiments if not isinstance(e.method, ServerOnly | Central)]
    return tuple(sorted({getattr(federation, name) for federation in federations}))
