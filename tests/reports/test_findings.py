"""The page of findings: the main sentences of each paper, as its records say, and nothing else."""

import tomllib
from dataclasses import replace

from benchmark.cli.main import ROOT
from benchmark.cli.report import on_disk
from benchmark.papers.catalogue import ITEMS, VARIANTS
from benchmark.verdicts.judge import Estimate, Judged
from reports import boards
from reports.findings import findings_page, write_findings
from reports.formatting import markdown
from reports.pages import papers
from reports.reported import Reported
from tests.reports.fakes import pair


def test_the_committed_page_is_what_the_committed_records_say(tmp_path):
    """`fssl report --readme` writes it, from results/reference/."""
    page = tmp_path / "findings.md"
    (tmp_path / "reference").symlink_to(ROOT / "results" / "reference")
    write_findings(on_disk((*ITEMS, *VARIANTS), ["laptop", "gpu", "paper"], tmp_path), page)
    assert page.read_text() == (ROOT / "reports" / "findings.md").read_text()


def test_without_records_every_main_sentence_stands_there_and_no_number():
    page = findings_page([], links=True)
    names = {about["short"]: paper for paper, about in papers().items() if paper != "arena"}
    sections = {part.split("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert sections.keys() == names.keys()
    for name, part in sections.items():
        many = len(tomllib.loads(boards.MAIN.read_text())[names[name]])
        assert many >= 3
        for text in ("No run has been made.", "What can be said against it", "**: not run. "):
            assert part.count(text) == many
        assert "interval" not in part


def test_every_decided_claim_has_a_row_its_setting_and_what_decided_it():
    """Of the toy's four claims two are decided sentences of the paper, one is a decided question of ours; one is open.
    Of b 7 of 9 runs collapsed; the second's interval is the range of its differences; all 12 seeds give 4 points."""
    item = pair()
    made = {"one": "q", "two": "q", "ours": "", "open": "q"}
    claims = tuple(
        replace(item.claims[0], name=name, quote=quote, contrast={"a": n, "b": -n})
        for n, (name, quote) in enumerate(made.items(), start=1)
    )
    one = Reported(replace(item, name="ssfl/toy", claims=claims), {})
    look = Estimate(value=0.05, n=9, interval=(0.01, 0.1))
    over_all = Estimate(value=0.04, n=12, interval=(0.02, 0.08))
    first = Judged(
        claim=claims[0], verdict="holds", reason="", seen=look, over_all=over_all, collapsed={"a": 0, "b": 7}, looks=1
    )
    second = replace(first, claim=claims[1], seen=replace(look, is_range=True), over_all=None, collapsed={})
    one.judged = [first, second, replace(first, claim=claims[2]), replace(first, claim=claims[3], verdict="undecided")]
    page = findings_page([one], links=False)
    at = f"K = 10, C = 10 on 8x8 digits (ssfl/toy {item.profile})"
    seen, all_seeds = markdown("+5.00 points [+1.00, +10.00]"), markdown("+4.00 [+2.00, +8.00]")
    both = page.partition("| decided sentence of the paper |")[2].partition("\n\n")[0].splitlines()[2:]
    assert both == [
        f"| one | holds | {at} | last | {seen} | 9 | {all_seeds} | 7 of 9, 40 to 97 % |",
        f"| two | holds | {at} | last | {seen} (least and largest difference) | 9 | \u2013 | \u2013 |",
    ]
    (ours,) = page.partition("| decided question of ours |")[2].partition("\n\n")[0].splitlines()[2:]
    assert ours.startswith("| ours | holds |")
