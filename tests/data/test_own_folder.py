"""A user's own images: trained by the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from benchmark.cli.main import main
from benchmark.experiment import Data, Federation
from benchmark.papers.catalogue import items
from benchmark.records.run import run
from benchmark.records.wandb_mirror import config_of
from sweeps.factors import experiment_of
from tests.conftest import tiny_experiment


@pytest.fixture
def own_images(tmp_path):
    """Three classes of 30 gray images of 8 x 8 pixels."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog", "owl")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(30):
            pixels = draw.integers(0, 80, (8, 8)) + 80 * label
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pets" / name / f"{index}.png")
    return f"folder:{tmp_path / 'pets'}"


def test_the_path_to_it_leaves_no_machine(own_images, tmp_path):
    experiment = replace(tiny_experiment(), data=Data(name=own_images, N_s=12))
    run(replace(experiment, federation=Federation(K=2, C=2, T=1, rounds=1)), tmp_path / "results")
    (manifest,) = (tmp_path / "results").rglob("manifest.json")
    assert json.loads(manifest.read_text())["data"]["name"] == "folder:pets"
    assert str(tmp_path) not in manifest.read_text()
    assert config_of(experiment)["data"]["name"] == "folder:pets"  # on W&B


def test_ten_labels_a_class_are_the_default(own_images, tmp_path, capsys):
    """On the command line, in a grid and in an item; a number that is given stays. 50 is no multiple of 3 classes."""
    (tmp_path / "mine.toml").write_text(f'rows = {{ All = {{ data = "{own_images}" }} }}')
    (item,) = items([str(tmp_path / "mine.toml")], "demo")
    assert item.cells[0].experiment.data.N_s == 30
    assert experiment_of({"data.name": own_images}).data.N_s == 30
    for words, N_s in (([], 30), (["--data.N_s=12"], 12)):
        assert main(["run", "--data", own_images, *words, "--print-config"]) == 0
        assert json.loads(capsys.readouterr().out)["data"]["N_s"] == N_s


def test_a_folder_that_is_not_there_is_one_line(capsys):
    assert main(["run", "--data.name=folder:/nowhere"]) == 66
    assert capsys.readouterr().err.count("\n") == 1
