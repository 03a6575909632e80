"""A method's page says what its file says, and shows what its runs gave and what they handed over."""

from dataclasses import replace
from pathlib import Path

from benchmark.methods.registry import METHODS
from benchmark.methods.semifl import SemiFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from reports.methods import EXCHANGED, LEARNED, described, properties_of
from reports.site import build
from tests.conftest import record_of, tiny_experiment
from tests.reports.fakes import accuracies, make_cell, pair
from tests.reports.test_site import words


def test_every_method_s_file_gives_a_name_a_sentence_and_a_citation_where_it_has_one() -> None:
    for kind in METHODS:
        about = described(kind)
        assert about["name"] and about["what"] and about["needs"], kind
        assert "\nLegend" not in about["words"], kind
    assert "arXiv:2008.11364" in described("ssfl")["words"]
    assert (described("mixmatch")["name"], described("uda")["name"]) == ("MixMatch", "UDA")
    assert "Berthelot" in described("mixmatch")["words"] and "running means" in described("remixmatch")["words"]
    assert described("no_module:Method")["what"] == ""


def test_a_page_has_results_departures_and_how_to_run(tmp_path: Path) -> None:
    cell = make_cell("SemiFL/2", {"method": "SemiFL", "C": 2}, 50)
    cell = replace(cell, experiment=replace(cell.experiment, method=SemiFL()))
    build([(replace(pair(), cells=(cell,), claims=()), accuracies([(cell, [0.5, 0.6, 0.7])]))], tmp_path)
    text = words(tmp_path / "methods/semifl.html")
    for said in (
        *("Server and clients train in turn", "60.00 ±10.00", "reports/semifl/departures.md, entries 1 to 9"),
        *("Weak views are mixed after augmentation", "fssl run --method semifl"),
    ):
        assert said in text, said
    assert "Not run yet." in words(tmp_path / "methods/rscfed.html")


def test_the_published_row_of_semifl_comes_from_its_run(tmp_path: Path) -> None:
    """SemiFL Table 2: pseudo-labels, consistency, "Strong + Mixup", "Alternate", "sBN"; from a run of three rounds."""
    tiny = tiny_experiment()
    semifl = replace(tiny, method=SemiFL(threshold=0.0), model=replace(tiny.model, norm="sbn"))
    rows = []
    for experiment in (tiny, semifl):
        run(experiment, tmp_path)
        rows.append(properties_of([record_of(run_folder(tmp_path, experiment))]))
    of_tiny, of_semifl = rows
    assert [of_tiny[name].text for name in LEARNED] == ["yes", "yes", "Strong", "Parallel", "GN"]
    assert [of_semifl[name].text for name in LEARNED] == ["yes", "yes", "Strong + Mixup", "Alternate", "sBN"]
    assert [row["Statelessness"].text for row in rows] == ["yes", "yes"] and set(rows[0]) == {*EXCHANGED, *LEARNED}
    assert rows[1]["Privacy"].below == ("clients also send count, statistics",)
