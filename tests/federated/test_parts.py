"""A client whose batch does not fit into memory: taken in parts where that gives the same weights."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.errors import FsslError
from benchmark.federated import jobs
from benchmark.federated.batches import LocalBatch
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.micro_batches import IN_PARTS, in_parts, most_parts, why_whole
from benchmark.federated.module import FederatedModule
from benchmark.methods.objectives import ServerUpdate
from benchmark.methods.protocol import Batch, Job, Key, Limit, Stream
from tests.conftest import ROOT
from tests.methods.golden import TRACES

# Every kind of loss that says of itself that it is a mean over images.
NAMES = (
    "crl-grouping",
    "crl-released",
    "crl-labels-at-client",
    "crl-labels-at-client-released",
    "self-training",
    "self-training-labels-at-client",
    "supervised",
    "easgd",
    "fixmatch",
    "fedprox-fixmatch",
    "fedprox-fixmatch-every-client",
    "ts-server-ema",
    "ts-client-ema-share",
)


@given(st.integers(1, 24), st.integers(1, 3), st.integers(1, 30))
def test_parts_are_equal_and_make_the_batch(images, times, wanted):
    """Two streams, one `times` as large as the other: as many parts as wanted or as there are images, in order."""
    small, large = torch.arange(images), torch.arange(images * times)
    streams = {
        "labelled": Batch(views={"weak": small.float()}, labels_N=small),
        "unlabelled": Batch(views={"weak": large.float(), "strong": -large.float()}, labels_N=None),
    }
    parts = in_parts(LocalBatch(streams=streams, truth_N=large, phase=1), wanted)
    assert len(parts) >= min(wanted, images) and images % len(parts) == 0 and {part.phase for part in parts} == {1}
    for name in streams:
        assert len({len(part.streams[name].views["weak"]) for part in parts}) == 1
        for view, whole in streams[name].views.items():
            assert torch.equal(torch.cat([part.streams[name].views[view] for part in parts]), whole)
    assert torch.equal(torch.cat([part.streams["labelled"].labels_N for part in parts]), small)  # type: ignore[misc]
    assert torch.equal(torch.cat([part.truth_N for part in parts]), large)  # type: ignore[misc]


def largest(left: Any, right: Any) -> float:
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return max((largest(value, right[name]) for name, value in left.items()), default=0.0)
    return float((left.double() - right.double()).abs().max()) if isinstance(left, torch.Tensor) else abs(left - right)


@pytest.mark.parametrize("name", NAMES)
def test_a_round_in_parts_gives_the_weights_of_whole_batches(name, monkeypatch):
    """Within 1e-6, momentum and metrics, too; the round says how many of its jobs were taken in parts.

    Memory is short in this test by an allocator that refuses a pass of more than two images with gradient.
    """
    environment = prepare(TRACES[name])
    modules = [FederatedModule(environment, ReferenceEngine(environment)) for _ in range(2)]
    modules[0].training_step(1, 0)
    short_of_memory(monkeypatch, most=4)
    modules[1].training_step(1, 0)
    found = modules[1].metrics.pop(IN_PARTS)
    assert found >= 1
    whole, parts = modules
    assert largest(whole.state.server, parts.state.server) < 1e-6
    assert largest(dict(whole.state.clients), dict(parts.state.clients)) < 1e-6
    assert whole.metrics.keys() == parts.metrics.keys()
    assert largest(whole.metrics, parts.metrics) < 1e-5


def short_of_memory(monkeypatch, most: int) -> None:
    """Training steps whose streams have more images than that do not fit: torch's own error."""
    step = jobs.LocalModule.training_step

    def tight(self, batch: LocalBatch, index: int):
        if max(len(next(iter(stream.views.values()))) for stream in batch.streams.values()) > most:
            torch.empty(1 << 60)
        return step(self, batch, index)

    monkeypatch.setattr(jobs.LocalModule, "training_step", tight)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("crl-batch-norm", "its network has batch norm"),
        ("semifl", r"the loss of \w+ is not known to be a mean over images"),
        ("fedswitch", r"the loss of \w+ is not known to be a mean over images"),
    ],
)
def test_where_parts_would_give_other_weights_the_client_is_named(name, why, monkeypatch):
    environment = prepare(TRACES[name])
    module = FederatedModule(environment, ReferenceEngine(environment))
    short_of_memory(monkeypatch, most=1)
    with pytest.raises(FsslError, match=rf"round 1, .*: its job does not fit .*\({why}.*\); choose a smaller"):
        module.training_step(1, 0)


def test_one_image_that_does_not_fit_is_an_error(monkeypatch):
    environment = prepare(TRACES["crl-fedavg"])
    module = FederatedModule(environment, ReferenceEngine(environment))
    short_of_memory(monkeypatch, most=0)
    with pytest.raises(FsslError, match="round 1, the server: its job does not fit into memory; choose a smaller"):
        module.training_step(1, 0)


def job(update: ServerUpdate, **streams: int) -> Job:
    data = {name: Stream(part="labelled", batch_size=size, views=("weak",)) for name, size in streams.items()}
    return Job(key=Key(client=0), update=update, receives={}, data=data, limit=Limit(steps=1))


@dataclass(frozen=True, kw_only=True)
class Inherits(ServerUpdate):
    """Another loss may stand here: it has not said that it is a mean."""


@dataclass(frozen=True, kw_only=True)
class Says(ServerUpdate):
    mean_over_images: ClassVar[bool] = True


def test_what_may_be_taken_in_parts():
    """A class speaks for itself alone; the streams' sizes say into how many parts at most (8 and 12: 4)."""
    tiny = TRACES["crl-fedavg"]
    network = prepare(tiny).network()
    assert why_whole(job(Says(), labelled=8), network, "fp32") is None
    assert "Inherits is not known" in str(why_whole(job(Inherits(), labelled=8), network, "fp32"))
    assert "bf16 rounds too much" in str(why_whole(job(Says(), labelled=8), network, "bf16"))
    dropout = torch.nn.Sequential(torch.nn.Dropout(0.5))
    assert "dropout" in str(why_whole(job(Says(), labelled=8), dropout, "fp32"))
    assert why_whole(job(Says(), labelled=8), torch.nn.Sequential(torch.nn.Dropout(0.0)), "fp32") is None
    assert most_parts(job(Says(), labelled=8)) == 8 and most_parts(job(Says(), labelled=8, other=12)) == 4


def test_a_real_lack_of_memory_is_got_over_in_parts():
    """The system refuses 2 GB: the batch of 8 is taken in parts, with the weights of one that was not refused."""
    limited, free = (one_job_of_its_own(word, "gn") for word in ("limited", "free"))
    assert limited["in_parts"] == 1 and free["in_parts"] == 0 and limited["steps"] == free["steps"] == 3
    assert limited["weights"] == pytest.approx(free["weights"], abs=1e-5)


def test_a_real_lack_of_memory_that_parts_do_not_get_over_is_one_line():
    assert one_job_of_its_own("limited", "bn")["error"] == (
        "round 1, the server: its job does not fit into memory (its network has batch norm, which would see other "
        "batches); choose a smaller batch size or network, or fewer workers"
    )


def one_job_of_its_own(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.federated.short_of_memory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
