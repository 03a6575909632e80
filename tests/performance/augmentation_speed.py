"""Images per second of the weak + strong pair: ours on whole batches against Pillow image by image.

Run: python -m tests.performance.augmentation_speed [--repeats 9] [--json FILE] [--profile]
Both do the same work per image and view: flip, reflect-pad crop, (strong: 2 operations of SSFL's pool at p = .5,
cutout), to float32, normalise. One thread; the two are interleaved, so that a busy machine slows both.
"faults" are our page faults per image: where the allocator hands freed memory back between calls, as glibc does by
default, the outputs (24 kB an image of 32 x 32 x 3) fault in anew at every call. It keeps the memory with
MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 in the environment.
"""

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

from benchmark.data.augment import Augmentation, make_views

# (label, channels, side, batch, images a repeat of Pillow's takes, ratio wanted or None)
CASES = (
    ("32x32x3", 3, 32, 1024, 256, 6.0),
    ("32x32x3", 3, 32, 512, 256, 6.0),
    ("32x32x3", 3, 32, 64, 256, None),
    ("28x28x1", 1, 28, 1024, 256, 8.0),
    ("28x28x1", 1, 28, 512, 256, 8.0),
    ("28x28x1", 1, 28, 64, 256, None),
)


def signed(value: float) -> float:
    return value if random.random() < 0.5 else -value


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


# SSFL's pool at level v of 10 (dataset/randaugment.py:154-169).
POOL: tuple[Callable[[Image.Image, int], Image.Image], ...] = (
    lambda image, v: ImageOps.autocontrast(image),
    lambda image, v: ImageEnhance.Brightness(image).enhance(0.09 * v + 0.05),
    lambda image, v: ImageEnhance.Color(image).enhance(0.09 * v + 0.05),
    lambda image, v: ImageEnhance.Contrast(image).enhance(0.09 * v + 0.05),
    lambda image, v: ImageOps.equalize(image),
    lambda image, v: image,
    lambda image, v: ImageOps.posterize(image, int(0.4 * v) + 4),
    lambda image, v: image.rotate(signed(3 * v)),
    lambda image, v: ImageEnhance.Sharpness(image).enhance(0.09 * v + 0.05),
    lambda image, v: affine(image, 1, signed(0.03 * v), 0, 0, 1, 0),
    lambda image, v: affine(image, 1, 0, 0, signed(0.03 * v), 1, 0),
    lambda image, v: ImageOps.solarize(image, 256 - int(25.6 * v)),
    lambda image, v: affine(image, 1, 0, int(signed(0.03 * v) * image.size[0]), 0, 1, 0),
    lambda image, v: affine(image, 1, 0, 0, 0, 1, int(signed(0.03 * v) * image.size[1])),
)


def weak(array: np.ndarray, padding: int) -> Image.Image:
    """Flip and reflect-pad crop of an (H, W[, 3]) array.

    torchvision's RandomCrop pads with np.pad, which takes about 40 us; indexing the mirrored lines and columns is the
    quickest equivalent found, so that the comparison does not rest on a slow padding.
    """
    height, width = array.shape[:2]
    left, top = random.randint(0, 2 * padding), random.randint(0, 2 * padding)
    lines, columns = mirrored(height, padding), mirrored(width, padding)
    image = Image.fromarray(array[lines[top : top + height]][:, columns[left : left + width]])
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


@lru_cache
def mirrored(size: int, padding: int) -> np.ndarray:
    """Positions of a reflect-padded line: padding .. 1, 0 .. size - 1, size - 2 .. size - 1 - padding."""
    return np.pad(np.arange(size), padding, mode="reflect")


def strong(image: Image.Image) -> Image.Image:
    """RandAugmentMC(2, 10) and CutoutAbs (dataset/randaugment.py:216-235, 47-67)."""
    for operation in random.choices(POOL, k=2):
        level = random.randint(1, 9)
        if random.random() < 0.5:
            image = operation(image, level)
    width, height = image.size
    side = width // 2
    x0 = int(max(0, random.random() * width - side / 2))
    y0 = int(max(0, random.random() * height - side / 2))
    image = image.copy()
    fill = 127 if image.mode == "L" else (127, 127, 127)
    ImageDraw.Draw(image).rectangle((x0, y0, min(width, x0 + side), min(height, y0 + side)), fill)
    return image


