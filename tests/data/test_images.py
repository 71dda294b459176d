"""The hash of the files of a set: what of them it notices."""

from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.images import FileImages


def test_other_images_under_the_same_names_and_of_as_many_bytes_are_noticed(tmp_path: Path) -> None:
    """Uncompressed images all have the same size; a file that cannot be read spoils nothing."""
    paths = [tmp_path / f"{number}.bmp" for number in range(5)]

    def drawn(seed: int) -> bytes:
        for path, pixels in zip(paths, np.random.default_rng(seed).integers(0, 256, (5, 8, 8), np.uint8), strict=True):
            Image.fromarray(pixels).save(path)
        return FileImages(paths).digest()

    assert drawn(0) == drawn(0) != drawn(1)
    paths[2].unlink()
    paths[2].mkdir()
    assert FileImages(paths).digest() == FileImages(paths).digest()
