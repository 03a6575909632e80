"""Verdicts from differences chosen so that the intervals are known by hand.

One claim at the look of 9 seeds errs at .0197: of 2^9 sign patterns 5 have a sum of ranks up to 3, 2 * 5 / 512 is just
below it (sum 0: 1, 1: 1, 2: 1, 3: 2 patterns). So the interval goes from the 4th least to the 4th largest Walsh
average, and above zero are all intervals of which at most 3 averages are zero or less.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import binom, binomtest, multinomial

from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import Cell, Claim, Item, Shown
from benchmark.records.families import Family
from benchmark.records.record import RunRecord
from benchmark.verdicts.evidence import Evidence
from benchmark.verdicts.judge import FAMILY_ERROR, Decision, Judged, _share, _sign_test, decide
from benchmark.verdicts.judge import judge as judge_as_begun
from benchmark.verdicts.looks import errors
from benchmark.verdicts.results import Records
from benchmark.verdicts.signed_ranks import walsh_averages
from tests.reports.fakes import begun_under, make_cell, make_record, pair

GOOD = [0.02 + 0.001 * seed for seed in range(32)]  # a gain of 2 to 5 points


def records_of(
    cells: Sequence[tuple[Cell, Sequence[float | None]]], first: int = 100
) -> dict[str, dict[int, RunRecord]]:
    """Finished runs of these accuracies, None: diverged, from that seed on."""
    return {
        cell.cell_key: {
            first + i: make_record(cell, first + i, {"test/accuracy": value})
            if value is not None
            else make_record(cell, first + i, {}, status="diverged")
            for i, value in enumerate(accuracies)
        }
        for cell, accuracies in cells
    }


def judge(item: Item, records: Records, **family: Any) -> list[Judged]:
    """The verdicts by runs that were begun under the item's claims."""
    return judge_as_begun(item, begun_under(item, records, **family))


def judged(differences: list[float], *, first: int = 100, claims: int = 1, **claim: Any) -> Judged:
    """The verdict on a - b = differences, as one of so many claims of a paper."""
    item = pair(**claim)
    a, b = item.cells
    records = records_of([(a, [0.5 + d for d in differences]), (b, [0.5] * len(differences))], first)
    return judge(item, records, more=claims - 1)[0]


def test_pilot_seeds_are_shown_and_never_judged():
    """Nor have they an interval: it would be of another rule than the verdicts'."""
    seen = judged([0.3, 0.4, 0.5, 0.35, 0.45], first=0)
    assert (seen.verdict, seen.n, seen.estimate) == ("not judged yet", 5, pytest.approx(0.4))
    assert seen.reason == "pilot seeds only: not judged (seeds from 100 confirm)"
    assert seen.interval is None
    assert judged([0.49, -0.5, 0.5, 0.5, 0.4] * 20, first=0).verdict == "not judged yet"


def test_pilots_say_how_many_confirming_seeds_would_do():
    """A gain of ten standard deviations takes the first look; one of a quarter takes more than all."""
    assert judged([0.09, 0.10, 0.11], first=0).seeds_needed == 9
    assert judged([-0.03, 0.005, 0.05], first=0, least=0.001).seeds_needed is None
    assert judged([0.09, 0.11], first=0).seeds_needed is None
    of_eight = tuple(replace(pair().claims[0], metric=f"metric {n}") for n in range(7))
    item = replace(pair(), claims=(*pair().claims, *of_eight))
    a, b = item.cells
    records = records_of([(a, [0.59, 0.6, 0.61]), (b, [0.5] * 3)], 0)
    assert judge(item, records)[0].seeds_needed == 16  # nine cannot reject at an eighth of .05


def test_fewer_than_nine_confirming_seeds_decide_nothing():
    seen = judged(GOOD[:8])
    assert (seen.verdict, seen.n, seen.interval) == ("undecided", 8, None)
    assert seen.reason == "8 seeds of at least 9" and seen.estimate == pytest.approx(0.0235)


