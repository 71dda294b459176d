"""From options, a configuration file and a recipe to settings; nothing that was asked for is passed over in silence."""

from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from vitrail.data.source import Source, open_source
from vitrail.training.asked import differences, precision_is_open
from vitrail.training.prepare import build, look, resolve

from tests.errors import must_raise
from tests.photographs import make_photographs
from vitrail.data.loader import StreamedLoader, open_loader
from vitrail.errors import DataError, UsageError
from vitrail.training import prepare
from vitrail.training.options import TrainOptions
from vitrail.training.recipes import RECIPES
from vitrail.training.settings import Settings, settings_to_yaml

ONE = TrainOptions(threads=1, device="cpu")


@pytest.fixture(scope="module")
def digits() -> Source:
    return open_source("digits")


@pytest.fixture(scope="module")
def photos(photo_folder: Path) -> Source:
    return open_source(str(photo_folder))


def settle(source: Source, options: TrainOptions = ONE, given: dict | None = None) -> Settings:
    return resolve(source.name, options, given or {}, source)[0]


def test_a_recipe_is_the_base(digits: Source, photos: Source) -> None:
    made, notes = resolve("digits", ONE, {}, digits)
    recipe = RECIPES["digits"]
    assert (made.optimization, made.augmentation) == (recipe.optimization, recipe.augmentation)
    assert (made.network.channels, made.network.classes, made.network.image) == (1, 10, (8, 8))
    assert notes[0].startswith("recipe digits: the recipe of this set")
    assert "; unchanged, it reached 98.55 % of the test" in notes[0]
    of_photos = settle(photos)
    assert (of_photos.recipe, of_photos.network.channels, of_photos.network.classes) == ("few-photos", 3, 3)
    assert of_photos.fetch_size == RECIPES["few-photos"].fetch_size


def test_options_go_before_the_file_and_the_file_before_the_recipe(digits: Source) -> None:
    given = {"optimization": {"epochs": 7, "batch_size": 9}, "seed": 5, "network": {"depth": 1}}
    made = settle(digits, replace(ONE, epochs=3, seed=0), given)
    recipe = RECIPES["digits"].optimization
    warmup = recipe.warmup_epochs * (3 / recipe.epochs)
    assert made.optimization == replace(recipe, epochs=3, batch_size=9, warmup_epochs=warmup)
    assert made.network.depth == 1
    assert made.seed == 0, "a seed of 0 that was asked for is a seed"
    assert settle(digits, ONE, given).seed == 5
    everything = replace(ONE, epochs=2, batch_size=3, lr=0.5, weight_decay=0.25, accumulate=3, seed=8, split_seed=9)
    chosen = settle(digits, everything).optimization
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate) == (2, 3, 0.5)
    assert (chosen.weight_decay, chosen.accumulate) == (0.25, 3)
    assert (settle(digits, everything).seed, settle(digits, everything).split_seed) == (8, 9)


def test_a_size_of_the_table_goes_before_a_file(digits: Source) -> None:
    for given in ({}, {"network": {"depth": 2, "pooling": "mean"}}):
        network = settle(digits, replace(ONE, size="Ti/4"), given).network
        assert (network.width, network.depth, network.heads, network.patch) == (192, 12, 3, (4, 4))
        assert (network.image, network.channels, network.classes) == ((8, 8), 1, 10)
    with pytest.raises(UsageError, match="unknown size"):
        settle(digits, replace(ONE, size="X/4"))


@pytest.mark.parametrize(
    ("options", "given", "image", "fetched"),
    [
        ({}, {}, (64, 64), 72),
        ({"image_size": 128}, {}, (128, 128), 144),
        ({}, {"network": {"image_size": 32}}, (32, 32), 36),
        ({}, {"network": {"image_size": [32, 48]}}, (32, 48), 36),
        ({}, {"network": {"image_size": 32}, "fetch_size": 33}, (32, 32), 33),
        ({"image_size": 64}, {"network": {"image_size": 32}, "fetch_size": 40}, (64, 64), 80),
        ({"size": "S/16", "image_size": 96}, {}, (96, 96), 108),
    ],
)
def test_another_size_is_fetched_in_proportion(
    photos: Source, options: dict, given: dict, image: tuple, fetched: int
) -> None:
    made = settle(photos, replace(ONE, **options), given)
    assert (made.network.image, made.fetch_size) == (image, fetched)


