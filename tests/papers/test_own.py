"""An item of one's own: one TOML file, from its plan to its page."""

import json
import sys
from dataclasses import replace

import pytest

from benchmark.cli import launch, report
from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, from_json, read_method, to_json
from benchmark.papers import own
from benchmark.papers.item import ACCURACY
from benchmark.papers.items import ITEMS, cell_named, items
from benchmark.papers.own import DEFAULT
from benchmark.papers.published import read_published, read_table
from benchmark.records import copies
from benchmark.records.run import run
from benchmark.verdicts.families import note_own, own_files
from benchmark.verdicts.metrics import DERIVED
from tests.conftest import tiny_experiment
from tests.readme import own_table
from tests.sweeps.here import in_this_process

FILE = """
title   = "Mine on digits"
seeds   = 1
fields  = { "federation.rounds" = 2, "federation.T" = 2, "method.warm_start_rounds" = 0 }
rows    = { FedSwitch = {}, SemiFL = { from = "arena/digits:SemiFL/untuned" } }
columns = { "R = 0.8" = { "partition.R" = 0.8 } }

[[claims]]
name     = "FedSwitch is better"
contrast = { "FedSwitch/R = 0.8" = 1, "SemiFL/R = 0.8" = -1 }
form     = "improves"
"""
CLAIMS = FILE[FILE.index("[[claims]]") :]
CONTRAST = '"FedSwitch/R = 0.8" = 1, "SemiFL/R = 0.8" = -1'
THE_VALUE = '{ method = "FedSwitch", column = "R = 0.8", value = 1 }'
SHORT = ("--federation.rounds=1", "--federation.T=1")


# All keys that a user's file had before, some of them as nested tables; and what the reader of that time made of it.
OLD = """
title   = "Old"
from    = "arena/digits:FedSwitch/untuned"
seeds   = 2
metrics = ["test/accuracy", "test/loss"]
notes   = ["A note."]
figure  = { kind = "against", x = "column" }

[fields]
"federation.rounds" = 2
method.warm_start_rounds = 0

[rows]
A = {}
B = { from = "arena/digits:SemiFL/untuned" }

[columns.few]
data.N_s = 50

[columns."more"]
"data.N_s" = 100
network = "small_cnn"

[[claims]]
name     = "B is better"
contrast = { "B/few" = 1, "A/few" = -1 }
form     = "improves"
"""
OLD_KEYS = {
    "A/few": "999dfb988928e330",
    "A/more": "523154b38216945e",
    "B/few": "f85ab27a38684734",
    "B/more": "cbd012ff14380ba5",
}
OLD_CLAIM = "9b7671e69a14b39d"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a custom file, and hide the suite's items and committed records, so that a site has no pages of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(copies, "COMMITTED", tmp_path / "nothing")
    for name in ("ITEMS", "VARIANTS"):
        monkeypatch.setattr(report, name, {})
    (tmp_path / "mine.toml").write_text(FILE)
    return tmp_path / "mine.toml"


def test_cells_are_a_start_with_the_fields_of_row_and_column(mine):
    (item,) = items(["./mine.toml"], "demo")
    starts = {"FedSwitch": DEFAULT, "SemiFL": cell_named("arena/digits:SemiFL/untuned", "demo")}
    for row, start in starts.items():
        plain = to_json(start)
        plain["federation"] |= {"rounds": 2, "T": 2}
        plain["method"]["warm_start_rounds"] = 0
        plain["partition"]["R"] = 0.8
        assert item.cell(f"{row}/R = 0.8").experiment == from_json(plain)
    assert item.family == "mine/mine demo"