def test_nine_seeds_decide_by_the_fourth_walsh_average():
    seen = judged([*GOOD[:8], -0.001])
    averages = walsh_averages([*GOOD[:8], -0.001])
    assert (seen.verdict, seen.n, seen.looks) == ("holds", 9, 1)
    assert seen.interval == pytest.approx((averages[3], averages[-4])) and seen.level == pytest.approx(0.9803, abs=1e-4)
    assert seen.reason == "the interval lies above zero; reached at look 1 of 4, at 9 seeds"
    assert judged([-d for d in GOOD[:9]]).verdict == "contradicted"
    # Nine gains of which two are losses as large: 12 averages are not above zero.
    assert judged([0.02] * 7 + [-0.04] * 2).verdict == "undecided"


def test_only_looks_judge_and_the_first_that_decides_stays():
    """12 seeds are judged by the first nine; losses after a decided look change nothing."""
    assert judged([*GOOD[:9], -0.4, -0.4, -0.4]).n == 9
    seen = judged(GOOD[:9] + [-0.3] * 23)
    assert (seen.verdict, seen.looks) == ("holds", 1)


def test_seeds_without_a_gap_are_judged():
    """Which runs have ended must not choose what is judged: without seed 104 only 100 to 103 count."""
    item = pair()
    a, b = item.cells
    records = records_of([(a, [0.5 + d for d in GOOD]), (b, [0.5] * 32)])
    del records[a.cell_key][104]
    assert (judge(item, records)[0].n, judge(item, records)[0].verdict) == (4, "undecided")


def test_a_seed_whose_cells_several_engines_trained_is_not_judged():
    """Nine seeds decide; of the third one cell is another engine's: a gap, so that two are left."""
    item = pair()
    a, b = item.cells
    records = records_of([(a, [0.5 + d for d in GOOD[:9]]), (b, [0.5] * 9)])
    (before,) = judge(item, records)
    run = records[a.cell_key][102]
    records[a.cell_key][102] = replace(run, manifest={**run.manifest, "engine": {"name": "other"}})
    (after,) = judge(item, records)
    assert (before.verdict, before.n) == ("holds", 9) and (after.verdict, after.n) == ("undecided", 2)
    assert "several engines trained the cells of seeds 102" in after.reason


def test_an_improvement_that_is_not_there():
    """+-.1 points, margin one point: at 9 and 16 seeds too few to say so, at 24 no effect of interest."""
    nothing = [0.001 * (-1) ** seed for seed in range(32)]
    early = judged(nothing[:16])
    assert early.verdict == "undecided" and "16 seeds of at least 20" in early.reason
    assert (judged(nothing).verdict, judged(nothing).looks) == ("no effect of interest", 3)
    assert (judged(nothing, form="comparable").verdict, judged(nothing, form="comparable").n) == ("holds", 24)
    small = [0.002 + 0.00001 * seed for seed in range(32)]  # above zero, and of no interest all the same
    assert judged(small).verdict == "no effect of interest"
    assert judged([0.05 + d for d in GOOD], form="comparable").verdict == "contradicted"


def test_what_is_open_says_what_would_settle_it():
    """Half a standard deviation: undecided at 9, likely by 32. Noise: not even 32 would do."""
    some = [0.03, -0.02, 0.025, -0.01, 0.03, 0.02, -0.005, 0.03, 0.01]
    seen = judged(some)
    assert seen.reason == "the interval includes zero; the next look is at 16 seeds"
    assert seen.seeds_needed in (24, 32) and not seen.futile and seen.next_look == 16
    noise = judged([0.1, -0.1, 0.1, -0.1, 0.0, 0.1, -0.1, 0.1, -0.1], least=0.001)
    assert noise.futile and noise.seeds_needed is None and "not even 32 would be likely" in noise.reason
    assert judged(GOOD[:9]).next_look == 0
    last = judged([0.01 * (seed - 3.3) * (-1) ** seed for seed in range(32)], least=0.001)
    assert "this was the last look" in last.reason and last.next_look == 0


