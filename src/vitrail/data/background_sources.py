"""Where a background comes from: the images that a model is trained on, or a folder of images.

Images are put together from patches of training images, where the patch at position p of image j comes from training
image pi_p(j), and every position has a permutation pi_p of its own. Two patches of one belong together no more than by
chance, and most patches of a training image are in none.

    draw_background     that of a model, from the images that it is trained on
    open_background     from a folder of images, or that of another model
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitrail.data.background import (
    MOST,
    MOST_BYTES,
    MOST_VALUES,
    Patch,
    Pixels,
    background_in,
    read_background,
    that_fit,
)
from vitrail.data.images import Images, evenly, open_image
from vitrail.data.loader import load_resident
from vitrail.data.plan import uniforms
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.folder import image_files
from vitrail.errors import DataError, UsageError, counted

SOURCES = 4  # training images for each, at least: one gives a quarter of its patches, on average
FEW = 10  # with fewer, images put together of them are too much alike to show what is exceptional
LEAST_PATCHES = 4  # where an image has fewer, a patch shows too much of it

_CHOICE, _POSITIONS = 20, 21  # streams of random numbers, see `plan.py`


def make_background(images: UInt8[Tensor, "k c h w"], patch: Patch, seed: int) -> Pixels:
    """Images whose patches come from different ones of these images, each patch from where it stood.

    Args:
        images: Values 0..255, of the network's size.
        patch: Height and width of a patch, in pixels; they divide those of an image.
        seed: Of the permutations.

    Returns:
        r = min(64, k / 4) images, rounded down; fewer where they are very large; none where an image has fewer than
        four patches.

    Raises:
        UsageError: The patches do not divide the images.
    """
    count, channels, height, width = images.shape
    if height % patch[0] or width % patch[1]:
        problem = f"images of {height}x{width} pixels cannot be cut into patches of {patch[0]}x{patch[1]}"
        raise UsageError(problem, "the patch size of the network that the images are for")
    rows, columns = height // patch[0], width // patch[1]
    number = _number_of(count, channels, (height, width), patch)
    order = uniforms(np.arange(count, dtype=np.int64), rows * columns, seed=seed, epoch=0, stream=_POSITIONS)
    chosen = torch.from_numpy(np.argsort(order, axis=0, kind="stable")[:number]).unflatten(1, (rows, columns))
    patches = images.unflatten(3, (columns, patch[1])).unflatten(2, (rows, patch[0]))  # k c gh ph gw pw
    down, across = torch.arange(rows)[:, None], torch.arange(columns)
    picked = patches.permute(0, 2, 4, 1, 3, 5)[chosen, down, across]  # r gh gw c ph pw
    return picked.permute(0, 3, 1, 4, 2, 5).reshape(number, channels, height, width).contiguous()


def draw_background(
    images: Images, preprocessing: Preprocessing, patch: Patch, seed: int, threads: int = 1
) -> tuple[Pixels | None, str]:
    """A background for a model, from images that it is trained on, as it sees them and without augmentation.

    Args:
        images: Those of the training split, and no others.
        preprocessing: The model's.
        patch: Height and width of the network's patches, in pixels.
        seed: Decides which images and which patches.
        threads: Images decoded at the same time.

    Returns:
        As many as can be stored (as JPEG with a small loss, see `settle`) and a sentence about them; None, and why,
        where none can be made. Images that cannot be read are left out.
    """
    (height, width), channels = preprocessing.size, preprocessing.channels
    number = _number_of(len(images), channels, (height, width), patch)
    if number:
        order = uniforms(np.arange(len(images), dtype=np.int64), 1, seed=seed, epoch=0, stream=_CHOICE)[:, 0]
        drawn = np.argsort(order, kind="stable")[: SOURCES * number]
        loaded = load_resident(images.select(drawn), preprocessing, threads).read(np.arange(len(drawn)))
        fitting, _ = that_fit(make_background(loaded.pixels[loaded.readable], patch, seed), patch)
        if len(fitting):
            how = ", as JPEG" if fitting.numel() > MOST_BYTES else ""
            few = (
                ""
                if len(fitting) >= FEW
                else "; these are few, so test explanations with --background and a folder of images, too"
            )
            return fitting.clone(), (
                f"a background of {counted(len(fitting), 'image')} (shuffled patches of training images{how}) is "
                f"saved with the model; --no-background omits it{few}"
            )
    if (height // patch[0]) * (width // patch[1]) < LEAST_PATCHES:
        why = f"in patches of {patch[0]} x {patch[1]}, images of {height} x {width} would show too much"
    elif len(images) >= SOURCES and channels * height * width > MOST_BYTES:
        why = f"one of {height} x {width} pixels has more than 1 MB, even as JPEG"
    else:
        why = f"it needs at least {SOURCES} training images"
    return None, f"no background: {why}; explanations can be tested with a folder of images"


def _number_of(count: int, channels: int, size: tuple[int, int], patch: Patch) -> int:
    """How many are put together from so many training images."""
    if (size[0] // patch[0]) * (size[1] // patch[1]) < LEAST_PATCHES:
        return 0
    return min(MOST, MOST_VALUES // (channels * size[0] * size[1]), count // SOURCES)


def open_background(
    place: Path, preprocessing: Preprocessing, note: Callable[[str], None] = lambda sentence: None
) -> Float[Tensor, "r c h w"]:
    """A background from a folder of images, for a model that has none or to test it with other images.

    Args:
        place: A folder of images, of which 64 are taken, evenly spread over the sorted files; a single image; or the
            run, model folder or file of the background of a model of the same size.
        preprocessing: The model's; images of any size are brought to its size.
        note: Gets a sentence for each image that is left out because it cannot be read, and one where images are
            smaller than the model's.

    Returns:
        Normalised images, as the network takes them.

    Raises:
        DataError: There is no such place, no image in it or none that can be read, or a background of another size.
    """
    saved = place if place.suffix == ".safetensors" else background_in(place) or background_in(place / "model")
    if saved is not None and saved.is_file():
        return preprocessing.normalise(read_background(saved, preprocessing))
    hint = "--background with a folder of images"
    if not place.exists():
        raise DataError(f"there is no folder {place} for background images", hint)
    files = image_files(place) if place.is_dir() else [place]
    if not files:
        raise DataError(f"{place} contains no images", hint)
    (height, width), pixels, problems, small = preprocessing.size, [], [], 0
    for file in evenly(files, MOST):
        try:
            image = open_image(file)
            pixels.append(preprocessing.to_uint8(image))
            small += image.height < height or image.width < width
        except DataError as error:
            problems.append(error.problem)
    if not pixels:
        others = f" (and {len(problems) - 1} more that cannot be read)" if len(problems) > 1 else ""
        raise DataError(f"no background image can be read: {problems[0]}{others}", hint)
    for problem in problems:
        note(f"left out: {problem}")
    if small:
        few = f"{small} of {len(pixels)} background images"
        note(f"{few} are smaller than {width} x {height} pixels: they are enlarged")
    return preprocessing.normalise(torch.stack(pixels))
