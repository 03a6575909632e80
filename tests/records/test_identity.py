"""A record answers only for the data and the user's own code that it was computed from."""

import contextlib
import importlib
import json
import multiprocessing
import os
import pickle
import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.data import content, datasets, reading
from benchmark.data.packed import file_sha256
from benchmark.errors import ConfigError, RunningElsewhere
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.federated.environment import prepare
from benchmark.files import read_json
from benchmark.models.build import Model
from benchmark.records import identity
from benchmark.records.collect import read_records
from benchmark.records.copies import read_copy, write_reference
from benchmark.records.identity import changed_inputs
from benchmark.records.record import run_folder, stale_records
from benchmark.records.run import run
from benchmark.records.sources import source_hash
from benchmark.sharing.verify import data_faults, retrain
from sweeps.launcher import launch
from sweeps.plan import plan_of_runs
from sweeps.workers import LocalWorkers
from tests.conftest import ROOT, record_of, tiny_experiment
from tests.data.places import REAL, of_any_size, own_cache  # noqa: F401 - fixtures
from tests.records.conftest import stopped_after

METHOD = """
from dataclasses import dataclass
from benchmark.methods.ssfl import SSFL
import own_pkg.loss

@dataclass(frozen=True, kw_only=True)
class Mine(SSFL):
    pass
"""
MADE = """
from benchmark.models.small_cnn import TinyCnn

def made():
    return type("Net", (TinyCnn,), {})
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch, own_cache, of_any_size):  # noqa: F811
    """Provide modules and a data folder for the test."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "data"))
    monkeypatch.syspath_prepend(tmp_path / "code")
    for path, text in {
        "own_method.py": METHOD,
        "own_net.py": "from own_pkg.made import made\n\nNet = made()\n",
        "own_pkg/made.py": MADE,
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
    """Forget modules and files, as in a new process."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("own_method", "own_net", "own_pkg")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def own_code(tmp_path: Path) -> Experiment:
    """Return the tiny experiment with the test's own method and network, imported anew."""
    forget_modules()
    tiny = tiny_experiment(model=Model(network="own_net:Net", norm="gn", norm_groups=4))
    return from_json({**to_json(tiny), "method": {**to_json(tiny)["method"], "kind": "own_method:Mine"}})


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def change_a_pixel(tmp_path: Path) -> None:
    """Change a pixel; the file keeps its size and its time."""
    path = tmp_path / "pets" / "a" / "0.bmp"
    before, pixels = path.stat(), path.read_bytes()
    path.write_bytes(pixels[:-1] + bytes([pixels[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit(name: str, text: str = "# edited\n") -> Callable[[Path], object]:
    def change(tmp_path: Path) -> None:
        with open(tmp_path / "code" / name, "a") as file:
            file.write(text)

    return change


def save_packed(tmp_path: Path, seed: int = 1) -> None:
    """Save packed files of a set that the suite does not list."""
    folder = tmp_path / "data" / "emnist_balanced"
    folder.mkdir(parents=True, exist_ok=True)
    for part, number in (("train", 60), ("test", 20)):
        images = np.random.default_rng([seed, number]).integers(0, 256, (number, 8, 8), dtype=np.uint8)
        labels = np.arange(number, dtype=np.uint8) % 10
        np.savez(folder / f"{part}.npz", images=images, labels=labels, classes=np.array([*"0123456789"]))


def pets(tmp_path: Path) -> Experiment:
    for label in ("a", "b") if not (tmp_path / "pets").exists() else ():
        (tmp_path / "pets" / label).mkdir(parents=True)
        for index in range(30):
            pixels = np.random.default_rng([index, ord(label)]).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{index}.bmp")
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, name=f"folder:{tmp_path / 'pets'}", N_s=4))


def under_a_known_name(tmp_path: Path) -> Experiment:
    if not (tmp_path / "data").exists():
        save_packed(tmp_path, seed=0)
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, name="emnist_balanced"))


CHANGES = {
    "a pixel in a folder": (pets, change_a_pixel, "data: folder:pets"),
    "files under a known name": (under_a_known_name, save_packed, "data: emnist_balanced"),
    "the network's file": (own_code, edit("own_net.py"), "code: own_net:Net"),
    "a module that is imported by one that is": (own_code, edit("own_pkg/scale.py"), "code: own_method:Mine"),
}


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_a_run_on_other_data_or_code_is_trained_apart_and_going_back_finds_the_first(tmp_path, capsys, what, stopped):
    make, change, says = CHANGES[what]
    results, experiment = tmp_path / "results", make(tmp_path)
    before = {path: path.read_bytes() for name in ("pets", "data", "code") for path in files_in(tmp_path / name)}
    first = run_folder(results, experiment)
    if stopped:
        stopped_after(1, experiment, results)
    else:
        first_result = run(experiment, results)
    recorded = {path: path.read_bytes() for path in files_in(first)}
    assert first.name == "seed=0" and capsys.readouterr().err == ""

    change(tmp_path)
    content.look_again()
    experiment = make(tmp_path)
    result = run(experiment, results)
    apart = run_folder(results, experiment)
    assert {path: path.read_bytes() for path in files_in(first)} == recorded
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and f"trained separately in {apart.name}" in line and apart.name.startswith("seed=0@")
    assert result == read_json(apart / "result.json") and result["status"] == "done"
    assert [attempt["from_round"] for attempt in record_of(apart).manifest["attempts"]] == [0]
    assert run(experiment, results) == result  # not trained again
    if not stopped:
        both = [record_of(first), record_of(apart)]
        assert says in (retrain(both[0]).skipped or "")
        assert "pixel" not in what or data_faults(both) == ([], {experiment.data.name})
        for path, known in before.items():
            path.write_bytes(known)
        assert run(make(tmp_path), results) == first_result != result
        shutil.rmtree(first)
        change(tmp_path)
        content.look_again()
        assert run(make(tmp_path), results) == result  # also where the first is gone


@pytest.mark.parametrize(
    ("what", "reason"), [("a pixel in a folder", "different data"), ("the network's file", "old code")]
)
def test_a_finished_record_that_does_not_count_is_kept_until_its_seed_is_trained_again(tmp_path, what, reason):
    make, change, _ = CHANGES[what]
    results, experiment = tmp_path / "results", make(tmp_path)
    first = run(experiment, results)
    stopped_after(1, experiment.with_seed(1), results)  # has no number to show
    change(tmp_path)
    content.look_again()
    experiment = make(tmp_path)

    def runs() -> Any:
        return read_records(results, [experiment.cell_key], with_reference=False, troubles=[])[experiment.cell_key]

    assert not runs() and list(stale_records(runs())) == [0]
    stale = stale_records(runs())[0]
    assert (stale.result, stale.stale) == (first, reason)
    again = run(experiment, results)
    assert runs()[0].result == again and not runs()[0].stale and not stale_records(runs())


def test_files_that_the_suite_lists_count_as_equal(tmp_path, monkeypatch):
    """A finished run on other listed files counts, also as a committed copy; an unfinished one does not go on."""
    results, experiment = tmp_path / "results", under_a_known_name(tmp_path)
    folder = tmp_path / "data" / "emnist_balanced"

    def list_files(*files: Path) -> None:
        listed = {path.name: file_sha256(path) for path in files}
        entry = replace(datasets.DATASETS["emnist_balanced"], packed_sha256=listed, packed_note="listed")
        monkeypatch.setitem(datasets.DATASETS, "emnist_balanced", entry)
        content.look_again()

    list_files(*folder.iterdir())
    result = run(experiment, results)
    stopped_after(1, experiment.with_seed(1), results)
    write_reference(results, record_of(run_folder(results, experiment)))
    save_packed(tmp_path)
    list_files(*folder.iterdir())
    assert run(experiment, results) == result
    assert run(experiment.with_seed(1), results)["status"] == "done"
    assert run_folder(results, experiment.with_seed(1)).name.startswith("seed=1@")
    shutil.rmtree(results / "runs")
    content.look_again()
    assert read_records(results, [experiment.cell_key], with_reference=True)[experiment.cell_key][0].result == result
    list_files()
    lines: list[str] = []
    records = read_records(results, [experiment.cell_key], with_reference=True, troubles=lines)
    assert records[experiment.cell_key] == {} and len(lines) == 1
    # README and findings are made of copies alone, and must be the same in every checkout.
    alone = read_records(results, [experiment.cell_key], with_reference=True, with_runs=False)
    assert alone[experiment.cell_key][0].result == result


def test_commands_say_what_differs_and_a_launch_trains_apart(tmp_path, capsys, fssl, printed):
    """Finished and half-finished runs: each is trained on the images that are here, once."""
    results, experiment = tmp_path / "results", pets(tmp_path)
    runs = (experiment, experiment.with_seed(1))
    place = f"--results={results}"
    run(experiment, results)
    stopped_after(1, runs[1], results)
    assert plan_of_runs(runs, results).missing == runs[1:]
    assert capsys.readouterr().err == ""
    change_a_pixel(tmp_path)

    missing = plan_of_runs(runs, results).missing
    (line,) = capsys.readouterr().err.splitlines()
    assert missing == runs and line.startswith("fssl: data: folder:pets has the content")
    out = printed("status", place)
    assert "2 missing" in out and "data: folder:pets has the content" in out and "trained separately in seed=0@" in out
    code, out, _ = fssl("verify", place)
    assert code == 66 and "/seed=0: manifest.json: data.hash" in out  # it is of other images than are here
    assert launch(LocalWorkers(1, results), missing, results).trained == 2
    assert plan_of_runs(runs, results).missing == ()
    apart = [run_folder(results, one) for one in runs]
    assert [folder.name[:7] for folder in apart] == ["seed=0@", "seed=1@"]
    out = printed("status", place)
    assert "2 done" in out and "data:" not in out
    code, out, said = fssl("verify", place)
    assert code == 0 and "not computed again" in said and "folder:" in said


def test_a_run_that_another_process_begins_on_other_data_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    """Between the look at the folder and the claim."""
    results, experiment = tmp_path / "results", pets(tmp_path)
    run(experiment, results)
    recorded = run_folder(results, experiment)
    aside = recorded.rename(tmp_path / "aside")
    change_a_pixel(tmp_path)

    def prepared_late(*args):
        aside.rename(recorded)  # the other process was faster
        return prepare(*args)

    monkeypatch.setattr("benchmark.records.run.prepare", prepared_late)
    with pytest.raises(RunningElsewhere, match="on different data or code"):
        run(experiment, results)
    monkeypatch.undo()
    assert run(experiment, results) == read_json(run_folder(results, experiment) / "result.json")
    assert run_folder(results, experiment).name.startswith("seed=0@")


def test_sources_are_those_of_the_users_modules_that_are_imported(tmp_path, monkeypatch):
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
        return source_hash(importlib.import_module("own_method").Mine, "own_method")

    seen = {hashed()}
    for count, name in enumerate(("own_late", "own_by_name", "own_pkg/__init__", "own_pkg/deep/inner"), 2):
        edit(f"{name}.py")(tmp_path)
        seen.add(hashed())
        assert len(seen) == count, name
    for name in ("own_net", "own_pkg/not_imported"):
        edit(f"{name}.py")(tmp_path)
    monkeypatch.syspath_prepend(shutil.move(code, tmp_path / "elsewhere"))
    assert hashed() in seen  # wherever they lie


def test_hashes_are_read_once(tmp_path, monkeypatch):
    """As long as no file changes; without a place for the cache, once a process."""
    name = pets(tmp_path).data.name
    first = content.content_hash(name)
    monkeypatch.setattr(content, "load", None)
    content.look_again()
    reading._known.clear()  # as a new process has it
    assert content.content_hash(name) == first
    monkeypatch.undo()
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError("no home"))))
    monkeypatch.delenv("FSSL_CACHE", raising=False)
    content.look_again()
    assert content.content_hash(name) == first
    (tmp_path / "pets" / "a" / "1.bmp").unlink()
    assert content.content_hash(name) == first  # until the next command looks again
    content.look_again()
    assert content.content_hash(name) not in (None, first)
    shutil.rmtree(tmp_path / "pets")
    content.look_again()
    assert content.content_hash(name) is None


