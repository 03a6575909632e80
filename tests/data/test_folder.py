"""A user's own images are learned as a person sees them, each once, or refused by name; their path stays at home."""

import io
import json
import os
import shutil
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.cli import report
from benchmark.data import folder as folder_module
from benchmark.data.datasets import DataSet, load
from benchmark.errors import ConfigError, DataError
from benchmark.papers.items import items
from benchmark.records import copies
from sweeps.factors import experiment_of
from tests.data.places import save_images
from tests.federated.helpers import in_a_process

SIZE = (4, 2)  # pixels: wide and high
LEFT_DARK = np.array([[0, 0, 200, 200]] * 2, dtype=np.uint8)  # what a person sees


@pytest.fixture
def pets(tmp_path) -> Path:
    """Make folders cat and dog with two grey images each, all of them different; the first one is 4 x 2 pixels."""
    for label, name in enumerate(("cat", "dog")):
        save_images(tmp_path / "pets" / name, 2, "L", SIZE, red=50 * label)
    return tmp_path / "pets"


def loaded(folder: Path) -> DataSet:
    return load(f"folder:{folder}?size=4")


def all_images(data: DataSet) -> list[np.ndarray]:
    return [image.numpy() for part in (data.train_images_NCHW, data.test_images_NCHW) for image in part]


def seen(folder: Path, image: Image.Image, name: str = "new.png", **options: Any) -> Any:
    """Return the image in the form that is learned: channels last, or without channels if it is grey."""
    shutil.rmtree(folder / "owl", ignore_errors=True)
    (folder / "owl").mkdir()
    image.save(folder / "owl" / name, **options)
    Image.new("L", SIZE, 255).save(folder / "owl" / "other.png")
    data = load(f"folder:{folder}")
    labels = [*data.train_labels_N.tolist(), *data.test_labels_N.tolist()]
    (found,) = [
        image for image, label in zip(all_images(data), labels, strict=True) if label == 2 and image.min() < 255
    ]
    return found[0].tolist() if len(found) == 1 else found.transpose(1, 2, 0).tolist()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def sixteen_bits(mode: str) -> Image.Image:
    """Return an image with 257 * v in place of each v of 255."""
    order = ">u2" if mode.endswith("B") else "<u2"
    return Image.frombytes(mode, SIZE, (LEFT_DARK.astype(np.uint32) * 257).astype(order).tobytes())


def hidden_half() -> Image.Image:
    image = Image.new("RGBA", SIZE, (9, 9, 9, 0))
    image.paste((0, 100, 200, 255), (0, 0, 2, 2))
    return image


GRAY = LEFT_DARK.tolist()
BLACK_AND_WHITE = (255 * (LEFT_DARK > 0)).tolist()
LOOKS: dict[str, tuple[Image.Image, str, dict[str, Any], list[Any]]] = {
    "turned as EXIF says": (Image.fromarray(LEFT_DARK[::-1, ::-1].copy()), "a.png", {"exif": turned(3)}, GRAY),
    "16 bits": (sixteen_bits("I;16"), "a.tif", {}, GRAY),
    "16 bits, big end first": (sixteen_bits("I;16B"), "a.tif", {}, GRAY),
    "transparent pixels are white": (hidden_half(), "a.png", {}, [[[0, 100, 200]] * 2 + [[255, 255, 255]] * 2] * 2),
    "a fifth of 55 over white": (Image.new("LA", SIZE, (55, 51)), "a.png", {}, [[[215] * 3] * 4] * 2),
    "a palette of grays": (Image.fromarray(LEFT_DARK).convert("P"), "a.png", {}, GRAY),
    "a palette of colours": (Image.new("RGB", SIZE, "red").convert("P"), "a.png", {}, [[[255, 0, 0]] * 4] * 2),
    "one bit": (Image.fromarray(LEFT_DARK > 0), "a.png", {}, BLACK_AND_WHITE),
    "print colours": (Image.new("CMYK", SIZE, (0, 255, 255, 0)), "a.tif", {}, [[[255, 0, 0]] * 4] * 2),
}


@pytest.mark.parametrize(("image", "name", "options", "look"), LOOKS.values(), ids=LOOKS)
def test_images_are_learned_as_a_person_sees_them(pets, image, name, options, look):
    actual = np.array(seen(pets, image, name, **options))
    expected = np.array(look)
    assert np.array_equal(actual, expected if expected.ndim == actual.ndim else expected[..., 0])


