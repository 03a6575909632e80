"""`fssl verify --for-board`: a verdict for each cell, a report that a stranger cannot write into, and its limits."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from benchmark.cli.apart import trained
from benchmark.cli.for_board import NOTHING_CHECKED
from benchmark.cli.main import main
from benchmark.experiment import from_json, to_json
from benchmark.records.collect import read_records
from benchmark.records.copies import copy_digest
from benchmark.records.run import run
from benchmark.sharing import comment
from benchmark.sharing.bundle import noted, packed, read, write
from tests.cli.test_submit import member, members_of
from tests.conftest import ROOT, tiny_experiment

SUITE = tiny_experiment().cell_key
# A method that the check has to survive: it looks for what it must not get, and then trains as SSFL.
METHOD = """
import json
import os
from dataclasses import dataclass
from pathlib import Path

from benchmark.methods.ssfl import SSFL

if "A_SECRET" in os.environ:
    raise RuntimeError("secrets are passed on")
if "CANARY_FILE" not in os.environ:  # only the sender's own process has it
    if not Path.home().name.startswith("fssl-apart-"):
        raise RuntimeError("it runs in the process that decides")


@dataclass(frozen=True, kw_only=True)
class Mine(SSFL):
    pass
"""
EVIL = "**bold** `code` </pre><script>x</script> @octocat #1 https://evil.example [a](b)\u202e"


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """Make a submission of two seeds of the tiny experiment, and of the same with a method of the sender."""
    place = tmp_path_factory.mktemp("sender")
    (place / "sent_method.py").write_text(METHOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.setenv("CANARY_FILE", "yes")
        as_json = to_json(tiny_experiment())
        own = from_json({**as_json, "method": {**as_json["method"], "kind": "sent_method:Mine"}})
        for experiment in (tiny_experiment(), own):
            for seed in (0, 1):
                run(experiment.with_seed(seed), place / "results")
        labels = {SUITE: "Ours | <b>", own.cell_key: "Mine"}
        records = read_records(place / "results", labels, with_reference=False)
        runs = [record for seeds in records.values() for record in seeds.values()]
        content = write({"title": "T & T", "by": "@ann", "note": "<script>x</script>"}, labels, runs)
    sys.modules.pop("sent_method", None)
    return content


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    """Call the command on a file's content: its exit code, the fields of --json, and the report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_SECRET", "token")
    Path("results").mkdir()

    def call(content, *more, retrain=1):
        Path("b.zip").write_bytes(content)
        words = ["verify", "--for-board", "b.zip", "--retrain", str(retrain), "--report", "comment.md", "--json"]
        code = main([*words, "--results", "results", *more])
        return code, json.loads(capsys.readouterr().out), Path("comment.md").read_text()

    return call


def statuses(facts):
    return {cell["method"]: cell["status"] for cell in facts["cells"]}


def changed_copy(change):
    """Edit one record of the suite's cell, and sign it anew."""

    def edit(content):
        tree = json.loads(gzip.decompress(content))
        change(tree)
        tree["digest"] = copy_digest(tree)
        return gzip.compress(json.dumps(tree).encode())

    return edit


def raised(tree):
    """Invent consistent accuracies: 8 of 400 images more in every round, also in the sums."""
    column = [round(value + 0.02, 6) for value in tree["evaluated"]["test/accuracy"]]
    tree["evaluated"]["test/accuracy"] = column
    tree["result"]["last"]["test/accuracy"] = column[-1]
    best = max(range(len(column)), key=lambda place: (column[place], -place))
    tree["result"]["best"] |= {"test/accuracy": column[best]}


def forged(content):
    """Make both records of the suite's cell better than they were."""
    for seed in (0, 1):
        content = member(f"records/{SUITE}/seed={seed}", changed_copy(raised))(content)
    return content


# The three submissions