def test_sources_of_a_worker_that_has_not_imported_the_network_yet(tmp_path, capsys):
    """Unpickling an experiment imports its method alone: the first run of each worker process had no network's hash."""
    results = tmp_path / "results"
    pickled = pickle.dumps(own_code(tmp_path))
    forget_modules()
    experiment = pickle.loads(pickled)
    assert "own_net" not in sys.modules
    folder = run_folder(results, experiment)
    run(experiment, results)
    assert set(record_of(folder).manifest["sources"]) == {"own_method:Mine", "own_net:Net"}
    edit("own_net.py")(tmp_path)
    assert plan_of_runs([own_code(tmp_path)], results).missing
    forget_modules()
    assert run_folder(results, pickle.loads(pickled)) != folder


def test_every_worker_process_of_a_launch_hashes_the_sources(tmp_path):
    results, experiment = tmp_path / "results", own_code(tmp_path)
    runs = [experiment.with_seed(seed) for seed in range(3)]
    assert launch(LocalWorkers(2, results), runs, results).trained == 3
    for one in runs:
        assert len(record_of(run_folder(results, one)).manifest["sources"]) == 2
    edit("own_net.py")(tmp_path)
    edited = own_code(tmp_path)
    assert len(plan_of_runs([edited.with_seed(seed) for seed in range(3)], results).missing) == 3


