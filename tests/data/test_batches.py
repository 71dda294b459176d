"""Batches: the same tensors whoever feeds them, targets that add up, and one path for training and evaluation."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st

from tests.data.lab import LIVELY, PLAIN, PatchyLoader, denormalised, labelled_set, noise, tiny_set
from vitrail.data.augmentation import Augmentation, apply, draw
from vitrail.data.batches import Batch, Batches
from vitrail.data.images import ArrayImages, FileImages, Images
from vitrail.data.loader import Loader, StreamedLoader, fill_up, load_resident
from vitrail.data.plan import plan
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig
from vitrail.tasks import TASKS, Classes

RICH = Augmentation(
    crop_scale=(0.4, 1.0),
    crop_ratio=(0.75, 4 / 3),
    rotate=15.0,
    flip=0.5,
    trivial_augment=True,
    random_erasing=0.3,
    mixup=0.3,
    cutmix=1.0,
    label_smoothing=0.1,
)


def photographs(folder: Path) -> tuple[FileImages, np.ndarray]:
    paths = sorted(path for path in (folder / "train").rglob("*.*") if path.is_file())[::3]
    names = sorted({path.parent.name for path in paths})
    return FileImages(paths, folder), np.array([names.index(path.parent.name) for path in paths])


def photo_set(folder: Path, workers: int | None, augmentation: Augmentation = RICH) -> Batches:
    """Photographs fetched at 24 x 30 pixels for a network of 16 x 20."""
    files, labels = photographs(folder)
    fetched, shape = Preprocessing((24, 30)), Preprocessing((16, 20), mean=(0.4, 0.5, 0.6))
    loader: Loader = load_resident(files, fetched, 1) if workers is None else StreamedLoader(files, fetched, workers)
    return labelled_set(loader, labels, shape, augmentation, 5)


def equal(ours: Batch, theirs: Batch) -> bool:
    tensors = ("inputs", "targets", "labels")
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in tensors) and (
        ours.ids.tolist() == theirs.ids.tolist()
        and (ours.epoch, ours.number, ours.unreadable) == (theirs.epoch, theirs.number, theirs.unreadable)
    )


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_streamed_and_resident_training_see_the_same_tensors(photo_folder: Path, workers: int) -> None:
    resident = list(photo_set(photo_folder, None).batches(1, 7))
    streamed = list(photo_set(photo_folder, workers).batches(1, 7))
    assert [len(batch.labels) for batch in resident] == [7, 7, 6]
    assert all(equal(ours, theirs) for ours, theirs in zip(resident, streamed, strict=True))
    other = list(replace(photo_set(photo_folder, None), seed=6).batches(1, 7))
    assert not any(equal(ours, theirs) for ours, theirs in zip(resident, other, strict=True))


CROPPED = Augmentation(crop_scale=(0.2, 0.9), crop_ratio=(0.75, 4 / 3), flip=0.5, mixup=0.3, fill=7)


def whole_set(images: Images, workers: int | None, augmentation: Augmentation = CROPPED) -> Batches:
    """Images read whole at 24 pixels for a network of 16."""
    as_read, shape = Preprocessing((24, 24)), Preprocessing((16, 16), mean=(0.4, 0.5, 0.6))
    loader: Loader = load_resident(images, as_read, 1, whole=True)
    if workers is not None:
        loader = StreamedLoader(images, as_read, workers, whole=True)
    return labelled_set(loader, np.arange(len(images)) % 3, shape, augmentation, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_crops_of_whole_images_are_the_same_streamed_and_resident(photo_folder: Path, workers: int) -> None:
    images, _ = photographs(photo_folder)
    resident, streamed = (list(whole_set(images, each).batches(1, 7)) for each in (None, workers))
    assert all(equal(ours, theirs) for ours, theirs in zip(resident, streamed, strict=True))
    found, alone = rows(iter(resident)), rows(whole_set(images, None).batches(1, 7, 0, 1))
    for one, (image, target) in found.items():
        assert torch.equal(image, alone[one][0]), "whoever else is in the batch, and so whatever the filling up"
        assert torch.equal(target, alone[one][1])


def test_the_margins_of_a_wide_image_are_seen() -> None:
    """An image of 3:2 is red at its left and blue at its right, outside the square in its middle."""
    values = np.full((40, 60, 3), 128, np.uint8)
    values[:, :9], values[:, -9:] = (255, 0, 0), (0, 0, 255)
    images = ArrayImages(np.stack([values] * 8))
    plain = Augmentation(crop_scale=(0.3, 0.9))
    reds = blues = 0
    for epoch in range(6):
        for batch in whole_set(images, None, plain).batches(epoch, 8):
            pixels = denormalised(whole_set(images, None).input, batch.inputs).int()
            reds += int((pixels[:, 0] - pixels[:, 2] > 120).any(dim=(1, 2)).sum())
            blues += int((pixels[:, 2] - pixels[:, 0] > 120).any(dim=(1, 2)).sum())
    assert 5 < reds < 43
    assert 5 < blues < 43
    middle = whole_set(images, None, Augmentation())
    (batch,) = middle.batches(0, 8)
    grey = denormalised(middle.input, batch.inputs).int()
    assert (grey - 128).abs().max() <= 8, "without a random crop it is the middle, as in an evaluation"


def test_a_crop_never_holds_what_fills_up_a_batch() -> None:
    """White images of all shapes, cropped before a black fill: all white."""
    rng = np.random.default_rng(0)
    whites = [torch.full((1, *shape), 255, dtype=torch.uint8) for shape in rng.integers(16, 33, (24, 2)).tolist()]
    plain = Augmentation(crop_scale=(0.5, 1.0), crop_ratio=(0.75, 4 / 3), fill=0)
    pixels, extents = fill_up(whites)
    draws = draw(plain, np.arange(24), seed=0, epoch=0, extents=extents)
    assert float(apply(plain, pixels, draws, (8, 8), extents).min()) > 254.99
    lively = replace(plain, rotate=30.0, zoom=(0.7, 1.3), shift=0.2)
    draws = draw(lively, np.arange(24), seed=0, epoch=0, extents=extents)
    expected = apply(lively, pixels, draws, (8, 8), extents)
    for row, (high, wide) in enumerate(extents.tolist()):
        pixels[row, :, high:], pixels[row, :, :, wide:] = 99, 99
    assert torch.equal(apply(lively, pixels, draws, (8, 8), extents), expected)
    assert float(expected.min()) < 0.01


def test_images_of_the_size_have_the_bits_that_they_have_without_extents() -> None:
    pixels, _ = noise(9)
    extents = torch.full((9, 2), 8)
    for lively in (LIVELY, replace(LIVELY, crop_scale=(0.3, 1.0), crop_ratio=(0.75, 4 / 3)), Augmentation()):
        plain = draw(lively, np.arange(9), seed=1, epoch=2)
        whole = draw(lively, np.arange(9), seed=1, epoch=2, extents=extents)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(plain, whole, strict=True))
        assert torch.equal(apply(lively, pixels, whole, (8, 8), extents), apply(lively, pixels, plain, (8, 8)))


def rows(batches: Iterator[Batch]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Image and target by id."""
    found = {}
    for batch in batches:
        targets = batch.targets
        for row, one in enumerate(batch.ids.tolist()):
            assert one not in found, "each image comes once"
            found[one] = (batch.inputs[row], targets[row])
    return found


