"""What leaves the machine: records, pages, and what W&B is sent."""

import gzip
from pathlib import Path

from PIL import Image

from benchmark.cli import report
from benchmark.cli.main import main
from benchmark.papers import catalogue
from tests.test_surroundings import SMALL, fssl

SECRETS = {
    "WANDB_API_KEY": "local-d41d8cd98f00b204e9800998ecf8427e51",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_not_a_token_of_anybody_0123456789",
}


def holding(folder: Path, word: str) -> list[str]:
    """The files that have the word, also those that are compressed."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = {path: gzip.decompress(data) if path.suffix == ".gz" else data for path, data in files.items()}
    return [str(path) for path, data in plain.items() if word.encode() in data]


def test_no_path_and_no_secret_of_the_user_s_own(tmp_path, monkeypatch, capfd):
    """Her images and her results lie in a folder of her name, one record there cannot be read, and one run diverged."""
    for module in (catalogue, report):
        monkeypatch.setattr(module, "ITEMS", {})
        monkeypatch.setattr(module, "VARIANTS", {})
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home-of-anna"
    for index in range(12):
        for name, grey in (("cat", index), ("dog", 100 + index)):
            (home / "pets" / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), grey).save(home / "pets" / name / f"{index}.png")
    results, site = home / "results", tmp_path / "site"
    words = [
        *SMALL[1:],
        "--federation.rounds=2",
        f"--data.name=folder:{home / 'pets'}",
        "--data.N_s=2",
        f"--results={results}",
    ]
    done = fssl(tmp_path, "run", *words, "--wandb=offline", **SECRETS)
    assert done.returncode == 0, done.stderr
    assert main(["run", *words, "--optimizer.lr=1e30"]) == 70
    (mirrored,) = home.rglob("*.wandb")  # logs stay here
    assert b"folder:pets" in mirrored.read_bytes() and b"home-of-anna" not in mirrored.read_bytes()
    record = next(home.glob("results/runs/*/seed=0"))
    (record.with_name("seed=1")).mkdir()
    (record.with_name("seed=1") / "experiment.json").write_text("{")
    assert main(["report", f"--results={results}", f"--site={site}"]) == 0
    assert holding(site, "folder:pets") and "seed=1" in (site / "index.html").read_text()
    assert holding(site, "home-of-anna") == []
    assert main(["verify", "--retrain=2", "--json", f"--results={results}"]) == 66  # the one that cannot be read
    assert main(["doctor", f"--results={results}"]) in (0, 1)
    printed = "".join([*capfd.readouterr(), done.stdout, done.stderr])
    for name, value in SECRETS.items():
        for word in (name, value):
            assert not holding(results / "runs", word) and not holding(site, word) and word not in printed
            assert word.encode() not in mirrored.read_bytes()
