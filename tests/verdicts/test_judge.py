"""Verdicts from differences chosen so that the intervals are known by hand.

One claim at the look of 9 seeds errs at .0197: of 2^9 sign patterns 5 have a sum of ranks up to 3, 2 * 5 / 512 is just
below it (sum 0: 1, 1: 1, 2: 1, 3: 2 patterns). So the interval goes from the 4th least to the 4th largest Walsh
average, and above zero are all intervals of which at most 3 averages are zero or less.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmark.errors import ConfigError
from benchmark.papers.item import Claim, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.evidence import Evidence, gather_evidence
from benchmark.verdicts.families import SeedBlock, assignments
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.judge import judge as judge_as_begun
from benchmark.verdicts.signed_ranks import walsh_averages
from tests.reports.fakes import accuracies, alone, begun_under, make_cell, make_record, pair

GOOD = [0.02 + 0.001 * seed for seed in range(32)]  # a gain of 2 to 5 points


def gains(item: Item, *differences: Sequence[float], first: int = 100) -> dict[str, dict[int, RunRecord]]:
    """Make runs of the item's cells: .5 and these differences, the last cell .5 alone."""
    *cells, last = item.cells
    ends = []
    for cell, of_cell in zip(cells, differences, strict=True):
        ends.append((cell, [0.5 + d for d in of_cell]))
    ends.append((last, [0.5] * max(map(len, differences))))
    return accuracies(ends, first)


def improves(better: str, factor: float = 1.0) -> Claim:
    contrast = {better: factor, "c": -factor}
    return Claim(name=better, quote="", source="", contrasts=(contrast,), form="improves", least=0.01)


