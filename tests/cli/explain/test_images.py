"""Which images are explained; and the masks that say where their evidence lies, on the grid of patches."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.command import Cli
from tests.cli.planted import planted_model
from tests.errors import figures
from vitrail.data.images import NamedImage
from vitrail.data.masks import add_masks
from vitrail.errors import DataError
from vitrail.explain.reporting.known_masks import mask_patches


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16"])
def test_a_mask_of_any_mode_counts_where_it_is_not_black(mode: str, tmp_path: Path) -> None:
    plain = np.zeros((32, 32), np.uint8)
    plain[4:8, 8:16], plain[20:23, 20:24] = 1, 1  # two patches, and three quarters of one
    plain[28:30, 28:32] = 1  # half of one is not the most of it
    values = {"1": plain * 255, "I;16": plain.astype(np.uint16)}.get(mode, plain)
    mask = Image.fromarray(values)
    if mode == "P":
        mask = mask.convert("P")
        mask.putdata(plain.flatten().tolist())
        mask.putpalette([0, 0, 0, 128, 0, 0])
    elif mode in ("1", "RGB", "RGBA"):
        mask = mask.convert(mode)
    mask.save(tmp_path / "a.png")
    (one,) = add_masks([NamedImage("x/a.jpg", Image.new("L", (32, 32)), None)], tmp_path)
    masks = mask_patches([one], planted_model())
    assert masks is not None
    assert masks[0].nonzero().tolist() == [[1, 2], [1, 3], [5, 5]]


@pytest.mark.parametrize("mode", ["P", "LA"])
def test_a_mask_counts_by_its_colours_and_neither_by_their_numbers_nor_by_how_opaque_they_are(
    mode: str, tmp_path: Path
) -> None:
    """White on black that Pillow brings down to two colours has white as number 0, so it came out the other way."""
    plain = Image.new("L", (32, 32))
    plain.paste(255, (8, 4, 16, 8))
    mask = plain.convert("RGB").quantize(2)
    assert np.asarray(mask)[5, 10] == 0
    mask.convert(mode).save(tmp_path / "a.png")
    (one,) = add_masks([NamedImage("x/a.jpg", Image.new("L", (32, 32)), None)], tmp_path)
    masks = mask_patches([one], planted_model())
    assert masks is not None
    assert masks[0].nonzero().tolist() == [[1, 2], [1, 3]]


def test_a_mask_goes_where_its_image_goes(tmp_path: Path) -> None:
    """Cut and scaled like the image: here the middle of a wide one, at half its size."""
    Image.fromarray(np.kron(np.eye(1, 12, 5), np.full((64, 16), 255)).astype(np.uint8)).save(tmp_path / "a.png")
    shown = add_masks([NamedImage("a.jpg", Image.new("L", (192, 64)), None)], tmp_path)
    masks = mask_patches(shown, planted_model())
    assert masks is not None
    assert masks[0].any(dim=0).nonzero().flatten().tolist() == [2, 3]
    assert masks[0].all(dim=0).sum() == 2


def test_masks_by_folder_and_masks_that_would_serve_twice(tmp_path: Path) -> None:
    images = [NamedImage(f"{folder}/1.jpg", Image.new("L", (8, 8)), None) for folder in "ab"]
    Image.new("L", (8, 8), 255).save(tmp_path / "1.png")
    with pytest.raises(DataError, match=r"a/1\.jpg .*b/1\.jpg"):
        add_masks(images, tmp_path)
    (tmp_path / "a").mkdir()
    Image.new("L", (8, 8), 255).save(tmp_path / "a" / "1.png")
    assert all(one.mask is not None for one in add_masks(images, tmp_path))


def test_a_set_is_spread_over_and_what_is_left_out_is_said(
    cli: Cli, photo_run: Path, photographs: Path, tmp_path: Path
) -> None:
    for number, data in enumerate((photographs / "abc", photographs / "abc" / "val")):
        out = tmp_path / f"{number}.html"
        answer = cli("explain", photo_run, data, "--count", 3, "--no-trust", "--out", out, "--json")
        assert [Path(row["file"]).parent.name for row in json.loads(answer.out)["images"]] == ["a", "b", "c"]
        assert figures(answer.err) == ["3", "12", "12"]
