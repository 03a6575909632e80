"""The page of findings: three claims a paper, each as its records say, and nothing else."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmark.cli.main import ROOT
from benchmark.cli.report import on_disk
from benchmark.errors import ConfigError
from benchmark.papers.catalogue import ITEMS, VARIANTS
from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged
from reports import findings
from reports.claims import claim_page, finding_text
from reports.findings import findings_page, write_findings
from reports.formatting import markdown
from reports.pages import papers
from reports.reported import Reported
from tests.reports.fakes import accuracies, make_cell, pair, printed


def test_the_committed_page_is_what_the_committed_records_say(tmp_path):
    """`fssl report --readme` writes it, from results/reference/."""
    page = tmp_path / "findings.md"
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    write_findings(on_disk((*ITEMS, *VARIANTS), ["laptop", "gpu", "paper"], tmp_path), page)
    assert page.read_text() == (ROOT / "reports" / "findings.md").read_text()


def test_without_records_there_are_three_claims_of_each_paper_and_no_number():
    page = findings_page([], links=True)
    names = {paper: about["short"] for paper, about in papers().items() if paper != "arena"}
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert sections.keys() == set(names.values())
    for part in sections.values():
        assert Counter({"No run has been made.": 3, "What can be said against it": 3}) == Counter(
            {text: part.count(text) for text in ("No run has been made.", "What can be said against it")}
        )
        assert part.count("**: not run. ") == 3 and "interval" not in part


def test_of_two_profiles_the_decided_one_is_told_with_a_link_to_its_page():
    decided = [Reported(item, records) for item, records in on_disk(["ssfl/tab2"], ["laptop"], ROOT / "results")]
    (one,) = decided
    name = "FedAvg loses with a large cohort"
    (judged,) = [judged for judged in one.judged if judged.claim.name == name]
    page = findings_page([Reported(one.item, {}), one], links=True)
    assert f"[{name}](ssfl/tab2/laptop/{claim_page(judged.claim)})**: {judged.verdict}." in page
    assert markdown(finding_text(judged)) in page


def test_every_decided_claim_of_a_paper_has_a_row_with_what_decided_it():
    """Of the toy's three claims one has an interval, one is judged by collapse, and one is open."""
    item = pair()
    claims = tuple(replace(item.claims[0], name=name) for name in ("one", "two", "open"))
    one = Reported(replace(item, name="ssfl/toy", claims=claims), {})
    holds = Judged(claim=claims[0], verdict="holds", estimate=0.05, interval=(0.01, 0.1), n=9, reason="")
    by_collapse = replace(holds, claim=claims[1], interval=None, by_collapse=True, collapsed={"b": 7})
    one.judged = [holds, by_collapse, replace(holds, claim=claims[2], verdict="undecided")]
    table = findings_page([one], links=False).partition("| decided claim |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == [
        f"| one | holds | last | +5.00 points | {markdown('[+1.00, +10.00]')} | 9 | ssfl/toy {item.profile} |",
        f"| two | holds | collapse | +5.00 points | 7 of 9 of b | 9 | ssfl/toy {item.profile} |",
    ]


def test_runs_at_a_papers_own_scale_stand_beside_the_print():
    """A ended 3 points above its printed 90, B has no run; another profile is not comparable. A cell of two tables that
    print one number is told once."""
    cells = [make_cell(name, {"method": name}, 900 + i, published=printed(90.0)) for i, name in enumerate("AB")]
    item = Item(name="toy/tab1", title="Toy", profile="paper", cells=tuple(cells), seeds=1, margin=0.01)
    records = accuracies([(cells[0], [0.93])])
    again = replace(item, name="toy/tab2")
    page = findings_page([Reported(item, records), Reported(again, records)], links=False)
    (row,) = [line for line in page.splitlines() if "printed" in line]
    assert row == "- toy/tab1, A: 93.00 % (1 run), printed 90.00 %: +3.00 points, undecided."
    assert "printed" not in findings_page([Reported(replace(item, profile="laptop"), records)], links=False)


def test_a_misspelt_key_is_refused(tmp_path, monkeypatch):
    wrong = tmp_path / "findings.py"
    wrong.with_suffix(".toml").write_text('[[ssfl]]\nclaims = "ssfl/tab2: Grouping wins"\nagainst = ""\n')
    monkeypatch.setattr(findings, "__file__", str(wrong))
    with pytest.raises(ConfigError, match="claims"):
        findings_page([], links=False)
