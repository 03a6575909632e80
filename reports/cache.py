"""Which pages need not be built again, and which files are left over: each page is remembered with a hash of all that
it was made from, and with the files that came of it."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.records.record import RunRecord
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
        self.before: dict[str, dict[str, str]] = {}  # page -> its files with a hash of each, as of the last build
        self.files: dict[str, dict[str, str]] = {}  # the same of this build
        try:
            found = json.loads((out / FILE).read_text())
            if isinstance(found, dict) and isinstance(found.get("files"), dict):
                self.before = {str(page): dict(files) for page, files in found["files"].items()}
            if isinstance(found, dict) and found.get("version") == version() and isinstance(found.get("pages"), dict):
                self.known = {str(page): str(inputs) for page, inputs in found["pages"].items()}
                self.notes = dict(found.get("notes", {}))
        except (OSError, ValueError, TypeError):
            pass  # without the file, or with a damaged one, everything is built and nothing removed

    def fresh(self, page: Path, *inputs: str) -> bool:
        """Whether the page needs no building; if it does, it counts as built from these inputs from now on."""
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:24]
        name = page.as_posix()
        if self.known.get(name) == digest and (self.out / page).is_file():
            self.files[name] = self.before.get(name, {})
            return True
        self.known[name] = digest
        self.made += 1
        return False

    def put(self, path: Path, content: bytes, page: Path) -> None:
        """A file of a page, both relative to the site. Raises CannotWrite."""
        put(self.out / path, content)
        self.files.setdefault(page.as_posix(), {})[path.as_posix()] = _hash(content)

    def told(self) -> dict[str, Any]:
        """All that this build has found of its pages so far, for `join`."""
        return {
            "pages": {page: self.known[page] for page in self.files if page in self.known},
            "notes": {page: self.notes[page] for page in self.files if page in self.notes},
            "files": self.files,
            "made": self.made,
        }

    def join(self, told: Mapping[str, Any]) -> None:
        """What another process has built of the same site, from the same beginning, counts as built here."""
        self.known |= told["pages"]
        self.notes |= told["notes"]
        self.made += told["made"]
        for page, files in told["files"].items():
            self.files.setdefault(page, {}).update(files)

    def clear(self, inside: Iterable[Path]) -> None:
        """Removes what an earlier build wrote below the folders `inside` and this one did not: pages that are gone, and
        files that no longer belong to a page. A file that is not as it was written is somebody else's, and stays."""
        kept = {name for files in self.files.values() for name in files}
        folders = [folder.as_posix() for folder in inside]
        for page, files in self.before.items():
            if page not in self.files and not any(f == "." or page.startswith(f"{f}/") for f in folders):
                self.files[page] = files  # not looked at by this build
                continue
            for name, digest in files.items():
                if name not in kept:
                    self._remove(Path(name), digest)
        for page in [page for page in self.known if page not in self.files]:
            del self.known[page]
            self.notes.pop(page, None)

    def _remove(self, name: Path, digest: str) -> None:
        path, site = self.out / name, self.out.resolve()
        own = not name.is_absolute() and path.parent.resolve() == site / name.parent  # no "..", no link on the way
        if not own or path.is_symlink() or not path.is_file() or _hash(path.read_bytes()) != digest:
            return
        path.unlink()
        for folder in list(name.parents)[:-1]:
            try:
                (self.out / folder).rmdir()
            except OSError:
                return  # not empty

    def write(self) -> None:
        """Raises CannotWrite."""
        found = {"version": version(), "pages": self.known, "notes": self.notes, "files": self.files}
        text = json.dumps(found, indent=0, sort_keys=True)
        put(self.out / FILE, (text + "\n").encode())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def content_of(record: RunRecord) -> str:
    """A hash of all that a record says."""
    parts = (record.experiment, record.manifest, record.result, list(record.rounds), record.edited)
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def contents(records: Iterable[RunRecord]) -> str:
    return " ".join(f"{r.cell_key}/{r.seed}={content_of(r)}" for r in records)
