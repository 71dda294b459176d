"""The real ViT-Ti and the photographs beside the checkout, or in $VITRAIL_DATA; what needs them skips elsewhere."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def real_data() -> Path:
    """The folder that holds vit_ti16 and photos."""
    named = os.environ.get("VITRAIL_DATA")
    for root in (Path(named) if named else BESIDE, BESIDE):
        if (root / "vit_ti16" / "model.safetensors").is_file():
            return root
    pytest.skip("the real ViT-Ti is not here: set VITRAIL_DATA to the folder that holds vit_ti16 and photos")


def real_photographs(root: Path) -> list[Path]:
    """A hundred, one of every tenth class of ImageNet, whose number its name begins with."""
    return sorted((root / "photos" / "imagenet100").glob("*.jpg"), key=class_of)


def class_of(photograph: Path) -> int:
    """The number of its class."""
    return int(photograph.name.partition("_")[0])
