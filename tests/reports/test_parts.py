"""A site built by several processes is the same site, and what goes wrong in one of them is not lost."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import CannotWrite
from reports.cache import Built
from reports.parts import Part, build_parts, shares
from reports.site import build
from tests.conftest import ROOT, alive
from tests.reports.many import items, read, write, write_run
from tests.reports.test_incremental import contents


def nothing() -> None:
    pass


def test_the_site_is_the_same_however_many_processes_build_it(tmp_path: Path) -> None:
    """Two items of 80 and 5 cells and the page that explains them; then a run more, and a file that is left over."""
    made, results = items(425, rounds=3), tmp_path / "results"
    assert write(made, results) == 425 and len(made) == 2
    last = made[1].cells[-1]
    (results / "runs" / last.cell_key / "seed=4").rename(tmp_path / "aside")
    for number in (1, 2, 3):
        build(read(made, results), tmp_path / f"by {number}", processes=number)
    assert contents(tmp_path / "by 1") == contents(tmp_path / "by 2") == contents(tmp_path / "by 3")
    assert {"ssfl/explained/index.html", ".built.json"} <= set(contents(tmp_path / "by 2"))
    write_run(last, 4, results / "runs" / last.cell_key / "seed=4")
    build(read(made, results), tmp_path / "by 2", processes=2)
    build(read(made, results), tmp_path / "anew", processes=1)
    assert contents(tmp_path / "by 2") == contents(tmp_path / "anew") != contents(tmp_path / "by 1")


def test_what_a_process_built_counts_as_built(tmp_path: Path) -> None:
    built = Built(tmp_path)

    def page(name: str) -> Callable[[], None]:
        def make() -> None:
            assert not built.fresh(Path(name), "inputs")
            built.put(Path(name), str(os.getpid()).encode(), Path(name))
            built.notes[name] = f"note of {name}"

        return make

    build_parts([Part(runs=1, build=page(name)) for name in ("a", "b", "c")], built, 3)
    assert built.made == 3 and built.notes == {name: f"note of {name}" for name in "abc"}
    assert all(built.fresh(Path(name), "inputs") for name in "abc")
    pids = {(tmp_path / name).read_text() for name in "abc"}
    assert len(pids) == 3 and str(os.getpid()) not in pids


def test_what_a_part_raises_is_raised_with_where_it_did(tmp_path: Path) -> None:
    def full() -> None:
        raise CannotWrite("site/index.html: cannot be written")

    with pytest.raises(CannotWrite, match="cannot be written") as caught:
        build_parts([Part(runs=1, build=nothing), Part(runs=2, build=full)], Built(tmp_path), 2)
    assert "in full" in caught.value.__notes__[0]


def test_a_killed_process_is_an_error_and_the_others_end(tmp_path: Path) -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def endless() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        threading.Event().wait(600)

    parts = [Part(runs=2, build=killed), Part(runs=1, build=endless)]
    with pytest.raises(RuntimeError, match="ended with -9"):
        build_parts(parts, Built(tmp_path), 2)
    assert not (tmp_path / "pid").exists() or not alive(int((tmp_path / "pid").read_text()))


@given(runs=st.lists(st.integers(0, 500), min_size=1, max_size=30), number=st.integers(1, 8))
def test_every_part_has_one_process_and_none_has_much_more_than_another(runs: list[int], number: int) -> None:
    """The largest first to the least loaded: two loads differ by the largest part at most."""
    parts = [Part(runs=one, build=nothing) for one in runs]
    found = shares(parts, number)
    assert sorted(id(part) for share in found for part in share) == sorted(map(id, parts))
    loads = [sum(part.runs for part in share) for share in found]
    assert len(found) == min(number, len(parts)) and max(loads) - min(loads) <= max(runs)


def test_few_runs_or_other_threads_are_no_case_for_a_fork() -> None:
    """In a process of its own: what runs these tests may have threads."""
    code = """if True:
        import os, threading
        from reports.parts import LEAST_RUNS, processes_for
        assert processes_for(LEAST_RUNS - 1) == 1
        assert processes_for(LEAST_RUNS) == len(os.sched_getaffinity(0))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        assert processes_for(LEAST_RUNS) == 1
    """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
