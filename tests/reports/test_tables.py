"""The table model in its five formats, on a table whose numbers are known by hand; and what each has to escape."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.data.datasets import DATASETS
from benchmark.papers.item import Cell, Item
from benchmark.papers.items import items
from benchmark.records.record import CellRecords, RunRecord
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.statistics import summary
from reports.claims import rows_of
from reports.claims_table import claims_table
from reports.entries import notes_of
from reports.exports import item_result
from reports.formatting import plain_quote, sentence
from reports.item_results import ItemResults
from reports.pages import result_sentences
from reports.paper_table import best_cells, item_tables, ours_entry
from reports.provenance import remarks
from reports.site import build
from reports.tables import Column, Row, TableEntry, csv_of, csv_safe, latex_of, markdown, markdown_of, table_of
from sweeps.plan import restricted
from tests.reports.fakes import accuracies, begun_under, lean, make_cell, make_record, pair, printed, table2
from tests.reports.snapshots import terminal
from tests.reports.test_site import words


def test_all_formats_say_the_same_by_hand() -> None:
    """A/2: .6 .7 .8; B/2: .85 .9 and a diverged run; A/4: .5; B/4: none. CSV has fractions, also what is printed.

    What Markdown, LaTeX and a terminal show is in the snapshots.
    """
    item, records = lean()
    (table,) = item_tables(ItemResults(item, records))
    assert latex_of(table).count("&") == 3 * 2
    every = list(csv.DictReader(io.StringIO(csv_of(table.data).decode())))
    of_paper = {row["label"]: row["published"] for row in every if row["role"] == "as published"}
    assert of_paper["A/2"] == "0.8307"
    rows = {row["label"]: row for row in every if row["role"] != "as published"}
    first = rows["A/2"]
    assert (first["unit"], first["published"], first["n"], first["status"]) == ("fraction", "", "3", "done")
    assert float(first["mean"]) == pytest.approx(0.7) and float(first["std"]) == pytest.approx(0.1)
    assert (rows["B/4"]["mean"], rows["B/4"]["n"], rows["B/4"]["status"]) == ("", "0", "missing")
    assert list(rows) == ["A/2", "B/2", "A/4", "B/4"]
    text = terminal(item, records)
    assert "…" not in text and max(map(len, text.splitlines())) <= 100
    assert "70.00 +-10.00" in terminal(item, records, encoding="ascii")
    result = item_result(item, records, report="x.html")
    cells = {cell["label"]: cell for cell in result["cells"]}
    assert cells["A/2"]["published"] == 83.07 and cells["A/2"]["mean"] == pytest.approx(0.7)
    assert (cells["B/4"]["mean"], cells["B/4"]["n"], cells["B/4"]["status"]) == (None, 0, "missing")
    assert (cells["A/4"]["n"], cells["A/4"]["n_wanted"], cells["A/4"]["status"]) == (1, 3, "partial")
    start = {"item": "toy/tab1", "profile": "laptop", "metric": "test/accuracy", "report": "x.html"}
    assert start.items() <= result.items()


def test_an_item_whose_claims_other_items_judge_does_not_say_that_it_has_none() -> None:
    """At laptop, SVHN and CIFAR-10 have the same runs, so that the claim of Figure 5 is judged in Figure 3."""
    (item,) = items(["semifl/fig5"], "laptop")
    said = result_sentences(ItemResults(item, {}))
    assert item.claims and "semifl/fig3" in said and "no claim" not in said
    assert "no claim" in result_sentences(ItemResults(replace(item, claims=()), {}))


def test_a_sentence_begins_with_a_capital_except_for_names_with_one_inside() -> None:
    assert sentence("sure images are mixed") == "Sure images are mixed."
    assert sentence("arXiv:2106.01432, Figure 3") == "arXiv:2106.01432, Figure 3."
    assert sentence("sBN!") == "sBN!"


@pytest.mark.parametrize("reason", ["old code", "different data"])
def test_a_cell_shows_records_that_do_not_count_only_if_it_has_no_other(reason: str) -> None:
    """a: .86 and .88 do not count, and seed 3 is none of the table's seeds; b: one run counts, and one does not."""
    item = pair()
    a, b = item.cells
    old = {
        seed: replace(run, stale=reason) for seed, run in accuracies([(a, [0.86, 0.88, 0.1, 0.1])])[a.cell_key].items()
    }
    known = {**accuracies([(b, [0.5])]), a.cell_key: {}}
    records: dict[str, CellRecords] = {
        a.cell_key: CellRecords(known[a.cell_key], stale={seed: old[seed] for seed in (0, 1, 3)}),
        b.cell_key: CellRecords(
            known[b.cell_key], stale={1: replace(make_record(b, 1, {ACCURACY: 0.9}), stale=reason)}
        ),
    }
    shown = [cell.experiment.with_seed(seed) for cell in item.cells for seed in range(3)]
    reported = ItemResults(item, restricted(records, shown))
    result = reported.results["a"]
    assert (result.n, result.status, result.summary, reported.runs[1:]) == (0, "missing", None, [])
    (table,) = item_tables(reported)
    first, second = table.rows[0].entries[1:]
    assert first.text == f"{reason}: 87.00" and not first.best and second.text == "50.00"
    for text in (markdown_of(table), latex_of(table), terminal(item, restricted(records, shown))):
        assert f"{reason}: 87.00" in text
    (row,) = [row for row in table.data if row.get("cell_key") == a.cell_key]
    assert (row["mean"], row["n"]) == (None, 0)


