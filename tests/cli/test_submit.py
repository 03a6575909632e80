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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.errors import DataError
from benchmark.experiment import from_json, to_json
from benchmark.papers.items import items
from benchmark.records.collect import read_records
from benchmark.records.copies import copy_digest
from benchmark.records.run import run
from benchmark.sharing.bundle import packed, read, write
from tests.cli.test_verify import put as set_value
from tests.conftest import tiny_experiment
from tests.records.test_bad_records import broken
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
    """Exit code and the last line of standard output."""
    Path("b.zip").write_bytes(content)
    Path("results").mkdir(exist_ok=True)
    code = main(["verify", "b.zip", "--results", "results", *more])
    return code, capsys.readouterr().out.splitlines()[-1]


def members_of(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# Edits of a bundle. Digests are made to fit, as by a program that writes wrong bundles.

RECORD = f"records/{SUITE}/seed=0.json.gz"
NO_HASH = "0" * 16


def put(name: str, *keys: str | int, to: Any, fits: bool = True) -> Callable[[Members], None]:
    """Set one value of the record, or of the card."""

    def edit(members: Members) -> None:
        content = json.loads(gzip.decompress(members[name]) if name == RECORD else members[name])
        set_value(content, *keys, to=to)
        if name == RECORD and fits:
            content["digest"] = copy_digest(content)
        text = json.dumps(content).encode()
        members[name] = gzip.compress(text) if name == RECORD else text

    return edit


def changed(start: str, to: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    """Change the first member whose name begins so."""
    return lambda members: members.update({name_of(members, start): to(members[name_of(members, start)])})


def without(start: str) -> Callable[[Members], Any]:
    return lambda members: members.pop(name_of(members, start))


def added(name: str) -> Callable[[Members], None]:
    return lambda members: members.update({name: b"x = 1\n"})


def name_of(members: Members, start: str) -> str:
    return next(name for name in members if name.startswith(start))


# An edit, and what the reason names: the member, the field, or the limit.
EDITS: list[tuple[Callable[[Members], Any], str]] = [
    (put(RECORD, "result", "wall_seconds", to=1.0, fits=False), "digest"),
    (put(RECORD, "evaluated", "diversity/delta/l2/squared/clients", 1, to=0.0), f"{RECORD}: round 2: diversity/"),
    (put(RECORD, "result", "last", "test/accuracy", to=0.9), "last.test/accuracy"),
    (put(RECORD, "cell_key", to=NO_HASH), "cell_key"),
    (without(RECORD), f"cell {SUITE} has seed 1"),
    (put(RECORD, "result", "status", to="stopped"), "'stopped'"),
    (put(RECORD, "manifest", "data", "hash", to="0" * 64), "data.hash"),
    (changed("source", lambda text: text + b"# changed\n"), "hash"),
    (without("source"), "missing"),
    (added(f"source/{NO_HASH}/other.py"), f"source/{NO_HASH}"),
    (put("card.json", "labels", to={SUITE: "A"}), "labels"),
    (put("card.json", "by", to="\u202eevil"), "card.json: "),  # letters that turn the line
    (put("card.json", "note", to="x" * 1_000_000), "300"),
    (without("card.json"), "card.json"),
    (added("source/../../x.py"), "'source/../../x.py'"),
    (added("x.py\0card.json"), "'x.py"),  # a name that ends early
    (added("readme.txt"), "'readme.txt'"),
    (lambda members: added(name_of(members, "source").replace("/s", "/S"))(members), "twice"),  # where case is one
    (changed(RECORD, lambda _: gzip.compress(b" " * (1 << 26))), "gzip"),  # a bomb
    (changed(RECORD, lambda content: content[:-4] + b"\xff" * 4), "unpack to 4,29"),  # it says that it has 4 GB
]


def check_refused(capsys: pytest.CaptureFixture[str], content: bytes, names: str) -> None:
    """Check that it is refused with the reason in one line, kept nowhere, and that its code has not run."""
    code, said = verify(capsys, content, "--accept", "--retrain", "9")
    assert code == 66 and said.startswith("b.zip: refused: ") and names in said and said.isprintable(), said
    assert not Path("results/submitted").exists() and not Path("canary").exists()


@pytest.mark.parametrize(("edit", "names"), EDITS)
def test_a_bundle_with_one_edit_is_refused(
    capsys: pytest.CaptureFixture[str], sent: Path, edit: Callable[[Members], Any], names: str
) -> None:
    edit(members := members_of(sent.read_bytes()))
    check_refused(capsys, packed(members), names)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "mode", "names"),
    [("card.json", 0, "twice"), (f"source/{NO_HASH}/x.py", stat.S_IFLNK | 0o777, "link")],
)
def test_a_name_twice_and_a_link_are_refused(
    capsys: pytest.CaptureFixture[str], sent: Path, name: str, mode: int, names: str
) -> None:
    file, info = io.BytesIO(sent.read_bytes()), zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(info, b"{}")
    check_refused(capsys, file.getvalue(), names)


