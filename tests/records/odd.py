"""Records that are JSON but odd: each field of each file of a run, and of a committed copy, replaced by each of ODD.

    python -m tests.records.odd [--every 1] [--json FILE]

Many odd records of one cell lie in one folder of results beside sound ones, and each of COMMANDS has to do its work on
the others: no traceback, and the sound ones count. Ends with 1 where a command fails, and names the odd records that
it fails on. Files that are damaged: see `test_damaged_files`.
"""

import argparse
import contextlib
import copy
import gzip
import hashlib
import io
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmark.cli import launch
from benchmark.cli.main import main as fssl
from benchmark.errors import FsslError
from benchmark.experiment import Evaluation, Experiment, Federation
from benchmark.papers import catalogue
from benchmark.papers.item import Cell, Claim, Item
from benchmark.records.copies import copy_digest, pack, reference_path
from benchmark.records.files import read_json, write_json
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
# Finished, unfinished, committed. Forged: with the digest of what is written, as another program would write it; but
# rounds that a run's digest vouches for are not looked at before they are shown: see `test_record`.
FORMS = ("run", "forged run", "unfinished", "copy", "forged copy")
COMMANDS = ("status --json", "status ssfl/odd", "plan ssfl/odd", "report ssfl/odd", "verify ssfl/odd", "work ssfl/odd")
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
Odd = tuple[str, str, tuple[str | int, ...], str]  # form, file, path of the field in it, name in ODD


def item(profile: str) -> Item:
    cells = [
        Cell(label=name, setting={"method": name}, experiment=one) for name, one in (("odd", TINY), ("sound", OTHER))
    ]
    return Item(name="ssfl/odd", title="t", profile=profile, cells=tuple(cells), claims=(CLAIM,), seeds=2)


def sound_files(folder: Path) -> dict[str, Any]:
    """The files of a sound run as trees, with all that a manifest may have."""
    files = {name: read_json(folder / name) for name in FILES if name != ROUNDS}
    files[ROUNDS] = [json.loads(line) for line in (folder / ROUNDS).read_text().splitlines()]
    claims = {"ssfl demo": {"main": [], "others": [item("demo").hash_of(CLAIM)]}}
    files["manifest.json"] |= {"claims": claims, "rule": rule(), "sources": {"mine:Mine": "0" * 64}}
    return files


def with_seed(files: dict[str, Any], seed: int) -> dict[str, Any]:
    files = copy.deepcopy(files)
    for part in (files["experiment.json"], files[RESULT], *files[ROUNDS]):
        part["seed"] = seed
    return files


def write_run(folder: Path, files: dict[str, Any], *, finished: bool, forged: bool = True) -> None:
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(line) + "\n" for line in files[ROUNDS])
    (folder / (ROUNDS if finished else PROGRESS)).write_text(lines)
    for name, tree in files.items():
        if name != ROUNDS and (finished or name != RESULT) and tree is not MISSING:
            (folder / name).write_text(json.dumps(tree))
    if finished and forged and isinstance(files[RESULT], dict):
        with contextlib.suppress(FsslError, AttributeError):  # no digest of what is no record
            files[RESULT]["digest"] = run_digest(folder, files[RESULT])
            (folder / RESULT).write_text(json.dumps(files[RESULT]))


def paths_of(tree: Any) -> Iterator[tuple[str | int, ...]]:
    """Of the tree itself, of all fields, and of the first and the last entry of lists."""
    yield ()
    inner = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
    ends = list(inner)[:: max(1, len(inner) - 1)] if isinstance(tree, list) else inner
    for key in ends:
        yield from ((key, *path) for path in paths_of(inner[key]))


def odd_ones(files: dict[str, Any], packed: dict[str, Any]) -> Iterator[Odd]:
    for form in FORMS:
        parts = {"copy": packed} if form.endswith("copy") else files
        for name, tree in parts.items():
            if (form, name) not in (("unfinished", RESULT), ("forged run", ROUNDS)):
                yield from ((form, name, path, odd) for path in paths_of(tree) for odd in ODD)


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


def plant(results: Path, odd: Odd, seed: int, files: dict[str, Any]) -> None:
    """Write the odd record as the run or the copy of that seed."""
    form, name, path, kind = odd
    files = with_seed(files, seed)
    folder = run_folder(results, TINY.with_seed(seed))
    if not form.endswith("copy"):
        files[name] = replaced(files[name], path, ODD[kind])
        if name == ROUNDS and not isinstance(files[name], list):
            files[name] = [] if ODD[kind] is MISSING else [ODD[kind]]
        write_run(folder, files, finished=form != "unfinished", forged=form == "forged run")
        return
    write_run(folder, files, finished=True)
    packed = replaced(pack(record_of(folder)), path, ODD[kind])
    if form == "forged copy" and isinstance(packed, dict) and path != ("digest",):
        packed["digest"] = copy_digest(packed)
    file = reference_path(results, TINY.cell_key, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(b"" if packed is MISSING else json.dumps(packed).encode(), 1))
    for written in folder.iterdir():
        written.unlink()
    folder.rmdir()


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


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    """The item is the only one, and what `work` trains is trained in this process."""
    families_at.cache_clear()
    with (
        mock.patch.dict(catalogue.ITEMS, {"ssfl/odd": item}, clear=True),
        mock.patch.dict(catalogue.VARIANTS, clear=True),
        mock.patch.object(launch, "LocalWorkers", Here),
    ):
        yield
    families_at.cache_clear()


