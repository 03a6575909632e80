"""The queue of runs: its file, which runs begin, the order, resuming, compact copies, and a machine without W&B."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli import queue as cli_queue
from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.papers.items import items
from benchmark.records.copies import read_copy
from benchmark.records.record import run_folder
from benchmark.verdicts.families import begun_under
from sweeps.launcher import Launch, launch
from sweeps.queue import QUEUE, QueueEntry, Unit, read_queue, units_of
from sweeps.queue_claims import unjudged
from sweeps.shelf import Machine, Shelf, write_copy
from sweeps.timetable import Pace, TimeIsUp, Timetable
from tests.conftest import ROOT, record_of
from tests.sweeps.gates import Gated, begun

RESULTS = ROOT / "results"
ENTRY = """
[[entries]]
name = "A test's sentence"
item = "ssfl/tab2"
profile = "demo"
labels = ["FedAvg/small", "Grouping/small"]
seeds = { first = 100, number = 2 }
device = "cpu"
local_steps = 10
core_hours = 0.1
"""
ONE = replace(
    QueueEntry(
        name="one", item="i", profile="demo", labels=("a",), seeds=(0,), device="cpu", local_steps=1, core_hours=1
    ),
)
HERE = Machine(device="cpu", processor="p", torch="2.15")


@pytest.fixture
def written(tmp_path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (path := tmp_path / "queue.toml").write_text(text)
        return path

    return write


def test_the_units_of_an_entry_have_all_its_arms_seed_by_seed(written, tmp_path):
    path = written(ENTRY)
    units = units_of(read_queue(path), tmp_path, path)
    (item,) = items(["ssfl/tab2"], "demo")
    arms = [item.cell(label).experiment for label in ("FedAvg/small", "Grouping/small")]
    for unit, seed in zip(units, (100, 101), strict=True):
        assert list(unit.runs) == [arm.with_seed(seed) for arm in arms]


def test_an_entry_may_name_a_cell_whose_published_number_is_from_a_different_paper(written, tmp_path):
    entry = ENTRY.replace("ssfl/tab2", "semifl/tab3").replace('"FedAvg/small", "Grouping/small"', '"FedMatch/IID"')
    path = written(entry)
    (item,) = items(["semifl/tab3"], "demo")
    assert item.cell("FedMatch/IID").role == "quoted"
    assert units_of(read_queue(path), tmp_path, path)[0].runs == (item.cell("FedMatch/IID").experiment.with_seed(100),)


@pytest.mark.parametrize("path", sorted(QUEUE.parent.glob("queue*.toml")), ids=lambda path: path.stem)
def test_a_committed_queue_names_cells_that_exist(path, tmp_path):
    entries = read_queue(path)
    units = units_of(entries, tmp_path, path)
    assert len(units) == sum(len(entry.seeds) for entry in entries)
    assert all(len(set(unit.runs)) == len(unit.entry.labels) for unit in units)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('"ssfl/tab2"', '"ssfl/tab22"'), "ssfl/tab22"),
        (('"ssfl/tab2"', '"ssfl"'), "ssfl"),
        (('"Grouping/small"', '"Grouping/smal"'), "Grouping/small"),
        (('"demo"', '"laptp"'), "laptp"),
        (("first = 100", "first = 999"), "1000"),
        (("first = 100", "first = -1"), "-1"),
        (("first = 100", "first = 199"), "write one entry for each"),
        (("first = 100, number", "first = 100, nmber"), "seeds"),
        (('device = "cpu"', 'device = "gpu"'), "gpu"),
        (("core_hours", "card_minutes"), "core_hours"),
        (("local_steps = 10", ""), "local_steps"),
        (('"Grouping/small"', '"FedAvg/small"'), "FedAvg/small"),
        (("[[entries]]", "[[entry]]"), "entry"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_queue_is_refused_before_anything_is_trained(change, named, written, tmp_path, fssl):
    path = written(ENTRY.replace(*change))
    code, out, err = fssl("work", "queue", "--minutes", "1", "--file", path, "--results", tmp_path / "results")
    assert (code, out) == (65, "") and named in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["queue"],
        ["queue", "ssfl/tab2", "--minutes", "1"],
        ["ssfl/tab2", "--minutes", "1"],
        ["ssfl/tab2", "--json"],
        ["queue", "--minutes", "1", "--seeds", "16"],
        ["queue", "--minutes", "1", "--no-reference"],
        ["queue", "--minutes", "1", "--launcher", "ray"],
    ],
    ids=" ".join,
)
def test_options_of_the_queue_and_of_items_do_not_mix(words, tmp_path, fssl):
    assert fssl("work", *words, "--results", tmp_path)[0] == 65


@dataclass
class Clocked:
    """Workers on a clock of their own: each run takes its seconds, whatever was expected."""

    size: int
    takes: Callable[[Experiment], float]
    time: float = 0.0
    running: dict[Experiment, float] = field(default_factory=dict)
    started: list[Experiment] = field(default_factory=list)
    done: set[Experiment] = field(default_factory=set)

    def start(self, run: Experiment) -> None:
        self.running[run] = self.time + self.takes(run)
        self.started.append(run)

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        self.time += 0.5
        for run in [run for run, end in self.running.items() if end <= self.time]:
            del self.running[run]
            self.done.add(run)
            yield run, None

    def stop(self) -> None: ...

    def close(self) -> None: ...


def table_of(units: list[Unit], workers: Clocked, seconds: float, planned: Callable[[Experiment], float], **more: Any):
    class FromClock(Shelf):
        def finished(self, run):
            return record_like if run in workers.done else None

        def here(self, run):
            return None

    record_like: Any = type("Record", (), {"manifest": {"hardware": {"processor": "p"}, "packages": {"torch": "2.15"}}})
    return Timetable(
        units=units,
        shelf=FromClock(Path("none"), "cpu"),
        results=Path("none"),
        side_by_side=workers.size,
        until=seconds,
        pace=Pace(planned),
        now=lambda: workers.time,
        **more,
    )


def trained(table: Timetable, workers: Clocked) -> list[Experiment]:
    runs = table.prepare(HERE)
    with contextlib.suppress(TimeIsUp):
        launch(workers, runs, Path("none"), watch=table.watch, fits=table.fits)
    table.close()
    return workers.started


def seeds_of(runs: list[Experiment]) -> list[int]:
    return [run.seed for run in runs]


@pytest.fixture
def units(tiny) -> list[Unit]:
    """Return five seeds of two arms."""
    other = replace(tiny, federation=replace(tiny.federation, T=3))
    return [Unit(entry=ONE, seed=n, runs=(tiny.with_seed(n), other.with_seed(n))) for n in range(5)]


def test_a_unit_that_does_not_fit_is_not_begun(units):
    """Two workers, ten seconds a run, 35 seconds: three units fit; the fourth would need until 40."""
    workers = Clocked(2, lambda run: 10)
    table = table_of(units, workers, 35, lambda run: 10)
    assert seeds_of(trained(table, workers)) == [0, 0, 1, 1, 2, 2]
    assert table.complete == units[:3] and not table.stopped
    assert table.too_long.keys() == set(units[3:])


def test_no_arm_of_a_unit_begins_without_time_for_the_others(units):
    """One worker and 35 seconds have room for three runs, but not for the second arm of the second seed."""
    workers = Clocked(1, lambda run: 10)
    table = table_of(units, workers, 35, lambda run: 10)
    assert seeds_of(trained(table, workers)) == [0, 0]


def test_the_runs_that_have_ended_say_how_long_the_others_take(units):
    """Runs take three times as long as planned: after the first unit no second one is begun; and the other way."""
    slow = Clocked(2, lambda run: 30)
    table = table_of(units, slow, 55, lambda run: 10)
    assert seeds_of(trained(table, slow)) == [0, 0]
    fast = Clocked(2, lambda run: 5)
    table = table_of(units, fast, 30, lambda run: 14)
    assert len(trained(table, fast)) == 2 * 5


def test_the_last_rounds_of_a_run_do_not_say_how_long_the_others_take(units):
    """A run that resumes with 1 % of its rounds left takes 5 seconds to load, fifty times as long as those rounds."""
    nearly_done = units[0].runs[0]
    workers = Clocked(2, lambda run: 5 if run == nearly_done else 10)
    table = table_of(units, workers, 100, lambda run: 10, share_left=lambda run: 0.01 if run == nearly_done else 1.0)
    assert len(trained(table, workers)) == 2 * 5


def test_a_smaller_unit_is_begun_if_the_next_one_does_not_fit(units, tiny):
    small = Unit(entry=ONE, seed=9, runs=(tiny.with_seed(9),))
    workers = Clocked(1, lambda run: 10)
    table = table_of([*units, small], workers, 35, lambda run: 10)
    assert seeds_of(trained(table, workers)) == [0, 0, 9]


def test_time_that_is_up_stops_what_runs(units):
    """Runs take for ever: the launch ends at its time, and nothing is complete."""
    workers = Clocked(2, lambda run: 1e9)
    table = table_of(units, workers, 20, lambda run: 10)
    assert seeds_of(trained(table, workers)) == [0, 0]
    assert workers.time == pytest.approx(20, abs=1) and set(table.stopped) == set(units[0].runs)
    assert not table.complete


def test_units_that_share_a_run_train_it_once(units):
    again = [replace(unit, entry=replace(ONE, name="two")) for unit in units]
    complete: list[Unit] = []
    workers = Clocked(2, lambda run: 10)
    table = table_of([*units, *again], workers, 1000, lambda run: 10, when_complete=complete.append)
    assert seeds_of(trained(table, workers)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(map(str, complete)) == sorted(map(str, [*units, *again]))


@pytest.mark.parametrize(("version", "refused"), [(7, 1), (6, 0)])
def test_a_unit_is_not_split_between_two_machines(version, refused, units):
    """An arm that another processor or torch has trained stays alone, if the rule of its time asks for one machine."""
    for there in (replace(HERE, processor="q"), replace(HERE, torch="2.11")):
        workers = Clocked(2, lambda run: 10, done={units[0].runs[0]})
        table = table_of(units[:2], workers, 1000, lambda run: 10)
        record: Any = table.shelf.finished(units[0].runs[0])
        record.manifest["rule"] = {"version": version}
        waiting = table.prepare(there)
        assert set(table.refused) == set(units[:refused])
        assert set(seeds_of(waiting)) == set(range(refused, 2))


@pytest.fixture
def called(written, tmp_path, fssl, monkeypatch) -> Callable[..., dict[str, Any]]:
    """Call the queue with given units in place of the units in its file; return its output."""
    path = written(ENTRY)

    def call(units: list[Unit], *words: Any) -> dict[str, Any]:
        (entry,) = read_queue(path)
        of_file = [replace(unit, entry=entry) for unit in units]
        with monkeypatch.context() as patch:
            patch.setattr("sweeps.queue.read_queue", lambda path: [entry])
            patch.setattr("sweeps.queue.units_of", lambda entries, results, path: of_file)
            code, out, err = fssl("work", "queue", "--jobs", "2", "--devices", "cpu", "--json", *words)
        assert code == 0, err
        told: dict[str, Any] = json.loads(out)
        return told

    return call


def states(told: dict[str, Any]) -> list[str]:
    return [unit["state"] for unit in told["entries"][0]["units"]]


def test_the_queue_trains_and_copies_each_run_once(units, called, tmp_path):
    """Real runs: no time for any, then all; the second machine has the copies, and trains nothing."""
    results, copies = tmp_path / "results", tmp_path / "copies"
    where = ("--results", results, "--copies", copies)
    assert states(called(units[:2], *where, "--minutes", "0.001")) == ["not begun"] * 2
    assert not list(copies.glob("*/*"))
    told = called(units[:2], *where, "--minutes", "9")
    assert states(told) == ["finished"] * 2
    assert (told["trained"]["runs"], len(told["copies"])) == (4, 4)
    for run in (run for unit in units[:2] for run in unit.runs):
        record = record_of(run_folder(results, run))
        assert read_copy(copies / run.cell_key / f"seed={run.seed}.json.gz").result == record.result
    told = called(units[:2], "--results", tmp_path / "others", "--copies", copies, "--minutes", "9")
    assert states(told) == ["done before"] * 2 and told["trained"]["runs"] == 0


def test_time_that_is_up_saves_the_runs_and_a_later_call_resumes_them(units, called, tmp_path, monkeypatch):
    """The second arm stands before its second round when the time ends: saved, without copies, and exit code 0."""
    free, other = units[0].runs
    gated = replace(other, method=Gated(folder=str(tmp_path), rounds="2"))
    unit = Unit(entry=ONE, seed=0, runs=(free, gated))
    folder = run_folder(tmp_path, gated)
    watch = Timetable.watch

    def ends_early(self: Timetable, state: Launch) -> None:
        if begun(folder) and free not in state.at_work:
            self.until = self.now()
        watch(self, state)

    monkeypatch.setattr(Timetable, "watch", ends_early)
    monkeypatch.setattr(cli_queue, "_cost", lambda cell, device, results: (100, 1.0))  # to count rounds is to play them
    monkeypatch.setattr(cli_queue, "watching", lambda *_: lambda state: None)
    told = called([unit], "--results", tmp_path, "--minutes", "9")
    assert states(told) == ["stopped"] and told["time_is_up"] and told["stopped"] == 1
    assert record_of(folder).status == "unfinished" and not list(tmp_path.glob("reference/*/*"))
    (tmp_path / "GATE.2").touch()
    monkeypatch.setattr(Timetable, "watch", watch)
    told = called([unit], "--results", tmp_path, "--minutes", "9")
    assert states(told) == ["finished"] and told["trained"]["runs"] == 1
    assert [attempt["from_round"] for attempt in record_of(folder).manifest["attempts"]] == [0, 1]
    assert len(list(tmp_path.glob("reference/*/seed=0.json.gz"))) == 2


def test_a_copy_of_another_kind_of_device_lies_beside_the_first(tmp_path, tiny):
    from benchmark.records.run import run

    run(tiny, tmp_path)
    record = record_of(run_folder(tmp_path, tiny))
    first = write_copy(tmp_path / "copies", record)
    assert first is not None and write_copy(tmp_path / "copies", record) is None
    content = first.read_bytes()
    engine = {**record.manifest["engine"], "device": "NVIDIA H200"}
    second = replace(record, manifest={**record.manifest, "engine": engine})
    path = write_copy(tmp_path / "copies", second)
    assert path == first.with_name("seed=0@nvidia-h200.json.gz") and first.read_bytes() == content
    elsewhere = write_copy(tmp_path / "slot", second, [tmp_path / "copies"])  # the name that it has in the checkout
    assert elsewhere is not None and elsewhere.name == path.name


def test_the_queue_of_the_suite_is_well_formed_and_its_steps_are_the_plans(tmp_path):
    from sweeps.cost import count

    entries = read_queue(QUEUE)
    for entry in entries:
        units = units_of([entry], tmp_path, QUEUE)
        steps = sum(count(run.with_seed(0)).whole.local_steps for unit in units for run in unit.runs)
        assert entry.local_steps == pytest.approx(steps, rel=0.01), entry.name


def test_the_seeds_of_the_suite_s_queue_judge_the_claims_about_its_arms():
    """A claim that was registered after its cells' first runs is judged on a later seed block."""
    assert not any(unjudged(read_queue(QUEUE), RESULTS).values())


