"""Many records at once: those of some cells, or all that are under a results folder."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmark.errors import FsslError
from benchmark.experiment import NUMERICS
from benchmark.records.copies import read_copy
from benchmark.records.files import one_line
from benchmark.records.record import Records, RunRecord, read_run


def read_records(
    results: Path,
    cell_keys: Iterable[str],
    *,
    with_reference: bool,
    with_runs: bool = True,
    troubles: list[str] | None = None,
) -> Records:
    """All records of these cells. A run of this machine takes precedence over a committed copy of the same seed, unless
    it is not finished.

    `with_reference`: committed copies count; `with_runs`: this machine's runs do. With a list as `troubles`, a damaged
    record is left out and named there in one line. Raises DataError without one.
    """
    records: dict[str, dict[int, RunRecord]] = {}
    for cell_key in dict.fromkeys(cell_keys):
        seeds: dict[int, RunRecord] = {}
        for path in sorted((results / "reference" / cell_key).glob("seed=*.json.gz")) if with_reference else ():
            copy = _try(read_copy, path, troubles)
            if copy is not None and copy.result.get("numerics") == NUMERICS:
                seeds[copy.seed] = copy
        for folder in sorted((results / "runs" / cell_key).glob("seed=*")) if with_runs else ():
            run = _try(read_run, folder, troubles)
            if run is not None and (run.seed not in seeds or run.result):
                seeds[run.seed] = run
        records[cell_key] = dict(sorted(seeds.items()))
    return records


def all_records(results: Path, troubles: list[str]) -> Iterator[tuple[RunRecord, Path]]:
    """Every run and every committed copy, each with its folder or file; one that cannot be read is a trouble."""
    for path in sorted([*results.glob("runs/*/seed=*"), *results.glob("reference/*/seed=*.json.gz")]):
        record = _try(read_copy if is_copy(path) else read_run, path, troubles)
        if record is not None:
            yield record, path


def is_copy(path: Path) -> bool:
    return path.suffix == ".gz"


def _try(read: Callable[[Path], RunRecord | None], path: Path, troubles: list[str] | None) -> RunRecord | None:
    try:
        return read(path)
    except (FsslError, OSError) as error:
        if troubles is None:
            raise
        message = one_line(error)  # most begin with their path
        troubles.append(message if message.startswith(str(path)) else f"{path}: {message}")
        return None
