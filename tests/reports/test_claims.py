"""Findings, lists of claims, and an item's claims: they say what the verdicts say, and nothing where there is none."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmark.papers.item import Elsewhere, Item
from benchmark.papers.items import ITEMS, items
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import ACCURACY, Records
from benchmark.verdicts.families import hash_of
from benchmark.verdicts.judge import Estimate, Judged
from benchmark.verdicts.rule import RULE_VERSION
from reports.claim_figures import claims_pictures
from reports.claims import ClaimRow, rows_of, scope_text
from reports.claims_table import claim_values
from reports.findings import claim_rows, declared_claims, furthest, kinds, state_text
from reports.formatting import item_page
from reports.item_results import ItemResults, connect
from reports.pages import _card
from reports.provenance import pre_registration
from reports.site import build
from tests.reports.fakes import accuracies, alone, begun_under, gained, make_cell, make_record, pair
from tests.reports.test_site import Page


def pilots() -> tuple[Item, Records]:
    item = pair()
    return item, accuracies([(item.cells[0], [0.9, 0.91, 0.92]), (item.cells[1], [0.8, 0.82, 0.81])])


def confirmed(seeds: int = 9) -> tuple[Item, Records]:
    return pair(), gained(pair(), 0.1, seeds)


def found(results: tuple[Item, Records]) -> ClaimRow:
    """Return its only claim."""
    (row,) = rows_of(ItemResults(*results))
    return row


def test_pilots_are_shown_on_the_page_of_claims_with_a_link_and_decide_nothing(tmp_path: Path) -> None:
    build([pilots()], tmp_path)
    page = Page(tmp_path / "claims.html")
    (row,) = rows_of(ItemResults(*pilots()))
    assert row.judged.estimate == pytest.approx(0.1) and (row.judged.n, row.judged.is_decided) == (3, False)
    assert row.page in page.links()


def test_a_judged_claim_without_room_has_confirmatory_seeds() -> None:
    """Equal cells at .99, margin one point: .01 of room above them is less than four margins."""
    item = pair()
    ends = [0.99 + 0.0002 * (-1) ** seed for seed in range(24)]
    row = found((item, begun_under(item, accuracies([(item.cells[0], ends), (item.cells[1], [0.99] * 24)], first=100))))
    assert (row.judged.verdict, row.judged.n, row.judged.is_judged) == ("no room", 24, True)
    assert "confirmatory seeds" in row.finding and "xploratory" not in row.finding + row.brief
    assert "xploratory" in found(pilots()).brief and not found(pilots()).judged.is_judged


def test_the_table_of_seeds_has_the_values_that_are_judged() -> None:
    """b diverged at the first seed and counts as 0: .5 - 0 = .5, and not a dash."""
    item = pair()
    records = accuracies([(item.cells[0], [0.5] * 9), (item.cells[1], [None, *[0.4] * 8])], first=100)
    table = found((item, begun_under(item, records))).seeds
    assert table is not None
    assert [entry.line for entry in table.rows[0].entries] == ["seed 100", "50.00", "0.00", "+50.00"]
    assert [entry.line for entry in table.rows[1].entries] == ["seed 101", "50.00", "40.00", "+10.00"]


def test_a_decided_claim_has_its_numbers_and_one_on_collapse_without_a_seed_is_not_run(tmp_path: Path) -> None:
    """Differences .100 to .108: the middle is 10.40 points. What the pages say of it is in the snapshots."""
    item, records = confirmed()
    judged = found((item, records)).judged
    assert (judged.verdict, judged.n, judged.looks) == ("holds", 9, 1) and judged.estimate == pytest.approx(0.104)
    collapse = replace(item.claims[0], name="falls", endpoint="collapse", contrasts=({"b": 1.0, "a": -1.0},))
    none = replace(item, name="toy/tab2", cells=tuple(make_cell(x, {}, 20 + i) for i, x in enumerate("ab")))
    none = replace(none, claims=(collapse,))
    pilot = {none.cells[0].cell_key: {0: make_record(none.cells[0], 0, {ACCURACY: 0.9})}}
    build([(item, records), (none, pilot)], tmp_path)
    (row,) = rows_of(ItemResults(none, pilot))
    assert (row.judged.verdict, row.judged.n) == ("not run", 0) and (tmp_path / item_page(none)).is_file()


def test_words_of_a_claim() -> None:
    """Points of speed are not points at the end; 99.991 % is not 100.0 %; an open claim names the seeds that can decide
    it, here the nine of the first look, and the claim that it waits for."""
    row, four = found(confirmed()), found(confirmed(4))

    def but(**changes: Any) -> ClaimRow:
        return replace(row, judged=replace(row.judged, **changes))

    for endpoint, words_of_it in (("end", "mean over the last tenth of the rounds"), ("speed", "mean log-odds")):
        finding = but(claim=replace(row.claim, endpoint=endpoint)).finding
        assert finding.startswith(f"Test accuracy, {words_of_it}")
    assert but(level=0.99991).interval.startswith("99.9 % interval ")
    assert four.reason.endswith("; 9 confirmatory seeds can decide it") and "can decide" not in row.reason
    fewer = replace(row.claim, metric="rounds_to/0.9", endpoint="reached")
    assert but(claim=fewer).brief.startswith("Rounds to 90 % (fewer is positive) at ")
    waits = but(verdict="undecided", waits_for="'First'").finding
    assert waits.endswith("over 9 confirmatory seeds. It waits for 'First', a primary claim before it.")


def test_of_two_profiles_that_know_as_little_the_larger_is_shown() -> None:
    demo, laptop = ItemResults(pair(), {}), ItemResults(replace(pair(), profile="laptop"), {})
    for every in ([demo, laptop], [laptop, demo]):  # neither has a seed with all cells of the claim
        (row,) = furthest(every).values()
        assert row.reported is laptop


def test_lists_count_sentences_and_questions_apart_and_nothing_withdrawn() -> None:
    item, records = confirmed()
    claim = item.claims[0]
    ours = replace(claim, name="ours", quote="", contrasts=({"a": 2.0, "b": -2.0},))
    wrong = replace(claim, name="wrong", contrasts=({"a": 3.0, "b": -3.0},), withdrawn="not its sentence")
    item = replace(item, claims=(claim, ours, wrong))
    one = ItemResults(item, begun_under(item, records))
    places = claim_rows([one], "toy")
    sentences, questions = kinds(places).values()
    assert [place.claim.name for place in places] == ["a beats b", "ours", "wrong"]
    assert [place.claim.name for place in sentences] == ["a beats b"]
    assert [place.claim.name for place in questions] == ["ours"]
    every = len(claim_rows([one]))
    withdrawn = every - sum(map(len, kinds(claim_rows([one])).values()))
    assert f"{every - withdrawn} claims in all" in state_text([one])
    assert f"{withdrawn} more are withdrawn" in state_text([one])
    both = [
        ItemResults(replace(item, profile="laptop"), {}),
        one,
    ]  # each counts once, where most is known
    assert [place.item.profile for place in claim_rows(both, "toy")] == [item.profile] * 3


def test_a_contrast_is_declared_once_where_it_is_judged() -> None:
    """SSFL's Table E.1 has a contrast that Table 1 judges, and figures others; with records the list is no longer."""
    every = [(item, claim) for item in items(ITEMS, "demo") for claim in item.claims]
    once = declared_claims()
    hashes = {hash_of(*one) for one in once}
    assert len(once) < len(every) and len(hashes) == len(once)
    assert {hash_of(*one) for one in every} == hashes
    both = [ItemResults(item, {}) for item in items(["ssfl/tab1", "ssfl/tabe1"], "demo")]
    assert any("is judged in" in one.reason for reported in both for one in reported.judged)
    assert len(claim_rows(both)) == len(claim_rows([])) == len(once)


