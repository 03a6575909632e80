"""Damaged run records: each command names each of them in one line, and does its work on all others.

DAMAGES lists what another program, a crash or a disk may do to a run, to an unfinished run or to a committed copy. Each
damaged record has a seed of its own, for which a different cell has a sound record. Damaged bytes and odd values of any
field lead to a value or an error of this suite, whatever reads them: EXAMPLES of the environment is the number of
examples per file; they then differ in each run, or by --hypothesis-seed.
"""

import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
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
from benchmark.verdicts.rule import rule
from tests.conftest import record_of, tiny_experiment
from tests.records.conftest import stopped_after
from tests.reports.fakes import pair
from tests.sweeps.here import in_this_process

EXPERIMENT, MANIFEST, COPY = "experiment.json", "manifest.json", "seed={}.json.gz"
FILES = (EXPERIMENT, MANIFEST, ROUNDS, RESULT)  # the files of a run that decide its digest
MISSING = object()
NAN, HUGE = float("nan"), int("9" * 400)
FIRST = 100  # the first seed; all seeds are confirmatory
TINY = tiny_experiment(profile="demo", federation=Federation(K=4, C=4, T=1, rounds=2)).with_seed(FIRST)
OTHER = replace(TINY, optimizer=replace(TINY.optimizer, lr=0.04))
CLAIM = replace(pair().claims[0], contrasts=({"odd": 1, "sound": -1},))


def item(profile):
    cells = [
        Cell(label=label, setting={"method": label}, experiment=experiment.with_seed(0))
        for label, experiment in (("odd", TINY), ("sound", OTHER))
    ]
    return Item(name="ssfl/odd", title="t", profile=profile, cells=tuple(cells), claims=(CLAIM,), seeds=2)


@pytest.fixture(autouse=True)
def only_item(monkeypatch):
    caches = (families.families_at, registered._registered, registered._committed)
    for module in (paper_items, report, families, registered):
        monkeypatch.setattr(module, "ITEMS", {"ssfl/odd": item})
        monkeypatch.setattr(module, "VARIANTS", {}, raising=False)
    monkeypatch.setattr(launch, "LocalWorkers", in_this_process)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def called(fssl):
    """Run a command on a results folder; return exit code, standard output and standard error."""

    def call(command, results, seeds=1):
        verb, *words = command.replace("ITEM", "ssfl/odd --profile demo").split()
        if "ITEM" in command and verb in ("status", "plan", "work"):
            words += ["--seeds", seeds]
        words += {"report": ["--site", results / "site"], "work": ["--jobs", 1]}.get(verb, [])
        return fssl(verb, *words, "--results", results)

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train one run of each cell, after the claim was registered."""
    results = tmp_path_factory.mktemp("trained")
    begun = {"claims": {"ssfl demo": {"main": [], "others": [item("demo").hash_of(CLAIM)]}}, "rule": rule()}
    for experiment in (TINY, OTHER):
        run(experiment, results, begun_under=lambda: begun)
    return results


def sign(folder):
    """Write the digest that fits the run's files."""
    result = read_json(folder / RESULT)
    (folder / RESULT).write_text(json.dumps({**result, "digest": run_digest(folder, result)}))


# Damaged records

LEAVES = {"kind": "leaves:Mine"}
# Name -> file, field ("": the whole tree; None: the content is these bytes), new value, and a text in the line of `fssl
# verify`. A damaged PROGRESS, claim or state belongs to an unfinished run. The digest fits, unless it is the damage.
DAMAGES = {
    "experiment of nothing": (EXPERIMENT, "", None, EXPERIMENT),
    "data as a list": (EXPERIMENT, "data", [1], "data"),
    "method without a kind": (EXPERIMENT, "method.kind", MISSING, "method.kind"),
    "rounds below 0": (EXPERIMENT, "federation.rounds", -1, "federation.rounds"),
    "seed of another run": (EXPERIMENT, "seed", 7, "seed 7"),
    "unknown field": (EXPERIMENT, "optimizer.momentums", 0.5, "momentums"),
    "method in an unnamed file": (EXPERIMENT, "method", LEAVES, "leaves"),
    "manifest in pieces": (MANIFEST, None, b'{"code": ', MANIFEST),
    "manifest is missing": (MANIFEST, "", MISSING, MANIFEST),
    "hash as a number": (MANIFEST, "data.hash", HUGE, "data.hash"),
    "claims as a text": (MANIFEST, "claims.ssfl demo", "x", "claims.ssfl demo"),
    "deep nesting": (MANIFEST, None, b"[" * 100_000, MANIFEST),
    "result of nothing": (RESULT, None, b"null", RESULT),
    "accuracy is NaN": (RESULT, "last.test/accuracy", NAN, "NaN"),
    "accuracy has 400 digits": (RESULT, "last.test/accuracy", HUGE, "last.test/accuracy"),
    "seconds are true": (RESULT, "wall_seconds", True, "wall_seconds"),
    "result of another seed": (RESULT, "seed", 7, "seed 7"),
    "wrong digest": (RESULT, "digest", "0" * 64, "digest"),
    "round as a text": (ROUNDS, "0.round", "x", "line 1"),
    "round in pieces": (PROGRESS, None, b'{"round": 1,\n', "line 1"),
    "loss of an unfinished run": (PROGRESS, "0.test/loss", {"a": 1}, "test/loss"),
    "claim is not text": ("claim", None, b"\xff\xfe", "claim"),
    "state in pieces": (STATE, None, b"PK", STATE),
    "copy is not gzip": (COPY, None, b"PK", COPY),
    "copy without evaluations": (COPY, "evaluated", MISSING, "evaluated"),
    "copy with a short column": (COPY, "counts.local_steps", [1], "compact"),
    "copy of another cell": (COPY, "cell_key", "0" * 16, "0" * 16),
}
SEEDS = {name: FIRST + place for place, name in enumerate(DAMAGES)}
NAMING = ("verify ITEM --claims", "wandb-rebuild --offline")  # commands that fail if a record is damaged
OWN = {"name_error": "nothing_of_this_name", "syntax_error": "def (", "leaves": "import sys; sys.exit(3)"}


