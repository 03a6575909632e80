"""Each record has the numerics versions that it was computed with, by its manifest or by its commit."""

import dataclasses
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmark import numerics
from benchmark.numerics import CURRENT, MOVES, OLDER_THAN, is_current, numerics_in_words, numerics_of
from benchmark.records.collect import all_records
from benchmark.records.copies import COMMITTED
from benchmark.records.provenance import ROOT
from benchmark.records.record import RunRecord
from benchmark.records.versions import numerics_caveat, older_numerics
from benchmark.sharing.verify import _differences, retrain, why_not_here

BEFORE, SINCE = "b4a98f7c736a85c3d88e8454a237aa79a15a4e89", "ba816e81b3b8d87015bceb957b8f3b8b208bc0cd"
POOL = {"name": "pool", "threads": 1, "workers": 1}
DIVERSITY = "diversity/delta/l2/squared/with_server"


@cache
def committed() -> list[RunRecord]:
    troubles = list[str]()
    records = [record for record in all_records(COMMITTED, troubles) if record.is_copy]
    assert not troubles
    return records


def versions(*, norm: str = "gn", method: str = "ssfl", metrics: tuple[str, ...] = (), **manifest: Any) -> Any:
    experiment = {"model": {"norm": norm}, "method": {"kind": method}}
    return numerics_of(experiment, {"engine": POOL, "code": {"commit": BEFORE}, **manifest}, metrics)


def git(*words: str) -> int:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True).returncode


def test_a_group_norm_run_of_the_pool_has_the_version_of_its_commit() -> None:
    assert versions()["norm"] == 1
    assert versions(code={"commit": SINCE})["norm"] == CURRENT["norm"]


@pytest.mark.parametrize("engine", [{"name": "reference", "threads": 1}, {**POOL, "device": "NVIDIA H200"}])
def test_a_move_that_does_not_concern_a_run_leaves_it_current(engine: dict[str, Any]) -> None:
    assert is_current(versions(engine=engine))
    assert is_current(versions(norm="none"))


def test_diversity_has_an_old_version_only_if_it_was_measured() -> None:
    old: Any = {"norm": "none", "method": "semifl"}
    assert versions(**old)["diversity"] == CURRENT["diversity"]
    assert versions(**old, metrics=(DIVERSITY,))["diversity"] == 1
    assert versions(norm="none", metrics=(DIVERSITY,))["diversity"] == CURRENT["diversity"]  # SSFL's did not move


def test_the_manifest_decides_where_it_names_versions() -> None:
    unknown: Any = {"code": {"commit": "unknown"}}
    assert versions(**unknown, numerics=dict(CURRENT)) == dict(CURRENT)
    assert versions(**unknown, numerics={**CURRENT, "norm": 1})["norm"] == 1
    newer = {**CURRENT, "engine": CURRENT["engine"] + 1}
    assert versions(**unknown, numerics=newer) == newer and not is_current(newer)


def test_an_unlisted_commit_is_dated_by_the_start_of_its_run() -> None:
    early: Any
    late: Any
    early, late = ({"attempts": [{"started": f"2026-11-{day}T00:00:00Z"}]} for day in (24, 27))
    assert versions(code={"commit": "0" * 40}, **early)["norm"] == 1
    assert versions(code={"commit": "0" * 40}, **late)["norm"] == CURRENT["norm"]


def test_one_old_attempt_makes_a_run_old() -> None:
    attempts = [{"code": {"commit": commit}, "started": "2026-11-25T00:00:00Z"} for commit in (BEFORE, SINCE)]
    assert versions(code={"commit": SINCE}, attempts=attempts)["norm"] == 1


def test_words_name_the_commit_that_moved_numbers_and_only_parts_that_differ() -> None:
    words = numerics_in_words({**CURRENT, "norm": 1})
    assert all(part in words for part in ("norm version 1", SINCE[:8], "2026-11-25", f"norm version {CURRENT['norm']}"))
    assert "diversity" not in words
    assert numerics_in_words(CURRENT) == ""


