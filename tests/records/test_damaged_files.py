"""Damaged bytes of everything that reads a file: a value or an error of ours, whatever it is.

EXAMPLES in the environment is how many of each file; then they are other ones at every run, or by --hypothesis-seed.
Values that are odd: see `test_bad_records`.
"""

import contextlib
import gzip
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.cli.run import resolve
from benchmark.errors import FsslError, Stopped
from benchmark.experiment import to_json
from benchmark.records.copies import copied, read_copy
from benchmark.records.record import FILES, read_run, run_folder, run_name
from benchmark.records.run import run
from benchmark.records.state import NAME, load
from benchmark.records.verify import record_faults
from tests.conftest import record_of, tiny_experiment
from tests.records.test_run import Interrupt

TINY = tiny_experiment()
CONFIG, COPY = json.dumps(to_json(TINY)).encode(), "seed=0.json.gz"
WORDS = [word.encode() for word in ("null", "NaN", "-", "{", "}", "[" * 3000, "&a [*a]", "\t", "1e999", "''", "🙂")]


def broken(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes cut out and others put in, somewhere; or the rest cut off."""
    return st.builds(
        lambda at, size, word: data[:at] + word + data[at + size :],
        st.integers(0, len(data)),
        st.sampled_from((0, 1, 8, 200, len(data))),
        st.sampled_from(WORDS) | st.binary(max_size=2),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of a run and of a configuration."""
    results = tmp_path_factory.mktemp("whole")
    run(TINY, results)
    folder = run_folder(results, TINY)
    with pytest.raises(Stopped):
        run(TINY, results / "stopped", callbacks=[Interrupt(2)])
    state = (run_folder(results / "stopped", TINY) / NAME).read_bytes()
    files = {name: (folder / name).read_bytes() for name in FILES}
    return {**files, COPY: gzip.decompress(copied(record_of(folder))), NAME: state, "a.json": CONFIG, "a.yaml": CONFIG}


def read_record(path: Path) -> None:
    record = read_copy(path) if path.name == COPY else read_run(path.parent)
    if record is not None:
        record_faults(record, path if path.name == COPY else path.parent)


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys((*FILES, COPY), read_record),
    NAME: lambda path: load(path.parent, run_name(TINY)),
    **dict.fromkeys(("a.json", "a.yaml"), lambda path: resolve(path, [])),
}


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_damaged_bytes(tmp_path: Path, whole: dict[str, bytes], name: str, data: st.DataObject) -> None:
    folder = run_folder(tmp_path, TINY)
    folder.mkdir(parents=True, exist_ok=True)
    for other in FILES if name in FILES else ():
        (folder / other).write_bytes(whole[other])
    content = data.draw(broken(whole[name]))
    path = (folder.parent if name == COPY else folder) / name
    path.write_bytes(gzip.compress(content, 1) if name == COPY else content)
    with warnings.catch_warnings(), contextlib.suppress(FsslError):
        warnings.simplefilter("ignore")  # torch's, on what is in the file
        READERS[name](path)


@given(
    st.lists(st.tuples(st.sampled_from(("method", "data.name", "federation.K", "optimizer.lr", "x", "")), st.text()))
)
def test_configuration_words(words: list[tuple[str, str]]) -> None:
    with contextlib.suppress(FsslError):
        resolve(None, [f"--{name}={value}" for name, value in words])
