"""A bundle: records of some cells for others to check, the source of the sender's own code, and a card; one zip file.

card.json, records/<cell_key>/seed=<n>.json.gz (compact copies), source/<hash>/<module>.py

A bundle has the bytes that `packed` makes of its members: none is compressed, a link, encrypted, or there twice. It is
read in memory and stays one file. `running` alone unpacks its source, for who trusts it.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import re
import stat
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import quoted
from benchmark.data.datasets import public_name
from benchmark.errors import ConfigError, DataError, FsslError, one_line
from benchmark.experiment import NUMERICS
from benchmark.records.copies import copied, copy_of
from benchmark.records.files import json_bytes, json_object, read_json
from benchmark.records.record import FINISHED, RunRecord
from benchmark.records.schema import Wanted, check
from benchmark.records.sources import files_of, hash_of, module_of
from benchmark.records.verify import check_records, own_names

SUBMITTED = "submitted"  # folder of the results: accepted bundles, and beside each what was trained again
LARGEST, UNPACKED, MOST = 100_000_000, 1 << 28, 5_000  # bytes of a bundle, of its records as text; members
LONGEST = 300  # characters of a text on the card
MEMBER = re.compile(
    r"card\.json|records/[0-9a-f]{16}/seed=\d{1,20}\.json\.gz|source/[0-9a-f]{16}/([A-Za-z_]\w*/)*[A-Za-z_]\w*\.py",
    re.ASCII,
)
CARD, AGAIN = "card.json", "ask its sender for another"
TEXTS = ("title", "by", "note")
SCHEMA: Wanted = {**dict.fromkeys(TEXTS, "text"), "labels": {"*": "text"}, "contents": {}}
NOTED: Wanted = {"retrained": {"*": "text"}, "believed": ["text"]}
SUITE = "suite"  # among the names of code


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a bundle holds, each part checked on its own and against the others."""

    card: Mapping[str, Any]  # TEXTS, labels by cell key, and `contents_of` the records
    records: Sequence[tuple[RunRecord, Path]]  # each with its name in the bundle
    source: Mapping[str, bytes]  # of all its own code: "pkg/part.py" -> content
    content: bytes  # of the file

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def own(self) -> list[str]:
        """Classes and folders of the sender's."""
        return sorted({name for record, _ in self.records for name in own_names(record.experiment)})


def write(texts: Mapping[str, str], labels: Mapping[str, str], records: Sequence[RunRecord]) -> bytes:
    """The bundle of these runs. Raises DataError for what `fssl verify` would refuse."""
    members = {CARD: json_bytes({**texts, "labels": labels, "contents": contents_of(records)})}
    for run in records:
        members[f"records/{run.cell_key}/seed={run.seed}.json.gz"] = copied(run)
        for name in own_code(run):
            files = files_of(name.partition(":")[0])
            if run.manifest.get("sources", {}).get(name) != hash_of(files):
                raise DataError(f"{name}: the source of these runs is not here; call from its folder, or train again")
            members |= {f"source/{hash_of(files)}/{path}": content for path, content in files.items()}
    content = packed(members)
    for fault in check_bundle(read(content), trusted=False, with_data=False)[0]:
        raise DataError(f"not submitted: {fault}")
    return content


def packed(members: Mapping[str, bytes]) -> bytes:
    """The zip file of these members: equal members, equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name)  # of 1980, not compressed
            member.create_system = 3  # also where it is not Unix
            archive.writestr(member, content)
    return file.getvalue()


def own_code(record: RunRecord) -> list[str]:
    return [name for name in own_names(record.experiment) if not name.startswith("folder:")]


def contents_of(records: Sequence[RunRecord]) -> dict[str, dict[str, list[Any]]]:
    """Of these records the seeds of each cell, the hashes of each data set and own class, the suite's commits."""
    seeds, data, code = dict[str, set[int]](), dict[str, set[str]](), dict[str, set[str]]()
    for run in records:
        commit = run.manifest["code"]
        seeds.setdefault(run.cell_key, set()).add(run.seed)
        data.setdefault(public_name(run.experiment["data"]["name"]), set()).add(run.manifest["data"]["hash"])
        code.setdefault(SUITE, set()).add(" ".join(filter(None, (commit["commit"], commit.get("changes")))))
        for name in own_code(run):
            code.setdefault(name, set()).add(run.manifest.get("sources", {}).get(name, "none"))
    parts: dict[str, dict[str, set[Any]]] = {"seeds": {**seeds}, "data": {**data}, "code": {**code}}
    return {what: {name: sorted(values) for name, values in part.items()} for what, part in parts.items()}


