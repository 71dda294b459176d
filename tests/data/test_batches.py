"""Batches: the same tensors whoever feeds them, targets that add up, and one path for training and evaluation."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.lab import LIVELY, PLAIN, PatchyFeed, pictures, tiny_set
from vitrail.data.augmentation import Augmentation
from vitrail.data.batches import Batch, TrainingSet, evaluation_batches
from vitrail.data.feed import Feed, StreamedFeed, resident_pixels
from vitrail.data.pictures import FilePictures
from vitrail.data.plan import plan
from vitrail.data.preprocessing import Preprocessing
from vitrail.model import Model
from vitrail.nn import ViT, ViTConfig

CPU = torch.device("cpu")
RICH = Augmentation(
    crop_area=(0.4, 1.0),
    crop_aspect=(0.75, 4 / 3),
    rotate=15.0,
    flip=0.5,
    trivial=True,
    erase=0.3,
    mixup=0.3,
    cutmix=1.0,
    label_smoothing=0.1,
)


def photographs(folder: Path) -> tuple[FilePictures, np.ndarray]:
    paths = sorted(path for path in (folder / "train").rglob("*.*") if path.is_file())[::3]
    names = sorted({path.parent.name for path in paths})
    return FilePictures(paths, folder), np.array([names.index(path.parent.name) for path in paths])


def photo_set(folder: Path, workers: int | None, augmentation: Augmentation = RICH) -> TrainingSet:
    """Photographs fetched at 24 x 30 pixels for a network of 16 x 20."""
    files, labels = photographs(folder)
    fetched, shape = Preprocessing((24, 30)), Preprocessing((16, 20), mean=(0.4, 0.5, 0.6))
    feed: Feed = resident_pixels(files, fetched, 1) if workers is None else StreamedFeed(files, fetched, workers)
    return TrainingSet(feed, labels, 3, shape, augmentation, 5, CPU)


def equal(ours: Batch, theirs: Batch) -> bool:
    tensors = ("images", "targets", "labels")
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


def rows(batches: Iterator[Batch]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Picture and target by id."""
    found = {}
    for batch in batches:
        targets = batch.targets
        for row, one in enumerate(batch.ids.tolist()):
            assert one not in found, "each picture comes once"
            found[one] = (batch.images[row], targets[row])
    return found


@settings(deadline=None, max_examples=40)
@given(
    batch_size=st.integers(1, 30),
    part=st.integers(1, 30),
    epoch=st.integers(0, 5),
    count=st.integers(1, 23),
    mixed=st.booleans(),
)
def test_how_batches_are_cut_changes_no_picture(batch_size, part, epoch, count, mixed) -> None:
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
    model = Model(ViT(config), shape, ("a", "b", "c"))
    expected = model.tensor(files.paths)
    for feed in (resident_pixels(files, shape, 1), StreamedFeed(files, shape, 1)):
        for batch in TrainingSet(feed, labels, 3, shape, Augmentation(), 0, CPU).batches(3, 6):
            assert torch.equal(batch.images, expected[batch.ids])
            assert torch.equal(batch.targets, torch.from_numpy(labels[batch.ids]))
        for batch in evaluation_batches(feed, labels, shape, 6, CPU):
            assert torch.equal(batch.images, expected[batch.ids])
    flipped = TrainingSet(resident_pixels(files, shape, 1), labels, 3, shape, Augmentation(flip=1.0), 0, CPU)
    assert not torch.equal(next(flipped.batches(0, 6)).images, expected[next(flipped.batches(0, 6)).ids])


def test_a_larger_fetch_without_augmentation_is_the_whole_picture_resized() -> None:
    pixels, labels = pictures(6)
    large = pixels.repeat_interleave(2, 2).repeat_interleave(2, 3)
    data = TrainingSet(PatchyFeed(large), labels, 3, PLAIN, Augmentation(), 0, CPU)
    (batch,) = data.batches(0, 6)
    torch.testing.assert_close(batch.images, PLAIN.normalise(pixels[batch.ids]), atol=1e-5, rtol=0)