def three_cells(*claims: Claim) -> Item:
    """Return cells "a", "b" and "c"."""
    cells = tuple(make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abc"))
    return Item(name="t/t", title="t", profile="demo", cells=cells, claims=claims)


def judge(item: Item, records: Records, **family: Any) -> list[Judged]:
    """Return the verdicts by runs that were begun under the item's claims."""
    return judge_as_begun(item, begun_under(item, records, **family))


def judged(differences: list[float], *, first: int = 100, claims: int = 1, **claim: Any) -> Judged:
    """Return the verdict on a - b = differences, for one claim among this number of claims of a paper."""
    item = pair(**claim)
    return judge(item, gains(item, differences, first=first), more=claims - 1)[0]


def test_pilot_seeds_are_shown_and_never_judged():
    """Nor have they an interval: it would be of another rule than the verdicts'."""
    seen = judged([0.3, 0.4, 0.5, 0.35, 0.45], first=0)
    assert (seen.verdict, seen.n, seen.estimate) == ("not judged yet", 5, pytest.approx(0.4))
    assert seen.reason.startswith("exploratory seeds only")
    assert seen.interval is None
    assert judged([0.49, -0.5, 0.5, 0.5, 0.4] * 20, first=0).verdict == "not judged yet"


def test_nine_seeds_decide_by_the_fourth_walsh_average():
    seen = judged([*GOOD[:8], -0.001])
    averages = walsh_averages((*GOOD[:8], -0.001))
    assert (seen.verdict, seen.n, seen.looks) == ("holds", 9, 1)
    assert seen.interval == pytest.approx((averages[3], averages[-4])) and seen.level == pytest.approx(0.9803, abs=1e-4)
    assert seen.reason.startswith("the interval lies above zero") and "1 of 4, with 9 seeds" in seen.reason
    assert judged([-d for d in GOOD[:9]]).verdict == "contradicted"
    # Nine gains of which two are losses as large: 12 averages are not above zero.
    assert judged([0.02] * 7 + [-0.04] * 2).verdict == "undecided"


def test_only_looks_judge_and_the_first_that_decides_stays():
    """12 seeds are judged by the first nine, and by all there is an estimate beside; losses after it change nothing."""
    seen = judged([*GOOD[:9], -0.4, -0.4, -0.4])
    assert (seen.n, seen.looks) == (9, 1) and seen.over_all is not None and seen.over_all.n == 12
    seen = judged(GOOD[:24])
    assert seen.over_all is not None and (seen.over_all.n, seen.over_all.value) == (24, pytest.approx(0.0315))
    assert seen.over_all.interval is not None and 0.02 < seen.over_all.interval[0] < seen.over_all.interval[1] < 0.043
    seen = judged(GOOD[:9] + [-0.3] * 23)
    assert (seen.verdict, seen.looks) == ("holds", 1) and judged(GOOD[:9]).over_all is None


def test_seeds_without_a_gap_whose_cells_one_engine_trained_are_judged():
    """Which runs have ended must not choose what is judged: without seed 104 only 100 to 103 count; where another
    engine, or another device, trained one cell of the third seed, two."""
    item = pair()
    records = gains(item, GOOD[:9])
    key = item.cells[0].cell_key
    runs = records[key]
    without = {**records, key: {seed: run for seed, run in runs.items() if seed != 104}}
    assert [(one.n, one.verdict) for one in judge(item, without)] == [(4, "undecided")]
    mine = runs[102].manifest.get("engine", {})
    for engine in ({"name": "other"}, {**mine, "device": "NVIDIA H200"}):
        other = replace(runs[102], manifest={**runs[102].manifest, "engine": engine})
        (mixed,) = judge(item, {**records, key: {**runs, 102: other}})
        assert (mixed.verdict, mixed.n) == ("undecided", 2)
        assert list(mixed.gaps) == [102] and "seed 102 can never count" in mixed.reason and mixed.could_decide == 0


def test_contrasts_of_one_claim_may_be_of_several_devices():
    """a - b on a GPU and c - d on a CPU, each within itself on one: all nine seeds are judged. With b - d beside them
    none is."""

    def seen(*pairs: str) -> Judged:
        claim = replace(improves("a"), contrasts=tuple({two[0]: 1.0, two[1]: -1.0} for two in pairs), form="every")
        cells = tuple(make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abcd"))
        item = Item(name="t/t", title="t", profile="demo", cells=cells, claims=(claim,))
        records = gains(item, [0.2] * 9, [0.1] * 9, [0.1] * 9)
        for cell in cells[:2]:
            runs = records[cell.cell_key]
            card = {seed: {**run.manifest, "engine": {"device": "NVIDIA H200"}} for seed, run in runs.items()}
            records[cell.cell_key] = {seed: replace(run, manifest=card[seed]) for seed, run in runs.items()}
        return judge(item, records)[0]

    assert (seen("ab", "cd").verdict, seen("ab", "cd").n) == ("holds", 9)
    assert (seen("ab", "cd", "bd").verdict, seen("ab", "cd", "bd").n) == ("not run", 0)


def test_an_improvement_that_is_not_there():
    """+-.1 points, margin one point: at 9 and 16 seeds too few to say so, at 24 no effect of interest."""
    nothing = [0.001 * (-1) ** seed for seed in range(32)]
    early = judged(nothing[:16])
    assert early.verdict == "undecided" and "16 seeds are fewer than 20" in early.reason
    assert (judged(nothing).verdict, judged(nothing).looks) == ("no effect of interest", 3)
    assert (judged(nothing, form="comparable").verdict, judged(nothing, form="comparable").n) == ("holds", 24)
    small = [0.002 + 0.00001 * seed for seed in range(32)]  # above zero, and of no interest all the same
    assert judged(small).verdict == "no effect of interest"
    assert judged([0.05 + d for d in GOOD], form="comparable").verdict == "contradicted"


def test_a_later_seed_block_has_less_error():
    """.05 on the first, .05 / 2^k on the k-th: all later ones together .025."""
    assert [SeedBlock(number=k).error for k in (1, 2, 3)] == [0.05, 0.0125, 0.00625]
    item = pair()
    second = gains(item, GOOD[:9], first=200)
    assert (judge(item, second)[0].verdict, judge(item, second)[0].error) == ("holds", 0.0125)
    anew = replace(item, confirms_from=200)  # its cells before were wrong, and are withdrawn
    assert judge(anew, second)[0].error == 0.05


def test_a_family_shares_its_error_and_what_is_decided_leaves_its_share():
    """At one of eight claims nine seeds cannot reject: 2 / 512 = .0039 lies above .0025. Where seven others are decided
    at 16 seeds, the last has all of the error, and its nine seeds do;
    not where the item has 8 of the paper's 64 claims, and so an eighth of its error."""
    alone = judged(GOOD[:9], claims=8)
    assert (alone.verdict, alone.interval) == ("undecided", None)
    assert alone.reason.startswith("9 seeds are too few for an interval at this claim's error")
    item = three_cells(improves("a"), *(improves("b", 1.0 + n) for n in range(7)))
    records = gains(item, GOOD[:9], GOOD)
    assert [one.verdict for one in judge(item, records)] == ["holds"] * 8
    assert [one.verdict for one in judge(item, records, more=56)] == ["undecided", *["holds"] * 7]


def test_main_claims_are_judged_in_order_with_half_of_the_error():
    """Nine seeds reject at .025 (2 / 512 = .0039 < .0099), whatever else the paper claims; the second only once the
    first is decided, and the others share the other half."""
    item = three_cells(improves("a"), improves("b"))
    first, second = map(item.hash_of, item.claims)

    def verdicts(of_a: list[float], main: tuple[str, ...]) -> list[str]:
        return [judged.verdict for judged in judge(item, gains(item, of_a, GOOD[:9]), main=main, more=60)]

    mixed = [0.02, -0.02] * 4 + [0.0]
    assert verdicts(GOOD[:9], (first, second)) == ["holds", "holds"]
    assert verdicts(mixed, (first, second)) == ["undecided", "undecided"]
    assert verdicts(mixed, (second, first)) == ["undecided", "holds"]
    assert verdicts(GOOD[:9], (second,)) == ["undecided", "holds"]
    assert judge(item, gains(item, mixed, GOOD[:9]), main=(first, second), more=60)[1].waits_for == "'a'"


def test_no_more_seeds_decide_a_claim_after_a_primary_one_that_ended_without_a_rejection():
    """The first of them has no effect of interest at 24 seeds, which rejects nothing: the second can never be tested.
    While the first is undecided, more seeds of both can decide the second."""
    item = three_cells(improves("a"), improves("b"))
    main = (item.hash_of(item.claims[0]), item.hash_of(item.claims[1]))
    nothing = [0.001 * (-1) ** seed for seed in range(32)]
    first, second = judge(item, gains(item, nothing, GOOD[:9]), main=main)
    assert (first.verdict, second.verdict) == ("no effect of interest", "undecided")
    assert second.waits_for == "'a'" and second.blocked and second.could_decide == 0
    assert "no more seeds can decide it" in second.reason and "next interim analysis" not in second.reason

    first, second = judge(item, gains(item, nothing[:9], GOOD[:9]), main=main)
    assert first.verdict == "undecided" and second.waits_for == "'a'"
    assert not second.blocked and second.could_decide == 16

    mixed = [0.01 * (1 + seed) * (-1) ** seed for seed in range(32)]  # undecided at the last look
    first, second = judge(item, gains(item, mixed, GOOD[:9]), main=main)
    assert first.verdict == "undecided" and second.blocked and second.could_decide == 0


def test_of_several_primary_claims_before_one_the_ended_one_blocks_it():
    """The first is open at nine seeds, the second has ended: the third can never be tested, and the second waits."""
    cells = tuple(make_cell(name, {"method": name}, 30 + n) for n, name in enumerate("abdc"))
    item = replace(three_cells(improves("a"), improves("b"), improves("d")), cells=cells)
    main = tuple(map(item.hash_of, item.claims))
    nothing = [0.001 * (-1) ** seed for seed in range(32)]
    first, second, third = judge(item, gains(item, nothing[:9], nothing, GOOD[:9]), main=main)
    assert (first.waits_for, second.waits_for, third.waits_for) == ("", "'a'", "'b'")
    assert (second.blocked, third.blocked, third.could_decide) == (False, True, 0)


def test_a_seed_that_does_not_count_ends_no_primary_claim():
    """One run of the first claim is from a GPU. A second copy from a CPU would fill the gap, so the second claim only
    waits."""
    item = three_cells(improves("a"), improves("b"))
    main = (item.hash_of(item.claims[0]), item.hash_of(item.claims[1]))
    records = begun_under(item, gains(item, GOOD[:9], GOOD[:9]), main=main)
    cell = item.cells[0].cell_key
    run = records[cell][102]
    on_card = replace(run, manifest={**run.manifest, "engine": {"name": "pool", "device": "NVIDIA H200"}})
    _, second = judge_as_begun(item, {**records, cell: {**records[cell], 102: on_card}})
    assert second.waits_for == "'a'" and not second.blocked
    assert [one.verdict for one in judge_as_begun(item, records)] == ["holds", "holds"]


def test_a_claim_is_judged_by_seeds_that_were_begun_under_it():
    """Reworded after its nine seeds: what they say is known, so they judge it no more; seeds from 200 on do."""
    item = pair()
    known = begun_under(item, gains(item, GOOD[:9]))
    assert judge_as_begun(item, known)[0].verdict == "holds"
    later = replace(item, claims=(replace(item.claims[0], least=0.02),))
    assert judge_as_begun(later, known)[0].verdict == "not run"
    more = begun_under(later, gains(item, [-d for d in GOOD[:9]], first=200))
    both = {key: {**known[key], **more[key]} for key in known}
    assert judge_as_begun(later, both)[0].verdict == "contradicted"
    assert judge_as_begun(item, both)[0].verdict == "holds"


def three(form: str, ab: list[float], bc: list[float]) -> Judged:
    """Judge the claim on a > b and b > c."""
    steps = ({"a": 1.0, "b": -1.0}, {"b": 1.0, "c": -1.0})
    item = three_cells(Claim(name="n", quote="", source="", contrasts=steps, form=form, least=0.01))  # type: ignore[arg-type]
    a, b, c = item.cells
    of_a = [0.5 + d for d in ab]
    of_b = [0.5] * max(len(ab), len(bc))
    of_c = [0.5 - d for d in bc]
    return judge(item, accuracies([(a, of_a), (b, of_b), (c, of_c)], first=100))[0]


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
    seen = judge(item, accuracies([(a, up), (b, [None, *[0.5] * 8])], first=100))[0]
    assert (seen.verdict, seen.n, seen.diverged) == ("holds", 9, ("b seed 100",))
    assert seen.reason.endswith("diverged and counted as 0: b seed 100")
    lost = accuracies([(a, [None, None, *up[2:]]), (b, [0.5] * 9)], first=100)
    assert judge(item, lost)[0].verdict == "undecided"


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"endpoint": "end"}, "counted as 0"),
        ({"endpoint": "collapse"}, "counted as collapsed"),
        ({"endpoint": "reached", "metric": "rounds_to/0.4"}, "counted as never reaching it"),
        ({"endpoint": "spread"}, "left out"),
        ({"endpoint": "throughout"}, "left out"),
        ({"metric": "pseudo/kept"}, "left out"),
    ],
)
def test_the_reason_says_how_a_diverged_run_counts(claim: dict[str, str], words: str):
    """The words are "left out" exactly if the seed of the run can never count."""
    item = pair(**claim)
    up: list[float | None] = [0.5 + d for d in GOOD[:9]]
    (seen,) = judge(item, accuracies([(item.cells[0], up), (item.cells[1], [None, *[0.5] * 8])], first=100))
    assert f"diverged and {words}: b seed 100" in seen.reason
    assert seen.evidence is not None and (100 in seen.evidence.gaps) == (words == "left out")


