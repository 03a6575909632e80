"""Records that are odd or damaged: every command tells of each in one line, and does its work on all others.

Odd is each field of each file of a run, and of a committed copy, replaced by each of ODD, with a digest that fits. Each
odd record has a seed of its own, and a sound one of another cell beside it. One odd record in 250 is tried, or in EVERY
of the environment. Damaged bytes give a value or an error of ours, whatever reads them; EXAMPLES in the environment is
how many of each file; then they are other ones at every run, or by --hypothesis-seed.
"""

import contextlib
import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.cli import launch, report
from benchmark.cli.run import resolve
from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Federation, from_json, from_record, to_json
from benchmark.files import read_json
from benchmark.papers import items as paper_items
from benchmark.papers.item import Cell, Item
from benchmark.records.copies import copied, copy_digest, read_copy
from benchmark.records.record import PROGRESS, RESULT, ROUNDS, read_run, run_digest, run_folder, run_name
from benchmark.records.run import run
from benchmark.records.state import NAME as STATE
from benchmark.records.state import load
from benchmark.sharing.verify import record_faults
from benchmark.verdicts import families, registered
from benchmark.verdicts.families import families_at
from benchmark.verdicts.rule import rule
from tests.conftest import record_of, tiny_experiment
from tests.records.conftest import stopped_after
from tests.reports.fakes import pair
from tests.sweeps.here import in_this_process

EXPERIMENT, MANIFEST, COPY = "experiment.json", "manifest.json", "copy.json.gz"
FILES = (EXPERIMENT, MANIFEST, ROUNDS, RESULT)  # of a run; all that its digest is made of
MISSING = object()
ODD: dict[str, Any] = {
    "null": None, "text": "x", "list": [1], "object": {"a": 1}, "NaN": float("nan"), "400 digits": int("9" * 400),
    "negative": -1, "true": True, "missing": MISSING,
}  # fmt: skip
COMMANDS = ("status --json", "status ITEM", "plan ITEM", "report ITEM", "verify ITEM --claims", "work ITEM")
EVERY = int(os.environ.get("EVERY", "250"))
FIRST = 100  # the first seed, all of which confirm
TINY = tiny_experiment(profile="demo", federation=Federation(K=4, C=4, T=1, rounds=2)).with_seed(FIRST)
OTHER = replace(TINY, optimizer=replace(TINY.optimizer, lr=0.04))
CLAIM = replace(pair().claims[0], contrasts=({"odd": 1, "sound": -1},))
Field = tuple[str | int, ...]  # the path of a field in a tree


def item(profile: str) -> Item:
    cells = tuple(
        Cell(label=label, setting={"method": label}, experiment=experiment.with_seed(0))
        for label, experiment in (("odd", TINY), ("sound", OTHER))
    )
    return Item(name="ssfl/odd", title="t", profile=profile, cells=cells, claims=(CLAIM,), seeds=2)


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