def test_a_size_that_the_patches_do_not_divide_is_refused(digits: Source) -> None:
    with must_raise(UsageError, "cannot be cut into patches") as caught:
        settle(digits, replace(ONE, image_size=9))
    assert "8x8" in caught.value.hint


def test_the_file_decides_how_to_compute_unless_an_option_does(digits: Source) -> None:
    chosen = {"threads": 2, "precision": "bf16", "compile": True, "workers": 5, "device": "cpu"}
    given = {"execution": {**chosen, "attention_kernel": "flash"}}  # a new run of this size would take "math"
    stored = settle(digits, TrainOptions(), given).execution
    assert asdict(stored) == given["execution"]
    assert not precision_is_open(TrainOptions(), given)
    assert precision_is_open(TrainOptions(), {})
    over = settle(digits, TrainOptions(threads=1, precision="fp32", compile="off", workers=0), given).execution
    assert (over.threads, over.precision, over.compile, over.workers) == (1, "fp32", False, 0)


def test_two_recipes_at_once_are_refused(digits: Source) -> None:
    with pytest.raises(UsageError, match="is of the recipe mnist, --recipe says digits"):
        settle(digits, replace(ONE, recipe="digits", config=Path("c.yaml")), {"recipe": "mnist"})
    assert settle(digits, ONE, {"recipe": "d0-mnist"}).recipe == "d0-mnist"
    assert settle(digits, replace(ONE, recipe="d0-mnist")).recipe == "d0-mnist"


def test_the_written_settings_give_themselves_again(digits: Source, photos: Source) -> None:
    for source, options in ((digits, replace(ONE, epochs=2, seed=4)), (photos, replace(ONE, image_size=32))):
        made = settle(source, options)
        given = yaml.safe_load(settings_to_yaml(made))
        assert settle(source, TrainOptions(), given) == made