def test_what_is_computed_needs_no_run() -> None:
    """Sizes of the papers' networks are counted at profile paper, whatever has run."""
    (counted,) = [row for row in kinds(claim_rows([]))["sentences of the papers"] if row.judged.is_decided]
    assert counted.key == ("semifl/tab3", "The smallest network") and (counted.status, counted.page) == ("holds", "")
    assert counted.estimate == "+688,880"  # parameters of FedAvg's CNN, the next larger one, less those of WResNet28x2


def test_a_card_counts_a_cell_of_two_items_once() -> None:
    """A table and its figure have the same two cells, of which one has run."""
    item, records = pilots()
    one_run = {item.cells[0].cell_key: records[item.cells[0].cell_key]}
    table, figure = (ItemResults(replace(item, name=name), one_run) for name in ("ssfl/tab", "ssfl/fig"))
    (line,) = _card("ssfl", [table, figure])["lines"]
    assert (line["cells_run"], line["total"], line["items"]) == (1, 2, 2)


def test_a_claim_is_drawn_with_every_seed_and_the_interval_that_is_told() -> None:
    """At 3 of 9 seeds a ends 10 points below labels alone: every seed is judged and drawn."""
    item = pair()
    a, b = item.cells
    cells = (a, replace(b, experiment=replace(a.experiment, precision="bf16")), alone(a))  # as many rounds: one bound
    item = replace(item, cells=cells)
    ends = ([0.3] * 3 + [0.6 + s / 1e3 for s in range(6)], [0.5] * 9, [0.4] * 9)
    records = accuracies(list(zip(cells, ends, strict=True)), first=100)
    (judged,) = ItemResults(item, begun_under(item, records)).judged
    (picture,) = claims_pictures([judged])
    assert judged.runs_fall and judged.estimate is not None and judged.interval is not None
    (ax,) = picture.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [judged.claim.name] and "points" in ax.get_xlabel()
    lines = [list(line.get_xdata()) for line in ax.get_lines()]  # type: ignore[arg-type]
    margin, bar, seeds, estimate, _ = lines
    assert bar == pytest.approx([100 * edge for edge in judged.interval]) and margin == [-1.0, 1.0]
    assert len(seeds) == 9 and estimate == pytest.approx([100 * judged.estimate])


