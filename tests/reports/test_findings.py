"""The pages of findings: the main sentences of each paper as its records say, in short and in full."""

import tomllib
from dataclasses import replace
from functools import partial

import pytest

from benchmark.cli.main import ROOT
from benchmark.cli.report import on_disk
from benchmark.errors import ConfigError
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS
from benchmark.records.collect import read_once, read_records
from benchmark.verdicts.judge import Estimate, Judged
from reports import findings
from reports.findings import IN_FULL, RULES, findings_in_full, findings_page
from reports.front import write_findings
from reports.item_results import PAPERS, ItemResults, connect
from reports.tables import markdown
from tests.reports.fakes import accuracies, make_cell, pair, printed


def test_the_committed_page_and_the_readme_are_what_the_committed_records_say(tmp_path):
    """`fssl report --readme` writes them from results/reference/. The short page has at most 900 words."""
    readme = tmp_path / "README.md"
    committed = (ROOT / "README.md").read_text()
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    readme.write_text(committed)
    read = read_once(partial(read_records, with_runs=False))
    recorded = on_disk((*ITEMS, *VARIANTS), ["laptop", "gpu", "paper"], tmp_path, read)
    write_findings(connect([ItemResults(item, records) for item, records in recorded]), tmp_path, readme)
    for name in ("findings.md", IN_FULL):
        assert (tmp_path / name).read_text() == (ROOT / "reports" / name).read_text()
    assert len((tmp_path / "findings.md").read_text().split()) <= 900
    assert readme.read_text() == committed and "| SSFL | " in committed


@pytest.mark.parametrize(("make", "limits"), [(findings_page, "Limits:"), (findings_in_full, "Limits:")])
def test_without_records_every_main_sentence_stands_there_and_no_number(make, limits):
    """The short page has three sentences per paper, and the full page has all of `findings.toml`."""
    page = make([], links=True)
    names = {about["short"]: paper for paper, about in PAPERS.items()}
    sections = {part.split("\n")[0]: part for part in page.partition(RULES)[0].split("\n## ")[1:]}
    assert sections.keys() == names.keys()
    for name, part in sections.items():
        entries = tomllib.loads(findings.MAIN.read_text())[names[name]]
        brief = [entry for entry in entries if "brief" in entry]
        assert len(brief) == 3 and all(len(entry["brief"].split()) <= 20 for entry in brief)
        number = len(brief if make is findings_page else entries)
        for text in ("No run has been made.", limits, ": not run.** "):
            assert part.count(text) == number
        assert "interval" not in part


def test_the_short_page_has_scope_estimate_interval_n_and_limits(tmp_path, monkeypatch):
    """A decided claim with a caveat that has a short form and one without; an estimate over more seeds."""
    item = replace(pair(), name="ssfl/toy")
    written = tmp_path / "findings.toml"
    written.write_text('[[ssfl]]\nclaim = "ssfl/toy: a beats b"\nbrief = "one data set."\nagainst = "Only digits."\n')
    monkeypatch.setattr(findings, "MAIN", written)
    monkeypatch.setattr(findings, "declared_claims", lambda: ((item, item.claims[0]),))
    one = ItemResults(item, {})
    seen = Estimate(value=0.05, n=9, interval=(0.01, 0.1))
    judged = Judged(claim=item.claims[0], verdict="holds", reason="", at_look=seen, error=0.01, looks=1)
    over_all = Estimate(value=0.04, n=12, interval=(0.02, 0.08))
    caveats = ("judged at round 9: a still gains 1 point", "a phrase without a short form")
    one.judged = [replace(judged, over_all=over_all, caveats=caveats)]
    page = findings_page([one], links=False)
    (line,) = [line for line in page.splitlines() if line.startswith("1. ")]
    start, _, limits = line.partition(" *Limits:* ")
    assert start.startswith("1. **a beats b: holds.** Test accuracy at K = 10, C = 10 on 8x8 digits: +5.00 points, ")
    for text in (markdown("interval [+1.00, +10.00]"), "(n = 9)", "+4.00 points over all 12 seeds"):
        assert text in start
    rising, other, brief = limits.split("; ")
    assert rising != caveats[0] and (other, brief) == (caveats[1], "one data set.")
    assert "Only digits." in findings_in_full([one], links=False)


