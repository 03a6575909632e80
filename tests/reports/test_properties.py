"""Tables of properties: what the summaries of runs say, and nothing that they do not."""

from dataclasses import replace
from pathlib import Path

from benchmark.methods.semifl import SemiFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from reports.properties import EXCHANGED, LEARNED, properties_of
from tests.conftest import record_of, tiny_experiment


def test_the_published_row_of_semifl_comes_from_its_run(tmp_path: Path) -> None:
    """SemiFL Table 2: pseudo-labels, consistency, "Strong + Mixup", "Alternate", "sBN"; from a run of three rounds."""
    tiny = tiny_experiment()
    semifl = replace(tiny, method=SemiFL(threshold=0.0), model=replace(tiny.model, norm="sbn"))
    rows = []
    for experiment in (tiny, semifl):
        run(experiment, tmp_path)
        rows.append(properties_of([record_of(run_folder(tmp_path, experiment))]))
    assert [[row[name].text for name in LEARNED] for row in rows] == [
        ["yes", "yes", "Strong", "Parallel", "GN"],
        ["yes", "yes", "Strong + Mixup", "Alternate", "sBN"],
    ]
    assert [row["Statelessness"].text for row in rows] == ["yes", "yes"] and set(rows[0]) == {*EXCHANGED, *LEARNED}
    assert rows[1]["Privacy"].below == ("clients also send count, statistics",)
