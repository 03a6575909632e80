"""Records that are odd or damaged: every command tells of each in one line, and does its work on all others.

Odd is each field of each file of a run, and of a committed copy, replaced by each of ODD, with a digest that fits. Many
odd records of one cell lie beside a sound one of another cell each. One odd record in 250 is tried, or in EVERY of the
environment. Damaged bytes give a value or an error of ours, whatever reads them; EXAMPLES in the environment is how
many of each file; then they are other ones at every run, or by --hypothesis-seed.
"""

import contextlib
import copy
import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.cli import launch, report
from benchmark.cli.main import main
from benchmark.cli.run import resolve
from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Experiment, Federation, from_json, from_record, to_json
from benchmark.files import read_json
from benchmark.papers import items as paper_items
from benchmark.papers.item import Cell, Item
from benchmark.records.copies import copied, copy_digest, pack, read_copy
from benchmark.records.record import PROGRESS, RESULT, ROUNDS, read_run, run_digest, run_folder, run_name
from benchmark.records.run import run
from benchmark.records.state import NAME as STATE
from benchmark.records.state import load
from benchmark.sharing.verify import record_faults
from benchmark.verdicts import families, registered
from benchmark.verdicts.families import families_at
from benchmark.verdicts.rule import rule
from sweeps.workers import attempt
from tests.conftest import record_of, tiny_experiment
from tests.records.conftest import stopped_after
from tests.reports.fakes import pair
from tests.sweeps.here import Here

FILES = ("experiment.json", "manifest.json", ROUNDS, RESULT)  # of a run; all that its digest is made of
MISSING = object()
ODD: dict[str, Any] = {
    "null": None, "text": "x", "list": [1], "object": {"a": 1}, "NaN": float("nan"), "400 digits": int("9" * 400),
    "negative": -1, "true": True, "missing": MISSING,
}  # fmt: skip
COMMANDS = (
    "status --json",
    "status ssfl/odd",
    "plan ssfl/odd",
    "report ssfl/odd",
    "verify ssfl/odd --claims",
    "work ssfl/odd",
)
EVERY = int(os.environ.get("EVERY", "250"))
FIRST = 100  # the first seed, all of which confirm
TINY = tiny_experiment(profile="demo", federation=Federation(K=4, C=4, T=1, rounds=2))
OTHER = replace(TINY, optimizer=replace(TINY.optimizer, lr=0.04))
CLAIM = replace(pair().claims[0], contrasts=({"odd": 1, "sound": -1},))
EXPERIMENT, COPY = "experiment.json", "copy"
Files = dict[str, Any]  # of a run, and its compact copy: trees by name; MISSING is not there
Odd = tuple[str, str, tuple[str | int, ...], str]  # form, file, path of the field in it, name in ODD


def item(profile: str) -> Item:
    cells = [
        Cell(label=name, setting={"method": name}, experiment=one) for name, one in (("odd", TINY), ("sound", OTHER))
    ]
    return Item(name="ssfl/odd", title="t", profile=profile, cells=tuple(cells), claims=(CLAIM,), seeds=2)


def in_this_process(size: int, results: Path, *options: Any) -> Here:
    return Here(lambda experiment: attempt(experiment, results, "cpu"))


