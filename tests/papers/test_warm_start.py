"""A run that ends in its warm start is labels alone: tables and grids refuse it, and `fssl run` says so."""

import json
import re
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.papers.items import ITEMS, cell_named, item_of, items, profiles
from benchmark.papers.own import DEFAULT
from benchmark.papers.warm_start import ends_in_warm_start
from reports.exports import item_result
from sweeps.grid import checked, grid_of_words
from sweeps.sweep_file import written

WARM = DEFAULT.method.warm_start_rounds
BY_DESIGN = "semifl/tab4:Labels alone"  # SemiFL in a warm start of all rounds


def table(folder, fields: str, rows: str = "A = {}") -> str:
    path = folder / "mine.toml"
    path.write_text(f"fields = {{ {fields} }}\nrows = {{ {rows} }}\n")
    return str(path)


def rounds_named(message: str) -> int:
    """Return the number of rounds that a message asks for."""
    *_, number = re.findall(r"federation\.rounds ?= ?(\d+)", message)
    return int(number)


@pytest.mark.parametrize("rounds", [1, WARM - 1, WARM])
def test_a_table_that_never_reaches_its_clients_is_refused_with_the_smallest_number_that_does(rounds, tmp_path, fssl):
    path = table(tmp_path, f'"federation.rounds" = {rounds}')
    with pytest.raises(ConfigError) as refused:
        items([path], "demo")
    assert rounds_named(str(refused.value)) == WARM + 1
    for command in ("plan", "reproduce", "work"):
        assert fssl(command, path, "--profile", "demo", "--results", tmp_path)[0] == 65
    (item,) = items([table(tmp_path, f'"federation.rounds" = {WARM + 1}')], "demo")
    assert not ends_in_warm_start(item.cells[0].experiment)


def test_a_grid_and_a_sweep_file_that_never_reach_their_clients_are_refused(tmp_path, fssl):
    words = "method=crl federation.rounds=60,3"
    warm = checked(grid_of_words("method=crl profile=demo"))[0].method.warm_start_rounds
    path = tmp_path / "grid.yaml"
    path.write_text(written(grid_of_words(f"{words} profile=demo"), name="a", made_by="a test"))
    for typed in (("sweep", "--grid", words, "--profile", "demo"), ("sweep", "--check", path), ("plan", path)):
        code, _, error = fssl(*typed)
        assert code == 65 and rounds_named(error) == warm + 1
    ranges = {"method": "crl", "profile": "demo"}
    text = written({name: [value] for name, value in ranges.items()}, name="a", made_by="a test")
    for name, least, most, code in (
        ("federation.rounds", warm, 60, 65),
        ("federation.rounds", warm + 1, 60, 0),
        ("method.warm_start_rounds", 0, 10_000, 65),
        ("method.warm_start_rounds", 0, 10, 0),
    ):
        path.write_text(
            text.replace("method: grid", "method: bayes") + f"  {name}:\n    min: {least}\n    max: {most}\n"
        )
        assert fssl("sweep", "--check", path)[0] == code


def test_a_method_without_a_warm_start_and_a_cell_that_has_no_other_rounds_by_design_pass(tmp_path):
    assert ends_in_warm_start(cell_named(BY_DESIGN, "demo"))
    assert len(checked(grid_of_words("method=server_only federation.rounds=2 profile=demo"))) == 1
    assert len(checked({"cell": [BY_DESIGN], "profile": ["demo"], "seed": [0]})) == 1
    (item,) = items([table(tmp_path, "", f'Alone = {{ from = "{BY_DESIGN}" }}')], "demo")
    assert item.cells[0].experiment == cell_named(BY_DESIGN, "demo")


def test_no_cell_of_a_paper_but_a_supervised_baseline_ends_in_its_warm_start():
    for name, build in ITEMS.items():
        for profile in {"demo", "laptop"}.intersection(profiles(name)):
            for cell in item_of(build, profile).cells:
                assert cell.role == "bound" or not ends_in_warm_start(cell.experiment), (name, profile, cell.label)


@pytest.mark.parametrize("rounds", [2, WARM + 1])
def test_a_run_says_with_how_many_rounds_its_clients_would_train(rounds, tmp_path, fssl):
    """It goes on: its record is what was asked for."""
    words = ["--federation.T=1", "--federation.K=2", "--federation.C=1", "--data.N_s=20", "--engine", "reference"]
    code, out, err = fssl("run", f"--federation.rounds={rounds}", *words, "--json", "--results", tmp_path)
    result = json.loads(out)
    assert code == 0 and result["rounds"] == rounds
    if rounds > WARM:
        assert "federation.rounds" not in err and result["last"]["comm/bytes_up"] > 0
    else:
        assert rounds_named(err) == WARM + 1 and result["last"]["comm/bytes_up"] == 0
        _, out, _ = fssl("run", f"--federation.rounds={rounds}", *words, "--results", tmp_path)
        assert "threshold" not in out  # which is not why it has no pseudo-labels


def test_rows_that_differ_in_a_budget_are_named(tmp_path):
    """In the notes, which the terminal, the page and JSON have."""
    rows = 'FedSwitch = {}, SemiFL = { method = "semifl" }, Alone = { method = "server_only" }'
    (item,) = items([table(tmp_path, '"federation.T" = 2', rows)], "demo")
    (note,) = [note for note in item.notes if "differ" in note]
    warm = {cell.label: getattr(cell.experiment.method, "warm_start_rounds", None) for cell in item.cells}
    assert all(f"{label} {warm[label]}" in note for label in ("FedSwitch", "SemiFL")) and "Alone" not in note
    assert note in item_result(item, {}, report=None)["notes"]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ('A = { "federation.rounds" = 30 }, B = { "federation.rounds" = 40 }', ["rounds: A 30, B 40"]),
        (
            'A = { "federation.T" = 1 }, B = { "federation.T" = 2, "federation.rounds" = 40 }',
            ["A 1, B 2", "A 60, B 40"],
        ),
        ('A = { "federation.K" = 3 }, B = { "optimizer.lr" = 0.1 }', []),
    ],
)
def test_what_rows_share_is_not_named(rows, named, tmp_path):
    (item,) = items([table(tmp_path, '"method.warm_start_rounds" = 1', rows)], "demo")
    notes = [note for note in item.notes if "differ" in note]
    assert len(notes) == len(named) and all(part in note for part in named for note in notes if part in note)
    assert sorted(part for part in named for note in notes if part in note) == sorted(named)


def test_what_columns_set_is_no_difference_of_rows(tmp_path):
    path = tmp_path / "mine.toml"
    columns = '"T = 1" = { "federation.T" = 1 }, "T = 2" = { "federation.T" = 2 }'
    path.write_text(f'rows = {{ A = {{}}, B = {{ "optimizer.lr" = 0.1 }} }}\ncolumns = {{ {columns} }}\n')
    (item,) = items([str(path)], "demo")
    assert not [note for note in item.notes if "differ" in note]


def test_the_default_run_is_the_same_cell_as_ever():
    """Its warm start is fixed, so that its records stay those of the command."""
    assert to_json(DEFAULT)["method"]["warm_start_rounds"] == 15 and DEFAULT.federation.rounds == 60
    assert replace(DEFAULT, profile="demo").cell_key == DEFAULT.cell_key