def test_a_record_without_the_source_of_a_class_that_it_names_is_stale(tmp_path, capsys):
    """As older versions wrote it: it may have been computed with any code."""
    results, experiment = tmp_path / "results", own_code(tmp_path)
    run(experiment, results)
    folder = run_folder(results, experiment)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sources"]["own_net:Net"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert plan_of_runs([experiment], results).missing
    run(experiment, results)
    says = capsys.readouterr().err
    assert "own_net:Net" in says and "trained separately in seed=0@" in says
    assert run_folder(results, experiment) != folder


def test_a_run_whose_record_could_not_name_a_source_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    results, experiment = tmp_path / "results", own_code(tmp_path)
    monkeypatch.setattr("benchmark.records.sources.source_hash", lambda cls, module: None)
    with pytest.raises(ConfigError, match="has no source"):
        run(experiment, results)
    assert not files_in(results)


LOADS = """
import torch
from benchmark.models.small_cnn import TinyCnn

class Net(TinyCnn):
    def __init__(self, *args):
        super().__init__(*args)
        with torch.no_grad():
            self.fc2.bias += torch.load(PATH, weights_only=True)
"""


def test_a_network_that_loads_other_initial_weights_is_trained_apart(tmp_path, capsys):
    """Its source is the same: the file that its constructor reads is not."""
    results, weights = tmp_path / "results", tmp_path / "init.pt"
    (tmp_path / "code" / "own_net.py").write_text(LOADS.replace("PATH", repr(str(weights))))
    first, other = (torch.full((10,), value) for value in (0.1, 0.2))
    torch.save(first, weights)
    result = run(own_code(tmp_path), results)
    folder = run_folder(results, own_code(tmp_path))
    torch.save(other, weights)
    identity.look_again()
    assert plan_of_runs([own_code(tmp_path)], results).missing
    run(own_code(tmp_path), results)
    says = capsys.readouterr().err
    assert "own_net:Net" in says and "initial weights" in says
    torch.save(first, weights)
    assert run(own_code(tmp_path), results) == result
    assert run_folder(results, own_code(tmp_path)) == folder