def test_the_first_photographs_size_is_that_after_turning(pets):
    """A quarter turn: 2 x 4 stored is 4 x 2 seen."""
    Image.new("L", (2, 4), 7).save(pets / "cat" / "0.png", exif=turned(6))
    assert load(f"folder:{pets}").image_shape == (1, 2, 4)


def test_one_gray_image_that_sorts_first_makes_no_colour_set_gray(pets):
    Image.new("RGB", SIZE, (200, 10, 10)).save(pets / "dog" / "z.png")
    data = load(f"folder:{pets}")
    assert data.image_shape[0] == 3
    assert [200, 10, 10] in [image[:, 0, 0].tolist() for image in all_images(data)]


TWO_FRAMES = {"save_all": True, "append_images": [Image.new("L", SIZE, 1)]}


@pytest.mark.parametrize(
    ("image", "name", "options", "words"),
    [
        (Image.new("F", SIZE, 0.5), "new.tif", {}, "not integers"),
        (Image.new("I", SIZE, 70_000), "new.tif", {}, "65535"),
        (Image.new("L", SIZE, 9), "new.gif", TWO_FRAMES, "2 frames"),
    ],
)
def test_what_has_no_one_look_is_refused_by_name(pets, image, name, options, words):
    with pytest.raises(DataError, match=rf"owl/{name}.*{words}"):
        seen(pets, image, name, **options)


@pytest.mark.parametrize("name", ["notes.txt", "photo.heic", "archive.zip"])
def test_a_file_that_is_no_image_is_refused_by_name(pets, name):
    (pets / "cat" / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"cat/{name} is not an image"):
        loaded(pets)


def test_what_systems_and_editors_leave_is_passed_over(pets):
    before = loaded(pets)
    for name in (".DS_Store", "._0.png", "Thumbs.db", "desktop.ini", "0.png~"):
        (pets / "cat" / name).write_bytes(b"x")
    for folder in (".ipynb_checkpoints", "__MACOSX", "cat/.ipynb_checkpoints"):
        (pets / folder).mkdir()
        Image.new("L", SIZE, 99).save(pets / folder / "0-checkpoint.png")
    (pets / "README.txt").write_text("beside the classes")
    after = loaded(pets)
    assert after.content_hash == before.content_hash and after.note == "own split"


def test_links_and_copies_are_learned_once(pets, capsys):
    before = loaded(pets)
    os.symlink(pets / "cat" / "0.png", pets / "cat" / "b.png")
    os.symlink(pets / "cat", pets / "cat" / "loop")
    assert loaded(pets).content_hash == before.content_hash
    shutil.copy(pets / "cat" / "0.png", pets / "cat" / "0 (1).png")
    copied = loaded(pets)
    assert len(all_images(copied)) == 4 and copied.note == "own split, 1 copies left out"
    assert "1 copies left out" in capsys.readouterr().err


def test_one_image_in_two_classes_or_in_train_and_test_is_said(pets):
    shutil.copy(pets / "cat" / "0.png", pets / "dog" / "same.png")
    assert "1 images in several classes" in loaded(pets).note
    for part in ("train", "test", "val"):
        shutil.copytree(pets, pets.parent / "parted" / part)
    note = loaded(pets.parent / "parted").note
    assert note.startswith("val/ left out, ") and "train/ and test/" in note


def test_a_folder_with_train_and_test(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            save_images(tmp_path / part / name, count + label, red=part == "test", green=label)
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("cat", "dog") and data.image_shape == (3, 5, 6)
    assert data.train_labels_N.tolist() == [0] * 3 + [1] * 4
    assert data.train_images_NCHW[2, :, 0, 0].tolist() == [20, 20, 30]
    assert len(data.test_labels_N) == 5 and data.note == ""
    assert load(f"folder:{tmp_path}?size=8").image_shape == (3, 8, 8)


def test_a_folder_of_classes_is_split_80_20(tmp_path):
    """20 and 10 images: 4 and 2 of them for the test; the same split wherever the folder lies; gray stays gray."""
    for place in ("here", "there"):
        save_images(tmp_path / place / "cat", 20, "L")
        save_images(tmp_path / place / "dog", 10, "L", size=(12, 10))
    here, there = (load(f"folder:{tmp_path / place}") for place in ("here", "there"))
    assert torch.bincount(here.test_labels_N).tolist() == [4, 2]
    assert torch.bincount(here.train_labels_N).tolist() == [16, 8]
    assert here.image_shape == (1, 5, 6)
    assert here.content_hash == there.content_hash
    assert here.note == "own split"


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ("?size=0", ConfigError, "from 1 to 1024"),
        ("?size=1025", ConfigError, "from 1 to 1024"),
        (f"?size={'9' * 5000}", ConfigError, "from 1 to 1024"),
        ("?width=32", ConfigError, "width=32"),
        ("/absent", DataError, "absent"),
        ("/cat", DataError, "one folder per class"),
        ("/half", DataError, "only train/"),
        ("/lonely", DataError, "has 1 class folder, a, "),
        ("/empty", DataError, "empty/b has no image"),
        ("/broken", DataError, r"0\.png is not a readable image"),
        ("/one", DataError, "class a has 1 image"),
        ("/unlike", DataError, "class b is only in train/"),
    ],
)
def test_folders_that_cannot_be_a_set(tmp_path, option, error, words):
    for folder in ("cat", "half/train/a", "lonely/a", "broken/a", "broken/b", "one/b", "empty/a"):
        save_images(tmp_path / folder, 2)
    for folder in ("one/a", "unlike/train/a", "unlike/train/b", "unlike/test/a", "unlike/test/c"):
        save_images(tmp_path / folder, 1)
    (tmp_path / "empty" / "b").mkdir()
    whole = (tmp_path / "broken" / "a" / "0.png").read_bytes()
    (tmp_path / "broken" / "a" / "0.png").write_bytes(whole[:40])
    with pytest.raises(error, match=words):
        load(f"folder:{tmp_path}{option}")