def test_values_chosen_on_test_data_say_so_in_every_format() -> None:
    item, records = lean()
    cell = item.cells[0]
    best = {"round": 3, "test/accuracy": 0.95}
    chosen = {
        seed: replace(run, result={**run.result, "selection": "best_on_test", "best": best})
        for seed, run in records[cell.cell_key].items()
    }
    records = {**records, cell.cell_key: chosen}
    (table,) = item_tables(ItemResults(item, records))
    sentence = "selection: best round on the test set, as the paper did (A/2)"
    assert sentence in table.notes and "95.00" in markdown_of(table) and sentence in latex_of(table)
    assert sentence in " ".join(terminal(item, records).split()) and sentence in item_result(item, records)["notes"]
    assert [row["label"] for row in table.data if row.get("selection")] == ["A/2"]


def test_the_ladder_is_a_table_of_its_own() -> None:
    _, ladder = item_tables(ItemResults(*table2()))
    assert [entry.line for entry in ladder.rows[0].entries][0::3] == [
        "Server only",
        "90.00 ±0.00",
    ] and "n = 3" in ladder.caption
    assert "…" not in terminal(*table2())


def test_claims_by_hand() -> None:
    """a - b is .10 .09 .11 by pilot seeds: typically .10, and not judged. Nine confirming seeds with .10 each hold."""
    item = pair()
    pilots = accuracies([(item.cells[0], [0.9, 0.91, 0.92]), (item.cells[1], [0.8, 0.82, 0.81])])
    table = claims_table(rows_of(ItemResults(item, pilots)))
    assert (
        "| not judged yet | +10.00 points | 3 | – | toy/tab1 at K = 10, C = 10 on 8x8 digits | demo | accuracy |"
        in markdown_of(table)
    )
    row = next(csv.DictReader(io.StringIO(csv_of(table.data).decode())))
    assert (row["unit"], row["contrast"], row["verdict"]) == ("fraction", "a - b", "not judged yet")
    assert float(row["estimate"]) == pytest.approx(0.10) and float(row["least"]) == 0.01
    confirmed = accuracies([(item.cells[0], [0.9] * 9), (item.cells[1], [0.8] * 9)], first=100)
    text = markdown_of(claims_table(rows_of(ItemResults(item, begun_under(item, confirmed)))))
    assert "| holds | +10.00 points \\[+10.00, +10.00\\] (smallest to largest difference) | 9 | 0 of 9 |" in text