def test_every_decided_claim_has_a_row_its_setting_and_what_decided_it():
    """Of the toy's four claims three are on one sentence, of which two are decided; one is a decided question of ours.
    Of b 7 of 9 runs collapsed; the second's interval is the range of its differences; all 12 seeds give 4 points."""
    item = pair()
    made = {"one": "q", "two": "q", "ours": "", "open": "q"}
    claims = tuple(
        replace(item.claims[0], name=name, quote=quote, contrasts=({"a": n, "b": -n},))
        for n, (name, quote) in enumerate(made.items(), start=1)
    )
    one = ItemResults(replace(item, name="ssfl/toy", claims=claims), {})
    look = Estimate(value=0.05, n=9, interval=(0.01, 0.1))
    over_all = Estimate(value=0.04, n=12, interval=(0.02, 0.08))
    first = Judged(
        claim=claims[0],
        verdict="holds",
        reason="",
        at_look=look,
        over_all=over_all,
        collapsed={"a": 0, "b": 7},
        looks=1,
    )
    first = replace(first, caveats=("it still rises",))
    second = replace(
        first, claim=claims[1], caveats=(), at_look=replace(look, is_range=True), over_all=None, collapsed={}
    )
    one.judged = [first, second, replace(first, claim=claims[2]), replace(first, claim=claims[3], verdict="undecided")]
    page = findings_in_full([one], links=False)
    at = f"K = 10, C = 10 on 8x8 digits (ssfl/toy {item.profile})"
    seen, all_seeds = markdown("+5.00 points [+1.00, +10.00]"), markdown("+4.00 [+2.00, +8.00]")
    in_range = "(interval = smallest to largest difference)"
    both = page.partition("| decided sentences of the papers |")[2].partition("\n\n")[0].splitlines()[2:]
    assert both == [
        "| \u201cq\u201d | in part | 2 of 3 claims decided | | | | | | |",
        f"| \u2013 one | holds | {at} | last | {seen} | 9 | {all_seeds} | 7 of 9, 40 to 97 % | It still rises. |",
        f"| \u2013 two | holds | {at} | last | {seen} {in_range} | 9 | \u2013 | \u2013 | \u2013 |",
    ]
    (ours,) = page.partition("| decided questions of ours |")[2].partition("\n\n")[0].splitlines()[2:]
    assert ours.startswith("| ours | holds |")


def test_runs_at_a_papers_own_scale_stand_beside_the_print():
    """A ended 3 points above its printed 90, B has no run; another profile is not comparable. A cell of two tables that
    print one number is told once."""
    cells = [make_cell(name, {"method": name}, 900 + i, published=printed(90.0)) for i, name in enumerate("AB")]
    item = Item(name="toy/tab1", title="Toy", profile="paper", cells=tuple(cells), seeds=1, margin=0.01)
    records = accuracies([(cells[0], [0.93])])
    again = replace(item, name="toy/tab2")
    page = findings_in_full([ItemResults(item, records), ItemResults(again, records)], links=False)
    (row,) = [line for line in page.splitlines() if ", published " in line]
    assert row == "- toy/tab1, A: 93.00 % (1 run), published 90.00 %: +3.00 points, beyond the margin."
    assert ", published " not in findings_in_full([ItemResults(replace(item, profile="laptop"), records)], links=False)


def test_a_misspelt_key_is_refused(tmp_path, monkeypatch):
    wrong = tmp_path / "findings.toml"
    wrong.write_text('[[ssfl]]\nclaims = "ssfl/tab2: Grouping wins"\nagainst = ""\n')
    monkeypatch.setattr(findings, "MAIN", wrong)
    with pytest.raises(ConfigError, match="claims"):
        findings_in_full([], links=False)
