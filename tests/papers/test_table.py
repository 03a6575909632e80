"""From a file to an item: what a file may hold, what is refused, what becomes of each key; profiles and stand-ins."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmark.config import from_plain
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment, Federation
from benchmark.optimizer import Cosine, Optimizer
from benchmark.papers import published
from benchmark.papers.item import PublishedValue
from benchmark.papers.items import ITEMS, WITH_SWITCHES, items
from benchmark.papers.paper import Paper
from benchmark.papers.published import read_published
from benchmark.papers.scale import AUGMENTATIONS, PROFILES, Scale, alike, profile_of, tenth
from benchmark.papers.table import SELECTIONS, item

FILE = """
paper = "toy"
item = "tab1"
title = "A table"
source = "here"
metrics = ["test/accuracy", "test/auroc"]
computed = ["K"]
seeds = 4
rows = ["data", "alpha"]
columns = ["method"]
notes = ["a note"]
figure = { kind = "against", x = "alpha", log_x = true, lines = ["method"] }
cells = [
  { method = "A", data = "svhn", alpha = 0.1, value = 90.0, spread = 0.5, auroc = 99.0 },
  { method = "A", data = "cifar10", alpha = 0.1, value = 80.0 },
  { method = "B", data = "svhn", alpha = 1.0, also_quoted = true, quoted = true, source = "C et al." },
  { method = "D", data = "svhn", alpha = 0.1, value = 70.0, not_yet = "D has no method here" },
]
[[claims]]
name = "A is better"
quote = ""
source = "ours"
data = ["svhn", "cifar10"]
contrast = { "{data}/A/alpha=0.1" = 1 }
form = "improves"
endpoint = "end"
least = 0.01
"""


@dataclass(frozen=True)
class ToySetting:
    data: str
    alpha: float


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Paper]:
    """Make a paper with a file of this text."""
    monkeypatch.setattr(published, "PUBLISHED", tmp_path)

    def paper(text: str) -> Paper:
        (tmp_path / "toy").mkdir(exist_ok=True)
        (tmp_path / "toy" / "tab1.toml").write_text(text)
        return Paper(
            name="toy",
            setting=ToySetting,
            experiment=lambda setting: Experiment(),
            scale=lambda setting, profile: Scale(title="stand-in", notes=("small",)),
            computed={"K": lambda e: e.federation.K},
        )

    return paper


def test_a_file_becomes_an_item(toy):
    table = item(toy(FILE), "tab1", "paper")
    assert [cell.label for cell in table.cells] == ["SVHN/A/alpha=0.1", "CIFAR-10/A/alpha=0.1", "SVHN/B/alpha=1"]
    first = table.cells[0]
    assert first.setting == {"method": "A", "data": "SVHN", "alpha": 0.1} and first.computed == {"K": 10}
    assert first.published == {
        "test/accuracy": PublishedValue(value=90.0, spread=0.5, runs=4),
        "test/auroc": PublishedValue(value=99.0, runs=4),
    }
    assert table.cells[2].role == "quoted" and "C et al." in table.cells[2].note
    (shown,) = table.shown
    assert shown.published_value() == 70.0 and shown.note == "D has no method here" and shown.setting["method"] == "D"
    assert (table.rows, table.columns, table.seeds) == (("data", "alpha"), ("method",), 4)
    assert table.drawing is not None and (table.drawing.x, table.drawing.log_x) == ("alpha", True)
    assert [claim.name for claim in table.claims] == ["A is better (SVHN)", "A is better (CIFAR-10)"]
    assert table.notes == ("a note", SELECTIONS["last"])


def test_a_stand_in_takes_the_first_data_set_s_place(toy):
    table = item(toy(FILE), "tab1", "demo")
    assert [cell.label for cell in table.cells] == ["stand-in/A/alpha=0.1", "stand-in/B/alpha=1"]
    assert table.cells[0].published_value() == 90.0 and table.seeds == 3
    assert table.title == "A table (surrogate data set: stand-in)"
    assert table.notes[0] == "small" and len(table.claims) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "A table"', 'titel = "A table"', r"unknown key 'titel'; did you mean 'title'"),
        ("seeds = 4\n", "", "has no seeds"),
        ("spread = 0.5", "spraed = 0.5", r"a cell has the unknown key 'spraed'; did you mean 'spread'"),
        (
            'form = "improves"',
            'from = "improves"',
            r"claim 'A is better': unknown key from = 'improves'; did you mean 'form'",
        ),
        ("log_x = true", "logx = true", r"unknown key figure.logx = True; did you mean 'log_x'"),
        ('paper = "toy"', "paper = ", "toy/tab1.toml"),
        ("least = 0.01", "", "claim 'A is better': least is missing"),
        ("least = 0.01", 'least = "small"', "least: 'small' is not a number"),
        ('endpoint = "end"', 'endpoint = "ends"', "unknown endpoint 'ends'; did you mean 'end'"),
        (
            'data = ["svhn", "cifar10"]',
            'data = ["svhm", "cifar10"]',
            "claim 'A is better' names an unknown data set 'svhm'; choose",
        ),
        ('form = "improves"', 'form = "improve"', "form: unknown value 'improve'; did you mean 'improves'"),
        (
            '"{data}/A/alpha=0.1" = 1',
            '"{data}/A/alpha=0.2" = 1',
            "'SVHN/A/alpha=0.2', which is no cell; choose SVHN/A/",
        ),
        (
            '"{data}/A/alpha=0.1" = 1',
            '"svhn/0.1/D" = 1',
            "'svhn/0.1/D', which is no cell; choose SVHN/A/",
        ),  # only shown
    ],
)
def test_what_is_misspelt_is_refused(toy, old, new, message):
    with pytest.raises(ConfigError, match=message):
        item(toy(FILE.replace(old, new)), "tab1", "paper")


CONTROL = """
[[controls]]
of     = { method = ["A", "C"] }
fields = { "federation.K" = 20 }
method = "{method}, 20 clients"
label  = "{label}/20"
note   = "ours"
"""


def test_a_control_is_its_cells_again_with_fields_changed(toy):
    made = item(toy(FILE + CONTROL), "tab1", "paper").cells
    controls = [cell for cell in made if cell.role == "control"]
    of = [cell for cell in made if cell.role != "control" and cell.setting["method"] == "A"]
    for cell, control in zip(of, controls, strict=True):
        assert control.label == f"{cell.label}/20"
        assert control.setting == {**cell.setting, "method": "A, 20 clients"} and not control.published
        federation = replace(cell.experiment.federation, K=20)
        assert control.experiment == replace(cell.experiment, federation=federation)


def test_a_control_of_no_cell_is_refused(toy):
    with pytest.raises(ConfigError, match=r"controls\[0\].of is .*, but no cell has this setting"):
        item(toy(FILE + CONTROL.replace('"A", "C"', '"C"')), "tab1", "paper")


@pytest.mark.parametrize("paper", WITH_SWITCHES, ids=lambda paper: paper.name)
def test_a_method_that_a_paper_does_not_have_is_refused(paper):
    name = next(name for name in ITEMS if name.startswith(f"{paper.name}/"))
    line = read_published(name).cells[0]
    with pytest.raises(ConfigError, match="method is 'FedMix'"):
        paper.experiment(paper.setting_of({**line, "method": "FedMix"}))


def test_a_missing_file_is_named(toy):
    with pytest.raises(ConfigError, match=r"toy/tab2 has no file .*tab2.toml"):
        item(toy(FILE), "tab2", "paper")


def test_a_tenth_of_the_rounds_takes_a_tenth_of_the_schedule():
    sgd = Optimizer(schedule=Cosine(c=2.3, warmup_steps=50, steps=1000))
    evaluation = Evaluation(every=64, gradient_diversity_every=100)
    full = Experiment(federation=Federation(T=8, rounds=1000), optimizer=sgd, evaluation=evaluation)
    short = tenth(full)
    assert (short.federation.rounds, short.federation.T, short.profile) == (100, 8, "gpu")
    assert short.optimizer.schedule == Cosine(c=2.3, warmup_steps=5, steps=100)
    assert (short.evaluation.every, short.evaluation.gradient_diversity_every) == (32, 10)
    federation, optimizer, evaluation = full.federation, full.optimizer, full.evaluation
    same = replace(short, federation=federation, optimizer=optimizer, evaluation=evaluation, profile=full.profile)
    assert same == full


def test_profiles_that_would_repeat_a_smaller_one_are_it():
    assert profile_of("paper", ("demo", "laptop")) == "laptop"
    assert profile_of("demo", ("laptop", "gpu")) == "laptop"
    assert profile_of("gpu", PROFILES) == "gpu"
    with pytest.raises(ConfigError, match="unknown profile 'lapotp'; choose demo, laptop, gpu or paper"):
        profile_of("lapotp", PROFILES)
    for asked in PROFILES:
        assert items(["arena/mnist"], asked)[0].profile == "laptop"


STAND_IN = {"title": "digits", "data": {"name": "digits", "augmentation": "digits"}, "K": 20, "notes": ["one"]}


def test_a_stand_in_like_another_has_that_one_s_values_except_its_own():
    tables = {"batch": STAND_IN, "streaming": {"like": "batch", "K": 10}}
    batch, streaming = (from_plain(Scale, table) for table in alike(tables, "toy.toml").values())
    assert batch.data == {"name": "digits", "augmentation": AUGMENTATIONS["digits"]} and batch.notes == ("one",)
    assert streaming == replace(batch, K=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"like": "bach"}, "choose batch or mine"),
        ({"data": {"augmentation": "digit"}}, "digits"),
        ({"batch_sise": 20}, "'batch_size'"),
        ({"K": 1.5}, "K: 1.5 is not a whole number"),
    ],
)
def test_a_mistake_in_a_stand_in_is_named_with_the_right_word(wrong, message):
    with pytest.raises(ConfigError, match=message):
        from_plain(Scale, alike({"batch": STAND_IN, "mine": {**STAND_IN, **wrong}}, "toy.toml")["mine"], "demo.mine")