def test_a_published_value_is_optional_and_moves_no_cell(mine, printed):
    """A value of a cell is shown beside it, and one of no cell alone; nothing more is trained."""
    (plain,) = items(["./mine.toml"], "demo")
    lines = (
        '{ method = "FedSwitch", column = "R = 0.8", value = 71.5, spread = 0.5 }',
        '{ method = "Theirs", column = "R = 0.8", value = 80, not_yet = "only printed" }',
    )
    mine.write_text(f"cells = [{', '.join(lines)}]\n{FILE}")
    (item,) = items(["./mine.toml"], "demo")
    keys = [cell.cell_key for cell in item.cells]
    assert keys == [cell.cell_key for cell in plain.cells]
    hashes = list(map(item.hash_of, item.claims))
    assert hashes == list(map(plain.hash_of, plain.claims))
    ours, without = item.cells
    assert (ours.published[ACCURACY].value, ours.published[ACCURACY].spread, without.published) == (71.5, 0.5, {})
    assert ours.published[ACCURACY].runs == 1  # `seeds` are those that are trained
    (theirs,) = item.shown
    assert (theirs.label, theirs.published_value(), theirs.note) == ("Theirs/R = 0.8", 80, "only printed")
    places = ["--results", "r", "--profile", "demo"]
    assert json.loads(printed("plan", "./mine.toml", "--json", *places))["runs"] == 2
    shown = json.loads(printed("reproduce", "./mine.toml", "--pilots", "1", "--json", *places))
    published = {cell["label"]: cell["published"] for cell in shown["cells"]}
    assert published["FedSwitch/R = 0.8"] == 71.5 and published["SemiFL/R = 0.8"] is None


def test_one_reader_reads_a_published_table_and_a_user_s(mine):
    """README's table and each published file are one type; what only one of them has is at its default in the other."""
    published = read_published("semifl/tab4")
    own_file = read_table(own_table())
    assert type(published) is type(own_file)
    assert (own_file.cells, own_file.source, published.fields) == ((), "", {})
    assert set(own_file.rows) == {"Mine", "SemiFL"} and own_file.fields["from"] == "arena/digits:FedSwitch/untuned"


def test_a_table_of_the_first_release_has_the_cells_that_it_had(mine):
    """Every key that a user's table had before it shared the published tables' format, with the cells' keys of then."""
    mine.write_text(OLD)
    (item,) = items(["./mine.toml"], "demo")
    assert {cell.label: cell.cell_key for cell in item.cells} == OLD_KEYS
    assert [item.hash_of(claim) for claim in item.claims] == [OLD_CLAIM]
    assert (item.title, item.seeds, item.metrics, item.columns) == (
        "Old",
        2,
        ("test/accuracy", "test/loss"),
        ("column",),
    )
    assert item.drawing is not None and item.drawing.kind == "against" and "A note." in item.notes


def test_it_is_planned_trained_shown_and_swept(mine, printed, monkeypatch):
    """Once with pilots; a confirming run is of its own family, and its file passes as a sweep."""
    monkeypatch.setattr(launch, "LocalWorkers", in_this_process)
    places = ["--results", "r", "--profile", "demo"]
    assert json.loads(printed("plan", "./mine.toml", "--json", *places))["runs"] == 2
    assert main(["work", "./mine.toml", *places, "--seeds", "1"]) == 0
    manifests = [json.loads(path.read_text()) for path in mine.parent.glob("r/runs/*/seed=100/manifest.json")]
    assert len(manifests) == 2 and all(list(m["claims"]) == ["mine/mine demo"] for m in manifests)
    printed("run", "--results", "r", "--engine", "reference", *SHORT)  # no item's
    printed("report", "--results", "r")
    listed = (mine.parent / "r/site/tables.html").read_text()
    for page in ("mine/mine/demo/index.html", "mine/your-runs/custom/index.html"):
        assert page in listed and (mine.parent / "r/site" / page).is_file()
    assert "undecided" in (mine.parent / "r/site/mine/mine/demo/claims.md").read_text()
    assert "fedswitch on digits, seeds 0" in (mine.parent / "r/site/mine/your-runs/custom/table.md").read_text()
    (mine.parent / "mine.yaml").write_text(printed("sweep", "./mine.toml", "--profile", "demo"))
    assert "2 runs of 2 cells" in printed("sweep", "--check", "mine.yaml")


