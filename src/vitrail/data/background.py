"""The background of a model: what a patch is replaced by when an explanation is put to the test.

A patch that is painted grey is unlike anything the network has learnt. A patch of another image, at the same place, is
not. So a trained model carries a background: images put together from patches of training images, where the patch at
position p of image j comes from training image pi_p(j), and every position has a permutation pi_p of its own. Two
patches of one belong together no more than by chance, and most patches of a training image are in none.

    draw_background     that of a model, from the images that it is trained on
    open_background     from a folder of images, or that of another model
    photographs         for a model of ImageNet's classes that carries none

It is stored in one file of at most 1 MB: as it is where all fits, else as JPEG of one quality. JPEG works on blocks of
8 x 8 pixels and, where the colour has the resolution of the brightness (4:4:4, as here), on each by itself. So a patch
is first enlarged to a multiple of 8 pixels by repeating its last row and column: no block holds pixels of two patches,
and nothing of one shows in another. What is used is what is stored: values that JPEG leaves unchanged.

    background               the values as they are
    jpeg, lengths, patch     JPEG files one behind the other, their bytes, and (height, width) of a patch
"""

import io
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Num, UInt8
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitrail.data.images import Images, evenly, open_image
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources import read_images
from vitrail.data.tensor_files import read_tensors, tensors_to_bytes
from vitrail.errors import DataError, UsageError, counted, some_of
from vitrail.io import write_file

MOST = 64
SOURCES = 4  # training images for each, at least: one gives a quarter of its patches, on average
FEW = 10  # with fewer, images put together of them are too much alike to show what is exceptional
LEAST_PATCHES = 4  # where an image has fewer, a patch shows too much of it

BACKGROUND = "background.safetensors"
MOST_BYTES = 2**20 - 4096  # of the images in the file; the rest is for its header
MOST_VALUES = 12 * 2**20  # of all images together: so much is decoded at most
QUALITY = 85
LONGEST_SIDE = 65_500  # of a JPEG image
BLOCK = 8  # pixels on a side of what JPEG works on
ROUNDS = 100  # of compressing again until nothing changes; photographs need about 15

_CHOICE, _POSITIONS = 20, 21  # streams of random numbers, see `plan.py`

PLACE = Path(__file__).with_name("photographs")
NAMES = ("astronaut", "brick", "camera", "coffee", "coins", "grass", "gravel", "hubble_deep_field", "retina", "rocket")
PART = 0.7  # of the shorter side: the squares in the four corners

Patch = tuple[int, int]  # height and width in pixels
Pixels = UInt8[Tensor, "_ c h w"]