def test_a_member_that_is_said_to_have_2_GB_is_not_unpacked(capsys: pytest.CaptureFixture[str], sent: Path) -> None:
    content = sent.read_bytes()
    size = content.index(b"PK\x01\x02") + 24
    check_refused(capsys, content[:size] + (1 << 31).to_bytes(4, "little") + content[size + 4 :], "100,000,000")


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_other_bytes_are_refused(sent: Path, data: st.DataObject) -> None:
    """Bytes cut out, put in, put before or behind: of equal members there is one file."""
    content = data.draw(broken(sent.read_bytes()))
    assume(content != sent.read_bytes())
    with pytest.raises(DataError):
        read(content)


# What is accepted.

TOML = """
rows = { Mine = {}, Yours = {} }
fields = { "federation.rounds" = 1, "federation.T" = 1, "method.warm_start_rounds" = 0 }
"""


def test_a_bundle_is_accepted_and_its_code_runs_where_it_is_trusted_alone(capsys, sent: Path, tmp_path: Path) -> None:
    content = sent.read_bytes()
    names = {name for name in members_of(content) if name.startswith("records/")}
    of_suite = {name for name in names if SUITE in name}
    for options, again, believed in (((), of_suite, ["strangers_method:Mine"]), (("--trust",), names, [])):
        code, said = verify(capsys, content, "--retrain", "9", "--json", *options)
        facts = json.loads(said)
        assert code == 0 and facts["accepted"] and not facts["troubles"]
        assert set(facts["retrained"]) == again and set(facts["not_trainable"]) == names - again
        assert facts["believed"] == believed and (tmp_path / "canary").exists() == bool(options)
    assert "strangers_method" not in sys.modules
    (tmp_path / "strangers_method.py").write_text("")  # the verifier's own, which is not to be taken for the sender's
    assert main(["verify", "b.zip", "--trust"]) == 65
    assert main(["verify", "none.zip"]) == 66 and main(["verify", "--accept"]) == 65


def test_accepted_ones_have_a_page_apart_and_count_nowhere_else(capsys, sent: Path, monkeypatch) -> None:
    """Trained again one by one, in two calls; with the sender's words as text."""
    for name in ("ITEMS", "VARIANTS"):
        monkeypatch.setattr(f"benchmark.cli.report.{name}", ())
    Path("mine.toml").write_text(TOML)
    content = sent.read_bytes()
    for seed in ("1", "2"):
        assert verify(capsys, content, "--retrain", "1", "--seed", seed, "--accept")[0] == 0
    again = json.loads(verify(capsys, content, "--accept", "--json")[1])["retrained"]
    assert 1 <= len(again) <= 2 and all(name.startswith(f"records/{SUITE}/") for name in again)
    (kept,) = Path("results/submitted").glob("*.zip")
    assert kept.read_bytes() == content
    kept.with_name("broken.zip").write_bytes(b"?")
    assert main(["report", "./mine.toml", "--results", "results", "--site", "site"]) == 0
    page = Path("site/submitted/index.html")
    shown = words(page)
    assert {SUITE, "strangers_method:Mine"} <= set(shown.replace(",", " ").replace(".", " ").split())
    assert "<b>Ann</b>" in shown and "class Mine(SSFL)" in shown
    assert "<script>x" not in page.read_text() and (page.parent / kept.name).read_bytes() == content
    assert "submitted/broken.zip" in words(Path("site/index.html"))
    others = [path for path in Path("site").rglob("*.*") if path.parent != page.parent]
    assert len(others) > 5 and not any(SUITE.encode() in path.read_bytes() for path in others)


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
    assert b"Other" in captured.err  # which has no finished run
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
    assert captured.out == b"" and b"0, 1, 2" in captured.err