def test_a_comparison_of_two_cells_has_one_contrast():
    """If one of several were enough, two equal cells would hide that a third differs."""
    for form in ("comparable", "improves", "trend"):
        with pytest.raises(ConfigError, match="every"):
            three(form, GOOD[:9], GOOD[:9])


def with_bound(a: list[float], labels_alone: list[float], **claim: Any) -> tuple[Item, Records]:
    """Return a against b, which is always .5, with the supervised baseline as a's bound."""
    item = pair(**claim)
    item = replace(item, cells=(*item.cells, alone(item.cells[0])))
    return item, accuracies(list(zip(item.cells, (a, [0.5] * len(a), labels_alone), strict=True)), first=100)


def first_evidence(item: Item, records: Records) -> Evidence:
    """Return the evidence of the records for the item's first claim."""
    return gather_evidence(item, records, assignments(item, records)[0])


def collapsed(item: Item, records: Records) -> list[dict[str, list[bool]]]:
    """List for each contrast which runs of each cell collapsed, seed by seed."""
    seen = first_evidence(item, begun_under(item, records))
    collapsed = []
    for cells in seen.collapsed:
        collapsed.append({label: list(runs.values()) for label, runs in cells.items()})
    return collapsed


def test_a_run_collapses_five_points_below_its_bound_or_twenty_below_its_own_best():
    """At .45 under a bound of .5 it has, at .46 not. From .8 to .6 it has, to .65 not; one that came back has not; one
    that diverged has."""
    assert collapsed(*with_bound([0.45, 0.46, 0.499], [0.5] * 3))[0] == {"a": [True, False, False], "b": [False] * 3}
    item = pair()
    a, b = item.cells
    records = accuracies([(a, [0.6, 0.65, 0.8, None]), (b, [0.5] * 4)], first=100)
    for seed, values in {100: [0.8, 0.6], 101: [0.8, 0.65], 102: [0.8, 0.3, 0.8]}.items():
        rounds = [{"round": 10 * n, "test/accuracy": value} for n, value in enumerate(values, start=1)]
        records[a.cell_key][seed] = replace(records[a.cell_key][seed], rounds=rounds)
    assert collapsed(item, records)[0]["a"] == [True, False, False, True]