def test_an_accepted_one_is_trained_again_without_the_sender_s_code_unless_it_is_trusted(verify, sent):
    code, facts, report = verify(sent)
    assert code == 0 and statuses(facts) == {"ssfl": "accepted", "sent_method:Mine": "not checkable here"}
    assert facts["accepted"] and facts["numbers"] == {"accepted": 1, "refused": 0, "not checkable here": 1}
    (again,) = [cell["retrained"] for cell in facts["cells"] if cell["method"] == "ssfl"]
    assert len(again) == 1 and re.fullmatch(rf"records/{SUITE}/seed=[01]\.json\.gz", again[0])
    lines = [line for line in report.splitlines() if line.startswith("- ")]
    assert len(lines) == 2 and "sent_method" not in sys.modules

    code, facts, report = verify(sent, "--trust", "--accept", "--by", "the tests")
    assert code == 0 and set(statuses(facts).values()) == {"accepted"}, facts
    assert "sent_method" not in sys.modules  # this process has decided, and has not run it
    (place,) = Path("results/submitted").glob("*.zip")
    assert place.read_bytes() == sent
    (check,) = noted(place)["verified"]
    assert check["by"] == "the tests" and sorted(check["runs"]) == noted(place)["retrained"]
    assert len(check["runs"]) == 2 and check["hardware"] and check["code"]


def test_a_refused_one_says_which_cell_and_why_and_trains_nothing(verify, sent, monkeypatch):
    monkeypatch.setattr("benchmark.cli.for_board.trained", None)  # a call would be an error
    wrong = member(
        f"records/{SUITE}/seed=1", changed_copy(lambda tree: tree["result"].update(wall_seconds=-1, rounds=2))
    )
    code, facts, report = verify(wrong(sent), "--accept")
    assert code == 66 and statuses(facts) == {"ssfl": "refused", "sent_method:Mine": "not checkable here"}
    (reason,) = [cell["reason"] for cell in facts["cells"] if cell["status"] == "refused"]
    assert "rounds" in reason and not Path("results/submitted").exists()

    code, facts, report = verify(b"PK\x03\x04 and no more", "--accept")
    assert code == 66 and not facts["cells"] and facts["troubles"] and "- **refused**: " in report


def test_a_forged_one_whose_numbers_fit_together_is_found_by_training(verify, sent):
    wrong = forged(sent)
    code, facts, _ = verify(wrong, retrain=0)
    assert code == NOTHING_CHECKED and not facts["numbers"]["refused"]  # nothing else can find it
    code, facts, report = verify(wrong, "--accept")
    assert code == 66 and statuses(facts)["ssfl"] == "refused" and not Path("results/submitted").exists()
    (reason,) = [cell["reason"] for cell in facts["cells"] if cell["status"] == "refused"]
    assert "test/accuracy" in reason and "- **refused**: " in report


# Limits


@pytest.mark.slow
def test_the_budget_ends_runs_that_do_not_end(verify, sent):
    """One that says that it took long is not begun; one that lies about its time is stopped."""
    says_long = sent
    for seed in (0, 1):
        change = changed_copy(lambda tree: tree["result"].update(wall_seconds=1e6))
        says_long = member(f"records/{SUITE}/seed={seed}", change)(says_long)
    code, facts, _ = verify(says_long)
    assert code == NOTHING_CHECKED and set(statuses(facts).values()) == {"not checkable here"}
    bundle = read(sent)
    (record, *_) = [one for one in bundle.records if one.cell_key == SUITE]
    outcome = trained(bundle, record, 1.0)  # importing torch takes longer
    assert outcome.record is None and outcome.trouble is None and outcome.skipped and outcome.seconds < 20


