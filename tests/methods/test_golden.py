"""The numbers of the golden traces, and pickling and serialisation of the methods in them."""

import json
import pickle
import subprocess
import sys

import pytest

from benchmark.experiment import from_json, to_json
from benchmark.methods.registry import method_name
from tests.conftest import ROOT
from tests.federated.helpers import module_of
from tests.methods.golden import FOLDER, TRACES, trace
from tests.methods.watch import Watch


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_has_not_moved(name):
    """Compare with the trace, with a tolerance for another order of additions on a different processor.

    All local work must equal its pickled copy, since it is sent to other processes, and all settings must be unchanged
    after writing and reading.
    """
    assert from_json(json.loads(json.dumps(to_json(TRACES[name])))) == TRACES[name]
    assert to_json(TRACES[name])["method"]["kind"] == method_name(TRACES[name].method)
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    module = module_of(TRACES[name])
    watch = Watch(module)
    for mine, theirs in zip(trace(TRACES[name], module), golden, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[key] == pytest.approx(theirs[key], rel=2e-4, abs=1e-7) for key in mine)
    updates = {job.update for seen in watch.seen.values() for job, _ in seen}
    assert updates and pickle.loads(pickle.dumps(updates)) == updates


@pytest.mark.parametrize("name", TRACES)
def test_the_first_round_is_that_of_every_torch_release(name):
    """One round in float32 is within 1e-5 for all releases of the range; later rounds may flip labels."""
    golden = json.loads((FOLDER / f"{name}.json").read_text())[:1]
    (mine,) = trace(TRACES[name], rounds=[1])
    assert all(mine[key] == pytest.approx(value, rel=1e-5, abs=1e-5) for key, value in golden[0].items())


def test_in_float64_every_torch_release_gives_the_same_numbers():
    """Two rounds are within 1e-9: what differs between releases is rounding, and not what is computed."""
    command = [sys.executable, "-m", "tests.methods.golden", "float64"]
    found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    golden = json.loads(FOLDER.with_name("golden64.json").read_text())
    assert found.keys() == golden.keys() == TRACES.keys()
    for name, rounds in golden.items():
        for mine, theirs in zip(found[name], rounds, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(mine[key] == pytest.approx(value, rel=1e-9, abs=1e-9) for key, value in theirs.items()), name


def test_no_trace_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TRACES)
