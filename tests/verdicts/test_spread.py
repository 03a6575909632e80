"""How often verdicts come out again under the measured spread, and what other settings say."""

import math
from dataclasses import dataclass, replace

import pytest

from benchmark.papers.item import Elsewhere, Item
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.others import others_of
from benchmark.verdicts.spread import comes_out_again, machine_share, pairs, spread_at, spread_per_run
from tests.reports.fakes import accuracies, begun_under, gained, pair


def test_the_spread_is_the_root_mean_square_of_the_measured_pairs():
    """.30, .55, .22, .43, .23, .53, .31: the sum of squares is 1.0557, over seven .1508, its root .388."""
    assert len(pairs()) == 7
    assert spread_per_run() == pytest.approx(math.sqrt(1.0557 / 7) / 100)
    assert spread_at(0.5) == spread_per_run() and spread_at(0.97) == pytest.approx(0.0016, abs=2e-4)


def judged(differences: list[float]) -> Judged:
    item = pair()
    a, b = item.cells
    ends = [(a, [0.5 + d for d in differences]), (b, [0.5] * len(differences))]
    return judge(item, begun_under(item, accuracies(ends, first=100)))[0]


def test_a_large_difference_comes_out_again_and_one_at_the_limit_does_not_always():
    """Nine gains of 20 points or more stay. One whose eighth or ninth difference is near zero is lost now and then;
    without a spread nothing moves; and a larger spread loses more."""
    clear = judged([0.2 + 0.01 * n for n in range(9)])
    assert comes_out_again(clear) == 1.0
    close = judged([0.001, 0.001, 0.002, 0.012, 0.014, 0.016, 0.02, 0.024, -0.0005])
    assert close.verdict == "holds" and comes_out_again(close, 0.0) == 1.0
    little, much = comes_out_again(close, 0.001), comes_out_again(close, 0.01)
    assert little is not None and much is not None and 0.2 < much < little <= 1.0
    assert comes_out_again(close) == comes_out_again(close)  # the draws have a fixed seed
    assert comes_out_again(judged([0.02, -0.02] * 4 + [0.0])) is None


def test_the_machine_has_a_share_of_the_variance():
    """Differences of .5 +- 1 point: variance 1.0 points squared or so; two runs have .39^2 / 2 each, .15 in all."""
    seen = judged([0.01 * (-1) ** n for n in range(9)]).evidence
    assert seen is not None
    spread = 9 / 8 * (0.01**2 - (0.01 / 9) ** 2)
    assert machine_share(seen, 0) == pytest.approx(spread_per_run() ** 2 / spread)
    assert machine_share(seen, 0, per_run=1.0) == 1.0


@dataclass
class Place:
    item: Item
    records: Records

    @property
    def judged(self) -> list[Judged]:
        return judge(self.item, self.records)


def at(item: Item, K: int) -> Item:
    """Return the item with this number of clients."""
    cells = []
    for cell in item.cells:
        federation = replace(cell.experiment.federation, K=K, C=2)
        cells.append(replace(cell, experiment=replace(cell.experiment, federation=federation)))
    return replace(item, cells=tuple(cells))


def test_what_runs_at_more_clients_say_stands_beside_the_verdict():
    """Contradicted at 10 clients; at 470 three exploratory seeds show +30 points, or a registered claim holds."""
    small = at(pair(elsewhere=(Elsewhere(item="toy/more", contrast={"a": 1.0, "b": -1.0}),)), 10)
    large = replace(at(pair(), 470), name="toy/more")
    (one,) = judge(small, gained(small, -0.3, 9))
    assert others_of(one, {}) == []
    pilots = Place(large, gained(large, 0.3, 3, first=0))
    (other,) = others_of(one, {"toy/more": pilots})
    assert (other.K, other.C, other.n, other.confirmatory, other.verdict) == ((470,), (2,), 3, False, None)
    assert other.estimate == pytest.approx(0.301)
    confirmed = Place(large, gained(large, 0.3, 9))
    (other,) = others_of(one, {"toy/more": confirmed})
    assert (other.n, other.confirmatory, other.verdict) == (9, True, "holds")