def opened(path: Path) -> Bundle:
    """The bundle at `path`. Raises DataError as `read`."""
    try:
        with path.open("rb") as file:
            return read(file.read(LARGEST + 1))
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})") from None


def read(content: bytes) -> Bundle:
    """The bundle in a file's content. Raises DataError that names the first member that is not as it has to be."""
    members = _members(content)
    names = [name for name in members if name.startswith("records/")]
    if CARD not in members or not names:
        raise DataError(f"holds no {'records' if CARD in members else CARD}")
    text = sum(int.from_bytes(members[name][-4:], "little") for name in names)  # as gzip files end, which is checked
    if text > UNPACKED:
        raise DataError(f"its records unpack to {text:,} bytes; at most {UNPACKED:,} are read")
    records = [(copy_of(members[name], Path(name), AGAIN), Path(name)) for name in names]
    card = check(json_object(members[CARD], Path(CARD)), SCHEMA, CARD, AGAIN)
    card["contents"] = _checked(card, contents_of([record for record, _ in records]))
    folders = dict[str, dict[str, bytes]]()
    for name in (name for name in members if name.startswith("source/")):
        _, folder, path = name.split("/", 2)
        folders.setdefault(folder, {})[path] = members[name]
    return Bundle(card=card, records=records, source=_source(folders, card["contents"]["code"]), content=content)


