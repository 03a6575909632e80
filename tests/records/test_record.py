"""Records read: runs and committed copies, what is damaged, which of two goes before. Edits: see `test_verify`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import DataError
from benchmark.experiment import Evaluation
from benchmark.records.collect import all_records, read_records
from benchmark.records.copies import pack, read_copy, unpack, write_reference
from benchmark.records.record import RunRecord, run_digest, run_folder
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment

TINY = tiny_experiment(evaluation=Evaluation(every=2, gradient_diversity_every=2))
KEY = TINY.cell_key


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    results = tmp_path_factory.mktemp("sound")
    for seed in range(2):
        run(TINY.with_seed(seed), results)
    return results


@pytest.fixture
def results(sound, tmp_path) -> Path:
    """Two seeds of one cell, three rounds each; rounds 2 and 3 are evaluated."""
    return shutil.copytree(sound, tmp_path / "results")


def folder_of(results: Path, seed: int = 0) -> Path:
    return run_folder(results, TINY.with_seed(seed))


def test_a_record_is_what_was_written(results):
    records = read_records(results, [KEY, "0" * 16], with_reference=True)
    assert list(records[KEY]) == [0, 1] and records["0" * 16] == {}
    record, lines = records[KEY][0], (folder_of(results) / "rounds.jsonl").read_text().splitlines()
    rounds = tuple(map(json.loads, lines))
    assert record.status == "done" and not record.edited
    assert len(record.rounds) == 3 and tuple(record.rounds) == rounds
    assert record.rounds[-1] == rounds[-1] and record.rounds[1:] == rounds[1:]
    assert record.last("test/accuracy") == rounds[-1]["test/accuracy"] and record.last("no/metric") is None
    losses = [line["client/loss"] for line in rounds]
    assert record.summary("client/loss")["median"] == sorted(losses)[1] and not record.summary("no/metric")


def test_a_copy_has_counts_of_every_round_and_the_rest_of_evaluated_ones(results):
    record = record_of(folder_of(results))
    copy = read_copy(write_reference(results, record))
    assert (copy.experiment, copy.manifest, copy.result) == (record.experiment, record.manifest, record.result)
    assert [line["round"] for line in copy.rounds] == [1, 2, 3]
    for mine, theirs in zip(copy.rounds, record.rounds, strict=True):
        assert all(mine[name] == theirs[name] for name in ("local_steps", "comm/bytes_up", "comm/bytes_down"))
    assert "client/loss" not in copy.rounds[0] and "diversity/delta/l2/squared/clients" not in copy.rounds[0]
    for number in (1, 2):
        assert copy.rounds[number].keys() == record.rounds[number].keys() - {
            "cell_key", "seed", "time/round_seconds", "time/cpu_seconds"
        }  # fmt: skip
    for metric in ("client/loss", "pseudo/kept"):
        assert copy.summary(metric) == pytest.approx(record.summary(metric), rel=1e-5)
    assert read_copy(write_reference(results, copy)) == copy  # a copy of a copy is the copy


METRICS = ("local_steps", "comm/bytes_up", "client/loss", "pseudo/rare", "test/accuracy", "time/round_seconds")


@given(st.lists(st.dictionaries(st.sampled_from(METRICS), st.floats(0, 1e6) | st.integers(0, 9)), max_size=6))
def test_a_copy_of_a_copy_is_the_copy(rounds):
    """Whatever was measured in which round: also a metric that no kept round has, whose mean the copy has alone."""
    lines = [{"round": number, **metrics} for number, metrics in enumerate(rounds, start=1)]
    record = RunRecord(cell_key="c", seed=0, experiment={}, manifest={}, result={}, rounds=lines)
    once = json.loads(json.dumps(pack(record)))
    copy = unpack(once, Path("x"))
    assert json.loads(json.dumps(pack(copy))) == once and not copy.edited
    for metric in ("client/loss", "pseudo/rare"):
        assert copy.summary(metric) == pytest.approx(record.summary(metric), rel=1e-5)


def test_a_finished_run_takes_precedence_over_a_copy_and_an_unfinished_one_does_not(results):
    record = record_of(folder_of(results))
    write_reference(results, replace(record, manifest={**record.manifest, "from": "copy"}))
    assert "from" not in read_records(results, [KEY], with_reference=True)[KEY][0].manifest
    (folder_of(results) / "result.json").unlink()
    assert "from" in read_records(results, [KEY], with_reference=True)[KEY][0].manifest


def test_an_edited_record_is_not_committed(results):
    """A copy of it would have a digest of its own, and be whole again."""
    folder = folder_of(results)
    path = folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('"round": 1', '"round":  1', 1))
    with pytest.raises(DataError, match="was edited after it was written, and is not committed"):
        write_reference(results, record_of(folder))


def test_an_odd_round_that_a_digest_vouches_for_is_named_where_it_is_read(results):
    """No digest of ours: whoever wrote the rounds wrote it. `verify` reads all rounds; tables mostly the results."""
    folder = folder_of(results)
    path, result = folder / "rounds.jsonl", json.loads((folder / "result.json").read_text())
    path.write_text(path.read_text().replace('"round": 2', '"round": [2]'))
    (folder / "result.json").write_text(json.dumps({**result, "digest": run_digest(folder, result)}))
    record = record_of(folder)
    with pytest.raises(DataError, match=r"rounds.jsonl: line 2: round is \[2\], not a whole number"):
        record.rounds[0]
    troubles: list[str] = []
    assert len(list(all_records(results, troubles))) == 1 and "line 2: round is [2]" in troubles[0]