@pytest.mark.parametrize(
    ("typed", "instead", "message"),
    [
        ('"federation.rounds" = 2', '"federation.round" = 2', "FedSwitch/R = 0.8: unknown key federation.round"),
        ('"federation.T" = 2', '"federation.T" = 2, federation = { T = 3 }', "federation.T is given twice"),
        ("seeds ", "title ", "line"),
        ("seeds ", "seed ", "did you mean 'seeds'"),
        ("= 1\nfields", '= "a"\nfields', "seeds: 'a'"),
        ('"SemiFL/R = 0.8" = -1', '"SemiFL/R = 0" = -1', "names 'SemiFL/R = 0', which is no cell"),
        ('contrast = { "FedSwitch/R = 0.8" = 1, "SemiFL/R = 0.8" = -1 }', 'contrast = "x"', "'x' is not a table"),
        (CLAIMS, 'claims = ["x"]', "claims[0]: 'x' is not a table"),
        (CLAIMS, f"{CLAIMS}least = 0.1\n{CLAIMS}", "claim 'FedSwitch is better' repeats 'FedSwitch is better'"),
        (CLAIMS, f'{CLAIMS}mean_over = ["mnist"]', "mean_over, but these cells name no data set"),
        (CLAIMS, f'{CLAIMS}endpoint = "arithmetic"', "but test/accuracy is not; choose 'end'"),
        (CLAIMS, f'{CLAIMS}endpoint = "reached"\nmetric = "rounds_to/70"', "rounds_to/0.7"),
        ("seeds   = 1", "seeds = 0", "must be 1 to 100"),
        ("seeds   = 1", "seeds = -2", "must be 1 to 100"),
        ("seeds   = 1", "seeds = true", "seeds: True"),
        ("seeds   = 1", "seeds = 200", "must be 1 to 100"),
        ("seeds   = 1", 'metrics = ["rounds_to/abc"]', "rounds_to/0.7"),
        ("seeds   = 1", 'figure = { metrics = ["rounds_to/70"] }', "rounds_to/0.7"),
        ("seeds   = 1", "metrics = []", 'write metrics = ["test/accuracy"]'),
        ("seeds   = 1", "metrics = [1]", "metrics[0]: 1 is not a text"),
        ("seeds   = 1", "notes = [1]", "notes[0]: 1 is not a text"),
        ("seeds   = 1", 'figure = { kind = "curve" }', "figure.kind is 'curve', "),
        ("seeds   = 1", 'figure = { metrics = "test/loss" }', "'test/loss' is not a list"),
        ("seeds   = 1", 'from = "./mine.toml:SemiFL"', "./mine.toml starts from itself"),
        ('"federation.T" = 2', "seed = 5", "seed: cannot be set for a cell;"),
        ('"federation.T" = 2', "profile = 5", "profile: cannot be set for a cell;"),
        ("SemiFL = { from =", "B = { from = 3 }, SemiFL = { from =", "unknown item '3'"),
        (CLAIMS, f"{CLAIMS}contrasts = 3", "contrasts: 3 is not a list"),
        ("SemiFL/untuned", "SemiF/untuned", "did you mean 'SemiFL/untuned'"),
        (CONTRAST, '"FedSwitch/R = 0.8" = 1, "SemiFL/R = 0.8" = -0.5', "add up to 0.5"),
        (CONTRAST, '"FedSwitch/R = 0.8" = 1', "add up to 1"),
        (CONTRAST, '"FedSwitch/R = 0.8" = 1, "SemiFL/R = 0.8" = 0', "'SemiFL/R = 0.8' is 0"),
        ('SemiFL = { from = "arena/digits:SemiFL/untuned" }', "SemiFL = {}", "are the same cell"),
        ("= -1 }", '= -2, "SemiFL2/R = 0.8" = 1 }\n#', "names 'SemiFL2/R = 0.8', which is no cell"),
        (CLAIMS, f"{CLAIMS}least = 1", "least is 1, "),
        (CLAIMS, f"{CLAIMS}least = 0.5", "least is 0.5"),
        ('"improves"', '"comparable"\nleast = 0', "least is 0"),
        (CLAIMS, f'{CLAIMS}metric = "test/acuracy"', "measure 'test/acuracy'"),
        (CLAIMS, f'{CLAIMS}metric = "accuracy"', "measure 'accuracy'"),
        (CLAIMS, f'{CLAIMS}metric = "round"', "measure 'round'"),
        (CLAIMS, f'{CLAIMS}metric = "K"', "measure 'K'"),
        (CLAIMS, f'{CLAIMS}metric = "validation/accuracy"', "validation"),
        (CLAIMS, f'{CLAIMS}metric = "diversity/gradient/l2/squared/clients"', "gradient_diversity_every"),
        ("seeds   = 1", 'metrics = ["test/acuracy"]', "did you mean 'test/accuracy'"),
        ("seeds   = 1", 'figure = { metrics = ["pseudo/keep"] }', "did you mean 'pseudo/kept'"),
        ("FedSwitch = {}", '"FedSwitch " = {}, FedSwitch = {}', "two cells have the label"),
        ("seeds   = 1", 'form = "ssfl/tab2:FedAvg/full"', "did you mean 'from'"),
        ("seeds   = 1", "from = 3", "from: 3 is not a text"),
        ("seeds   = 1", 'paper = "ssfl"', "paper is not allowed"),
        ("seeds   = 1", "runs = 2", "runs is not allowed"),
        ("seeds   = 1", 'computed = ["MB"]', "computed is not allowed"),
        (
            "seeds   = 1",
            'cells = [{ method = "FedSwich", column = "R = 0.8", value = 1 }]',
            "cells[0].method is 'FedSwich'",
        ),
        ("seeds   = 1", 'cells = [{ method = "FedSwitch", column = "R=0.8", value = 1 }]', "did you mean 'R = 0.8'"),
        ("seeds   = 1", 'cells = [{ method = "FedSwitch", column = "R = 0.8", valeu = 1 }]', "did you mean 'value'"),
        ("seeds   = 1", 'cells = [{ method = "FedSwitch", column = "R = 0.8", value = "x" }]', "'x' is not a number"),
        ("seeds   = 1", f"cells = [{THE_VALUE}, {THE_VALUE}]", "gives 'FedSwitch/R = 0.8' a second time"),
        ("seeds   = 1", 'cells = [{ method = "FedSwitch", column = "R = 0.8", quoted = true }]', "has no source"),
        (
            CLAIMS,
            '[[controls]]\nof = { method = "X" }\nfields = {}\nnote = "n"',
            "controls is not allowed",
        ),
    ],
)
def test_what_is_misspelt_is_refused_in_one_line(mine, typed, instead, message):
    assert typed in FILE
    mine.write_text(FILE.replace(typed, instead))
    with pytest.raises(ConfigError) as refused:
        items(["./mine.toml"], "demo")
    assert message in str(refused.value) and str(refused.value).startswith("./mine.toml: ")
    assert "\n" not in str(refused.value) and "None" not in str(refused.value)


