"""Files, words and machines that mean harm or lack something: nothing of theirs runs, and nothing leaks."""

import gzip
import io
import json
import os
import pickle
import pwd
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.cli import report
from benchmark.cli.main import ROOT, main
from benchmark.cli.run import resolve
from benchmark.config import merge
from benchmark.data import packed
from benchmark.data.datasets import load
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import from_json, to_json
from benchmark.papers import items as paper_items
from benchmark.plain import read_table
from benchmark.records.record import run_folder
from tests.conftest import tiny_experiment
from tests.data.places import own_cache, save_images  # noqa: F401 - a fixture for every test here


class Evil:
    """A pickle that touches a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (os.system, (f"touch {self.canary}",))


def test_pickles_in_a_data_set_are_not_loaded_unless_they_are_the_known_ones(tmp_path):
    """CIFAR is published as pickles: other content is refused by its hash before it is read."""
    (tmp_path / "data" / "cifar-100-python").mkdir(parents=True)
    for name in ("meta", "test", "train"):
        path = tmp_path / "data" / "cifar-100-python" / name
        path.write_bytes(pickle.dumps(Evil(tmp_path / "canary")))
    with pytest.raises(DataError, match="cifar100 is incomplete"):
        load("cifar100", tmp_path / "data")
    assert not (tmp_path / "canary").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "canary").exists()  # so the file would have done it


def test_an_archive_of_nearly_nothing_is_not_unpacked(tmp_path, monkeypatch):
    """Zeros pack a thousand to one; here 4 MB are as many as 256 MB."""
    monkeypatch.setattr(packed, "LARGE", 1 << 20)
    (tmp_path / "mnist").mkdir()
    zeros_NHW = np.zeros((4000, 32, 32), dtype=np.uint8)
    for part in ("train", "test"):
        path = tmp_path / "mnist" / f"{part}.npz"
        np.savez_compressed(path, images=zeros_NHW, labels=zeros_NHW[:, 0, 0], classes=np.array(["0"]))
    with pytest.raises(DataError, match="unpacks to"):
        packed.read_packed(tmp_path / "mnist", {}, "")


def test_images_of_hundreds_of_megapixels_are_not_read(tmp_path):
    """A PNG's first chunk says 20,000 x 20,000."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
        (tmp_path / name / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    with pytest.raises(DataError, match="a.png is not a readable image"):
        load(f"folder:{tmp_path}")


def test_messages_cut_values(tmp_path):
    """Ten levels of nine aliases each are a file of 500 bytes, and gigabytes when they are written out."""
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(["a0: &a0 [x]", *levels])
    for field in ("federation: {K: *a9}", "method: {kind: *a9}", "optimizer: *a9", "data: {name: *a9}", "x: *a9"):
        (tmp_path / "a.yaml").write_text(f"{text}\n{field}\n")
        fields = read_table(tmp_path / "a.yaml")
        for extra in range(10):
            del fields[f"a{extra}"]
        data = to_json(tiny_experiment())
        merge(data, fields)
        with pytest.raises(ConfigError) as refused:
            from_json(data)
        assert len(str(refused.value)) < 1000, field
    with pytest.raises(ConfigError) as refused:
        resolve(None, [f"--data.name={'x' * 10_000}", "--federation.K=" + "9" * 10_000])
    assert len(str(refused.value)) < 1000


OUTSIDE = ("../escaped", "../../escaped", "/var/../escaped")


@pytest.mark.parametrize("name", ["cifar10", "emnist_balanced"])
@pytest.mark.parametrize("trusted", [False, True], ids=["wrong hash", "hash not looked at"])
def test_an_archive_that_would_leave_its_folder(tmp_path, monkeypatch, name, trusted):
    """Refused by its hash; and were the hash right (as after an attack on it), still nothing lies outside."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "a" / "cache"))
    fetched = []

    def fetch(url, filename, *args):
        if name == "cifar10":
            with tarfile.open(filename, "w:gz") as archive:
                for outside in OUTSIDE:
                    archive.addfile(tarfile.TarInfo(outside))
        else:
            with zipfile.ZipFile(filename, "w") as archive:
                for outside in OUTSIDE:
                    archive.writestr(outside, "out")
        fetched.append(url)

    monkeypatch.setattr("torchvision.datasets.utils._get_redirect_url", lambda url, **options: url)
    monkeypatch.setattr("torchvision.datasets.utils._urlretrieve", fetch)
    if trusted:
        monkeypatch.setattr("torchvision.datasets.utils.check_integrity", lambda path, md5=None: os.path.isfile(path))
    with pytest.raises(DataError, match=f"data set {name} is not in .* cannot be downloaded"):
        load(name)
    assert fetched
    outside = [path for path in tmp_path.rglob("escaped*") if path.parent != tmp_path / "a" / "cache"]
    assert outside == [] and not Path("/escaped").exists() and not (tmp_path / "a" / "cache" / name).exists()


@pytest.mark.parametrize(
    "text",
    [
        "seed: !!python/object/apply:os.system ['touch canary']",
        "method: !!python/name:os.system",
        "method: {kind: 'os:system'}",
        "&loop [*loop]",
        "federation: {1: 2}",
        "method: [{null: 1}]",
        "federation: {T: '3; touch canary'}",
    ],
)
def test_a_configuration_file_runs_nothing_and_is_refused_in_one_line(tmp_path, monkeypatch, capsys, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(text)
    code = main(["run", "--config", "a.yaml", "--results", "results"])
    captured = capsys.readouterr()
    assert code in (65, 66) and captured.out == ""
    assert captured.err.startswith("fssl: ") and captured.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml"]


NAMES = st.text() | st.sampled_from(("../../up", "/etc/passwd", "a\0b", "\n\r", "<script>alert(1)</script>", "~/x"))


@given(NAMES, NAMES)
@settings(max_examples=30)
def test_no_name_reaches_a_path(profile, folder):
    """Whatever a profile or a data set is called, its record lies in runs/<16 hexadecimal digits>/seed=<number>."""
    plain = to_json(tiny_experiment())
    plain["profile"], plain["data"]["name"] = profile, f"folder:{folder}"
    path_of_run = run_folder(Path("results"), from_json(plain))
    assert re.fullmatch(r"results/runs/[0-9a-f]{16}/seed=0", str(path_of_run))


SMALL = ["--federation.rounds=1", "--federation.K=2", "--federation.C=2", "--federation.T=1"]


def fssl(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in another process, with these environment variables and no others of this user."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables}
    command = [sys.executable, "-m", "benchmark.cli.main", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "data"], 0),
        (["doctor"], 0),
        (["data", "partition", "--data=mnist", "--federation.K=5"], 66),
        (["status", "--results=~/x"], 65),
        (["run", *SMALL, "--data=folder:~/x"], 65),
    ],
)
def test_a_user_without_a_home(words, code, tmp_path, monkeypatch, capsys):
    """As in a container whose user is a number that no file of names has."""
    for name in ("HOME", "FSSL_DATA", "FSSL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert main(words) == code and not any(tmp_path.iterdir())
    assert code == 0 or capsys.readouterr().err.startswith("fssl: ")


def test_names_that_a_terminal_cannot_show_are_written_by_number(tmp_path, monkeypatch):
    """U+96EA is snow."""
    for grey, name in enumerate(("dog", "\u96ea")):
        save_images(tmp_path / "images" / name, 6, "L", (8, 8), red=100 * grey)
    words = ["--data=folder:images", "--federation.K=2", "--federation.C=2", "--partition=iid", "--data.N_s=2"]
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.chdir(tmp_path)
    assert main(["data", "partition", *words]) == 0 and rb"\u96ea" in shown.buffer.getvalue()


SECRETS = {
    "WANDB_API_KEY": "local-d41d8cd98f00b204e9800998ecf8427e51",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_not_a_token_of_anybody_0123456789",
}


def holding(folder: Path, word: str) -> list[str]:
    """Return the files that contain the word, also the compressed ones."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = {path: gzip.decompress(data) if path.suffix == ".gz" else data for path, data in files.items()}
    return [str(path) for path, data in plain.items() if word.encode() in data]


def test_no_path_and_no_secret_of_the_user_s_own(tmp_path, monkeypatch, capfd):
    """Her images and her results lie in a folder of her name, one record there cannot be read, and one run diverged."""
    for module in (paper_items, report):
        monkeypatch.setattr(module, "ITEMS", {})
        monkeypatch.setattr(module, "VARIANTS", {})
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home-of-anna"
    for name, grey in (("cat", 0), ("dog", 100)):
        save_images(home / "pets" / name, 12, "L", (8, 8), red=grey)
    results, site = home / "results", tmp_path / "site"
    data = [f"--data.name=folder:{home / 'pets'}", "--data.N_s=2"]
    words = [*SMALL[1:], "--federation.rounds=2", *data, f"--results={results}"]
    done = fssl(tmp_path, "run", *words, "--wandb=offline", **SECRETS)
    assert done.returncode == 0, done.stderr
    assert main(["run", *words, "--optimizer.lr=1e30"]) == 70
    (mirrored,) = home.rglob("*.wandb")  # logs stay here
    assert b"folder:pets" in mirrored.read_bytes() and b"home-of-anna" not in mirrored.read_bytes()
    record = next(home.glob("results/runs/*/seed=0"))
    manifest = (record / "manifest.json").read_text()
    assert json.loads(manifest)["data"]["name"] == "folder:pets" and "home-of-anna" not in manifest
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
