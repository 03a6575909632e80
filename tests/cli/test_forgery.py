"""Edits of committed records by somebody who writes digests anew: which are refused, and which only training finds."""

import copy
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli.main import main
from benchmark.cli.verify import further_troubles
from benchmark.records import git_history
from benchmark.records.copies import copied, copy_digest, copy_of
from benchmark.records.record import RunRecord
from benchmark.sharing.bundle import write
from benchmark.sharing.verify import SPREAD, Retrained, check_records, compared, troubles_of
from benchmark.verdicts.rule import RULE_VERSION, rule
from tests.cli.test_verify import put
from tests.conftest import ROOT

CELL = "41c2e4d6bf09d4ba"  # FedSwitch, MNIST, laptop: sixteen confirmatory seeds
Copies = dict[int, dict[str, Any]]  # by seed


@pytest.fixture(scope="module")
def honest() -> Copies:
    """Return the committed copies of the cell's first seed block, as JSON."""
    paths = (ROOT / "results" / "reference" / CELL).glob("seed=1[0-9][0-9].json.gz")
    copies = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    assert len(copies) > 8
    return {content["seed"]: content for content in sorted(copies, key=lambda content: content["seed"])}


def records_of(copies: Copies) -> list[RunRecord]:
    """Return the records of these copies, each with a digest that fits."""
    signed = ({**content, "digest": copy_digest(content)} for content in copies.values())
    return [
        copy_of(gzip.compress(json.dumps(content).encode()), Path(CELL, f"seed={content['seed']}.json.gz"))
        for content in signed
    ]


def found(copies: Copies) -> list[str]:
    """Return the results of the checks without training; test_verify.py checks hashes of data and partitions."""
    records = records_of(copies)
    return [*check_records(records, with_data=False)[0], *further_troubles(records)[0]]


# Edits


def of_all(*keys: str | int, to: Any) -> Callable[[Copies], None]:
    def edit(copies: Copies) -> None:
        for content in copies.values():
            put(content, *keys, to=to)

    return edit


def of_one(*keys: str | int, to: Any) -> Callable[[Copies], None]:
    return lambda copies: put(copies[104], *keys, to=to)


def counted(name: str, factor: float) -> Callable[[Copies], None]:
    """Multiply a count by a factor, in the rounds and in their sum."""

    def edit(copies: Copies) -> None:
        column = "local_steps" if name == "local_steps" else f"comm/{name}"
        for content in copies.values():
            content["counts"][column] = [int(factor * value) for value in content["counts"][column]]
            content["result"]["cost"][name] = sum(content["counts"][column])
            content["result"]["last"][column] = content["counts"][column][-1]

    return edit


def raised(amount: float, share: float, seeds: int = 99) -> Callable[[Copies], None]:
    """Raise the accuracies of the last share of all rounds in this number of seeds, with all their sums."""

    def edit(copies: Copies) -> None:
        for content in list(copies.values())[:seeds]:
            column = content["evaluated"]["test/accuracy"]
            changed = [k for k in range(len(column)) if column[k] is not None and k >= (1 - share) * len(column)]
            for k in changed:
                column[k] = min(1.0, round(column[k] + amount, 6))
            content["result"]["last"]["test/accuracy"] = column[-1]
            best = max((value, -k) for k, value in enumerate(column) if value is not None)
            where = content["evaluated"]["round"][-best[1]]
            content["result"]["best"] = {"round": where, "test/accuracy": best[0]}

    return edit


def exchanged(copies: Copies) -> None:
    """Exchange the curves of two seeds, with their results."""
    for part in ("counts", "evaluated", "summaries"):
        copies[103][part], copies[104][part] = copies[104][part], copies[103][part]
    one, other = copies[103]["result"], copies[104]["result"]
    for name in ("last", "best", "cost", "exchange"):
        one[name], other[name] = other.get(name), one.get(name)


def diverged(copies: Copies) -> None:
    copies[104]["result"] |= {"status": "diverged", "error": "the loss of client 3 is not finite"}


def halved(copies: Copies) -> None:
    for content in copies.values():
        for family in content["manifest"]["claims"].values():
            family["others"] = family["others"][::2]


