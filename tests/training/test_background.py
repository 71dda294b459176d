"""A trained model carries its own references: from training images alone, the same after a resume, or none."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

import vitrail
from tests.errors import figures, must_raise
from tests.shared_runs import stored
from tests.training.tiny import AGAIN, options, stopped as stopped_run, student_options, whole
from vitrail.data.background import draw_background
from vitrail.data.images import Images
from vitrail.errors import UsageError
from vitrail.explain import evidence
from vitrail.explain.evidence import without_evidence
from vitrail.runs.data import Run, open_for
from vitrail.text import percent

pytestmark = pytest.mark.usefixtures("as_a_user")
MOST_BYTES = 2**20
NAME = "background.safetensors"
SIDE = 96
COLOURS = {"dune": (200, 120, 60), "lake": (30, 60, 90)}


def make_images(root: Path) -> Path:
    """A folder of two classes, 30 images each: a disc on a slope of colour, which lies elsewhere in each image."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True)
        for number in range(30):
            slope = (rows * (number % 3) + columns * (number % 4)) // 8 + 2 * number
            pixels = np.stack([slope + shade // 4 for shade in colour], axis=2)
            top, left = 20 + 7 * number % 56, 20 + 11 * number % 56
            pixels[(rows - top) ** 2 + (columns - left) ** 2 < 15**2] = colour
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number:02d}.bmp")
    return root


def kept(run: Path) -> Path:
    return run / "model" / NAME


def references_of(run: Path) -> Tensor | None:
    """(r, c, h, w) uint8: what the model of a run carries."""
    return vitrail.load(run).background


def images_of_training(run: Path) -> Images:
    """What a run was trained on."""
    images = open_for(vitrail.load(run), Run(run), None, split="train").samples.inputs
    assert isinstance(images, Images)
    return images


def patches_of(images: Tensor, side: int) -> Tensor:
    """(n, gh, gw, c, side, side)"""
    return images.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5)