def test_a_bound_inside_the_contrast_is_an_arm_like_any_other():
    """a less labels alone: that a ends ten points below it is what the contrast measures, and no collapse. It wins at
    nine seeds, or loses at nine; no seed is left out."""
    contrast = {"a": 1.0, "alone": -1.0}
    lost = with_bound([0.3 - d for d in GOOD[:9]], [0.4] * 9, contrasts=(contrast,))
    assert collapsed(*lost) == [{"a": [False] * 9, "alone": [False] * 9}]
    assert [judge(*lost)[0].verdict, judge(*lost)[0].n] == ["contradicted", 9]
    won = with_bound([0.4 + d for d in GOOD[:9]], [0.4] * 9, contrasts=(contrast,))
    assert [judge(*won)[0].verdict, judge(*won)[0].n] == ["holds", 9]


def test_above_a_tenth_of_collapsed_runs_the_sign_test_has_to_agree():
    """The sign test errs at .0039 where nine of nine differences have one sign, and at .039 where eight have: .0197
    lies between. So a loss at one seed, and nine signed ranks of which the loss has the first (p = .0078), is a verdict
    of signed ranks that the sign test does not share: it is the verdict while no run collapses."""
    gains = [0.55 + d for d in GOOD[:8]]
    (whole,) = judge(*with_bound([*gains, 0.499], [0.5] * 9))
    assert whole.verdict == "holds" and not whole.runs_fall
    (fallen,) = judge(*with_bound([*gains, 0.499], [0.5] * 8 + [0.55]))  # one of nine runs is more than a tenth
    assert (fallen.verdict, fallen.runs_fall, fallen.collapsed) == ("undecided", True, {"a": 1, "b": 0})
    assert "(a: 1 of 9, 0 to 48 %)" in fallen.reason
    (agreed,) = judge(*with_bound([0.3 - d for d in GOOD[:9]], [0.4] * 9))
    assert (agreed.verdict, agreed.collapsed, agreed.n) == ("contradicted", {"a": 9, "b": 0}, 9)
    assert "(a: 9 of 9, 66 to 100 %)" in agreed.reason
    assert judge(*with_bound([0.3] * 9, [0.4] * 9, form="comparable"))[0].verdict == "contradicted"


