"""Reading records: runs and committed copies, damaged ones, which of two counts; as a table, and their weights.

Edits: see `test_verify`. Also the version of the code that a record names.
"""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import benchmark
from benchmark.data.datasets import load
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Evaluation, from_json, to_json
from benchmark.methods.ts_server_ema import TSServerEMA
from benchmark.models.build import build
from benchmark.papers.items import items
from benchmark.records import provenance
from benchmark.records.collect import all_records, read_records
from benchmark.records.copies import pack, read_copy, unpack, write_reference
from benchmark.records.record import RunRecord, run_digest, run_folder
from benchmark.records.run import run
from tests.conftest import ROOT, record_of, tiny_experiment

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
    """Make two seeds of one cell with three rounds each; rounds 2 and 3 are evaluated."""
    return shutil.copytree(sound, tmp_path / "results")


def folder_of(results: Path, seed: int = 0) -> Path:
    return run_folder(results, TINY.with_seed(seed))


def test_a_record_is_what_was_written(results):
    records = read_records(results, [KEY, "0" * 16], with_reference=True)
    assert list(records[KEY]) == [0, 1] and records["0" * 16] == {}
    record = records[KEY][0]
    lines = (folder_of(results) / "rounds.jsonl").read_text().splitlines()
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
    left_out = {"cell_key", "seed", "time/round_seconds", "time/cpu_seconds", "time/server_seconds"}
    for number in (1, 2):
        assert copy.rounds[number].keys() == record.rounds[number].keys() - left_out
    for metric in ("client/loss", "pseudo/kept"):
        assert copy.summary(metric) == pytest.approx(record.summary(metric), rel=1e-5)


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
    with pytest.raises(DataError, match="was edited after"):
        write_reference(results, record_of(folder))


def test_an_odd_round_that_a_digest_vouches_for_is_named_where_it_is_read(results):
    """No digest of ours: whoever wrote the rounds wrote it. `verify` reads all rounds; tables mostly the results."""
    folder = folder_of(results)
    path = folder / "rounds.jsonl"
    result = json.loads((folder / "result.json").read_text())
    path.write_text(path.read_text().replace('"round": 2', '"round": [2]'))
    (folder / "result.json").write_text(json.dumps({**result, "digest": run_digest(folder, result)}))
    record = record_of(folder)
    with pytest.raises(DataError, match=r"rounds.jsonl: line 2 .*round is \[2\]"):
        record.rounds[0]
    troubles: list[str] = []
    assert len(list(all_records(results, troubles))) == 1 and "round is [2]" in troubles[0]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a repository of one commit, and use it as the suite's."""
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "a.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    words = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*words, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance.commit.cache_clear()
    yield tmp_path
    provenance.commit.cache_clear()


def changes():
    provenance.commit.cache_clear()
    return provenance.commit()["changes"]


def test_changed_and_new_files_of_the_code_count_and_others_do_not(checkout):
    assert len(provenance.commit()["commit"]) == 40 and changes() is None
    for name in ("notes.txt", "benchmark/run.log"):
        (checkout / name).write_text("x")
    assert changes() is None
    (checkout / "benchmark" / "b.py").write_text("b = 1\n")
    added = changes()
    (checkout / "benchmark" / "b.py").write_text("b = 2\n")
    assert None is not added != changes()
    (checkout / "benchmark" / "b.py").unlink()
    (checkout / "benchmark" / "a.py").write_text("a = 2\n")
    assert changes() is not None


def test_bits_are_expected_of_an_equal_engine_and_machine_whatever_the_workers():
    engine = {"name": "pool", "threads": 1, "workers": 2}
    one = {"engine": engine, "hardware": {"processor": "p", "cores": 2}}
    assert provenance.equal_bits_expected(one, {**one, "engine": {**engine, "workers": 4}})
    others = {"engine": {**engine, "threads": 2}, "hardware": {"processor": "q"}, "packages": {"torch": "9"}}
    assert not any(provenance.equal_bits_expected(one, {**one, name: value}) for name, value in others.items())
    loose = {**one, "engine": {**engine, "bit_equal": False}}
    assert not provenance.equal_bits_expected(loose, loose)


