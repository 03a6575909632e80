"""Write, read and check submissions: zip files with run records of some cells, the sender's custom code, and a card.

The members are card.json, records/<cell_key>/seed=<n>.json.gz with compact copies, and source/<hash>/<module>.py.

A submission has exactly the bytes that `packed` computes from its members. No member is compressed, a link, encrypted
or duplicated. It is read in memory and stays one file. Only `running` unpacks its source, for users who trust it.
"""

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmark.config import quoted
from benchmark.data.folder import public_name
from benchmark.errors import ConfigError, DataError, FsslError, one_line
from benchmark.experiment import NUMERICS
from benchmark.files import json_bytes, json_object, read_json
from benchmark.records.copies import copied, copy_of
from benchmark.records.record import RunRecord
from benchmark.records.schema import Wanted, check
from benchmark.records.sources import files_of, hash_of, module_of, own_names
from benchmark.sharing.verify import check_records

SUBMITTED = "submitted"  # results folder of accepted submissions, with a note per submission on retrained records
LARGEST = 100_000_000  # largest number of bytes of a file
UNPACKED = 1 << 28  # largest number of bytes of its unpacked records
MOST = 5_000  # largest number of members
LONGEST = 300  # largest number of characters of a text on the card
MEMBER = re.compile(
    r"card\.json|records/[0-9a-f]{16}/seed=\d{1,20}\.json\.gz|source/[0-9a-f]{16}/([A-Za-z_]\w*/)*[A-Za-z_]\w*\.py",
    re.ASCII,
)
CARD = "card.json"
AGAIN = "ask its sender for a new one"
TEXTS = ("title", "by", "note")
OURS = "this suite"  # the owner of the board's first rows; no sender has this name
SCHEMA: Wanted = {**dict.fromkeys(TEXTS, "text"), "labels": {"*": "text"}, "trials??": "a whole number"}
VERIFIED: Wanted = {"by": "text", "hardware": "text", "code": "text", "runs": ["text"]}
NOTED: Wanted = {"retrained": ["text"], "believed": ["text"], "verified?": [VERIFIED]}
SUITE = "suite"  # name of the suite among the names of custom code


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The contents of a submission, which are checked individually and against each other."""

    card: Mapping[str, Any]  # TEXTS, labels by cell key, and "trials": how many settings the sender tried, if stated
    records: Sequence[RunRecord]
    source: Mapping[str, bytes]  # custom code: "<hash>/pkg/part.py" -> content
    content: bytes  # bytes of the file

    @cached_property
    def contents(self) -> dict[str, dict[str, list[Any]]]:
        """List the seeds of each cell, the hashes of each data set and custom class, and the suite's commits."""
        parts: dict[str, dict[str, set[Any]]] = {"seeds": {}, "data": {}, "code": {}}
        for run in self.records:
            data, sources = run.manifest["data"], run.manifest.get("sources", {})
            for what, name, value in (
                ("seeds", run.cell_key, run.seed),
                ("data", public_name(run.experiment["data"]["name"]), data["hash"]),
                ("code", SUITE, run.manifest["code"]["commit"]),
                *(("code", name, sources.get(name, "none")) for name in own_code(run)),
            ):
                parts[what].setdefault(name, set()).add(value)
        contents: dict[str, dict[str, list[Any]]] = {}
        for what, part in parts.items():
            contents[what] = {name: sorted(values) for name, values in part.items()}
        return contents

    @property
    def own(self) -> list[str]:
        """Return the sender's custom classes and folders of images."""
        return sorted({name for record in self.records for name in own_names(record.experiment)})

    def split_seeds(self, key: str, again: Collection[str]) -> tuple[list[int], list[int]]:
        """Split a cell's seeds into retrained seeds and the others; `again` has the names of retrained records."""
        chosen = [seed for seed in self.contents["seeds"][key] if f"records/{key}/seed={seed}.json.gz" in again]
        return chosen, [seed for seed in self.contents["seeds"][key] if seed not in chosen]


