"""Packed files: complete, damaged, known by hash; the cache of decoded pixels.

Real packed sets are in FSSL_DATA or in ../shared/data next to the project; their tests skip without them.
Shapes: N images, C channels, H x W pixels.
"""

import io
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.data import packed
from benchmark.data.datasets import DATASETS, load
from benchmark.errors import DataError
from tests.data.places import REAL, needs, of_any_size, own_cache  # noqa: F401 - fixtures

TOY = "stl10"  # a name for made-up sets: no packed file of this name is known by hash


def save(folder: Path, split: str, **changed: Any) -> Path:
    """Save a packed grey file of six 4x4 images in two classes, except for the given arrays; None leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    images_NHW = np.arange(96, dtype=np.uint8).reshape(6, 4, 4)
    labels_N = np.arange(6, dtype=np.uint8) % 2
    arrays: dict[str, Any] = {"images": images_NHW, "labels": labels_N, "classes": np.array(["cat", "dog"])}
    arrays |= changed
    path = folder / f"{split}.npz"
    present: dict[str, Any] = {key: value for key, value in arrays.items() if value is not None}
    np.savez(path, **present)
    return path


def encoded(images_NHWC: np.ndarray) -> dict[str, Any]:
    files = []
    for image_HWC in images_NHWC:
        buffer = io.BytesIO()
        Image.fromarray(image_HWC).save(buffer, "webp", lossless=True)
        files.append(buffer.getvalue())
    offsets = np.cumsum([0, *map(len, files)], dtype=np.int64)
    return {"images": None, "webp": np.frombuffer(b"".join(files), np.uint8), "offsets": offsets}


COLOUR_NHWC = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)


@pytest.mark.usefixtures("of_any_size")
def test_packed_parts_come_in_number_order(tmp_path):
    """Eleven parts: part 10 comes after part 9, not after part 1."""
    for number in range(11):
        save(tmp_path / TOY, f"train_{number}", images=np.full((6, 4, 4), number, np.uint8))
    save(tmp_path / TOY, "test")
    assert load(TOY, tmp_path).train_images_NCHW[::6, 0, 0, 0].tolist() == list(range(11))
    (tmp_path / TOY / "train_4.npz").unlink()
    with pytest.raises(DataError, match=r"train_4\.npz is missing"):
        load(TOY, tmp_path)


@pytest.mark.usefixtures("of_any_size")
def test_encoded_images_are_decoded_once_and_a_damaged_cache_is_rebuilt(tmp_path, monkeypatch):
    for split in ("train", "test"):
        save(tmp_path / TOY, split, **encoded(COLOUR_NHWC))
    first = load(TOY, tmp_path)
    assert torch.equal(first.train_images_NCHW, torch.as_tensor(COLOUR_NHWC).permute(0, 3, 1, 2))

    decode = Mock(wraps=packed._decode_one)
    monkeypatch.setattr(packed, "_decode_one", decode)
    assert load(TOY, tmp_path).content_hash == first.content_hash
    assert decode.call_count == 0

    (cached,) = (tmp_path / "cache" / "decoded").glob("*.npz")  # train and test are the same file here
    whole = cached.read_bytes()
    pixel = whole.index(first.train_images_NCHW.numpy().tobytes()) + 7
    for damaged in (whole[:-9], whole[:pixel] + bytes([whole[pixel] ^ 1]) + whole[pixel + 1 :], b""):
        cached.write_bytes(damaged)
        decode.reset_mock()
        assert torch.equal(load(TOY, tmp_path).train_images_NCHW, first.train_images_NCHW)
        assert decode.call_count == 6
        assert torch.equal(torch.as_tensor(np.load(cached)["images"]), first.train_images_NCHW)


@pytest.mark.usefixtures("of_any_size")
def test_a_cache_that_cannot_be_written_is_only_slower(tmp_path, monkeypatch):
    for split in ("train", "test"):
        save(tmp_path / TOY, split, **encoded(COLOUR_NHWC))
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="cannot be written"):
        assert len(load(TOY, tmp_path).train_labels_N) == 6


NO_IMAGES = {"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, np.uint8)}
NOISE = {"images": None, "webp": np.zeros(60, np.uint8), "offsets": np.arange(0, 61, 10)}
WRONG = {
    "labels out of range": (
        {"labels": np.array([0, 1, 2, 0, 1, 0], np.uint8)},
        "labels range over 0..2, but 2 classes",
    ),
    "negative labels": ({"labels": np.array([0, 1, -1, 0, 1, 0])}, "labels range over -1..1"),
    "labels of a wrong type": ({"labels": np.zeros(6, np.float32)}, "labels are float32"),
    "fewer labels than images": ({"labels": np.zeros(5, np.uint8)}, "6 images and 5 labels"),
    "images of a wrong shape": ({"images": np.zeros((6, 16), np.uint8)}, "u1 with 3 axes"),
    "no images": ({"images": None}, "images"),
    "pickled classes": ({"classes": np.array(["cat", 1], dtype=object)}, "allow_pickle=False"),
    "other classes than the test part": ({"classes": np.array(["cat", "cow"])}, "different classes"),
    "no image at all": (NO_IMAGES, "0 images and 0 labels"),
    "another size than the test part": ({"images": np.zeros((6, 3, 4), np.uint8)}, "test images are"),
    "offsets past the end": (encoded(COLOUR_NHWC) | {"offsets": np.arange(7) * 9999}, "offsets do not divide"),
    "offsets of a wrong type": (encoded(COLOUR_NHWC) | {"offsets": np.zeros(7)}, "offsets are float64"),
    "bytes that are no image": (NOISE, "cannot identify image"),
}


@pytest.mark.parametrize(("changed", "words"), WRONG.values(), ids=WRONG)
def test_contents_that_contradict_themselves(tmp_path, changed, words):
    save(tmp_path / TOY, "train", **changed)
    save(tmp_path / TOY, "test")
    with pytest.raises(DataError) as caught:
        load(TOY, tmp_path)
    line = str(caught.value)
    assert TOY in line and words in line and "\n" not in line


@needs("emnist_balanced_small")
def test_known_files_are_checked_by_hash(tmp_path):
    folder = tmp_path / "emnist_balanced_small"
    shutil.copytree(REAL / folder.name, folder)
    loaded = load(folder.name, tmp_path)
    assert loaded.image_shape == (1, 28, 28) and loaded.num_classes == 47
    assert len(loaded.train_labels_N) == len(loaded.test_labels_N) == 2000
    assert "not comparable" in loaded.note
    save(folder, "train")
    actual = packed.file_sha256(folder / "train.npz")
    expected = DATASETS["emnist_balanced_small"].packed_sha256["train.npz"]
    with pytest.raises(DataError, match=f"train.npz: .* {actual}, .* {expected}"):
        load(folder.name, tmp_path)


@needs("cifar10")
def test_known_parts_are_all_demanded(tmp_path):
    """cifar10's train is two known parts: the first alone would be a whole-looking set of 25,000."""
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for name in ("test.npz", "train_0.npz"):
        (folder / name).symlink_to(REAL / "cifar10" / name)
    with pytest.raises(DataError, match=r"cifar10: train_1\.npz is missing"):
        load("cifar10", tmp_path)


@pytest.mark.usefixtures("of_any_size")
def test_the_environment_names_the_root(tmp_path, monkeypatch):
    for split in ("train", "test"):
        save(tmp_path / TOY, split)
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    assert load(TOY).classes == ("cat", "dog")
    with pytest.raises(DataError, match=r"ham10000_64 is not in .*set FSSL_DATA"):
        load("ham10000_64")
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match="typo .*does not exist"):
        load(TOY)