def test_a_family_shares_its_error_and_what_is_decided_leaves_its_share():
    """At one of eight claims nine seeds cannot reject: 2 / 512 = .0039 lies above .0025. Where seven others are decided
    at 16 seeds, the last has all of the error, and its nine seeds do;
    not where the item has 8 of the paper's 64 claims, and so an eighth of its error."""
    alone = judged(GOOD[:9], claims=8)
    assert (alone.verdict, alone.interval) == ("undecided", None)
    assert alone.reason.startswith("9 seeds are too few for an interval at this claim's error")
    cells = [make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abc")]
    others = tuple(
        Claim(name=f"b {n}", quote="", source="", contrast={"b": 1.0 + n, "c": -1.0 - n}, form="improves", least=0.01)
        for n in range(7)
    )
    mine = Claim(name="a", quote="", source="", contrast={"a": 1.0, "c": -1.0}, form="improves", least=0.01)
    item = Item(name="t/t", title="t", profile="demo", cells=tuple(cells), claims=(mine, *others))
    a, b, c = cells
    records = records_of([(a, [0.5 + d for d in GOOD[:9]]), (b, [0.5 + d for d in GOOD]), (c, [0.5] * 32)])
    assert [one.verdict for one in judge(item, records)] == ["holds"] * 8
    assert [one.verdict for one in judge(item, records, more=56)] == ["undecided", *["holds"] * 7]


def test_main_claims_are_judged_in_order_with_half_of_the_error():
    """Nine seeds reject at .025 (2 / 512 = .0039 < .0099), whatever else the paper claims; the second only once the
    first is decided, and the others share the other half."""
    cells = [make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abc")]

    def claim(better: str) -> Claim:
        return Claim(name=better, quote="", source="", contrast={better: 1, "c": -1}, form="improves", least=0.01)

    item = Item(name="t/t", title="t", profile="demo", cells=tuple(cells), claims=(claim("a"), claim("b")))
    first, second = map(item.hash_of, item.claims)
    a, b, c = cells

    def judged_in(gains: list[float], main: tuple[str, ...]) -> list[Judged]:
        nine = [0.5] * 9
        records = records_of([(a, [0.5 + d for d in gains]), (b, [0.5 + d for d in GOOD[:9]]), (c, nine)])
        return judge(item, records, main=main, more=60)

    def verdicts(gains: list[float], main: tuple[str, ...]) -> list[str]:
        return [one.verdict for one in judged_in(gains, main)]

    assert verdicts(GOOD[:9], (first, second)) == ["holds", "holds"]
    assert verdicts([0.02, -0.02] * 4 + [0.0], (first, second)) == ["undecided", "undecided"]
    assert verdicts([0.02, -0.02] * 4 + [0.0], (second, first)) == ["undecided", "holds"]
    assert verdicts(GOOD[:9], (second,)) == ["undecided", "holds"]
    waits = judged_in([0.02, -0.02] * 4 + [0.0], (first, second))[1]
    assert waits.waits_for == "'a'" and waits.seeds_needed is None and not waits.futile  # more seeds do not settle it


def test_a_claim_is_judged_by_seeds_that_were_begun_under_it():
    """Reworded after its nine seeds: what they say is known, so they judge it no more; seeds from 200 on do."""
    item = pair()
    a, b = item.cells
    known = begun_under(item, records_of([(a, [0.5 + d for d in GOOD[:9]]), (b, [0.5] * 9)]))
    assert judge_as_begun(item, known)[0].verdict == "holds"
    later = replace(item, claims=(replace(item.claims[0], least=0.02),))
    assert judge_as_begun(later, known)[0].reason == "no seed has all the cells of this claim yet"
    more = begun_under(later, records_of([(a, [0.5 - d for d in GOOD[:9]]), (b, [0.5] * 9)], 200))
    both = {key: {**known[key], **more[key]} for key in known}
    assert judge_as_begun(later, both)[0].verdict == "contradicted"
    assert judge_as_begun(item, both)[0].verdict == "holds"


def three(form: str, ab: list[float], bc: list[float]) -> Judged:
    """The claim on a > b and b > c."""
    cells = [make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abc")]
    steps = ({"a": 1.0, "b": -1.0}, {"b": 1.0, "c": -1.0})
    claim = Claim(name="n", quote="", source="", contrasts=steps, form=form, least=0.01)  # type: ignore[arg-type]
    item = Item(name="t/t", title="t", profile="demo", cells=tuple(cells), claims=(claim,))
    a, b, c = cells
    records = records_of([(a, [0.5 + d for d in ab]), (b, [0.5] * max(len(ab), len(bc))), (c, [0.5 - d for d in bc])])
    return judge(item, records)[0]


@pytest.mark.parametrize("form", ["every", "order"])
def test_every_contrast_has_to_hold(form: str):
    """Each at the whole error; one that is below zero contradicts all, one that is open leaves all open."""
    assert three(form, GOOD[:9], GOOD[:9]).verdict == "holds"
    against = three(form, GOOD[:9], [-d for d in GOOD[:9]])
    assert against.verdict == "contradicted" and against.estimate is not None and against.estimate < 0
    open_ = three(form, GOOD[:9], [0.02] * 5 + [-0.02] * 4)
    assert open_.verdict == "undecided" and open_.estimate == pytest.approx(0.0, abs=0.021)
    assert three(form, GOOD, [0.001 * (-1) ** seed for seed in range(32)]).verdict == "no effect of interest"


def test_a_diverged_run_counts_with_the_worst_accuracy():
    """b, the cell that is subtracted, diverged once: a still wins. One of a's two runs that diverged: it does not."""
    item = pair()
    a, b = item.cells
    up: list[float | None] = [0.5 + d for d in GOOD[:9]]
    seen = judge(item, records_of([(a, up), (b, [None, *[0.5] * 8])]))[0]
    assert (seen.verdict, seen.n, seen.diverged) == ("holds", 9, ("b seed 100",))
    assert seen.reason.endswith("diverged and counted as accuracy 0: b seed 100")
    assert judge(item, records_of([(a, [None, None, *up[2:]]), (b, [0.5] * 9)]))[0].verdict == "undecided"


def with_bound(a: list[float], alone: list[float], **claim: Any) -> Judged:
    """a against b, which is always .5, beside labels alone."""
    item = pair(**claim)
    rounds = item.cells[0].experiment.federation.rounds
    bound = make_cell("Labels alone", {"method": "Labels alone"}, rounds, role="bound")
    bound = replace(bound, experiment=replace(bound.experiment, method=ServerOnly(batch_size=64)))
    same = replace(item.cells[1].experiment, federation=item.cells[0].experiment.federation, precision="bf16")
    item = replace(item, cells=(item.cells[0], replace(item.cells[1], experiment=same), bound))
    n = len(a)
    return judge(item, records_of([(item.cells[0], a), (item.cells[1], [0.5] * n), (bound, alone)]))[0]


def test_a_cell_below_labels_alone_is_named_first():
    seen = with_bound([0.5 + d for d in GOOD[:9]], [0.6] * 9, form="improves")
    assert seen.reason.startswith("rests on runs that typically end below labels alone: a, b; ")
    assert with_bound([0.5 + d for d in GOOD[:9]], [0.4] * 9).reason.startswith("the interval lies above zero")


def test_cells_below_labels_alone_are_not_called_alike():
    """The bounds have not run at all seeds, so that collapse is not judged; where they have, b lies below them."""
    item = pair(form="comparable")
    evidence = Evidence(claim=item.claims[0], differences=({100 + n: 0.0001 * n for n in range(24)},), below=("b",))
    (((decision, _),), ((alike, _),)) = (decide([one], Family()) for one in (evidence, replace(evidence, below=())))
    assert (decision.verdict, alike.verdict) == ("undecided", "holds")
    assert decision.why == "cells below labels alone are not called alike"


def test_above_a_fifth_of_collapsed_runs_collapse_alone_is_judged():
    """a collapses in all nine runs and b in none: of nine signs all are against a, p = 2 / 512 = .0039 < .0197. In
    three of nine, p = .25 says nothing. One of nine is below a fifth: differences decide. The share's interval is
    exact: 3 of 9 is 7 to 70 % (Clopper and Pearson)."""
    all_of_them = with_bound([0.3] * 9, [0.4] * 9)
    assert all_of_them.verdict == "contradicted" and "judged by collapse alone" in all_of_them.reason
    assert all_of_them.by_collapse and all_of_them.interval is None and all_of_them.collapsed == {"a": 9}
    most = with_bound([0.3] * 8 + [0.6], [0.4] * 9)  # the one that stands would tell of a gain of ten points
    assert most.estimate == pytest.approx(-0.2) and most.verdict == "contradicted"
    some = with_bound([0.3] * 3 + [0.6] * 6, [0.4] * 9)
    assert some.verdict == "undecided" and "a: 3 of 9, 7 to 70 %" in some.reason
    one = with_bound([0.3] + [0.6 + d for d in GOOD[:8]], [0.4] * 9)
    assert one.verdict == "holds" and not one.collapsed and one.n == 8  # seeds that the estimate is of
    assert one.estimate == pytest.approx(0.1235)  # .1 and the mean of the eight gains
    assert "of the 8 seeds at which no run ended below labels alone (a: 1 of 9, 0 to 48 %" in one.reason
    assert with_bound([0.3] * 9, [0.4] * 9, form="comparable").verdict == "undecided"


def test_what_collapse_judges_is_settled_by_more_collapse():
    """a collapses in 3 of 9 runs, b in none. Of 16 seeds a sign test needs seven of one sign (2 / 128 = .0156 < .019;
    six: .031), four of the seven to come, each at a chance of a third. The nine equal differences settle nothing."""
    open_ = with_bound([0.3] * 3 + [0.6] * 6, [0.4] * 9)
    assert open_.powers == pytest.approx({n: binom.sf(3, n - 9, 1 / 3) for n in (16, 24, 32)})
    assert open_.seeds_needed == 32  # .17, .79, .96
    either = with_bound([0.3] * 3 + [0.6] * 6, [0.4] * 8 + [0.55])  # at the ninth seed b alone collapses
    level = errors(FAMILY_ERROR)[1]
    assert either.powers[16] == pytest.approx(
        sum(
            multinomial.pmf([of_a, of_b, 7 - of_a - of_b], 7, [3 / 9, 1 / 9, 5 / 9])
            for of_a in range(8)
            for of_b in range(8 - of_a)
            if binomtest(3 + of_a, 4 + of_a + of_b).pvalue <= level
        )
    )
    assert set(with_bound([0.3] * 3 + [0.6] * 6, [0.4] * 9, form="comparable").powers.values()) == {0.0}


def test_each_contrast_is_judged_by_the_collapse_of_its_own_cells():
    """a and c stand, b collapses at every seed: a beats b by collapse (nine signs, p = .0039), and c by differences.
    Where those say nothing, neither does the claim; where they are below zero, it is contradicted at half its error."""
    steps = ({"a": 1.0, "b": -1.0}, {"a": 1.0, "c": -1.0})
    claim = Claim(name="n", quote="", source="", contrasts=steps, form="every", least=0.01)
    seeds = range(100, 109)

    def seen(against_c: Sequence[float]) -> Decision:
        one = Evidence(
            claim=claim,
            differences=(dict.fromkeys(seeds, 0.3), dict(zip(seeds, against_c, strict=True))),
            survival=(dict.fromkeys(seeds, 1.0), dict.fromkeys(seeds, 0.0)),
            collapsed={label: dict.fromkeys(seeds, label == "b") for label in "abc"},
        )
        ((decision, _),) = decide([one], Family())
        return decision

    assert not seen(GOOD[:9]).by_collapse  # the least contrast is judged by differences
    assert seen(GOOD[:9]).verdict == "holds" and seen([-d for d in GOOD[:9]]).verdict == "contradicted"
    assert seen(GOOD[:9]).why == "the interval lies above zero; 1 of 2 contrasts are judged by collapse alone"
    open_ = seen([0.02] * 5 + [-0.02] * 4)
    assert (open_.verdict, open_.least) == ("undecided", 1) and open_.why.startswith("the interval includes zero")


def test_a_run_that_still_rises_is_judged_at_its_round():
    """From .5 to .58 within the last fifth of 20 rounds, both cells."""
    item = pair(endpoint="end")
    curve = [{"round": t, "test/accuracy": 0.5 + 0.02 * max(0, t - 16)} for t in range(1, 21)]
    records = {
        cell.cell_key: {100 + i: make_record(cell, 100 + i, {"test/accuracy": 0.58}, rounds=curve) for i in range(9)}
        for cell in item.cells
    }
    assert judge(item, records)[0].reason.startswith("judged at round 11: a still gains 4.0 points in the last tenth")


def test_what_is_counted_needs_no_seeds():
    """Parameters of the paper's own networks: 300 less 100 is at least 50."""
    item = replace(pair(metric="parameters", endpoint="arithmetic", least=50), profile="paper")
    a, b = (replace(cell, computed={"parameters": n}) for cell, n in zip(item.cells, (300, 100), strict=True))
    seen = judge(replace(item, cells=(a, b)), {})[0]
    assert (seen.verdict, seen.estimate, seen.reason) == ("holds", 200, "counted, at least 50")
    assert judge(replace(item, cells=(b, replace(a, label="b", computed={}), replace(b, label="a"))[1:]), {})[
        0
    ].verdict == ("not judged yet")
    assert judge(replace(item, cells=(a, b), profile="demo"), {})[0].verdict == "not judged yet"
    clients = replace(pair(metric="classes", endpoint="arithmetic", least=8), profile="demo")  # a stand-in has its own
    a, b = (replace(cell, computed={"classes": n}) for cell, n in zip(clients.cells, (9.5, 1.2), strict=True))
    assert judge(replace(clients, cells=(a, b)), {})[0].verdict == "holds"


def test_what_has_no_rule_or_no_runs_is_not_judged():
    item = pair()
    only_shown = replace(item, cells=item.cells[:1], shown=(Shown(label="b", setting={}),))
    assert judge(only_shown, {})[0].reason == "b is only shown, not run"
    nothing = judge(item, {})[0]
    assert (nothing.verdict, nothing.estimate, nothing.n) == ("not run", None, 0) and "no seed" in nothing.reason
    quoted = judge(replace(item, cells=(item.cells[0], replace(item.cells[1], role="quoted"))), {})[0]
    assert quoted.reason == "--also-quoted trains b; no seed has all the cells of this claim yet"


@pytest.mark.parametrize("n", [2, 9, 24, 32])
def test_collapse_is_counted_as_scipy_does(n):
    """Its exact binomial test, and its interval of Clopper and Pearson."""
    for count in range(n + 1):
        expected = binomtest(count, n)
        assert _sign_test(count, n) == pytest.approx(expected.pvalue, abs=1e-12)
        low, high = expected.proportion_ci(1 - FAMILY_ERROR)
        assert _share("a", count, n) == f"a: {count} of {n}, {100 * low:.0f} to {100 * high:.0f} %"
