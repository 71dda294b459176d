"""Images that are the same bytes everywhere: no random numbers, no floats, no compression."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 96
EACH = 30  # of each class
COLOURS = {"dune": (200, 120, 60), "lake": (30, 60, 90)}


def make_images(root: Path) -> Path:
    """A folder of two classes: a disc on a slope of colour, which lies elsewhere in each image."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(EACH):
            slope = (rows * (number % 3) + columns * (number % 4)) // 8 + 2 * number
            pixels = np.stack([slope + shade // 4 for shade in colour], axis=2)
            top, left = 20 + 7 * number % 56, 20 + 11 * number % 56
            disc = (rows - top) ** 2 + (columns - left) ** 2 < 15**2
            pixels[disc] = colour
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number:02d}.bmp")
    return root


def some_images(root: Path) -> list[Path]:
    """An image of each class."""
    return [path for folder in sorted(root.iterdir()) for path in sorted(folder.iterdir())[3:4]]


def label_texts(root: Path) -> Path:
    """A manifest beside the folder that gives each image a text of one to three letters."""
    rows = [
        f"{root.name}/{name}/{number:02d}.bmp,{name[0] * (1 + number % 3)}"
        for name in COLOURS
        for number in range(EACH)
    ]
    manifest = root.with_suffix(".csv")
    manifest.write_text("\n".join(["path,text", *rows]) + "\n")
    return manifest
