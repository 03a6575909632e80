"""The numbers of the golden traces, and pickling and serialisation of the methods in them."""

import json
import pickle

import pytest

from benchmark.experiment import from_json, to_json
from benchmark.methods.registry import method_name
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


def test_no_trace_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TRACES)