def test_ten_labels_a_class_are_the_default(pets, tmp_path, printed):
    """On the command line, in a grid and in an item; a number that is given stays. 50 is no multiple of 3 classes."""
    save_images(pets / "owl", 2)
    data = f"folder:{pets}"
    (tmp_path / "mine.toml").write_text(f'rows = {{ All = {{ data = "{data}" }} }}')
    (item,) = items([str(tmp_path / "mine.toml")], "demo")
    assert item.cells[0].experiment.data.N_s == 30
    assert experiment_of({"data.name": data}).data.N_s == 30
    for words, N_s in (([], 30), (["--data.N_s=12"], 12)):
        assert json.loads(printed("run", "--data", data, *words, "--print-config"))["data"]["N_s"] == N_s


# Parts of a set under other names


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("train_images", "test_images"),
        ("Train", "Test"),
        ("TRAIN", "TEST"),
        ("Training", "Testing"),
        ("training_set", "test_set"),
        ("trainset", "testset"),
        ("seg_train", "seg_test"),
        ("images-train", "images-val"),
        ("trainImages", "validationImages"),
        ("train2017", "val2017"),
        ("train", "validation"),
    ],
)
def test_parts_under_other_names_are_not_taken_for_classes(tmp_path, first, second):
    for part in (first, second):
        for name in ("cat", "dog"):
            save_images(tmp_path / "pets" / part / name, 2, "L", SIZE)
    with pytest.raises(DataError, match="train/ and test/"):
        loaded(tmp_path / "pets")


@pytest.mark.parametrize(
    "classes", [("passenger_train", "bus"), ("trainer", "tester"), ("freight_train", "test_car"), ("val", "dev")]
)
def test_classes_with_such_words_are_classes(tmp_path, classes):
    for label, name in enumerate(classes):
        save_images(tmp_path / "pets" / name, 2, "L", SIZE, red=50 * label)
    assert {*loaded(tmp_path / "pets").classes} == {*classes}


def test_folders_below_classes_are_named_where_they_may_be_parts(tmp_path, capsys):
    for label, name in enumerate(("cat", "dog")):
        for part in ("fold1", "fold2"):
            save_images(tmp_path / "pets" / name / part, 2, "L", SIZE, red=50 * label)
    assert len(all_images(loaded(tmp_path / "pets"))) > 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("cat, dog", "fold1, fold2"))


# Names and files


def test_a_class_has_one_name_in_both_forms_of_unicode(tmp_path):
    composed, apart = "caf\u00e9", "cafe\u0301"
    for part, name in (("train", composed), ("test", apart)):
        for label, of_class in enumerate((name, "zoo")):
            save_images(tmp_path / "pets" / part / of_class, 2, "L", SIZE, red=50 * label)
    assert loaded(tmp_path / "pets").classes == (composed, "zoo")
    save_images(tmp_path / "twice" / composed, 2, "L", SIZE)
    save_images(tmp_path / "twice" / apart, 2, "L", SIZE, red=50)
    with pytest.raises(DataError, match="Unicode"):
        loaded(tmp_path / "twice")


