"""`fssl verify`: what it finds, with one fault put into a sound record at a time, and rounds done again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.cli.main import main
from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment, to_json
from benchmark.papers.item import Cell, Item
from benchmark.records import replay as replaying
from benchmark.records.checkpoints import save
from benchmark.records.files import read_json, write_json
from benchmark.records.record import run_digest as digest
from benchmark.records.record import run_folder, write_reference
from benchmark.records.run import run
from benchmark.records.verify import disagreements, read, troubles_of, troubles_of_item
from tests.conftest import record_of, tiny_experiment


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Two seeds of a run of three rounds, with a checkpoint of round 1 and of round 3, and digests."""
    results = tmp_path_factory.mktemp("sound")
    for seed in (0, 1):
        run(tiny_experiment().with_seed(seed), results, seconds_between=0.0)
        folder = run_folder(results, tiny_experiment().with_seed(seed))
        sign(folder)
        write_reference(results, record_of(folder))
    return results


def sign(folder: Path) -> None:
    """What the recorder does as its last act."""
    result = read_json(folder / "result.json")
    (folder / "result.json").write_text(json.dumps({**result, "digest": digest(folder, result)}))


@pytest.fixture
def results(sound, tmp_path) -> Path:
    """A copy to put a fault into."""
    return shutil.copytree(sound, tmp_path / "results")


def folder_of(results: Path, seed: int = 0) -> Path:
    return run_folder(results, tiny_experiment().with_seed(seed))


