"""Find the finished run records that count on this kind of machine, and write their compact copies."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import DataError, FsslError
from benchmark.experiment import NUMERICS, Experiment
from benchmark.federated.processes import CPU
from benchmark.files import write_atomically
from benchmark.records.collect import runs_in
from benchmark.records.copies import copied, copy_path, read_copy, reference_folders
from benchmark.records.identity import changed_inputs
from benchmark.records.record import FINISHED, RunRecord, read_run, run_folder
from sweeps.queue import CUDA, QueueEntry


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The properties of a machine that the arms of one seed must share."""

    device: str  # "cpu", or the name of the GPU
    processor: str
    torch: str  # the first two numbers of torch's version

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Machine":
        """Return the machine that a run record's manifest names."""
        device = manifest.get("engine", {}).get("device", CPU)
        processor = str(manifest.get("hardware", {}).get("processor", ""))
        version = str(manifest.get("packages", {}).get("torch", ""))
        return cls(device=str(device), processor=processor, torch=".".join(version.split(".")[:2]))

    def trains(self, entry: QueueEntry) -> bool:
        """Return whether the entry is for this kind of device."""
        kind = CPU if self.device == CPU else CUDA
        return entry.device == kind and entry.card in ("", self.device)


class Shelf:
    """The finished run records from one kind of device and with the current numerics.

    `folders` contain copies, in addition to the folders of the checkout and of the results folder.
    """

    def __init__(self, results: Path, device: str, folders: Iterable[Path] = ()) -> None:
        self._results, self._device = results, device
        self._copies = list(dict.fromkeys([*reference_folders(results), *folders]))

    def finished(self, run: Experiment) -> RunRecord | None:
        """Return the finished run record, or None. A record in the results folder overrides a copy."""
        record = self.here(run)
        if record is not None and record.status in FINISHED and self._counts(record):
            return record
        return next((copy for copy in self._all_copies(run) if self._counts(copy)), None)

    def here(self, run: Experiment) -> RunRecord | None:
        """Return the run record in the results folder, whatever its state and device, or None if it is unreadable."""
        try:
            return read_run(run_folder(self._results, run))
        except (FsslError, OSError):  # the launch reports it
            return None

    def _all_copies(self, run: Experiment) -> Iterator[RunRecord]:
        for folder in self._copies:
            for path in runs_in(folder / run.cell_key, []):
                if path.name.split(".")[0].split("@")[0] == f"seed={run.seed}":
                    try:
                        yield read_copy(path)
                    except (FsslError, OSError):  # `fssl verify` reports it
                        continue

    def _counts(self, record: RunRecord) -> bool:
        same = Machine.of(record.manifest).device == self._device and record.result.get("numerics") == NUMERICS
        return same and not changed_inputs(record.experiment, record.manifest, finished=True)


def write_copy(folder: Path, record: RunRecord, known: Iterable[Path] = ()) -> Path | None:
    """Write the compact copy of a finished run into the folder. Return its path, or None if it exists already.

    `known` are further folders with copies, which decide whether it is a second copy (`copy_path`). Raise DataError for
    a run record that must not be committed.
    """
    if "@" in record.path.name:
        raise DataError(
            f"{record.path} was computed from different data or code than its seed's first run; it is not copied"
        )
    path = copy_path(folder, record, known)
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, copied(record))
    return path
