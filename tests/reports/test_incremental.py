"""What is built again, what of a damaged or half-empty folder is shown, single items as files, and the local server."""

import csv
import http.client
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.errors import CannotWrite
from benchmark.papers.item import Item
from benchmark.records.survey import Survey
from benchmark.verdicts.results import Records
from reports.alone import write_alone
from reports.cache import Built
from reports.orphans import orphans
from reports.serve import HOST, Live, server
from reports.site import build, item_page
from tests.conftest import ROOT
from tests.reports.fakes import make_record
from tests.reports.many import items, read, write, write_run
from tests.reports.test_site import lean, words


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def many(tmp_path: Path) -> tuple[list[Item], Path]:
    """One item of five cells, five seeds and ten rounds each, on disk."""
    made = items(25, rounds=10)
    assert write(made, tmp_path / "results") == 25
    return made, tmp_path / "results"


def test_one_new_run_changes_only_its_own_pages(many: tuple[list[Item], Path], tmp_path: Path) -> None:
    """Its own page, its cell's and its item's, with what lies beside those, and the pages that sum up everything. The
    result is that of a build from nothing."""
    made, results = many
    cell = made[0].cells[0]
    site = tmp_path / "site"
    build(read(made, results), site)
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*") if path.is_file()}
    write_run(replace(cell, experiment=cell.experiment), 4, results / "runs" / cell.cell_key / "seed=4")
    manifest = results / "runs" / cell.cell_key / "seed=4" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("04:57", "05:57"))
    build(read(made, results), site)
    changed = {str(p.relative_to(site)) for p, then in before.items() if p.stat().st_mtime_ns != then}
    assert changed == {".built.json", f"runs/{cell.cell_key}/seed-4.html"}  # what the others show is as it was
    build(read(made, results), tmp_path / "anew")
    assert contents(site) == contents(tmp_path / "anew")


def test_equal_inputs_need_no_page(many: tuple[list[Item], Path], tmp_path: Path) -> None:
    made, results = many
    build(read(made, results), tmp_path)
    built = Built(tmp_path)
    page = item_page(made[0])
    known = dict(built.known)
    assert page.as_posix() in known and len([p for p in known if p.startswith("runs/")]) == 25
    assert not built.fresh(page, "other inputs") and built.made == 1
    (tmp_path / ".built.json").write_text("{")
    assert Built(tmp_path).known == {}


def test_a_page_that_was_deleted_is_built_again(many: tuple[list[Item], Path], tmp_path: Path) -> None:
    made, results = many
    build(read(made, results), tmp_path)
    page = tmp_path / item_page(made[0])
    text = page.read_bytes()
    page.unlink()
    build(read(made, results), tmp_path)
    assert page.read_bytes() == text


def test_an_edited_run_is_marked_wherever_it_counts(many: tuple[list[Item], Path], tmp_path: Path) -> None:
    made, results = many
    cell = made[0].cells[0]
    path = results / "runs" / cell.cell_key / "seed=2" / "result.json"
    result = json.loads(path.read_text())
    result["last"]["test/accuracy"] = 0.99
    path.write_text(json.dumps(result))
    build(read(made, results), tmp_path / "site")
    folder = tmp_path / "site" / item_page(made[0]).parent
    assert "1 of 25 runs: edited after it was written" in words(folder / "index.html")
    (page,) = folder.glob("cell-fedavg-r-0-*.html")
    assert "seed 2 edited after it was written" in words(page)
    assert "edited after it was written" in words(tmp_path / "site" / "runs" / cell.cell_key / "seed-2.html")


def test_runs_of_another_profile_are_marked(tmp_path: Path) -> None:
    """The records say demo, the item laptop."""
    item, records = lean()
    other = {
        key: {seed: replace(run, experiment={**run.experiment, "profile": "demo"}) for seed, run in runs.items()}
        for key, runs in records.items()
    }
    build([(item, other)], tmp_path)
    assert "recorded under profile demo" in words(tmp_path / item_page(item))


def test_runs_of_no_item_have_pages(many: tuple[list[Item], Path], tmp_path: Path) -> None:
    made, results = many
    keys = [cell.cell_key for cell in made[0].cells]
    troubles: list[str] = []
    found = orphans(Survey().read(results, keys, with_reference=False), troubles)
    assert [(item.name, item.profile, len(item.cells)) for item, _ in found] == [("other/runs", "laptop", 5)]
    cell = made[0].cells[0]
    bad = {"f" * 16: {0: make_record(cell, 0)}, "e" * 16: {0: replace(make_record(cell, 0), experiment={"x": 1})}}
    assert orphans(bad, troubles) == [] and len(troubles) == 2
    build(found, tmp_path, troubles=troubles)
    text = words(tmp_path / "index.html")
    assert "Could not be read" in text and "Runs that belong to no table or figure" in text and "f" * 16 in text