@pytest.fixture
def called(fssl: Any) -> Callable[..., tuple[int, str, str]]:
    """A command on a folder of results: exit code, standard output, standard error."""

    def call(command: str, results: Path, seeds: int = 1) -> tuple[int, str, str]:
        verb, *words = command.replace("ITEM", "ssfl/odd --profile demo").split()
        if "ITEM" in command and verb in ("status", "plan", "work"):
            words += ["--seeds", str(seeds)]
        words += {"report": ["--site", str(results / "site")], "work": ["--jobs", "1"]}.get(verb, [])
        code, out, err = fssl(verb, *words, "--results", results)
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five seeds of one cell, which are to judge the claim, and one of the other."""
    results = tmp_path_factory.mktemp("trained")
    begun = {"claims": {"ssfl demo": {"main": [], "others": [item("demo").hash_of(CLAIM)]}}, "rule": rule()}
    for experiment in (*map(TINY.with_seed, range(FIRST, FIRST + 5)), OTHER):
        run(experiment, results, begun_under=lambda: begun)
    return results


# Odd fields


@pytest.fixture(scope="module")
def sound(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the first run, with all that a manifest may have."""
    folder = run_folder(tmp_path_factory.mktemp("sound"), TINY)
    shutil.copytree(run_folder(trained, TINY), folder)
    manifest = {**read_json(folder / MANIFEST), "sources": {"mine:Mine": "0" * 64}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    sign(folder)
    (folder / COPY).write_bytes(copied(record_of(folder)))
    return folder


def sign(folder: Path) -> None:
    """Write the digest that fits the run's files."""
    result = read_json(folder / RESULT)
    (folder / RESULT).write_text(json.dumps({**result, "digest": run_digest(folder, result)}))


class Odd(NamedTuple):
    form: str  # a "run", an "unfinished" one, or a "copy"
    file: str
    field: Field
    kind: str  # in ODD


def fields_of(tree: Any) -> Iterator[Field]:
    """Yield the paths of the tree itself, of all fields, and of the first and the last entry of lists."""
    yield ()
    inner: Any = tree if isinstance(tree, dict) else {}
    if tree and isinstance(tree, list):
        inner = {0: tree[0], len(tree) - 1: tree[-1]}
    for key in inner:
        yield from ((key, *field) for field in fields_of(inner[key]))


def odd_records(sound: Path) -> list[Odd]:
    """List one odd record in EVERY, of all kinds, always the same ones.

    Rounds that a digest vouches for are not looked at before they are shown: see `test_record`.
    """
    forms = {COPY: ["copy"], ROUNDS: ["unfinished"], RESULT: ["run"]}
    odds = []
    for name in (*FILES, COPY):
        fields = [field for field in fields_of(read_tree(sound / name)) if field or name != ROUNDS]
        for form in forms.get(name, ["run", "unfinished"]):
            odds += [Odd(form, name, field, kind) for field in fields for kind in ODD]
    return sorted(odds, key=lambda odd: hashlib.sha256(repr(tuple(odd)).encode()).digest())[::EVERY]


def read_tree(path: Path) -> Any:
    text = gzip.decompress(path.read_bytes()).decode() if path.name == COPY else path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.name == ROUNDS else json.loads(text)


def replaced(tree: Any, field: Field, value: Any) -> Any:
    """Set one field, or remove it if the value is MISSING."""
    if not field:
        return value
    inner = tree
    for key in field[:-1]:
        inner = inner[key]
    inner[field[-1]] = value
    if value is MISSING:
        del inner[field[-1]]
    return tree


def write_as(results: Path, sound: Path, seed: int, odd: Odd | None = None) -> None:
    """Write a sound run with another seed, one field changed, and a digest that fits, as another program might."""
    form = odd.form if odd else "run"
    folder = results / ("reference" if form == "copy" else "runs") / sound.parent.name / f"seed={seed}"
    folder.mkdir(parents=True)
    for name in {"run": FILES, "unfinished": FILES[:-1], "copy": [COPY]}[form]:
        tree = json.loads(re.sub(rf'("seed": ){FIRST}\b', rf"\g<1>{seed}", json.dumps(read_tree(sound / name))))
        if odd and odd.file == name:
            tree = replaced(tree, odd.field, ODD[odd.kind])
        if isinstance(tree, dict) and name in (RESULT, COPY) and not (odd and odd.field == ("digest",)):
            with contextlib.suppress(FsslError, AttributeError):  # no digest of what is no record
                tree["digest"] = copy_digest(tree) if name == COPY else run_digest(folder, tree)
        lines = tree if name == ROUNDS and isinstance(tree, list) else [tree]
        text = "".join(json.dumps(line) + "\n" for line in lines if line is not MISSING)
        if form == "copy":
            folder.with_name(f"{folder.name}.json.gz").write_bytes(gzip.compress(text.encode(), 1))
        elif text:
            (folder / (PROGRESS if (name, form) == (ROUNDS, "unfinished") else name)).write_text(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_fails_on_odd_records(
    command: str, called: Callable[..., Any], trained: Path, sound: Path, tmp_path: Path
) -> None:
    """A failure names the seed, which is the number of the odd record."""
    odds = odd_records(sound)
    for seed, odd in enumerate(odds, FIRST):
        write_as(tmp_path, sound, seed, odd)
        write_as(tmp_path, run_folder(trained, OTHER), seed)
    try:
        code, out, err = called(command, tmp_path, len(odds))
    except BaseException as error:
        error.add_note(f"{dict(enumerate(odds, FIRST))}")
        raise
    assert code in ((0, 1, 65, 66) if command.startswith(("verify", "work")) else (0,)), err
    assert not command.startswith("verify") or " records, " in out.splitlines()[-1]
    if command == "status --json":
        states = [run["state"] for run in json.loads(out)["runs"] if run["cell_key"] == OTHER.cell_key]
        assert states == ["done"] * len(odds)


# Broken files


# Seed, file, its content. Runs with a broken claim or state are not finished.
OWN_METHOD = json.dumps({**to_json(TINY.with_seed(104)), "method": {"kind": "leaves:Mine"}}).encode()
BROKEN = [(101, "claim", b"\xff\xfe"), (102, STATE, b"PK"), (103, RESULT, b"null"), (104, EXPERIMENT, OWN_METHOD)]
LAST = 105  # of those that are wanted
OWN = {"name_error": "nothing_of_this_name", "syntax_error": "def (", "leaves": "import sys; sys.exit(3)"}


@pytest.fixture
def results(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sound runs, the broken ones, and the user's own files, which leave a mark when they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in OWN.items():
        (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'w')\n{text}\n")
    results = shutil.copytree(trained, tmp_path / "results")
    for seed, name, content in BROKEN:
        folder = run_folder(results, TINY.with_seed(seed))
        (folder / name).write_bytes(content)
        if name == EXPERIMENT:
            sign(folder)
        elif name != RESULT:
            (folder / RESULT).unlink()
            os.utime(folder / name, (1000.0, 1000.0))  # no heartbeat
    yield results
    assert not any((tmp_path / name).exists() for name in OWN)


def test_each_broken_file_is_named_once_and_the_others_count(
    results: Path, called: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = called("verify --json", results)
    summary = json.loads(out)
    assert (code, summary["records"], len(summary["troubles"])) == (66, 5, len(BROKEN))
    for seed, name, _ in BROKEN:
        folder = str(run_folder(results, TINY.with_seed(seed)))
        (line,) = [line for line in summary["troubles"] if line.startswith(folder)]
        assert name in line
    assert called("report ITEM", results)[0] == 0
    assert "seed=103/result.json" in "".join(path.read_text() for path in results.rglob("*.html"))

    monkeypatch.setattr("benchmark.records.wandb_mirror.WandbMirror", lambda *_, **__: Mock(failed=False))
    code, out, err = called("wandb-rebuild --offline", results)
    lines = [*out.splitlines(), *err.splitlines()]
    assert code == 66 and "4 of 5 runs mirrored" in lines
    for seed in (103, 104):
        assert sum(f"seed={seed}" in line or f"seed {seed}" in line for line in lines) == 1

    # One cannot be begun before somebody looks at it; two begin anew, and one begins.
    code, _, err = called("work ITEM", results, LAST - FIRST + 1)
    assert code == 66 and "seed=103/result.json" in err
    for seed in (101, 102, LAST):
        assert read_json(run_folder(results, TINY.with_seed(seed)) / RESULT)["status"] == "done"


def test_what_a_disk_does_not_give_is_named(
    results: Path, called: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`work` leaves such a run alone: see `test_launcher`."""
    lost, read, reason = run_folder(results, TINY), Path.read_bytes, os.strerror(errno.EIO)

    def reading(path: Path) -> bytes:
        if path.parent == lost:
            raise OSError(errno.EIO, reason)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    for command in ("status", "status ITEM", "plan ITEM", "verify"):
        code, out, err = called(command, results)
        named = [line for line in (out + err).splitlines() if f"seed={FIRST}" in line and reason in line]
        assert named and code == (66 if command == "verify" else 0)
    assert called("report", results)[0] == 0
    assert f"seed={FIRST}: [Errno {errno.EIO}]" in (results / "site" / "index.html").read_text()


def test_a_record_runs_no_file_that_the_user_has_not_named(results: Path, called: Callable[..., Any]) -> None:
    """Named on the command line, it is run, and what it does wrong is one line."""
    for name in OWN:
        own = {**to_json(TINY), "method": {"kind": f"{name}:Mine"}}
        for read in (from_record, from_json):
            with pytest.raises(ConfigError, match=name):
                read(own)
        code, _, err = called(f"verify --method {name}:Mine", results)
        assert code == 65 and err.startswith("fssl: method.kind: ") and err.count("\n") == 1
        (results.parent / name).unlink(missing_ok=True)  # Python does not begin what it cannot parse


# Damaged bytes


CONFIG, PACKED = json.dumps(to_json(TINY)).encode(), f"seed={FIRST}.json.gz"
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
    folder, stopped = run_folder(trained, TINY), tmp_path_factory.mktemp("stopped")
    stopped_after(1, TINY, stopped)
    return {
        **{name: (folder / name).read_bytes() for name in FILES},
        PACKED: gzip.decompress(copied(record_of(folder))),
        STATE: (run_folder(stopped, TINY) / STATE).read_bytes(),
        **dict.fromkeys(("a.json", "a.yaml"), CONFIG),
    }


def read_record(path: Path) -> None:
    record = read_copy(path) if path.name == PACKED else read_run(path.parent)
    if record is not None:
        record_faults(record)


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys((*FILES, PACKED), read_record),
    STATE: lambda path: load(path.parent, run_name(TINY)),
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
    folder = run_folder(tmp_path, TINY)
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