def test_a_claim_about_collapse_counts_the_seeds_at_which_one_side_fell():
    """a falls at nine seeds and b at none: p = 2 / 512. At three of nine p = .25; however large the differences are."""
    (seen,) = judge(*with_bound([0.3] * 9, [0.4] * 9, endpoint="collapse"))
    assert (seen.verdict, seen.estimate) == ("contradicted", -1.0)
    assert ": a; 0 seeds for and 9 against" in seen.reason
    (seen,) = judge(*with_bound([0.3] * 3 + [0.9] * 6, [0.4] * 9, endpoint="collapse"))
    assert seen.verdict == "undecided" and "0 seeds for and 3 against, sign test p = 0.25" in seen.reason


def test_what_is_computed_needs_no_seeds():
    """Parameters of the paper's own networks: 300 less 100 is at least 50. Classes are a stand-in's own."""

    def computed(metric: str, least: float, values: tuple[float | None, float], profile: str) -> Judged:
        item = replace(pair(metric=metric, endpoint="arithmetic", least=least), profile=profile)
        cells = zip(item.cells, values, strict=True)
        made = tuple(replace(cell, computed={} if n is None else {metric: n}) for cell, n in cells)
        return judge(replace(item, cells=made), {})[0]

    seen = computed("parameters", 50, (300, 100), "paper")
    assert (seen.verdict, seen.estimate, seen.reason) == ("holds", 200, "computed, at least 50")
    assert computed("parameters", 50, (None, 100), "paper").verdict == "not judged yet"
    assert computed("parameters", 50, (300, 100), "demo").verdict == "not judged yet"
    assert computed("classes", 8, (9.5, 1.2), "demo").verdict == "holds"


