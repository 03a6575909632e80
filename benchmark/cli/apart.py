"""Check and train a stranger's runs in processes of their own, with limits on time, memory and sizes of files.

The process that accepts or refuses a submission starts these processes and only reads the files that they write. It
imports no code of the submission. A process that trains gets an experiment and its source, and not the numbers that it
is expected to reach. It gets none of the variables of this process that may contain a secret.

Custom code can do whatever its user can do, and could write numbers that it did not compute. Read its source first.
"""

import base64
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark.data.reading import cache_folder
from benchmark.errors import DataError, Diverged, FsslError, one_line
from benchmark.files import read_json, write_json
from benchmark.records.provenance import ROOT
from benchmark.records.record import RunRecord, read_run
from benchmark.sharing.bundle import Bundle, check_bundle, imported, opened, own_code, running

# The variables that a process gets from this one; none of them contains a secret.
PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "FSSL_DATA")
REQUEST, ANSWER, STANDARD_ERROR = "request.json", "answer.json", "stderr.txt"
LARGEST_FILE = 1 << 28  # bytes of any file that such a process writes
LARGEST_RECORD = 1 << 26  # bytes of a file of a run record that this process reads
MEMORY_WITHOUT = 32  # GB of address space if the size of the machine's memory is unknown
CHECK_SECONDS = 600.0  # time limit of a check that trains nothing


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended: `code` is its exit code, or None if it was stopped after its time."""

    code: int | None
    says: str  # the last line on its standard error


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of the checks of a submission without training."""

    faults: Sequence[str]
    absent: Sequence[str]  # data sets without files on this machine
    not_compared: Sequence[str]  # records and files that could not be compared with git


def checked(path: Path, bundle: Bundle, *, trusted: bool, seconds: float = CHECK_SECONDS) -> Checked:
    """Check a submission without training; if `trusted`, a second process does so with its custom code.

    The second process can only add faults.
    """
    faults, absent, not_compared = dict[str, None](), dict[str, None](), dict[str, None]()
    for with_code in (False, True) if trusted and bundle.own else (False,):
        with _place() as place:
            write_json(place / REQUEST, {"path": str(path.absolute()), "trusted": with_code})
            ended = _run("check", place, seconds, own_cache=with_code)
            answer = _answer(place) if ended.code == 0 else None
        if answer is None:
            why = ended.says if ended.code is not None else f"the check did not end within {seconds:.0f} seconds"
            return Checked(faults=[f"its settings could not be checked: {why}"], absent=[], not_compared=[])
        faults |= dict.fromkeys(answer["faults"])
        absent |= dict.fromkeys(answer["absent"])
        not_compared |= dict.fromkeys(answer["not_compared"])
    return Checked(faults=[*faults], absent=[*absent], not_compared=[*not_compared])


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The record of a run that was trained again, or the reason why there is none.

    `skipped` has the reason if it is no fault of the run.
    """

    record: RunRecord | None = None
    skipped: str | None = None
    trouble: str | None = None
    seconds: float = 0.0


def trained(bundle: Bundle, record: RunRecord, seconds: float) -> Trained:
    """Train the record's run in a separate process with this time limit in seconds."""
    names = own_code(record)
    source = {}
    for name, content in bundle.source.items() if names else ():
        source[name] = base64.b64encode(content).decode()
    request = {
        "experiment": dict(record.experiment),
        "engine": dict(record.manifest.get("engine", {})),
        "source": source,
        "classes": names,
    }
    with _place() as place:
        write_json(place / REQUEST, request)
        start = time.monotonic()
        ended = _run("train", place, seconds, own_cache=bool(names))
        took = time.monotonic() - start
        if ended.code is None:
            return Trained(skipped=f"the run did not end within the {seconds:.0f} seconds left for it", seconds=took)
        if ended.code == DataError.exit_code and not names:  # custom code may raise anything, also this error
            return Trained(skipped=ended.says, seconds=took)
        if ended.code != 0:
            return Trained(trouble=f"it cannot be trained: {ended.says}", seconds=took)
        try:
            return Trained(record=_record_in(place / "results"), seconds=took)
        except (FsslError, OSError) as error:
            return Trained(trouble=f"its training wrote no readable record: {one_line(error)}", seconds=took)


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fssl-apart-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _run(task: str, place: Path, seconds: float, *, own_cache: bool) -> Ended:
    """Run this module's task in the folder, and stop it with all processes that it started after this number of
    seconds.

    With `own_cache`, data sets are read from this process's folders, and nothing is cached beside them.
    """
    cache = str(cache_folder())
    environment = {name: os.environ[name] for name in PASSED if name in os.environ}
    environment.setdefault("FSSL_DATA", cache)
    environment |= {"HOME": str(place), "TMPDIR": str(place), "PYTHONPATH": str(ROOT), "PYTHONNOUSERSITE": "1"}
    environment |= {"FSSL_CACHE": str(place / "cache") if own_cache else cache, "WANDB_MODE": "disabled"}
    work = place / "work"
    work.mkdir()
    command = [sys.executable, "-m", "benchmark.cli.apart", task, str(place)]
    with (place / STANDARD_ERROR).open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # including processes that it left behind
            process.wait()
    return Ended(code=code, says=_last_line(place / STANDARD_ERROR))


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4_000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a message"


