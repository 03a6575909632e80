"""`fssl doctor` (what is wrong with this machine) and `fssl verify` (whether the records are whole)."""

import argparse
import importlib
import importlib.metadata
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

from benchmark.cli.main import add_places
from benchmark.errors import DataError, FsslError
from benchmark.experiment import NUMERICS, from_json
from benchmark.tracking.provenance import PACKAGES, hardware
from benchmark.tracking.reading import read_run, unpack
from benchmark.tracking.record import RunRecord


def add(verb: str, command: argparse.ArgumentParser) -> None:
    add_places(command)
    command.set_defaults(act={"doctor": act_doctor, "verify": act_verify}[verb])


def act_doctor(options: argparse.Namespace) -> int:
    findings = list(_findings(options))
    for name, trouble, text in findings:
        print(f"{'!!' if trouble else 'ok'}  {name}: {text}")
    return 1 if any(trouble for _, trouble, _ in findings) else 0


def _findings(options: argparse.Namespace) -> Iterator[tuple[str, bool, str]]:
    for package in PACKAGES:
        yield package, False, importlib.metadata.version(package)
    try:
        importlib.import_module("torchvision")
        yield "torch and torchvision", False, "a matching pair"
    except (ImportError, RuntimeError) as error:
        yield "torch and torchvision", True, f"do not match ({error}); install both from the lock file"
    import torch

    yield "accelerator", False, "CUDA" if torch.cuda.is_available() else "none: runs go to the CPU"
    machine = hardware()
    yield "processor", False, f"{machine['processor']}, {machine['cores']} cores"
    writable = os.access(options.results if options.results.exists() else options.results.parent, os.W_OK)
    yield "results folder", not writable, str(options.results) if writable else f"{options.results} is not writable"
    root = options.data_root or os.environ.get("FSSL_DATA")
    exists = root is None or Path(root).is_dir()
    yield "data root", not exists, f"{root or 'not set: the cache is searched'}{'' if exists else ' is no folder'}"
    import sweeps

    ours = Path(sweeps.__file__).resolve().parents[1] == Path(__file__).resolve().parents[2]
    yield "package sweeps", not ours, "ours" if ours else f"{sweeps.__file__} hides ours: pip uninstall sweeps"


def act_verify(options: argparse.Namespace) -> int:
    """Read every record and say what does not add up; exit 66 if anything does not."""
    count = 0
    troubles: list[str] = []
    for record, path in _records(options.results, troubles):
        count += 1
        troubles += [f"{path}: {trouble}" for trouble in _troubles(record)]
    for trouble in troubles:
        print(trouble)
    print(f"{count} records, {len(troubles)} troubles")
    return DataError.exit_code if troubles else 0


def _records(results: Path, troubles: list[str]) -> Iterator[tuple[RunRecord, Path]]:
    paths = [*results.glob("runs/*/seed=*"), *results.glob("reference/*/seed=*.json")]
    for path in sorted(paths):
        try:
            record = unpack(json.loads(path.read_text()), path) if path.suffix == ".json" else read_run(path)
        except (FsslError, ValueError) as error:
            troubles.append(f"{path}: {error}")
            continue
        if record is not None:
            yield record, path


def _troubles(record: RunRecord) -> Iterator[str]:
    try:
        key = from_json(record.experiment).cell_key
        if key != record.cell_key and record.result.get("numerics") == NUMERICS:
            yield f"experiment.json has cell_key {key}, its folder {record.cell_key}"
    except FsslError as error:
        yield f"experiment.json: {error}"
    numbers = [line["round"] for line in record.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"rounds.jsonl: rounds {numbers[:3]}... are not 1 to {len(numbers)}, each once"
    if record.result and record.result.get("rounds") != len(numbers):
        yield f"result.json: rounds {record.result.get('rounds')}, rounds.jsonl has {len(numbers)}"
    if record.result and record.result.get("status") not in ("done", "diverged", "failed"):
        yield f"result.json: status {record.result.get('status')!r}"
    for name, value in record.result.get("last", {}).items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            yield f"result.json: last.{name} is {value!r}"
        elif name.endswith("/accuracy") and not 0.0 <= value <= 1.0:
            yield f"result.json: last.{name} is {value}, no fraction"
