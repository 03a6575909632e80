"""Sets in torchvision's layouts, downloads (faked: tests have no network), a user's folder.

Shapes: N images, C channels, H x W pixels.
"""

import gzip
import hashlib
import urllib.error
import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.data.datasets import load
from benchmark.errors import DataError
from tests.data.places import of_any_size, own_cache, save_images  # noqa: F401 - fixtures


def idx(array: np.ndarray) -> bytes:
    """Return the array in the MNIST file format: two zero bytes, type 8 (uint8), rank, big-endian sizes, data."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


def save_idx(folder: Path, prefix: str, images_NHW: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "test" if prefix else "t10k"):
        (folder / f"{prefix}{part}-images-idx3-ubyte").write_bytes(idx(images_NHW))
        (folder / f"{prefix}{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(len(images_NHW))))


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(
    ("name", "kind", "prefix"),
    [("fashion_mnist", "FashionMNIST", ""), ("emnist_balanced", "EMNIST", "emnist-balanced-")],
)
def test_torchvisions_layout_is_known_by_the_archives_that_its_files_came_in(tmp_path, monkeypatch, name, kind, prefix):
    """EMNIST is turned upright. torchvision's checksums are replaced by those of archives made here."""
    images_NHW = np.arange(160, dtype=np.uint8).reshape(10, 4, 4)
    raw = tmp_path / name / kind / "raw"
    save_idx(raw, prefix, images_NHW)
    before = sorted(tmp_path.rglob("*"))
    loaded = load(name, tmp_path)
    upright_NHW = images_NHW.transpose(0, 2, 1) if prefix else images_NHW
    assert torch.equal(loaded.train_images_NCHW[:, 0], torch.as_tensor(upright_NHW.copy()))
    assert loaded.test_labels_N.tolist() == list(range(10)) and loaded.note == "files of unknown origin"
    assert loaded.num_classes == (47 if prefix else 10) and loaded.classes[:1] == ("0" if prefix else "T-shirt/top",)
    assert sorted(tmp_path.rglob("*")) == before

    archives = {f"{file.name}.gz": gzip.compress(file.read_bytes()) for file in raw.iterdir()}
    if prefix:
        with zipfile.ZipFile(raw / "gzip.zip", "w") as archive:
            for file, content in archives.items():
                archive.writestr(f"gzip/{file}", content)
        md5 = hashlib.md5((raw / "gzip.zip").read_bytes()).hexdigest()
        monkeypatch.setattr(f"torchvision.datasets.{kind}.md5", md5)
    else:
        for file, content in archives.items():
            (raw / file).write_bytes(content)
        checksums = [(file, hashlib.md5(content).hexdigest()) for file, content in archives.items()]
        monkeypatch.setattr(f"torchvision.datasets.{kind}.resources", checksums)
    assert load(name, tmp_path).note == ""
    next(raw.glob("*train-labels-idx1-ubyte")).write_bytes(idx(np.arange(10)[::-1]))
    assert load(name, tmp_path).note == "files of unknown origin"


def test_another_number_of_images_than_the_sets_is_refused(tmp_path):
    save_idx(tmp_path / "MNIST" / "raw", "", np.zeros((10, 4, 4)))
    with pytest.raises(DataError, match="mnist has 10 training and .*, but that set has 60,000 .*folder:PATH"):
        load("mnist", tmp_path)


def test_no_network_says_where_it_looked_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=urllib.error.URLError("unreachable")))
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError) as caught:
        load("svhn", tmp_path / "data")
    line = str(caught.value)
    searched = (str(tmp_path / "data"), str(tmp_path / "cache"))
    assert all(word in line for word in ("svhn", *searched, "FSSL_DATA", "network"))
    assert "\n" not in line and caught.value.exit_code == 66
    assert not list((tmp_path / "cache").glob("*svhn*")) and not list((tmp_path / "data").iterdir())


@pytest.mark.usefixtures("of_any_size")
def test_a_download_fills_the_cache_and_keeps_standard_output_clean(tmp_path, monkeypatch, capsys):
    """torchvision's downloader is replaced by one that serves MNIST's four files from memory."""
    images_NHW = np.arange(160, dtype=np.uint8).reshape(10, 4, 4)

    def serve(url, download_root, filename, md5):
        print("Downloading", url)
        part = images_NHW if "images" in filename else np.arange(10)
        with gzip.open(Path(download_root) / filename, "wb") as file:
            file.write(idx(part))
        raw = Path(download_root) / filename.removesuffix(".gz")
        raw.write_bytes(idx(part))

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", serve)
    loaded = load("mnist")
    assert torch.equal(loaded.train_images_NCHW[:, 0], torch.as_tensor(images_NHW))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mnist"]
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", None)
    assert load("mnist").content_hash == loaded.content_hash
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("of_any_size")
def test_cinic10_is_read_from_its_folders_and_then_from_the_cache(tmp_path, monkeypatch):
    """Parts of two classes, in order; valid is not used. What is written anew is read anew."""
    folder = tmp_path / "cinic10"
    for part, count in (("train", 3), ("valid", 9), ("test", 2)):
        for label, name in enumerate(("airplane", "cat")):
            save_images(folder / part / name, count + label, red=part == "test", green=label)
    opened = Mock(wraps=Image.open)
    monkeypatch.setattr(Image, "open", opened)
    first, again = load("cinic10", tmp_path), load("cinic10", tmp_path)
    assert opened.call_count == 3 + 4 + 2 + 3 and first.content_hash == again.content_hash
    assert first.train_labels_N.tolist() == [0] * 3 + [1] * 4 and first.test_labels_N.tolist() == [0] * 2 + [1] * 3
    assert again.train_images_NCHW[:, :, 0, 0].tolist() == [
        [10 * index, 20 + label, 30] for label in (0, 1) for index in range(3 + label)
    ]
    assert again.classes == ("airplane", "cat") and again.std == (0.2421, 0.2383, 0.2587)
    Image.new("RGB", (6, 5), (1, 2, 3)).save(folder / "test" / "cat" / "3.png")
    assert load("cinic10", tmp_path).test_images_NCHW[-1, :, 0, 0].tolist() == [1, 2, 3]
    (folder / "test" / "cat").rename(folder / "test" / "dog")
    with pytest.raises(DataError, match="cinic10 is incomplete .*different classes"):
        load("cinic10", tmp_path)


def test_cinic10_that_is_not_there_says_where_it_is(tmp_path):
    with pytest.raises(
        DataError, match=r"cinic10 is not in .*: unpack https://datashare.*CINIC-10.tar.gz there, as cinic"
    ):
        load("cinic10", tmp_path)
