"""Many processes at the same records: each run once, no torn reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.records.files import read_json
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import ROOT
from tests.records.crowd import CELLS, TINY, WORKERS, cell


@pytest.fixture(scope="module")
def crowd(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("crowd")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.records.crowd", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def untimed(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def test_every_cell_is_trained_once_however_many_workers_ask_for_it(crowd):
    """Whoever came second found the lock, or the result; or got the lock just then, and found all rounds done."""
    folder, found = crowd
    assert found["race"]["codes"] == [0] * WORKERS
    for number in range(CELLS):
        place = run_folder(folder / "race", cell(number))
        first, *later = [attempt["from_round"] for attempt in read_json(place / "manifest.json")["attempts"]]
        assert first == 0 and set(later) <= {3}
        assert read_json(place / "result.json")["status"] == "done" and len(untimed(place)) == 3
        assert not (place / "attempts").exists()


def test_a_report_built_while_runs_write_reads_nothing_torn(crowd):
    """Built from the first run to the last without an error; the last build is what one build alone gives."""
    folder, found = crowd
    counts = found["race"]["done_at_each_build"]
    assert counts == sorted(counts) and counts[0] < CELLS  # it did begin before all was done
    pages = {path.relative_to(folder / "site") for path in (folder / "site").rglob("*") if path.is_file()}
    assert pages == {path.relative_to(folder / "once") for path in (folder / "once").rglob("*") if path.is_file()}
    assert all((folder / "site" / page).read_bytes() == (folder / "once" / page).read_bytes() for page in pages)


@pytest.mark.parametrize(("how", "first"), [("woken", 0), ("killed", -9)])
def test_a_stopped_worker_keeps_its_run_until_it_is_gone_whatever_the_clock_says(crowd, tmp_path, how, first):
    """No takeover while the process lives, however old its files look; at once when it is killed; the same numbers."""
    folder, found = crowd
    assert found[how] == {"tries": [75, 75, 75], "first": first, "second": 0}
    run(TINY, tmp_path)
    place = run_folder(folder / how, TINY)
    assert untimed(place) == untimed(run_folder(tmp_path, TINY))
    assert len(read_json(place / "manifest.json")["attempts"]) == (1 if how == "woken" else 2)
