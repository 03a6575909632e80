"""`fssl submit` and `fssl verify BUNDLE`: a bundle of two cells, one of them of own code, and what is refused of it."""

import gzip
import importlib
import io
import json
import stat
import sys
import warnings
import zipfile
from pathlib import Path

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


def forget():
    sys.modules.pop("strangers_method", None)
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Make a submission of two seeds of the tiny experiment, and of the same with a custom method."""
    place = tmp_path_factory.mktemp("sender")
    (place / "strangers_method.py").write_text(METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        as_json = to_json(tiny_experiment())
        own = from_json({**as_json, "method": {**as_json["method"], "kind": "strangers_method:Mine"}})
        for experiment in (tiny_experiment(), own):
            for seed in (0, 1):
                run(experiment.with_seed(seed), place / "results")
        labels = {SUITE: "A", own.cell_key: "B"}
        records = read_records(place / "results", labels, with_reference=False)
        runs = [record for seeds in records.values() for record in seeds.values()]
        texts = {"title": "T & T", "by": "<b>Ann</b>", "note": "<script>x</script>"}
        (place / "bundle.zip").write_bytes(write(texts, labels, runs))
    forget()
    return place / "bundle.zip"


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """Place the person who verifies in a different folder, and notice when the sender's code runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    yield
    forget()


@pytest.fixture
def verify(capsys):
    """Call `fssl verify` on a bundle: its exit code and the last line of standard output."""

    def call(content, *more):
        Path("b.zip").write_bytes(content)
        Path("results").mkdir(exist_ok=True)
        code = main(["verify", "b.zip", "--results", "results", *more])
        return code, capsys.readouterr().out.splitlines()[-1]

    return call


def members_of(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# Edits of a bundle, from its bytes to others. Digests are made to fit, as by a program that writes wrong bundles.

RECORD, CARD = f"records/{SUITE}/seed=0.json.gz", "card.json"
NO_HASH = "0" * 16


def member(start, change=lambda content: None, name="{}"):
    """Change the first member with this beginning of its name, or leave it out if nothing is left; `name`: under a new
    name.
    """

    def edit(content):
        members = members_of(content)
        found = next(known for known in members if known.startswith(start))
        new = change(members[found])
        if new is None:
            del members[found]
        else:
            members[name.format(found)] = new
        return packed(members)

    return edit


def put(*keys, to, fits=True):
    """Set one value of the record."""

    def change(content):
        tree = json.loads(gzip.decompress(content))
        set_value(tree, *keys, to=to)
        if fits:
            tree["digest"] = copy_digest(tree)
        return gzip.compress(json.dumps(tree).encode())

    return member(RECORD, change)


def on_card(**fields):
    return member(CARD, lambda content: json.dumps({**json.loads(content), **fields}).encode())


def added(name):
    return member(CARD, lambda content: content, name)


def appended(name, mode=0):
    """Append a member that `packed` would not write: a name for the second time, or a link."""

    def edit(content):
        file = io.BytesIO(content)
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "a") as archive:
            archive.writestr(info, b"{}")
        return file.getvalue()

    return edit


def said_to_have_2_GB(content):
    size = content.index(b"PK\x01\x02") + 24
    return content[:size] + (1 << 31).to_bytes(4, "little") + content[size + 4 :]