def test_a_row_without_a_value_of_the_rows_has_the_name_of_its_method_unless_the_column_has_it() -> None:
    """The baseline of all Q is in the row of labels alone, and not in a row "all"."""
    cells = [make_cell(f"A/{Q}", {"method": "A", "Q": Q}, Q) for Q in (1, 2)]
    alone_ = make_cell("alone", {"method": "Labels alone"}, 3)
    item = Item(name="toy/fig", title="T", profile="demo", cells=(*cells, alone_), rows=("Q",), columns=())
    for columns, last in (((), "Labels alone"), (("method",), "all")):
        (table,) = item_tables(ItemResults(replace(item, columns=columns), {}))
        assert [row.entries[0].text for row in table.rows] == ["Q = 1", "Q = 2", last]


def test_escapes_one_by_one() -> None:
    assert markdown("a|b*c_[d]`<e>&") == "a\\|b\\*c\\_\\[d\\]\\`&lt;e>&amp;"
    assert [csv_safe(value) for value in ("=1", "-x", "-0.5", "+1e3", 3, "a")] == ["'=1", "'-x", "-0.5", "+1e3", 3, "a"]
    assert plain_quote("a large $C$, $\\alpha$ and $5") == "a large C, \u03b1 and $5"
    assert plain_quote("*FedSwitch* at $\\frac{1}{10}$, $\\sqrt{2}$") == "FedSwitch at 1/10, $\\sqrt{2}$"
    assert plain_quote(r"\text{SSL} \gtrsim \text{SSFL} \gg \text{PSL}") == "SSL \u2273 SSFL \u226b PSL"


def test_rounds_to_a_target_have_a_mean_where_all_runs_come_there() -> None:
    """A's runs in rounds 2 and 3; of B's one never: no mean, and no dash that hides how many came."""
    cells = (make_cell("A", {"method": "A"}, 4), make_cell("B", {"method": "B"}, 5))
    item = Item(name="toy/tab1", title="Toy", profile="laptop", cells=cells, seeds=2, metrics=("rounds_to/0.9",))

    def run(cell: Cell, seed: int, reached: int) -> RunRecord:
        rounds = [{"round": t, "test/accuracy": 0.9 if t == reached else 0.1} for t in range(1, 5)]
        return make_record(cell, seed, rounds[-1], rounds=rounds)

    records = {}
    for cell, came in zip(cells, ((2, 3), (2, 9)), strict=True):
        records[cell.cell_key] = {seed: run(cell, seed, reached) for seed, reached in enumerate(came)}
    (table,) = item_tables(ItemResults(item, records))
    lines = [entry.line for row in table.rows for entry in row.entries[1:]]
    assert lines[0].startswith("2.5 ±0.7071") and lines[1].startswith("– 1 of 2 runs")
    assert "Rounds to 90 %" in table.caption


def compared(profile: str = "paper", margin: float | None = 0.01, note: str = "") -> ItemResults:
    """Make an item: A was published at 90 % and ended at 93, B at 80 % and ended at 80.5. `note`: the note of the files
    of A's run.
    """
    values = {"A": (90.0, 0.93), "B": (80.0, 0.805)}
    cells = [make_cell(m, {"method": m}, 900 + i, published=printed(p)) for i, (m, (p, _)) in enumerate(values.items())]
    records = accuracies([(cell, [values[cell.label][1]]) for cell in cells])
    runs = records[cells[0].cell_key]
    records = {**records, cells[0].cell_key: {0: replace(runs[0], manifest={"data": {"note": note}})}}
    item = Item(name="toy/tab1", title="Toy", profile=profile, cells=tuple(cells), seeds=3, margin=margin)
    return ItemResults(item, records)


