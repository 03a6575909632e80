"""A user's own images: trained by the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmark.cli.main import main
from benchmark.experiment import Data
from benchmark.papers.catalogue import items
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


def test_it_is_trained_on(own_images, tmp_path, capsys):
    words = ["--federation.K=2", "--federation.C=2", "--federation.T=2", "--federation.rounds=1", "--data.N_s=12"]
    data = ["--data.name", own_images, "--partition=iid", "--method.batch_size=4", "--method.server_batch_size=4"]
    assert main(["run", "--json", "--engine", "reference", "--results", str(tmp_path / "results"), *words, *data]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "done" and 0 <= result["last"]["test/accuracy"] <= 1
    manifest = (Path(result["folder"]) / "manifest.json").read_text()
    assert json.loads(manifest)["data"]["name"] == "folder:pets" and str(tmp_path) not in manifest
    assert config_of(replace(tiny_experiment(), data=Data(name=own_images)))["data"]["name"] == "folder:pets"  # on W&B
    assert main(["verify", "--results", str(tmp_path / "results")]) == 0


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