def test_smoothed_targets() -> None:
    data = tiny_set(9, Augmentation(label_smoothing=0.3))
    (batch,) = data.batches(0, 9)
    expected = 0.7 * F.one_hot(batch.labels, 3).float() + 0.1
    torch.testing.assert_close(batch.targets, expected)
    (hard,) = tiny_set(9, Augmentation()).batches(0, 9)
    assert hard.targets.dtype == torch.int64
    assert torch.equal(hard.targets, hard.labels)


@pytest.mark.parametrize("mixture", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_mixed_targets_say_what_is_in_the_picture(mixture: dict[str, float]) -> None:
    """Each picture is one grey level that names it, so the shares can be read off the pixels."""
    count = 15
    labels = np.arange(count) % 3
    pixels = (torch.arange(count, dtype=torch.uint8) * 16)[:, None, None, None].repeat(1, 1, 8, 8)
    data = TrainingSet(PatchyFeed(pixels), labels, 3, PLAIN, Augmentation(**mixture), 4, CPU)
    slots = plan(4, 2, count, mixup=mixture.get("mixup", 0.0), cutmix=mixture.get("cutmix", 0.0))
    seen = 0
    for batch in data.batches(2, 4):
        torch.testing.assert_close(batch.targets.sum(1), torch.ones(len(batch.labels)))
        grey = batch.images.mul(0.4).add(0.3).mul(255)
        for row, one in enumerate(batch.ids.tolist()):
            partner = int(slots.partners[seen])
            assert slots.ids[seen] == one
            own, other = 16.0 * one, 16.0 * partner
            share = float((grey[row].mean() - other) / (own - other))
            expected = share * F.one_hot(torch.tensor(labels[one]), 3) + (1 - share) * F.one_hot(
                torch.tensor(labels[partner]), 3
            )
            torch.testing.assert_close(batch.targets[row], expected.float(), atol=1e-4, rtol=0)
            if slots.cut[seen]:
                levels = {round(value) for value in grey[row].flatten().tolist()}
                assert levels <= {round(own), round(other)}
            else:
                assert share == pytest.approx(slots.shares[seen], abs=1e-4)
            assert int(batch.labels[row]) == labels[one]
            seen += 1
    assert seen == count


@pytest.mark.parametrize("mixture", [{}, {"mixup": 0.4}, {"cutmix": 1.0}])
def test_unreadable_pictures_are_left_out_and_mix_with_nobody(mixture: dict[str, float]) -> None:
    bad = [0, 3, 4, 11]
    data = tiny_set(16, Augmentation(**mixture), bad=bad)
    clean = tiny_set(16, Augmentation())
    slots = plan(0, 1, 16, mixup=mixture.get("mixup", 0.0), cutmix=mixture.get("cutmix", 0.0))
    partner_of = dict(zip(slots.ids.tolist(), slots.partners.tolist(), strict=True))
    batches = list(data.batches(1, 5))
    assert sum(batch.unreadable for batch in batches) == 4
    found, plain = rows(iter(batches)), rows(clean.batches(1, 16))
    assert sorted(found) == [one for one in range(16) if one not in bad]
    alone = 0
    for one, (image, target) in found.items():
        if partner_of[one] in bad:
            alone += 1
            assert torch.equal(image, plain[one][0]), "black of a picture that is not there is mixed in"
            torch.testing.assert_close(target, F.one_hot(plain[one][1], 3).float())
    assert alone or not mixture


def test_a_batch_of_unreadable_pictures_is_empty() -> None:
    (batch,) = tiny_set(4, bad=range(4)).batches(0, 4)
    assert batch.images.shape == (0, 1, 8, 8)
    assert batch.targets.shape == (0, 3)
    assert batch.unreadable == 4


def test_evaluation_takes_each_picture_once_in_order() -> None:
    pixels, labels = pictures(11)
    batches = list(evaluation_batches(PatchyFeed(pixels, [2, 10]), labels, PLAIN, 4, CPU))
    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.unreadable for batch in batches] == [1, 0, 1]
    for batch in batches:
        assert torch.equal(batch.images, PLAIN.normalise(pixels[batch.ids]))
        assert torch.equal(batch.labels, torch.from_numpy(labels[batch.ids]))