def test_a_sweep_s_runs_carry_the_claims_of_the_item(mine, monkeypatch, printed):
    """The file alone says which claims its confirming runs began under, at a worker and at an agent."""
    (mine.parent / "sweep.yaml").write_text(printed("sweep", "./mine.toml", "--profile", "demo", "--seeds", "1"))
    begun = []
    monkeypatch.setattr("benchmark.cli.reproduce.train", lambda *_: begun.extend(own_files(mine.parent / "r")))
    main(["work", "sweep.yaml", "--results", "r"])
    assert [path.name for path in begun] == ["mine-mine-demo.json"]
    words = {"cell": "./mine.toml:FedSwitch/R = 0.8", "profile": "demo", "seed": 100}
    (mine.parent / "words.json").write_text(json.dumps(words))
    assert main(["run", "--sweep", "words.json", "--results", "agents", "--engine", "reference"]) == 0
    (manifest,) = (mine.parent / "agents").glob("runs/*/seed=100/manifest.json")
    assert json.loads(manifest.read_text())["claims"].keys() == {"mine/mine demo"}


def test_two_files_of_one_name_are_not_one_item(mine, fssl, printed):
    """Their runs, claims and pages would be one; a file that was moved is the same one."""
    twin = mine.parent / "other" / "mine.toml"
    twin.parent.mkdir()
    note_own(items(["./mine.toml"], "demo"), mine.parent / "r")
    twin.write_text(FILE)
    code, _, said = fssl("reproduce", "other/mine.toml", "--profile", "demo", "--results", "r")
    assert code == 65 and "other/mine.toml has the same name" in said and "rename one of them" in said
    listed = json.loads(printed("list", "items", "--json", "--results", "r"))["items"]
    assert listed[-1]["title"] == "Mine on digits (mine.toml, demo)"
    mine.unlink()
    note_own(items(["other/mine.toml"], "demo"), mine.parent / "r")


