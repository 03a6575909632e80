"""A folder of results in which one file of each of many runs is broken: every command tells of each in one line that
names the file, and does its work on all others."""

import contextlib
import errno
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.cli import report
from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.experiment import Federation, from_json, from_record, to_json
from benchmark.papers import catalogue
from benchmark.papers.item import Cell, Item
from benchmark.records.files import read_json, write_json
from benchmark.records.record import run_digest, run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment

TINY = replace(tiny_experiment(), federation=Federation(K=4, C=4, T=1, rounds=2))
SOUND, MISSING = 0, 8  # seeds
# Seed, file, its content, what is said of it. Runs with a broken claim or state are not finished.
BROKEN = [
    (1, "claim", b"\xff\xfe", "is damaged"),
    (2, "claim", b"", "is damaged"),
    (3, "result.json", b"null", "not a JSON object"),
    (4, "state.pt", b"PK", "is damaged"),
    (5, "experiment.json", b"name_error:Mine", "not a method of this suite"),
    (6, "experiment.json", b"syntax_error:Mine", "not a method of this suite"),
    (7, "experiment.json", b"leaves:Mine", "not a method of this suite"),
]
FILES = {"name_error": "nothing_of_this_name", "syntax_error": "def (", "leaves": "import sys; sys.exit(3)"}


def item(profile: str) -> Item:
    cell = Cell(label="FedAvg", setting={"method": "FedAvg"}, experiment=replace(TINY, profile=profile))
    return Item(name="ssfl/tab2", title="t", profile=profile, cells=(cell,), seeds=MISSING + 1)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    results = tmp_path_factory.mktemp("broken")
    experiment = replace(TINY, profile="demo")
    run(experiment, results)
    for seed, name, content, _ in BROKEN:
        folder = run_folder(results, experiment.with_seed(seed))
        run(experiment.with_seed(seed), results)
        if name == "experiment.json":
            plain = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps({**plain, "method": {"kind": content.decode()}}))
            result = read_json(folder / "result.json")
            write_json(folder / "result.json", {**result, "digest": run_digest(folder, result)})
        else:
            (folder / name).write_bytes(content)
        if name in ("claim", "state.pt"):
            (folder / "result.json").unlink()
            os.utime(folder / name, (1000.0, 1000.0))  # no heartbeat
    return results


@pytest.fixture
def results(broken, tmp_path, monkeypatch):
    """A copy, and the user's own files beside it; each leaves a mark when it is run."""
    for module in (catalogue, report):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/tab2": item})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'w')\n{text}\n")
    yield shutil.copytree(broken, tmp_path / "results")
    assert not any((tmp_path / name).exists() for name in FILES)


