"""A paper's headline names every setting that has a verdict; the front page is short and says its scale."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from reports import findings
from reports.claims import rows_of
from reports.front import papers_table, scale_text
from reports.headlines import Headline, SentenceOutcome, headlines, outcomes_of
from reports.item_results import PAPERS, ItemResults, connect
from reports.sentences import sentences_of
from reports.site import build
from tests.reports.fakes import gained, pair, table2
from tests.reports.test_sentences import at_two_sizes
from tests.reports.test_site import words


def test_a_headline_names_the_verdicts_at_both_numbers_of_clients() -> None:
    """Contradicted with 10 clients, holds with 470: no text of the headline has one without the other."""
    small, (large, _) = at_two_sizes()
    large = replace(large, claims=(replace(pair().claims[0], form="trend"),))
    every = connect([ItemResults(*small), ItemResults(large, gained(large, 0.3, 9))])
    paper = {"toy": {"short": "Toy", "headline": f"{small[0].name}: {small[0].claims[0].name}"}}
    with patch.dict(PAPERS, paper, clear=True), patch.object(findings, "declared_claims", lambda: ()):
        (headline,) = headlines(every)
        readme = papers_table(every)
    assert [(outcome.K, outcome.verdict) for outcome in headline.outcomes] == [(10, "contradicted"), (470, "holds")]
    few, _, more = headline.verdict.partition("; ")
    assert few.startswith("contradicted at K = 10") and more.startswith("holds at K = 470")
    (row,) = [line for line in readme.splitlines() if line.startswith("| Toy |")]
    assert headline.verdict in row and "K = 10, C = 10" in row and "K = 470, C = 10" in row
    assert headline.picture is not None and len(headline.picture.figure.axes) == 2


def test_a_scope_names_a_setting_once_with_all_of_its_data() -> None:
    claim = pair().claims[0]
    few, other, many = [
        SentenceOutcome(claim=claim, name=data, verdict="holds", setting=setting, data=(data,))
        for setting, data in (("K = 10, C = 2", "CIFAR-10"), ("K = 10, C = 2", "MNIST"), ("K = 470, C = 10", "MNIST"))
    ]
    (sentence,) = sentences_of(rows_of(ItemResults(*at_two_sizes()[0])))
    headline = Headline(paper="toy", short="Toy", words="It wins.", sentence=sentence, outcomes=(few, other, many))
    assert headline.scope == "K = 10, C = 2 on CIFAR-10 and MNIST; K = 470, C = 10 on MNIST"
    assert few.scope == "at K = 10, C = 2 on CIFAR-10"


def test_runs_at_more_clients_without_a_verdict_are_named_and_fewer_clients_are_not() -> None:
    small, large = at_two_sizes()
    every = connect([ItemResults(*small), ItemResults(*large)])
    (sentence,) = sentences_of(list(findings.furthest(every).values()))
    first, second = outcomes_of(sentence, every)
    assert (first.verdict, first.K) == ("contradicted", 10)
    assert (second.verdict, second.K, second.n, second.is_exploratory) == ("not judged", 470, 2, True)
    assert second.estimate == pytest.approx(0.3) and second.text.startswith("not judged at K = 470")
    nearer = connect([ItemResults(large[0], gained(large[0], -0.3, 9)), ItemResults(*small)])
    assert all(outcome.K != 10 or outcome.is_judged for outcome in outcomes_of(sentence, nearer))


def test_a_claim_about_several_differences_requires_all_of_them() -> None:
    """b loses to a, and wins against it the other way round: one of two differences is above zero."""
    item = pair(form="every", contrasts=({"a": 1.0, "b": -1.0}, {"b": 1.0, "a": -1.0}))
    reported = ItemResults(item, gained(item, 0.3, 9))
    (outcome,) = outcomes_of(sentences_of(findings.furthest([reported]).values())[0], [reported])
    assert outcome.verdict == "contradicted" and "1 is" in outcome.text
    assert [len(values) for values in outcome.differences.values()] == [9, 9] and outcome.above_zero == "1 is"


def test_the_front_page_says_its_scale_and_is_short(tmp_path: Path) -> None:
    page = words(build([table2()], tmp_path))
    assert len(page.split()) <= 700
    item, records = table2()
    assert scale_text([ItemResults(item, records)]) in page
    paper = replace(item, profile="paper")
    assert "reduced" not in scale_text([ItemResults(paper, records)])
    assert "reduced" in scale_text([ItemResults(item, records)])
    own = replace(item, name="mine/runs", profile="custom", claims=())  # as "Your runs"
    assert "reduced" in scale_text([ItemResults(own, records)])
