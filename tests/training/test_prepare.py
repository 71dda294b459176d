"""From options, a configuration file and a recipe to settings; nothing that was asked for is passed over in silence."""

from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import vitrail
from tests.data.lab import denormalised
from tests.errors import must_raise
from tests.photographs import make_photographs
from tests.shared_runs import stored
from tests.training.tiny import AGAIN, options, photographs, stream_all, whole
from vitrail.data.augmentation import Augmentation
from vitrail.data.dataset import Counts
from vitrail.errors import DataError, UsageError
from vitrail.options import TrainOptions
from vitrail.runs.settings import Settings, settings_to_yaml
from vitrail.training import prepared
from vitrail.training.configuration.refusals import check_request
from vitrail.training.configuration.request import Request
from vitrail.training.configuration.resolve import RECIPES, resolve
from vitrail.training.events import Event
from vitrail.training.prepared import Prepared

ONE = TrainOptions(threads=1, device="cpu")
opened = cache(lambda data: prepared.open_data(data, "auto", None, 0, Counts()))


@pytest.fixture(scope="module")
def digits() -> str:
    return "digits"


@pytest.fixture(scope="module")
def photos(photo_folder: Path) -> str:
    return str(photo_folder)


def settled(data: str, asked: TrainOptions = ONE, given: dict | None = None) -> tuple[Settings, list[str]]:
    """The settings that a new run would have, and what is said of them."""
    dataset, task = opened(data)
    return resolve(Request(data=data, options=asked, config=given or {}), dataset, task)


def settle(data: str, asked: TrainOptions = ONE, given: dict | None = None) -> Settings:
    return settled(data, asked, given)[0]


def test_a_recipe_is_the_base(digits: str, photos: str) -> None:
    made, notes = settled(digits)
    recipe = RECIPES["digits"]
    assert (made.optimization, made.augmentation) == (recipe.optimization, recipe.augmentation)
    assert (made.network.channels, made.network.classes, made.network.image) == (1, 10, (8, 8))
    assert "recipe digits" in notes[0]
    assert recipe.reached in notes[0]
    of_photos = settle(photos)
    assert (of_photos.recipe, of_photos.network.channels, of_photos.network.classes) == ("few-photos", 3, 3)
    assert of_photos.decode_size == RECIPES["few-photos"].decode_size


def test_options_go_before_the_file_and_the_file_before_the_recipe(digits: str) -> None:
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


def test_a_size_of_the_table_goes_before_a_file(digits: str) -> None:
    for given in ({}, {"network": {"depth": 2, "pooling": "mean"}}):
        network = settle(digits, replace(ONE, size="Ti/4"), given).network
        assert (network.width, network.depth, network.heads, network.patch) == (192, 12, 3, (4, 4))
        assert (network.image, network.channels, network.classes) == ((8, 8), 1, 10)
    with must_raise(UsageError, "X/4"):
        settle(digits, replace(ONE, size="X/4"))


@pytest.mark.parametrize(
    ("options", "given", "image", "fetched"),
    [
        ({}, {}, (64, 64), 72),
        ({"image_size": 128}, {}, (128, 128), 144),
        ({}, {"network": {"image_size": 32}}, (32, 32), 36),
        ({}, {"network": {"image_size": [32, 48]}}, (32, 48), 36),
        ({}, {"network": {"image_size": 32}, "decode_size": 33}, (32, 32), 33),
        ({"image_size": 64}, {"network": {"image_size": 32}, "decode_size": 40}, (64, 64), 80),
        ({"size": "S/16", "image_size": 96}, {}, (96, 96), 108),
    ],
)
def test_another_size_is_fetched_in_proportion(
    photos: str, options: dict, given: dict, image: tuple, fetched: int
) -> None:
    made = settle(photos, replace(ONE, **options), given)
    assert (made.network.image, made.decode_size) == (image, fetched)


def test_a_size_that_the_patches_do_not_divide_is_refused(digits: str) -> None:
    with must_raise(UsageError, "9") as caught:
        settle(digits, replace(ONE, image_size=9))
    assert "8x8" in str(caught.value.hint)


def test_the_file_decides_how_to_compute_unless_an_option_does(digits: str) -> None:
    chosen = {"threads": 2, "precision": "bf16", "compile": True, "workers": 5, "device": "cpu"}
    given = {"execution": chosen}
    stored = settle(digits, TrainOptions(), given).execution
    assert asdict(stored) == given["execution"]
    over = settle(digits, TrainOptions(threads=1, precision="fp32", compile="off", workers=0), given).execution
    assert (over.threads, over.precision, over.compile, over.workers) == (1, "fp32", False, 0)


