"""Masks of images: where their evidence lies, as boxes or files say."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from PIL import Image

from vitrail.data.images import SIXTEEN_BIT, FileImages, NamedImage
from vitrail.errors import DataError, counted, located


def box_mask(boxes: Int64[np.ndarray, "p 4"], size: tuple[int, int]) -> Image.Image | None:
    """White inside of the boxes, black elsewhere; None where there is no box.

    Args:
        boxes: Top, left, bottom, right, in pixels.
        size: (height, width) of the image.
    """
    pixels = np.zeros(size, np.uint8)
    for top, left, bottom, right in boxes.tolist():
        pixels[top:bottom, left:right] = 255
    return Image.fromarray(pixels) if pixels.any() else None


def mask_places(name: str, folder: Path) -> tuple[Path, Path]:
    """Where the mask of an image may lie: the first that is there counts."""
    path = Path(name)
    return folder / path.parent.name / f"{path.stem}.png", folder / f"{path.stem}.png"


def check_any_mask(names: Sequence[str], folder: Path) -> None:
    """Refuse a folder without a mask of any of these images; of no images none is missing.

    Raises:
        DataError: There is no such folder, or no file in it has the name of an image.
    """
    hint = "masks in PNG files: DIR/NAME.png or DIR/FOLDER/NAME.png for the image FOLDER/NAME.jpg"
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} with masks", hint)
    if names and not any(place.is_file() for name in names for place in mask_places(name, folder)):
        problem = f"no file in {folder} is the mask of any of {counted(len(names), 'image')}"
        raise DataError(f"{problem}: of {names[0]} it would be {mask_places(names[0], folder)[0]}", hint)


def add_masks(images: Sequence[NamedImage], folder: Path) -> list[NamedImage]:
    """The images with their masks: DIR/NAME.png for an image NAME.jpg, or DIR/FOLDER/NAME.png for FOLDER/NAME.jpg.

    Raises:
        DataError: A mask is missing, cannot be read, is black all over, serves for two images, or has another size
            than its image.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder} with masks", "a folder with a PNG file for each image")
    found, of = list[NamedImage](), dict[Path, str]()
    for one in images:
        places = mask_places(one.name, folder)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            problem = f"there is no mask for {one.name}: {places[1]} is missing"
            raise DataError(problem, "one PNG for each image, of the same name")
        if of.setdefault(file, one.name) != one.name:
            problem = f"{of[file]} and {one.name} would share the mask {file}"
            raise DataError(problem, f"masks in folders: {places[0]}")
        mask = FileImages([file]).open(0)  # opacity does not count, and a palette's colours do
        values = np.asarray(mask if mask.mode in ("1", "L", "I", *SIXTEEN_BIT) else mask.convert("RGB"))
        marked = values.any(axis=2) if values.ndim > 2 else values != 0
        if not marked.any():
            raise DataError(f"{file} is entirely black, so it marks no evidence", "a mask that is not black somewhere")
        with located(file):
            found.append(replace(one, mask=Image.fromarray(np.where(marked, 255, 0).astype(np.uint8))))
    return found