def edit(path: Path, *keys: str, to: Any, signed: bool = False) -> None:
    """Set one value of a JSON file; `signed`: with a digest that fits, as of a program that writes wrong records."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(content))
    if signed:
        sign(path.parent)


def verify(capsys, results: Path, *words: str) -> tuple[int, str]:
    code = main(["verify", "--results", str(results), *words])
    return code, capsys.readouterr().out


def test_sound_records_have_no_trouble(capsys, results):
    assert verify(capsys, results) == (0, "4 records, 0 troubles\n")


@pytest.mark.fault(34, counts="edits of records found")
@pytest.mark.parametrize(
    ("file", "keys", "to", "says"),
    [
        (
            "result.json",
            ("last", "test/accuracy"),
            0.99,
            "result.json: last.test/accuracy is 0.99, the rounds end with",
        ),
        ("result.json", ("last", "test/accuracy"), 97.0, "last.test/accuracy is 97.0, no fraction"),
        ("result.json", ("last", "test/loss"), float("nan"), "result.json: last.test/loss is nan"),
        ("result.json", ("best", "test/accuracy"), 0.0, "result.json: best.test/accuracy is 0.0, round"),
        ("result.json", ("best", "round"), 2, "result.json: best."),
        ("result.json", ("cost", "bytes_up"), 1, "result.json: cost.bytes_up is 1, the rounds make"),
        ("result.json", ("status",), "fine", "result.json: status 'fine'; one of done, diverged, failed"),
        ("result.json", ("seed",), 7, "result.json: seed 7; 0 would be right"),
        ("result.json", ("rounds",), "3", "result.json: rounds is '3'; int would be right"),
        ("result.json", ("numerics",), None, "result.json: numerics is None; int would be right"),
        ("manifest.json", ("data", "partition"), None, "manifest.json: data.partition is None; str would be right"),
        ("manifest.json", ("data", "name"), "mnist", "manifest.json: data.name 'mnist', experiment.json 'digits'"),
        ("manifest.json", ("data", "partition"), "0" * 64, "manifest.json: data.partition is another one than"),
        ("manifest.json", ("data", "hash"), "0" * 64, "manifest.json: data.hash is another one than"),
        ("experiment.json", ("federation", "T"), 3, "experiment.json has cell_key"),
        ("experiment.json", ("federation", "T"), "three", "experiment.json: federation.T"),
        ("experiment.json", ("seed",), 1, "experiment.json: seed 1, its name says 0"),
    ],
)
def test_a_wrong_value_is_named_even_where_the_digest_fits(capsys, results, file, keys, to, says):
    edit(folder_of(results) / file, *keys, to=to, signed=True)
    code, out = verify(capsys, results)
    assert code == 66 and says in out and "digest" not in out


@pytest.mark.fault(34, counts="edits of records found")
@pytest.mark.parametrize(
    ("file", "keys", "to"),
    [
        ("manifest.json", ("hardware", "cores"), 4096),  # nothing else is told by it
        ("manifest.json", ("code", "commit"), "0" * 40),
        ("result.json", ("wall_seconds",), 0.001),
        ("result.json", ("digest",), "0" * 64),
    ],
)
def test_an_edit_that_adds_up_is_found_by_the_digest(capsys, results, file, keys, to):
    edit(folder_of(results) / file, *keys, to=to)
    code, out = verify(capsys, results)
    assert code == 66 and "result.json: digest is of other content" in out and "4 records, 1 troubles" in out


def test_any_byte_of_the_rounds_counts(results):
    """The time of a round is in no sum that is compared: only the digest sees it. The attempts are not in it."""
    folder = folder_of(results)
    before = read_json(folder / "result.json")["digest"]
    path = folder / "rounds.jsonl"
    path.write_text(path.read_text().replace('"time/round_seconds": 0.', '"time/round_seconds": 1.', 1))
    assert digest(folder, read_json(folder / "result.json")) != before
    other = folder_of(results, seed=1)
    edit(other / "manifest.json", "attempts", to=[])
    assert digest(other, read_json(other / "result.json")) == read_json(other / "result.json")["digest"]


def damage_rounds(folder: Path, change) -> None:
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(change(lines)))


@pytest.mark.fault(34, counts="edits of records found")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [lines[0], lines[2]], "rounds.jsonl: rounds [1, 3]... are not 1 to 2, each once"),
        (lambda lines: [*lines, lines[2]], "are not 1 to 4, each once"),
        (lambda lines: [lines[0], '{"round": 2,\n', lines[2]], "rounds.jsonl: line 2 is no JSON object"),
        (lambda lines: [lines[0], "[2]\n", lines[2]], "rounds.jsonl: line 2 is no JSON object (it is a list)"),
        (lambda lines: [lines[0], lines[1].replace('"seed": 0', '"seed": 4'), lines[2]], "round 2 is of seed 4, not 0"),
        (lambda lines: [lines[0].replace('"client/loss": ', '"client/loss": NaN, "x": '), *lines[1:]], "loss is nan"),
    ],
)
def test_damaged_rounds_are_named(capsys, results, change, says):
    damage_rounds(folder_of(results), change)
    code, out = verify(capsys, results)
    assert code == 66 and says in out


@pytest.mark.fault(34, counts="files damaged and caught")
@pytest.mark.parametrize("file", ["result.json", "manifest.json", "experiment.json"])
def test_a_truncated_file_is_named(capsys, results, file):
    path = folder_of(results) / file
    path.write_bytes(path.read_bytes()[:-20])
    code, out = verify(capsys, results)
    assert code == 66 and f"{path}: is no JSON object" in out


@pytest.mark.fault(34, counts="files damaged and caught", each=2)
def test_a_flipped_byte_in_a_checkpoint_or_a_compact_copy(capsys, results):
    checkpoint = max((folder_of(results) / "checkpoints").glob("*.pt"))
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    (copy,) = results.glob("reference/*/seed=1.json.gz")
    copy.write_bytes(copy.read_bytes()[:-9])
    code, out = verify(capsys, results)
    assert code == 66 and f"checkpoints/{checkpoint.name}: is damaged" in out
    assert f"{copy}: cannot be read" in out and "2 troubles" in out


def test_records_without_a_digest_are_counted_and_no_trouble(capsys, results):
    path = folder_of(results) / "result.json"
    result = read_json(path)
    del result["digest"]
    write_json(path, result)
    code = main(["verify", "--results", str(results), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found == {"records": 4, "troubles": [], "without_digest": 1, "replayed": []}


def test_an_unfinished_run_is_no_trouble(capsys, results):
    (folder_of(results) / "result.json").unlink()
    assert verify(capsys, results)[0] == 0


@pytest.fixture
def item() -> Item:
    cell = Cell(label="FedAvg", setting={"method": "FedAvg"}, experiment=tiny_experiment())
    return Item(name="ssfl/tab2", title="", profile="demo", cells=(cell,), seeds=2)


def records_of(results: Path) -> dict[str, dict[int, Any]]:
    return {tiny_experiment().cell_key: {seed: record_of(folder_of(results, seed)) for seed in (0, 1)}}


@pytest.mark.fault(34)
def test_a_table_needs_every_seed_and_one_code_version(results, item):
    records = records_of(results)
    assert troubles_of_item(item, records) == []
    assert troubles_of_item(replace(item, seeds=4), records) == ["ssfl/tab2: cell 'FedAvg' lacks the seeds 2, 3"]
    key = tiny_experiment().cell_key
    other = {**records[key][1].manifest, "code": {"commit": "f" * 40, "changes": None}}
    mixed = {key: {0: records[key][0], 1: replace(records[key][1], manifest=other)}}
    (trouble,) = troubles_of_item(item, mixed)
    assert trouble.startswith("ssfl/tab2: runs of 2 code versions: ") and "ffffffffffff (FedAvg seed 1)" in trouble
    unfinished = {key: {0: records[key][0], 1: replace(records[key][1], result={})}}
    assert troubles_of_item(item, unfinished) == ["ssfl/tab2: cell 'FedAvg' lacks the seeds 1"]


def test_a_named_table_is_checked_as_a_whole(capsys, results):
    code, out = verify(capsys, results, "ssfl/tab2", "--profile", "demo")
    assert code == 66 and "ssfl/tab2: cell" in out and "lacks the seeds 0" in out


def test_equal_settings_have_equal_partitions_whatever_the_method(results):
    """Two runs that differ in their method must have seen one partition; those that differ in R need not."""

    def pair(other: Experiment, partition: str):
        one, manifest = record_of(folder_of(results)), record_of(folder_of(results)).manifest
        found = {**manifest, "data": {**manifest["data"], "partition": partition}}
        two = replace(one, cell_key=other.cell_key, experiment=to_json(other), manifest=found)
        return [(one, Path("one")), (two, Path("two"))]

    tiny = tiny_experiment()
    method = replace(tiny, method=replace(tiny.method, momentum="released_code"))
    skew = replace(tiny, partition=ClassSkew(R=0.8))
    assert disagreements(pair(method, "beef")) == [
        "two: manifest.json: data.partition is another one than that of one, at equal settings"
    ]
    assert disagreements(pair(skew, "beef")) == []


def test_rounds_done_again_are_equal_bit_by_bit(capsys, results):
    """From round 1's checkpoint to round 3's; with one checkpoint left, from the start."""
    code, out = verify(capsys, results, "--replay", "9")
    assert code == 0 and out.count("rounds 2 to 3 done again, equal bit by bit") == 2
    min((folder_of(results) / "checkpoints").glob("*.pt")).unlink()
    found = replaying.replay(folder_of(results))
    assert found.troubles == () and list(found.rounds) == [1, 2, 3]


def test_kept_state_is_compared_too(tmp_path):
    tiny = tiny_experiment()
    experiment = replace(tiny, method=replace(tiny.method, momentum="released_code"))
    run(experiment, tmp_path, seconds_between=0.0)
    found = replaying.replay(run_folder(tmp_path, experiment))
    assert found.troubles == () and len(found.rounds) == 2


@pytest.mark.fault(34, counts="edits of records found", each=2)
def test_one_changed_digit_or_weight_is_found_by_doing_it_again(results, monkeypatch):
    """A loss that was edited in every place where it stands, digest included; a checkpoint with a hash that fits."""
    folder = folder_of(results)
    damage_rounds(folder, lambda lines: [*lines[:2], lines[2].replace('"client/loss": 0.', '"client/loss": 1.')])
    line = json.loads((folder / "rounds.jsonl").read_text().splitlines()[2])
    edit(folder / "result.json", "last", "client/loss", to=line["client/loss"], signed=True)
    record = read(folder, [])
    assert record is not None and troubles_of(record, folder) == []
    (trouble,) = replaying.replay(folder).troubles
    assert trouble.startswith(f"rounds.jsonl: round 3, client/loss is {line['client/loss']}, done again it is 0.")

    other = folder_of(results, seed=1)
    newest, oldest = replaying.kept(other, f"{tiny_experiment().cell_key}/seed=1")
    weights = next(iter(newest.state.server["average"].values()))
    weights.view(-1)[0] = torch.nextafter(weights.view(-1)[0], torch.tensor(9.0))
    for path in (other / "checkpoints").glob("*.pt"):
        path.unlink()
    for checkpoint in (oldest, newest):
        save(other / "checkpoints", checkpoint, f"{tiny_experiment().cell_key}/seed=1")
    (trouble,) = replaying.replay(other).troubles
    assert trouble.startswith("checkpoint of round 3: state.server.average.") and "differs" in trouble


def test_another_machine_is_skipped_with_the_reason(capsys, results):
    edit(folder_of(results) / "manifest.json", "hardware", "processor", to="Example CPU", signed=True)
    edit(folder_of(results, 1) / "manifest.json", "packages", "torch", to="1.0", signed=True)
    code, out = verify(capsys, results, "--replay", "2")
    assert code == 0 and "not done again: it was made on Example CPU, this is" in out
    assert "not done again: it was made with torch 1.0, this is" in out


def test_data_that_changed_since_is_found_by_doing_it_again(results):
    edit(folder_of(results) / "manifest.json", "data", "hash", to="0" * 64, signed=True)
    troubles = replaying.replay(folder_of(results)).troubles
    assert troubles[0].startswith(f"manifest.json: data.hash is {'0' * 64}, it is now ") and len(troubles) == 1


@pytest.mark.parametrize("words", [["--replay", "-1"], ["ssfl/tab99"], ["--replay", "many"]])
def test_words_that_make_no_sense(capsys, results, words):
    assert verify(capsys, results, *words) == (65, "")
