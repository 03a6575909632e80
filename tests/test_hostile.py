"""Files and words that mean harm: nothing of theirs runs, and nothing leaks."""

import os
import pickle
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.cli.run import resolve
from benchmark.config import merge
from benchmark.data import packed
from benchmark.data.datasets import load
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import from_json, to_json
from benchmark.plain import read_table
from benchmark.records.record import run_folder
from tests.conftest import tiny_experiment


class Evil:
    """A pickle that touches a file when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (os.system, (f"touch {self.canary}",))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", ["cifar-10-batches-py/" + n for n in ("batches.meta", "test_batch", "data_batch_1")]),
        ("cifar100", ["cifar-100-python/" + n for n in ("meta", "test", "train")]),
    ],
)
def test_pickles_in_a_data_set_are_not_loaded_unless_they_are_the_known_ones(tmp_path, monkeypatch, name, files):
    """CIFAR is published as pickles: other content is refused by its hash before it is read."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    for file in files:
        path = tmp_path / "data" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Evil(tmp_path / "canary")))
    with pytest.raises(DataError, match=f"{name} is incomplete"):
        load(name, tmp_path / "data")
    assert not (tmp_path / "canary").exists()
    pickle.loads((tmp_path / "data" / files[0]).read_bytes())
    assert (tmp_path / "canary").exists()  # so the file would have done it


def test_an_archive_of_nearly_nothing_is_not_unpacked(tmp_path, monkeypatch):
    """Zeros pack a thousand to one; here 4 MB are as many as 256 MB."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
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
    with pytest.raises(DataError, match="a.png: not a readable image"):
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


def escaping_tar(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in OUTSIDE:
            archive.addfile(tarfile.TarInfo(name))


def escaping_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in OUTSIDE:
            archive.writestr(name, "out")


@pytest.mark.parametrize(("name", "write"), [("cifar10", escaping_tar), ("emnist_balanced", escaping_zip)])
@pytest.mark.parametrize("trusted", [False, True], ids=["wrong hash", "hash not looked at"])
def test_an_archive_that_would_leave_its_folder(tmp_path, monkeypatch, name, write, trusted):
    """Refused by its hash; and were the hash right (as after an attack on it), still nothing lies outside."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "a" / "cache"))
    monkeypatch.delenv("FSSL_DATA", raising=False)
    fetched = []

    def fetch(url, filename, *args):
        write(Path(filename))
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
        "optimizer: {kind: sgd, 1e3: 2, schedule: {kind: cosine, 3: 4}}",
        "method: [{null: 1}]",
        "federation: {K: .nan}",
        "federation: {T: '3; touch canary'}",
        "{",
        "\t",
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