def test_a_site_of_records_alone_imports_no_code_and_names_a_damaged_note(mine, monkeypatch, fssl, printed):
    monkeypatch.syspath_prepend(mine.parent)
    code = "from benchmark.methods.server_only import ServerOnly\n\n\nclass Mine(ServerOnly):\n    pass\n"
    (mine.parent / "my_code.py").write_text(code)
    mine.write_text('rows = { Own = { method = "my_code:Mine" } }')
    note_own(items(["./mine.toml"], "demo"), mine.parent / "r")
    del sys.modules["my_code"]
    (mine.parent / "r/own/damaged.json").write_text('{"name": 3}')
    printed("report", "--results", "r")
    assert "my_code" not in sys.modules
    front = (mine.parent / "r/site/index.html").read_text()
    assert "fssl report FOLDER/mine.toml" in front and "own/damaged.json is wrong: name is 3, not text" in front
    code, _, said = fssl("run", "--results", "r", "--seed=100", *SHORT)
    assert code == 66 and "not text; remove it" in said


@pytest.mark.parametrize(
    "claim",
    [
        'metric = "rounds_to/0.7"\nendpoint = "reached"\nleast = 1\ncontrast = { A = 0.75, B = -1 }',
        'metric = "pseudo/kl_gap"\nleast = 1\ncontrast = { A = 0.5, B = 0.5 }',
        'metric = "client/loss"\ncontrast = { A = 1, B = 1 }',
        "contrast = { A = 0.333333, B = 0.333333, C = -0.666667 }",
        'metric = "comm/bytes_up"\nleast = 1000\ncontrast = { A = 1, B = -1 }',
    ],
)
def test_claims_that_rightly_do_not_add_up_to_zero_stay(mine, claim):
    rows = 'rows = { A = {}, B = { "federation.T" = 3 }, C = { "federation.T" = 4 } }'
    mine.write_text(f'{rows}\n[[claims]]\nname = "x"\nform = "improves"\n{claim}')
    (item,) = items(["./mine.toml"], "demo")
    assert len(item.claims) == 1


def test_a_claim_on_a_cell_that_is_there_twice_trains_nothing(mine, fssl):
    mine.write_text(FILE.replace('SemiFL = { from = "arena/digits:SemiFL/untuned" }', "SemiFL = {}"))
    code, _, said = fssl("work", "./mine.toml", "--profile", "demo", "--results", "r", "--seeds", "1")
    assert code == 65 and "the same cell" in said and not list(mine.parent.glob("r/runs/*"))