def write(
    texts: Mapping[str, str],
    labels: Mapping[str, str],
    records: Sequence[RunRecord],
    trials: int | None = None,
) -> bytes:
    """Return the submission of these runs. Raise DataError if `fssl verify` would refuse it.

    `trials` is the number of settings that the sender tried per cell, or None if it is not stated.
    """
    stated = {} if trials is None else {"trials": trials}
    members = {CARD: json_bytes({**texts, **stated, "labels": labels})}
    for run in records:
        members[f"records/{run.cell_key}/seed={run.seed}.json.gz"] = copied(run)
        for name in own_code(run):
            files = files_of(name.partition(":")[0])
            if run.manifest.get("sources", {}).get(name) != hash_of(files):
                raise DataError(
                    f"{name}: the source that trained these runs was not found; "
                    "run the command in its folder, or train them again"
                )
            members |= {f"source/{hash_of(files)}/{path}": content for path, content in files.items()}
    content = packed(members)
    for fault in check_bundle(read(content), trusted=False, with_data=False)[0]:
        raise DataError(f"not submitted: {fault}")
    return content


def packed(members: Mapping[str, bytes]) -> bytes:
    """Return the zip file of these members; equal members give equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name)  # has the date 1980-01-01, and is not compressed
            member.create_system = 3  # Unix, on every system
            archive.writestr(member, content)
    return file.getvalue()


def own_code(record: RunRecord) -> list[str]:
    return [name for name in own_names(record.experiment) if not name.startswith("folder:")]


def opened(path: Path) -> Bundle:
    """Read the submission at `path`. Raise DataError as `read` does, and if the file cannot be opened."""
    try:
        with path.open("rb") as file:
            return read(file.read(LARGEST + 1))
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror})") from None


def read(content: bytes) -> Bundle:
    """Read the submission in a file's content. Raise DataError, which names the first member that is not valid."""
    members = _members(content)
    names = [name for name in members if name.startswith("records/")]
    if CARD not in members or not names:
        raise DataError(f"the submission contains no {'records' if CARD in members else CARD}")
    # A gzip file ends with its unpacked size, which zlib checks when it unpacks the file.
    unpacked = sum(int.from_bytes(members[name][-4:], "little") for name in names)
    if unpacked > UNPACKED:
        raise DataError(f"its records unpack to {unpacked:,} bytes; at most {UNPACKED:,} are read")
    records = [copy_of(members[name], Path(name), AGAIN) for name in names]
    card = check(json_object(members[CARD], Path(CARD)), SCHEMA, CARD, AGAIN)
    if card["labels"].keys() != {record.cell_key for record in records}:
        raise DataError(f"{CARD}: the labels do not belong to the cells of its records")
    for text in (*(card[name] for name in TEXTS), *card["labels"].values()):
        if len(text) > LONGEST or not text.isprintable():
            raise DataError(
                f"{CARD}: {quoted(text)} has more than {LONGEST} characters, or characters that do not print"
            )
    if " ".join(card["by"].split()).casefold() == OURS:
        raise DataError(f"{CARD}: the sender cannot be called {OURS!r}; {AGAIN}")
    source = {name.removeprefix("source/"): members[name] for name in members if name.startswith("source/")}
    bundle = Bundle(card=card, records=records, source=source, content=content)
    _check_source(bundle)
    return bundle


