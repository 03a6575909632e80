"""STL-10's unlabelled split: read as torchvision stores it, in equal shares at clients, trained on without labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.datasets import STL10

from benchmark.data.partition import ClassSkew, Iid
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Federation
from benchmark.federated.environment import prepare
from benchmark.methods.protocol import CENTRAL, SERVER
from tests.conftest import tiny_experiment
from tests.data.places import of_any_size, own_cache  # noqa: F401 - fixtures
from tests.federated.helpers import difference, module_of

TRAIN, TEST, EXTRA = 40, 20, 31


@pytest.fixture
def root(tmp_path, monkeypatch, own_cache, of_any_size):  # noqa: F811
    """Write a small set in STL-10's binary layout: column-major images, labels from 1. Its checksums are not the real
    set's, so that torchvision's check of them is off.
    """
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)
    folder = tmp_path / "stl10" / "stl10_binary"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, number in (("train", TRAIN), ("test", TEST), ("unlabeled", EXTRA)):
        draw.integers(0, 256, (number, 3, 96, 96), dtype=np.uint8).tofile(folder / f"{name}_X.bin")
        if name != "unlabeled":
            (np.arange(number) % 10 + 1).astype(np.uint8).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join("abcdefghij"))
    (folder / "fold_indices.txt").write_text("0 1\n" * 10)
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    return tmp_path


def experiment(**changes):
    base = tiny_experiment()
    data = replace(base.data, name="stl10", unlabelled="extra")
    federation = Federation(K=3, C=2, T=1, rounds=1)
    return replace(base, **{"data": data, "partition": Iid(), "federation": federation, **changes})


def test_clients_share_the_extra_images_and_nobody_holds_what_is_left_of_the_training_set(root):
    """31 among 3 clients: 11, 10, 10, each image once. The server has its 20; the other 20 are in nobody's part."""
    environment = prepare(experiment())
    parts = [environment.part(client, "unlabelled") for client in range(3)]
    assert sorted(map(len, parts)) == [10, 10, 11]
    assert sorted(torch.cat([part.positions_N for part in parts]).tolist()) == list(range(EXTRA))
    extra = environment.data.unlabelled_images_NCHW
    assert extra is not None and all(torch.equal(part.images_NCHW, extra) for part in parts)
    assert all(part.labels_N is None and part.truth_N is None for part in parts)
    assert len(environment.part(CENTRAL, "unlabelled")) == EXTRA and len(environment.part(SERVER, "labelled")) == 20
    assert environment.sizes == {0: 11, 1: 10, 2: 10, SERVER: 20}
    stored = np.fromfile(root / "stl10" / "stl10_binary" / "unlabeled_X.bin", dtype=np.uint8).reshape(-1, 3, 96, 96)
    assert torch.equal(extra, torch.as_tensor(stored.transpose(0, 1, 3, 2).copy()))


def test_a_round_trains_on_them_and_reports_no_accuracy_of_pseudo_labels(root):
    """There is no truth to hold them to; how many are kept is known."""
    module = module_of(experiment())
    before = module.models()["average"]
    module.training_step(1, 0)
    assert difference(before, module.models()["average"]) > 0
    assert "pseudo/kept" in module.metrics and "pseudo/accuracy" not in module.metrics


def test_what_it_cannot_do_is_refused(root):
    with pytest.raises(ConfigError, match="'extra', but digits has no unlabelled split; choose 'train'"):
        prepare(replace(experiment(), data=replace(experiment().data, name="digits")))
    with pytest.raises(ConfigError, match="has no labels; choose iid"):
        prepare(experiment(partition=ClassSkew(R=0.4)))
    with pytest.raises(ConfigError, match="'extra', .* no labels for label_setting 'everywhere'"):
        Data(name="stl10", unlabelled="extra", label_setting="everywhere")
