"""The page of what released code does: verdicts by numbers made by hand, cells with the same environment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.item import Claim, Item
from benchmark.verdicts.cell_results import Records
from reports.item_results import ItemResults
from reports.released_code import parts, released_table
from tests.papers.conftest import item_of
from tests.reports.fakes import accuracies, begun_under, make_cell

WITHOUT = 0.8
# With the part: 24 confirming seeds that are 3 points better, worse, or .1 point apart and back, against a margin of 1.
DIFFERENCES = {
    "present": [0.03] * 24,
    "reversed": [-0.03] * 24,
    "inert": [0.001, -0.001] * 12,
}
PART = """
[[parts]]
method = "{says}"
part   = "a part"
source = "its paper"
ways   = {{ "as printed" = ["toy/tab1: {says}", "toy/tab1: without"] }}
"""


def toy(cells: list[str]) -> Item:
    """Make cells with a part, one without, and a claim on each pair."""
    made = [make_cell(label, {"method": label}, key) for key, label in enumerate([*cells, "without"], 1)]
    fixed: dict[str, Any] = {"quote": "", "source": "ours", "form": "improves", "endpoint": "end", "least": 0.01}
    claims = [Claim(name=label, contrasts=({label: 1, "without": -1},), **fixed) for label in cells]
    return Item(name="toy/tab1", title="Toy", profile="laptop", cells=tuple(made), claims=tuple(claims))


def runs(item: Item, differences: dict[str, list[float]], first: int) -> Records:
    ends = {}
    for label, values in differences.items():
        ends[label] = [WITHOUT + d for d in values]
    ends["without"] = [WITHOUT] * max(map(len, ends.values()))
    return accuracies([(item.cell(label), values) for label, values in ends.items()], first)


def rows(item: Item, records: Records) -> dict[str, list[str]]:
    table = released_table([ItemResults(item, records)])
    lines = {}
    for row in table.rows:
        lines[row.entries[0].text] = [entry.line for entry in row.entries[1:]]
    return lines


@pytest.fixture
def toy_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "released_code.toml"
    path.write_text("".join(PART.format(says=says) for says in DIFFERENCES))
    monkeypatch.setattr("reports.released_code.PARTS", path)
    return path


@pytest.mark.usefixtures("toy_parts")
def test_confirming_seeds_say_present_reversed_or_inert() -> None:
    item = toy(list(DIFFERENCES))
    shown = rows(item, begun_under(item, runs(item, DIFFERENCES, first=100)))
    start = {"present": "+3.00 [", "reversed": "-3.00 [", "inert": "+0.00 ["}
    for says, (_, verdict, difference, _, _, without) in shown.items():
        assert (verdict, without) == (says, "80.00") and difference.startswith(start[says])


@pytest.mark.usefixtures("toy_parts")
def test_pilots_and_seeds_that_began_under_no_claim_show_a_difference_and_no_verdict() -> None:
    """.83 against .80, once; a part that has no run stays."""
    item = toy(list(DIFFERENCES))
    shown = rows(item, runs(item, {"present": [0.03]}, first=0))
    assert shown["present"][1:] == ["not judged", "+3.00", "one pilot run laptop", "83.00", "80.00"]
    assert shown["inert"] == ["as printed", "not run", *["–"] * 4]
    shown = rows(item, runs(item, DIFFERENCES, first=100))
    assert all((row[1], row[3]) == ("not judged", "24 seeds laptop") for row in shown.values())


@pytest.mark.usefixtures("toy_parts")
def test_an_accuracy_at_chance_is_called_so() -> None:
    """Digits have ten classes: .10 is chance, and .16 is more than 1.5 times that."""
    item = toy(list(DIFFERENCES))
    shown = rows(item, runs(item, {"present": [-0.7], "inert": [-0.64]}, first=0))
    assert (shown["present"][4], shown["inert"][4]) == ("10.00 at chance", "16.00")


def test_fields_say_what_is_switched_off(toy_parts: Path) -> None:
    item = toy(["present"])
    off = replace(item.cell("without"), experiment=item.cell("present").experiment)
    method = replace(off.experiment.method, batch_size=32)
    off = replace(off, experiment=replace(off.experiment, method=method))
    item = replace(item, cells=(item.cell("present"), off))
    shown = rows(item, runs(item, {"present": [0.03]}, first=0))
    assert shown["present"][0] == "as printed without: batch_size = 32"
    toy_parts.write_text(PART.format(says="present").replace("source", "sourse"))
    with pytest.raises(ConfigError, match="released_code.toml .*'sourse'"):
        parts()


def test_the_two_cells_of_a_way_have_the_same_environment() -> None:
    def cell(name: str) -> Experiment:
        item, _, label = name.partition(": ")
        return item_of(item, "laptop").cell(label).experiment

    for part in parts():
        for on, off in part["ways"].values():
            with_it, without = cell(on), cell(off)
            same = {"method": without.method, "optimizer": without.optimizer}  # labels alone have one rate, the labels'
            assert with_it.method != without.method and replace(with_it, **same) == without, (on, off)