# An edit, and what the reason names: the member, the field, or the limit.
EDITS = [
    (put("result", "wall_seconds", to=1.0, fits=False), "digest"),
    (put("evaluated", "diversity/delta/l2/squared/clients", 1, to=0.0), f"{RECORD}: round 2: diversity/"),
    (put("result", "last", "test/accuracy", to=0.9), "last.test/accuracy"),
    (put("cell_key", to=NO_HASH), "cell_key"),
    (member(RECORD), f"cell {SUITE} has seed 1"),
    (put("result", "status", to="stopped"), "'stopped'"),
    (put("manifest", "data", "hash", to="0" * 64), "data.hash"),
    (member("source", lambda text: text + b"# changed\n"), "hash"),
    (member("source"), "missing"),
    (added(f"source/{NO_HASH}/other.py"), f"source/{NO_HASH}"),
    (on_card(labels={SUITE: "A"}), "labels"),
    (on_card(by="\u202eevil"), "card.json: "),  # letters that turn the line
    (on_card(note="x" * 1_000_000), "300"),
    (on_card(by="This  Suite"), "this suite"),  # a name that the board has for its own rows
    (on_card(trials="none"), "trials"),
    (member(CARD), "card.json"),
    (added("source/../../x.py"), "'source/../../x.py'"),
    (added("x.py\0card.json"), "'x.py"),  # a name that ends early
    (added("readme.txt"), "'readme.txt'"),
    (lambda content: added(source_of(content).replace("/s", "/S"))(content), "twice"),  # if case does not count
    (member(RECORD, lambda _: gzip.compress(b" " * (1 << 26))), "gzip"),  # a bomb
    (member(RECORD, lambda content: content[:-4] + b"\xff" * 4), "unpack to 4,29"),  # it says that it has 4 GB
    (appended(CARD), "twice"),
    (appended(f"source/{NO_HASH}/x.py", stat.S_IFLNK | 0o777), "link"),
    (said_to_have_2_GB, "100,000,000"),
]


def source_of(content):
    return next(name for name in members_of(content) if name.startswith("source"))


@pytest.mark.parametrize(("edit", "names"), EDITS)
def test_a_bundle_with_one_edit_is_refused(verify, sent, edit, names):
    """The reason is one line; the bundle is kept nowhere, and its code has not run."""
    code, said = verify(edit(sent.read_bytes()), "--accept", "--retrain", "9")
    assert code == 66 and said.startswith("b.zip: refused: ") and names in said and said.isprintable(), said
    assert not Path("results/submitted").exists() and not Path("canary").exists()


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_other_bytes_are_refused(sent, data):
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


def test_a_bundle_is_accepted_and_its_code_runs_where_it_is_trusted_alone(verify, sent, tmp_path):
    content = sent.read_bytes()
    names = {name for name in members_of(content) if name.startswith("records/")}
    of_suite = {name for name in names if SUITE in name}
    for options, again, believed in (((), of_suite, ["strangers_method:Mine"]), (("--trust",), names, [])):
        code, said = verify(content, "--retrain", "9", "--json", *options)
        facts = json.loads(said)
        assert code == 0 and facts["accepted"] and not facts["troubles"]
        assert set(facts["retrained"]) == again and set(facts["not_trainable"]) == names - again
        assert facts["believed"] == believed and (tmp_path / "canary").exists() == bool(options)
    assert "strangers_method" not in sys.modules
    assert main(["verify", "none.zip"]) == 66 and main(["verify", "--accept"]) == 65


@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize("file, code", [(METHOD, 0), (METHOD + "x = 1\n", 65)])
def test_a_sender_verifies_their_own_submission_in_the_folder_of_their_code(
    sent, tmp_path, monkeypatch, file, code, is_imported
):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "strangers_method.py"
    module.write_text(file)
    if is_imported:
        importlib.import_module("strangers_method")
    Path("b.zip").write_bytes(sent.read_bytes())
    Path("results").mkdir()
    assert main(["verify", "b.zip", "--trust", "--retrain", "9", "--results", "results"]) == code
    assert module.read_text() == file and ("strangers_method" in sys.modules) == is_imported


def test_accepted_ones_have_a_page_apart_and_count_nowhere_else(verify, sent, monkeypatch):
    """Trained again one by one, in two calls; with the sender's words as text."""
    for name in ("ITEMS", "VARIANTS"):
        monkeypatch.setattr(f"benchmark.cli.report.{name}", ())
    Path("mine.toml").write_text(TOML)
    content = sent.read_bytes()
    for seed in ("1", "2"):
        assert verify(content, "--retrain", "1", "--seed", seed, "--accept")[0] == 0
    again = json.loads(verify(content, "--accept", "--json")[1])["retrained"]
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


def test_an_item_of_ones_own_and_a_cell_are_submitted(capsysbinary, sent):
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