def test_what_has_no_runs_is_not_judged():
    item = pair()
    nothing = judge(item, {})[0]
    assert (nothing.verdict, nothing.estimate, nothing.n) == ("not run", None, 0) and "no seed" in nothing.reason
    quoted = judge(replace(item, cells=(item.cells[0], replace(item.cells[1], role="quoted"))), {})[0]
    assert quoted.reason.startswith("--also-quoted trains b;")
    measured = pair(metric="diversity/gradient/l2/squared/clients")
    a, b = measured.cells
    runs = accuracies([(a, [0.5, 0.5]), (b, [0.5])])
    seen = judge(measured, runs)[0]
    assert seen.reason.startswith("runs of a, b ") and "--no-reference" in seen.reason
    for cell in (a, b):
        runs[cell.cell_key][0] = make_record(cell, 0, {measured.claims[0].metric: 2.0})
    seen = judge(measured, runs)[0]
    assert seen.n == 1 and seen.reason.startswith("runs of a did not measure")


def test_a_run_that_never_reaches_the_target_counts_against_a_claim_of_speed():
    """Runs of a have 11 rounds, of b 12. b is there in round 10, so that a has to be there before 7.5: it is in round
    4. An a that never comes counts 12, diverged or not: 7.5 - 12 = -4.5. If b fails, too, .75 x 13 - 12 = -2.25 would
    be the difference of any two methods: there is none, and the seed never counts. With weights 1 and -1 it is 0."""
    claim = {"contrasts": ({"b": 0.75, "a": -1.0},), "metric": "rounds_to/0.9", "endpoint": "reached", "least": 0}
    item = pair(**claim)

    def differences(*reached: tuple[int | str | None, int | None]) -> list[float]:
        runs: dict[str, dict[int, RunRecord]] = {cell.cell_key: {} for cell in item.cells}
        for seed, rounds in enumerate(reached, 100):
            for cell, round_ in zip(item.cells, rounds, strict=True):
                lines = [{"round": t, "test/accuracy": 0.9 if t == round_ else 0.1} for t in range(1, 13)]
                lines = lines[: cell.experiment.federation.rounds]
                status = "diverged" if round_ == "diverged" else "done"
                runs[cell.cell_key][seed] = make_record(cell, seed, lines[-1], rounds=lines, status=status)
        seen = first_evidence(item, begun_under(item, runs))
        assert seen.gaps.keys() == set(range(100, 100 + len(reached))) - seen.differences[0].keys()
        return list(seen.differences[0].values())

    assert differences((4, 10), (None, 10), ("diverged", 10), (None, None)) == [3.5, -4.5, -4.5]
    item = pair(**{**claim, "contrasts": ({"b": 1.0, "a": -1.0},)})
    assert differences((4, 10), (None, None)) == [6.0, 1.0]  # 13 - 12: b's runs have a round more
    for wrong in ({"metric": "test/accuracy"}, {"endpoint": "last"}):
        with pytest.raises(ConfigError, match="endpoint is .* for .*; rounds_to/... needs 'reached'"):
            pair(**{**claim, **wrong})
