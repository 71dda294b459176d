"""`preprocessor_config.json`: a preprocessing in the words of transformers' image processors, and back."""

from collections.abc import Mapping
from typing import Any

from vitrail.data.preprocessing import RESAMPLING, Preprocessing, crop_ratio, require
from vitrail.errors import DataError, UsageError


def to_hugging_face(preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of `preprocessor_config.json`, for the ViTImageProcessor of transformers.

    That processor can squash, and can crop to a square. For the rest its keys say the size only, and the whole truth
    stands under the key `vitrail`, which `from_hugging_face` reads.

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
    if preprocessing.resize == "crop" and height == width:
        keys["size"] = {"shortest_edge": int(height / preprocessing.crop_ratio)}
        keys |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return keys | {"vitrail": preprocessing.to_dict()}


def from_hugging_face(keys: Mapping[str, Any]) -> Preprocessing:
    """Read a `preprocessor_config.json`, written by `to_hugging_face` or for a plain ViTImageProcessor.

    Args:
        keys: The content of the file.

    Returns:
        The preprocessing; of a foreign file, with three channels.

    Raises:
        DataError: A key has a value that is not possible here, or the keys disagree with those under `vitrail`.
    """
    try:
        own = keys.get("vitrail")
        if own is None:
            return _from_foreign_keys(keys)
        preprocessing = Preprocessing.from_dict(own)
    except (UsageError, TypeError, KeyError, AttributeError) as error:
        problem = error.problem if isinstance(error, UsageError) else repr(error)
        raise DataError(f"the preprocessor configuration cannot be used: {problem}", "write the model again") from error
    written = to_hugging_face(preprocessing)
    for key in ("size", "crop_size", "resample", "image_mean", "image_std"):
        if key in keys and keys[key] != written.get(key):
            raise DataError(
                f"the preprocessor configuration contradicts itself: {key} is {keys[key]}, under vitrail it is "
                f"{written.get(key)}",
                f"make {key} agree in preprocessor_config.json, or remove the part vitrail",
            )
    return preprocessing


def _from_foreign_keys(keys: Mapping[str, Any]) -> Preprocessing:
    """Read the keys of transformers; raises UsageError, TypeError, KeyError or AttributeError on what is not known."""
    require(bool(keys.get("do_resize", True)), "do_resize", False, "true")
    factor = keys.get("rescale_factor", 1 / 255) if keys.get("do_rescale", True) else 1
    require(isinstance(factor, float) and abs(factor * 255 - 1) < 1e-6, "rescale_factor", factor, "1/255")
    names = {int(number): name for name, number in RESAMPLING.items()}
    resample = keys.get("resample", 2)
    require(resample in names, "resample", resample, "0 (nearest), 2 (bilinear) or 3 (bicubic)")
    normalised = keys.get("do_normalize", True)
    size = keys.get("size", 224)
    common: dict[str, Any] = {
        "interpolation": names[resample],
        "mean": tuple(keys.get("image_mean", (0.5, 0.5, 0.5))) if normalised else (0.0, 0.0, 0.0),
        "std": tuple(keys.get("image_std", (0.5, 0.5, 0.5))) if normalised else (1.0, 1.0, 1.0),
    }
    if isinstance(size, int):
        size = {"height": size, "width": size}
    if not keys.get("do_center_crop", False):
        return Preprocessing(size=(size["height"], size["width"]), resize="squash", **common)
    crop = keys["crop_size"]
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    require(crop["height"] == crop["width"], "crop_size", crop, "a square, since the image is scaled to shortest_edge")
    ratio = crop_ratio(crop["height"], size["shortest_edge"])
    return Preprocessing(size=(crop["height"], crop["width"]), resize="crop", crop_ratio=ratio, **common)