def test_it_is_told_when_claim_and_first_run_were_made_and_by_which_rule() -> None:
    """Seed 101 began first, before the rule had a version. Without a run: none yet."""
    item = pair(made=datetime(2026, 11, 22, 21, 53, 57, tzinfo=UTC), commit="9500fb4")

    def begun(run: RunRecord) -> RunRecord:
        first = run.seed == 101
        said = {
            "attempts": [{"started": f"2026-11-23T{2 - first:02}:07:29Z"}],
            "rule": {"version": None if first else 4},
        }
        return replace(run, manifest={**run.manifest, **said})

    records = {}
    for key, runs in confirmed()[1].items():
        records[key] = {seed: begun(run) for seed, run in runs.items()}
    assert pre_registration(ItemResults(item, records), item.claims[0]) == {
        "Claim made": f"2026-11-22 21:53 UTC, in commit 9500fb4, hash {item.hash_of(item.claims[0])}",
        "First confirmatory run": "2026-11-23 01:07:29 UTC, a seed 101, by code 4f1c2a9be0",
        "Rule": f"version {RULE_VERSION}; 16 runs begun under version 4; 2 runs begun under version None",
    }
    assert pre_registration(ItemResults(item, {}), item.claims[0])["First confirmatory run"] == "none yet"


# What stands with a verdict: its setting, all its seeds, collapse, and runs that say otherwise


def federated(item: Item, factors: list[tuple[int, int]]) -> Item:
    """Return the item's cells with these K and C."""
    cells = tuple(
        replace(cell, experiment=replace(cell.experiment, federation=replace(cell.experiment.federation, K=K, C=C)))
        for cell, (K, C) in zip(item.cells, factors, strict=True)
    )
    return replace(item, cells=cells)


def told(verdict: str, form: Any = "improves", **more: Any) -> ClaimRow:
    """Make a claim with this verdict; toy/tab2 also has cells of it."""
    elsewhere = (Elsewhere(item="toy/tab2", contrast={"a": 1.0, "b": -1.0}),)
    claim = replace(pair().claims[0], elsewhere=elsewhere, form=form)
    values: dict[str, Any] = {"verdict": verdict, "reason": "", "at_look": Estimate(value=-0.02, n=9), **more}
    return ClaimRow(reported=ItemResults(pair(), {}), judged=Judged(claim=claim, **values))


def test_a_verdict_names_clients_cohorts_and_data() -> None:
    item = pair()
    labels = ("a", "b")
    assert scope_text(federated(item, [(10, 2), (10, 10)]), labels) == "at K = 10, C = 2 and 10 on 8x8 digits"
    assert scope_text(federated(item, [(30, 3), (10, 3)]), labels) == "at K = 10 and 30, C = 3 on 8x8 digits"
    a, b = federated(item, [(10, 2), (1, 1)]).cells
    assert scope_text(replace(item, cells=(a, alone(b))), ("a", "alone")) == "at K = 10, C = 2 on 8x8 digits"