def _answer(place: Path) -> dict[str, list[str]] | None:
    """Read a check's result; return None if it is not lists of texts."""
    path = place / ANSWER
    try:
        if not _is_plain(path):
            return None
        answer = read_json(path) or {}
    except DataError:
        return None
    names = ("faults", "absent", "not_compared")
    lists = dict[str, list[str]]()
    for name in names:
        texts = answer.get(name)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return None
        lists[name] = texts
    return lists


def _record_in(results: Path) -> RunRecord:
    """Read the one record that a training wrote. Raise DataError if there is none, or a file that may not be read."""
    folders = list(results.glob("runs/*/seed=*"))
    if len(folders) != 1:
        raise DataError(f"there are {len(folders)} records, but there should be one")
    for path in (results, results / "runs", folders[0].parent, folders[0]):
        if path.is_symlink():
            raise DataError(f"{path.name} is a link")
    for path in folders[0].iterdir():
        if path.is_file() and not _is_plain(path):
            raise DataError(f"{path.name} is a link, or larger than {LARGEST_RECORD:,} bytes")
    record = read_run(folders[0])
    if record is None or not record.result:
        raise DataError("the record is not finished")
    return replace(record, rounds=tuple(record.rounds))  # the folder will be removed


def _is_plain(path: Path) -> bool:
    return not path.is_symlink() and path.is_file() and path.stat().st_size <= LARGEST_RECORD


# Within such a process


def _limit() -> None:
    """Limit the sizes of files and the address space of this process and its child processes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "CUDA_VISIBLE_DEVICES" in os.environ or Path("/dev/nvidiactl").exists():
        return  # CUDA reserves far more addresses than it uses
    memory = MEMORY_WITHOUT << 30
    with contextlib.suppress(ValueError, OSError):
        memory = max(8 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _check(request: Mapping[str, Any], place: Path) -> None:
    from benchmark.cli.verify import further_troubles

    bundle = opened(Path(request["path"]))
    trusted = bool(request["trusted"])
    with running(bundle) if trusted else contextlib.nullcontext():
        faults, absent = check_bundle(bundle, trusted=trusted)
        others, not_compared = further_troubles(bundle.records, trusted=trusted)
    answer = {"faults": [*faults, *others], "absent": sorted(absent), "not_compared": sorted(not_compared)}
    write_json(place / ANSWER, answer)


def _train(request: Mapping[str, Any], place: Path) -> None:
    from benchmark.experiment import from_record
    from benchmark.federated.engines import EngineOptions
    from benchmark.federated.processes import usable_cores
    from benchmark.records.run import run

    source = {name: base64.b64decode(text) for name, text in request["source"].items()}
    with imported(source, request["classes"]):
        experiment = from_record(request["experiment"])
        # The number of workers changes no bit, and a stranger does not choose how many processes there are.
        engine = EngineOptions(workers=usable_cores()).as_recorded({"engine": request["engine"]})
        with contextlib.suppress(Diverged):  # a diverged run has a record, too
            run(experiment, place / "results", engine=engine)


def main(task: str, place: Path) -> int:
    """Do the task that the folder's request describes. The last line on standard error explains a failure."""
    _limit()
    request = json.loads((place / REQUEST).read_text())
    try:
        {"check": _check, "train": _train}[task](request, place)
    except FsslError as error:
        print(one_line(error), file=sys.stderr, flush=True)
        return error.exit_code
    except MemoryError:
        print("it needs more memory than this machine has", file=sys.stderr, flush=True)
        return DataError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
