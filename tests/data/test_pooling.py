"""Pooled training and test images: every image once with its own label.

Shapes: N images, C channels, H x W pixels.
"""

import pytest
import torch

from benchmark.data.datasets import DataSet
from benchmark.data.pooling import pooled
from benchmark.errors import ConfigError


def numbered(N_train: int, N_test: int, name: str = "toy") -> DataSet:
    """Image i shows i (as two grey levels) and has label i mod 10."""
    values = torch.arange(N_train + N_test)
    images_NCHW = torch.stack([values // 256, values % 256], dim=1).to(torch.uint8).reshape(-1, 1, 1, 2)
    return DataSet(
        name=name, classes=tuple("abcdefghij"), mean=(0.5,), std=(0.5,), content_hash="0" * 64,
        train_images_NCHW=images_NCHW[:N_train], train_labels_N=values[:N_train] % 10,
        test_images_NCHW=images_NCHW[N_train:], test_labels_N=values[N_train:] % 10,
    )  # fmt: skip


def shown(images_NCHW: torch.Tensor) -> torch.Tensor:
    return images_NCHW.reshape(-1, 2).long() @ torch.tensor([256, 1])


def test_every_image_once_with_its_label():
    """FedMatch's proportions: 580 + 20 of 600."""
    pool = pooled(numbered(500, 100), 20, 0)
    assert len(pool.train_labels_N) == 580 and len(pool.test_labels_N) == 20
    seen_N = torch.cat([shown(pool.train_images_NCHW), shown(pool.test_images_NCHW)])
    assert seen_N.sort().values.tolist() == list(range(600))
    assert torch.equal(seen_N % 10, torch.cat([pool.train_labels_N, pool.test_labels_N]))
    assert pool.train_images_NCHW.dtype == torch.uint8


@pytest.mark.parametrize("test", [0, -1, 600])
def test_a_test_set_that_cannot_be(test):
    with pytest.raises(ConfigError, match=f"pooled_test: {test} of the 600 images of toy; choose 1 to 599"):
        pooled(numbered(500, 100), test, 0)
