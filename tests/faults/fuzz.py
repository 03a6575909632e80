"""Broken, wrong and hostile input for everything that reads a file: python -m tests.faults.fuzz [--inputs 100000]

    --seed 0       the same inputs again
    --json FILE    also write the figures to FILE

Configuration files and words, the files of a record, compact copies, checkpoints and clients' files (with checksums
that fit, since others are passed over before they are read): each input is a whole one in which bytes, words or values
were changed. Reading it has to give a value or an error of ours within 10 s, whatever it is; anything else is printed,
with its number, and the command ends with 1. (By changes at random rather than by atheris: what is fuzzed is Python
that hands over to json, yaml and torch, whose branches coverage does not see.)
"""

import argparse
import contextlib
import hashlib
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmark.cli.run import resolve
from benchmark.errors import DataError, FsslError
from benchmark.experiment import to_json
from benchmark.records.checkpoints import newest
from benchmark.records.client_files import ClientFiles, digest_of
from benchmark.records.record import pack, read_run, run_folder
from benchmark.records.run import run
from benchmark.records.verify import disagreements, read, troubles_of
from tests.conftest import record_of, tiny_experiment

SECONDS = 10  # for one input
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**70), 1e308, float("nan"), float("inf"), "", "x" * 5000, "\0", "\u202e", "../../x",
    "!!python/object:os.system", "None", "1e-3", [], {}, [[]], {"kind": "ssfl"}, {"": {}}, "os:system", "digits",
)  # fmt: skip
WORDS = tuple(
    word.encode()
    for word in (
        "null",
        "NaN",
        "-",
        "{",
        "}",
        "[" * 3000,
        "&a [*a]",
        "!!python/name:os.system",
        "\t",
        "1e999",
        "''",
        "🙂",
    )
)
RECORD = ("experiment.json", "manifest.json", "result.json", "rounds.jsonl")


class Hung(Exception):
    """An input took longer than `SECONDS`."""


class Bench:
    """Whole inputs to change, and a folder to put the changed ones into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny = tiny_experiment()
        run(tiny, folder / "whole")
        self.whole = run_folder(folder / "whole", tiny)
        self.run = f"{tiny.cell_key}/seed=0"
        self.plain = to_json(tiny)
        self.record = {name: (self.whole / name).read_bytes() for name in RECORD}
        self.place = run_folder(folder / "changed", tiny)
        self.place.mkdir(parents=True)
        self.copy = pack(record_of(self.whole))
        (checkpoint,) = (self.whole / "checkpoints").glob("*.pt")
        self.checkpoint = checkpoint.read_bytes()
        self.content = torch.load(io.BytesIO(self.checkpoint), weights_only=True)

    def configuration(self, draw: random.Random) -> None:
        """A file of either kind."""
        suffix = draw.choice((".json", ".yaml"))
        path = self.folder / f"config{suffix}"
        path.write_bytes(changed_text(draw, self.plain))
        resolve(path, [])

    def words(self, draw: random.Random) -> None:
        """`--a.b=c`, as a sweep agent or a hand writes them."""
        names = ["--" + ".".join(path) for path in leaves(self.plain)]
        words = []
        for _ in range(draw.randint(1, 3)):
            name = draw.choice(names) if draw.random() < 0.9 else draw.choice(("--", "--=", "x", "--a.b.c", "--method"))
            value = draw.choice(ODD) if draw.random() < 0.5 else draw.choice((1, 2, 0.5, "null", "true", "{1: 2}"))
            word = f"{name}={value}"
            broken = changed_bytes(draw, word.encode()).decode(errors="replace")
            words.append(broken if draw.random() < 0.3 else word)
        resolve(None, words)

    def record_files(self, draw: random.Random) -> None:
        """A run's folder, by the strict reader and by that of `fssl verify`."""
        for name, content in self.record.items():
            (self.place / name).write_bytes(content)
        name = draw.choice(RECORD)
        lines = self.record[name].splitlines() if name == "rounds.jsonl" else [self.record[name]]
        chosen = draw.randrange(len(lines))
        lines[chosen] = changed_text(draw, json.loads(lines[chosen]))
        (self.place / name).write_bytes(b"\n".join(lines) + b"\n" * draw.randint(0, 2))
        troubles = self._troubles(self.place)
        read_run(self.place)
        refuse(troubles)

    def compact_copy(self, draw: random.Random) -> None:
        path = self.folder / "seed=0.json"
        path.write_bytes(changed_text(draw, self.copy))
        refuse(self._troubles(path))

    def _troubles(self, path: Path) -> list[str]:
        """What `fssl verify` says."""
        troubles: list[str] = []
        record = read(path, troubles)
        if record is not None:
            troubles += troubles_of(record, path)
            troubles += disagreements([(record, path), (record, path)])
        return troubles

    def checkpoints(self, draw: random.Random) -> None:
        """Changed bytes, or another tree in torch's own format."""
        data = changed_bytes(draw, self.checkpoint) if draw.random() < 0.5 else written(changed(draw, self.content))
        folder = self.folder / "checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / f"round-000003-{digest_of(data)}.pt").write_bytes(data)
        newest(folder, self.run)

    def client_files(self, draw: random.Random) -> None:
        content = {"run": self.run, "keeper": "7", "tree": {"w": torch.ones(3)}}
        data = changed_bytes(draw, written(content)) if draw.random() < 0.5 else written(changed(draw, content))
        name = f"7-{digest_of(data)}.pt"
        (self.folder / name).write_bytes(data)
        try:
            ClientFiles(folder=self.folder, run=self.run).get("7", name)
        finally:
            (self.folder / name).unlink()


