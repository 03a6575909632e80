"""A method's page says what its file says, and shows what its runs gave."""

from dataclasses import replace
from pathlib import Path

from benchmark.methods.catalogue import METHODS
from benchmark.methods.semifl import SemiFL
from reports.methods import described
from reports.site import build
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
