"""`fssl verify`: what it finds, with one fault put into a sound record at a time, and runs trained again."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.cli.main import main
from benchmark.experiment import to_json
from benchmark.files import read_json, write_json
from benchmark.papers.items import items
from benchmark.records.collect import all_records
from benchmark.records.copies import copy_digest, write_reference
from benchmark.records.record import RunRecord, run_digest, run_folder
from benchmark.records.run import run
from benchmark.sharing.verify import check_records, data_faults
from benchmark.verdicts.registered import troubles_of_claims
from tests.conftest import ROOT, record_of, tiny_experiment


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Make two seeds of a run of three rounds, and their committed copies."""
    results = tmp_path_factory.mktemp("sound")
    for seed in (0, 1):
        run(tiny_experiment().with_seed(seed), results)
        write_reference(results, record_of(folder_of(results, seed)))
    return results


@pytest.fixture
def results(sound, tmp_path) -> Path:
    """Copy the sound records, so that a fault can be put into them."""
    return shutil.copytree(sound, tmp_path / "results")


def folder_of(results: Path, seed: int = 0) -> Path:
    return run_folder(results, tiny_experiment().with_seed(seed))


def edit(path: Path, *keys: str, to: Any, signed: bool = False) -> None:
    """Set one value of a JSON file; `signed`: with a digest that fits, as of a program that writes wrong records."""
    content = json.loads(path.read_text())
    put(content, *keys, to=to)
    path.write_text(json.dumps(content))
    if signed:
        result = read_json(path.parent / "result.json")
        write_json(path.parent / "result.json", {**result, "digest": run_digest(path.parent, result)})


def put(content: dict[str, Any], *keys: str | int, to: Any) -> None:
    inner: Any = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to


def verify(capsys, results: Path, *words: str) -> tuple[int, Any]:
    """Call `fssl verify --json`: its exit code, and its object, or None if there is none."""
    code = main(["verify", "--json", "--results", str(results), *words])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def test_the_committed_records_have_no_trouble():
    """Each can be read. One in ten and those with unknown classes add up, and hashes of data and partitions are
    computed again for one in a hundred: `fssl verify` looks at all."""
    troubles: list[str] = []
    records = list(all_records(ROOT / "results", troubles))
    assert len(records) > 1000
    with_unknown = [record for record in records if record.experiment["data"]["label_setting"] == "open"]
    assert with_unknown
    sample = [*records[::10], *with_unknown]
    faults = check_records(sample, with_data=False)[0] + data_faults(records[::100])[0]
    assert [*troubles, *faults, *troubles_of_claims(records)] == []


# Runs of this machine


@pytest.mark.parametrize(
    ("file", "keys", "to", "names"),
    [
        ("result.json", ("last", "test/accuracy"), 0.5, "last.test/accuracy"),
        ("result.json", ("last", "test/accuracy"), 1.5, "last.test/accuracy"),  # no fraction
        ("result.json", ("cost", "bytes_up"), 1, "cost.bytes_up"),
        ("result.json", ("status",), "fine", "status"),
        ("result.json", ("seed",), 7, "seed"),
        ("result.json", ("rounds",), "3", "rounds"),
        ("result.json", ("selection",), "best_on_test", "selection"),
        ("result.json", ("measured", "every"), 2, "measured"),
        ("manifest.json", ("data", "name"), "mnist", "data.name"),
        ("manifest.json", ("data", "partition"), "0" * 64, "data.partition"),
        ("manifest.json", ("data", "hash"), "0" * 64, "data.hash"),
        ("experiment.json", ("federation", "T"), 3, "cell_key"),  # it is another cell
        ("experiment.json", ("federation", "T"), "three", "federation.T"),
        ("experiment.json", ("seed",), 1, "seed"),
    ],
)
def test_a_wrong_value_is_named_even_where_the_digest_fits(capsys, results, file, keys, to, names):
    """Every line names the run, and the first one the file and the field."""
    edit(folder_of(results) / file, *keys, to=to, signed=True)
    code, summary = verify(capsys, results)
    assert code == 66 and summary["troubles"] and summary["records"] in (3, 4)  # of which 3 can be read
    folder = str(folder_of(results))
    first = summary["troubles"][0]
    assert all(line.startswith(folder) and "digest" not in line for line in summary["troubles"])
    assert file in first and names in first


