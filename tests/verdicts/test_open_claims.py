"""At how many seeds open claims can be decided, by the least p-value that n seeds can have: 2 / 2^n."""

from benchmark.verdicts.judge import judge
from benchmark.verdicts.open_claims import could_decide, looks_of, too_few_in_words
from tests.reports.fakes import accuracies, begun_under, gained, pair


def test_the_smallest_look_is_by_the_claim_s_error():
    """Look k of n seeds spends e ln(1 + 1.718 n / 32). At e = .05: .0197 at 9 seeds, more than 2 / 2^9 = .0039. Of a
    family of 40, e = .00125: .00049 at 9, less than .0039; at 16 more than 2 / 2^16. Alike needs 20 seeds: the look at
    24, also at e = .05."""
    item = pair()
    assert could_decide([item], gained(item, 0.0)) == {9: 1}
    assert could_decide([item], gained(item, 0.0, more=39)) == {16: 1}
    alike = pair(form="comparable")
    assert could_decide([alike], gained(alike, 0.0)) == {24: 1}


def test_what_is_decided_or_past_its_last_look_is_not_counted():
    """Nine seeds that a wins by .3 decide; so do not 32 that they win in turn, by more each time."""
    item = pair()
    assert could_decide([item], gained(item, 0.3, 9)) == {}
    a, b = item.cells
    turns = accuracies([(a, [0.5 + (-1) ** s * s / 100 for s in range(1, 33)]), (b, [0.5] * 32)], first=100)
    (judged,) = judge(item, begun_under(item, turns))
    assert (judged.verdict, judged.looks) == ("undecided", 4) and looks_of([judged]) == {}


def test_seeds_that_cannot_decide_every_open_claim():
    looks = {9: 1, 16: 8, 24: 3}
    assert too_few_in_words(looks, 3) == (
        "--seeds 3 can decide none of 12 open claims; --seeds 9 can decide 1, --seeds 16 can decide 9, "
        "--seeds 24 can decide all"
    )
    assert too_few_in_words(looks, 10).startswith("--seeds 10 can decide 1 of 12 open claims; --seeds 16 can decide 9")
    assert too_few_in_words(looks, 24) == too_few_in_words({}, 24) == ""