def replaced(tree, field, value):
    """Return the tree after setting one field, or removing it if the value is MISSING."""
    if not field:
        return value
    *parents, last = [int(key) if key.isdecimal() else key for key in field.split(".")]
    inner = tree
    for key in parents:
        inner = inner[key]
    inner[last] = value
    if value is MISSING:
        del inner[last]
    return tree


def write_as(results, source, seed):
    """Write a sound run with a different seed, and return its folder."""
    folder = results / "runs" / source.parent.name / f"seed={seed}"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(re.sub(rf'("seed": ?){FIRST}\b', rf"\g<1>{seed}", (source / name).read_text()))
    sign(folder)
    return folder


def damage(folder, file, field, value):
    """Damage one file of a sound run, as another program might: the digest fits."""
    seed = int(folder.name.removeprefix("seed="))
    is_lines = file in (ROUNDS, PROGRESS)
    path = folder / file
    if file == COPY:
        tree = json.loads(gzip.decompress(copied(record_of(folder))))
        shutil.rmtree(folder)
        path = folder.parents[2] / "reference" / folder.parent.name / file.format(seed)
        path.parent.mkdir(parents=True, exist_ok=True)
    elif is_lines:
        tree = [json.loads(line) for line in (folder / ROUNDS).read_text().splitlines()]
    elif file in FILES:
        tree = read_json(path)
    if file in (PROGRESS, "claim", STATE):
        (folder / RESULT).unlink()
    if field is not None:
        tree = replaced(tree, field, value)
        if file == COPY:
            tree["digest"] = copy_digest(tree)
        value = "".join(
            json.dumps(line) + "\n" for line in (tree if is_lines else [tree]) if line is not MISSING
        ).encode()
    path.unlink(missing_ok=True)
    if value:
        path.write_bytes(gzip.compress(value) if file == COPY and field is not None else value)
        os.utime(path, (1000.0, 1000.0))  # no heartbeat
    if field != "digest" and file in (EXPERIMENT, MANIFEST, RESULT):
        with contextlib.suppress(Exception):  # content that is not a record has no digest
            sign(folder)


