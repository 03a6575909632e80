"""A record answers only for the data and the user's own code that it was computed from."""

import importlib
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark.cli.main import main
from benchmark.data import content, datasets
from benchmark.data.packed import file_sha256
from benchmark.errors import RunningElsewhere, Stopped
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.federated.environment import prepare
from benchmark.models.build import Model
from benchmark.records.collect import read_records
from benchmark.records.copies import reference_path, write_reference
from benchmark.records.files import read_json
from benchmark.records.identity import source_hash
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import launch
from sweeps.plan import plan_of_runs
from sweeps.processes import LocalWorkers
from tests.conftest import ROOT, record_of, tiny_experiment
from tests.data.places import REAL
from tests.records.test_run import Interrupt

METHOD = """
from dataclasses import dataclass
from benchmark.methods.ssfl import SSFL
import own_pkg.loss

@dataclass(frozen=True, kw_only=True)
class Mine(SSFL):
    pass
"""
NETWORK = """
from benchmark.models.small_cnn import TinyCnn

class Net(TinyCnn):
    pass
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """A cache, modules and a data folder of the test's own."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path / "code")
    for path, text in {
        "own_method.py": METHOD,
        "own_net.py": NETWORK,
        "own_pkg/__init__.py": "",
        "own_pkg/loss.py": "from . import scale\n",
        "own_pkg/scale.py": "SCALE = 1.0\n",
        "own_pkg/not_imported.py": "X = 1\n",
    }.items():
        (tmp_path / "code" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / path).write_text(text)
    yield
    forget_modules()
    content.look_again()


def forget_modules() -> None:
    """As a new process has it."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_method", "own_net", "own_pkg")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def with_own_code() -> Experiment:
    """The tiny experiment with the test's own method and network, imported anew."""
    forget_modules()
    tiny = tiny_experiment(model=Model(network="own_net:Net", norm="gn", norm_groups=4))
    return from_json({**to_json(tiny), "method": {**to_json(tiny)["method"], "kind": "own_method:Mine"}})


def save_images(folder: Path, images: int, first: int = 0) -> None:
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for index in range(first, first + images):
            pixels = np.random.default_rng([index, ord(label)]).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{index}.png")


def on_folder(folder: Path) -> Experiment:
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, name=f"folder:{folder}", N_s=4))


def add_images(tmp_path: Path) -> None:
    save_images(tmp_path / "pets", 2, first=30)


