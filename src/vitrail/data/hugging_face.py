"""`preprocessor_config.json`: a preprocessing in the words of transformers' image processors, and back."""

import re
from collections.abc import Mapping
from typing import Any

from vitrail.data.preprocessing import RESAMPLING, Preprocessing, crop_ratio, require
from vitrail.errors import DataError, UsageError

HALF = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
OF_CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
CROPPED = {"size": {"shortest_edge": 224}, "square": False, "do_center_crop": True, "crop_size": 224}
PROCESSORS: dict[str, dict[str, Any]] = {  # what each takes where its keys are left out; `square`: one number as a size
    "ViT": {**HALF, "size": 224, "square": True, "resample": 2},
    "DeiT": {**HALF, "size": 256, "square": True, "do_center_crop": True, "crop_size": 224, "resample": 3},
    "CLIP": {**OF_CLIP, **CROPPED, "resample": 3},
    "Bit": {**OF_CLIP, **CROPPED, "resample": 3},
    "Siglip": {**HALF, "size": {"height": 224, "width": 224}, "square": False, "resample": 3},
}

OF_MODEL = {  # the processor that transformers takes for a `model_type`, where a file names none
    **dict.fromkeys(("vit", "vit_mae"), "ViT"),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "Bit"),
    "deit": "DeiT",
    "clip": "CLIP",
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
    scaled = [int(side / preprocessing.crop_ratio) for side in (height, width)]
    crops = preprocessing.resize == "crop" and height == width
    if crops or (preprocessing.crop_ratio < 1 and preprocessing.resize == "squash"):
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
    except (UsageError, TypeError, KeyError, AttributeError) as error:
        problem = f"{error.problem}; supported: {error.hint}" if isinstance(error, UsageError) else repr(error)
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


def _from_foreign_keys(given: Mapping[str, Any], model: str) -> Preprocessing:
    """Read the keys of transformers; raises UsageError, TypeError, KeyError or AttributeError on what is not known."""
    usual = OF_MODEL.get(model) if model else "ViT"
    kind = str(given.get("image_processor_type") or given.get("feature_extractor_type") or usual)
    family = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", kind)
    require(family in PROCESSORS, "image_processor_type", kind, f"that of {', '.join(PROCESSORS)}")
    keys: dict[str, Any] = {**PROCESSORS[family], **{key: value for key, value in given.items() if value is not None}}
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
    squash = "shortest_edge" not in size
    require(not squash or size["height"] == size["width"], "size", size, "a square, or shortest_edge")
    ratio = crop_ratio(crop["height"], size["height"] if squash else size["shortest_edge"])
    return Preprocessing(
        (crop["height"], crop["width"]), "squash" if squash else "crop", ratio, centre="down", **common
    )