READERS: Mapping[str, Callable[[Bench, random.Random], None]] = {
    "configuration files": Bench.configuration,
    "configuration words": Bench.words,
    "record files": Bench.record_files,
    "compact copies": Bench.compact_copy,
    "checkpoints": Bench.checkpoints,
    "clients' files": Bench.client_files,
}


def refuse(troubles: Sequence[str]) -> None:
    if troubles:
        raise DataError(troubles[0])


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in tree.items():
        yield from leaves(value, (*path, name)) if isinstance(value, Mapping) else [(*path, name)]


def changed(draw: random.Random, tree: Any) -> Any:
    """The tree with a value at some depth replaced, dropped or renamed."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.15:
        return draw.choice(ODD)
    copy: Any = list(tree) if isinstance(tree, list) else dict(tree)
    key = draw.randrange(len(copy)) if isinstance(copy, list) else draw.choice(list(copy))
    what = draw.random()
    if what < 0.15:
        del copy[key]
    elif what < 0.25 and isinstance(copy, dict):
        copy[draw.choice(("kind", "", "seed", "x" * 50))] = copy.pop(key)
    else:
        copy[key] = changed(draw, copy[key])
    return copy


def changed_text(draw: random.Random, tree: Any) -> bytes:
    """A value as JSON (which is YAML, too), with its values or its bytes changed."""
    if draw.random() < 0.6:
        return json.dumps(changed(draw, tree)).encode(errors="replace")
    return changed_bytes(draw, json.dumps(tree).encode())


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
    """A few bytes flipped, cut out, put in or doubled."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << draw.randrange(8)
            case 1:
                del found[at : at + draw.choice((1, 8, 200))]
            case 2:
                found[at:at] = draw.choice(WORDS)
            case 3:
                found[at:at] = found[at : at + 50]
            case 4 if draw.random() < 0.3:
                del found[at:]
    return bytes(found)


def written(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def hung(*_: object) -> None:
        raise Hung(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(inputs: int, seed: int) -> dict[str, Any]:
    """The figures; "wrong" lists inputs that ended otherwise than by a value or an error of ours."""
    began, counts, wrong = time.monotonic(), Counter[str](), []
    names = list(READERS)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on what is in the files
        bench = Bench(Path(folder))
        for number in range(inputs):
            name = names[number % len(names)]
            draw = random.Random(int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8]))
            try:
                with at_most(SECONDS):
                    READERS[name](bench, draw)
                counts[f"{name}: read"] += 1
            except FsslError:
                counts[f"{name}: refused"] += 1
            except (Exception, Hung) as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                wrong.append(f"input {number}, {name}: {type(error).__name__} at {where}: {str(error)[:300]}")
    return {
        "command": f"python -m tests.faults.fuzz --inputs {inputs} --seed {seed}",
        "inputs": inputs,
        "by_reader": dict(sorted(counts.items())),
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    found = fuzz(options.inputs, options.seed)
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
