"""Writes `src/vitrail.data.background/*.jpg` out of scikit-image: `python -m benchmarks.photographs`."""

from pathlib import Path

import skimage
from PIL import Image

from vitrail.data.background import NAMES, PLACE

SIDE, QUALITY = 320, 85  # pixels of the shorter side


def main() -> None:
    """One JPEG for each name."""
    for name in NAMES:
        (file,) = (Path(skimage.__file__).parent / "data").glob(f"{name}.*")
        image = Image.open(file).convert("RGB")
        scale = SIDE / min(image.size)
        width, height = (round(scale * side) for side in image.size)
        image.resize((width, height), Image.Resampling.LANCZOS).save(PLACE / f"{name}.jpg", quality=QUALITY)


if __name__ == "__main__":
    main()
