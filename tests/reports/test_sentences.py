"""The summary counts sentences, whose status follows from that of their claims; a verdict says at which K it is."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.papers.item import Elsewhere, Item
from benchmark.verdicts.cell_results import Records
from benchmark.verdicts.judge import Estimate, Judged, Verdict
from reports.claims import rows_of
from reports.claims_table import claim_values
from reports.exports import item_result
from reports.findings import findings_in_full
from reports.item_results import ItemResults, connect
from reports.records_page import copies_of_no_table
from reports.sentences import Sentence, sentences_of
from reports.site import build
from tests.reports.fakes import accuracies, gained, pair
from tests.reports.test_site import words


def sentence(verdicts: Sequence[Verdict], withdrawn: Sequence[int] = ()) -> list[Sentence]:
    """Make a sentence with this number of claims and these verdicts."""
    item = pair()
    claims = tuple(
        replace(
            item.claims[0],
            name=f"claim {n}",
            contrasts=({"a": n + 1.0, "b": -n - 1.0},),
            withdrawn="its form is another" if n in withdrawn else "",
        )
        for n in range(len(verdicts))
    )
    reported = ItemResults(replace(item, claims=claims), {})
    seen = Estimate(value=0.05, n=9, interval=(0.01, 0.1))
    reported.judged = [
        Judged(claim=claim, verdict=verdict, reason="", at_look=None if verdict == "not run" else seen)
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    return sentences_of(rows_of(reported))


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["holds"], "holds"),
        (["holds", "holds"], "holds"),
        (["holds", "contradicted"], "mixed"),
        (["holds", "no effect of interest", "undecided"], "mixed"),
        (["contradicted", "undecided"], "in part"),
        (["holds", "not run"], "in part"),
        (["undecided", "not run"], "undecided"),
        (["not judged yet", "not run"], "pilots only"),
        (["not run"], "not run"),
    ],
)
def test_the_status_of_a_sentence_follows_from_its_claims(verdicts: Sequence[Verdict], status: str) -> None:
    (one,) = sentence(verdicts)
    assert one.status == status
    assert one.has_decision == (not {"holds", "contradicted", "no effect of interest"}.isdisjoint(verdicts))
    assert len(one.rows) == len(verdicts)


def test_a_withdrawn_claim_counts_for_nothing() -> None:
    (one,) = sentence(["holds", "contradicted"], withdrawn=[1])
    assert one.status == "holds" and len(one.rows) == 1
    assert sentence(["holds"], withdrawn=[0]) == []


def at_two_sizes(least: float = 0.01) -> tuple[tuple[Item, Records], tuple[Item, Records]]:
    """Make a sentence that is judged with 10 clients, where a loses to b, and has runs with 470, where a wins."""
    small, large = pair(), replace(pair(), name="toy/tab2", claims=())
    cells = []
    for cell in large.cells:
        federation = replace(cell.experiment.federation, K=470)
        cells.append(replace(cell, experiment=replace(cell.experiment, federation=federation)))
    large = replace(large, cells=tuple(cells))
    place = Elsewhere(item="toy/tab2", contrast={"a": 1.0, "b": -1.0})
    small = replace(small, claims=(replace(small.claims[0], elsewhere=(place,), least=least),))
    pilots = accuracies([(cells[0], [0.8, 0.8]), (cells[1], [0.5, 0.5])])
    return (small, gained(small, -0.3, 9)), (large, pilots)


def test_a_verdict_at_few_clients_never_stands_alone_where_more_have_none(tmp_path: Path) -> None:
    """Contradicted with 10 clients; with 470 two pilots say +30 points: on every page, and the sentence is open."""
    small, large = at_two_sizes()
    every = connect([ItemResults(*small), ItemResults(*large)])
    (row,) = rows_of(every[0])
    assert row.judged.verdict == "contradicted"
    text = row.verdict_text
    few, _, more = text.partition(";")
    assert "K = 10" in few and "contradicted" in few and "K = 470" in more and "+30.00" in more
    assert [one.status for one in sentences_of(rows_of(every[0]))] == ["in part"]
    assert claim_values(row)["at_largest_K"] == {
        "K": 470,
        "item": "toy/tab2",
        "verdict": None,
        "runs": "+30.00 points (n = 2, exploratory)",
    }
    build([small, large], tmp_path)
    for page in ("claims.html", every[0].page):
        assert text in words(tmp_path / page), page


def test_a_verdict_at_more_clients_stands_beside_that_at_few() -> None:
    small, (large, _) = at_two_sizes()
    large = replace(large, claims=(replace(pair().claims[0], form="trend"),))
    every = connect([ItemResults(*small), ItemResults(large, gained(large, 0.3, 9))])
    (row,) = rows_of(every[0])
    few, _, more = row.verdict_text.partition(";")
    assert "K = 10" in few and "contradicted" in few
    assert all(value in more for value in ("holds", "K = 470", "+30.40", "n = 9"))
    assert [one.status for one in sentences_of(rows_of(every[0]))] == ["mixed"]


def test_caveats_of_decided_claims_are_on_the_front_page_and_in_findings(tmp_path: Path) -> None:
    """Also with endpoint `last`: a still gains six points in the last tenth of its run."""
    item = pair(endpoint="last")
    caveat = "judged at round 11: a still gains 6.0 points in the last tenth of the run"
    reported = ItemResults(item, gained(item, 0.3, 9))
    reported.judged = [replace(one, caveats=(caveat,)) for one in reported.judged]
    (row,) = rows_of(reported)
    assert row.judged.is_decided and any(caveat[1:] in line for line in row.context)
    assert caveat[1:] in findings_in_full([reported], links=False) or row.reported.paper not in ("ssfl", "semifl")
    assert claim_values(row)["caveats"] == [f"{caveat[0].upper()}{caveat[1:]}."]


def test_json_has_the_sentences_of_the_item() -> None:
    item = pair()
    (one,) = item_result(item, gained(item, 0.3, 9))["sentences"]
    claim = item.claims[0]
    assert one == {"text": claim.quote, "source": claim.source, "status": "holds", "claims": [claim.name]}


def test_copies_of_no_table_are_those_whose_cell_no_item_has() -> None:
    results = Path(__file__).parents[2] / "results"
    cells = sorted(path.name for path in (results / "reference").iterdir())
    found = copies_of_no_table(results, cells[2:])
    wanted = {cell: len(list((results / "reference" / cell).glob("seed=*.json.gz"))) for cell in cells[:2]}
    assert {cell: len(runs) for cell, runs in found.items()} == wanted