def _members(content: bytes) -> dict[str, bytes]:
    """Return the members of the zip file, name -> content. Raise DataError if it is not as `fssl submit` writes it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST or sum(entry.file_size for entry in entries) > min(len(content), LARGEST):
                raise DataError(
                    f"the submission is larger than {MOST:,} members, {LARGEST:,} bytes, or the size of its file"
                )
            for entry in entries:
                if not MEMBER.fullmatch(entry.orig_filename):
                    raise DataError(f"member {quoted(entry.orig_filename)} does not belong in a submission")
            if len({entry.filename.lower() for entry in entries}) < len(entries):
                raise DataError("the submission contains a member twice")
            members = {entry.filename: archive.read(entry) for entry in entries}
    except DataError:
        raise
    except Exception as error:  # a malicious archive may cause any error
        raise DataError(f"the file is not a readable zip file ({quoted(one_line(error))})") from None
    if packed(members) != content:
        raise DataError(
            "the file was not written by `fssl submit`: a member is a link or compressed, or there are additional bytes"
        )
    return members


def _check_source(bundle: Bundle) -> None:
    """Raise DataError if the source folders do not match the hashes and classes that the records name."""
    folders = dict[str, dict[str, bytes]]()
    for name, content in bundle.source.items():
        folder, _, path = name.partition("/")
        folders.setdefault(folder, {})[path] = content
    named = {hashed: name for name, hashes in bundle.contents["code"].items() if name != SUITE for hashed in hashes}
    for folder in sorted(named.keys() ^ folders.keys()):
        raise DataError(f"source/{folder} is {'missing' if folder in named else 'not used by any record'}")
    for folder, files in folders.items():
        if hash_of(files) != folder:
            raise DataError(f"source/{folder}: its content has the hash {hash_of(files)}")
        if named[folder].partition(":")[0] not in map(module_of, files):
            raise DataError(f"source/{folder} does not define {quoted(named[folder])}")
    every = {file for files in folders.values() for file in files.items()}
    if len(every) > len(dict(every)):
        raise DataError("source: two modules have the same name but different contents")


def check_bundle(bundle: Bundle, *, trusted: bool, with_data: bool = True) -> tuple[list[str], set[str]]:
    """Return the results of `check_records`, with additional faults that matter for other people's records.

    Submitted records must have this suite's numerics, and each cell must have all seeds of a seed block up to its
    largest seed.
    """
    faults = []
    for record in bundle.records:
        if record.result["numerics"] != NUMERICS:
            faults.append(f"{record.path} has numerics {record.result['numerics']}, but this suite has {NUMERICS}")
    for key, seeds in bundle.contents["seeds"].items():
        missing = {number for seed in seeds for number in range(seed // 100 * 100, seed)} - set(seeds)
        if missing:
            faults.append(f"cell {key} has seed {max(seeds)}, but not {', '.join(map(str, sorted(missing)))}")
    others, absent = check_records(bundle.records, trusted=trusted, with_data=with_data)
    return [*faults, *others], absent


@contextlib.contextmanager
def running(bundle: Bundle) -> Iterator[None]:
    """Import the submission's custom code for the duration of the context, so that its records can be read.

    Raise ConfigError if this machine has a different module of the same name, and DataError if the custom code fails.
    """
    with imported(bundle.source, bundle.contents["code"].keys() - {SUITE}):
        yield


@contextlib.contextmanager
def imported(source: Mapping[str, bytes], classes: Collection[str]) -> Iterator[None]:
    """Import the modules of these classes from this source ("<hash>/pkg/part.py" -> content), as `running` does."""
    files = {name.partition("/")[2]: content for name, content in source.items()}
    modules = sorted({name.partition(":")[0] for name in classes})
    tops = {name.removesuffix(".py").partition("/")[0] for name in files}
    before = set(sys.modules)
    try:
        with contextlib.nullcontext() if _are_here(files, modules) else _unpacked(files, tops):
            for module in modules:
                try:
                    importlib.import_module(module)
                except (Exception, SystemExit) as error:  # the file may raise anything
                    raise DataError(f"{module} cannot be imported ({error!r})") from None
            yield
    except FsslError:
        raise
    except Exception as error:  # custom code may raise anything
        raise DataError(f"the submission's code fails ({error!r})") from None
    finally:
        for module in set(sys.modules) - before:
            if module.partition(".")[0] in tops:
                del sys.modules[module]


def _are_here(files: Mapping[str, bytes], modules: Collection[str]) -> bool:
    """Return whether these modules, with all that they import, are on this machine with this content.

    They are in the folder of a sender who verifies their own submission.
    """
    here = dict[str, bytes]()
    for module in modules:
        here |= files_of(module)
    return here == files


@contextlib.contextmanager
def _unpacked(files: Mapping[str, bytes], tops: Collection[str]) -> Iterator[None]:
    """Write the files to a temporary folder from which modules can be imported.

    Raise ConfigError if one of these top-level modules or packages exists on this machine.
    """
    for top in sorted(tops):
        if top in sys.modules or importlib.util.find_spec(top) is not None:
            raise ConfigError(
                f"{top} is also the name of a different module on this machine; run the command in a different folder"
            )
    with tempfile.TemporaryDirectory(prefix="fssl-source-") as place:
        for name, content in files.items():
            Path(place, name).parent.mkdir(parents=True, exist_ok=True)
            Path(place, name).write_bytes(content)
        sys.path.append(place)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(place)


def noted(path: Path) -> dict[str, Any]:
    """Read which records of an accepted submission were trained again, by whom, and which parts were accepted without a
    check.

    Raise DataError if the note is damaged.
    """
    value = {"retrained": [], "believed": [], "verified": []} | (read_json(path.with_suffix(".json")) or {})
    return dict(check(value, NOTED, f"{path}", "`fssl verify --accept` writes it"))