def without(seed: int) -> Callable[[Copies], Any]:
    return lambda copies: copies.pop(seed)


def earlier(copies: Copies) -> None:
    for content in copies.values():
        content["manifest"]["attempts"][0]["started"] = "2026-11-01T00:00:00Z"


def without_claims(copies: Copies) -> None:
    for content in copies.values():
        del content["manifest"]["claims"]


REFUSED: Mapping[str, Callable[[Copies], Any]] = {
    "a commit that git does not have": of_all("manifest", "code", "commit", to="0" * 40),
    "the same, in one seed": of_one("manifest", "code", "commit", to="f" * 40),
    "a branch in place of a commit": of_one("manifest", "code", "commit", to="HEAD"),
    "begun before its claim": earlier,
    "begun before its claim, in one seed": of_one("manifest", "attempts", 0, "started", to="2026-11-22T00:00:00Z"),
    "steps doubled": counted("local_steps", 2),
    "bytes up halved": counted("bytes_up", 0.5),
    "bytes down a tenth": counted("bytes_down", 0.1),
    "an accuracy that no number of images gives": raised(0.00123, 1.0),
    "the same, at its end alone": raised(0.00555, 0.1),
    "the same, in five seeds": raised(0.02503, 1.0, seeds=5),
    "a rule that does not exist": of_all("manifest", "rule", to={"version": 99, "constants": "8c4ef2ae8a88238a"}),
    "a rule that no manifest had": of_all("manifest", "rule", to={"version": 3, "constants": "8c4ef2ae8a88238a"}),
    "other constants of a rule": of_one("manifest", "rule", to={"version": 6, "constants": "0" * 16}),
    "other constants of a rule, in all runs": of_all("manifest", "rule", to={"version": 5, "constants": "0" * 16}),
    "an earlier rule with the present constants": of_all(
        "manifest", "rule", to={**rule(), "version": RULE_VERSION - 1}
    ),
    "half of the claims": halved,
    "no claims": without_claims,
    "a seed left out": without(107),
    "another setting": of_one("experiment", "federation", "T", to=8),
    "last without its round": of_one("result", "last", "test/accuracy", to=0.99),
    "fewer rounds": of_one("result", "rounds", to=10),
    "another seed": of_one("experiment", "seed", to=105),
}
# Who makes these up writes what could have been: nothing else in the record depends on it.
ONLY_BY_TRAINING: Mapping[str, Callable[[Copies], Any]] = {
    "1.2 points more": raised(0.012, 1.0),
    "1.2 points more in the last tenth": raised(0.012, 0.1),
    "2.5 points more in five seeds": raised(0.025, 1.0, seeds=5),
    "curves exchanged between two seeds": exchanged,
    "the last seed left out": without(115),
}
# No number is trained by them, so that training again does not find them either.
BELIEVED: Mapping[str, Callable[[Copies], Any]] = {
    "another type of processor": of_one("manifest", "hardware", "processor", to="Another"),
    "another number of cores": of_one("manifest", "hardware", "cores", to=4096),
    "faster": of_all("result", "wall_seconds", to=1.0),
}


def test_the_honest_records_are_not_refused(honest: Copies) -> None:
    assert found(honest) == []


@pytest.mark.parametrize("name", REFUSED)
def test_edits_that_contradict_git_claims_settings_or_images_are_refused(honest: Copies, name: str) -> None:
    REFUSED[name](copies := copy.deepcopy(honest))
    assert found(copies)


@pytest.mark.parametrize("name", [*ONLY_BY_TRAINING, *BELIEVED])
def test_edits_that_contradict_nothing_are_known(honest: Copies, name: str) -> None:
    """A test of what is documented: `fssl verify --help` says what only training finds."""
    {**ONLY_BY_TRAINING, **BELIEVED}[name](copies := copy.deepcopy(honest))
    assert found(copies) == []


def test_most_edits_are_refused() -> None:
    assert len(REFUSED) >= 20 and len(REFUSED) / len({**REFUSED, **ONLY_BY_TRAINING, **BELIEVED}) > 0.7


