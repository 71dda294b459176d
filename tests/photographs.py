"""Generated photographs: landscapes with a sky, ground, things in them, and the noise of a small camera."""

import io
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def make_photographs(root: Path, classes: tuple[str, ...], per_class: int, seed: int) -> list[Path]:
    """Write class folders of JPEG and PNG images of many sizes; every fourth one is a PNG.

    A class is told by its colours, which its name decides, and by the kind of thing that stands in the scene. The same
    arguments give the same pixels.

    Args:
        root: Where the class folders go.
        classes: The names of the classes.
        per_class: How many images each has.
        seed: Of everything that varies within a class.

    Returns:
        The files.
    """
    paths = []
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(per_class):
            path = root / name / f"{name}_{index:03d}.{'png' if index % 4 == 3 else 'jpg'}"
            path.write_bytes(_photograph(name, number % 3, index, seed))
            paths.append(path)
    return paths


@lru_cache(4096)  # dozens of tests make the same ones
def _photograph(name: str, kind: int, index: int, seed: int) -> bytes:
    looks = np.random.default_rng(zlib.crc32(name.encode()))
    sky, ground, thing = looks.integers(30, 226, (3, 3))
    rng, file = np.random.default_rng([seed, zlib.crc32(name.encode()), index]), io.BytesIO()
    image = _scene(rng, sky, ground, thing, kind)
    if index % 4 == 3:
        image.save(file, "png")
    else:
        image.save(file, "jpeg", quality=90)
    return file.getvalue()


def _scene(rng: np.random.Generator, sky: np.ndarray, ground: np.ndarray, thing: np.ndarray, kind: int) -> Image.Image:
    width, height = (int(side) for side in rng.integers(48, 130, 2))
    horizon = int(height * rng.uniform(0.4, 0.65))
    rows = np.arange(height)[:, None, None]
    light = rng.uniform(0.8, 1.2) * (1 - 0.3 * np.abs(rows - horizon) / height)
    colours = np.where(rows < horizon, sky, ground) * light * np.ones((1, width, 1))
    image = Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(2, 5))):
        size = int(rng.integers(8, 24))
        left, top = int(rng.integers(0, width - size)), int(rng.integers(horizon // 2, height - size))
        box = (left, top, left + size, top + size)
        fill = tuple(int(value) for value in np.clip(thing + rng.integers(-25, 26, 3), 0, 255))
        if kind == 0:
            draw.ellipse(box, fill=fill)
        elif kind == 1:
            draw.rectangle(box, fill=fill)
        else:
            draw.polygon([(left, top + size), (left + size, top + size), (left + size // 2, top)], fill=fill)
    noisy = np.asarray(image) + rng.normal(0, 6, (height, width, 3))
    return Image.fromarray(np.clip(np.rint(noisy), 0, 255).astype(np.uint8))