def test_a_run_leaves_what_its_network_answers_to_composites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the network as it is stored, so that no verdict on the model of a run computes it."""
    model = vitrail.load(whole("digits"))
    monkeypatch.setattr(evidence, "composites_of", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    images = model.background_images
    assert images is not None
    found = evidence.composite_logits(model.network, images, 0, "fp32", model.composites)
    assert found.shape == (evidence.COMPOSITES, 10)


# ---- where they come from


def flat_images(root: Path, splits: dict[str, range]) -> Path:
    """Images of one grey value each, which no other image has: a class of even and one of odd values."""
    for split, values in splits.items():
        for value in values:
            folder = root / split / ("even", "odd")[value % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((12, 12), value, np.uint8)).save(folder / f"{value}.png")
    return root


def references_of_flat_images(tmp_path: Path, splits: dict[str, range]) -> Tensor:
    """After a training that shifts, turns and mixes its images, and fetches them larger."""
    config = tmp_path / "lively.yaml"
    config.write_text(
        "network: {image_size: 8, patch_size: 2, width: 8, depth: 1, heads: 2, mlp_dim: 8}\n"
        "augmentation: {flip: 0.5, shift: 0.2, rotate: 20.0, mixup: 0.5}\n"
        "decode_size: 12\n"
    )
    asked = replace(options("digits", epochs=1, recipe="small-images"), config=config)
    run = vitrail.train(str(flat_images(tmp_path / "flat", splits)), tmp_path / "run", asked).folder
    references = references_of(run)
    assert references is not None
    assert references.shape == (25, 1, 8, 8)
    return references


def test_images_for_validation_and_test_are_in_none_and_nothing_is_augmented(tmp_path: Path) -> None:
    splits = {"train": range(100), "val": range(100, 150), "test": range(150, 200)}
    references = references_of_flat_images(tmp_path, splits)
    assert int(references.max()) < 100
    patches = patches_of(references, 2).flatten(3)
    assert bool((patches == patches[..., :1]).all()), "one value in a patch: no turn, no mixture"


def test_images_of_validation_would_be_noticed(tmp_path: Path) -> None:
    """The planted fault: the splits have changed places."""
    references = references_of_flat_images(tmp_path, {"train": range(100, 200), "val": range(50)})
    assert int(references.max()) >= 100


def test_each_patch_is_that_of_an_image_at_its_place_but_for_those_that_the_network_looks_at() -> None:
    """To the bit; and no reference is an image."""
    model = vitrail.load(whole("digits"))
    references, side = model.background, model.network.config.patch[0]
    assert references is not None
    assert references.shape == (64, 1, 8, 8)
    everyone = images_of_training(whole("digits"))
    images = torch.stack([model.preprocessing.to_uint8(everyone.open(number)) for number in range(len(everyone))])
    ours, theirs = patches_of(references, side), patches_of(images, side)
    for row in range(ours.shape[1]):
        for column in range(ours.shape[2]):
            there = {one.numpy().tobytes() for one in theirs[:, row, column]}
            assert {one.numpy().tobytes() for one in ours[:, row, column]} <= there
    everything = {one.numpy().tobytes() for one in images}
    assert not any(one.numpy().tobytes() in everything for one in references)
    drawn, _ = draw_background(everyone, model.preprocessing, model.network.config.patch, seed=3)
    assert drawn is not None
    background = model.preprocessing.normalise(drawn)
    assert torch.equal(references, without_evidence(model.network, background, drawn))
    assert not torch.equal(references, drawn)


def test_another_seed_gives_others(tmp_path: Path) -> None:
    run = vitrail.train("digits", tmp_path / "run", options("digits", seed=4, epochs=1)).folder
    assert not torch.equal(references_of(run), references_of(whole("digits")))


def test_students_carry_their_own(tmp_path: Path) -> None:
    """From their own seed; not their teacher's. Without them, not a bit of the weights changes."""
    asked = student_options(seed=5, epochs=1)
    student = vitrail.distill("digits", whole("digits"), tmp_path / "student", asked)
    references = references_of(student.folder)
    assert references is not None
    assert not torch.equal(references, references_of(whole("digits")))
    bare = vitrail.distill("digits", whole("digits"), tmp_path / "bare", replace(asked, background=False))
    assert not kept(bare.folder).exists()
    assert bare.weights == student.weights


def test_those_of_large_images_take_little_room_and_are_saved_without_a_loss(tmp_path: Path) -> None:
    """Of photographs of 96 pixels in colour; what is loaded is saved again as it is."""
    data, config = make_images(tmp_path / "images"), tmp_path / "small.yaml"
    config.write_text("network: {image_size: 96, patch_size: 16, width: 8, depth: 1, heads: 2, mlp_dim: 8}\n")
    asked = replace(options("digits", epochs=1, batch_size=16), config=config)
    finished = vitrail.train(str(data), tmp_path / "run", asked)
    model = vitrail.load(finished.folder)
    assert torch.equal(model.background, finished.model.background)
    again = vitrail.save(model, tmp_path / "again")
    assert torch.equal(references_of(again), model.background)
    assert kept(finished.folder).stat().st_size <= MOST_BYTES
    others = vitrail.save(replace(model, background=255 - model.background), tmp_path / "others")
    assert torch.equal(references_of(others), 255 - model.background), "a person's own are stored as they are"


# ---- with them, and without


def test_they_are_stated() -> None:
    """In the card; and in one sentence of data.json, the log and the page."""
    run = whole("digits")
    assert f"`{NAME}` holds 64" in (run / "model" / "README.md").read_text(encoding="utf-8")
    notes = json.loads((run / "data.json").read_text())["notes"]
    (said,) = [note for note in notes if note.startswith("a background of 64 images")]
    assert "--no-background" in said
    for name in ("log.txt", "run.html"):
        assert said in (run / name).read_text()