@settings(deadline=None, max_examples=40)
@given(
    batch_size=st.integers(1, 30),
    part=st.integers(1, 30),
    epoch=st.integers(0, 5),
    count=st.integers(1, 23),
    mixed=st.booleans(),
)
def test_how_batches_are_cut_changes_no_image(batch_size, part, epoch, count, mixed) -> None:
    data = tiny_set(count, LIVELY if mixed else replace(LIVELY, mixup=0.0, cutmix=0.0))
    whole, cut = rows(data.batches(epoch, 1000)), rows(data.batches(epoch, batch_size, 0, part))
    assert sorted(cut) == sorted(whole) == list(range(count))
    for one, (image, target) in cut.items():
        torch.testing.assert_close(image, whole[one][0], atol=1e-6, rtol=0)
        torch.testing.assert_close(target, whole[one][1], atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=40)
@given(batch_size=st.integers(1, 12), part=st.integers(1, 12), count=st.integers(1, 23), start=st.integers(0, 30))
def test_parts_stay_in_their_batch_and_starts_skip(batch_size, part, count, start) -> None:
    data = tiny_set(count)
    whole = [batch.ids.tolist() for batch in data.batches(2, batch_size)]
    parts = list(data.batches(2, batch_size, 0, part))
    joined: list[list[int]] = [[]]
    for piece in parts:
        assert 1 <= len(piece.ids) <= part
        if len(joined[-1]) == batch_size:
            joined.append([])
        joined[-1] += piece.ids.tolist()
    assert joined == whole, "no part reaches into the next batch"
    assert [piece.number for piece in parts] == list(range(len(parts)))
    later = list(data.batches(2, batch_size, start, part))
    assert all(equal(ours, theirs) for ours, theirs in zip(later, parts[start:], strict=True))