def to_tensor(image: Image.Image, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """(C, H, W) float32, normalised: ToTensor and Normalize without their argument checks."""
    pixels = torch.from_numpy(np.array(image)).view(image.size[1], image.size[0], -1).permute(2, 0, 1).contiguous()
    return pixels.float().div_(255).sub_(mean).div_(std)


def pillow_pair(arrays: np.ndarray, mean: torch.Tensor, std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    padding = arrays.shape[2] // 8
    first = torch.stack([to_tensor(weak(array, padding), mean, std) for array in arrays])
    second = torch.stack([to_tensor(strong(weak(array, padding)), mean, std) for array in arrays])
    return first, second


def photographs(count: int, channels: int, side: int) -> np.ndarray:
    """(count, side, side[, 3]) uint8 crops of a photograph: histograms as real images have them."""
    photograph = Image.fromarray(load_sample_image("flower.jpg")).convert("L" if channels == 1 else "RGB")
    corners = np.random.default_rng(0).integers(0, 380, (count, 2))
    return np.stack([np.asarray(photograph.crop((x, y, x + side, y + side))) for x, y in corners.tolist()])


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Images per second, one figure a repeat, and our page faults per image."""

    ours: list[float]
    pillow: list[float]
    faults: float


def measure(channels: int, side: int, batch: int, pillow_images: int, repeats: int) -> Figures:
    """Both pipelines, interleaved; the first repeat warms up."""
    arrays = photographs(batch, channels, side)
    images_NCHW = torch.from_numpy(arrays).view(batch, side, side, channels).permute(0, 3, 1, 2).contiguous()
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2471, 0.2435, 0.2616)[:channels]
    mean_C11, std_C11 = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    part = np.resize(arrays, (pillow_images, *arrays.shape[1:]))
    generator = torch.Generator().manual_seed(0)
    calls = max(1, 1024 // batch)

    def ours() -> None:
        for _ in range(calls):
            make_views(images_NCHW, ("weak", "strong"), Augmentation(), mean, std, generator)

    rates: tuple[list[float], list[float]] = ([], [])
    faults = []
    for _ in range(repeats + 1):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        rates[0].append(calls * batch / seconds(ours))
        faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (calls * batch))
        rates[1].append(pillow_images / seconds(lambda: pillow_pair(part, mean_C11, std_C11)))
    return Figures(ours=rates[0][1:], pillow=rates[1][1:], faults=statistics.median(faults[1:]))


def profile() -> None:
    """Print where our time goes for a batch of 1024 and of 64 images of 32 x 32 x 3."""
    for batch in (1024, 64):
        images_NCHW = torch.from_numpy(photographs(batch, 3, 32)).permute(0, 3, 1, 2).contiguous()
        generator = torch.Generator().manual_seed(0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            for _ in range(10):
                make_views(images_NCHW, ("weak", "strong"), Augmentation(), (0.5,) * 3, (0.25,) * 3, generator)
        print(f"batch {batch}, 10 calls\n{trace.key_averages().table(sort_by='self_cpu_time_total', row_limit=15)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    parser.add_argument("--profile", action="store_true", help="print instead where our time goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    if arguments.profile:
        profile()
        return
    figures = []
    row = "{:8} {:>5}   {:26} {:26} {:>5}  {:>6}  {:>6}"
    print("images/s, median (least .. most); ratio of medians")
    print(row.format("shape", "batch", "ours", "Pillow", "ratio", "wanted", "faults"))
    for label, channels, side, batch, pillow_images, wanted in CASES:
        found = measure(channels, side, batch, pillow_images, arguments.repeats)
        ratio = statistics.median(found.ours) / statistics.median(found.pillow)
        cells = [f"{statistics.median(r):.0f} ({min(r):.0f} .. {max(r):.0f})" for r in (found.ours, found.pillow)]
        print(row.format(label, batch, *cells, f"{ratio:.1f}", wanted or "-", f"{found.faults:.2f}"), flush=True)
        figures.append({"shape": label, "batch": batch, "ratio": ratio, **asdict(found)})
    if arguments.json:
        arguments.json.write_text(json.dumps({"images_per_second": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
