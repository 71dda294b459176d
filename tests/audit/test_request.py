"""What an audit is known by: labels and groups, and the masks of the images that it explains; and who has which label.

Each hash must change with what it is of, and with nothing else.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from tests.audit.marked import honest
from tests.errors import must_raise
from vitrail.audit import sampling
from vitrail.audit.request import AuditRequest, explained_images
from vitrail.audit.sampling import BLOCK, known_labels
from vitrail.data.columns import Column, Labels, Samples, Texts
from vitrail.data.images import ArrayImages
from vitrail.data.masks import check_any_mask
from vitrail.errors import DataError, UsageError
from vitrail.explain.reporting.plan import ReportOptions
from vitrail.model import Model


def asked(labels: list[int], groups: tuple[str, ...] = (), name: str = "image", masks: Path | None = None) -> Any:
    columns: dict[str, Column] = {"label": Labels(np.array(labels), ("7", "no class of the model", "3"))}
    if groups:
        columns["group"] = Texts(groups)
    samples = Samples(ArrayImages(np.zeros((len(labels), 32, 32), np.uint8), name), columns)
    return AuditRequest(honest(), samples, ReportOptions(), (), masks, {})


def test_renamed_files_have_the_same_labels_and_groups() -> None:
    one, groups = asked([0, 2, 0]).labels_hash(), ("a", "a", "b")
    assert one == asked([0, 2, 0], name="renamed").labels_hash()
    of_groups = asked([0, 2, 0], groups).labels_hash()
    assert of_groups == asked([0, 2, 0], groups, "renamed").labels_hash()
    others = [asked([0, 0, 2]), asked([0, 2, 0], ("a", "b", "b")), asked([0, 0, 2], groups)]
    assert len({one, of_groups, *(each.labels_hash() for each in others)}) == 5


def test_jobs_go_on_unless_the_mask_of_an_image_changes_that_is_explained(tmp_path: Path) -> None:
    masks, folder = tmp_path / "masks", tmp_path / "parts"
    (masks / "image").mkdir(parents=True)
    files = [masks / "image" / "0.png", masks / "1.png", masks / "2.png"]
    for file in files:
        Image.new("L", (32, 32), 255).save(file)
    one = asked([0, 2, 0, 2], masks=masks)

    def choose(request: Any = one, rows: tuple[int, ...] = (0, 1, 3), count: int = 3) -> list[int]:
        return explained_images(folder, request, lambda: list(rows), [count, None])

    def touch(file: Path) -> None:
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**9))

    assert choose() == [0, 1, 3]
    (folder / "maps.jsonl").touch()
    touch(files[2])
    assert choose(rows=(2,)) == [0, 1, 3]  # as it was chosen, and nobody reads this mask
    for file in files[:2]:
        touch(file)
        with must_raise(UsageError, "masks"):
            choose()
        os.utime(file, ns=(0, file.stat().st_mtime_ns - 10**9))
        assert choose() == [0, 1, 3]
    Image.new("L", (32, 32), 255).save(masks / "3.png")
    with must_raise(UsageError, "masks"):
        choose()
    with must_raise(UsageError, "masks"):
        choose(asked([0, 2, 0, 2]))
    for request in (asked([0], masks=masks), asked([2, 2, 0, 2], masks=masks)):  # of fewer images than were explained
        with must_raise(UsageError, "labels"):
            choose(request)
    with pytest.raises(UsageError):
        choose(count=4)
    (folder / "maps.jsonl").unlink()
    assert choose(rows=(2,)) == [2]
    (folder / "maps.jsonl").touch()
    (masks / "3.png").unlink()
    assert choose() == [2]


def test_of_no_images_no_mask_is_missing(tmp_path: Path) -> None:
    check_any_mask([], tmp_path)
    with must_raise(DataError, "a.jpg"):
        check_any_mask(["a.jpg"], tmp_path)
    with must_raise(DataError, "none"):
        check_any_mask([], tmp_path / "none")


class Largest(TorchDispatchMode):
    """How many bytes the largest tensor has that is made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.size = max(self.size, made.nbytes)
        return made


@pytest.mark.parametrize("unknown", [False, True])
def test_labels_are_known_in_a_byte_each_and_unknown_ones_are_not(unknown: bool) -> None:
    labels = np.random.default_rng(0).choice([0, 1, 2] if unknown else [0, 2], 200)
    request = asked(labels.tolist())
    with Largest() as largest:
        found = known_labels(request.model, request.samples)
    numbers = torch.tensor([7, 0, 3])[torch.from_numpy(labels)]
    expected = one_hot(numbers, 10).numpy()
    expected[labels == 1] = -1
    assert found.dtype == np.int8
    np.testing.assert_array_equal(found, expected)
    assert largest.size <= 8 * len(labels)  # the labels, and not eight bytes for each class


def test_of_many_images_and_classes_no_byte_for_each_class_of_each_is_held() -> None:
    """Of 5,000,000 images of 1,000 classes that would be 5 GB."""
    many = 10 * BLOCK
    request = asked([0, 1, 2, 0] * (many // 4))
    sizes = list[int]()

    def watched(model: Model, samples: Samples) -> np.ndarray:
        sizes.append(len(samples))
        return known_labels(model, samples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "known_labels", watched)
        found = sampling.kinds_of(request.model, request.samples)
    assert max(sizes) <= BLOCK
    assert found == [(7,), (), (3,), (7,)] * (many // 4)
    assert len({id(kinds) for kinds in found}) == 3  # one tuple for all images of a class