def test_metrics_that_runs_and_verdicts_know_are_known(tmp_path):
    """Those of a run, of verdicts, and of the papers' tables."""
    evaluation = Evaluation(every=1, gradient_diversity_every=1)
    recorded = run(tiny_experiment(evaluation=evaluation), tmp_path)["last"]
    files = [read_published(name) for name in ITEMS if not name.startswith("arena/") and "/departures" not in name]
    published = [metric for file in files for metric in file.metrics]
    of_unknown = {"test/unknown_auroc", "test/unknown_fpr95", "pseudo/unknown"}
    names = {*recorded, *DERIVED, *of_unknown, *published}
    cell = tiny_experiment(evaluation=evaluation)
    assert [name for name in names - of_unknown if not own.measures(cell, name)] == []
    with_unknown = replace(cell, data=replace(cell.data, label_setting="open"))
    assert all(own.measures(with_unknown, name) > own.measures(cell, name) for name in of_unknown)


def test_cells_of_a_user_s_table_are_not_called_published(mine):
    (item,) = items(["./mine.toml"], "demo")
    assert {cell.role for cell in item.cells} == {"own"}


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ('data = "mnist"', ["data", "fields = {"]),
        ('network = "small_cnn"', ["network", "fields = {"]),
        ('"federation.rounds" = 5', ["federation.rounds", "fields = {"]),
        ("optimizer.lr = 0.1", ["optimizer", "fields = {"]),
        ('profile = "demo"', ["profile", "--profile"]),
        ('contrast = { "A" = 1, "B" = -1 }', ["contrast", "[[claims]]"]),
    ],
)
def test_a_key_at_the_top_that_belongs_elsewhere_is_answered_with_its_place(mine, line, places):
    mine.write_text(f"{line}\n{FILE}")
    with pytest.raises(ConfigError) as refused:
        items(["./mine.toml"], "demo")
    assert all(place in str(refused.value) for place in places)


def test_rows_whose_label_settings_do_not_fit_are_answered_with_those_that_suit_all(mine):
    """SSFL's and SAGE's methods share settings; those for a server's labels alone share none with SAGE's."""
    mine.write_text('[rows]\nSAGE = { method = "sage" }\nSSFL = { method = "ssfl" }\n')
    common = read_method({"kind": "sage"}, "method").needs & read_method({"kind": "ssfl"}, "method").needs
    with pytest.raises(ConfigError) as refused:
        items(["./mine.toml"], "demo")
    said = str(refused.value).partition("for all rows")[2]
    assert common and all(f'"{setting}"' in said for setting in common)
    assert not any(f'"{setting}"' in said for setting in read_method({"kind": "sage"}, "method").needs - common)
    mine.write_text('[rows]\nSAGE = { method = "sage" }\nSemiFL = { method = "semifl" }\n')
    assert not read_method({"kind": "sage"}, "method").needs & read_method({"kind": "semifl"}, "method").needs
    with pytest.raises(ConfigError) as refused:
        items(["./mine.toml"], "demo")
    assert "for all rows" not in str(refused.value)
    assert all(setting in str(refused.value) for setting in read_method({"kind": "semifl"}, "method").needs)


def test_rows_that_differ_in_who_has_labels_are_named(mine):
    start = '"method.warm_start_rounds" = 0, from = "arena/digits:SemiFL/untuned"'
    mine.write_text(f'[rows]\nSAGE = {{ from = "arena/clients:SAGE/untuned" }}\nSemiFL = {{ {start} }}\n')
    (item,) = items(["./mine.toml"], "demo")
    settings = [cell.experiment.data.label_setting for cell in item.cells]
    assert len(set(settings)) == 2
    notes = [note for note in item.notes if settings[0] in note and settings[1] in note]
    assert notes


def test_a_run_names_the_page_that_the_site_has_of_it(mine, printed):
    """Also a run that no table has: it is among "Your runs"."""
    said = printed("run", *SHORT, "--method.warm_start_rounds=0", "--results", "r")
    (page,) = (word for word in said.split() if word.endswith(".html"))
    printed("report", "--results", "r")
    assert (mine.parent / page).is_file() and (mine.parent / "r/site/mine/your-runs/custom/index.html").is_file()
