"""Which seeds count by how their runs were computed, and what can still be decided."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.open_claims import could_decide
from tests.reports.fakes import gained, pair

GPU = {"engine": {"name": "pool", "device": "NVIDIA H200"}}
NEW = {"rule": {"version": 7, "constants": ""}, "engine": {"name": "pool"}, "numerics": {"engine": 1, "norm": 2}}


def changed(records: Records, cell: str, seeds: range, **manifest: Any) -> dict[str, dict[int, RunRecord]]:
    """Return the records with these entries in the manifests of some runs of a cell."""
    made = {key: dict(runs) for key, runs in records.items()}
    for seed in seeds:
        run = made[cell][seed]
        made[cell][seed] = replace(run, manifest={**run.manifest, **manifest})
    return made


def of_new_rule(item: Item, seeds: int = 9) -> Records:
    records: Records = gained(item, 0.3, seeds)
    for cell in item.cells:
        records = changed(records, cell.cell_key, range(100, 100 + seeds), **NEW)
    return records


def verdict(item: Item, records: Records) -> tuple[str, int, list[int]]:
    (seen,) = judge(item, records)
    return seen.verdict, seen.n, list(seen.gaps)


def test_no_interim_analysis_beyond_a_gap_is_promised():
    """a on a GPU and b on a CPU at seed 110: ten seeds can be judged, so only the analysis at 9 can be reached. The
    claim is one of 40, and the first analysis that can decide it is at 16."""
    item = pair()
    records = gained(item, 0.0, 12, more=39)
    assert could_decide([item], records) == {16: 1}
    mixed = changed(records, item.cells[0].cell_key, range(110, 111), **GPU)
    assert could_decide([item], mixed) == {}
    (seen,) = judge(item, mixed)
    assert list(seen.gaps) == [110] and "NVIDIA H200" in seen.gaps[110] and seen.evidence is not None
    assert len(seen.evidence.confirming) == 10


def test_a_metric_that_was_not_measured_and_a_run_of_earlier_claims_are_gaps():
    item = pair(metric="pseudo/kept")
    records = gained(item, 0.0, 3)
    (seen,) = judge(item, records)
    assert list(seen.gaps) == [100, 101, 102] and seen.could_decide == 0
    item = pair()
    records = changed(gained(item, 0.3, 9), item.cells[0].cell_key, range(104, 105), claims={})
    (seen,) = judge(item, records)
    assert list(seen.gaps) == [104] and (seen.n, seen.could_decide) == (4, 0)


def test_a_seed_that_lacks_runs_is_no_gap():
    """a has run on a GPU, b not at all: nothing is lost, if the GPU trains b."""
    item = pair()
    records = changed(gained(item, 0.0, 9), item.cells[0].cell_key, range(100, 109), **GPU)
    del records[item.cells[1].cell_key]
    (seen,) = judge(item, records)
    assert seen.gaps == {} and seen.could_decide == 9


def test_a_second_copy_on_the_other_device_fills_the_gap():
    item = pair()
    cell = item.cells[0].cell_key
    records = gained(item, 0.3, 9)
    on_card = changed(records, cell, range(100, 109), **GPU)
    assert verdict(item, on_card)[:2] == ("not run", 0)
    with_both = {**on_card, cell: {s: replace(run, copies=(records[cell][s],)) for s, run in on_card[cell].items()}}
    assert verdict(item, with_both) == ("holds", 9, [])


DIFFERENCES: tuple[tuple[Mapping[str, Any], str], ...] = (
    ({"hardware": {"processor": "AMD EPYC"}}, "AMD EPYC"),
    ({"packages": {"torch": "2.16.1"}}, "torch 2.16"),
    ({"numerics": {"engine": 0, "norm": 2}}, ""),  # a version that no code of today has
)


@pytest.mark.parametrize(("manifest", "words"), DIFFERENCES[:2])
def test_within_a_new_seed_all_runs_share_processor_and_torch(manifest: Mapping[str, Any], words: str):
    """One run of nine differs: it ends the judged seeds under the new rule; runs of an older rule have a caveat."""
    item = pair()
    new = changed(of_new_rule(item), item.cells[0].cell_key, range(104, 105), **manifest)
    (seen,) = judge(item, new)
    assert (seen.n, list(seen.gaps)) == (4, [104]) and words in seen.gaps[104]
    old = changed(new, item.cells[1].cell_key, range(104, 105), rule={"version": 6, "constants": ""})
    (seen,) = judge(item, old)
    assert (seen.verdict, seen.n, seen.gaps) == ("holds", 9, {})
    assert any(caveat.startswith("1 of 9 judged seeds mix") for caveat in seen.caveats)


def test_models_of_processors_with_one_name_are_a_caveat():
    """A virtual machine calls both "AMD EPYC". If a run has not noted its model, nothing is known to differ."""
    item = pair()
    records = of_new_rule(item)
    for cell, model in zip(item.cells, ("AuthenticAMD 25 1", "AuthenticAMD 25 17"), strict=True):
        noted = {"processor": "AMD EPYC", "model": model}
        records = changed(records, cell.cell_key, range(104, 106), hardware=noted)
    (seen,) = judge(item, records)
    assert (seen.verdict, seen.n, seen.gaps) == ("holds", 9, {})
    assert seen.caveats == (
        "2 of 9 judged seeds mix processors: AMD EPYC (AuthenticAMD 25 1) and AMD EPYC (AuthenticAMD 25 17)",
    )
    unnoted = changed(records, item.cells[1].cell_key, range(104, 106), hardware={"processor": "AMD EPYC"})
    (seen,) = judge(item, unnoted)
    assert not seen.caveats


def test_new_seeds_go_on_with_one_kind_of_device():
    """From the fifth seed on both cells are a GPU's: nothing favours one of them within a seed, but over the seeds it
    could. Under the older rule all nine are judged, with a caveat."""
    item = pair()
    new = of_new_rule(item)
    for cell in item.cells:
        new = changed(new, cell.cell_key, range(104, 109), **GPU)
    assert verdict(item, new) == ("undecided", 4, list(range(104, 109)))
    old: Records = new
    for cell in item.cells:
        old = changed(old, cell.cell_key, range(100, 109), rule={"version": 6, "constants": ""})
    (seen,) = judge(item, old)
    assert (seen.verdict, seen.n) == ("holds", 9)
    assert any("several devices" in caveat for caveat in seen.caveats)


def test_a_patch_of_torch_is_no_other_version():
    item = pair()
    records = changed(of_new_rule(item), item.cells[0].cell_key, range(104, 105), packages={"torch": "2.15.3+cpu"})
    assert verdict(item, records) == ("holds", 9, [])


def test_the_sign_test_and_the_smallest_detectable_difference_stand_beside_a_verdict():
    """Nine of nine for: p = 2 / 512. Differences 0, .001 ... .008 have a standard deviation of .00274."""
    item = pair()
    (held,) = judge(item, gained(item, 0.3, 9))
    assert held.signs is not None and (held.signs.better, held.signs.worse) == (9, 0)
    assert held.signs.p == pytest.approx(2 / 512) and held.detectable is None
    (pilots,) = judge(item, gained(item, 0.0, 9, first=0))
    assert pilots.detectable is not None and pilots.detectable.seeds == 32
    assert pilots.detectable.spread == pytest.approx(0.00274, abs=1e-5)


def test_the_detectable_difference_is_found_in_four_of_five_cases():
    """Simulated: at that effect, 32 seeds judged once, at the level of the last interim analysis."""
    import numpy as np

    from benchmark.verdicts.looks import errors
    from benchmark.verdicts.signed_ranks import interval

    item = pair()
    (seen,) = judge(item, gained(item, 0.0, 9, first=0, more=9))
    assert seen.detectable is not None
    effect = seen.detectable.value / seen.detectable.spread
    rng = np.random.default_rng(1)
    level = errors(seen.error)[3]
    found = [interval(rng.normal(effect, 1.0, 32).tolist(), level) for _ in range(400)]
    assert 0.72 < np.mean([within is not None and within[0] > 0 for within in found]) < 0.88


def test_of_several_deciding_contrasts_the_order_in_the_file_does_not_matter():
    from tests.verdicts.test_judge import GOOD, three

    less = [-d for d in GOOD]
    twice_less = [2 * d for d in less]
    none = [0.001 * (-1) ** seed for seed in range(32)]
    one, other = three("every", less, none), three("every", none, less)
    assert one.verdict == other.verdict == "contradicted" and one.looks == other.looks == 1
    both: tuple[Judged, Judged] = (three("every", less, twice_less), three("every", twice_less, less))
    assert both[0].estimate == pytest.approx(both[1].estimate)


def test_runs_of_the_engine_stacked_and_of_the_pool_are_not_judged_together():
    """Within a seed, and from one seed to the next; on one GPU all else is alike."""
    item = pair()
    card = {"device": "NVIDIA H200", "bit_equal": False}
    pool, stacked = ({"engine": {"name": name, **card}} for name in ("pool", "stacked"))
    records = of_new_rule(item)
    for cell in item.cells:
        records = changed(records, cell.cell_key, range(100, 109), **pool)
    assert verdict(item, records) == ("holds", 9, [])
    one_arm = changed(records, item.cells[0].cell_key, range(104, 105), **stacked)
    assert verdict(item, one_arm)[1:] == (4, [104])
    later = records
    for cell in item.cells:
        later = changed(later, cell.cell_key, range(104, 109), **stacked)
    assert verdict(item, later)[1:] == (4, list(range(104, 109)))