def test_a_folder_whose_name_is_not_text_is_refused(tmp_path):
    for folder in (os.fsdecode(os.fsencode(tmp_path) + b"/pets\xff"), os.fsdecode(os.fsencode(tmp_path) + b"/in")):
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("cat", "dog" if "in" not in Path(folder).name else os.fsdecode(b"dog\xff")):
            save_images(Path(folder) / name, 2, "L", SIZE)
        with pytest.raises(DataError, match="UTF-8") as refused:
            loaded(Path(folder))
        str(refused.value).encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x00\x00\x00\x07\x00\x00\x00\x05", b"\xff\xff\xff\xff\x00\x00\x00\x00"),  # a rational number: -1/0
        (b"\x01\x28\x00\x03", b"\x01\x28\x00\x02"),  # ResolutionUnit: text in a short tag
    ],
)
def test_exif_that_viewers_pass_over_is_passed_over(pets, old, new):
    exif = turned(3)
    exif[0x011A], exif[0x0128] = 7 / 5, 2
    file = io.BytesIO()
    Image.fromarray(np.repeat(np.repeat(LEFT_DARK, 8, 0), 8, 1)).save(file, "JPEG", exif=exif)
    content = file.getvalue()
    for before, after in ((old, new), (old[::-1], new[::-1])):
        content = content.replace(before, after)
    (pets / "owl").mkdir()
    (pets / "owl" / "a.jpg").write_bytes(content)
    Image.new("L", SIZE, 255).save(pets / "owl" / "b.png")
    loaded(pets)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "DDS", "GIF", "BMP", "WEBP", "AVIF"])
def test_a_damaged_file_is_named_whatever_it_is(pets, kind):
    file = io.BytesIO()
    try:
        Image.effect_noise((32, 32), 50).convert("RGB").save(file, kind)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow writes no {kind}")
    whole = file.getvalue()
    damaged = pets / "cat" / f"damaged.{kind.lower()}"
    generator = np.random.default_rng(0)
    for _ in range(40):
        content = np.frombuffer(whole, dtype=np.uint8)[: int(generator.integers(8, len(whole)))].copy()
        places = generator.integers(4, len(content), size=6)
        content[places] = generator.integers(0, 256, size=6)
        damaged.write_bytes(content.tobytes())
        try:
            loaded(pets)
        except DataError as error:
            assert str(damaged) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("error", [struct.error("x"), TypeError("x"), KeyError(3), ZeroDivisionError(), MemoryError()])
def test_whatever_pillow_raises_names_the_file(pets, monkeypatch, error):
    def fails(*_):
        raise error

    monkeypatch.setattr(Image.Image, "getexif", fails)
    with pytest.raises(DataError, match=r"pets/cat/.*\.png"):
        loaded(pets)


def test_photographs_need_a_size(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(2):
            Image.new("L", (4000, 3000), index).save(tmp_path / "pets" / name / f"{index}.png")
    with pytest.raises(DataError, match=r"\?size=32"):
        load(f"folder:{tmp_path / 'pets'}")
    assert load(f"folder:{tmp_path / 'pets'}?size=8").image_shape == (1, 8, 8)


def test_images_that_would_fill_the_memory_need_a_size(pets, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1}.get(name, 100))
    with pytest.raises(DataError, match=r"\?size=32"):
        load(f"folder:{pets}")


def test_a_record_of_a_folder_whose_name_is_not_text_ends_no_report(tmp_path, monkeypatch, printed):
    """Older versions trained on it."""
    monkeypatch.setattr(folder_module, "_check_text", lambda path: None)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/pets\xff"))
    for label, name in enumerate(("cat", "dog")):
        save_images(folder / name, 20, "L", (8, 8), red=50 * label)
    short = ["--federation.rounds=1", "--federation.T=1", "--federation.K=2", "--data.N_s=4", "--engine", "reference"]
    printed("run", "--data.name", f"folder:{folder}", "--results", tmp_path / "r", *short)
    monkeypatch.setattr(report, "ITEMS", {})
    monkeypatch.setattr(report, "VARIANTS", {})
    monkeypatch.setattr(copies, "COMMITTED", tmp_path / "nothing")
    printed("report", "--results", tmp_path / "r")
    assert "pets" in (tmp_path / "r/site/mine/your-runs/custom/table.md").read_text()


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "link to nothing", "socket"])
def test_only_regular_files_are_read(pets, kind):
    """A pipe would be waited for, and a device read, without an end."""
    place = pets / "cat" / "x.png"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place))
    else:
        place.symlink_to({"link to nothing": "nowhere"}.get(kind, "/dev/zero"))
    done = in_a_process(partial(refusal_of, pets))
    assert str(place) in done


def refusal_of(folder: Path) -> str:
    try:
        loaded(folder)
    except DataError as error:
        return str(error)
    return ""
