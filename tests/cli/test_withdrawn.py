"""What is withdrawn answers with its successor, and a run that is stopped in time shows what there is and goes on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmark.cli.main import VERBS, WITHDRAWN, main, parser
from benchmark.errors import Stopped
from tests.conftest import ROOT


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_a_withdrawn_name_ends_with_65_and_names_its_successor(typed, capsys):
    """Alone, with a value, and behind other words: one line, before anything else is looked at."""
    verb, *option = typed.split()
    lines = [[verb, *option], [verb, "x", *option, "2h"], [verb, *(f"{name}=2h" for name in option)]]
    for words in lines:
        assert main(words) == 65
        assert capsys.readouterr().err == f"fssl: `fssl {typed}` is withdrawn; {WITHDRAWN[typed]}\n"


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_what_is_withdrawn_is_there_no_more(typed):
    """And the command that its option belonged to is."""
    verb, *option = typed.split()
    assert (verb in VERBS) == bool(option)
    assert not option or option[0] not in parser(verb).format_help()


def test_reproduce_that_is_stopped_shows_what_there_is_and_goes_on(tmp_path):
    """As `timeout -s INT` does it: SIGINT to the whole group, here once a run is done. The table shows that run, the
    exit code is 76, no page is built, and the same command trains the rest alone."""
    words = ["reproduce", "ssfl/tab2", "--profile", "demo", "--main", "--pilots", "2", "--jobs", "1"]
    command = [sys.executable, "-m", "benchmark.cli.main", *words, "--results", str(tmp_path), "--site", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(tmp_path.glob("runs/*/*/result.json")):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == Stopped.exit_code and "the same command goes on" in err, err
    assert out.startswith("ssfl/tab2") and "report: not built" in out and not list(tmp_path.glob("**/*.html"))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/result.json")}
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{len(done)} done" in again.stderr and "report: not built" not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in done} == done
