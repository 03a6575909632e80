"""Local training off the CPU: nothing waits for the device, and numbers are those of the CPU.

Every method, and every kind of local step: a label setting decides which streams of images a step has.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmark.data.augment import Augmentation, Gentle, Weak, make_views
from benchmark.data.randaugment import RandAugment
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.methods.fedswitch import FedSwitch, FedSwitchUpdate
from benchmark.models.build import Model
from benchmark.records.state import RunState, load, save
from tests.federated.accelerator import DEVICE, Accelerator, InAWorker, OnAccelerator, OnDevice
from tests.methods.golden import FOLDER, TRACES, trace

NAMES = (
    *("crl-fedavg", "self-training", "crl-labels-at-client", "crl-labels-at-client-released", "supervised"),
    *("server-only", "semifl", "rscfed", "rscfed-partly-labelled", "fed-consist"),
    *("fedirm", "fedirm-released", "fedprox-fixmatch", "fedprox-fixmatch-every-client", "ts-server-ema-some-clients"),
    *("ts-client-ema-share", "fedswitch", "fedswitch-some-clients", "fedswitch-share", "supervised-fl-proximal"),
    *("fedmatch", "data-sharing-server", "easgd", "overlap-sgd", "lg-fedavg"),
    *("feddyn", "heterofl", "fixmatch-average", "pi-model", "mean-teacher"),
    *("pseudo-labeling", "mixmatch", "uda", "remixmatch"),
)


def counted(name: str, engine: type[OnAccelerator] = OnAccelerator) -> Accelerator:
    """Two rounds of a trace on the device, which give the numbers of the CPU."""
    environment = prepare(TRACES[name])
    with Accelerator() as accelerator:
        lines = trace(TRACES[name], FederatedModule(environment, engine(environment)))
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    for ours, theirs in zip(lines, golden, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-7)
    return accelerator


@pytest.mark.parametrize("name", NAMES)
def test_local_training_waits_for_nothing(name):
    """From the first batch on, also while views are made; per job and stream the positions, and a span's draws (and
    pseudo-labels, and affine maps) are sent. MixMatch draws within its loss and sends that without waiting."""
    accelerator = counted(name)
    assert accelerator.steps and not accelerator.waits
    assert accelerator.sent[True] == ("mixmatch" in name) * accelerator.steps.total()


@pytest.mark.parametrize(
    "name",
    [
        *("fedmatch-every-client", "easgd", "feddyn", "fedirm-released", "remixmatch", "rscfed"),
        *("sage", "fedlabel", "fixmatch-gpl", "flexmatch-lpl", "feddb"),
    ],
)
def test_a_worker_with_a_device_is_sent_tensors_of_the_host(name):
    """Methods whose local work begins or ends with what was received, kept or given to the update."""
    accelerator = counted(name, InAWorker)
    assert accelerator.steps and not accelerator.waits


@pytest.mark.parametrize(("strong", "sent"), [(RandAugment(), 1), (RandAugment(pool="semifl"), 1), (Gentle(), 2)])
def test_views_are_those_of_the_cpu_from_one_copy_of_the_draws(strong, sent):
    """Gentle's affine maps are a second one: sines differ in their last bits from device to device."""
    augmentation = Augmentation(weak=Weak(), strong=strong)
    images_NCHW = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)

    def views(images_NCHW: Tensor) -> dict[str, Tensor]:
        draw, names = torch.Generator().manual_seed(1), ("plain", "weak", "weak2", "strong")
        return make_views(images_NCHW, names, augmentation, (0.5,) * 3, (0.25,) * 3, draw)

    expected = views(images_NCHW)
    with Accelerator() as accelerator:
        there_NCHW = images_NCHW.to(DEVICE)
        views(there_NCHW)  # tables are made once
        accelerator.training = True
        found = views(there_NCHW)
        accelerator.training = False
        found = {name: view.cpu() for name, view in found.items()}
    assert not accelerator.waits and accelerator.sent[False] == sent
    assert all(torch.equal(found[name], view) for name, view in expected.items())


@pytest.mark.parametrize("prediction", ["mean_softmax", "histogram"])
def test_fedswitch_counts_sure_images_without_waiting(prediction):
    """As on the CPU, also where no image is sure."""
    method = FedSwitch(threshold=0.7, counted="kept", prediction=prediction)
    update = FedSwitchUpdate(method=method, labeller="teacher")
    logits_ND = torch.tensor([[3.0, 1], [3, 1], [1, 3], [1, 1]]).log()
    unsure_ND = torch.zeros(4, 2)
    expected = update.divergences(logits_ND, unsure_ND)
    with Accelerator() as accelerator:
        there_ND, unsure_there_ND = logits_ND.to(DEVICE), unsure_ND.to(DEVICE)
        with accelerator.step("divergences"):
            measured = update.divergences(there_ND, unsure_there_ND)
        found = {name: float(value) for name, value in measured.items()}
    assert not accelerator.waits
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)


def test_fedswitch_on_resnet18_launches_at_most_300_operations():
    """809 where the proximal term and the teacher's average went tensor by tensor."""
    experiment = replace(
        TRACES["fedswitch"],
        model=Model(network="resnet18", norm="gn"),
        federation=replace(TRACES["fedswitch"].federation, C=1, T=1),
    )
    environment = prepare(experiment)
    with Accelerator() as accelerator:
        FederatedModule(environment, OnAccelerator(environment)).training_step(1, 0)
    assert accelerator.operations["FedSwitchUpdate unlabelled"] <= 300


def test_a_run_s_state_is_saved_from_the_device(tmp_path):
    """Weight sets and what clients keep stay on the device from job to job; the file has them as a CPU's has."""
    environment = prepare(TRACES["rscfed"])
    with Accelerator():
        module = FederatedModule(environment, OnAccelerator(environment))
        module.training_step(1, 0)
        student, kept = module.state.server["student"], module.state.clients
        assert all(isinstance(value, OnDevice) for value in student.values())
        assert any(isinstance(value, OnDevice) for tree in kept.values() for value in tree.get("teacher", {}).values())
        save(tmp_path, RunState(state=module.state, lines=("{}\n",), measured={}, exchange={}), "run")
    saved = load(tmp_path, "run")
    assert saved is not None and saved.state.server["student"].keys() == student.keys()
    assert all(type(value) is Tensor and value.is_cpu for value in saved.state.server["student"].values())