@pytest.mark.parametrize(
    ("file", "keys", "to"),
    [
        ("manifest.json", ("hardware", "cores"), 4096),  # nothing else is told by it
        ("result.json", ("digest",), "0" * 64),
    ],
)
def test_an_edit_that_adds_up_is_found_by_the_digest(capsys, results, file, keys, to):
    edit(folder_of(results) / file, *keys, to=to)
    code, summary = verify(capsys, results)
    (trouble,) = summary["troubles"]
    assert code == 66 and summary["records"] == 4
    assert trouble.startswith(f"{folder_of(results)}: ") and "digest" in trouble


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda lines: [lines[0], lines[2]], "rounds [1, 3]"),
        (lambda lines: [lines[0], "[2]\n", lines[2]], "line 2"),
        (lambda lines: [lines[0], lines[1].replace('"seed": 0', '"seed": 4'), lines[2]], "round 2"),
        (lambda lines: [lines[0].replace('"client/loss": ', '"client/loss": NaN, "x": '), *lines[1:]], "client/loss"),
        # The time of a round is in no sum that is compared.
        (lambda lines: [line.replace("round_seconds", "other_seconds") for line in lines], "digest"),
    ],
)
def test_damaged_rounds_are_named(capsys, results, change, names):
    path = folder_of(results) / "rounds.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    code, summary = verify(capsys, results)
    first = summary["troubles"][0]
    assert code == 66 and str(path.parent) in first and names in first


# Committed copies


def copy_of(results: Path, seed: int = 0) -> Path:
    return results / "reference" / tiny_experiment().cell_key / f"seed={seed}.json.gz"


def within(*keys: str | int, to: Any) -> Callable[[Path], None]:
    """Edit a copy, and give it a digest that fits."""

    def act(path: Path) -> None:
        content = json.loads(gzip.decompress(path.read_bytes()))
        put(content, *keys, to=to)
        content["digest"] = copy_digest(content)
        path.write_bytes(gzip.compress(json.dumps(content).encode()))

    return act


EDITS: dict[str, Callable[[Path], Any]] = {
    "a round's accuracy raised": within("evaluated", "test/accuracy", 1, to=0.9),
    "diversity wrong": within("evaluated", "diversity/delta/l2/squared/clients", 1, to=0.0),
    "a summary wrong": within("summaries", "diversity/delta/l2/squared/clients", "median", to=0.0),
    "bytes of a round": within("counts", "comm/bytes_up", 1, to=1),
    "filed under another cell": lambda path: path.parent.rename(path.parent.with_name("0" * 16)),
    "a seed added": lambda path: shutil.copy(path, path.with_name("seed=5.json.gz")),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-9]),
}
# Who can edit a copy and its digest has our own means. Git has what was there before.
ONLY_BY_TRAINING = {"diversity wrong", "a summary wrong"}


@pytest.mark.parametrize("name", EDITS)
def test_edits_of_a_committed_copy_whose_digest_fits(capsys, results, name):
    shutil.rmtree(results / "runs")
    EDITS[name](copy_of(results))
    code, summary = verify(capsys, results)
    assert code == (0 if name in ONLY_BY_TRAINING else 66) and bool(summary["troubles"]) == (code == 66)
    if name in ONLY_BY_TRAINING:
        assert verify(capsys, results, "--retrain", "2")[0] == 66


# Runs trained again


def test_runs_trained_again_are_equal(capsys, results):
    """Bit by bit on this machine, copies to six digits; which are chosen follows from the seed."""
    code, summary = verify(capsys, results, "--retrain", "9")
    folders = {str(folder_of(results, seed)): True for seed in (0, 1)}
    copies = {str(copy_of(results, seed)): False for seed in (0, 1)}
    assert code == 0 and summary["troubles"] == []
    assert {path: again["exact"] for path, again in summary["retrained"].items()} == {**folders, **copies}
    assert all(again["trouble"] is again["skipped"] is None for again in summary["retrained"].values())
    one, again, other = (verify(capsys, results, "--retrain", "1", "--seed", seed)[1] for seed in ("1", "1", "2"))
    assert one == again != other


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can train them again")
def test_runs_of_a_device_that_is_not_here_are_not_trained_again(capsys, results, monkeypatch):
    """They are no fault: others are chosen, and of a cell that has no others it is said why."""
    shutil.rmtree(results / "runs")
    card = {"name": "pool", "threads": 1, "bit_equal": False, "device": "NVIDIA H200", "workers": 1}
    within("manifest", "engine", to=card)(copy_of(results))
    for seed in "012":
        code, summary = verify(capsys, results, "--retrain", "1", "--seed", seed)
        assert code == 0 and list(summary["retrained"]) == [str(copy_of(results, 1))]
    experiment = tiny_experiment()
    monkeypatch.setattr("benchmark.cli.verify.CONFIRMING", (0, 1))
    monkeypatch.setattr("benchmark.cli.verify.decided_cells", lambda *_: {experiment.cell_key})
    copy_of(results, 1).unlink()
    code, summary = verify(capsys, results, "ssfl/tab2", "--profile", "demo", "--claims")
    (skipped,) = summary["retrained"].values()
    assert code == 66 and "NVIDIA H200" in skipped["skipped"] and skipped["trouble"] is None
    assert verify(capsys, results, "--retrain", "1") == (65, None)


