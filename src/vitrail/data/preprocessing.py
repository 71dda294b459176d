"""How an image file becomes the tensor that a model expects: a value that is stored with the model.

Train, evaluate, predict, explain, export and serve all call the same `Preprocessing`. Images are converted by the
rule of `vitrail.data.images.convert_mode`, resized with Pillow (which averages over all pixels when it makes an image
smaller), and only then become tensors. Stored it is `preprocessor_config.json`, as transformers has it.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.images import convert_mode, open_image, upright
from vitrail.errors import DEPTHS, DataError, UsageError, check_keys

LONGEST_SIDE = 65535  # pixels of an image, also of one that is scaled before its centre is cut out
CHANNELS = 1, 3  # grey, colour
LONGEST = 2  # times the size: a whole image that is longer is cut

Resize = Literal["crop", "squash", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic"]

RESAMPLING = {name: Image.Resampling[name.upper()] for name in get_args(Interpolation)}


@typed
@dataclass(frozen=True)
class Preprocessing:
    """From an image of any size and mode to a tensor of one shape.

    Args:
        size: Height and width of the result, in pixels.
        resize: `crop`: the image is scaled to cover size / crop_pct (rounded down), then its centre is cut out;
            `squash`: scaled to the size, whatever its proportions; `pad`: scaled to fit in, the rest is `pad_value`.
        crop_pct: The fraction of the scaled image's side that is cut out, in (0, 1]; with `squash` the image is
            scaled to size / crop_pct first; 1 for `pad`.
        interpolation: How Pillow resamples.
        channels: 1 for grey, 3 for colour.
        mean: One number for each channel, subtracted from its values, which are scaled to 0..1.
        std: One number for each channel, by which the difference is divided.
        pad_value: The colour behind transparent pixels and around padded images, 0..255.
        centre: Where the centre begins when it would begin at half a pixel: at the `even` one of both neighbours, as
            in torchvision and timm, or at the lower one (`down`), as in transformers.
        bits: How many of their bits images of 16 bits use: 12 of most cameras and scanners; see `vitrail.data.images`.

    Raises:
        UsageError: A field has a value that is not possible.
    """

    size: tuple[int, int]
    resize: Resize = "crop"
    crop_pct: float = 1.0
    interpolation: Interpolation = "bicubic"
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    pad_value: tuple[int, int, int] = (128, 128, 128)
    centre: Literal["even", "down"] = "even"
    bits: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        sides = len(self.size) == 2 and all(type(side) is int and 1 <= side <= LONGEST_SIDE for side in self.size)
        require(sides, "size", self.size, "(28, 28)")
        require(self.resize in ("crop", "squash", "pad"), "resize", self.resize, "crop, squash or pad")
        scales = 0 < self.crop_pct <= 1 and max(self.size) <= LONGEST_SIDE * self.crop_pct
        wanted = f"a number above 0, at most 1, and size / crop_pct at most {LONGEST_SIDE}"
        require(scales, "crop_pct", self.crop_pct, wanted)
        require(self.centre in ("even", "down"), "centre", self.centre, "even or down")
        whole = self.resize != "pad" or self.crop_pct == 1
        require(whole, "crop_pct", self.crop_pct, f"1, since {self.resize} crops nothing")
        require(self.interpolation in RESAMPLING, "interpolation", self.interpolation, ", ".join(RESAMPLING))
        require(self.channels in CHANNELS, "channels", self.channels, "1 (grey) or 3 (colour)")
        numbers = f"{self.channels} numbers, one per channel"
        require(_finite(self.mean, self.channels), "mean", self.mean, numbers)
        positive = _finite(self.std, self.channels) and all(value > 0 for value in self.std)
        require(positive, "std", self.std, f"{numbers}, above 0")
        require(self.bits in (None, *DEPTHS), "bits", self.bits, ", ".join(map(str, DEPTHS)))
        colour = len(self.pad_value) == 3 and all(type(each) is int and 0 <= each <= 255 for each in self.pad_value)
        require(colour, "pad_value", self.pad_value, "three whole numbers 0..255")

    @typed
    def __call__(self, image: Image.Image | Path | str | bytes | np.ndarray | Tensor) -> Float[Tensor, "c h w"]:
        """The tensor that the model expects of this image.

        Args:
            image: A decoded image, the path of a file or its bytes, or pixels as `image_of` takes them.

        Returns:
            The normalised image.

        Raises:
            DataError: The file or its values cannot be read.
            UsageError: It is none of these.
        """
        return self.normalise(self.to_uint8(open_image(image))[None])[0]

    @typed
    def to_uint8(self, image: Image.Image, *, whole: bool = False) -> UInt8[Tensor, "c h w"]:
        """Convert and resize; an image that has the size and mode already keeps its pixels.

        Args:
            image: A decoded image.
            whole: Whether `crop` leaves the cutting to a random crop later: one side then has that of the size, the
                other is as long as the image's proportions ask for, at most twice that of the size.

        Returns:
            Values 0..255; of the size, or at least of the size where it is whole.

        Raises:
            DataError: Its mode or values are none that `convert_mode` has a rule for.
        """
        resized = self._resized(convert_mode(upright(image), self.channels, self.pad_value, self.bits), whole)
        pixels = torch.from_numpy(np.array(resized))
        return pixels[None] if self.channels == 1 else pixels.permute(2, 0, 1).contiguous()

    def to_array(self, image: Image.Image) -> UInt8[np.ndarray, "h w *c"]:
        """What the model sees of an image, for showing: (h, w) for one channel, (h, w, 3) for three."""
        array = self.to_uint8(image).numpy()
        return array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))

    def as_pixels(self, pixels: UInt8[np.ndarray, "n h w *c"]) -> UInt8[Tensor, "n c h w"] | None:
        """What `to_uint8` gives for each of these images, all at once, where it keeps their values; may share memory.

        Args:
            pixels: Grey (n, h, w) or coloured (n, h, w, c) images in memory, c 1 or 3.

        Returns:
            The same values, channels first; None where something is to be converted, scaled or cut.
        """
        channels = 1 if pixels.ndim == 3 else pixels.shape[3]
        if pixels.shape[1:3] != tuple(self.size) or channels != self.channels or self.crop_pct != 1:
            return None
        rows = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))  # copies what is read-only
        return rows[:, None] if rows.ndim == 3 else rows.permute(0, 3, 1, 2).contiguous()

    @typed
    def normalise(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """(pixels / 255 - mean) / std, channel by channel, in fp32 on the device of the pixels.

        Args:
            pixels: Values 0..255.

        Returns:
            What the network takes.

        Raises:
            UsageError: The number of channels is another one, or the values are not uint8.
        """
        if pixels.dtype != torch.uint8:
            raise UsageError(f"pixels have the type {pixels.dtype}", "give uint8 pixels, or fp32 to scale()")
        return self.scale(pixels.to(torch.float32))

    def scale(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """What `normalise` does, for values 0..255 that are fp32 already, such as augmented images.

        Args:
            images: Values 0..255; they are changed in place.

        Returns:
            The same tensor, (images / 255 - mean) / std.

        Raises:
            UsageError: The number of channels is another one.
        """
        if images.ndim != 4 or images.shape[1] != self.channels:
            problem = f"images have the shape {tuple(images.shape)}"
            raise UsageError(problem, f"give the shape (batch, {self.channels}, height, width)")
        statistics = torch.tensor([self.mean, self.std], dtype=torch.float32, device=images.device)
        mean, std = statistics[:, :, None, None]
        return images.div_(255).sub_(mean).div_(std)

    @typed
    def to_pixels(self, images: Float[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
        """The inverse of `normalise`, rounded to values 0..255."""
        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        return (255 * (images.float() * std + mean)).round().clamp(0, 255).to(torch.uint8)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are stated, as plain JSON values."""
        stated = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Preprocessing":
        """The way back from `to_dict`.

        Args:
            values: Fields by name; what is missing has its default, except `size`.

        Returns:
            The preprocessing.

        Raises:
            UsageError: A key is unknown, `size` is missing, or a value is not possible.
        """
        check_keys(Preprocessing, values)
        plain: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in values.items()}
        return Preprocessing(**plain)

    def part(self, width: int, height: int) -> tuple[float, float, float, float]:
        """What is seen of an image of this size: left, top, right and bottom in its own pixels."""
        if self.resize == "pad":
            return 0.0, 0.0, float(width), float(height)
        scaled = self._scaled(height, width)
        return _box_of(self._corner(scaled, self.size), self.size, scaled, (height, width))

    def _resized(self, image: Image.Image, whole: bool) -> Image.Image:
        height, width = self.size
        resampling = RESAMPLING[self.interpolation]
        if self.resize == "squash" and self.crop_pct == 1:
            return image.resize((width, height), resampling)
        if self.resize != "pad":
            scaled = self._scaled(image.height, image.width)
            most = LONGEST * height, LONGEST * width
            if whole and self.resize == "crop":
                height, width = min(scaled[0], most[0]), min(scaled[1], most[1])
            top, left = self._corner(scaled, (height, width))
            if scaled[0] <= most[0] and scaled[1] <= most[1]:
                entire = image.resize((scaled[1], scaled[0]), resampling)
                return entire.crop((left, top, left + width, top + height))
            box = _box_of((top, left), (height, width), scaled, (image.height, image.width))
            return image.resize((width, height), resampling, box=box)
        scale = min(height / image.height, width / image.width)
        fitted = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        canvas = convert_mode(Image.new("RGB", (width, height), self.pad_value), self.channels)
        left, top = (width - fitted[0]) // 2, (height - fitted[1]) // 2
        canvas.paste(image.resize(fitted, resampling), (left, top))
        return canvas

    def _corner(self, scaled: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
        """Top and left of the centre of a scaled image."""
        top, left = (whole - part for whole, part in zip(scaled, size, strict=True))
        return (top // 2, left // 2) if self.centre == "down" else (round(top / 2), round(left / 2))

    def _scaled(self, high: int, wide: int) -> tuple[int, int]:
        """Height and width of an image scaled to cover size / crop_pct.

        Rounded for a square as torchvision's Resize does, for any other size as timm's ResizeKeepRatio. Squashed, it
        is scaled to exactly that.
        """
        height, width = self.size
        scaled_high, scaled_wide = int(height / self.crop_pct), int(width / self.crop_pct)
        if self.resize == "squash":
            return scaled_high, scaled_wide
        if height != width:
            ratio = min(high / scaled_high, wide / scaled_wide)
            return round(high / ratio), round(wide / ratio)
        if scaled_high * wide >= scaled_wide * high:
            scaled_wide = scaled_high * wide // high
        else:
            scaled_high = scaled_wide * high // wide
        return scaled_high, scaled_wide


def image_of(pixels: object) -> Image.Image:
    """The image of pixels in memory: values 0..255 in uint8, colours in the order red, green, blue.

    Args:
        pixels: An array (h, w) or (h, w, c), or a tensor (h, w) or (c, h, w) as of torchvision; c is 1, 3 or 4. One
            channel may have 16 bits.

    Raises:
        UsageError: They are no pixels: other values may be of any range, or normalised, which nothing says.
    """
    if not isinstance(pixels, np.ndarray | Tensor):
        problem = f"an image must be a path, a PIL image, an array or a tensor, got {type(pixels).__name__}"
        raise UsageError(problem, "'photo.jpg', or an array (h, w, 3) of uint8")
    order, array = "(h, w, c)", pixels
    if isinstance(array, Tensor):
        order, array = "(c, h, w)", array.movedim(-3, -1) if array.ndim > 2 else array
        array = (array.float() if array.is_floating_point() else array).numpy(force=True)  # numpy has no bfloat16
    got, array = f"got {pixels.dtype} {tuple(pixels.shape)}", array[:, :, 0] if array.shape[2:] == (1,) else array
    if array.dtype != np.uint8 and (array.dtype, array.ndim) != (np.uint16, 2):
        problem = f"pixels must be uint8, 0 to 255, since the range of other values is not known, {got}"
        hint = "(255 * array).round().astype('uint8') of values 0 to 1; model.network(tensor) of what is normalised"
        raise UsageError(problem, hint)
    if not array.size or array.shape[2:] not in ((), (3,), (4,)) or array.ndim < 2:
        problem = f"an image must have the shape {order} with c of 1, 3 or 4, or (h, w), {got}"
        raise UsageError(problem, "np.moveaxis(array, 0, -1) of (c, h, w); list(array) of grey images (n, h, w)")
    return Image.fromarray(array)


def _box_of(
    first: tuple[int, int], size: tuple[int, int], scaled: tuple[int, int], own: tuple[int, int]
) -> tuple[float, float, float, float]:
    """A part of the scaled image, as left, top, right, bottom in the image's own pixels.

    So the scaled image need not be made as a whole, which keeps the memory for a panorama small; where rounding meets
    a tie, a number in 10,000 may lie a level or two off.

    Args:
        first: (top, left) of the part.
        size: (height, width) of the part.
        scaled: Of the scaled image.
        own: Of the image as it is.
    """
    (top, left), (height, width), (scaled_high, scaled_wide), (high, wide) = first, size, scaled, own
    down, across = high / scaled_high, wide / scaled_wide
    right, bottom = min((left + width) * across, float(wide)), min((top + height) * down, float(high))
    return left * across, top * down, right, bottom


def crop_pct(side: int, scaled: int) -> float:
    """The ratio by which `crop` scales the shorter side to exactly `scaled` pixels, and keeps `side` of them."""
    ratio = side / scaled
    while int(side / ratio) < scaled:  # the division came out a little too low
        ratio = math.nextafter(ratio, 0.0)
    return ratio


def measure_statistics(images: Iterable[UInt8[Tensor, "_ _ _"]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of all images, of values scaled to 0..1.

    They are computed from the counts of the 256 values, exactly and in little memory.

    Args:
        images: Of values 0..255, (c, h, w), one at least, each of its own shape; a tensor (n, c, h, w) will do.

    Returns:
        The means and the standard deviations (of the whole, not of a sample); 1 for a channel that never changes.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = sum(torch.stack([torch.bincount(each.flatten(), minlength=256) for each in image]) for image in images)
    assert isinstance(counts, Tensor)
    means, stds = [], []
    for fractions in counts.cpu().to(torch.float64).unbind():
        fractions = fractions / fractions.sum()
        mean = float(fractions @ values)
        std = math.sqrt(float(fractions @ (values - mean) ** 2))
        means.append(mean)
        stds.append(std if std > 1e-6 else 1.0)
    return tuple(means), tuple(stds)


def require(holds: bool, field: str, value: object, wanted: str) -> None:
    """Refuse a value that is not possible, by a UsageError that names what is wanted."""
    if not holds:
        raise UsageError(f"preprocessing: {field} is {value}", f"{field} = {wanted}")


def _finite(values: tuple[float, ...], count: int) -> bool:
    return len(values) == count and all(math.isfinite(value) for value in values)


# ---- `preprocessor_config.json`: the same in the words of transformers' image processors

OF_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
HALF = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
OF_CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
CROPPED = {"size": {"shortest_edge": 224}, "square": False, "do_center_crop": True, "crop_size": 224}
PROCESSORS: dict[str, dict[str, Any]] = {  # what each takes where its keys are left out; `square`: one number as a size
    "ViT": {**HALF, "size": 224, "square": True, "resample": 2},
    "DeiT": {**HALF, "size": 256, "square": True, "do_center_crop": True, "crop_size": 224, "resample": 3},
    "CLIP": {**OF_CLIP, **CROPPED, "resample": 3},
    "Bit": {**OF_CLIP, **CROPPED, "resample": 3},
    "Siglip": {**HALF, "size": {"height": 224, "width": 224}, "square": False, "resample": 3},
    "DINOv3ViT": {**OF_IMAGENET, "size": {"height": 224, "width": 224}, "square": False, "resample": 2},
}

OF_MODEL = {  # the processor that transformers takes for a `model_type`, where a file names none
    **dict.fromkeys(("vit", "vit_mae"), "ViT"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "Bit"),
    "deit": "DeiT",
    **dict.fromkeys(("clip", "aimv2", "aimv2_vision_model"), "CLIP"),
    "dinov3_vit": "DINOv3ViT",
    "siglip": "Siglip",
}


def to_hugging_face(preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of `preprocessor_config.json`, for the ViTImageProcessor of transformers.

    That processor can squash, and can crop to a square (an odd rest lies one pixel elsewhere there, see `centre`). For
    the rest its keys say the size only, and the whole truth stands under the key `vitrail`, which `from_hugging_face`
    reads.

    Args:
        preprocessing: What to write down.

    Returns:
        Plain JSON values.
    """
    height, width = preprocessing.size
    keys: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": int(RESAMPLING[preprocessing.interpolation]),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": preprocessing.channels == 3,
    }
    scaled = [int(side / preprocessing.crop_pct) for side in (height, width)]
    crops = preprocessing.resize == "crop" and height == width
    if crops or (preprocessing.crop_pct < 1 and preprocessing.resize == "squash"):
        keys["size"] = {"shortest_edge": scaled[0]} if crops else {"height": scaled[0], "width": scaled[1]}
        keys |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return keys | {"vitrail": preprocessing.to_dict()}


def from_hugging_face(keys: Mapping[str, Any], model: str = "") -> Preprocessing:
    """Read a `preprocessor_config.json`, written by `to_hugging_face` or for an image processor in `PROCESSORS`.

    Args:
        keys: The content of the file.
        model: The `model_type` beside it, whose image processor it is for where it names none.

    Returns:
        The preprocessing; of a foreign file, with as many channels as it has means.

    Raises:
        DataError: A key has a value that is not possible here, or the keys disagree with those under `vitrail`.
    """
    try:
        own = keys.get("vitrail")
        if own is None:
            return _from_foreign_keys(keys, model)
        preprocessing = Preprocessing.from_dict(own)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        problem = f"{error.problem}; supported: {error.hint}" if isinstance(error, UsageError) else repr(error)
        raise DataError(f"the preprocessor configuration cannot be used: {problem}", "write the model again") from error
    written = to_hugging_face(preprocessing)
    for key in ("size", "crop_size", "resample", "image_mean", "image_std"):
        if key in keys and keys[key] != written.get(key):
            both = f"{key} is {keys[key]}, under vitrail it is {written.get(key)}"
            hint = f"make {key} agree in preprocessor_config.json, or remove the part vitrail"
            raise DataError(f"the preprocessor configuration contradicts itself: {both}", hint)
    return preprocessing


def _from_foreign_keys(foreign: Mapping[str, Any], model: str) -> Preprocessing:
    """Read the keys of transformers; raises a UsageError or nearly any of Python's own on what is not known."""
    usual = OF_MODEL.get(model) if model else "ViT"
    kind = str(foreign.get("image_processor_type") or foreign.get("feature_extractor_type") or usual)
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", kind)
    require(family in PROCESSORS, "image_processor_type", kind, f"that of {', '.join(PROCESSORS)}")
    keys: dict[str, Any] = {**PROCESSORS[family], **{key: value for key, value in foreign.items() if value is not None}}
    require(bool(keys.get("do_resize", True)), "do_resize", False, "true")
    require(not keys.get("do_pad"), "do_pad", True, "false")
    factor = keys.get("rescale_factor", 1 / 255) if keys.get("do_rescale", True) else 1
    require(isinstance(factor, float) and abs(factor * 255 - 1) < 1e-6, "rescale_factor", factor, "1/255")
    names = {int(number): name for name, number in RESAMPLING.items()}
    resample = keys["resample"]
    require(resample in names, "resample", resample, "0 (nearest), 2 (bilinear) or 3 (bicubic)")
    normalised = keys.get("do_normalize", True)
    common: dict[str, Any] = {
        "interpolation": names[resample],
        "mean": tuple(keys["image_mean"]) if normalised else (0.0, 0.0, 0.0),
        "std": tuple(keys["image_std"]) if normalised else (1.0, 1.0, 1.0),
    }
    common["channels"] = len(common["mean"])
    size = keys["size"]
    if isinstance(size, int):
        square = keys["square"] or keys.get("use_square_size") or keys.get("default_to_square")
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    require(size.keys() <= {"height", "width", "shortest_edge"}, "size", size, "height and width, or shortest_edge")
    if not keys.get("do_center_crop", False):
        require({"height", "width"} <= size.keys(), "size", size, "height and width, where nothing is cropped")
        return Preprocessing(size=(size["height"], size["width"]), resize="squash", **common)
    crop = keys["crop_size"]
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    require(crop["height"] == crop["width"], "crop_size", crop, "a square")
    resize: Resize = "crop" if "shortest_edge" in size else "squash"
    require(resize == "crop" or size["height"] == size["width"], "size", size, "a square, or shortest_edge")
    ratio = crop_pct(crop["height"], size["shortest_edge" if resize == "crop" else "height"])
    return Preprocessing((crop["height"], crop["width"]), resize, ratio, centre="down", **common)