LAUNCHER = """
import os
import subprocess
import sys
from pathlib import Path

from benchmark.methods.ssfl import SSFL

left = subprocess.Popen(["sleep", "600"])
Path({pid!r}).write_text(str(left.pid))
{then}
Mine = SSFL
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        "raise SystemExit(0)",
        "os.write(2, b'x' * 1_000_000); raise RuntimeError('`evil`')",
        "Path(os.environ['TMPDIR'], 'results').symlink_to('/etc'); os._exit(0)",
        "open(os.environ['TMPDIR'] + '/big', 'wb').truncate(1 << 40)",
    ],
)
def test_hostile_code_gets_no_record_accepted_and_leaves_no_process(sent, tmp_path, then):
    bundle = read(sent)
    (record, *_) = [one for one in bundle.records if one.cell_key != SUITE]
    (name,) = bundle.source
    text = LAUNCHER.format(pid=str(tmp_path / "pid"), then=then)
    hostile = replace(bundle, source={name: text.encode()})
    outcome = trained(hostile, record, 60.0)
    assert outcome.record is None and outcome.trouble
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:  # a busy machine takes a while to end it
        time.sleep(0.1)
    assert not is_alive(pid)


def is_alive(pid):
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


# The report


def test_texts_of_a_submission_are_code_in_the_report(verify, sent):
    """What a stranger writes is neither a link, a tag, a mention nor bold; Markdown's own parser is the judge."""
    evil = EVIL.replace("\u202e", "")  # which `read` refuses
    members = members_of(sent)
    card = json.loads(members["card.json"])
    card |= {"title": evil, "by": evil, "labels": {key: evil for key in card["labels"]}}
    members["card.json"] = json.dumps(card).encode()
    _, facts, report = verify(packed(members), retrain=0)
    texts, kinds = texts_of(report)
    assert kinds <= {"code_inline", "text", "strong_open", "strong_close", "softbreak"}
    assert "octocat" not in texts and "evil.example" not in texts and "#1" not in texts and "octocat" in report
    assert len(facts["cells"]) == 2


def texts_of(markdown):
    """Return the text outside of code, and the kinds of all inline parts."""
    texts, kinds = [], set()
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown):
        for child in token.children or ():
            kinds.add(child.type)
            texts += [child.content] if child.type != "code_inline" else []
    return " ".join(texts), kinds


@given(st.text(alphabet=st.sampled_from("`~ab\n\r\t<>@#*_[]()|\\!\u202e\x1b\0 ")))
def test_any_text_is_one_code_span(text):
    tokens = MarkdownIt().parse(f"- x {comment.code(text)} y")
    (inline,) = [token for token in tokens if token.type == "inline"]
    assert [child.type for child in inline.children or ()] == ["text", "code_inline", "text"]
    assert all(letter.isprintable() for letter in comment.code(text))


@given(st.binary(max_size=300) | st.text(alphabet="`~\n a<", max_size=60).map(str.encode))
def test_any_report_is_one_block_of_code(content):
    tokens = MarkdownIt().parse(comment.fenced(content))
    assert [token.type for token in tokens] == ["fence"]
    assert len(comment.fenced(content)) < comment.LONGEST + 200


def test_the_second_workflow_reads_one_member_and_unpacks_nothing(tmp_path):
    """As it is called there: without the suite, from a zip file that may be anything."""

    def called(content):
        (tmp_path / "artifact.zip").write_bytes(content)
        script = ROOT / "benchmark" / "sharing" / "comment.py"
        words = [sys.executable, "-I", str(script), "artifact.zip"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={"PATH": os.defpath})

    def zipped(members, kind=zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file.getvalue()

    good = called(zipped({"../../x.py": b"evil", "comment.md": EVIL.encode() + b"\n````\n@you"}))
    assert good.returncode == 0, good.stderr
    assert [token.type for token in MarkdownIt().parse(good.stdout)] == ["fence"] and "evil.example" in good.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifact.zip"]
    bomb = called(zipped({"comment.md": b"a\n" * 200_000_000}))
    assert bomb.returncode == 0 and len(bomb.stdout) < comment.LONGEST + 200
    assert called(zipped({"other.md": b"x"})).returncode != 0
    assert called(b"PK\x03\x04").returncode != 0
    assert called(b"plain").stdout == "```text\nplain\n```\n"


def test_options_of_the_board_need_one_submission(verify, sent, fssl):
    Path("b.zip").write_bytes(sent)
    for words in (("--for-board",), ("--for-board", "b.zip", "c.zip"), ("b.zip", "--report", "x.md")):
        assert fssl("verify", *words)[0] == 65
