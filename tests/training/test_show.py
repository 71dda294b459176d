"""`show_data`: the very images that a training and an evaluation see, and how much is cut away."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.training.tiny import options
from vitrail.errors import DataError, UsageError
from vitrail.io import SHOW, is_page
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import with_file
from vitrail.training.prepared import prepare_run
from vitrail.training.setup import decide
from vitrail.training.show import DRAWS

UNCUT = "crop_scale: [1, 1], crop_ratio: [1, 1]"
STRONG = "{crop_scale: [0.3, 1.0], crop_ratio: [0.75, 1.33], flip: 0.5, trivial_augment: true, random_erasing: 0.5}"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shown") / "photos"
    make_photographs(root, ("ant", "bee", "fly"), per_class=10, seed=0)
    return root


def changed(tmp_path: Path, augmentation: str, **more: Any) -> vitrail.TrainOptions:
    network = "network: {image_size: 16, patch_size: 8, width: 16, depth: 1, heads: 2, mlp_dim: 16}"
    (tmp_path / "changed.yaml").write_text(f"{network}\ndecode_size: 20\naugmentation: {augmentation}\n")
    return replace(options("photos", seed=5), config=tmp_path / "changed.yaml", image_size=None, **more)


@pytest.mark.parametrize(
    ("augmentation", "resize"), [(STRONG, "crop"), (STRONG, "pad"), (f"{{{UNCUT}, rotate: 20}}", "squash")]
)
def test_the_images_are_those_of_a_training_and_an_evaluation(
    augmentation: str, resize: str, photos: Path, tmp_path: Path
) -> None:
    asked = changed(tmp_path, augmentation, resize=resize)
    shown = vitrail.show_data(photos, asked, images=4)
    settings, dataset, task, *_ = decide(
        with_file(Request(data=str(photos), options=asked)), lambda event: None, lambda *sentences: None
    )
    prepared = prepare_run(settings, dataset, task)  # which reads all images into memory
    reads, names = prepared.model.preprocessing, dataset.train.inputs.names()
    assert [each.label for each in shown.images] == ["ant"] * 4 + ["bee"] * 4 + ["fly"] * 4
    trained = [dict[str, torch.Tensor]() for _ in range(DRAWS)]
    for epoch, found in enumerate(trained):
        for batch in prepared.data.batches(epoch, 7):
            pixels = reads.to_pixels(batch.inputs).permute(0, 2, 3, 1)
            found |= dict(zip([names[row] for row in batch.ids.tolist()], pixels, strict=True))
    for each in shown.images:
        assert (each.views[0] == reads.to_array(Image.open(photos / each.name))).all()
        assert len(each.views) == 1 + DRAWS
        for view, found in zip(each.views[1:], trained, strict=True):
            assert np.abs(view.astype(int) - found[each.name].numpy()).max() <= 1  # rounded twice
    assert len({view.tobytes() for view in shown.images[0].views}) > 2


def test_without_changes_an_evaluation_alone_is_shown(photos: Path, tmp_path: Path) -> None:
    shown = vitrail.show_data(photos, changed(tmp_path, f"{{{UNCUT}, flip: 0, trivial_augment: false}}"))
    assert {len(each.views) for each in shown.images} == {1}
    assert [len(shown.images), shown.classes["fly"]] == [9, 9]  # of ten a tenth is held out


def test_how_much_is_cut_away_is_counted_and_comes_first(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for number, wide in enumerate(
        (40, 42, 46, 64, 120, 40, 41, 40, 40, 40, 40, 40)
    ):  # of 40: 3 lose a tenth, 2 a third
        for turned in (False, True):
            pixels = draw.integers(0, 256, (wide, 40, 3) if turned else (40, wide, 3), np.uint8)
            file = tmp_path / "photos" / "train" / "ab"[turned] / f"{number:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    (tmp_path / "photos" / "train" / "a" / "99.png").write_bytes(b"no image")
    (tmp_path / "photos" / "val").symlink_to(tmp_path / "photos" / "train")
    asked = options("photos")
    shown = vitrail.show_data(tmp_path / "photos", asked, images=2)
    assert shown.lost == {"of": 24, "tenth": 6, "third": 4}
    assert [each.name for each in shown.images] == [
        f"train/{name}/{number}.png" for name in "ab" for number in ("04", "05")
    ]
    left, top, right, bottom = shown.images[0].part
    assert np.allclose([right - left, bottom - top], [1 / 3, 1], atol=0.01)
    assert np.isclose(left, 1 - right, atol=0.01)
    for resize in ("pad", "squash"):
        other = vitrail.show_data(tmp_path / "photos", replace(asked, resize=resize))
        assert (other.lost["tenth"], {each.part for each in other.images}) == (0, {(0.0, 0.0, 1.0, 1.0)})
    wide = vitrail.show_data(tmp_path / "photos", replace(asked, image_size=(16, 48)))
    assert wide.lost == {"of": 24, "tenth": 23, "third": 23}  # one has these proportions


def test_images_of_every_task_are_shown_and_texts_are_not(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.*"))
    values = {"labels": ("red|round", "red"), "label": (0.5, 1.75), "text": ("ab", "ba")}
    for column, both in values.items():  # two labels, of which one is the rarer; low and high numbers; texts
        rows = [f"{file},{both[row % 2]}" for row, file in enumerate(files)]
        (tmp_path / f"{column}.csv").write_text("\n".join([f"path,{column}", *rows]))
        shown = vitrail.show_data(tmp_path / f"{column}.csv", images=2)
        assert (len(shown.images), dict(shown.classes)) == (8 if column == "text" else 4, {}), column
        words = {"red|round": "red, round"}
        assert {each.label for each in shown.images} == {words.get(str(one), str(one)) for one in both}, column
    pairs = [(np.full((16, 16, 3), 9 * n, np.uint8), "ab"[n % 2]) for n in range(20)]
    assert len(vitrail.show_data(pairs, options("photos")).images) == 6
    with must_raise(DataError, "sort-digits"):
        vitrail.show_data("sort-digits", options("sort-digits"))
    with must_raise(DataError, "nowhere"):
        vitrail.show_data(tmp_path / "nowhere")
    with must_raise(UsageError, "nosuch"):
        vitrail.show_data(photos, replace(options("photos"), recipe="nosuch"))


def test_the_page_has_every_image_and_stays_as_small_as_it_is(photos: Path, tmp_path: Path) -> None:
    shown = vitrail.show_data(photos, replace(options("photos"), image_size=320, size="Ti/32", config=None))
    page = shown.page("vitrail data show photos")
    assert is_page(page, SHOW)
    assert page == shown.page("vitrail data show photos")
    assert page.count("data:image/png") == len(shown.images) * (2 + DRAWS)
    assert {max(view.shape) for each in shown.images for view in each.views} == {107}  # of 320 a third
    ant, other = (replace(each, label="ant") for each in shown.images[:2])
    one, two = (
        replace(shown, images=(ant, replace(other, label=name))).page().count("<h2>") for name in ("ant", "Ant")
    )
    assert two == one + 1, "classes that differ in case are two"
    assert len(shown._repr_html_()) > len(page)
    about = shown.to_dict()
    assert [each["file"] for each in about["images"]] == [each.name for each in shown.images]
