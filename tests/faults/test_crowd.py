"""Many processes at the same records (faults 10, 12, 13, 37) and many records (46): each run once, no torn reads."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.records.files import read_json
from benchmark.records.record import read_records, run_folder
from benchmark.records.run import run
from tests.conftest import ROOT
from tests.faults.crowd import CELLS, TINY, WORKERS, cell


@pytest.fixture(scope="module")
def crowd(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("crowd")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.crowd", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def untimed(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


@pytest.mark.fault(10, counts="results that processes raced for", each=3)
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


@pytest.mark.fault(37)
def test_a_report_built_while_runs_write_reads_nothing_torn(crowd):
    """Built from the first run to the last without an error; the last build is what one build alone gives."""
    folder, found = crowd
    counts = found["race"]["done_at_each_build"]
    assert counts == sorted(counts) and counts[0] < CELLS  # it did begin before all was done
    pages = {path.relative_to(folder / "site") for path in (folder / "site").rglob("*") if path.is_file()}
    assert pages == {path.relative_to(folder / "once") for path in (folder / "once").rglob("*") if path.is_file()}
    assert all((folder / "site" / page).read_bytes() == (folder / "once" / page).read_bytes() for page in pages)


@pytest.mark.fault(12, 13)
@pytest.mark.parametrize(("how", "first"), [("woken", 0), ("killed", -9)])
def test_a_stopped_worker_keeps_its_run_until_it_is_gone_whatever_the_clock_says(crowd, tmp_path, how, first):
    """No takeover while the process lives, however old its files look; at once when it is killed; the same numbers."""
    folder, found = crowd
    assert found[how] == {"tries": [75, 75, 75], "first": first, "second": 0}
    run(TINY, tmp_path)
    place = run_folder(folder / how, TINY)
    assert untimed(place) == untimed(run_folder(tmp_path, TINY))
    assert len(read_json(place / "manifest.json")["attempts"]) == (1 if how == "woken" else 2)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """For 50,000 files: in memory where there is room. They are in the cache either way, and to remove them from a disk
    can take minutes, which a later session of pytest would wait for."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    with tempfile.TemporaryDirectory(dir=memory if roomy else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.fault(46)
@pytest.mark.slow
def test_ten_thousand_records_are_indexed_in_ten_seconds(tmp_path, large):
    """100 cells of 100 seeds, 20 rounds each, as folders; also the memory that they take."""
    run(TINY, tmp_path / "one")
    source = run_folder(tmp_path / "one", TINY)
    files = {name: (source / name).read_bytes() for name in ("manifest.json", "result.json")}
    experiment = read_json(source / "experiment.json")
    line = (source / "rounds.jsonl").read_text().splitlines()[0]
    rounds = "".join(line.replace('"round": 1', f'"round": {t}') + "\n" for t in range(1, 21))
    keys = [f"{number:016x}" for number in range(100)]
    for key in keys:
        for seed in range(100):
            folder = large / "runs" / key / f"seed={seed}"
            folder.mkdir(parents=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            (folder / "experiment.json").write_text(json.dumps({**experiment, "seed": seed}))
            (folder / "rounds.jsonl").write_text(rounds)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    records = read_records(large, keys, with_reference=True)
    took = time.process_time() - started  # whatever else the machine does
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6  # GB: ru_maxrss is in kB
    assert sum(map(len, records.values())) == 10_000
    assert took < 10.0 and grown < 2.0, f"{took:.1f} s, {grown:.2f} GB"