@pytest.fixture(autouse=True)
def only_item(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = (families_at, registered._registered, registered._committed)
    for cached in caches:
        cached.cache_clear()
    for module in (paper_items, report, families, registered):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/odd": item})
    for module in (paper_items, report, families):
        monkeypatch.setattr(module, "VARIANTS", {})
    monkeypatch.setattr(launch, "LocalWorkers", in_this_process)
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of one cell, which are to judge the claim."""
    results = tmp_path_factory.mktemp("trained")
    begun = {"claims": {"ssfl demo": {"main": [], "others": [item("demo").hash_of(CLAIM)]}}, "rule": rule()}
    for seed in range(FIRST, FIRST + 5):
        run(TINY.with_seed(seed), results, begun_under=lambda: begun)
    return results


@pytest.fixture(scope="module")
def sound(trained: Path) -> Files:
    """Of the first run, with all that a manifest may have."""
    folder = run_folder(trained, TINY.with_seed(FIRST))
    files: Files = {name: read_json(folder / name) for name in FILES if name != ROUNDS}
    files[ROUNDS] = [json.loads(line) for line in (folder / ROUNDS).read_text().splitlines()]
    files["manifest.json"]["sources"] = {"mine:Mine": "0" * 64}
    return {**files, COPY: pack(record_of(folder))}


def files_of(experiment: Experiment, sound: Files) -> Files:
    """As of a run of that cell and seed."""
    files = copy.deepcopy(sound)
    for results in (files[RESULT], *files[ROUNDS], files[COPY], files[COPY]["result"]):
        results |= {"cell_key": experiment.cell_key, "seed": experiment.seed}
    for plain in (files[EXPERIMENT], files[COPY]["experiment"]):
        plain["optimizer"]["lr"], plain["seed"] = experiment.optimizer.lr, experiment.seed
    return files


def write_run(folder: Path, files: Files, *, finished: bool = True) -> Path:
    """With a digest of what is written, as another program would write it."""
    folder.mkdir(parents=True)
    (folder / (ROUNDS if finished else PROGRESS)).write_text("".join(json.dumps(it) + "\n" for it in files[ROUNDS]))
    for name in (EXPERIMENT, "manifest.json"):
        if files[name] is not MISSING:
            (folder / name).write_text(json.dumps(files[name]))
    result = files[RESULT]
    if isinstance(result, dict):
        with contextlib.suppress(FsslError, AttributeError):  # no digest of what is no record
            result["digest"] = run_digest(folder, result)
    if finished and result is not MISSING:
        (folder / RESULT).write_text(json.dumps(result))
    return folder


def write_odd(results: Path, seed: int, sound: Files, odd: Odd) -> None:
    form, name, path, kind = odd
    files = files_of(TINY.with_seed(seed), sound)
    files[name] = replaced(files[name], path, ODD[kind])
    if form == COPY:
        packed, file = files[COPY], results / "reference" / TINY.cell_key / f"seed={seed}.json.gz"
        if path != ("digest",) and isinstance(packed, dict):
            packed["digest"] = copy_digest(packed)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(b"" if packed is MISSING else json.dumps(packed).encode(), 1))
    else:
        write_run(run_folder(results, TINY.with_seed(seed)), files, finished=form == "run")


def replaced(tree: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    tree = copy.copy(tree)
    if value is MISSING and not rest:
        del tree[key]
    else:
        tree[key] = replaced(tree[key], tuple(rest), value)
    return tree


def paths_of(tree: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the tree itself, of all fields, and of the first and the last entry of lists."""
    yield ()
    inner: Any = {}
    if isinstance(tree, dict):
        inner = tree
    elif tree and isinstance(tree, list):
        inner = {0: tree[0], len(tree) - 1: tree[-1]}
    for key in inner:
        yield from ((key, *path) for path in paths_of(inner[key]))


def sample(sound: Files) -> list[Odd]:
    """One odd record in EVERY, of all kinds, always the same ones. Rounds that a digest vouches for are not looked at
    before they are shown: see `test_record`."""
    forms = {COPY: (COPY,), ROUNDS: ("unfinished",), RESULT: ("run",)}
    odds = [
        (form, name, path, kind)
        for name, tree in sound.items()
        for form in forms.get(name, ("run", "unfinished"))
        for path in paths_of(tree)
        if path or name != ROUNDS
        for kind in ODD
    ]
    return sorted(odds, key=lambda odd: hashlib.sha256(repr(odd).encode()).digest())[::EVERY]


def called(command: str, results: Path, seeds: int = 1) -> tuple[int | None, list[str], str]:
    """Its exit code, its lines on standard output, and what is on standard error, a traceback among it."""
    verb, *words = command.split()
    words += ["--profile", "demo"] if "ssfl/odd" in words else []
    words += ["--seeds", str(seeds)] if "ssfl/odd" in words and verb in ("status", "plan", "work") else []
    words += {"report": ["--site", str(results / "site")], "work": ["--jobs", "1"]}.get(verb, [])
    said, errors, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            code = main([verb, *words, "--results", str(results)])
        except (Exception, SystemExit):
            traceback.print_exc()
    return code, said.getvalue().splitlines(), errors.getvalue()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_fails_on_odd_records(command: str, sound: Files, tmp_path: Path) -> None:
    """A failure names the seed, which is the number of the odd record."""
    odds = sample(sound)
    for seed, odd in enumerate(odds, FIRST):
        write_odd(tmp_path, seed, sound, odd)
        write_run(run_folder(tmp_path, OTHER.with_seed(seed)), files_of(OTHER.with_seed(seed), sound))
    code, lines, errors = called(command, tmp_path, len(odds))
    assert "Traceback" not in errors, (errors, dict(enumerate(odds, FIRST)))
    assert code in ((0, 1, 65, 66) if command.startswith(("verify", "work")) else (0,)), errors
    assert not command.startswith("verify") or " records, " in lines[-1], errors
    if command == "status --json":
        states = [run["state"] for run in json.loads("\n".join(lines))["runs"] if run["cell_key"] == OTHER.cell_key]
        assert states == ["done"] * len(odds)


# Seed, file, its content, what is said of it. Runs with a broken claim or state are not finished.
OWN_METHOD = json.dumps({**to_json(TINY.with_seed(104)), "method": {"kind": "leaves:Mine"}}).encode()
BROKEN = [
    (101, "claim", b"\xff\xfe", "is damaged"),
    (102, "state.pt", b"PK", "is damaged"),
    (103, RESULT, b"null", "not a JSON object"),
    (104, EXPERIMENT, OWN_METHOD, "not a method of this suite"),
]
LAST = 105  # of those that are wanted
OWN = {"name_error": "nothing_of_this_name", "syntax_error": "def (", "leaves": "import sys; sys.exit(3)"}


@pytest.fixture
def results(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A sound run, the broken ones, and the user's own files, which leave a mark when they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in OWN.items():
        (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'w')\n{text}\n")
    results = shutil.copytree(trained, tmp_path / "results")
    for seed, name, content, _ in BROKEN:
        folder = run_folder(results, TINY.with_seed(seed))
        (folder / name).write_bytes(content)
        if name == EXPERIMENT:
            result = json.loads((folder / RESULT).read_text())
            (folder / RESULT).write_text(json.dumps({**result, "digest": run_digest(folder, result)}))
        elif name != RESULT:
            (folder / RESULT).unlink()
            os.utime(folder / name, (1000.0, 1000.0))  # no heartbeat
    yield results
    assert not any((tmp_path / name).exists() for name in OWN)


def test_each_broken_file_is_named_once_and_the_others_count(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines, _ = called("verify", results)
    assert code == 66 and len(lines) == len(BROKEN) + 1 and lines[-1].startswith("4 records")
    for seed, name, _, says in BROKEN:
        (line,) = [line for line in lines if f"seed={seed}/" in line or f"seed={seed}:" in line]
        assert name in line and says in line, line
    code, lines, errors = called("report ssfl/odd", results)
    pages = "".join(path.read_text() for path in results.rglob("*.html"))
    assert code == 0 and "seed=103/result.json" in pages

    monkeypatch.setattr("benchmark.records.wandb_mirror.WandbMirror", lambda *_, **__: Mock(failed=False))
    code, lines, errors = called("wandb-rebuild --offline", results)
    assert code == 66 and lines[-1] == "3 of 4 runs mirrored"
    for seed in (103, 104):
        assert sum(f"seed={seed}" in line or f"seed {seed}" in line for line in [*lines, *errors.splitlines()]) == 1

    # One cannot be begun before somebody looks at it; two begin anew, and one begins.
    code, _, errors = called("work ssfl/odd", results, seeds=LAST - FIRST + 1)
    assert code == 66 and "seed=103/result.json" in errors
    for seed in (101, 102, LAST):
        assert read_json(run_folder(results, TINY.with_seed(seed)) / RESULT)["status"] == "done"


def test_what_a_disk_does_not_give_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`work` leaves such a run alone: see `test_launcher`."""
    lost, read = run_folder(results, TINY.with_seed(FIRST)), Path.read_bytes

    def reading(path: Path) -> bytes:
        if path.parent == lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    for command in ("status", "status ssfl/odd", "plan ssfl/odd", "verify"):
        code, lines, errors = called(command, results)
        assert code == (66 if command == "verify" else 0), errors
        lines += errors.splitlines()
        assert any(f"seed={FIRST}" in line and os.strerror(errno.EIO) in line for line in lines), lines
    assert called("report", results)[0] == 0
    assert f"seed={FIRST}: [Errno {errno.EIO}]" in (results / "site" / "index.html").read_text()


def test_a_record_runs_no_file_that_the_user_has_not_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named on the command line, it is run, and what it does wrong is one line."""
    for name in OWN:
        with pytest.raises(ConfigError, match="a record's own code is not run"):
            from_record({**to_json(TINY), "method": {"kind": f"{name}:Mine"}})
        with pytest.raises(ConfigError, match="cannot be imported"):
            from_json({**to_json(TINY), "method": {"kind": f"{name}:Mine"}})
        assert main(["verify", "--method", f"{name}:Mine", "--results", str(results)]) == 65
        said = capsys.readouterr().err
        assert said.startswith("fssl: method.kind: ") and said.count("\n") == 1
        (results.parent / name).unlink(missing_ok=True)  # Python does not begin what it cannot parse


RUN = TINY.with_seed(FIRST)
CONFIG, PACKED = json.dumps(to_json(RUN)).encode(), f"seed={FIRST}.json.gz"
WORDS = [word.encode() for word in ("null", "NaN", "-", "{", "}", "[" * 3000, "&a [*a]", "\t", "1e999", "''", "🙂")]


def broken(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes cut out and others put in, somewhere; or the rest cut off."""
    return st.builds(
        lambda at, size, word: data[:at] + word + data[at + size :],
        st.integers(0, len(data)),
        st.sampled_from((0, 1, 8, 200, len(data))),
        st.sampled_from(WORDS) | st.binary(max_size=2),
    )


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run and of a configuration."""
    folder, stopped = run_folder(trained, RUN), tmp_path_factory.mktemp("stopped")
    stopped_after(1, RUN, stopped)
    return {
        **{name: (folder / name).read_bytes() for name in FILES},
        PACKED: gzip.decompress(copied(record_of(folder))),
        STATE: (run_folder(stopped, RUN) / STATE).read_bytes(),
        **dict.fromkeys(("a.json", "a.yaml"), CONFIG),
    }


def read_record(path: Path) -> None:
    record = read_copy(path) if path.name == PACKED else read_run(path.parent)
    if record is not None:
        record_faults(record)


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys((*FILES, PACKED), read_record),
    STATE: lambda path: load(path.parent, run_name(RUN)),
    **dict.fromkeys(("a.json", "a.yaml"), lambda path: resolve(path, [])),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_damaged_bytes(tmp_path: Path, whole: dict[str, bytes], name: str, data: st.DataObject) -> None:
    folder = run_folder(tmp_path, RUN)
    folder.mkdir(parents=True, exist_ok=True)
    for other in FILES if name in FILES else ():
        (folder / other).write_bytes(whole[other])
    content = data.draw(broken(whole[name]))
    path = (folder.parent if name == PACKED else folder) / name
    path.write_bytes(gzip.compress(content, 1) if name == PACKED else content)
    with warnings.catch_warnings(), contextlib.suppress(FsslError):
        warnings.simplefilter("ignore")  # torch's, on what is in the file
        READERS[name](path)


@given(
    st.lists(st.tuples(st.sampled_from(("method", "data.name", "federation.K", "optimizer.lr", "x", "")), st.text()))
)
def test_configuration_words(words: list[tuple[str, str]]) -> None:
    with contextlib.suppress(FsslError):
        resolve(None, [f"--{name}={value}" for name, value in words])
