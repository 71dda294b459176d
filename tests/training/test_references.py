"""A trained model carries its own references: from training pictures alone, the same after a resume, or none."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import vitrail
from vitrail.data.pictures import ArrayPictures
from vitrail.data.reference_files import REFERENCES, References
from vitrail.data.references import draw_references
from vitrail.data.source import Source, Split, open_source
from vitrail.errors import UsageError
from vitrail.explain.lending import without_evidence
from vitrail.training.events import Event, Finished, Stopped
from vitrail.training.loop import StepDone
from vitrail.training.options import DistillOptions, TrainOptions
from vitrail.training.prepare import build, resolve
from vitrail.training.settings import Settings, read_yaml, settings_from_dict

SHORT = TrainOptions(epochs=1, batch_size=200, threads=1, workers=1, device="cpu", seed=3)
AGAIN = TrainOptions(resume="auto")
WITHOUT = replace(SHORT, references=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A whole run, which others must equal."""
    return vitrail.train("digits", tmp_path_factory.mktemp("references") / "whole", SHORT)


def kept(run: Path) -> Path:
    return run / "model" / REFERENCES


def test_a_run_leaves_references_of_its_training_pictures(finished: Finished) -> None:
    """Each patch is, to the bit, one of the training pictures at its place."""
    model = vitrail.load(finished.folder)
    references, pictures = model.references, open_source("digits").train.pictures
    assert references is not None
    assert references.shape == (64, 1, 8, 8)
    drawn = draw_references(pictures, model.preprocessing, model.network.config.patch, 3)
    assert drawn is not None
    donors = model.preprocessing.normalise(drawn.pixels)
    assert torch.equal(references, without_evidence(model.network, donors, drawn.pixels))
    assert not torch.equal(references, drawn.pixels)
    seen = torch.stack([model.preprocessing.to_uint8(pictures.open(number)) for number in range(len(pictures))])
    down, across = model.network.config.patch
    for row in range(0, 8, down):
        for column in range(0, 8, across):
            there = {one.numpy().tobytes() for one in seen[:, :, row : row + down, column : column + across]}
            here = {one.numpy().tobytes() for one in references[:, :, row : row + down, column : column + across]}
            assert here <= there
    whole = {one.numpy().tobytes() for one in seen}
    assert not any(one.numpy().tobytes() in whole for one in references)
    assert kept(finished.folder).stat().st_size <= 300 * 1024


