"""Which pages need not be built again: each page's file is remembered with a hash of all that it was made from."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmark.tracking.record import RunRecord
from reports.files import put
from reports.render import version

FILE = ".built.json"


class Built:
    """What the last build of a site made, and from what. Pages are functions of their inputs, so equal inputs and a
    file that is there mean that nothing is to be done."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.known: dict[str, str] = {}
        self.notes: dict[str, Any] = {}  # page -> what other pages take from it, as JSON
        self.made = 0  # pages that were not fresh
        try:
            found = json.loads((out / FILE).read_text())
            if isinstance(found, dict) and found.get("version") == version() and isinstance(found.get("pages"), dict):
                self.known = {str(page): str(inputs) for page, inputs in found["pages"].items()}
                self.notes = dict(found.get("notes", {}))
        except (OSError, ValueError):
            pass  # without the file, or with a damaged one, everything is built

    def fresh(self, page: Path, *inputs: str) -> bool:
        """Whether the page needs no building; if it does, it counts as built from these inputs from now on."""
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:24]
        if self.known.get(page.as_posix()) == digest and (self.out / page).is_file():
            return True
        self.known[page.as_posix()] = digest
        self.made += 1
        return False

    def write(self) -> None:
        """Raises CannotWrite."""
        found = {"version": version(), "pages": self.known, "notes": self.notes}
        text = json.dumps(found, indent=0, sort_keys=True)
        put(self.out / FILE, (text + "\n").encode())


def content_of(record: RunRecord) -> str:
    """A hash of all that a record says."""
    if record.content:
        return f"{record.content}{record.edited}"
    parts = (record.experiment, record.manifest, record.result, list(record.rounds), record.edited)
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def contents(records: Iterable[RunRecord]) -> str:
    return " ".join(f"{r.cell_key}/{r.seed}={content_of(r)}" for r in records)