def said_by(command: str, results: Path) -> tuple[int | None, str, str]:
    """A command's exit code, and what it printed on both outputs; a traceback is on the second one."""
    verb, *words = command.split()
    words += ["--profile", "demo"] if "ssfl/odd" in words else []
    seeds = len(list(results.glob(f"runs/{OTHER.cell_key}/*")))
    words += ["--seeds", str(seeds)] if "ssfl/odd" in words and verb in ("status", "plan", "work") else []
    words += ["--site", str(results / "site")] if verb == "report" else []
    words += ["--jobs", "1"] if verb == "work" else []
    said, errors = io.StringIO(), io.StringIO()
    code = None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            code = fssl([verb, *words, "--results", str(results)])
        except (Exception, SystemExit):
            traceback.print_exc()
    return code, said.getvalue(), errors.getvalue()


def failures(odds: Sequence[Odd], files: dict[str, Any], commands: Sequence[str] = COMMANDS) -> dict[str, str]:
    """What goes wrong in a folder with these odd records, and a sound one of the other cell under each of their seeds:
    command -> its traceback, or how it did not do its work."""
    wrong = {}
    with tempfile.TemporaryDirectory() as folder, in_place():
        results = Path(folder)
        for seed, odd in enumerate(odds, FIRST):
            plant(results, odd, seed, files)
            sound = with_seed(files, seed)
            for part in (sound[RESULT], *sound[ROUNDS]):
                part["cell_key"] = OTHER.cell_key
            sound["experiment.json"]["optimizer"]["lr"] = OTHER.optimizer.lr
            write_run(run_folder(results, OTHER.with_seed(seed)), sound, finished=True)
        for command in commands:
            code, said, errors = said_by(command, results)
            if "Traceback" in errors:
                wrong[command] = errors[errors.index("Traceback") :]
            elif code not in (1, 65, 66, 0) if command.startswith(("verify", "work")) else code != 0:
                wrong[command] = f"exit code {code}: {errors[-500:]}"
            elif command.startswith("verify") and " records, " not in said.splitlines()[-1]:
                wrong[command] = f"no sum at the end: {errors[-500:]}"
            elif command == "status --json":
                states = [run["state"] for run in json.loads(said)["runs"] if run["cell_key"] == OTHER.cell_key]
                if states != ["done"] * len(odds):
                    wrong[command] = f"sound records are {states}"
    return wrong


def culprit(odds: Sequence[Odd], files: dict[str, Any], command: str, how: str) -> tuple[Odd, str]:
    """One of the odd records on which the command fails, and how; `how` it fails on all of them."""
    while len(odds) > 1:
        half = odds[: len(odds) // 2]
        odds = half if failures(half, files, [command]) else odds[len(odds) // 2 :]
    return odds[0], failures(odds, files, [command]).get(command, f"fails on several at once: {how}")


def template(results: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The files of a sound run, and its compact copy."""
    run(TINY, results)
    folder = run_folder(results, TINY)
    return sound_files(folder), pack(record_of(folder))


def sample(files: dict[str, Any], packed: dict[str, Any], every: int) -> list[Odd]:
    """One odd record in so many, of all kinds, always the same ones."""
    odds = sorted(odd_ones(files, packed), key=lambda odd: hashlib.sha256(repr(odd).encode()).digest())
    return odds[::every]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="one odd record in so many (default 1: all)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    began, fails = time.monotonic(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        files, packed = template(Path(folder))
    odds = sample(files, packed, options.every)
    for start in range(0, len(odds), AT_ONCE):
        part = odds[start : start + AT_ONCE]
        for command, how in failures(part, files).items():
            odd, how = culprit(part, files, command, how)
            fails.append(f"{command}: {odd}: {how}")
            print(fails[-1], file=sys.stderr, flush=True)
        print(f"{start + len(part)} of {len(odds)} records, {len(fails)} failures", file=sys.stderr, flush=True)
    forms = Counter(form for form, *_ in odds)
    figures = {
        "records": len(odds), "forms": forms, "commands": COMMANDS, "failures": fails,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    if options.json:
        write_json(options.json, figures)
    return 1 if fails else 0


if __name__ == "__main__":
    sys.exit(main())