def test_what_is_said_of_them(finished: Finished) -> None:
    card = (finished.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "`references.safetensors` holds 64 pictures put together from patches of training pictures" in card
    assert "delete the file, or train with `--no-references`, to leave them out." in card
    notes = json.loads((finished.folder / "data.json").read_text())["notes"]
    said = [note for note in notes if "references" in note]
    assert len(said) == 1
    assert said[0].startswith("64 references, shuffled patches of training pictures")
    assert said[0] in (finished.folder / "log.txt").read_text()
    assert said[0] in (finished.folder / "run.html").read_text()


def test_predictions_do_not_need_them(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished.folder, tmp_path / "run")
    kept(run).unlink()
    model, bare = vitrail.load(finished.folder), vitrail.load(run)
    assert bare.references is None
    some = [open_source("digits").validation.pictures.open(number) for number in range(9)]
    assert bare.predict(some) == model.predict(some)
    assert torch.equal(bare.probabilities(bare.tensor(some)), model.probabilities(model.tensor(some)))


def test_without(finished: Finished, tmp_path: Path) -> None:
    """No file, no sentence; not a bit of the weights changes."""
    run = vitrail.train("digits", tmp_path / "run", WITHOUT)
    assert run.weights == finished.weights
    assert not kept(run.folder).exists()
    assert vitrail.load(run.folder).references is None
    for file in run.folder.rglob("*"):
        if file.suffix in (".txt", ".json", ".md", ".html"):
            assert "shuffled patches" not in file.read_text(encoding="utf-8"), file
    assert settings_from_dict(read_yaml(run.folder / "config.yaml")).references is False
    assert "references.safetensors" not in (run.folder / "model" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("options", "step"), [(SHORT, 5), (WITHOUT, 1)], ids=["with", "without"])
def test_a_run_that_goes_on_keeps_its_choice(
    finished: Finished, tmp_path: Path, options: TrainOptions, step: int
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == step:
            signal.raise_signal(signal.SIGTERM)

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        vitrail.train("digits", run, options, stop)
    assert not kept(run).exists()
    vitrail.train("digits", run, AGAIN)
    if options.references:
        assert kept(run).read_bytes() == kept(finished.folder).read_bytes()
        with pytest.raises(UsageError, match="references: yes -> no"):
            vitrail.train("digits", run, replace(AGAIN, references=False))
    else:
        assert not kept(run).exists()
        vitrail.train("digits", run, replace(AGAIN, references=False))


def test_the_configuration_of_a_run_keeps_its_choice(finished: Finished, tmp_path: Path) -> None:
    for options, name in ((SHORT, "with"), (WITHOUT, "without")):
        source = open_source("digits")
        made = resolve("digits", options, {}, source)[0]
        given = yaml.safe_load(vitrail.training.settings.settings_to_yaml(made))
        assert given["references"] is options.references
        assert resolve("digits", TrainOptions(), given, source)[0] == made
        assert resolve("digits", TrainOptions(references=False), given, source)[0].references is False
        assert (build(made, source).model.references is not None) == options.references, name
    again = vitrail.train(out=tmp_path / "again", options=TrainOptions(config=finished.folder / "config.yaml"))
    assert kept(again.folder).read_bytes() == kept(finished.folder).read_bytes()


def test_a_run_from_before_there_were_references(finished: Finished, tmp_path: Path) -> None:
    """Its settings lack the key; it can be read and gone on with."""
    run = shutil.copytree(finished.folder, tmp_path / "run")
    values = read_yaml(run / "config.yaml")
    assert values.pop("references") is True
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    kept(run).unlink()
    assert settings_from_dict(values).references is True
    vitrail.train("digits", run, AGAIN)
    assert kept(run).read_bytes() == kept(finished.folder).read_bytes()


def test_another_seed_gives_others(finished: Finished) -> None:
    source = open_source("digits")
    made = resolve("digits", SHORT, {}, source)[0]
    one, other = (build(replace(made, seed=seed), source).model.references for seed in (3, 4))
    assert one is not None
    assert other is not None
    stored = vitrail.load(finished.folder)
    assert torch.equal(without_evidence(stored.network, stored.preprocessing.normalise(one), one), stored.references)
    assert not torch.equal(one, other)


def coloured(numbers: range, low: int) -> Split:
    """Pictures of one grey value each, which no other picture has."""
    pixels = np.stack([np.full((8, 8), low + number, np.uint8) for number in numbers])
    return Split(ArrayPictures(pixels, "grey"), np.array([number % 2 for number in numbers]))


def grey_source() -> Source:
    """Training pictures have the values 0..99, those for validation 100..149, for test 150..199."""
    splits = (coloured(range(100), 0), coloured(range(50), 100), coloured(range(50), 150))
    return Source("grey", "nowhere", ("a", "b"), *splits, (), {}, None, "print")


LIVELY = {"augmentation": {"flip": 0.5, "shift": 0.2, "rotate": 20.0, "mixup": 0.5}, "fetch_size": 12}
GIVEN = {**LIVELY, "network": {"image_size": 8, "patch_size": 2, "width": 16, "depth": 1, "heads": 2, "mlp_dim": 16}}


def test_pictures_for_validation_and_test_are_in_none_and_nothing_is_augmented() -> None:
    """A training that shifts, turns and mixes its pictures, and fetches them larger: references show none of this."""
    source = grey_source()
    made = resolve("grey", replace(SHORT, recipe="small-pictures"), GIVEN, source)[0]
    references = build(made, source).model.references
    assert references is not None
    assert references.shape == (25, 1, 8, 8)
    assert int(references.max()) < 100
    patches = references[:, 0].unfold(1, 2, 2).unfold(2, 2, 2).flatten(3)
    assert bool((patches == patches[..., :1]).all()), "one value in a patch: no turn, no mixture"


def test_planted_pictures_of_validation_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = grey_source()
    made = resolve("grey", replace(SHORT, recipe="small-pictures"), GIVEN, source)[0]

    def leaking(pictures: object, *others: object) -> References | None:
        return draw_references(source.validation.pictures, *others)

    monkeypatch.setattr("vitrail.training.prepare.draw_references", leaking)
    references = build(made, source).model.references
    assert references is not None
    assert int(references.max()) >= 100


def colour_source(pixels: np.ndarray) -> Source:
    split = Split(ArrayPictures(pixels), np.arange(len(pixels)) % 2)
    return Source("colour", "nowhere", ("a", "b"), split, split, None, (), {}, None, "print")


def settings_of(side: int, patch: int, source: Source) -> Settings:
    network = {"image_size": side, "patch_size": patch, "width": 16, "depth": 1, "heads": 2, "mlp_dim": 16}
    return resolve(source.name, replace(SHORT, recipe="small-pictures"), {"network": network}, source)[0]


def test_pictures_too_large_for_references_are_said() -> None:
    source = colour_source(np.random.default_rng(0).integers(0, 256, (4, 1024, 1024, 3), dtype=np.uint8))
    prepared = build(settings_of(1024, 256, source), source)
    assert prepared.model.references is None
    assert [note for note in prepared.notes if "1024 x 1024 pixels has more than 300 KB, even as JPEG" in note]


def test_large_pictures_are_compressed_and_that_is_said(tmp_path: Path) -> None:
    """A model of colour pictures of 224 pixels carries the same references before it is saved, after, and again."""
    small = np.random.default_rng(0).integers(0, 256, (80, 14, 14, 3), dtype=np.uint8)
    source = colour_source(small.repeat(16, axis=1).repeat(16, axis=2))
    prepared = build(settings_of(224, 16, source), source)
    references = prepared.model.references
    assert references is not None
    assert len(references) == 20
    said = [note for note in prepared.notes if "references" in note]
    assert said[0].startswith("20 references, shuffled patches of training pictures (stored as JPEG of quality 95)")
    one = vitrail.save(prepared.model, tmp_path / "one")
    again = vitrail.save(vitrail.load(one), tmp_path / "again")
    assert (one / REFERENCES).stat().st_size <= 300 * 1024
    assert (again / REFERENCES).read_bytes() == (one / REFERENCES).read_bytes()
    for place in (one, again):
        assert torch.equal(vitrail.load(place).references, references)
        assert "(as JPEG of quality 95, with a small loss)" in (place / "README.md").read_text(encoding="utf-8")
    others = replace(vitrail.load(one), references=255 - references)
    place = vitrail.save(others, tmp_path / "others")
    assert torch.equal(vitrail.load(place).references, 255 - references), "a person's own are stored as they are"
    assert "JPEG" not in (place / "README.md").read_text(encoding="utf-8")


def test_students_carry_them_too(finished: Finished, tmp_path: Path) -> None:
    """Their own, from the same data and seed; not their teacher's."""
    short = DistillOptions(epochs=1, batch_size=400, threads=1, device="cpu", seed=5)
    student = vitrail.distill("digits", finished.folder, tmp_path / "student", short)
    references = vitrail.load(student.folder).references
    assert references is not None
    assert not torch.equal(references, vitrail.load(finished.folder).references)
    assert "references.safetensors" in (student.folder / "model" / "README.md").read_text(encoding="utf-8")
    bare = vitrail.distill("digits", finished.folder, tmp_path / "bare", replace(short, references=False))
    assert not kept(bare.folder).exists()
    assert bare.weights == student.weights
