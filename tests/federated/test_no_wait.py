"""Local training off the CPU: nothing waits for the device, numbers are those of the CPU, and few operations are extra.

Every method, and every kind of local step: a label setting decides which streams of images a step has. Ours may launch
1.3 times as many operations as the same forward passes, losses and optimizer step written as plain functions.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmark.data.augment import Augmentation, Gentle, Weak, make_views
from benchmark.data.randaugment import RandAugment
from benchmark.diagnostics.communication import CommunicationSummary
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule, fit
from benchmark.federated.trees import leaves
from benchmark.methods.fedswitch import FedSwitch, FedSwitchUpdate
from benchmark.models.build import Model
from benchmark.records.state import RunState, load, save
from tests.diagnostics.test_diversity import Noted
from tests.federated.accelerator import DEVICE, Accelerator, InAWorker, OnAccelerator, OnDevice
from tests.methods.golden import FOLDER, TRACES, trace

# By trace and kind of local step: operations that launch a kernel where the step is written flat, in plain functions
# of its forward passes, losses and SGD in one kernel (they are in git, in this file of commit cb5cfbc9). SAGE and what
# comes after it were not written flat: they are what they were.
FLAT: dict[str, dict[str, int]] = {
    "crl-fedavg": {"ServerUpdate labelled": 30, "ConsistencyUpdate unlabelled": 48},
    "self-training": {"SelfTrainingUpdate unlabelled": 48},
    "crl-labels-at-client": {"ConsistencyUpdate labelled unlabelled": 89},
    "crl-labels-at-client-released": {"TwoViewSelfTrainingUpdate labelled unlabelled": 79},
    "supervised": {"SupervisedUpdate unlabelled": 30},
    "server-only": {"ServerUpdate labelled": 30},
    "semifl": {"ClientUpdate fix mix": 87},
    "rscfed": {"LabelledUpdate labelled": 30, "MeanTeacherUpdate unlabelled": 55},
    "rscfed-partly-labelled": {"MeanTeacherUpdate labelled unlabelled": 96},
    "fed-consist": {"LabelledUpdate labelled": 32, "MeanTeacherUpdate unlabelled": 59},
    "fedirm-released": {"LabelledAndKept labelled": 105, "RelationMatching unlabelled": 110},
    "fedprox-fixmatch": {"ProximalFixMatchUpdate unlabelled": 67},
    "fedprox-fixmatch-every-client": {"ProximalFixMatchUpdate labelled unlabelled": 108},
    "ts-server-ema-some-clients": {"ProximalFixMatchUpdate labelled": 49},
    "ts-client-ema-share": {"TSClientUpdate labelled unlabelled": 110},
    "fedswitch": {"FedSwitchUpdate unlabelled": 81},
    "fedswitch-some-clients": {"FedSwitchUpdate labelled": 51},
    "fedswitch-share": {"FedSwitchUpdate labelled unlabelled": 122},
    "proxyfl": {"ProxyUpdate labelled unlabelled": 177},
    "feddure": {
        "RegulatedUpdate labelled unlabelled of_fine": 414,
        "RegulatedUpdate labelled unlabelled of_copy": 53,
        "RegulatedUpdate labelled unlabelled of_student": 94,
    },
    "supervised-fl-proximal": {"FedProxUpdate labelled": 49},
    "fedmatch-every-client": {
        "ClientUpdate labelled unlabelled on_labels": 33,
        "ClientUpdate labelled unlabelled without_labels": 104,
        "ClientUpdate labelled unlabelled without_labels helper 0 helper 1": 188,
    },
    "fedmatch": {
        "ServerSigmaUpdate labelled": 33,
        "PsiUpdate unlabelled": 104,
        "PsiUpdate unlabelled helper 0 helper 1": 188,
    },
    "data-sharing-server": {"DataSharingUpdate labelled unlabelled": 89},
    "easgd": {"ElasticUpdate labelled": 30},
    "overlap-sgd": {"ElasticUpdate labelled": 30},
    "lg-fedavg": {"ClientUpdate labelled": 30},
    "feddyn": {"ClientUpdate labelled": 67},
    "heterofl": {"ClientUpdate labelled": 40},
    "fixmatch-average": {"CentralUpdate labelled unlabelled": 91},
    "pi-model": {"CentralUpdate labelled unlabelled": 94},
    "mean-teacher": {"CentralUpdate labelled unlabelled": 94},
    "pseudo-labeling": {"CentralUpdate labelled unlabelled": 81},
    "mixmatch": {"CentralUpdate labelled unlabelled": 95},
    "uda": {"CentralUpdate labelled unlabelled": 97},
    "remixmatch": {"CentralUpdate labelled unlabelled": 127},
    "sage": {"ClientUpdate labelled unlabelled": 80},
    "fedlabel": {"ClientUpdate labelled unlabelled": 82},
    "fixmatch-gpl": {"ClientUpdate labelled unlabelled": 59},
    "flexmatch-lpl": {"FlexMatchUpdate labelled unlabelled": 62},
    "feddb": {"FedDBUpdate labelled unlabelled": 45},
}


# Tensors that a kind of local step draws on the host: lambda; lambda_N and the images to mix with.
DRAWN = {"ClientUpdate fix mix": 1, "CentralUpdate labelled unlabelled": 2}
DRAWING = ("semifl", "mixmatch", "remixmatch")


@pytest.mark.parametrize("name", FLAT)
def test_local_training_waits_for_nothing(name):
    """Rounds in a worker with a device, which is sent tensors of the host, give the numbers of the CPU. There are
    two where clients keep something from the first, and where a kind of step comes late.

    From the first batch on, also while views are made; per job and stream the positions, and a span's draws (and
    pseudo-labels, and affine maps) are sent. What `LocalUpdate.draws` drew is sent in each step, without waiting.
    """
    environment = prepare(TRACES[name])
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    with Accelerator() as accelerator:
        module = FederatedModule(environment, InAWorker(environment))
        lines = trace(TRACES[name], module, (1,))
        if lines[0]["comm/bytes_kept"] or not FLAT[name].keys() <= accelerator.steps.keys():
            lines += trace(TRACES[name], module, (2,))
    assert lines == [pytest.approx(line, rel=2e-4, abs=1e-7) for line in golden[: len(lines)]]
    assert accelerator.steps and not accelerator.waits
    assert accelerator.sent[True] == sum(DRAWN.get(kind, 0) * steps for kind, steps in accelerator.steps.items()) * (
        name in DRAWING
    )
    for kind, flat in FLAT[name].items():
        operations = accelerator.operations[kind] / accelerator.steps[kind]
        assert operations <= 1.3 * flat, f"{kind}: {operations:.0f} operations, {flat} when written flat"


@pytest.mark.parametrize(("strong", "sent"), [(RandAugment(), 1), (RandAugment(pool="semifl"), 1), (Gentle(), 2)])
def test_views_are_those_of_the_cpu_from_one_copy_of_the_draws(strong, sent):
    """Gentle's affine maps are a second one: sines differ in their last bits from device to device."""
    augmentation = Augmentation(weak=Weak(), strong=strong)
    images_NCHW = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)

    def views(images_NCHW: Tensor) -> dict[str, Tensor]:
        draw = torch.Generator().manual_seed(1)
        names = ("plain", "weak", "weak2", "strong")
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


