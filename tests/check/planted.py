"""Copies as people make them: saved again, made smaller, mirrored, cut."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps


def _save(image: Image.Image, file: Path, quality: int = 90) -> None:
    image.convert("RGB").save(file.with_suffix(".jpg"), quality=quality)


def _halved(image: Image.Image) -> Image.Image:
    size = max(1, image.width // 2), max(1, image.height // 2)
    return image.resize(size, Image.Resampling.BICUBIC)


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "bytes": shutil.copy,
    "quality60": lambda source, file: _save(Image.open(source), file, 60),
    "half": lambda source, file: _save(_halved(Image.open(source)), file),
    "mirrored": lambda source, file: _save(ImageOps.mirror(Image.open(source)), file),
}
"""From a file to a copy of it at another path; all but the first are JPEG files."""


def plant(source: Path, folder: Path) -> dict[str, Path]:
    """A copy of each kind, in a folder, by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for kind, copy in PLANTED.items():
        file = folder / f"{kind}_{source.parent.name}_{source.name}"
        copy(source, file)
        made[kind] = file if kind == "bytes" else file.with_suffix(".jpg")
    return made


def plant_crop(source: Path, folder: Path, draw: np.random.Generator, same_aspect: bool) -> Path:
    """A part of 70 to 95 % of its sides, at any place, as a JPEG file; both sides are drawn unless the aspect stays."""
    image = Image.open(source).convert("RGB")
    sides = draw.uniform(0.7, 0.95, 2)
    width, height = (
        round(side * part) for side, part in zip(image.size, sides[[0, 0 if same_aspect else 1]], strict=True)
    )
    left, top = draw.integers(0, image.width - width + 1), draw.integers(0, image.height - height + 1)
    file = folder / f"crop_{source.parent.name}_{source.stem}.jpg"
    folder.mkdir(parents=True, exist_ok=True)
    _save(image.crop((left, top, left + width, top + height)), file)
    return file


def plant_frames(source: Path, folder: Path, draw: np.random.Generator, count: int) -> list[Path]:
    """Frames of a recording: parts of 75 to 100 % of a side, turned by up to 4 degrees, light +-15 %, JPEG 85.

    They are named after the photograph, with a number: `rose_01_000.jpg`.
    """
    image, files = Image.open(source).convert("RGB"), list[Path]()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        turned = image.rotate(draw.uniform(-4, 4), Image.Resampling.BICUBIC)
        side = draw.uniform(0.75, 1.0)
        width, height = (round(side * each) for each in image.size)
        left, top = draw.integers(0, image.width - width + 1), draw.integers(0, image.height - height + 1)
        part = turned.crop((left, top, left + width, top + height))
        lit = ImageEnhance.Brightness(part).enhance(draw.uniform(0.85, 1.15))
        files.append(folder / f"{source.stem}_{number:03d}.jpg")
        lit.save(files[-1], quality=85)
    return files
