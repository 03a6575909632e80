"""Broken, wrong and hostile content of everything that reads a file: a value or an error of ours, whatever it is.

EXAMPLES in the environment is how many of each test; then they are other ones at every run, or by seed. hypothesis
keeps something of every example (more than 2 GB after ten thousand states), so a fuzz of 112,000 in 2 GB is

    ulimit -d 2000000
    for n in {1..8}; do EXAMPLES=2000 python -m pytest --hypothesis-seed=$n tests/records/test_damaged_files.py; done
"""

import contextlib
import copy
import gzip
import io
import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark.cli.run import resolve
from benchmark.errors import FsslError, Stopped
from benchmark.experiment import to_json
from benchmark.records.copies import pack, read_copy
from benchmark.records.record import FILES, read_run, run_folder
from benchmark.records.run import run
from benchmark.records.state import NAME, load
from benchmark.records.verify import record_faults
from tests.conftest import record_of, tiny_experiment
from tests.records.test_run import Interrupt
from tests.records.test_state import in_torch_s_format

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, -(2**70), 1e308, float("nan"), float("inf"), "", "x" * 5000, "\0", "\u202e", "../../x",
    "!!python/object:os.system", "None", "1e-3", [], {}, [[]], {"kind": "ssfl"}, {"": {}}, "os:system", "digits",
)  # fmt: skip
WORDS = tuple(
    word.encode() for word in ("null", "NaN", "-", "{", "}", "[" * 3000, "&a [*a]", "\t", "1e999", "''", "🙂")
)
many = settings(
    max_examples=int(os.environ.get("EXAMPLES", "100")),
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with a value at some depth replaced, dropped or renamed."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 6)) == 0:
        return draw(st.sampled_from(ODD))
    found: Any = list(tree) if isinstance(tree, list) else dict(tree)
    key = draw(st.sampled_from(range(len(found)) if isinstance(found, list) else list(found)))
    match draw(st.integers(0, 5)):
        case 0:
            del found[key]
        case 1 if isinstance(found, dict):
            found[draw(st.sampled_from(("kind", "", "seed")))] = found.pop(key)
        case _:
            found[key] = draw(changed(found[key]))
    return found


@st.composite
def broken(draw: st.DrawFn, data: bytes) -> bytes:
    """A few bytes flipped, cut out, put in or doubled."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        match draw(st.integers(0, 4)):
            case 0 if at < len(found):
                found[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del found[at : at + draw(st.sampled_from((1, 8, 200)))]
            case 2:
                found[at:at] = draw(st.sampled_from(WORDS))
            case 3:
                found[at:at] = found[at : at + 50]
            case 4:
                del found[at:]
    return bytes(found)


def text_of(tree: Any) -> st.SearchStrategy[bytes]:
    """A value as JSON (which is YAML, too), with its values or its bytes changed."""
    return changed(tree).map(lambda other: json.dumps(other).encode(errors="replace")) | broken(
        json.dumps(tree).encode()
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> SimpleNamespace:
    """A sound run, and an empty folder of its name to put changed files into."""
    results, tiny = tmp_path_factory.mktemp("whole"), tiny_experiment()
    run(tiny, results)
    folder, place = run_folder(results, tiny), run_folder(results / "changed", tiny)
    place.mkdir(parents=True)
    files = {name: (folder / name).read_bytes() for name in FILES}
    with pytest.raises(Stopped):
        run(tiny, results / "stopped", callbacks=[Interrupt(2)])
    state = (run_folder(results / "stopped", tiny) / NAME).read_bytes()
    return SimpleNamespace(record=record_of(folder), files=files, place=place, state=state)


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@given(data=st.data())
@many
def test_configuration_files(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_bytes(data.draw(text_of(to_json(tiny_experiment()))))
    with contextlib.suppress(FsslError):
        resolve(path, [])


@given(
    st.lists(st.tuples(st.sampled_from(("method", "data.name", "federation.K", "optimizer.lr", "x", "")), st.text()))
)
@many
def test_configuration_words(words: list[tuple[str, str]]) -> None:
    with contextlib.suppress(FsslError):
        resolve(None, [f"--{name}={value}" for name, value in words])


@given(name=st.sampled_from(FILES), data=st.data())
@many
def test_the_files_of_a_run(whole: SimpleNamespace, name: str, data: st.DataObject) -> None:
    for other, content in whole.files.items():
        (whole.place / other).write_bytes(content)
    lines = whole.files[name].splitlines() if name == "rounds.jsonl" else [whole.files[name]]
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = data.draw(text_of(json.loads(lines[at])))
    (whole.place / name).write_bytes(b"\n".join(lines) + b"\n")
    with contextlib.suppress(FsslError):
        record = read_run(whole.place)
        if record is not None:
            record_faults(record, whole.place)


@given(data=st.data())
@many
def test_committed_copies(whole: SimpleNamespace, data: st.DataObject) -> None:
    path = whole.place.parent / "seed=0.json.gz"
    path.write_bytes(gzip.compress(data.draw(text_of(copy.deepcopy(pack(whole.record)))), 1))
    with contextlib.suppress(FsslError):
        record = read_copy(path)
        record_faults(record, path)


@given(data=st.data())
@many
def test_states(tmp_path: Path, whole: SimpleNamespace, data: st.DataObject) -> None:
    content = torch.load(io.BytesIO(whole.state), weights_only=True)
    (tmp_path / NAME).write_bytes(data.draw(broken(whole.state) | changed(content).map(in_torch_s_format)))
    with warnings.catch_warnings(), contextlib.suppress(FsslError):
        warnings.simplefilter("ignore")  # torch's, on what is in the file
        load(tmp_path, content["run"])