@lru_cache(maxsize=2)
def photographs(preprocessing: Preprocessing) -> UInt8[Tensor, "r c h w"]:
    """Ten photographs, each as a whole, and its four corners: 50 images, fewer where they are very large.

    They come from scikit-image, which states of each that it is in the public domain, under CC0 or without known
    copyright restrictions: an astronaut and a galaxy cluster (NASA), a rocket (SpaceX), a cup of coffee (Rachel
    Michetti), a man with a camera (Lav Varshney), bricks and gravel (CC0Textures), grass (linolafett), a retina (Mikael
    Häggström), and coins (Brooklyn Museum). `benchmarks/photographs.py` made the files.

    How often "supported" is right and wrong with them on a real network stands in benchmarks/explain.md. For other
    classes than ImageNet's, such as those of X-rays, any image differs from these photographs, whatever it shows: they
    are not used there.

    Args:
        preprocessing: How images become what the network expects.

    Returns:
        Values 0..255, which the caller must not change.
    """
    images = [open_image(PLACE / f"{name}.jpg") for name in NAMES]
    for corner in range(4):
        for image in images[: len(NAMES)]:
            side = int(PART * min(image.size))
            left, upper = (image.width - side) * (corner % 2), (image.height - side) * (corner // 2)
            images.append(image.crop((left, upper, left + side, upper + side)))
    height, width = preprocessing.size
    most = max(len(NAMES), MOST_VALUES // (preprocessing.channels * height * width))
    return torch.stack([preprocessing.to_uint8(image) for image in images[:most]])


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
    from vitrail.data.plan import uniforms  # of training alone; who reads a background needs none

    rows, columns = height // patch[0], width // patch[1]
    number = _number_of(count, channels, (height, width), patch)
    order = uniforms(np.arange(count, dtype=np.int64), rows * columns, seed=seed, epoch=0, stream=_POSITIONS)
    chosen = torch.from_numpy(np.argsort(order, axis=0, kind="stable")[:number]).unflatten(1, (rows, columns))
    return patchwork(images, chosen)


def patchwork(images: Num[Tensor, "k c h w"], whose: Int[Tensor, "r gh gw"]) -> Num[Tensor, "r c h w"]:
    """Images of the patches of others, each where it stood.

    Args:
        images: Where the patches come from.
        whose: The number of the image that a patch comes from, on a grid that divides the images.
    """
    patch = images.shape[2] // whose.shape[1], images.shape[3] // whose.shape[2]
    pixels = whose.repeat_interleave(patch[0], dim=1).repeat_interleave(patch[1], dim=2)
    return images.gather(0, pixels[:, None].expand(-1, images.shape[1], -1, -1))


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
        from vitrail.data.plan import uniforms
        from vitrail.data.workers import of_each

        order = uniforms(np.arange(len(images), dtype=np.int64), 1, seed=seed, epoch=0, stream=_CHOICE)[:, 0]
        drawn = np.argsort(order, kind="stable")[: SOURCES * number]
        pixels = dict(of_each(partial(_read, images, preprocessing), images, drawn.tolist(), threads))
        read = [pixels[index] for index in drawn.tolist() if isinstance(pixels[index], np.ndarray)]
        nothing = np.empty((0, channels, height, width), np.uint8)
        sources = torch.from_numpy(np.stack(read) if read else nothing)
        fitting, _ = fit_into_file(make_background(sources, patch, seed), patch)
        if len(fitting):
            how = ", as JPEG" if fitting.numel() > MOST_BYTES else ""
            text = f"a background of {counted(len(fitting), 'image')} (shuffled patches of training images{how}) is "
            text += "saved with the model; --no-background omits it"
            if len(fitting) < FEW:
                text += "; these are few, so test explanations with --background and a folder of images, too"
            return fitting.clone(), text
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


def _read(images: Images, preprocessing: Preprocessing, index: int) -> UInt8[np.ndarray, "c h w"] | None:
    """The pixels of an image; none where it cannot be read."""
    with suppress(DataError, OSError):  # the second by images of a person's own
        return preprocessing.to_uint8(images.open(index)).numpy()
    return None


def open_background(
    place: Path, preprocessing: Preprocessing, note: Callable[[str], None] = lambda sentence: None
) -> Float[Tensor, "r c h w"]:
    """A background from a folder of images, for a model that has none or to test it with other images.

    Args:
        place: Images, of which 64 are taken, evenly spread: a folder, a list, a named set or a single image; or the
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
    images = read_images(place, flat=True).held_out.images
    (height, width), pixels, problems, small = preprocessing.size, [], [], 0
    for index in evenly(range(len(images)), MOST):
        try:
            image = images.open(index)
            pixels.append(preprocessing.to_uint8(image))
            small += image.height < height or image.width < width
        except DataError as error:
            problems.append(error.problem)
    if not pixels:
        others = f" (and {len(problems) - 1} more that cannot be read)" if len(problems) > 1 else ""
        problem = f"no background image can be read: {problems[0]}{others}"
        raise DataError(problem, "a folder of images that can be read")
    for problem in problems:
        note(f"left out: {problem}")
    if small:
        few = f"{small} of {len(pixels)} background images"
        note(f"{few} are smaller than {width} x {height} pixels: they are enlarged")
    return preprocessing.normalise(torch.stack(pixels))


# ---- the file


def background_in(folder: Path) -> Path | None:
    """The file with the background in a model folder; None where there is none."""
    return folder / BACKGROUND if (folder / BACKGROUND).exists() else None


def read_background(file: Path, preprocessing: Preprocessing) -> Pixels:
    """The background in a file that a model was saved with.

    Args:
        file: `background.safetensors`; nothing in it is trusted.
        preprocessing: The model's, which decides the size.

    Raises:
        DataError: The file is missing or damaged, or its images are of another size.
    """
    hint = "delete the file (the model works without it), or the folder of another run"
    tensors = read_tensors(file, hint)
    try:
        pixels = tensors["background"] if tensors.keys() == {"background"} else _decompress(tensors, preprocessing)
    except ValueError as error:
        raise DataError(f"{file}: {error}", hint) from error
    if problem := background_misfit(pixels, preprocessing):
        raise DataError(f"{file}: {problem}", hint)
    return pixels


def _decompress(tensors: dict[str, Tensor], preprocessing: Preprocessing) -> Pixels:
    """The images in the JPEG files of a file; raises ValueError where these are not what `background_bytes` writes."""
    kinds = {name: (tensor.dtype, tensor.dim()) for name, tensor in sorted(tensors.items())}
    if kinds != {"jpeg": (torch.uint8, 1), "lengths": (torch.int64, 1), "patch": (torch.int64, 1)}:
        there = some_of([" ".join(name.split()) for name in kinds], 3) or "nothing"
        raise ValueError(f"it contains {there}, and no background")
    content, lengths, patch = tensors["jpeg"].numpy().tobytes(), tensors["lengths"].tolist(), tensors["patch"].tolist()
    (height, width), channels, count = preprocessing.size, preprocessing.channels, len(lengths)
    whole = min(lengths, default=0) >= 1 and sum(lengths) == len(content) and len(patch) == 2
    few = count <= MOST and count * channels * height * width <= MOST_VALUES
    if not (whole and few and _is_jpeg(channels, (height, width), (patch[0], patch[1]))):
        raise ValueError(f"{count} images of {height} x {width} in patches of {patch} do not fit {len(content)} bytes")
    pixels, ends = torch.empty(len(lengths), channels, height, width, dtype=torch.uint8), np.cumsum(lengths).tolist()
    for number, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        try:
            pixels[number] = from_jpeg(content[end - length : end], (patch[0], patch[1]), channels, (height, width))
        except Exception as error:  # Pillow's readers raise nearly every kind of error on damaged files
            words = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"image {number + 1} cannot be used: {words}") from error
    return pixels


def write_background(folder: Path, pixels: Pixels | None, patch: Patch | None) -> None:
    """Write the background into a model folder, and remove that of a former model where there is none."""
    if pixels is not None and patch is not None:
        write_file(folder / BACKGROUND, background_bytes(pixels, patch))
    else:
        (folder / BACKGROUND).unlink(missing_ok=True)


def background_bytes(pixels: Pixels, patch: Patch) -> bytes:
    """The content of a file from which `read_background` gives back these images; of settled ones, these very values.

    Args:
        pixels: The background; what does not fit in the file is left out.
        patch: Height and width of a patch, in pixels.
    """
    fitting, files = fit_into_file(pixels.cpu(), patch)
    if not files:
        return tensors_to_bytes({"background": fitting.contiguous()})
    return tensors_to_bytes(
        {
            "jpeg": torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8),
            "lengths": torch.tensor([len(file) for file in files], dtype=torch.int64),
            "patch": torch.tensor(patch, dtype=torch.int64),
        }
    )


def settle(pixels: Pixels, patch: Patch) -> Pixels:
    """What the file gives back of these: the same where they are stored as they are, else without what JPEG leaves out.

    They are compressed until nothing changes any more, so that what is settled is stored without a loss.

    Args:
        pixels: Values 0..255.
        patch: Height and width of a patch, in pixels; they divide those of an image.

    Returns:
        As many of the first as fit in the file.
    """
    fitting, files = fit_into_file(pixels, patch)
    if not files:
        return fitting
    settled = fitting.clone()
    for image in settled:
        for _ in range(ROUNDS):
            again = from_jpeg(to_jpeg(image, patch), patch, image.shape[0], (image.shape[1], image.shape[2]))
            if torch.equal(again, image):
                break
            image.copy_(again)
    return fit_into_file(settled, patch)[0]


def fit_into_file(pixels: Pixels, patch: Patch) -> tuple[Pixels, list[bytes]]:
    """As many of the first as the file holds, and their JPEG files; no files where they are stored as they are."""
    room = min(MOST, MOST_BYTES // max(1, pixels[:1].numel()))
    if len(pixels) <= room or not _is_jpeg(pixels.shape[1], (pixels.shape[2], pixels.shape[3]), patch):
        return pixels[:room], []
    files = [to_jpeg(image, patch) for image in pixels]
    fit = min(MOST, int((np.cumsum([len(file) for file in files]) <= MOST_BYTES).sum()))
    return (pixels[:fit], files[:fit]) if fit > room else (pixels[:room], [])


def to_jpeg(image: UInt8[Tensor, "c h w"], patch: Patch) -> bytes:
    """An image as JPEG, each of its patches enlarged by its last row and column."""
    rows, columns = (_repeat_edges(side, part) for side, part in zip(image.shape[1:], patch, strict=True))
    values, content = image.permute(1, 2, 0).numpy()[rows][:, columns], io.BytesIO()
    plain = Image.fromarray(values[..., 0] if values.shape[2] == 1 else values)
    plain.save(content, "JPEG", quality=QUALITY, subsampling=0)
    return content.getvalue()


def from_jpeg(content: bytes, patch: Patch, channels: int, size: tuple[int, int]) -> UInt8[Tensor, "c h w"]:
    """The way back, of an image of some size; raises any kind of error where it is not one."""
    rows, columns = (_repeat_edges(side, part) for side, part in zip(size, patch, strict=True))
    wanted = (len(rows), len(columns), "L" if channels == 1 else "RGB")
    with JpegImageFile(io.BytesIO(content)) as image:
        found = (image.height, image.width, image.mode)
        if found != wanted:  # compared before anything is decoded
            raise ValueError("{} x {} pixels of mode {}, not {} x {} of mode {}".format(*found, *wanted))
        decoded = np.array(image).reshape(len(rows), len(columns), channels)
    first_row, first_column = (np.unique(each, return_index=True)[1] for each in (rows, columns))
    return torch.from_numpy(decoded[first_row][:, first_column]).permute(2, 0, 1)


def _repeat_edges(side: int, part: int) -> Int64[np.ndarray, " _"]:
    """For each row of an image whose patches are enlarged to multiples of 8 pixels, the row that it shows."""
    within = np.minimum(np.arange(part + -part % BLOCK), part - 1)
    return (np.arange(0, side, part)[:, None] + within).ravel()


def _is_jpeg(channels: int, size: tuple[int, int], patch: Patch) -> bool:
    """Whether an image can be stored as JPEG: patches divide it, and enlarged it is not too large."""
    if min(patch) < 1 or size[0] % patch[0] or size[1] % patch[1]:
        return False
    height, width = (side // part * (part + -part % BLOCK) for side, part in zip(size, patch, strict=True))
    return max(height, width) <= LONGEST_SIDE and channels * height * width <= MOST_VALUES


def background_misfit(pixels: Tensor, preprocessing: Preprocessing) -> str:
    """Why this is no background for a model with this preprocessing; empty where it is."""
    wanted = (preprocessing.channels, *preprocessing.size)
    if pixels.dtype == torch.uint8 and pixels.dim() == 4 and tuple(pixels.shape[1:]) == wanted:
        return "" if len(pixels) else "the background is empty"
    shape, kind = " x ".join(map(str, pixels.shape)), str(pixels.dtype).removeprefix("torch.")
    return f"the background is {shape} of {kind}, the model takes r x {' x '.join(map(str, wanted))} of uint8"


def card_text(pixels: Pixels) -> str:
    """The text of a model card on the background that lies beside it, and how to leave it out."""
    how = " (as JPEG, with a small loss)" if pixels.numel() > MOST_BYTES else ""
    return (
        f"`{BACKGROUND}` holds {counted(len(pixels), 'image')}{how} put together from patches of training images, each "
        "patch from an image drawn at random, against which explanations are tested; delete the file, or train with "
        "`--no-background`, to leave them out."
    )
