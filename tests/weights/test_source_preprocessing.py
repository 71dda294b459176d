"""An upright RGB JPEG becomes the tensor that the source's own code makes of it, within one level of 255.

transformers' own two backends lie two levels apart in one number of 100,000; ours is the one that uses Pillow. Faults
of preprocessing, planted into ours, are seen on the same images.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from torch import Tensor

from tests.errors import must_raise
from vitrail.data.preprocessing import PROCESSORS, Preprocessing, from_hugging_face, to_hugging_face
from vitrail.errors import DataError
from vitrail.weights.timm import preprocessing_of as of_timm
from vitrail.weights.torchvision import preprocessing_of as of_torchvision

Source = Callable[[Image.Image], Tensor]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = (375, 500), (501, 334), (300, 299), (171, 258)  # rests of every kind, and one that is made larger


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Image.Image]:
    """JPEGs with edges, gradients and grain."""
    rng, folder, found = np.random.default_rng(0), tmp_path_factory.mktemp("jpeg"), []
    for height, width in SIZES:
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((width, height), 0)
        fine = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).resize((width, height), 3)
        grain = rng.normal(0, 6, (height, width, 3))
        pixels = 0.6 * np.asarray(coarse) + 0.4 * np.asarray(fine) + grain
        path = folder / f"{height}x{width}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=92)
        found.append(Image.open(path))
        assert (found[-1].format, found[-1].mode) == ("JPEG", "RGB")
    return found


def levels(
    ours: Preprocessing, source: Source, images: list[Image.Image], told: Preprocessing | None = None, but: float = 0
) -> float:
    """How far apart the tensors lie in levels of 255, by the source's standard deviation; but for a fraction."""
    std = torch.tensor((told or ours).std)[:, None, None]
    apart = [((ours(image) - source(image)).abs() * std * 255).flatten().sort().values for image in images]
    return max(float(each[-1 - math.ceil(but * len(each))]) for each in apart)


def timm_source(**config: Any) -> tuple[Preprocessing, Source]:
    config = {"input_size": (3, 224, 224), "interpolation": "bicubic", "mean": MEAN, "std": STD, **config}
    resolved = timm.data.resolve_data_config({}, pretrained_cfg=config)
    return of_timm(config), timm.data.create_transform(**resolved)


TIMM = {
    "crop": {"crop_pct": 0.9},
    "crop unsaid": {},
    "whole": {"crop_pct": 1.0, "mean": (0.5,) * 3, "std": (0.5,) * 3},
    "bilinear": {"crop_pct": 0.95, "interpolation": "bilinear"},
    "squash": {"crop_pct": 1.0, "crop_mode": "squash"},
    "squash and crop": {"crop_pct": 0.9, "crop_mode": "squash"},
    "border": {"crop_pct": 1.0, "crop_mode": "border"},
    "rectangle": {"crop_pct": 0.9, "crop_mode": "squash", "input_size": (3, 160, 224)},
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str, images: list[Image.Image]) -> None:
    ours, source = timm_source(**TIMM[name])
    assert levels(ours, source, images) < 1.01


def processed(processor: Any) -> Source:
    return lambda image: processor(image, return_tensors="pt")["pixel_values"][0]


KEYS = {
    "as it is": {},
    "another crop": {"size": {"shortest_edge": 97}, "crop_size": {"height": 64, "width": 64}, "do_center_crop": True},
    "squashed": {"size": {"height": 96, "width": 64}, "do_center_crop": False, "resample": 2},
    "not normalised": {"do_normalize": False},
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_transformers(kind: str, images: list[Image.Image], tmp_path: Path) -> None:
    """Both backends, from the file that each writes, and from one that leaves all keys to the class; DINOv3 has one."""
    for name, keys in KEYS.items():
        for backend in ("", "Pil") if kind != "DINOv3ViT" else ("",):
            processor = getattr(transformers, f"{kind}ImageProcessor{backend}")(**keys)
            processor.save_pretrained(tmp_path)
            ours = from_hugging_face(json.loads((tmp_path / "preprocessor_config.json").read_text()))
            assert levels(ours, processed(processor), images, but=0 if backend else 1e-5) < 1.01, (name, backend)
    bare = {"image_processor_type": f"{kind}ImageProcessor"}
    assert from_hugging_face(bare) == from_hugging_face(
        {**bare, **getattr(transformers, bare["image_processor_type"])().to_dict()}
    )


def test_old_files_of_transformers(images: list[Image.Image]) -> None:
    """One number as a size is a square for ViT and DeiT, and the shorter side for CLIP."""
    for kind, scaled in (("DeiT", 256), ("CLIP", 224)):
        keys = {"size": scaled, "crop_size": 224, "do_center_crop": True, "resample": 3}
        keys |= {"image_mean": list(MEAN), "image_std": list(STD)}
        source = processed(getattr(transformers, f"{kind}ImageProcessorPil")(**keys))
        ours = from_hugging_face({"feature_extractor_type": f"{kind}FeatureExtractor", **keys})
        assert levels(ours, source, images) < 1.01


@pytest.mark.parametrize("name", ["ViT_B_16_Weights.IMAGENET1K_V1", "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1"])
def test_torchvision(name: str, images: list[Image.Image]) -> None:
    preset: Any = torchvision.models.get_weight(name).transforms()
    assert levels(of_torchvision(preset), preset, images) < 1.01
    as_it_is = preset.forward
    for fault in (lambda image: image.resize((300, 300)), lambda image: image.rotate(0, translate=(0, 2))):
        preset.forward = lambda image, fault=fault: as_it_is(fault(image))
        with must_raise(DataError):
            of_torchvision(preset)


def test_written_for_transformers_and_back(images: list[Image.Image]) -> None:
    squashed = Preprocessing((64, 64), "squash", 0.8, centre="down")
    for ours in (squashed, replace(squashed, resize="crop")):
        keys = to_hugging_face(ours)
        assert from_hugging_face(keys) == ours
        assert levels(ours, processed(transformers.ViTImageProcessorPil.from_dict(keys)), images) < 1.01


FAULTS: dict[str, dict[str, Any]] = {
    "another mean": {"mean": (0.5, 0.5, 0.5)},
    "another standard deviation": {"std": (0.5, 0.5, 0.5)},
    "another crop": {"crop_pct": 0.9},
    "no crop": {"crop_pct": 1.0},
    "squash for crop": {"resize": "squash", "crop_pct": 1.0},
    "bilinear for bicubic": {"interpolation": "bilinear"},
    "the middle one pixel off": {"centre": "down"},
}


@pytest.mark.parametrize("name", [*FAULTS, "blue first"])
def test_planted_faults_are_seen_on_images(name: str, images: list[Image.Image]) -> None:
    ours, source = timm_source(crop_pct=0.95)
    assert levels(ours, source, images) < 1.01
    if name == "blue first":
        assert levels(ours, lambda image: source(image).flip(0), images) > 4
    else:
        assert levels(replace(ours, **FAULTS[name]), source, images, ours) > 4