def test_the_page_says_what_the_model_answers_when_there_is_nothing_to_see() -> None:
    run = whole("digits")
    model = vitrail.load(run)
    (logits,) = model.composites.values()
    sure, best = (each.numpy() for each in (logits.double() / model.output.temperature).softmax(1).max(1))
    (section,) = re.findall("(?s)<h2>What the model says.*?</section>", html.unescape((run / "run.html").read_text()))
    rows = re.findall(r'<th scope="row">(.)</th><td>(\d+)</td><td>(.*?)</td><td>(.*?)</td>', section)
    answers, counts = np.unique(best, return_counts=True)
    order = sorted(range(len(answers)), key=lambda row: (-counts[row], answers[row]))
    assert rows == [
        (str(answers[row]), str(counts[row]), percent(np.median(shares)), percent(shares.max()))
        for row in order
        for shares in (sure[best == answers[row]],)
    ]
    assert counts.sum() == len(logits) == 499
    assert figures(re.sub("<.*?>", " ", section).replace("\u00a0", " "))[:2] == [
        "499",
        f"{100 * counts.max() / 499:.0f}",
    ]


def test_predictions_do_not_need_them(tmp_path: Path) -> None:
    run = shutil.copytree(whole("digits"), tmp_path / "run")
    kept(run).unlink()
    model, bare = vitrail.load(whole("digits")), vitrail.load(run)
    assert bare.background is None
    some = [Image.fromarray(pixels) for pixels in np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)]
    noted = model.predict(some)  # with notes of what it is not familiar with
    assert bare.predict(some) == [replace(each, notes=()) for each in noted]


def test_without(tmp_path: Path) -> None:
    """No file, no sentence; not a bit of the weights changes; and so it stays, by the configuration or on the way."""
    expected, bare = stored(whole("digits"))["weights"], options("digits", background=False)
    run = stopped_run("digits", tmp_path / "run", 1, background=False)
    with must_raise(UsageError):
        vitrail.train("digits", run, replace(bare, resume="auto", background=True, seed=9))
    assert vitrail.train("digits", run, AGAIN).weights == expected
    vitrail.train("digits", run, replace(AGAIN, background=False))
    again = vitrail.train(out=tmp_path / "again", options=vitrail.TrainOptions(config=run / "config.yaml"))
    assert again.weights == expected
    for folder in (run, again.folder):
        assert not kept(folder).exists()
        assert references_of(folder) is None
        assert yaml.safe_load((folder / "config.yaml").read_text())["background"] is False
        assert NAME not in (folder / "model" / "README.md").read_text(encoding="utf-8")
        assert not [note for note in json.loads((folder / "data.json").read_text())["notes"] if "references" in note]


def test_a_run_that_goes_on_has_the_same(tmp_path: Path) -> None:
    run = stopped_run("digits", tmp_path / "run", 5)
    assert not kept(run).exists()
    vitrail.train("digits", run, AGAIN)
    assert kept(run).read_bytes() == kept(whole("digits")).read_bytes()
    with must_raise(UsageError, "background: True -> False"):
        vitrail.train("digits", run, replace(AGAIN, background=False))


def test_a_run_from_before_there_were_references(tmp_path: Path) -> None:
    """Its settings lack the key; it can be gone on with."""
    run = shutil.copytree(whole("digits"), tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings.pop("background") is True
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    kept(run).unlink()
    vitrail.train("digits", run, AGAIN)
    assert kept(run).read_bytes() == kept(whole("digits")).read_bytes()


@pytest.mark.parametrize("wanted", [True, False])
def test_an_option_goes_before_the_configuration_only_to_leave_them_out(tmp_path: Path, wanted: bool) -> None:
    config = tmp_path / "given.yaml"
    config.write_text(options("digits").config.read_text() + "background: true\n")
    asked = replace(options("digits", epochs=1, background=wanted), config=config)
    assert kept(vitrail.train("digits", tmp_path / "run", asked).folder).exists() == wanted
