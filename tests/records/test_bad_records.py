"""Records that are odd or damaged: every command tells of each in one line, and does its work on all others.

Odd is each field of each file of a run, and of a committed copy, replaced by each of ODD, with a digest that fits. Many
odd records of one cell lie beside a sound one of another cell each. One odd record in 250 is tried, or in EVERY of the
environment: `EVERY=1 python -m pytest tests/records/test_bad_records.py` tries all of them in hours. Damaged bytes are
read in `test_damaged_files`.
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli import launch, report
from benchmark.cli.main import main
from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Evaluation, Experiment, Federation, from_json, from_record, to_json
from benchmark.papers import catalogue
from benchmark.papers.item import Cell, Claim, Item
from benchmark.records.copies import copy_digest, pack, reference_path
from benchmark.records.files import read_json
from benchmark.records.record import FILES, PROGRESS, RESULT, ROUNDS, run_digest, run_folder
from benchmark.records.run import run
from benchmark.verdicts.families import families_at
from benchmark.verdicts.rule import rule
from sweeps.processes import attempt
from tests.conftest import record_of, tiny_experiment

MISSING = object()
ODD: dict[str, Any] = {
    "null": None, "text": "x", "list": [1], "object": {"a": 1}, "NaN": float("nan"), "400 digits": int("9" * 400),
    "negative": -1, "true": True, "missing": MISSING,
}  # fmt: skip
COMMANDS = ("status --json", "status ssfl/odd", "plan ssfl/odd", "report ssfl/odd", "verify ssfl/odd", "work ssfl/odd")
EVERY = int(os.environ.get("EVERY", "250"))
FIRST, AT_ONCE = 100, 100  # the first seed, all of which confirm; odd records in one folder
TINY = tiny_experiment(
    profile="demo",
    evaluation=Evaluation(every=1, gradient_diversity_every=0),
    federation=Federation(K=4, C=4, T=1, rounds=2),
)
OTHER = replace(TINY, optimizer=replace(TINY.optimizer, lr=0.04))
CLAIM = Claim(
    name="one beats the other", quote="", source="a test", form="improves", least=0.01, contrast={"odd": 1, "sound": -1}
)  # fmt: skip
EXPERIMENT, COPY = "experiment.json", "copy"
Files = dict[str, Any]  # of a run, and its compact copy: trees by name; MISSING is not there
Odd = tuple[str, str, tuple[str | int, ...], str]  # form, file, path of the field in it, name in ODD


def item(profile: str) -> Item:
    cells = [
        Cell(label=name, setting={"method": name}, experiment=one) for name, one in (("odd", TINY), ("sound", OTHER))
    ]
    return Item(name="ssfl/odd", title="t", profile=profile, cells=tuple(cells), claims=(CLAIM,), seeds=2)


class Here:
    """Workers that train in this process."""

    size = 1

    def __init__(self, size: int, results: Path, *options: Any) -> None:
        self._results = results
        self.running: list[Experiment] = []

    def start(self, run: Experiment) -> None:
        self.running.append(run)

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        while self.running:
            run = self.running.pop()
            yield run, attempt(run, self._results, "cpu")

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def only_item(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    families_at.cache_clear()
    for module in (catalogue, report):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/odd": item})
        monkeypatch.setattr(module, "VARIANTS", {})
    monkeypatch.setattr(launch, "LocalWorkers", Here)
    yield
    families_at.cache_clear()


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


def write_copy(file: Path, packed: Any, *, signed: bool) -> None:
    if signed and isinstance(packed, dict):
        packed["digest"] = copy_digest(packed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(b"" if packed is MISSING else json.dumps(packed).encode(), 1))


def write_odd(results: Path, seed: int, sound: Files, odd: Odd) -> None:
    form, name, path, kind = odd
    files = files_of(TINY.with_seed(seed), sound)
    files[name] = replaced(files[name], path, ODD[kind])
    if form == COPY:
        write_copy(reference_path(results, TINY.cell_key, seed), files[COPY], signed=path != ("digest",))
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
    """Of the tree itself, of all fields, and of the first and the last entry of lists."""
    yield ()
    inner = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
    ends = list(inner)[:: max(1, len(inner) - 1)] if isinstance(tree, list) else inner
    for key in ends:
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


def failure(command: str, odds: Sequence[Odd], sound: Files, results: Path) -> str | None:
    """The traceback of a command on these records, or how it did not do its work; None where nothing is wrong."""
    for seed, odd in enumerate(odds, FIRST):
        write_odd(results, seed, sound, odd)
        write_run(run_folder(results, OTHER.with_seed(seed)), files_of(OTHER.with_seed(seed), sound))
    code, lines, errors = called(command, results, len(odds))
    if "Traceback" in errors:
        return errors[errors.index("Traceback") :]
    if code not in ((0, 1, 65, 66) if command.startswith(("verify", "work")) else (0,)):
        return f"exit code {code}: {errors[-500:]}"
    if command.startswith("verify") and " records, " not in lines[-1]:
        return f"no sum at the end: {errors[-500:]}"
    if command == "status --json":
        states = [run["state"] for run in json.loads("\n".join(lines))["runs"] if run["cell_key"] == OTHER.cell_key]
        return None if states == ["done"] * len(odds) else f"sound records are {states}"
    return None


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_fails_on_odd_records(command: str, sound: Files, tmp_path: Path) -> None:
    odds = sample(sound)
    for start in range(0, len(odds), AT_ONCE):
        part = odds[start : start + AT_ONCE]
        if how := failure(command, part, sound, tmp_path / f"from {start}"):
            each = ((odd, failure(command, [odd], sound, tmp_path / f"{start + at}")) for at, odd in enumerate(part))
            pytest.fail("\n".join(f"{odd}: {why}" for odd, why in each if why) or f"{how}, on several at once")


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

    monkeypatch.setattr("benchmark.records.wandb_mirror.WandbMirror", Mirror)
    code, lines, errors = called("wandb-rebuild --offline", results)
    assert code == 66 and lines[-1] == "3 of 4 runs mirrored"
    for seed in (103, 104):
        assert sum(f"seed={seed}" in line or f"seed {seed}" in line for line in [*lines, *errors.splitlines()]) == 1

    # One cannot be begun before somebody looks at it; two begin anew, and one begins.
    code, _, errors = called("work ssfl/odd", results, seeds=LAST - FIRST + 1)
    assert code == 66 and "seed=103/result.json" in errors
    for seed in (101, 102, LAST):
        assert read_json(run_folder(results, TINY.with_seed(seed)) / RESULT)["status"] == "done"


class Mirror:
    """W&B itself takes seconds a run."""

    failed = False

    def __init__(self, *words: object, **options: object) -> None: ...

    def finish(self, exit_code: int) -> None: ...


def test_what_a_disk_does_not_give_is_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's files, and a cell's folder. `work` leaves these alone: see `test_launcher`."""
    run_lost, cell_lost = run_folder(results, TINY.with_seed(FIRST)), results / "runs" / ("0" * 16)
    cell_lost.mkdir()
    read, listed = Path.read_bytes, os.listdir

    def reading(path: Path) -> bytes:
        if path.parent == run_lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    def listing(path: Any = ".") -> list[str]:
        if path == cell_lost:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return listed(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    monkeypatch.setattr(os, "listdir", listing)
    for command in ("status", "status ssfl/odd", "plan ssfl/odd", "verify"):
        code, lines, errors = called(command, results)
        assert code == (66 if command == "verify" else 0), errors
        lines += errors.splitlines()
        assert any(f"seed={FIRST}" in line and os.strerror(errno.EIO) in line for line in lines), lines
        assert "ssfl" in command or any(f"{'0' * 16}: Permission denied" in line for line in lines), lines
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