def _members(content: bytes) -> dict[str, bytes]:
    """Name -> content."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST or sum(entry.file_size for entry in entries) > min(len(content), LARGEST):
                raise DataError(f"holds more than it may: {MOST:,} members, {LARGEST:,} bytes, and what the file has")
            for entry in entries:
                if fault := _trick(entry):
                    raise DataError(f"member {quoted(entry.orig_filename)} {fault}")
            if len({entry.filename.lower() for entry in entries}) < len(entries):
                raise DataError("has a member twice")
            members = {entry.filename: archive.read(entry) for entry in entries}
    except DataError:
        raise
    except Exception as error:  # whatever a made-up archive brings about
        raise DataError(f"is not a zip file that can be read ({quoted(one_line(error))})") from None
    if packed(members) != content:
        raise DataError("has bytes that belong to no member")
    return members


def _trick(entry: zipfile.ZipInfo) -> str | None:
    """What is wrong with a member, before it is read."""
    if entry.orig_filename.startswith("/") or ".." in entry.orig_filename.split("/"):
        return "leads out of the bundle"
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link, or no file"
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.compress_type != zipfile.ZIP_STORED:
        return "is compressed, which nothing in a bundle is"
    return None if MEMBER.fullmatch(entry.orig_filename) else "is nothing that a bundle holds"


def _checked(card: Mapping[str, Any], right: Mapping[str, Any]) -> Mapping[str, Any]:
    """The contents. Raises DataError for a card of others, and for texts that are not for a page."""
    for name in card["contents"].keys() | right.keys():
        if card["contents"].get(name) != right.get(name):
            raise DataError(f"{CARD}: contents.{name} is not what the records say")
    if card["labels"].keys() != right["seeds"].keys():
        raise DataError(f"{CARD}: labels are not those of its cells")
    for text in (*(card[name] for name in TEXTS), *card["labels"].values()):
        if len(text) > LONGEST or not text.isprintable():
            raise DataError(f"{CARD}: {quoted(text)} is longer than {LONGEST} characters, or has unseen ones")
    return right


def _source(folders: Mapping[str, Mapping[str, bytes]], code: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    """All modules. Raises DataError where folders are not of the hashes and classes that the records name."""
    named = {source: name for name, sources in code.items() if name != SUITE for source in sources}
    for source in sorted(named.keys() ^ folders.keys()):
        raise DataError(f"source/{source} is {'missing' if source in named else 'of no record'}")
    for source, files in folders.items():
        if hash_of(files) != source:
            raise DataError(f"source/{source}: its content has hash {hash_of(files)}")
        if named[source].partition(":")[0] not in map(module_of, files):
            raise DataError(f"source/{source}: does not define {quoted(named[source])}")
    every = {file for files in folders.values() for file in files.items()}
    if len(every) > len(dict(every)):
        raise DataError("source: two modules of one name differ")
    return dict(every)


def check_bundle(
    bundle: Bundle, root: Path | None = None, *, trusted: bool, with_data: bool = True
) -> tuple[list[str], set[str]]:
    """`check_records`, and what a stranger's have to be beyond: finished, of this version, without a gap of seeds."""
    faults = []
    for record, path in bundle.records:
        if record.status not in FINISHED:
            faults.append(f"{path}: is not finished")
        if record.result["numerics"] != NUMERICS:
            faults.append(f"{path}: is of numerics {record.result['numerics']}, this suite of {NUMERICS}")
    for key, seeds in bundle.card["contents"]["seeds"].items():
        missing = {number for seed in seeds for number in range(seed // 100 * 100, seed)} - set(seeds)
        if missing:
            faults.append(f"cell {key}: has seed {max(seeds)}, but not {', '.join(map(str, sorted(missing)))}")
    others, absent = check_records(bundle.records, root, trusted=trusted, with_data=with_data)
    return [*faults, *others], absent


@contextlib.contextmanager
def running(bundle: Bundle) -> Iterator[None]:
    """Its own code is imported, and records that name it can be read. Raises ConfigError, DataError."""
    tops = {path.removesuffix(".py").partition("/")[0] for path in bundle.source}
    for top in sorted(tops):
        if top in sys.modules or importlib.util.find_spec(top) is not None:
            raise ConfigError(f"{top}: is the name of another module here; call from another folder")
    with tempfile.TemporaryDirectory(prefix="fssl-source-") as place:
        for path, content in bundle.source.items():
            Path(place, path).parent.mkdir(parents=True, exist_ok=True)
            Path(place, path).write_bytes(content)
        sys.path.append(place)
        importlib.invalidate_caches()
        try:
            for name in bundle.card["contents"]["code"].keys() - {SUITE}:
                try:
                    importlib.import_module(name.partition(":")[0])
                except (Exception, SystemExit) as error:  # whatever the file does
                    raise DataError(f"{name}: cannot be imported ({error!r})") from None
            yield
        except FsslError:
            raise
        except Exception as error:  # whatever it does
            raise DataError(f"its own code fails ({error!r})") from None
        finally:
            sys.path.remove(place)
            for module in [module for module in sys.modules if module.partition(".")[0] in tops]:
                del sys.modules[module]


def noted(path: Path) -> dict[str, Any]:
    """What was seen of an accepted bundle: its records that were trained again, and what was believed. DataError."""
    value = read_json(path.with_suffix(".json"))
    return dict(check(value or {"retrained": {}, "believed": []}, NOTED, f"{path}", "`fssl verify --accept` writes it"))


def split_seeds(card: Mapping[str, Any], key: str, again: Collection[str]) -> tuple[list[int], list[int]]:
    """A cell's seeds that were trained again, by the names of their records, and those that were not."""
    seeds = card["contents"]["seeds"][key]
    chosen = [seed for seed in seeds if f"records/{key}/seed={seed}.json.gz" in again]
    return chosen, [seed for seed in seeds if seed not in chosen]