SCRIPT = """
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from benchmark.experiment import Experiment
from benchmark.methods.ssfl import SSFL
from benchmark.records.run import run

@dataclass(frozen=True, kw_only=True)
class Mine(SSFL):
    pass

tiny = Experiment()
tiny = replace(tiny, method=Mine(), federation=replace(tiny.federation, rounds=1, T=1))
run(tiny, Path(sys.argv[1]))
"""


def as_script(script: Path, results: Path, said: Path) -> None:
    """Run the script as Python would, in a forked process, which has all loaded."""
    sys.argv = [str(script), str(results)]
    with said.open("w") as file, contextlib.redirect_stderr(file):
        runpy.run_path(str(script), run_name="__main__")


def test_a_method_in_the_script_that_calls_run_has_the_scripts_source(tmp_path):
    script, results, said = (tmp_path / name for name in ("script.py", "results", "said"))

    def called(text: str) -> str:
        script.write_text(text)
        process = multiprocessing.get_context("fork").Process(target=as_script, args=(script, results, said))
        process.start()
        process.join()
        assert process.exitcode == 0, said.read_text()
        return said.read_text()

    called(SCRIPT)
    (manifest,) = results.glob("runs/*/*/manifest.json")
    assert set(json.loads(manifest.read_text())["sources"]) == {"__main__:Mine"}
    assert "trained separately" not in called(SCRIPT)
    assert "__main__:Mine" in called(SCRIPT.replace("pass", "edited = True"))
    assert len(list(results.glob("runs/*/*/result.json"))) == 2


def test_a_class_without_a_file_is_known_by_its_code():
    """Such as one of a notebook, whose cells have other names and lines each time."""

    def made(body: str, name: str) -> type:
        space: dict[str, Any] = {"__name__": "own_notebook"}
        exec(compile(f"class Mine:\n    def loss(self):\n        {body}\n", name, "exec"), space)
        made_here: type = space["Mine"]
        return made_here

    one, again, other = (made(*each) for each in (("return 1", "<cell 1>"), ("return 1", "<cell 2>"), ("return 2", "")))
    hashes = [source_hash(cls, "own_notebook") for cls in (one, again, other)]
    assert hashes[0] == hashes[1] != hashes[2] and None not in hashes


@pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason="the packed data sets are not here")
def test_committed_copies_count_on_packed_files_and_without_data(tmp_path, monkeypatch):
    """One of each cell; `verify` reads them all."""
    folders = (ROOT / "results" / "reference").iterdir()
    records = [read_copy(next(folder.glob("*.gz"))) for folder in folders if folder.is_dir()]
    for root in (REAL, tmp_path / "nowhere"):
        monkeypatch.setenv("FSSL_DATA", str(root))
        content.look_again()
        assert [
            record.cell_key for record in records if changed_inputs(record.experiment, record.manifest, finished=True)
        ] == []