def test_seeds_that_do_not_judge_a_claim_are_named_with_those_that_do(written):
    """RSCFed's claim about Figure 2 was registered again after seeds 300 to 315 had run."""
    text = ENTRY.replace("ssfl/tab2", "rscfed/fig2").replace('"demo"', '"laptop"').replace("first = 100", "first = 300")
    path = written(text.replace('"FedAvg/small", "Grouping/small"', '"RSCFed", "Fed-Consist (weight adju.)"'))
    (sentence,) = unjudged(read_queue(path), RESULTS)["A test's sentence"]
    assert "Better than Fed-Consist with adjusted weights: the whole sentence" in sentence
    assert "seeds 300 to 301" in sentence and "first = 400" in sentence

    one_arm = written(text.replace('"FedAvg/small", "Grouping/small"', '"RSCFed"'))
    assert unjudged(read_queue(one_arm), RESULTS) == {"A test's sentence": []}
    pilots = written(text.replace("first = 300", "first = 0").replace('"FedAvg/small", "Grouping/small"', '"RSCFed"'))
    assert unjudged(read_queue(pilots), RESULTS) == {"A test's sentence": []}


def test_claims_of_a_custom_table_are_declared_before_its_runs(written, tmp_path, fssl, monkeypatch):
    """Check what `fssl reproduce` also does: a run that begins before its claims are declared can never judge them."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(OWN)
    entry = ENTRY.replace("ssfl/tab2", "./mine.toml").replace("cpu", "cuda").replace("core_hours", "card_minutes")
    path = written(entry.replace('"FedAvg/small", "Grouping/small"', '"FedSwitch", "SemiFL"'))
    words = ["work", "queue", "--file", path, "--devices", "cpu", "--minutes", "1", "--results", "r", "--json"]
    code, out, err = fssl(*map(str, words))
    assert code == 0 and json.loads(out)["trained"]["runs"] == 0, err
    (item,) = items(["./mine.toml"], "demo")
    claims = begun_under(item.cell("FedSwitch").experiment.with_seed(100), Path("r"))["claims"]
    assert any(item.hash_of(item.claims[0]) in family["others"] for family in claims.values()), claims


OWN = """
title  = "Mine on digits"
seeds  = 1
fields = { "federation.rounds" = 2, "federation.T" = 2, "method.warm_start_rounds" = 0 }
rows   = { FedSwitch = {}, SemiFL = { from = "arena/digits:SemiFL/untuned" } }

[[claims]]
name     = "FedSwitch is better"
contrast = { "FedSwitch" = 1, "SemiFL" = -1 }
form     = "improves"
"""

BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("wandb", "optuna", "ray", "psycopg"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def test_the_queue_needs_neither_wandb_nor_optuna(written, tmp_path):
    """As on a lent GPU machine: the checkout on the path, nothing installed, and the worker processes as bare."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BLOCKED)
    path = written(
        ENTRY.replace("number = 2", "number = 1")
        .replace('"ssfl/tab2"', '"arena/digits"')
        .replace('labels = ["FedAvg/small", "Grouping/small"]', 'labels = ["Server only/untuned"]')
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'bare'}{os.pathsep}{ROOT}"}
    words = ["work", "queue", "--file", path, "--minutes", "5", "--results", tmp_path / "results", "--json"]
    command = [sys.executable, "-m", "benchmark.cli.main", *map(str, words)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trained"]["runs"] == 1
    check = subprocess.run([sys.executable, "-c", "import wandb"], env=env, cwd=tmp_path, capture_output=True)
    assert check.returncode != 0