def test_an_edit_that_is_signed_everywhere_is_found_by_training_again(capsys, results):
    folder = folder_of(results)
    path = folder / "rounds.jsonl"
    *first, last = path.read_text().splitlines(keepends=True)
    changed = {**json.loads(last), "client/loss": 1.001 * json.loads(last)["client/loss"]}
    path.write_text("".join([*first, json.dumps(changed) + "\n"]))
    edit(folder / "result.json", "last", "client/loss", to=changed["client/loss"], signed=True)
    write_reference(results, record_of(folder))
    assert verify(capsys, results)[0] == 0
    code, summary = verify(capsys, results, "--retrain", "9")
    different = {path for path, again in summary["retrained"].items() if again["trouble"] is not None}
    assert code == 66 and different == {str(folder), str(copy_of(results))}
    assert all(line.partition(": ")[0] in different and "client/loss" in line for line in summary["troubles"])


def test_a_seed_that_is_a_copy_of_another(capsys, results):
    """Filed, named, signed and indexed as seed 1, with the partition of seed 1: its rounds are those of seed 0."""
    shutil.rmtree(results / "runs")
    partition = json.loads(gzip.decompress(copy_of(results, 1).read_bytes()))["manifest"]["data"]["partition"]
    shutil.copy(copy_of(results), copy_of(results, 1))
    for keys in (("seed",), ("experiment", "seed"), ("result", "seed")):
        within(*keys, to=1)(copy_of(results, 1))
    assert "data.partition" in verify(capsys, results)[1]["troubles"][0]  # it is that of seed 0
    within("manifest", "data", "partition", to=partition)(copy_of(results, 1))
    code, summary = verify(capsys, results)
    (trouble,) = summary["troubles"]
    assert code == 66 and trouble.startswith(f"{copy_of(results, 1)}: ") and str(copy_of(results)) in trouble


def test_claims_of_runs_that_confirm(results):
    """A cell of SSFL at the demo: without claims, with those of the family, and with others than a run before."""
    cell = items(["ssfl/tab2"], "demo")[0].cells[0]
    one = record_of(folder_of(results))

    def of(seed: int, claims: dict[str, Any]) -> RunRecord:
        experiment = to_json(cell.experiment.with_seed(seed))
        manifest = {**one.manifest, **claims}
        which: Any = {"cell_key": cell.cell_key, "seed": seed, "path": Path(f"seed={seed}")}
        return replace(one, **which, experiment=experiment, manifest=manifest)

    first = {"claims": {"ssfl demo": {"main": ["a"], "others": ["b"]}}}
    other = {"claims": {"ssfl demo": {"main": [], "others": ["a", "b"]}}}
    assert troubles_of_claims([of(0, {}), of(100, first), of(101, first), of(200, other)]) == []
    (without,) = troubles_of_claims([of(100, {})])
    (differs,) = troubles_of_claims([of(100, first), of(101, other)])
    assert without.startswith("seed=100: ") and "ssfl demo" in without
    assert differs.startswith("seed=101: ") and "seed=100" in differs


def test_the_cells_of_decided_claims_are_trained_again(capsys, results, monkeypatch):
    """One confirming run of each cell on which a claim is decided, and no run of another cell."""
    for seed in (0, 1):
        shutil.rmtree(folder_of(results, seed))
    confirming = tiny_experiment().with_seed(100)
    run(confirming, results)
    for decided, retrained in (({confirming.cell_key}, 1), (set(), 0)):
        monkeypatch.setattr("benchmark.cli.verify.decided_cells", lambda *_, decided=decided: decided)
        code, summary = verify(capsys, results, "ssfl/tab2", "--profile", "demo", "--claims")
        assert code == 0 and list(summary["retrained"]) == [str(run_folder(results, confirming))][:retrained]
    assert verify(capsys, results, "--claims") == (65, None)