def test_two_recipes_at_once_are_refused(digits: str) -> None:
    asked = replace(ONE, recipe="digits", config=Path("c.yaml"))
    with must_raise(UsageError, "mnist.*digits"):
        check_request(Request(data=digits, options=asked, config={"recipe": "mnist"}))
    assert settle(digits, ONE, {"recipe": "d0-mnist"}).recipe == "d0-mnist"
    assert settle(digits, replace(ONE, recipe="d0-mnist")).recipe == "d0-mnist"


def test_the_written_settings_give_themselves_again(digits: str, photos: str) -> None:
    for source, asked in ((digits, replace(ONE, epochs=2, seed=4)), (photos, replace(ONE, image_size=32))):
        made = settle(source, asked)
        given = yaml.safe_load(settings_to_yaml(made))
        assert settle(source, TrainOptions(), given) == made


CHANGES = {
    "recipe": ("mnist", "recipe: digits -> mnist"),
    "epochs": (1, "epochs: 2 -> 1"),
    "max_time": ("1m", "max_time: no limit -> 60 s"),
    "batch_size": (7, "batch_size: 200 -> 7"),
    "lr": (0.5, "lr: 0.002 -> 0.5"),
    "weight_decay": (0.5, "weight_decay: 0.05 -> 0.5"),
    "accumulate": (2, "accumulate: 1 -> 2"),
    "class_weights": ("auto", "class_weights: none -> auto"),
    "balance": (True, "balance: False -> True"),
    "logit_adjustment": (0.5, "logit_adjustment: 0.0 -> 0.5"),
    "asymmetric": ("4,0,0.05", "asymmetric: none -> (4.0, 0.0, 0.05)"),
    "seed": (0, "seed: 3 -> 0"),
    "split_seed": (1, "split_seed: 0 -> 1"),
    "image_size": (16, "image_size: (8, 8) -> (16, 16)"),
    "resize": ("pad", "resize: crop -> pad"),
    "bits": (12, "bits: none -> 12"),
    "unreadable": (0.5, "unreadable: 0.01 -> 0.5"),
    "size": ("S/4", "size: another network -> S/4"),
    "device": ("cuda", "device: cpu -> cuda"),
    "threads": (2, "threads: 1 -> 2"),
    "precision": ("bf16", "precision: fp32 -> bf16"),
    "compile": ("on", "compile: off -> on"),
    "background": (False, "background: True -> False"),
    "calibration": (False, "calibration: True -> False"),
    "task": ("sequences", "task: classify -> sequences"),
    "init": ("weights.safetensors", "init: none -> weights.safetensors"),
    "patience": (3, "patience: 0 -> 3"),
    "keep": ("best", "keep: auto -> best"),
    "probe": (True, "probe: none -> True"),
    "lora": (8, "lora: 0 -> 8"),
    "path_column": ("a", "path_column: none -> a"),
    "label_column": ("a", "label_column: none -> a"),
    "split_column": ("a", "split_column: none -> a"),
    "group_column": ("a", "group_column: none -> a"),
    "group_pattern": ("(.+)_", "group_pattern: none -> (.+)_"),
    "fractions": ("80/20", "fractions: none -> 80/20"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_changed_option_is_listed_when_a_run_goes_on(name: str) -> None:
    value, change = CHANGES[name]
    with must_raise(UsageError) as caught:
        vitrail.train("digits", whole("digits"), replace(AGAIN, **{name: value}))
    assert f": {change}" in caught.value.problem


def test_options_that_change_nothing_are_accepted_when_a_run_goes_on(tmp_path: Path) -> None:
    """What the run was started with, and what cannot change a bit."""
    same = replace(options("digits"), config=None, recipe="digits", precision="fp32", compile="off", resume="auto")
    expected = stored(whole("digits"))["weights"]
    run = vitrail.train("digits", tmp_path / "run", options("digits")).folder
    for asked in (same, options("digits", resume="auto")):
        assert vitrail.train("digits", run, asked).weights == expected
    free = {"config", "resume", "data_root", "workers", "verdicts", "shard", "check"}
    assert set(CHANGES) | free == {field.name for field in fields(TrainOptions)}, "a new option: does it change a run?"


@pytest.mark.parametrize(
    ("modes", "channels"), [(["L", "L"], 1), (["L", "RGB"], 3), (["1", "I;16"], 1), (["RGBA", "P"], 3)]
)
def test_channels_are_those_of_the_images(tmp_path: Path, modes: list[str], channels: int) -> None:
    for number, mode in enumerate(modes * 12):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        size = (40 + number, 70)
        values = np.zeros(size[::-1], np.uint16)
        image = Image.fromarray(values) if mode == "I;16" else Image.new(mode, size)
        image.save(folder / f"{number}.png")
    assert settle(str(tmp_path)).network.channels == channels


def test_images_that_cannot_be_read_are_not_looked_at(tmp_path: Path) -> None:
    make_photographs(tmp_path, ("a", "b"), per_class=10, seed=0)
    for path in sorted(tmp_path.rglob("*.*"))[::2]:
        path.write_bytes(b"")
    assert settle(str(tmp_path)).network.channels == 3
    for path in tmp_path.rglob("*.*"):
        path.write_bytes(b"")
    with must_raise(DataError):
        settle(str(tmp_path))


def test_a_run_is_the_same_however_its_images_are_fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From memory, or decoded whenever they are needed: the same preprocessing, the same weights."""
    root = photographs(tmp_path)
    resident = vitrail.train(str(root), tmp_path / "resident", options("photos"))
    stream_all(monkeypatch)
    streamed = vitrail.train(str(root), tmp_path / "streamed", options("photos"))
    assert streamed.model.preprocessing == resident.model.preprocessing
    assert streamed.weights == resident.weights
    assert streamed.evaluated.to_dict() == resident.evaluated.to_dict()


def built(data: str, augmentation: Augmentation) -> Prepared:
    """A run on photographs that are read at 36 pixels for a network of 32."""
    settings = settle(data, replace(ONE, image_size=32), {"augmentation": asdict(augmentation)})
    assert settings.decode_size == 36
    return prepared.prepare_run(settings, *opened(data))


def test_without_augmentation_of_place_training_shows_what_evaluation_shows(photos: str) -> None:
    prepared = built(photos, Augmentation())
    read_by, images = prepared.model.preprocessing, prepared.dataset.train.inputs
    assert read_by.crop_pct == pytest.approx(32 / 36)
    shown = torch.stack([read_by(images.open(number)) for number in range(len(images))])
    for batch in prepared.data.batches(1, 16):
        assert torch.equal(batch.inputs, shown[batch.ids])
    assert shown.mean(dim=(0, 2, 3)).abs().max() < 1e-4, "mean and standard deviation are those of what is shown"
    assert (shown.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-4


def test_random_crops_lie_in_the_image_and_reach_its_margins(tmp_path: Path) -> None:
    """Of 3:2, white, with a red margin at the left and a blue one at the right, which evaluation never sees."""
    values = np.full((60, 90, 3), 255, np.uint8)
    values[:, :6], values[:, -6:] = (255, 0, 0), (0, 0, 255)
    for number in range(40):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(values).save(path)
    prepared = built(str(tmp_path), Augmentation(crop_scale=(0.35, 1.0), fill=0))
    read_by = prepared.model.preprocessing
    pixels = [
        denormalised(read_by, batch.inputs).int() for epoch in range(5) for batch in prepared.data.batches(epoch, 20)
    ]
    red, _, blue = torch.cat(pixels).unbind(1)
    assert torch.maximum(red, blue).min() > 240, "black fills up what is outside the image"
    for margin in (red - blue > 120, blue - red > 120):
        assert 0.05 < float(margin.any(dim=(1, 2)).float().mean()) < 0.95
    (evaluated,) = prepared.validation.in_order(40)
    assert denormalised(read_by, evaluated.inputs).min() > 240


def test_a_short_run_warms_up_for_its_share_only(digits: str) -> None:
    whole = RECIPES["digits"].optimization
    assert settle(digits, replace(ONE, epochs=10), {}).optimization.warmup_epochs == whole.warmup_epochs * (
        10 / whole.epochs
    )
    assert settle(digits, replace(ONE, epochs=1000), {}).optimization.warmup_epochs == whole.warmup_epochs
    given = {"optimization": {"warmup_epochs": 2.0}}
    assert settle(digits, replace(ONE, epochs=10), given).optimization.warmup_epochs == 2.0


def test_many_notes_on_images_left_out_are_shortened(tmp_path: Path) -> None:
    """Nine of a thousand: five are named aloud, all of them in data.json."""
    for number in range(1010):
        folder = tmp_path / "flat" / ("val" if number >= 1000 else "train") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number}.bmp"
        if number % 100 == 7 and number < 900:
            path.write_bytes(b"no image")
        else:
            Image.new("L", (8, 8), number % 256).save(path)
    said: list[Event] = []
    asked = options("digits", epochs=1, recipe="digits")
    run = vitrail.train(str(tmp_path / "flat"), tmp_path / "run", asked, said.append).folder
    named = [event for event in said if isinstance(event, str) and ".bmp" in event]
    assert len(named) == 5
    assert any(" 4 " in event for event in said if isinstance(event, str) and "data.json" in event)
    assert len([note for note in yaml.safe_load((run / "data.json").read_text())["skipped"] if ".bmp" in note]) == 9