def lines_of(*words: object) -> tuple[int, list[str]]:
    """The exit code, and the lines of both outputs."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([str(word) for word in words])
    return code, said.getvalue().splitlines()


def test_verify_names_each_once(results):
    code, lines = lines_of("verify", "--results", results)
    assert code == 66 and lines[-1].startswith("7 records")
    for seed, name, _, says in BROKEN:
        found = [line for line in lines if f"seed={seed}/" in line or f"seed={seed}:" in line]
        assert len(found) == 1, found
        (line,) = found
        assert name in line and says in line, line
    assert len(lines) == len(BROKEN) + 1 and not any(f"seed={SOUND}" in line for line in lines)


@pytest.fixture
def another_user(results):
    """Who may read the results, but not the run of seed 0 or the cell beside its own."""
    locked = [run_folder(results, TINY), results / "runs" / ("0" * 16)]
    locked[1].mkdir()
    places = [results, *results.parents[:-2]]  # pytest's folders are for their user only
    modes = {path: path.stat().st_mode for path in (*places, *locked)}
    for path in modes:
        path.chmod(0o000 if path in locked else 0o755)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    yield
    os.seteuid(user)
    for path, mode in modes.items():
        path.chmod(mode)


def test_a_run_that_may_not_be_read_is_named(results, another_user):
    """`work` leaves it alone: see `test_launcher`."""
    for words, code in ((["status"], 0), (["status", "ssfl/tab2"], 0), (["plan", "ssfl/tab2"], 0), (["verify"], 66)):
        words += ["--profile", "demo"] if len(words) == 2 else []
        ended, lines = lines_of(*words, "--results", results)
        assert ended == code and any("seed=0" in line and "Permission denied" in line for line in lines), lines
        if len(words) == 1:
            assert any(f"{'0' * 16}: Permission denied" in line for line in lines), lines


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_run_that_a_disk_does_not_give_is_named(results, monkeypatch, number):
    lost, read = run_folder(results, TINY), Path.read_bytes

    def reading(path: Path) -> bytes:
        if path.parent == lost:
            raise OSError(number, os.strerror(number))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    for words, code in ((["status"], 0), (["status", "ssfl/tab2"], 0), (["plan", "ssfl/tab2"], 0), (["verify"], 66)):
        words += ["--profile", "demo"] if len(words) == 2 else []
        ended, lines = lines_of(*words, "--results", results)
        assert ended == code and any("seed=0" in line and os.strerror(number) in line for line in lines), lines
    site = results.parent / "site"
    assert lines_of("report", "--profile", "demo", "--results", results, "--site", site)[0] == 0
    assert f"seed=0: [Errno {number}]" in (site / "index.html").read_text()


def test_status_and_report_show_the_others(results):
    code, lines = lines_of("status", "ssfl/tab2", "--profile", "demo", "--results", results)
    assert code == 0 and lines[0].startswith("9 runs: 4 done, ")
    assert lines_of("status", "--results", results)[0] == 0
    site = results.parent / "site"
    code, said = lines_of("report", "--profile", "demo", "--results", results, "--site", site)
    assert code == 0 and (site / "index.html").exists(), said
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    assert "seed=3/result.json" in pages and any("seed=3/result.json" in line for line in lines)


def test_wandb_rebuild_mirrors_the_others(results, monkeypatch):
    monkeypatch.setattr("benchmark.records.wandb_mirror.WandbMirror", Mirror)
    code, lines = lines_of("wandb-rebuild", "--offline", "--results", results)
    assert code == 66 and lines[-1] == "4 of 7 runs mirrored"
    for seed in (3, 5, 6, 7):
        assert sum(f"seed={seed}" in line or f"seed {seed}" in line for line in lines) == 1


class Mirror:
    """W&B itself takes seconds a run."""

    failed = False

    def __init__(self, *words: object, **options: object) -> None: ...

    def finish(self, exit_code: int) -> None: ...


def test_work_goes_on_with_the_others(results):
    """One cannot be begun before somebody looks at it; three begin anew, and one begins."""
    code, lines = lines_of("work", "ssfl/tab2", "--profile", "demo", "--jobs", "1", "--results", results)
    assert code == 66, lines
    folders = {seed: run_folder(results, TINY.with_seed(seed)) for seed in range(MISSING + 1)}
    for seed in (1, 2, 4, MISSING):
        assert json.loads((folders[seed] / "result.json").read_text())["status"] == "done"
    assert any("seed=3/result.json" in line for line in lines), lines


def test_a_record_runs_no_file_that_the_user_has_not_named(results, capsys):
    """Named on the command line, it is run, and what it does wrong is one line."""
    for name in FILES:
        with pytest.raises(ConfigError, match="a record's own code is not run"):
            from_record({**to_json(TINY), "method": {"kind": f"{name}:Mine"}})
        with pytest.raises(ConfigError, match="cannot be imported"):
            from_json({**to_json(TINY), "method": {"kind": f"{name}:Mine"}})
        assert main(["verify", "--method", f"{name}:Mine", "--results", str(results)]) == 65
        said = capsys.readouterr().err
        assert said.startswith("fssl: method.kind: ") and said.count("\n") == 1
        (results.parent / name).unlink(missing_ok=True)  # Python does not begin what it cannot parse