def test_without_a_history_commits_are_not_compared_and_it_is_said(honest: Copies, monkeypatch) -> None:
    of_all("manifest", "code", "commit", to="0" * 40)(copies := copy.deepcopy(honest))
    monkeypatch.setattr(git_history, "commit_times", lambda: None)
    assert further_troubles(records_of(copies)) == ([], {git_history.WITHOUT_HISTORY})
    of_all("manifest", "code", "commit", to=git_history.UNKNOWN)(copies)
    of_all("manifest", "attempts", to=[{"from_round": 0, "started": "2026-11-27T00:00:00Z"}])(copies)
    assert further_troubles(records_of(copies)) == ([], {git_history.WITHOUT_GIT})


# Runs that nobody can train here


def bundle_of(copies: Copies) -> bytes:
    return write({"title": "T", "by": "", "note": ""}, {CELL: "A"}, records_of(copies))


def on_a_card(copies: Copies, seeds: range) -> Copies:
    card = {"name": "pool", "threads": 1, "bit_equal": False, "device": "NVIDIA H200", "workers": 1}
    for seed in seeds:
        copies[seed]["manifest"]["engine"] = card
    return copies


def test_a_bundle_that_cannot_be_trained_here_is_not_accepted_with_retrain(honest, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pilots = on_a_card(copy.deepcopy(honest), range(100, 116))
    Path("b.zip").write_bytes(bundle_of(pilots))
    Path("results").mkdir()
    assert main(["verify", "b.zip", "--results", "results", "--retrain", "3", "--accept", "--json"]) == 66
    said = json.loads(capsys.readouterr().out)
    assert not said["accepted"] and said["retrained"] == [] and len(said["not_trainable"]) == len(pilots)
    assert said["troubles"][0].startswith("nothing was checked by training")
    assert not Path("results/submitted").exists()


def test_runs_are_drawn_among_those_that_can_be_trained_and_the_others_are_named(honest, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    drawn: list[RunRecord] = []

    def retrained(chosen: list[RunRecord], *, silent: bool) -> dict[Path, Retrained]:
        drawn.extend(chosen)
        return {record.path: Retrained() for record in chosen}

    monkeypatch.setattr("benchmark.cli.submit.retrain_each", retrained)
    Path("b.zip").write_bytes(bundle_of(on_a_card(copy.deepcopy(honest), range(100, 114))))
    Path("results").mkdir()
    assert main(["verify", "b.zip", "--results", "results", "--retrain", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(record.seed for record in drawn) == [114, 115]
    assert len(said["not_trainable"]) == 14 and all("H200" in reason for reason in said["not_trainable"].values())


# Between processors


def elsewhere(record: RunRecord, shift: float) -> RunRecord:
    """Return the record as a different type of processor makes it, with a different final accuracy and other losses."""
    content = json.loads(gzip.decompress(copied(record)))
    content["manifest"]["hardware"]["processor"] = "Another"
    content["result"]["last"]["test/accuracy"] = round(record.result["last"]["test/accuracy"] + shift, 4)
    losses = content["evaluated"]["test/loss"]
    content["evaluated"]["test/loss"] = [value and 2.0 * value for value in losses]
    return copy_of(gzip.compress(json.dumps(content).encode()), record.path)


def test_between_processors_the_end_has_to_lie_within_the_spread(honest: Copies) -> None:
    record = records_of(honest)[0]
    near, far = compared(record, elsewhere(record, -2 * SPREAD)), compared(record, elsewhere(record, -5 * SPREAD))
    assert near.trouble is None and near.difference == pytest.approx(2 * SPREAD, abs=1e-4)
    assert far.trouble is not None
    assert compared(record, record).trouble is None and compared(record, record).difference is None


def test_many_runs_that_all_end_higher_than_here_are_refused() -> None:
    """Each lies within the spread; their mean does not: its standard error is smaller by the root of their number."""
    of_nine = {Path(f"{n}"): Retrained(difference=2 * SPREAD) for n in range(9)}
    both_ways = {Path(f"{n}"): Retrained(difference=2 * SPREAD * (-1) ** n) for n in range(9)}
    assert len(troubles_of(of_nine)) == 1 and troubles_of(both_ways) == []