@pytest.mark.parametrize("name", ["crl-grouping", "fedmatch", "rscfed", "heterofl", "remixmatch"])
def test_whole_runs_stay_on_the_device(name):
    """Under Lightning's Trainer, which moves its module to the CPU, and with all that watches a run."""
    known = TRACES[name]
    small = replace(known.data, images=200)
    environment = prepare(replace(known, data=small, federation=replace(known.federation, rounds=2)))

    def numbers(module: FederatedModule) -> list[dict[str, float]]:
        noted = Noted(1)
        fit(module, [noted, CommunicationSummary()])
        return noted.seen

    expected = numbers(FederatedModule(environment, ReferenceEngine(environment, fast=True)))
    with Accelerator():
        module = FederatedModule(environment, OnAccelerator(environment))
        measured = numbers(module)
        assert all(isinstance(value, OnDevice) for _, value in leaves(dict(module.models())))
    assert measured == [pytest.approx(line, rel=2e-4, abs=1e-7) for line in expected]


def test_a_run_s_state_is_saved_from_the_device(tmp_path):
    """Weight sets and what clients keep stay on the device from job to job; the file has them as a CPU's has."""
    environment = prepare(TRACES["rscfed"])
    with Accelerator():
        module = FederatedModule(environment, OnAccelerator(environment))
        module.training_step(1, 0)
        student = module.state.server["student"]
        kept = module.state.clients
        assert all(isinstance(value, OnDevice) for value in student.values())
        assert any(isinstance(value, OnDevice) for tree in kept.values() for value in tree.get("teacher", {}).values())
        save(tmp_path, RunState(state=module.state, lines=("{}\n",), measured={}, exchange={}), "run")
    saved = load(tmp_path, "run")
    assert saved is not None and saved.state.server["student"].keys() == student.keys()
    assert all(type(value) is Tensor and value.is_cpu for value in saved.state.server["student"].values())
