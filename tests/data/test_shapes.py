"""The declared shapes are those of the sets at hand."""

import pytest

from benchmark.data.datasets import NAMES, load
from benchmark.data.shapes import SHAPES, image_shape_of
from benchmark.errors import DataError
from tests.conftest import packed_data


def test_every_known_set_has_a_shape():
    assert set(NAMES) == set(SHAPES)


@pytest.mark.parametrize("name", ["digits", "mnist", "emnist_balanced_small", "ham10000_64"])
def test_shapes_are_those_of_the_images(name):
    if name != "digits" and packed_data() is None:
        pytest.skip("the packed data sets are not here")
    data = load(name, packed_data())
    assert image_shape_of(name) == (data.image_shape, data.num_classes)


def test_a_folder_is_read(tmp_path):
    with pytest.raises(DataError):
        image_shape_of(f"folder:{tmp_path / 'nowhere'}")