def test_only_profile_paper_is_compared_with_what_is_printed(tmp_path: Path) -> None:
    """A lies 3 points above its printed number, B half a point; the margin is one point."""
    shown = compared()
    assert [seen.difference for seen in shown.agreements.values()] == pytest.approx([0.03, 0.005])
    assert [seen.text for seen in shown.agreements.values()] == ["beyond the margin", "within the margin"]
    assert shown.largest_gap == ("A", shown.agreements["A"])
    build([(shown.item, shown.records)], tmp_path)
    text = words(tmp_path / shown.page)
    assert "+3.00 to the paper" in text and "margin of a published and a reproduced accuracy is ±1.0 points" in text
    assert not compared("laptop").agreements and not compared(margin=None).agreements


@pytest.mark.parametrize(("data", "comparable"), [("cifar10", True), ("cifar100", False)])
def test_other_data_than_the_papers_get_their_note(data: str, comparable: bool) -> None:
    """The packed CIFAR-100 is a lossy copy with a split of its own; 161 images of the packed CIFAR-10 are."""
    note = DATASETS[data].packed_note
    shown = compared(note=note)
    below = ours_entry(shown, "A", ACCURACY).below
    assert "+3.00 to the paper" in below
    assert (note in below) == (not comparable) and ("beyond the margin" in below) == comparable
    assert shown.largest_gap == ("A" if comparable else "B", shown.agreements["A" if comparable else "B"])


def test_what_has_to_be_known_of_runs_stands_on_their_page_with_how_many() -> None:
    """Of three runs one was edited, one is of changed code and a GPU; the code is of two versions."""
    cell = make_cell("A", {"method": "A"}, 3)
    plain, edited, other = (make_record(cell, seed, {ACCURACY: 0.5}) for seed in range(3))
    code = {"commit": "b" * 40, "changes": "77"}
    other = replace(other, manifest={**other.manifest, "code": code, "engine": {"device": "Example GPU"}})
    runs = [plain, replace(edited, edited=True), other]
    assert remarks(runs[:1], "custom") == [] and remarks(runs[:1], "demo") == [
        "1 of 1 runs: recorded under profile custom"
    ]
    assert remarks(runs, "custom") == [
        "1 of 3 runs: edited after it was written",
        "1 of 3 runs: trained on Example GPU",
        "1 of 3 runs: of uncommitted code",
        "runs of 2 code versions: 4f1c2a9be0, bbbbbbbbbb",
    ]


def test_a_page_says_which_torch_releases_its_runs_have() -> None:
    """Builds of one release, such as for a CPU, are no mixture."""
    cell = make_cell("A", {"method": "A"}, 3)
    runs = [make_record(cell, seed, {ACCURACY: 0.5}) for seed in range(3)]
    versions = ("2.9.0+cu126", "2.9.0", "2.15.0")
    runs = [
        replace(run, manifest={**run.manifest, "packages": {"torch": version}})
        for run, version in zip(runs, versions, strict=True)
    ]
    assert remarks(runs[:2], "custom") == []
    (line,) = remarks(runs, "custom")
    assert line.endswith("2.9.0, 2.15.0")


@pytest.mark.parametrize("value", ["a\rb", "a\r\nb", "\r", "a\r"])
def test_a_csv_row_stays_one_row(value: str) -> None:
    """Older versions of Python write a bare carriage return without quotes."""
    content = csv_of([{"name": value, value: 1}])
    assert b"\r" not in content
    assert len(list(csv.reader(io.StringIO(content.decode(), newline="")))) == 2


def best_in_bold(gains: Sequence[float], *, seeds_of_third: int = 6) -> list[str]:
    """Return the texts in bold of a row: A is .8 at each seed, B is better by these gains, C is .5."""
    cells = [make_cell(m, {"method": m, "C": 2}, 9 + place) for place, m in enumerate("ABC")]
    values = [[0.8] * len(gains), [0.8 + gain for gain in gains], [0.5] * seeds_of_third]
    item = Item(name="toy/tab1", title="Toy", profile="demo", cells=tuple(cells), seeds=6)
    (table,) = item_tables(ItemResults(item, accuracies(zip(cells, values, strict=True))))
    bold = [entry.text for row in table.rows for entry in row.entries if entry.best]
    assert markdown_of(table).count("**") == 2 * len(bold) and latex_of(table).count("textbf") == len(bold)
    assert ("bold" in table.caption) == bool(bold)
    return bold


