"""Where a lead holds: differences, intervals and sides computed by hand, and the item that shows them."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.experiment import Experiment, to_json
from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from reports.exports import item_result
from reports.item_results import ItemResults
from reports.leads import lead_rows, lead_table, lead_text, leads_of
from reports.tables import markdown_of
from tests.papers.conftest import item_of
from tests.reports.fakes import accuracies, make_cell

T_4 = 2.7764451  # the 97.5 % quantile of Student's t with 4 degrees of freedom, from a printed table


def compared(ends: Mapping[str, list[float | None]], seeds: int = 5) -> ItemResults:
    """Make the runs of "METHOD SETTING" with these accuracies by seed; R is the reference."""
    cells = {}
    for key, name in enumerate(ends, 800):
        method, setting = name.split()
        cells[name] = make_cell(f"{method}/{setting}", {"setting": setting, "method": method}, key)
    item = Item(
        name="arena/toy",
        title="Toy",
        profile="demo",
        cells=tuple(cells.values()),
        seeds=seeds,
        rows=("setting",),
        reference="R",
    )
    records: dict[str, dict[int, RunRecord]] = accuracies([(cells[name], values) for name, values in ends.items()])
    return ItemResults(item, records)


FIVE: dict[str, list[float | None]] = {
    "R one": [0.50, 0.52, 0.54, 0.56, 0.58],
    "A one": [0.61, 0.62, 0.64, 0.66, 0.67],  # .11 .10 .10 .10 .09 ahead
    "R two": [0.5] * 5,
    "A two": [0.4, 0.6, 0.5, 0.7, 0.4],  # -.1 .1 0 .2 -.1: mean .02
    "R three": [0.9, 0.91, 0.92, 0.93, 0.94],
    "A three": [0.8, 0.82, 0.81, 0.84, 0.83],  # -.10 -.09 -.11 -.09 -.11
    "R four": [0.5, 0.5],
    "A four": [0.9, 0.9],
}


def test_a_lead_is_the_paired_difference_with_students_interval() -> None:
    (leads,) = leads_of(compared(FIVE)).values()
    assert [lead.side for lead in leads] == ["ahead", "open", "behind", "few seeds"]
    for lead, differences in zip(leads, ([0.11, 0.1, 0.1, 0.1, 0.09], [-0.1, 0.1, 0.0, 0.2, -0.1]), strict=False):
        mean = sum(differences) / 5
        std = math.sqrt(sum((value - mean) ** 2 for value in differences) / 4)
        half = T_4 * std / math.sqrt(5)
        assert lead.difference is not None and lead.difference.mean == pytest.approx(mean)
        assert lead.interval == pytest.approx((mean - half, mean + half), abs=1e-6)
    assert leads[3].interval is None  # two seeds have no interval, whatever their values are


def test_the_sentence_and_the_files_say_what_the_differences_are() -> None:
    reported = compared(FIVE)
    text = lead_text(reported)
    assert "A is ahead of R in 1 of 3 settings" in text  # the fourth has too few seeds to say so
    assert "behind in 1 (three)" in text and "not clearly different in 1 (two)" in text and "(four)" in text
    rows = lead_rows(reported)
    assert [(row["setting"], row["side"], row["n"]) for row in rows[:2]] == [("one", "ahead", 5), ("two", "open", 5)]
    result = item_result(reported.item, reported.records)
    assert result["leads"] == rows == json.loads(json.dumps(rows, allow_nan=False))
    page = markdown_of(lead_table(reported))
    assert "+10.00" in page and "-10.00" in page and "n=2" in page


def test_without_a_run_of_the_reference_there_is_no_lead() -> None:
    ends = {name: values for name, values in FIVE.items() if name in ("A one", "R two", "A two")}
    (leads,) = leads_of(compared(ends)).values()
    assert [lead.side for lead in leads] == ["not run", "open"]
    assert "1 setting" in lead_text(compared(ends))
    assert "No method" in lead_text(compared({"A one": [0.5]}))


def test_settings_with_too_few_seeds_are_named_once_and_count_for_no_method() -> None:
    """Two methods and two settings of which no difference has an interval."""
    ends: dict[str, list[float | None]] = {}
    for method in "RAB":
        ends |= {f"{method} one": [0.5, 0.6], f"{method} two": [0.5, 0.6]}
    text = lead_text(compared(ends))
    assert "ahead" not in text and text.count("one") == 1 and "2 settings" in text and "5" in text
    (caption,) = {lead_table(compared(ends)).brief}
    assert text not in caption  # the page has it as its first sentence


def fields_of(experiment: Experiment) -> dict[str, object]:
    """Return all fields by dotted names, without the fields of the method and the seed."""
    flat: dict[str, object] = {}

    def collect(tree: object, path: str) -> None:
        if isinstance(tree, dict):
            for name, value in tree.items():
                collect(value, f"{path}.{name}" if path else name)
        else:
            flat[path] = tree

    collect(to_json(experiment), "")
    return {name: value for name, value in flat.items() if not name.startswith(("method.", "optimizer.", "seed"))}


@pytest.mark.parametrize("profile", ["demo", "laptop"])
def test_each_row_of_the_checklist_changes_what_its_name_says(profile: str) -> None:
    """K, cohorts of 10 and 5 %, labels, network, alpha. All methods of a row share its setting, and none is tuned."""
    item = item_of("arena/robustness", profile)
    methods = {cell.setting["method"] for cell in item.cells}
    settings = list(dict.fromkeys(str(cell.setting["setting"]) for cell in item.cells))
    assert item.reference in methods and len(item.cells) == len(methods) * len(settings)
    assert len({cell.cell_key for cell in item.cells}) == len(item.cells) and not item.choices
    of = {}
    for setting in settings:
        own = [fields_of(cell.experiment) for cell in item.cells if cell.setting["setting"] == setting]
        assert all(fields == own[0] for fields in own)
        of[setting] = own[0]
    first, *others = settings
    changed_groups = set()
    for setting in others:
        changed = {
            name for name in of[setting].keys() | of[first].keys() if of[setting].get(name) != of[first].get(name)
        }
        groups = {"federation" if name.startswith("federation") else name.partition(".")[0] for name in changed}
        assert len(groups) == 1, (setting, changed)
        changed_groups |= groups
    assert changed_groups == {"federation", "data", "model", "partition"}
    shares = {cell.experiment.federation.C / cell.experiment.federation.K for cell in item.cells}
    assert {0.05, 0.1, 0.5} <= shares


def test_its_first_row_has_the_cells_of_the_comparison_of_all_methods() -> None:
    for profile, name in (("demo", "arena/digits"), ("laptop", "arena/mnist")):
        other = {cell.setting["method"]: cell.cell_key for cell in item_of(name, profile).cells}
        item = item_of("arena/robustness", profile)
        first = item.cells[0].setting["setting"]
        for cell in item.cells:
            if cell.setting["setting"] == first:
                assert cell.cell_key == other[cell.setting["method"]]


def test_a_custom_method_is_a_further_column(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "arena/robustness", "--profile", "demo", "--also", "ts_server_ema", "--json", "--no-reference"]
    assert main(words) == 0
    planned = json.loads(capsys.readouterr().out.splitlines()[0])
    item = replace(item_of("arena/robustness", "demo"))
    assert planned["cells"] == len(item.cells) + 10
