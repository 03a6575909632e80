"""Parts of the gpu engine: the joint augmentation, steps that never wait for a device, the optimizer, the choice."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.data.augment import Augmentation, Gentle, Weak, draw_views, views_from
from benchmark.data.pixel_ops import counts_by_bin, counts_by_scatter
from benchmark.data.randaugment import RandAugment
from benchmark.errors import ConfigError
from benchmark.federated.batches import JobBatches
from benchmark.federated.choice import build_engine
from benchmark.federated.environment import prepare
from benchmark.federated.gpu import GpuEngine, device_named
from benchmark.federated.gpu.branch import descend
from benchmark.federated.gpu.cohort import bytes_of, cohort_batches
from benchmark.federated.gpu.examine import HostRead, HostReads
from benchmark.federated.gpu.group import Group
from benchmark.federated.gpu.measure import MEASURED_STEPS, Plain, Together, measured
from benchmark.federated.gpu.work import Placer
from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import Limit, Stream
from benchmark.optim.sgd import SGD
from tests.conftest import tiny_experiment
from tests.federated.test_workers import jobs_of
from tests.methods.golden import TRACES
from tests.methods.toys import ToConstant

CPU = torch.device("cpu")
STRONG = [Gentle(), RandAugment(), RandAugment(pool="torchvision", levels=(9, 9), cutout=0.0)]


def augmented(strong):
    base = tiny_experiment()
    weak = Weak(padding_mode="zero")
    return prepare(replace(base, data=replace(base.data, augmentation=Augmentation(weak=weak, strong=strong))))


@pytest.mark.parametrize("strong", STRONG[:2], ids=lambda strong: type(strong).__name__)
def test_a_cohort_augmented_at_once_has_the_reference_s_bits(strong):
    """Three jobs of two streams, 70 batches of 8: two spans of 512 images each, and other lengths."""
    environment = augmented(strong)
    streams = {
        "unlabelled": Stream(part="unlabelled", batch_size=8, views=("weak", "strong")),
        "second": Stream(part="unlabelled", batch_size=12, views=("weak", "weak2", "plain"), drop_last=False),
    }
    jobs = [
        replace(job, data=streams, limit=Limit(steps=steps))
        for job, steps in zip(jobs_of(environment, ToConstant()), (70, 3, 0, 1), strict=True)
    ]
    made = cohort_batches(environment, [JobBatches(environment, job, 3) for job in jobs], CPU)
    for job, batches in zip(jobs, made, strict=True):
        expected = list(JobBatches(environment, job, 3))
        assert len(batches) == len(expected) == job.limit.steps
        for left, right in zip(expected, batches, strict=True):
            assert left.truth_N is not None and right.truth_N is not None and torch.equal(left.truth_N, right.truth_N)
            for name, stream in left.streams.items():
                other = right.streams[name]
                assert tuple(stream.views) == tuple(other.views)
                assert all(torch.equal(stream.views[view], other.views[view]) for view in stream.views)
                assert stream.labels_N is None and other.labels_N is None
    # 8 x 8 pixels, 4 bytes: 70 x 8 images in two views and 70 x 12 or fewer in three.
    sizes = [len(batch.streams["second"].views["weak"]) for batch in made[0]]
    assert bytes_of(environment, JobBatches(environment, jobs[0], 3)) == 256 * (70 * 8 * 2 + sum(sizes) * 3)


@pytest.mark.parametrize("strong", STRONG, ids=["gentle", "ssfl", "torchvision"])
def test_augmenting_reads_nothing_of_the_images(strong):
    """On the meta device tensors have no content: whatever needs some on the host fails there."""
    augmentation = Augmentation(strong=strong)
    draws_ND = draw_views(64, augmentation, torch.Generator().manual_seed(1))
    images_NCHW = torch.empty(64, 3, 16, 16, dtype=torch.uint8, device="meta")
    views = views_from(images_NCHW, ("weak", "strong"), augmentation, (0.5,) * 3, (0.2,) * 3, draws_ND)
    assert views["strong"].shape == images_NCHW.shape and views["strong"].device.type == "meta"
    with pytest.raises(RuntimeError):
        counts_by_bin(images_NCHW.flatten(2).long())


def test_both_ways_of_counting_are_the_same():
    value_NCP = torch.randint(256, (5, 3, 64), generator=torch.Generator().manual_seed(3))
    counts_NCV = counts_by_scatter(value_NCP)
    assert torch.equal(counts_NCV, counts_by_bin(value_NCP))
    assert bool((counts_NCV.sum(2) == 64).all())


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: bool((x > 0).any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
    ],
)
def test_the_watch_sees_a_host_that_reads(read):
    with pytest.raises(HostRead), HostReads():
        read(torch.ones(4))


@pytest.mark.parametrize("name", ["crl-released", "semifl", "rscfed-released", "fedswitch-algorithm", "fixmatch"])
@pytest.mark.parametrize("candidate", ["graphs", "batched"])
def test_no_local_step_waits_for_the_device(name, candidate, monkeypatch):
    """Loading, all steps and the copies of what is left, of two rounds, with a watch that raises at a read."""
    environment = prepare(TRACES[name])
    engine, watched = GpuEngine(environment, "cpu", candidate), []
    run = Group.run

    def watching(self, works, placer):
        with HostReads():
            watched.append(len(works))
            return run(self, works, placer)

    monkeypatch.setattr(Group, "run", watching)
    module = FederatedModule(environment, engine)
    for round_number in (1, 2):
        module.training_step(round_number, 0)
    assert watched


@settings(max_examples=30, deadline=None)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    weight_decay=st.sampled_from([0.0, 1e-4, 0.1]),
    rate=st.floats(1e-4, 0.5),
    seed=st.integers(0, 1000),
)
def test_descend_is_torch_s_sgd(momentum, nesterov, weight_decay, rate, seed):
    """Three steps; each rounds a weight about 5 times at 6e-8 of values up to some tens (rate .5, momentum .9)."""
    sgd = SGD(lr=rate, momentum=momentum, nesterov=nesterov and momentum > 0, weight_decay=weight_decay)
    draw = torch.Generator().manual_seed(seed)
    ours = [torch.randn(shape, generator=draw) for shape in ((3,), (2, 3))]
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in ours]
    buffers = [torch.zeros_like(tensor) for tensor in ours]
    optimizer = torch.optim.SGD(
        theirs, lr=rate, momentum=momentum, nesterov=sgd.nesterov, weight_decay=weight_decay, foreach=True
    )
    for _ in range(3):
        gradients = [torch.randn(tensor.shape, generator=draw) for tensor in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        descend(ours, gradients, buffers, torch.tensor(rate), sgd)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right.detach(), rtol=1e-5, atol=1e-5)


def test_the_fastest_is_chosen_and_the_others_are_let_go(tiny):
    """The clock says 8 s for the first candidate's timed run and 4 s for the second's; steps and jobs are equal."""
    environment = prepare(tiny)
    engine = GpuEngine(environment, "cpu", "graphs")
    jobs = [replace(job, limit=Limit(steps=MEASURED_STEPS + 2)) for job in jobs_of(environment, ToConstant())]
    list(engine.fit(jobs, 1, {}))
    (kind,), (verdict,) = engine._verdicts, engine._verdicts.values()
    wave, _ = engine._begun(jobs, 1, {})
    works = list(engine._works(wave, jobs, 1).values())
    graphs, batched = engine._candidates["graphs"], engine._candidates["batched"]
    assert isinstance(graphs, Together) and isinstance(batched, Together)
    among = {"graphs": graphs, "batched": batched}
    times = iter([0.0, 8.0, 10.0, 14.0])
    choice = measured(among, kind, verdict, works, Placer(CPU), clock=lambda: next(times))
    steps = 4 * MEASURED_STEPS
    assert choice.candidate == "batched" and choice.seconds == {"graphs": 8 / steps, "batched": 4 / steps}
    assert kind in batched.groups and kind not in graphs.groups


def test_by_default_all_candidates_are_measured(tiny):
    environment = prepare(tiny)
    engine = GpuEngine(environment, "cpu")
    list(engine.fit(jobs_of(environment, ToConstant()), 1, {}))
    (choice,) = engine.choices.values()
    assert choice["reason"] == "measured" and set(choice["seconds"]) == {"graphs", "batched", "plain"}
    assert choice["seconds"][choice["candidate"]] == min(choice["seconds"].values())
    said = {"bit_equal": False, "device": "cpu", "candidate": "measured"}
    assert said.items() <= engine.settings.items()
    assert isinstance(engine._candidates["plain"], Plain)


@pytest.mark.skipif(torch.cuda.is_available(), reason="refuses what a machine without a GPU cannot do")
@pytest.mark.parametrize(
    ("name", "device", "candidate", "named"),
    [
        ("gpu", None, "measured", "--device: 'cuda', but torch finds no CUDA device here"),
        ("auto", "cuda:1", "measured", "--device: 'cuda:1', but torch finds no CUDA device"),
        ("gpu", "tpu", "measured", "--device: 'tpu'; cuda, cuda:0 or cpu would be right"),
        ("gpu", "meta", "measured", "--device: 'meta'; cuda, cuda:0 or cpu would be right"),
        ("gpu", "cpu", "graph", "--gpu-candidate: 'graph'; one of measured, graphs, batched, plain"),
        ("cpu", "cuda", "measured", "--device: 'cuda' with --engine cpu"),
        ("reference", None, "graphs", "--gpu-candidate: 'graphs' without the gpu engine"),
    ],
)
def test_what_cannot_be_had_is_refused(tiny, name, device, candidate, named):
    with pytest.raises(ConfigError, match=named):
        build_engine(name, prepare(tiny), None, 1, device=device, gpu_candidate=candidate)


def test_a_device_may_be_a_cpu(tiny):
    assert device_named("cpu") == CPU
    assert isinstance(build_engine("gpu", prepare(tiny), None, 1, device="cpu"), GpuEngine)