CHANGES = {
    "recipe": ("mnist", "recipe: digits -> mnist"),
    "epochs": (5, "epochs: 2 -> 5"),
    "batch_size": (7, "batch_size: 64 -> 7"),
    "lr": (0.5, "learning_rate: 0.002 -> 0.5"),
    "weight_decay": (0.5, "weight_decay: 0.05 -> 0.5"),
    "accumulate": (2, "accumulate: 1 -> 2"),
    "seed": (0, "seed: 3 -> 0"),
    "split_seed": (1, "split_seed: 0 -> 1"),
    "image_size": (16, "image_size: (8, 8) -> (16, 16)"),
    "size": ("S/4", "size: another network -> S/4"),
    "device": ("cuda", "device: cpu -> cuda"),
    "threads": (2, "threads: 1 -> 2"),
    "precision": ("bf16", "precision: fp32 -> bf16"),
    "compile": ("on", "compile: off -> on"),
    "references": (False, "references: yes -> no"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_changed_option_is_listed(digits: Source, name: str) -> None:
    made = settle(digits, replace(ONE, epochs=2, seed=3))
    value, sentence = CHANGES[name]
    assert differences(made, "digits", replace(TrainOptions(), **{name: value}), digits.root) == [sentence]


def test_options_that_change_nothing_are_not_listed(digits: Source, photos: Source) -> None:
    made = settle(digits, replace(ONE, epochs=2, seed=3))
    for data in ("digits", ""):
        assert differences(made, data, TrainOptions(), digits.root) == []
    again = replace(
        ONE, epochs=2, seed=3, batch_size=64, recipe="digits", precision="fp32", compile="off", resume="auto"
    )
    assert differences(made, "digits", again, digits.root) == []
    assert differences(made, "mnist", TrainOptions(), digits.root) == ["data: digits -> mnist"]
    of_photos = settle(photos)
    assert differences(of_photos, f"{photos.root}/../{Path(photos.root).name}", TrainOptions(), photos.root) == []
    free = {"config", "resume", "data_root", "workers"}
    assert set(CHANGES) | free == {field.name for field in fields(TrainOptions)}, "a new option: does it change a run?"


@pytest.mark.parametrize(
    ("modes", "channels"), [(["L", "L"], 1), (["L", "RGB"], 3), (["1", "I;16"], 1), (["RGBA", "P"], 3)]
)
def test_channels_are_those_of_the_pictures(tmp_path: Path, modes: list[str], channels: int) -> None:
    for number, mode in enumerate(modes * 12):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        size = (40 + number, 70)
        values = np.zeros(size[::-1], np.uint16)
        picture = Image.fromarray(values) if mode == "I;16" else Image.new(mode, size)
        picture.save(folder / f"{number}.png")
    assert look(open_source(str(tmp_path)).train.pictures)[1] == channels


def test_pictures_that_cannot_be_read_are_not_looked_at(tmp_path: Path) -> None:
    make_photographs(tmp_path, ("a", "b"), per_class=10, seed=0)
    for path in sorted(tmp_path.rglob("*.*"))[::2]:
        path.write_bytes(b"")
    side, channels = look(open_source(str(tmp_path)).train.pictures)
    assert side > 40
    assert channels == 3
    for path in tmp_path.rglob("*.*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of the pictures looked at can be read"):
        look(open_source(str(tmp_path)).train.pictures)


def test_what_is_built_is_the_same_twice_and_by_both_feeds(photos: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    made = settle(photos, replace(ONE, image_size=32, workers=1))
    torch.manual_seed(5)
    one, two = build(made, photos), build(made, photos)
    monkeypatch.setattr(prepare, "open_loader", partial(open_loader, resident_bytes=0))
    streamed = build(made, photos)
    assert isinstance(streamed.data.loader, StreamedLoader)
    for other in (two, streamed):
        assert other.model.preprocessing == one.model.preprocessing
        for name, tensor in one.model.network.state_dict().items():
            assert torch.equal(tensor, other.model.network.state_dict()[name])
    another = build(replace(made, seed=1), photos)
    assert not torch.equal(one.model.network.patch_embed.proj.weight, another.model.network.patch_embed.proj.weight)


def test_training_and_evaluation_show_the_same_part_of_a_picture(photos: Source) -> None:
    """Fetched at 36 for 32: evaluation cuts out the middle 32 of 36, and the statistics are those of the pictures."""
    prepared = build(settle(photos, replace(ONE, image_size=32)), photos)
    assert prepared.model.preprocessing.crop_ratio == pytest.approx(32 / 36)
    ids = np.arange(len(photos.train))
    (fetched,) = prepared.data.loader.fetch([ids])
    assert tuple(fetched.pixels.shape[2:]) == (36, 36)
    share = fetched.pixels.double() / 255
    np.testing.assert_allclose(prepared.model.preprocessing.mean, share.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(prepared.model.preprocessing.std, share.std((0, 2, 3), correction=0), rtol=1e-6)
    cut = prepared.model.preprocessing.to_uint8(photos.train.pictures.open(0)).float()
    middle = fetched.pixels[0, :, 2:34, 2:34].float()
    assert (cut - middle).abs().mean() < 2, "the same scale and place"
    assert (cut - fetched.pixels[0, :, 0:32, 0:32].float()).abs().mean() > (cut - middle).abs().mean()


def test_a_short_run_warms_up_for_its_share_only(digits: Source) -> None:
    whole = RECIPES["digits"].optimization
    assert settle(digits, replace(ONE, epochs=10), {}).optimization.warmup_epochs == whole.warmup_epochs * (
        10 / whole.epochs
    )
    assert settle(digits, replace(ONE, epochs=1000), {}).optimization.warmup_epochs == whole.warmup_epochs
    given = {"optimization": {"warmup_epochs": 2.0}}
    assert settle(digits, replace(ONE, epochs=10), given).optimization.warmup_epochs == 2.0


def test_many_notes_on_pictures_left_out_are_shortened() -> None:
    notes = ["recipe", *(f"{prepare.LEFT_OUT}{number}" for number in range(9))]
    assert prepare.shortened(notes) == [*notes[:6], f"{prepare.LEFT_OUT}4 more pictures; data.json names them all"]
    assert prepare.shortened(notes[:6]) == notes[:6]