@pytest.fixture
def results(trained, tmp_path, monkeypatch):
    """Make damaged runs, sound runs of a different cell, and custom modules that leave a file when they are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in OWN.items():
        (tmp_path / f"{name}.py").write_text(f"open({name!r}, 'w')\n{text}\n")
    results = tmp_path / "results"
    for name, seed in SEEDS.items():
        damage(write_as(results, run_folder(trained, TINY), seed), *DAMAGES[name][:3])
        write_as(results, run_folder(trained, OTHER), seed)
    yield results
    assert not any((tmp_path / name).exists() for name in OWN)


def test_each_damaged_record_is_named_once_by_its_file_or_field(results, called):
    """Records of several seeds with equal rounds are a further problem, which has lines of its own."""
    code, out, _ = called("verify --json", results)
    troubles = json.loads(out)["troubles"]
    counts = {}
    for name, seed in SEEDS.items():
        lines = [line for line in troubles if re.search(rf"{TINY.cell_key}/seed={seed}\b", line)]
        counts[name] = sum(DAMAGES[name][3].format(seed) in line.partition(" different seed")[0] for line in lines)
    assert code == 66 and counts == dict.fromkeys(DAMAGES, 1), troubles


def test_every_command_does_its_work_on_the_other_records(results, called, monkeypatch):
    monkeypatch.setattr("benchmark.records.wandb_mirror.WandbMirror", lambda *_, **__: Mock(failed=False))
    for command in ("status --json", "status ITEM", "plan ITEM", "report ITEM", *NAMING):
        code, out, err = called(command, results, len(SEEDS))
        assert code == (66 if command in NAMING else 0) and "Traceback" not in err, (command, err)
        if command == "status --json":
            states = [found["state"] for found in json.loads(out)["runs"] if found["cell_key"] == OTHER.cell_key]
            assert states == ["done"] * len(SEEDS)
    pages = "".join(path.read_text() for path in results.rglob("*.html"))
    assert f"seed={SEEDS['result of nothing']}/result.json" in pages


def test_work_trains_runs_with_a_broken_claim_or_state_again(results, called):
    """It names a run with a damaged record, which somebody has to look at."""
    code, _, err = called("work ITEM", results, len(SEEDS) + 1)
    assert code == 66 and f"seed={SEEDS['result of nothing']}/result.json" in err
    for seed in (SEEDS["claim is not text"], SEEDS["state in pieces"], FIRST + len(SEEDS)):
        assert read_json(run_folder(results, TINY.with_seed(seed)) / RESULT)["status"] == "done"


def test_a_file_that_the_disk_does_not_return_is_named(results, called, monkeypatch):
    """`work` skips such a run: see `test_launcher`."""
    lost = run_folder(results, OTHER)
    read = Path.read_bytes
    reason = os.strerror(errno.EIO)

    def reading(path):
        if path.parent == lost:
            raise OSError(errno.EIO, reason)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    for command in ("status", "status ITEM", "plan ITEM", "verify"):
        code, out, err = called(command, results)
        assert code == (66 if command == "verify" else 0)
        assert re.search(rf"seed={FIRST}\b.*{reason}", out + err)
    assert called("report", results)[0] == 0
    assert f"seed={FIRST}: [Errno {errno.EIO}]" in (results / "site" / "index.html").read_text()


@pytest.mark.parametrize("name", OWN)
def test_a_record_runs_no_file_that_the_user_has_not_named(name, results, called):
    """A file that the command line names is run, and its error is one line."""
    own = {**to_json(TINY), "method": {"kind": f"{name}:Mine"}}
    for read in (from_record, from_json):
        with pytest.raises(ConfigError, match=name):
            read(own)
    code, _, err = called(f"verify --method {name}:Mine", results)
    assert code == 65 and err.startswith("fssl: method.kind: ") and err.count("\n") == 1
    (results.parent / name).unlink(missing_ok=True)  # Python does not run a file that it cannot parse


# Damaged bytes

CONFIG, PACKED = json.dumps(to_json(TINY)).encode(), f"seed={FIRST}.json.gz"
WORDS = [word.encode() for word in ("null", "NaN", "-", "{", "}", "[" * 3000, "&a [*a]", "\t", "1e999", "''", "🙂")]


def broken(data):
    """Return a strategy for bytes in which a few are replaced, or the rest is missing."""
    return st.builds(
        lambda at, size, word: data[:at] + word + data[at + size :],
        st.integers(0, len(data)),
        st.sampled_from((0, 1, 8, 200, len(data))),
        st.sampled_from(WORDS) | st.binary(max_size=2),
    )


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory):
    """Return the undamaged files of a run and of a configuration."""
    folder = run_folder(trained, TINY)
    stopped = tmp_path_factory.mktemp("stopped")
    stopped_after(1, TINY, stopped)
    return {
        **{name: (folder / name).read_bytes() for name in FILES},
        PACKED: gzip.decompress(copied(record_of(folder))),
        STATE: (run_folder(stopped, TINY) / STATE).read_bytes(),
        **dict.fromkeys(("a.json", "a.yaml"), CONFIG),
    }


def read_record(path):
    record = read_copy(path) if path.name == PACKED else read_run(path.parent)
    if record is not None:
        record_faults(record)


READERS = {
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
def test_damaged_bytes(tmp_path, whole, name, data):
    folder = run_folder(tmp_path, TINY)
    folder.mkdir(parents=True, exist_ok=True)
    for other in FILES if name in FILES else ():
        (folder / other).write_bytes(whole[other])
    content = data.draw(broken(whole[name]))
    path = (folder.parent if name == PACKED else folder) / name
    path.write_bytes(gzip.compress(content, 1) if name == PACKED else content)
    with warnings.catch_warnings(), contextlib.suppress(FsslError):
        warnings.simplefilter("ignore")  # warnings of torch about the file's content
        READERS[name](path)


@given(
    st.lists(st.tuples(st.sampled_from(("method", "data.name", "federation.K", "optimizer.lr", "x", "")), st.text()))
)
def test_configuration_words(words):
    with contextlib.suppress(FsslError):
        resolve(None, [f"--{name}={value}" for name, value in words])