def test_inside_another_project_s_checkout_the_version_is_unknown(checkout, monkeypatch):
    inside = checkout / ".venv" / "site-packages"
    inside.mkdir(parents=True)
    monkeypatch.setattr(provenance, "ROOT", inside)
    provenance.commit.cache_clear()
    assert provenance.commit() == {"commit": "unknown", "changes": None}


def test_a_run_is_a_row_a_round(results):
    """Against the files: the rounds of both seeds, with the numbers of rounds.jsonl."""
    table = benchmark.load(results)
    lines = [
        json.loads(line)
        for path in sorted(results.glob("runs/*/seed=*/rounds.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert len(table) == len(lines)
    for row, line in zip(table.to_dict("records"), lines, strict=True):
        assert {name: row[name] for name in line} == line
    assert set(table.method) == {"ssfl"} and set(table.K) == {TINY.federation.K}
    assert set(table.status) == {"done"} and set(table.data) == {"digits"}


def test_the_table_has_the_environmental_factors_and_any_field_by_name(results):
    run_as_json = to_json(TINY)
    name = "method.objective.threshold"
    table = benchmark.load(results, name, "optimizer.schedule.kind")
    assert set(table.R) == {run_as_json["partition"]["R"]} and table.alpha.isna().all()  # class skew has no alpha
    assert set(table.N_s) == {TINY.data.N_s} and set(table.rounds) == {TINY.federation.rounds}
    assert set(table.lr) == {TINY.optimizer.lr}
    assert set(table[name]) == {run_as_json["method"]["objective"]["threshold"]}
    assert set(table["optimizer.schedule.kind"]) == {"cosine"}
    with pytest.raises(ConfigError, match="did you mean 'method.objective.threshold'"):
        benchmark.load(results, "method.objective.thresold")


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(DataError, match="contains no records"):
        benchmark.load(tmp_path / "reslts")


def test_the_notebook_runs(tmp_path, monkeypatch):
    """On one arena's committed records."""
    matplotlib.use("Agg")
    (tmp_path / "results" / "reference").mkdir(parents=True)
    for cell in items(["arena/mnist"], "laptop")[0].cells:
        if (folder := ROOT / "results" / "reference" / cell.cell_key).is_dir():
            (tmp_path / "results" / "reference" / cell.cell_key).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for part in json.loads((ROOT / "reports" / "records.ipynb").read_text())["cells"]:
        if part["cell_type"] == "code":
            exec("".join(part["source"]), space)
    assert space["table"].loc["server_only"]["count"] > 1 and space["axes"].lines  # type: ignore[attr-defined]


def test_every_model_is_there_and_the_weights_give_the_recorded_accuracy(tmp_path):
    """Loaded as plain PyTorch into the network of the record, on normalised test images.

    The run learns something, so that its accuracy tells one set of weights from another.
    """
    tiny = tiny_experiment()
    experiment = replace(
        tiny,
        federation=replace(tiny.federation, rounds=4, T=8),
        optimizer=replace(tiny.optimizer, lr=0.02),
        data=replace(tiny.data, N_s=200),
        method=TSServerEMA(threshold=0.13, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5),
    )
    result = run(experiment, tmp_path)
    folder = run_folder(tmp_path, experiment)
    data = load("digits", None)
    model = from_json(json.loads((folder / "experiment.json").read_text())).model
    mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    accuracies = {}
    for path in (folder / "weights").iterdir():
        weights = torch.load(path, weights_only=True)
        assert all(tensor.is_contiguous() for tensor in weights.values())  # in plain order
        network = build(model, data.image_shape, data.num_classes, seed=0).eval()
        network.load_state_dict(weights)
        with torch.no_grad():
            logits_ND = network((data.test_images_NCHW.float() / 255 - mean_C11) / std_C11)
        accuracies[path.name] = float((logits_ND.argmax(1) == data.test_labels_N).double().mean())
    assert accuracies.keys() == {"student.pt", "teacher.pt"} and len({*accuracies.values()}) == 2
    recorded = result["last"]["test/accuracy"]
    assert recorded > 0.15 and any(value == pytest.approx(recorded, abs=1e-9) for value in accuracies.values())