def test_report_of_a_folder_with_damaged_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unreadable record of a real cell and one of an unknown cell: the site is made, and its front page says so."""
    from benchmark.papers.catalogue import items as catalogue

    (item,) = catalogue(["ssfl/tab2"], "demo")
    write_run(item.cells[0], 0, tmp_path / "runs" / item.cells[0].cell_key / "seed=0")
    write_run(item.cells[0], 1, tmp_path / "runs" / item.cells[0].cell_key / "seed=1")
    (tmp_path / "runs" / item.cells[0].cell_key / "seed=1" / "result.json").write_text("{")
    write_run(item.cells[1], 0, tmp_path / "runs" / ("0" * 16) / "seed=0")
    assert main(["report", "--results", str(tmp_path), "--site", str(tmp_path / "site")]) == 0
    text = words(tmp_path / "site" / "index.html")
    assert f"{item.cells[0].cell_key}/seed=1" in text and "0" * 16 in text
    assert "n=1/3" in words(tmp_path / "site" / "ssfl/tab2/demo/index.html")
    capsys.readouterr()
    out = tmp_path / "alone"
    arguments = ["--results", str(tmp_path), "--out", str(out)]
    assert main(["report", "ssfl/tab2", "--profile", "demo", *arguments]) == 0
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == sorted(str(path) for path in out.iterdir()) and not (out / "index.html").exists()
    assert main(["report", "ssfl/nothing", *arguments]) == 65
    assert main(["report", "ssfl/tab1", "--profile", "demo", *arguments]) == 65
    assert "no record of ssfl/tab1 under demo" in capsys.readouterr().err


def test_files_of_one_item(laptop_table: tuple[Item, Records], tmp_path: Path) -> None:
    """Table and curves in three forms each; the numbers behind the curve end with the records' own."""
    item, records = laptop_table
    names = {path.name for path in write_alone(item, records, tmp_path)}
    start = "ssfl-tab2-laptop"
    assert {f"{start}-table.{end}" for end in ("md", "tex", "csv")} <= names
    assert {f"{start}-curves.{end}" for end in ("svg", "pdf", "csv")} <= names
    with open(tmp_path / f"{start}-curves.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    cell = item.cells[0]
    mine = [r for r in rows if r["label"] == cell.label and r["metric"] == "test/accuracy" and r["what"] == "seed 1"]
    assert float(mine[-1]["value"]) == records[cell.cell_key][1].rounds[-1]["test/accuracy"]
    assert (tmp_path / f"{start}-curves.pdf").read_bytes().startswith(b"%PDF-1.4")


def test_server_answers_this_machine_only(tmp_path: Path) -> None:
    """Pages are built when looked at, once in a while; folders are not listed; a foreign host name is refused."""
    (tmp_path / "folder").mkdir()
    builds: list[int] = []

    def make() -> Path:
        builds.append(1)
        (tmp_path / "index.html").write_text("<p>here</p>")
        return tmp_path / "index.html"

    with server(make, tmp_path, 0) as running:
        assert running.server_address[0] == HOST == "127.0.0.1"
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            port = int(running.server_address[1])
            assert _get(port, "/index.html") == (200, b"<p>here</p>") == _get(port, "/")
            assert builds == [1]
            assert _get(port, "/folder/")[0] == 404 and _get(port, "/../../etc/passwd")[0] == 404
            assert _get(port, "/index.html", host="evil.example")[0] == 403
            with pytest.raises(CannotWrite, match=f"port {port}"):
                server(make, tmp_path, port)
        finally:
            running.shutdown()
            thread.join()


def _get(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    connection.request("GET", path, headers={"Host": host or f"{HOST}:{port}"})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_live_builds_again_when_the_last_build_is_old() -> None:
    builds: list[int] = []

    def make() -> Path:
        builds.append(1)
        return Path()

    patient, eager = Live(make, every=1000), Live(make, every=0)
    patient.refresh()
    patient.refresh()
    assert len(builds) == 1
    eager.refresh()
    eager.refresh()
    assert len(builds) == 3


def test_committed_records_make_the_published_site(tmp_path: Path) -> None:
    """From a clone, without training: the page's mean of a cell is that of its rows in results/summary.csv."""
    results = ROOT / "results"
    if not (results / "reference").is_dir():
        pytest.skip("no committed records in this installation")
    arguments = ["--results", str(results), "--site", str(tmp_path)]
    assert main(["report", "ssfl/tab2", "--profile", "laptop", *arguments]) == 0
    with open(results / "summary.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["item"], row["label"]) == ("ssfl/tab2", "FedAvg/full")]
    values = [float(row["value"]) for row in rows if row["metric"] == "test/accuracy" and row["profile"] == "laptop"]
    assert len(values) == 5
    text = words(tmp_path / "ssfl/tab2/laptop/index.html")
    assert f"{100 * sum(values) / 5:.2f} \u00b1" in text and "70/70 runs" in text