def change_a_pixel(tmp_path: Path) -> None:
    """The file keeps its size and its time."""
    path = tmp_path / "pets" / "a" / "0.bmp"
    before, content_before = path.stat(), path.read_bytes()
    path.write_bytes(content_before[:-1] + bytes([content_before[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit(name: str, text: str):
    def change(tmp_path: Path) -> None:
        path = tmp_path / "code" / name
        path.write_text(path.read_text() + text)

    return change


def replace_known_files(tmp_path: Path) -> None:
    """Packed files of a set none of whose packed files the suite lists."""
    save_packed(tmp_path / "data" / "emnist_balanced", seed=1)


def save_packed(folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, number in (("train", 60), ("test", 20)):
        images = np.random.default_rng([seed, number]).integers(0, 256, (number, 8, 8), dtype=np.uint8)
        labels = np.arange(number, dtype=np.uint8) % 10
        np.savez(folder / f"{part}.npz", images=images, labels=labels, classes=np.array([*"0123456789"]))


def pets(tmp_path: Path) -> Experiment:
    if not (tmp_path / "pets").exists():
        save_images(tmp_path / "pets", 30)
        Image.open(tmp_path / "pets" / "a" / "0.png").save(tmp_path / "pets" / "a" / "0.bmp")
        (tmp_path / "pets" / "a" / "0.png").unlink()
    return on_folder(tmp_path / "pets")


def under_a_known_name(tmp_path: Path) -> Experiment:
    if not (tmp_path / "data").exists():
        save_packed(tmp_path / "data" / "emnist_balanced", seed=0)
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, name="emnist_balanced"))


def own_code(tmp_path: Path) -> Experiment:
    return with_own_code()


CHANGES = {
    "images are added to a folder": (pets, add_images, "data: folder:pets"),
    "a pixel in a folder": (pets, change_a_pixel, "data: folder:pets"),
    "files under a known name": (under_a_known_name, replace_known_files, "data: emnist_balanced"),
    "the method's file": (own_code, edit("own_method.py", "# other\n"), "code: own_method:Mine"),
    "the network's file": (own_code, edit("own_net.py", "# other\n"), "code: own_net:Net"),
    "a module that is imported by one that is": (
        own_code,
        edit("own_pkg/scale.py", "X = 2\n"),
        "code: own_method:Mine",
    ),
}


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(datasets, "check_counts", lambda data: None)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(
    ("stopped", "make", "change", "what"),
    [*((False, *each) for each in CHANGES.values()), *((True, *each) for each in list(CHANGES.values())[::3])],
)
def test_a_run_on_other_data_or_code_is_trained_apart(tmp_path, capsys, stopped, make, change, what):
    results = tmp_path / "results"
    experiment = make(tmp_path)
    if stopped:
        with pytest.raises(Stopped):
            run(experiment, results, callbacks=[Interrupt(1)])
    else:
        run(experiment, results)
    first = run_folder(results, experiment)
    assert first.name == "seed=0"
    files = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert capsys.readouterr().err == ""

    change(tmp_path)
    content.look_again()
    experiment = make(tmp_path)
    result = run(experiment, results)
    apart = run_folder(results, experiment)
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == files
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line and f"trained apart in {apart.name}" in line and apart.name.startswith("seed=0@")
    assert result == read_json(apart / "result.json") and result["status"] == "done"
    assert [attempt["from_round"] for attempt in record_of(apart).manifest["attempts"]] == [0]
    assert run(experiment, results) == result  # not trained again
    assert not (first / "state.pt").exists() or stopped


def test_what_a_method_does_not_import_changes_nothing(tmp_path, capsys):
    experiment = with_own_code()
    result = run(experiment, tmp_path / "results")
    edit("own_pkg/not_imported.py", "X = 2\n")(tmp_path)
    assert run(with_own_code(), tmp_path / "results") == result
    assert capsys.readouterr().err == ""


def test_the_same_folder_however_it_is_written_and_copied(tmp_path, monkeypatch, capsys):
    """Another spelling, and equal images in new files, are the same; another place is another cell."""
    result = run(pets(tmp_path), tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "pets")
    for spelling in ("pets", "./code/../pets", "link"):
        assert run(on_folder(Path(spelling)), tmp_path / "results") == result
    shutil.copytree(tmp_path / "pets", tmp_path / "copy")
    shutil.rmtree(tmp_path / "pets")
    (tmp_path / "copy").rename(tmp_path / "pets")
    assert run(pets(tmp_path), tmp_path / "results") == result
    (tmp_path / "pets").rename(tmp_path / "animals")
    moved = run(on_folder(tmp_path / "animals"), tmp_path / "results")
    assert moved["cell_key"] != result["cell_key"] and moved["last"]["test/accuracy"] == result["last"]["test/accuracy"]
    assert run(on_folder(tmp_path / "pets"), tmp_path / "results") == result  # gone: it cannot differ
    assert capsys.readouterr().err == ""


def test_going_back_finds_the_first_record_again(tmp_path):
    results, first = tmp_path / "results", run(pets(tmp_path), tmp_path / "results")
    save_images(tmp_path / "pets", 1, first=40)
    second = run(pets(tmp_path), results)
    assert second != first
    for label in ("a", "b"):
        (tmp_path / "pets" / label / "40.png").unlink()
    assert run(pets(tmp_path), results) == first
    shutil.rmtree(run_folder(results, pets(tmp_path)))
    save_images(tmp_path / "pets", 1, first=40)
    content.look_again()
    assert run(pets(tmp_path), results) == second  # also where the first is gone


@pytest.mark.usefixtures("of_any_size")
def test_files_that_the_suite_lists_count_as_equal(tmp_path, monkeypatch):
    """A finished run on other listed files counts, also as a committed copy; an unfinished one does not go on."""
    results, root = tmp_path / "results", tmp_path / "data"
    experiment = under_a_known_name(tmp_path)

    def list_files() -> None:
        listed = {path.name: file_sha256(path) for path in (root / "emnist_balanced").iterdir()}
        entry = replace(datasets.DATASETS["emnist_balanced"], packed_sha256=listed, packed_note="listed")
        monkeypatch.setitem(datasets.DATASETS, "emnist_balanced", entry)
        content.look_again()

    list_files()
    result = run(experiment, results)
    with pytest.raises(Stopped):
        run(experiment.with_seed(1), results, callbacks=[Interrupt(1)])
    write_reference(results, record_of(run_folder(results, experiment)))
    replace_known_files(tmp_path)
    list_files()
    assert run(experiment, results) == result
    assert run(experiment.with_seed(1), results)["status"] == "done"
    assert run_folder(results, experiment.with_seed(1)).name.startswith("seed=1@")
    shutil.rmtree(results / "runs")
    content.look_again()
    assert read_records(results, [experiment.cell_key], with_reference=True)[experiment.cell_key][0].result == result
    monkeypatch.setitem(
        datasets.DATASETS, "emnist_balanced", replace(datasets.DATASETS["emnist_balanced"], packed_sha256={})
    )
    content.look_again()
    lines: list[str] = []
    records = read_records(results, [experiment.cell_key], with_reference=True, differences=lines)
    assert records[experiment.cell_key] == {} and len(lines) == 1
    assert reference_path(results, experiment.cell_key, 0).exists()
    # README and findings are made of copies alone, and must be the same in every checkout.
    alone = read_records(results, [experiment.cell_key], with_reference=True, with_runs=False)
    assert alone[experiment.cell_key][0].result == result


def test_commands_say_what_differs_and_train_apart(tmp_path, capsys):
    experiment = pets(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(to_json(experiment)))
    results = f"--results={tmp_path / 'results'}"
    run_it = ("run", f"--config={tmp_path / 'config.json'}", "--engine=reference", "--json", results)
    assert main(run_it) == 0
    first = json.loads(capsys.readouterr().out)
    assert Path(first["folder"]).name == "seed=0"
    add_images(tmp_path)

    assert main(["status", results]) == 0
    out = capsys.readouterr().out
    assert "1 missing" in out and "data: folder:pets has content" in out and "trained apart in seed=0@" in out
    assert main(run_it) == 0
    captured = capsys.readouterr()
    second = json.loads(captured.out)
    assert Path(second["folder"]).name.startswith("seed=0@") and "data: folder:pets has content" in captured.err
    assert main(["status", results]) == 0
    out = capsys.readouterr().out
    assert "1 done" in out and "data:" not in out
    assert main(["verify", results]) == 66  # the first is of other data than are here
    out = capsys.readouterr().out
    assert f"{Path(first['folder'])}: manifest.json: data.hash" in out and second["folder"] not in out


def test_a_launch_trains_apart_what_a_plan_names(tmp_path, capsys):
    """Finished and half-finished runs: each is trained on the images that are here, once."""
    results, experiment = tmp_path / "results", pets(tmp_path)
    runs = [experiment, experiment.with_seed(1)]
    run(experiment, results)
    with pytest.raises(Stopped):
        run(experiment.with_seed(1), results, callbacks=[Interrupt(1)])
    assert plan_of_runs(runs, results).missing == (runs[1],)
    assert capsys.readouterr().err == ""
    add_images(tmp_path)
    missing = plan_of_runs(runs, results).missing
    (line,) = capsys.readouterr().err.splitlines()
    assert missing == tuple(runs) and line.startswith("fssl: data: folder:pets has content")
    end = launch(LocalWorkers(1, results), missing, results)
    assert end.trained == 2
    assert plan_of_runs(runs, results).missing == ()
    assert (
        sorted(path.name.partition("@")[0] for path in results.glob("runs/*/seed=*")) == ["seed=0"] * 2 + ["seed=1"] * 2
    )


def test_a_run_that_another_process_begins_on_other_data_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    """Between the look at the folder and the claim."""
    results, experiment = tmp_path / "results", pets(tmp_path)
    run(experiment, results)
    recorded = run_folder(results, experiment)
    aside = recorded.rename(tmp_path / "aside")
    add_images(tmp_path)

    def prepared_late(*args):
        aside.rename(recorded)  # the other process was faster
        return prepare(*args)

    monkeypatch.setattr("benchmark.records.run.prepare", prepared_late)
    with pytest.raises(RunningElsewhere, match="on other data or code; call again"):
        run(experiment, results)
    monkeypatch.undo()
    assert run(experiment, results) == read_json(run_folder(results, experiment) / "result.json")
    assert run_folder(results, experiment).name.startswith("seed=0@")


def test_sources_are_those_of_the_users_modules_that_are_imported(tmp_path):
    """Also relative, in a function, by name, in a package's __init__, and in a folder that has none."""
    code = tmp_path / "code"
    (code / "own_pkg" / "__init__.py").write_text("from .deep.inner import f\n")
    (code / "own_pkg" / "deep").mkdir()
    (code / "own_pkg" / "deep" / "inner.py").write_text(  # a folder without an __init__.py
        "import numpy\n\n\ndef f():\n    import own_late\n    import importlib\n\n"
        "    return importlib.import_module('own_by_name')\n"
    )
    (code / "own_late.py").write_text("try:\n    import own_broken, own_raising.part\nexcept Exception:\n    pass\n")
    (code / "own_broken.py").write_text("def (\n")
    (code / "own_raising").mkdir()
    (code / "own_raising" / "__init__.py").write_text("raise RuntimeError\n")
    (code / "own_by_name.py").write_text("Z = 1\n")

    def hashed() -> str | None:
        forget_modules()
        return source_hash(importlib.import_module("own_method").Mine)

    seen = {hashed()}
    for count, name in enumerate(
        ("own_late", "own_by_name", "own_pkg/__init__", "own_pkg/deep/inner", "own_method"), 2
    ):
        edit(f"{name}.py", "# edited\n")(tmp_path)
        seen.add(hashed())
        assert len(seen) == count, name
    edit("own_net.py", "# edited\n")(tmp_path)
    shutil.move(code, tmp_path / "elsewhere")
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    try:
        assert hashed() in seen  # wherever they lie
    finally:
        sys.path.remove(str(tmp_path / "elsewhere"))


def test_hashes_are_read_once(tmp_path, monkeypatch):
    """As long as no file changes; without a place for the cache, once a process."""
    name = f"folder:{pets(tmp_path).data.name.removeprefix('folder:')}"
    first = content.content_hash(name)
    monkeypatch.setattr(content, "load", None)
    monkeypatch.setattr(content, "_IN_THIS_PROCESS", {})
    content.look_again()
    assert content.content_hash(name) == first
    monkeypatch.undo()
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("no home"))))
    monkeypatch.delenv("FSSL_CACHE", raising=False)
    content.look_again()
    assert content.content_hash(name) == first
    (tmp_path / "pets" / "a" / "1.png").unlink()
    assert content.content_hash(name) == first  # until the next command looks again
    content.look_again()
    assert content.content_hash(name) not in (None, first)
    shutil.rmtree(tmp_path / "pets")
    content.look_again()
    assert content.content_hash(name) is None


@pytest.mark.parametrize("here", [True, False], ids=["data here", "no data here"])
def test_every_committed_copy_counts(here, monkeypatch):
    """On the packed files, and on a machine that has no data."""
    if here:
        if not (REAL / "mnist").is_dir():
            pytest.skip("the packed data sets are not here")
        monkeypatch.setenv("FSSL_DATA", str(REAL))
    keys = [path.name for path in (ROOT / "results" / "reference").iterdir() if path.is_dir()]
    lines: list[str] = []
    records = read_records(ROOT / "results", keys, with_reference=True, with_runs=False, differences=lines)
    assert lines == [] and sum(map(len, records.values())) == len([*(ROOT / "results/reference").glob("*/*.json.gz")])
