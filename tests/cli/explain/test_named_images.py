"""Images by their names: planted ones with their masks, and where MNIST lies of which they are made."""

import json
from pathlib import Path

import numpy as np

import vitrail
from tests.cli.explain.shown import shown_of
from tests.cli.planted import planted_model
from tests.data.lab import digit_patches
from tests.explain.planted_lab import NETWORKS, load_planted
from vitrail.data.images import NamedImage
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.idx import read_digits
from vitrail.data.sets.planted import parse_planted, planted_digits, planted_images
from vitrail.explain.reporting.known_masks import mask_patches
from vitrail.runs.data import Run

RUN = NETWORKS / "mean-0"


def test_the_masks_of_planted_images_are_where_the_digits_are() -> None:
    model = planted_model()
    shown, _ = shown_of(model, "run", "planted", 5)
    made = planted_digits("test", 2000)
    indices = [int(one.name.rpartition("/")[2]) for one in shown]
    np.testing.assert_array_equal(np.stack([np.asarray(one.image) for one in shown]), made.pixels[indices])
    masks = mask_patches(shown, model)
    assert masks is not None
    np.testing.assert_array_equal(masks.numpy(), digit_patches(made, 4)[indices, 0])
    wide = planted_model(patch=16)  # a patch would lie in four cells
    bare, _ = shown_of(wide, "run", "planted", 5)
    assert [one.mask for one in bare] == [None] * 5
    assert mask_patches(bare, wide) is None


def test_images_of_another_size_than_the_model_reads_are_named() -> None:
    """Before, they were scaled and their masks left out without a word."""
    notes = list[str]()

    def read(name: str) -> NamedImage:
        notes.clear()
        (one,), _ = shown_of(planted_model(), "run", name, 1, notes.append)
        return one

    for name in ("planted:2x3", "planted:2x3,double"):
        one = read(name)
        assert one.mask is None
        assert [note for note in notes if all(word in note for word in (one.name, "24 x 16", "32 x 32"))]
    assert read("planted:4x4").mask is not None
    assert not any("32 x 32" in note for note in notes)


def test_rectangles_have_their_masks() -> None:
    """Through the labelled road, of a model whose images have that size; no other model's."""
    config = vitrail.ViTConfig(
        image_size=(16, 24), patch_size=4, channels=1, classes=10, width=16, depth=1, heads=2, mlp_dim=32
    )
    other = load_planted("mean-0")
    preprocessing = Preprocessing((16, 24), channels=1, mean=(0.5,), std=(0.5,))
    model = vitrail.Model(vitrail.ViT(config).eval(), preprocessing, vitrail.Classes(other.classes))
    truth = planted_images(parse_planted("planted:2x3"), "test", read_digits().splits)
    for one in shown_of(model, "", "planted:2x3", 4)[0]:
        index = int(one.name.rsplit("/", 1)[1])
        assert one.mask is not None
        np.testing.assert_array_equal(np.asarray(one.mask) > 0, digit_patches(truth, 1)[index, 0])
        assert one.label == str(truth.labels[index, 0])
    assert all(one.mask is None for one in shown_of(other, RUN, "planted:2x3", 2)[0])


def test_mnist_is_looked_for_where_the_run_read_it(tmp_path: Path) -> None:
    digits, photos = tmp_path / "mnist", tmp_path / "photos"
    for name, root, wanted in (
        ("planted:mnist", digits, digits),
        ("mnist", digits, digits),
        ("photos", photos, None),  # nothing is to be downloaded into a person's folder
        ("planted:2x3", Path("scikit-learn"), None),
    ):
        run = tmp_path / f"run-{name.replace(':', '-')}"
        for folder in (run, digits, photos):
            folder.mkdir(exist_ok=True)
        values = {"name": name, "root": str(root), "images": {}, "split_seed": 0, "fingerprint": ""}
        (run / "data.json").write_text(json.dumps(values))
        for asked, found in (("planted:mnist,2x3", wanted), ("mnist-m", wanted), ("planted", None), ("photos", None)):
            assert Run(run).root_for(asked, None) == found
        assert Run(run).root_for("planted:mnist", tmp_path) == tmp_path
    assert Run(tmp_path).root_for("planted:mnist", None) is None