@pytest.mark.parametrize(
    ("verdict", "form", "ends", "says"),
    [
        ("contradicted", "improves", (0.9, 0.6), "say the other way: +30.00 points (n = 1)"),
        ("contradicted", "improves", (0.6, 0.9), "say the same: -30.00 points (n = 1)"),
        ("holds", "improves", (0.6, 0.9), "say the other way: -30.00 points (n = 1)"),
        ("no effect of interest", "improves", (0.9, 0.6), "show a larger difference: +30.00 points (n = 1)"),
        ("no effect of interest", "improves", (0.6, 0.597), "say the same: +0.30 points (n = 1)"),
        ("holds", "comparable", (0.6, 0.9), "show a larger difference: -30.00 points (n = 1)"),
        ("contradicted", "comparable", (0.6, 0.597), "show a smaller difference: +0.30 points (n = 1)"),
        ("undecided", "improves", (0.9, 0.6), "show: +30.00 points (n = 1)"),
    ],
)
def test_pilots_of_another_item_stand_beside_the_verdict(
    verdict: str, form: Any, ends: tuple[float, float], says: str
) -> None:
    """Of an item of 470 clients; b has one run, so that one seed has both."""
    a, b = ends
    item = replace(federated(pair(), [(470, 10), (470, 30)]), name="toy/tab2")
    row = told(verdict, form)
    connect([row.reported, ItemResults(item, accuracies([(item.cells[0], [a, a]), (item.cells[1], [b])]))])
    assert row.against == [f"Pilot runs at K = 470, C = 10 and 30 on 8x8 digits (toy/tab2: a - b) {says}."]


def test_each_data_set_of_the_other_item_has_a_line() -> None:
    place = Elsewhere(item="toy/tab2", contrast={"{data}/a": 1.0, "{data}/b": -1.0})
    labels = ("CIFAR-10/a", "CIFAR-10/b", "SVHN/a", "SVHN/b", "STL-10/a", "a")
    assert [list(one) for one in place.contrasts_in(labels)] == [["CIFAR-10/a", "CIFAR-10/b"], ["SVHN/a", "SVHN/b"]]
    assert Elsewhere(item="toy/tab2", contrast={"a": 1.0, "c": -1.0}).contrasts_in(labels) == ()


def test_disagreeing_pilots_all_seeds_and_collapse_have_lines_of_their_own_and_stand_in_the_json() -> None:
    """7 of 9: Clopper and Pearson give 39.99 to 97.19 %; 0 of 9: 0 to 33.63 %."""
    over_all = Estimate(value=-0.01, n=12, interval=(-0.04, 0.02), is_range=True)
    fallen: dict[str, Any] = {"collapsed": {"a": 0, "b": 7}, "runs_fall": True, "looks": 1}
    row = told("contradicted", over_all=over_all, pilots=Estimate(value=0.05, n=3), **fallen)
    over_all_seeds, shares, sign_test, pilots = row.context
    assert "12 confirmatory seeds: -1.00 points [-4.00, +2.00]" in over_all_seeds
    assert "a 0 of 9, 0 to 34 %, b 7 of 9, 40 to 97 %" in shares
    assert "7 of 9" in sign_test and "sign test" in sign_test
    assert "show the opposite: +5.00 points (n = 3)" in pilots
    values = claim_values(row)
    assert values["scope"] == "at K = 10, C = 10 on 8x8 digits" and values["look"] == 1
    assert values["over_all_seeds"] == {"estimate": -0.01, "interval": [-0.04, 0.02], "n": 12}
    assert values["collapsed"] == {"a": [0, 9], "b": [7, 9]}
    row = told("contradicted", pilots=Estimate(value=-0.05, n=3), collapsed={"a": 0, "b": 0})
    assert row.context == []  # no run collapsed
    (pilots,) = told("no effect of interest", pilots=Estimate(value=0.05, n=3)).context
    assert "show a larger difference: +5.00 points (n = 3)" in pilots


def test_of_a_claim_in_parts_those_with_runs_are_told() -> None:
    """a and b have a confirming seed and c has none: what a - b is so far is told, and nothing is judged."""
    a, b = pair().cells
    c = replace(a, label="c", experiment=replace(a.experiment, precision="bf16"))
    item = pair(form="every", contrasts=({"a": 1.0, "b": -1.0}, {"a": 1.0, "c": -1.0}))
    item = replace(item, cells=(a, b, c))
    (row,) = rows_of(ItemResults(item, accuracies([(a, [0.9]), (b, [0.8])], first=100)))
    assert (row.judged.verdict, row.verdict) == ("not run", "not judged yet")
    without_runs, so_far = row.so_far
    assert without_runs.endswith(": c.")
    assert so_far.endswith(": a - b: +10.00 points (n = 1).")
    assert replace(row, reported=ItemResults(item, {})).so_far == []
