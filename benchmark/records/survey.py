"""To be removed: what the reports' owner replaces by `record.read_records` with `troubles`."""

from collections.abc import Iterable
from pathlib import Path

from benchmark.records.record import Records, cell_keys, read_records

__all__ = ["Survey", "cell_keys"]


class Survey:
    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.seen: set[str] = set()
        self._known: dict[tuple[Path, str, bool], Records] = {}

    def read(self, results: Path, cell_keys: Iterable[str], *, with_reference: bool) -> Records:
        found: dict[str, dict] = {}
        for key in dict.fromkeys(cell_keys):
            self.seen.add(key)
            place = (results, key, with_reference)
            if place not in self._known:
                self._known[place] = read_records(results, [key], with_reference=with_reference, troubles=self.troubles)
            found.update(self._known[place])  # type: ignore[arg-type]
        return found
