"""`fssl submit` and `fssl verify BUNDLE`: a bundle of two cells, one of them of own code, and what is refused of it."""

import gzip
import importlib
import io
import json
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli.main import main
from benchmark.experiment import from_json, to_json
from benchmark.papers.items import items
from benchmark.records.collect import read_records
from benchmark.records.copies import copy_digest
from benchmark.records.run import run
from benchmark.sharing.bundle import packed, read, write
from tests.cli.test_verify import put as set_value
from tests.conftest import tiny_experiment
from tests.reports.test_site import words

Members = dict[str, bytes]
SUITE = tiny_experiment().cell_key
METHOD = """
import os
from dataclasses import dataclass
from pathlib import Path

from benchmark.methods.ssfl import SSFL

if "CANARY" in os.environ:
    Path(os.environ["CANARY"]).touch()


@dataclass(frozen=True, kw_only=True)
class Mine(SSFL):
    pass
"""


def forget() -> None:
    sys.modules.pop("strangers_method", None)
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two seeds of the tiny experiment, and of the same by a method of one's own."""
    place = tmp_path_factory.mktemp("sender")
    (place / "strangers_method.py").write_text(METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        own = {**to_json(tiny_experiment()), "method": {**to_json(tiny_experiment())["method"]}}
        own["method"]["kind"] = "strangers_method:Mine"
        for experiment in (tiny_experiment(), from_json(own)):
            for seed in (0, 1):
                run(experiment.with_seed(seed), place / "results")
        (place / "bundle.zip").write_bytes(submitted(place, from_json(own).cell_key))
    forget()
    return place / "bundle.zip"


def submitted(place: Path, own_key: str) -> bytes:
    """Both cells in one bundle, as an item of them is submitted."""
    records = read_records(place / "results", [SUITE, own_key], with_reference=False)
    runs = [record for seeds in records.values() for record in seeds.values()]
    return write({"title": "T & T", "by": "<b>Ann</b>", "note": "<script>x</script>"}, {SUITE: "A", own_key: "B"}, runs)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Who verifies is elsewhere, and sees when the sender's code runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    yield
    forget()


def verify(capsys: pytest.CaptureFixture[str], content: bytes, *more: str) -> tuple[int, str]:
    """Exit code and what is said last."""
    Path("b.zip").write_bytes(content)
    Path("results").mkdir(exist_ok=True)
    code = main(["verify", "b.zip", "--results", "results", *more])
    return code, capsys.readouterr().out.splitlines()[-1]


def members_of(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# Edits of members. Digests are made to fit, as by a program that writes wrong bundles.


def name_of(members: Members, kind: str) -> str:
    """Of the first record of the suite's own method, of the source's file, or the name itself."""
    return f"records/{SUITE}/seed=0.json.gz" if kind == "record" else next(n for n in members if n.startswith(kind))


def put(name: str, *keys: str | int, to: Any, fits: bool = True) -> Callable[[Members], None]:
    """One value of a record, or of the card."""

    def edit(members: Members) -> None:
        path = name_of(members, name)
        content = json.loads(gzip.decompress(members[path]) if name == "record" else members[path])
        set_value(content, *keys, to=to)
        if name == "record" and fits:
            content["digest"] = copy_digest(content)
        text = json.dumps(content).encode()
        members[path] = gzip.compress(text) if name == "record" else text

    return edit


def without(name: str) -> Callable[[Members], Any]:
    return lambda members: members.pop(name_of(members, name))


def changed(name: str, to: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    return lambda members: members.update({(path := name_of(members, name)): to(members[path])})


def added(name: str) -> Callable[[Members], None]:
    return lambda members: members.update({name: b"x = 1\n"})


EDITS: dict[str, tuple[Callable[[Members], Any], str]] = {
    "a digest that does not fit": (
        put("record", "result", "wall_seconds", to=1.0, fits=False),
        "its digest is of other content",
    ),
    "a number that only training again finds": (
        put("record", "evaluated", "diversity/delta/l2/squared/clients", 1, to=0.0),
        f"records/{SUITE}/seed=0.json.gz: round 2: diversity/",
    ),
    "a number that adds up no more": (put("record", "result", "last", "test/accuracy", to=0.9), "the rounds make"),
    "a key": (put("record", "cell_key", to="0" * 16), "cell_key"),
    "a gap of seeds": (without("record"), f"cell {SUITE}: has seed 1, but not 0"),
    "a run that has not ended": (put("record", "result", "status", to="stopped"), "not done or diverged"),
    "the data's hash": (put("record", "manifest", "data", "hash", to="0" * 64), "data.hash is 0000"),
    "the source": (changed("source", lambda text: text + b"# changed\n"), "its content has hash"),
    "a source that is missing": (without("source"), "is missing"),
    "a source of nothing": (added(f"source/{'0' * 16}/other.py"), f"source/{'0' * 16} is of no record"),
    "the card's labels": (put("card.json", "labels", to={SUITE: "A"}), "labels are not those of its cells"),
    "letters that turn the line": (put("card.json", "by", to="\u202eevil"), "has unseen ones"),
    "a text of megabytes": (put("card.json", "note", to="x" * 1_000_000), "longer than 300 characters"),
    "no card": (without("card.json"), "holds no card.json"),
    "a path to above": (added("source/../../x.py"), "'source/../../x.py' is nothing that a bundle"),
    "a name that ends early": (added("x.py\0card.json"), "is nothing that a bundle holds"),
    "a further member": (added("readme.txt"), "'readme.txt' is nothing that a bundle holds"),
    "two spellings of a name": (lambda m: m.update({name_of(m, "source").replace("/s", "/S"): b""}), "a member twice"),
    "a record that is a bomb": (
        changed("record", lambda _: gzip.compress(b" " * (1 << 26))),
        "not one whole gzip file of at most",
    ),
    "a record that says it unpacks to 4 GB": (
        changed("record", lambda content: content[:-4] + b"\xff" * 4),
        "unpack to 4,29",
    ),
}


# Edits of the archive.


def with_member(content: bytes, name: str, mode: int = 0) -> bytes:
    file, info = io.BytesIO(content), zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(info, b"{}")
    return file.getvalue()


def of_more_bytes(content: bytes) -> bytes:
    """The first member is said to have 2 GB."""
    central = content.index(b"PK\x01\x02")
    return content[: central + 24] + (1 << 31).to_bytes(4, "little") + content[central + 28 :]


OTHERWISE = "is not as `fssl submit` writes it"
ARCHIVES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a link": (lambda b: with_member(b, f"source/{'0' * 16}/x.py", stat.S_IFLNK | 0o777), OTHERWISE),
    "a name twice": (lambda b: with_member(b, "card.json"), "has a member twice"),
    "more bytes than there are": (of_more_bytes, "holds more than it may"),
    "bytes before it": (lambda b: b"#!/bin/sh\n" + b, OTHERWISE),
    "bytes behind it": (lambda b: b[:-2] + b"\x01\x00x", OTHERWISE),
    "damaged": (lambda b: b[:60] + b"?" + b[61:], "is not a zip file that can be read"),
    "nothing": (lambda b: b"", "is not a zip file that can be read"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [*EDITS, *ARCHIVES])
def test_a_wrong_bundle_is_refused_with_the_reason(capsys, sent: Path, tmp_path: Path, name: str) -> None:
    content = sent.read_bytes()
    if name in EDITS:
        edit, says = EDITS[name]
        edit(members := members_of(content))
        content = packed(members)
    else:
        trick, says = ARCHIVES[name]
        content = trick(content)
    code, said = verify(capsys, content, "--accept", "--retrain", "9")
    assert code == 66 and said.startswith("b.zip: refused: ") and says in said and said.isprintable(), said
    assert not Path("results/submitted").exists() and not (tmp_path / "canary").exists()


# What is accepted.


def test_a_bundle_is_accepted_and_its_code_runs_where_it_is_trusted_alone(capsys, sent: Path, tmp_path: Path) -> None:
    content = sent.read_bytes()
    code, said = verify(capsys, content, "--retrain", "9")
    assert code == 0 and not (tmp_path / "canary").exists()
    assert "trained again: A seeds 0 to 1; not trained again: B seeds 0 to 1; believed: strangers_method:Mine" in said
    code, said = verify(capsys, content, "--retrain", "9", "--trust")
    assert code == 0 and (tmp_path / "canary").exists() and "strangers_method" not in sys.modules
    assert said.endswith("trained again: A seeds 0 to 1, B seeds 0 to 1; not trained again: none")
    (tmp_path / "strangers_method.py").write_text("")  # the verifier's own, which is not to be taken for the sender's
    assert main(["verify", "b.zip", "--trust"]) == 65
    assert main(["verify", "none.zip"]) == 66 and main(["verify", "--accept"]) == 65


def test_accepted_ones_have_a_page_apart_and_count_nowhere_else(capsys, sent: Path, monkeypatch) -> None:
    """Trained again one by one, in two calls; with the sender's words as text."""
    monkeypatch.setattr("benchmark.cli.report.ITEMS", ("arena/digits",))
    monkeypatch.setattr("benchmark.cli.report.VARIANTS", ())
    for seed in ("1", "2"):
        assert verify(capsys, sent.read_bytes(), "--retrain", "1", "--seed", seed, "--accept")[0] == 0
    again = json.loads(verify(capsys, sent.read_bytes(), "--accept", "--json")[1])["retrained"]
    assert 1 <= len(again) <= 2 and all(name.startswith(f"records/{SUITE}/") for name in again)
    (kept,) = Path("results/submitted").glob("*.zip")
    assert kept.read_bytes() == sent.read_bytes()
    kept.with_name("broken.zip").write_bytes(b"?")
    assert main(["report", "arena/digits", "--results", "results", "--site", "site"]) == 0
    page = Path("site/submitted/index.html")
    said, seeds = words(page), [name[-9] for name in sorted(again)]
    trained = f"seed {seeds[0]} " if len(seeds) == 1 else "seeds 0 to 1 "
    assert f"A cell {SUITE}" in said and "<b>Ann</b>. <script>x</script>" in said and trained in said
    assert "depend on strangers_method:Mine" in said and "class Mine(SSFL)" in said
    assert "<script>x" not in page.read_text() and (page.parent / kept.name).read_bytes() == sent.read_bytes()
    front = words(Path("site/index.html"))
    assert "Results of others: 1, counted in nothing above" in front and "submitted/broken.zip: is not a zip" in front
    others = [path for path in Path("site").rglob("*.*") if path.parent != page.parent]
    assert len(others) > 5 and not any(SUITE.encode() in path.read_bytes() for path in others)


TOML = """
rows = { Mine = {}, Yours = {} }
fields = { "federation.rounds" = 1, "federation.T" = 1, "method.warm_start_rounds" = 0 }
"""


def test_an_item_of_ones_own_and_a_cell_are_submitted(capsysbinary, sent: Path) -> None:
    """Without finished runs, or with a gap of seeds, nothing is written."""
    Path("mine.toml").write_text(
        TOML.replace("Yours = {}", 'Yours = { "optimizer.lr" = 0.01 }, Other = { "optimizer.lr" = 0.02 }')
    )
    (item,) = items(["./mine.toml"], "demo")
    for cell in item.cells[:2]:
        run(cell.experiment, Path("results"))
    assert main(["submit", "./mine.toml", "--profile", "demo", "--results", "results", "--by", "Ann"]) == 0
    captured = capsysbinary.readouterr()
    bundle = read(captured.out)
    assert b"without Other: no finished run at --profile demo" in captured.err
    assert bundle.card["by"] == "Ann" and bundle.card["title"] == "mine (mine/mine, demo)" and not bundle.source
    assert bundle.card["labels"] == {item.cell(label).cell_key: label for label in ("Mine", "Yours")}
    results = str(sent.parent / "results")
    assert main(["submit", SUITE, "--results", results]) == 0
    assert read(capsysbinary.readouterr().out).contents["seeds"] == {SUITE: [0, 1]}
    assert main(["submit", "0" * 16, "--results", results]) == 66
    assert main(["submit", "ssfl", "--results", results]) == 65
    run(tiny_experiment().with_seed(3), Path("gap"))
    assert main(["submit", SUITE, "--results", "gap"]) == 66
    captured = capsysbinary.readouterr()
    assert captured.out == b"" and b"has seed 3, but not 0, 1, 2" in captured.err