def test_without_augmentation_all_paths_give_one_tensor(photo_folder: Path) -> None:
    """Training, evaluation and prediction of the same JPEG files."""
    files, labels = photographs(photo_folder)
    shape = Preprocessing((16, 20), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    config = ViTConfig(image_size=(16, 20), patch_size=4, classes=3, width=8, depth=1, heads=2)
    model = Model(ViT(config), shape, Classes(("a", "b", "c")), TASKS["classify"])
    expected = model.tensor(files.paths)
    for loader in (load_resident(files, shape, 1), StreamedLoader(files, shape, 1)):
        for batch in labelled_set(loader, labels, shape, Augmentation(), 0).batches(3, 6):
            assert torch.equal(batch.inputs, expected[batch.ids])
            assert torch.equal(batch.targets, torch.from_numpy(labels[batch.ids]))
        for batch in labelled_set(loader, labels, shape).in_order(6):
            assert torch.equal(batch.inputs, expected[batch.ids])
    flipped = labelled_set(load_resident(files, shape, 1), labels, shape, Augmentation(flip=1.0), 0)
    assert not torch.equal(next(flipped.batches(0, 6)).inputs, expected[next(flipped.batches(0, 6)).ids])


def test_a_larger_fetch_without_augmentation_is_the_whole_image_resized() -> None:
    pixels, labels = noise(6)
    large = pixels.repeat_interleave(2, 2).repeat_interleave(2, 3)
    data = labelled_set(PatchyLoader(large), labels, PLAIN, Augmentation(), 0)
    (batch,) = data.batches(0, 6)
    torch.testing.assert_close(batch.inputs, PLAIN.normalise(pixels[batch.ids]), atol=1e-5, rtol=0)


def test_smoothed_targets() -> None:
    data = tiny_set(9, Augmentation(label_smoothing=0.3))
    (batch,) = data.batches(0, 9)
    expected = 0.7 * F.one_hot(batch.labels, 3).float() + 0.1
    torch.testing.assert_close(batch.targets, expected)
    (hard,) = tiny_set(9, Augmentation()).batches(0, 9)
    assert hard.targets.dtype == torch.int64
    assert torch.equal(hard.targets, hard.labels)


@pytest.mark.parametrize("mixture", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_mixed_targets_say_what_is_in_the_image(mixture: dict[str, float]) -> None:
    """Each image is one grey level that names it, so the shares can be read off the pixels."""
    count = 15
    labels = np.arange(count) % 3
    pixels = (torch.arange(count, dtype=torch.uint8) * 16)[:, None, None, None].repeat(1, 1, 8, 8)
    data = labelled_set(PatchyLoader(pixels), labels, PLAIN, Augmentation(**mixture), 4)
    planned = plan(4, 2, count, mixup=mixture.get("mixup", 0.0), cutmix=mixture.get("cutmix", 0.0))
    seen = 0
    for batch in data.batches(2, 4):
        torch.testing.assert_close(batch.targets.sum(1), torch.ones(len(batch.labels)))
        grey = batch.inputs.mul(0.4).add(0.3).mul(255)
        for row, one in enumerate(batch.ids.tolist()):
            partner = int(planned.partners[seen])
            assert planned.ids[seen] == one
            own, other = 16.0 * one, 16.0 * partner
            share = float((grey[row].mean() - other) / (own - other))
            expected = share * F.one_hot(torch.tensor(labels[one]), 3) + (1 - share) * F.one_hot(
                torch.tensor(labels[partner]), 3
            )
            torch.testing.assert_close(batch.targets[row], expected.float(), atol=1e-4, rtol=0)
            if planned.cut[seen]:
                levels = {round(value) for value in grey[row].flatten().tolist()}
                assert levels <= {round(own), round(other)}
            else:
                assert share == pytest.approx(planned.weights[seen], abs=1e-4)
            assert int(batch.labels[row]) == labels[one]
            seen += 1
    assert seen == count


@pytest.mark.parametrize("mixture", [{}, {"mixup": 0.4}, {"cutmix": 1.0}])
def test_unreadable_images_are_left_out_and_mix_with_nobody(mixture: dict[str, float]) -> None:
    bad = [0, 3, 4, 11]
    data = tiny_set(16, Augmentation(**mixture), bad=bad)
    clean = tiny_set(16, Augmentation())
    planned = plan(0, 1, 16, mixup=mixture.get("mixup", 0.0), cutmix=mixture.get("cutmix", 0.0))
    partner_of = dict(zip(planned.ids.tolist(), planned.partners.tolist(), strict=True))
    batches = list(data.batches(1, 5))
    assert sum(batch.unreadable for batch in batches) == 4
    found, plain = rows(iter(batches)), rows(clean.batches(1, 16))
    assert sorted(found) == [one for one in range(16) if one not in bad]
    alone = 0
    for one, (image, target) in found.items():
        if partner_of[one] in bad:
            alone += 1
            assert torch.equal(image, plain[one][0]), "black of an image that is not there is mixed in"
            torch.testing.assert_close(target, F.one_hot(plain[one][1], 3).float())
    assert alone or not mixture


def test_a_batch_of_unreadable_images_is_empty() -> None:
    (batch,) = tiny_set(4, bad=range(4)).batches(0, 4)
    assert batch.inputs.shape == (0, 1, 8, 8)
    assert batch.targets.shape == (0, 3)
    assert batch.unreadable == 4


def test_evaluation_takes_each_image_once_in_order() -> None:
    pixels, labels = noise(11)
    batches = list(labelled_set(PatchyLoader(pixels, [2, 10]), labels).in_order(4))
    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.unreadable for batch in batches] == [1, 0, 1]
    for batch in batches:
        assert torch.equal(batch.inputs, PLAIN.normalise(pixels[batch.ids]))
        assert torch.equal(batch.labels, torch.from_numpy(labels[batch.ids]))
