"""What leaves the machine: pages, and what W&B is sent."""

import gzip
from pathlib import Path

from PIL import Image

from benchmark.cli.main import main
from tests.test_surroundings import SMALL, fssl


def holding(folder: Path, word: bytes) -> list[str]:
    """The files that have the word, also those that are compressed."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = {path: gzip.decompress(data) if path.suffix == ".gz" else data for path, data in files.items()}
    return [str(path) for path, data in plain.items() if word in data]


def test_no_path_of_the_user_s_own(tmp_path):
    """Her images and her results lie in a folder of her name, and one record there cannot be read."""
    home = tmp_path / "home-of-anna"
    for index in range(12):
        for name, grey in (("cat", index), ("dog", 100 + index)):
            (home / "pets" / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), grey).save(home / "pets" / name / f"{index}.png")
    words = [f"--data.name=folder:{home / 'pets'}", "--data.N_s=2", f"--results={home / 'results'}"]
    done = fssl(tmp_path, "run", *SMALL, *words, "--wandb=offline")
    assert done.returncode == 0, done.stderr
    (mirrored,) = home.rglob("*.wandb")  # logs stay here
    assert b"folder:pets" in mirrored.read_bytes() and b"home-of-anna" not in mirrored.read_bytes()
    (record,) = home.glob("results/runs/*/seed=0")
    (record.with_name("seed=1")).mkdir()
    (record.with_name("seed=1") / "experiment.json").write_text("{")
    assert main(["report", "--profile=demo", f"--results={home / 'results'}", f"--site={tmp_path / 'site'}"]) == 0
    assert holding(tmp_path / "site", b"folder:pets") and "seed=1" in (tmp_path / "site" / "index.html").read_text()
    assert holding(tmp_path / "site", b"home-of-anna") == []
