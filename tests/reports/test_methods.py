"""A method's page says what its file says, and shows what its runs gave and what they handed over."""

from dataclasses import replace
from pathlib import Path

from benchmark.methods.registry import METHODS
from benchmark.methods.semifl import SemiFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from reports.formatting import cell_page
from reports.methods import EXCHANGED, LEARNED, described, properties_of
from reports.site import build
from tests.conftest import record_of, tiny_experiment
from tests.reports.snapshots import of_method
from tests.reports.test_site import Page


def test_every_method_s_file_gives_a_name_a_sentence_and_a_citation_where_it_has_one() -> None:
    for kind in METHODS:
        about = described(kind)
        assert about["name"] and about["what"] and about["needs"], kind
        assert "\nLegend" not in about["words"], kind
    assert "arXiv:2008.11364" in described("ssfl")["words"]
    assert (described("mixmatch")["name"], described("uda")["name"]) == ("MixMatch", "UDA")
    assert "Berthelot" in described("mixmatch")["words"] and "running means" in described("remixmatch")["words"]
    assert described("no_module:Method")["what"] == ""


def test_every_method_has_a_page_with_or_without_runs(tmp_path: Path) -> None:
    """A page with runs leads to their cell. What a page says is in the snapshots."""
    item, records = of_method()
    build([(item, records)], tmp_path)
    assert {path.stem for path in tmp_path.glob("methods/*.html")} >= METHODS.keys()
    assert f"../{cell_page(item.cells[0])}" in Page(tmp_path / "methods/semifl.html").files()


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