def test_versions_rise_by_one_with_each_move() -> None:
    for part, version in CURRENT.items():
        assert [move.version for move in MOVES if move.part == part] == list(range(2, version + 1))


def test_the_table_lists_each_commit_of_a_committed_record() -> None:
    for record in committed():
        if "numerics" not in record.manifest:
            commits = {commit for commit, _ in numerics._attempts(record.manifest)}
            assert commits <= OLDER_THAN.keys(), record.path


def test_the_table_agrees_with_git() -> None:
    if any(git("cat-file", "-e", f"{move.commit}^{{commit}}") for move in MOVES):
        pytest.skip("this checkout has no history")
    here = [commit for commit in OLDER_THAN if not git("cat-file", "-e", f"{commit}^{{commit}}")]
    assert len(here) > len(OLDER_THAN) / 2
    for commit in here:
        older = {move.name for move in MOVES if git("merge-base", "--is-ancestor", move.commit, commit)}
        assert OLDER_THAN[commit] == older, commit


def test_records_whose_number_moved_are_known() -> None:
    """Measured by training them again: both differ (facts of the review of 465e93db)."""
    by_run = {(record.cell_key, record.seed): record for record in committed()}
    fedswitch = by_run["41c2e4d6bf09d4ba", 104]
    assert fedswitch.numerics["norm"] == 1
    semifl = next(record for (key, seed), record in by_run.items() if key.startswith("ff690fd4") and seed == 111)
    assert semifl.numerics["diversity"] == 1
    assert not dataclasses.replace(semifl).is_current


def test_this_code_is_read_from_a_file_in_the_package() -> None:
    assert Path(numerics.__file__).with_suffix(".toml").is_file()


def copy_of(key: str, seed: int) -> RunRecord:
    return next(record for record in committed() if record.cell_key.startswith(key) and record.seed == seed)


def test_a_record_of_an_older_norm_is_not_trained_again_to_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was "not equal to six digits", exit 66, though it was an honest run."""
    monkeypatch.setattr("benchmark.records.run.run", None)
    outcome = retrain(copy_of("41c2e4d6bf09d4ba", 104))
    assert outcome.skipped is not None and "norm version 1" in outcome.words() and SINCE[:8] in outcome.words()
    assert outcome.trouble is None


def test_of_an_older_diversity_everything_else_is_compared() -> None:
    old = copy_of("ff690fd4", 111)
    assert {name for name in old.summaries if name.startswith("diversity/")}
    assert why_not_here(old) is None
    doubled = {}
    diversity = dict(old.summaries)
    for name, sums in old.summaries.items():
        doubled[name] = {what: 2 * value for what, value in sums.items()}
        if name.startswith("diversity/"):
            diversity[name] = doubled[name]
    assert list(_differences(old, dataclasses.replace(old, summaries=diversity), 0.0)) == []
    assert list(_differences(old, dataclasses.replace(old, summaries=doubled), 0.0))
    current = dataclasses.replace(old, manifest={**old.manifest, "numerics": dict(CURRENT), "code": {}, "attempts": []})
    assert list(_differences(current, dataclasses.replace(current, summaries=diversity), 0.0))


def test_verify_counts_older_versions_and_calls_them_no_fault() -> None:
    lines = older_numerics(committed())
    old = [record for record in committed() if not record.is_current]
    assert sum(int(line.split()[0]) for line in lines) == len(old)
    named = {line.split(" runs of ")[1] for line in lines}
    assert {numerics_in_words(record.numerics) for record in old} == named


def test_a_table_says_how_many_of_its_runs_are_of_an_older_version() -> None:
    old = copy_of("41c2e4d6bf09d4ba", 104)
    current = next(record for record in committed() if record.is_current)
    assert numerics_caveat([current]) == "" == numerics_caveat([])
    caveat = numerics_caveat([old, current, old])
    assert "2 of 3 runs" in caveat and "2 runs of norm version 1" in caveat and "--no-reference" in caveat