def test_the_best_value_is_bold_only_if_its_interval_against_the_second_says_so() -> None:
    """B - A has mean .02 and standard deviation .01 over five seeds: t(.975, 4) = 2.776, half width .0124: above zero.

    With a standard deviation of .02 the half width is .0248: not above zero. Four seeds never do. A third cell with
    three seeds leaves three in common.
    """
    spread = [-(2**0.5), -(2**-0.5), 0.0, 2**-0.5, 2**0.5]  # mean 0, sum of squares 5
    unit = [value * (4 / 5) ** 0.5 for value in spread]  # standard deviation 1 with n - 1
    assert summary(unit).std == pytest.approx(1)
    assert best_in_bold([0.02 + 0.01 * value for value in unit]) == ["82.00"]
    assert best_in_bold([0.02 + 0.02 * value for value in unit]) == []
    assert best_in_bold([0.02 + 0.001 * value for value in unit[:4]]) == []
    assert best_in_bold([0.02 + 0.001 * value for value in unit], seeds_of_third=3) == []


def test_upper_bounds_and_other_labels_do_not_compete() -> None:
    """A bound with .9 and a cell with more labels do not take the place of the best method, B."""
    cells = [make_cell(m, {"method": m, "C": 2}, 20 + i) for i, m in enumerate(("A", "B", "Bound", "More labels"))]
    cells[2] = replace(cells[2], role="bound")
    more = replace(cells[3].experiment, data=replace(cells[3].experiment.data, N_s=500))
    cells[3] = replace(cells[3], experiment=more)
    item = Item(name="toy/tab1", title="Toy", profile="demo", cells=tuple(cells), seeds=6)
    ends = []
    for place, level in enumerate((0.7, 0.8, 0.9, 0.95)):
        ends.append([level + seed / 1e4 * (place + 1) for seed in range(6)])
    assert best_cells(ItemResults(item, accuracies(zip(cells, ends, strict=True))), ACCURACY) == {"B"}


def test_latex_groups_heads_and_has_its_caption() -> None:
    columns = (Column(name="m"), Column(name="x", group="G_1"), Column(name="y", group="G_1"))
    rows = [Row(entries=(TableEntry(text="a & b"), TableEntry(text="1.00", spread="±0.10", best=True), TableEntry()))]
    text = latex_of(table_of("t", "100 % of it", columns, rows))
    assert r"\caption{100 \% of it.}" in text and r"\multicolumn{2}{c}{G\_1}" in text and r"\cmidrule(lr){2-3}" in text
    assert r"a \& b & \textbf{1.00} $\pm$ 0.10 & -- \\" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_cells_without_a_pseudo_label_at_the_end_are_named() -> None:
    """Both runs of a selected none; one of b's two did; the supervised baseline has no pseudo-labels."""
    cells = [make_cell(name, {"method": name}, 950 + n) for n, name in enumerate(("a", "b", "labels"))]
    item = Item(name="toy/tab9", title="t", profile="demo", cells=tuple(cells), seeds=2)
    kept: dict[str, list[dict[str, float]]] = {
        "a": [{"pseudo/kept": 0.0}] * 2,
        "b": [{"pseudo/kept": 0.0}, {"pseudo/kept": 0.1}],
        "labels": [{}, {}],
    }
    records = {}
    for cell in cells:
        runs = [make_record(cell, seed, {"test/accuracy": 0.5, **last}) for seed, last in enumerate(kept[cell.label])]
        records[cell.cell_key] = dict(enumerate(runs))
    (note,) = [note for note in notes_of(ItemResults(item, records)) if "pseudo-label" in note]
    assert note.startswith("a: no pseudo-label was selected")
