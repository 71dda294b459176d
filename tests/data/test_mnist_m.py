"""MNIST-M: the rule in closed form, images that depend on nothing but their seed and number, published files read."""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import vitrail
from tests.data.lab import names_of, open_set, open_split
from tests.data.test_dataset import put_idx
from tests.errors import figures
from vitrail.data.dataset import TEST, TRAIN, Dataset, labels_of
from vitrail.data.images import ArrayImages
from vitrail.data.loader import ResidentLoader, open_loader
from vitrail.data.plan import BACKGROUND, uniforms
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers import idx
from vitrail.data.sets.mnist_m import blend_digits, packaged_photographs, read_mnist_m, read_photographs
from vitrail.errors import DataError, UsageError
from vitrail.runs.data import CHANGED, Run, open_for


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def put_photograph(path: Path, seed: int, height: int = 40, width: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed, height, width, 3)).save(path)


def idx_content(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + np.array(values.shape, dtype=">u4").tobytes() + values.tobytes()


def pixels(source: Dataset, split: str) -> np.ndarray:
    images = source.splits[split].inputs
    assert isinstance(images, ArrayImages)
    return images.pixels


# The rule


def reference(digits: np.ndarray, backgrounds: list[np.ndarray], seed: int, split: int) -> np.ndarray:
    """The same rule in signed whole numbers, one image, pixel and channel after the other."""
    made = []
    for number, digit in enumerate(digits):
        which, down, across = uniforms(np.array([number]), 3, seed=seed, epoch=split, stream=BACKGROUND)[0].tolist()
        behind = backgrounds[int(which * len(backgrounds))]
        high, wide = digit.shape
        top = int(down * (behind.shape[0] - high + 1))
        left = int(across * (behind.shape[1] - wide + 1))
        made.append(
            [
                [[abs(int(behind[top + y, left + x, c]) - int(digit[y, x])) for c in range(3)] for x in range(wide)]
                for y in range(high)
            ]
        )
    return np.array(made)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**40), st.integers(0, 3), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_blending_is_the_absolute_difference(seed: int, split: int, count: int, taller: int, wider: int) -> None:
    digits = noise(1, 7, 6, 5)
    backgrounds = [noise(2 + each, 6 + taller + each, 5 + wider, 3) for each in range(count)]
    made = blend_digits(digits, backgrounds, seed=seed, split=split)
    assert made.dtype == np.uint8
    np.testing.assert_array_equal(made, reference(digits, backgrounds, seed, split))


def test_one_colour_in_closed_form() -> None:
    colour = np.array([0, 100, 255], np.uint8)
    made = blend_digits(np.array([[[0, 30, 255]]], np.uint8), [np.full((5, 5, 3), colour)], seed=0, split=0)
    np.testing.assert_array_equal(made, [[[[0, 100, 255], [30, 70, 225], [255, 155, 0]]]])


def test_an_image_depends_on_seed_split_and_number_only() -> None:
    digits, backgrounds = noise(0, 40, 6, 5), [noise(1, 30, 30, 3), noise(2, 30, 30, 3)]
    made = blend_digits(digits, backgrounds, seed=3, split=0)
    np.testing.assert_array_equal(blend_digits(digits, backgrounds, seed=3, split=0), made)
    np.testing.assert_array_equal(blend_digits(digits[:25], backgrounds, seed=3, split=0), made[:25])
    for seed, split in ((4, 0), (3, 1)):
        other = blend_digits(digits, backgrounds, seed=seed, split=split)
        assert (other != made).any(axis=(1, 2, 3)).mean() > 0.9


def test_every_photograph_and_every_place_is_as_likely() -> None:
    """Nine places in each of three photographs; the last row and column of places too."""
    backgrounds = [np.zeros((8, 7, 3), np.uint8) for _ in range(3)]
    for number, background in enumerate(backgrounds):
        background[:3, :3, 0] = 10 * np.arange(9).reshape(3, 3) + number
    made = blend_digits(np.zeros((5400, 6, 5), np.uint8), backgrounds, seed=0, split=0)
    seen = Counter(made[:, 0, 0, 0].tolist())
    assert set(seen) == {10 * place + number for place in range(9) for number in range(3)}
    assert 140 < min(seen.values()) <= max(seen.values()) < 260, "200 each, and 4 deviations of 14"


# Made from MNIST and a folder of photographs


def side_of(number: int) -> str:
    return "train" if number < 8 else "test"


def put_made(root: Path) -> Path:
    put_idx(root)
    for number in range(10):
        put_photograph(root / "photographs" / side_of(number) / f"{number}.png", number)
    return root


def test_made_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_made(tmp_path)
    (tmp_path / "photographs" / "notes.txt").write_text("no image")
    source = open_set("mnist-m", tmp_path)
    assert [len(source.train), len(source.validation), len(source.test)] == [90, 10, 20]
    assert names_of(source) == tuple("0123456789")
    assert source.root == str(tmp_path)
    assert any({"8", "2"} <= {*figures(note)} for note in source.notes), source.notes
    assert source.test.inputs.name(3) == "mnist-m/test/3"
    plain = open_set("mnist", tmp_path)
    np.testing.assert_array_equal(labels_of(plain.test), labels_of(source.test))
    assert source.test.inputs.open(0).mode == "RGB"
    found = read_mnist_m("mnist-m", tmp_path)
    whole = np.concatenate([pixels(source, "train"), pixels(source, "validation")])
    assert sorted(map(bytes, whole)) == sorted(map(bytes, found.splits[TRAIN].inputs.pixels))
    monkeypatch.chdir("/")
    again = open_set("mnist-m", Path(source.root), source.split_seed or 0)
    assert again.fingerprint == source.fingerprint
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    assert open_split("mnist-m", names_of(source)).samples.inputs.digest() == source.test.inputs.digest()


def test_photographs_of_training_and_test_differ(tmp_path: Path) -> None:
    """Black digits leave the cut-outs as they are: with photographs of one colour each, that is who they came from."""
    black = {name: idx_content(np.zeros((count, 6, 5), np.uint8)) for name, count in (("train", 100), ("t10k", 20))}
    put_idx(tmp_path, train_images_idx3_ubyte=black["train"], t10k_images_idx3_ubyte=black["t10k"])
    for number in range(10):
        (tmp_path / "photographs" / side_of(number)).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / "photographs" / side_of(number) / f"{number}.png")
    source = open_set("mnist-m", tmp_path)
    seen = {name: set(pixels(source, name)[..., 0].ravel().tolist()) for name in ("train", "validation", "test")}
    assert seen["test"] == {8, 9}
    assert seen["train"] == set(range(8))
    assert seen["validation"] <= seen["train"]


def test_training_and_test_cut_out_other_places(tmp_path: Path) -> None:
    """With black digits and one photograph each, equal but for its brightness, equal draws would be seen."""
    black, labels = idx_content(np.zeros((20, 6, 5), np.uint8)), idx_content((np.arange(20) % 10).astype(np.uint8))
    put_idx(tmp_path, train_images_idx3_ubyte=black, train_labels_idx1_ubyte=labels, t10k_images_idx3_ubyte=black)
    dark = noise(3, 60, 60, 3) // 2
    for name, brightness in (("train", 0), ("test", 100)):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        Image.fromarray(dark + np.uint8(brightness)).save(tmp_path / "photographs" / name / "a.png")
    train, test = (read_mnist_m("mnist-m", tmp_path).splits[name].inputs.pixels for name in (TRAIN, TEST))
    assert ((train + np.uint8(100)) != test).any(axis=(1, 2, 3)).mean() > 0.9


def test_the_fingerprint_covers_digits_photographs_and_seed(tmp_path: Path) -> None:
    put_made(tmp_path)
    seen = {open_set("mnist-m", tmp_path).fingerprint}
    made = [read_mnist_m("mnist-m", tmp_path, seed).splits for seed in (0, 1)]
    digests = {parts[name].inputs.digest() for parts in made for name in (TRAIN, TEST)}
    assert len(digests) == 4
    put_photograph(tmp_path / "photographs" / "train" / "3.png", 99)
    seen.add(open_set("mnist-m", tmp_path).fingerprint)
    put_idx(tmp_path, t10k_images_idx3_ubyte=idx_content(noise(5, 20, 6, 5)))
    seen.add(open_set("mnist-m", tmp_path).fingerprint)
    assert len(seen) == 3


def test_photographs_are_divided_by_their_folder(tmp_path: Path) -> None:
    for number in range(3):
        put_photograph(tmp_path / "train" / "deep" / f"{number}.png", number)
    put_photograph(tmp_path / "test" / "0.png", 7)
    put_photograph(tmp_path / "val" / "0.png", 8)
    found = read_photographs(tmp_path, 6)
    assert [len(found.train), len(found.test)] == [3, 1]
    np.testing.assert_array_equal(found.test[0], noise(7, 40, 30, 3))


def test_large_photographs_are_scaled_down(tmp_path: Path) -> None:
    put_photograph(tmp_path / "test" / "c.png", 0)
    (tmp_path / "train").mkdir()
    Image.new("RGB", (1000, 642), (9, 8, 7)).save(tmp_path / "train" / "a.png")
    Image.new("L", (50, 60), 3).save(tmp_path / "train" / "b.png")
    assert [each.shape for each in read_photographs(tmp_path, 28).train] == [(321, 500, 3), (60, 50, 3)]


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ((), "train"),
        (("a.png", "b.png"), "train"),
        (("train/a.png", "test/a.txt"), "test"),
        (("test/a.png", "train/b"), "train"),
    ],
)
def test_no_photographs_for_one_side(tmp_path: Path, files: tuple[str, ...], lacking: str) -> None:
    put_idx(tmp_path)
    (tmp_path / "photographs").mkdir()
    for number, file in enumerate(files):
        put_photograph((tmp_path / "photographs" / file).with_suffix(".png"), number)
        if not file.endswith(".png"):
            (tmp_path / "photographs" / file).with_suffix(".png").rename(tmp_path / "photographs" / file)
    with pytest.raises(DataError) as caught:
        open_set("mnist-m", tmp_path)
    assert caught.value.exit_code == 3
    assert str(tmp_path / "photographs" / lacking) in caught.value.problem


@pytest.mark.parametrize("side", ["train", "test"])
def test_a_photograph_that_is_too_small(tmp_path: Path, side: str) -> None:
    for number in range(6):
        put_photograph(tmp_path / ("train", "test")[number % 2] / f"{number}.png", number)
    put_photograph(tmp_path / side / "small.png", 9, 5, 50)
    with pytest.raises(DataError, match=r"small\.png .*\b50 x 5\b.*\b6\b"):
        read_photographs(tmp_path, 6)


def test_damaged_and_double_photographs(tmp_path: Path) -> None:
    put_made(tmp_path)
    put_photograph(tmp_path / "photographs" / "train" / "again.png", 0)  # twice on one side
    open_set("mnist-m", tmp_path)
    put_photograph(tmp_path / "photographs" / "test" / "again.png", 3)
    with pytest.raises(DataError, match=r"train/3\.png.*test/again\.png"):
        open_set("mnist-m", tmp_path)
    (tmp_path / "photographs" / "train" / "4.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"4\.png"):
        open_set("mnist-m", tmp_path)


def test_without_mnist_the_error_is_that_of_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(name: str, folder: Path) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(idx, "download", no_network)
    for root in (tmp_path, tmp_path / "absent"):
        said = []
        for name in ("mnist", "mnist-m"):
            with pytest.raises(DataError) as caught:
                open_set(name, root)
            said.append((str(caught.value), str(caught.value.hint)))
        assert said[0] == said[1]


# Made from MNIST and the photographs that packages carry


def test_packaged_photographs() -> None:
    found = packaged_photographs()
    assert [len(found.train), len(found.test)] == [5, 2]
    every = (*found.train, *found.test)
    assert len({each.tobytes() for each in every}) == 7
    for each in every:
        assert min(each.shape[:2]) in (300, 321)
        assert (each[..., 0] != each[..., 1]).any(), "a photograph in colour"


@pytest.mark.parametrize(("package", "name"), [("skimage", "scikit-image"), ("sklearn.datasets", "scikit-learn")])
def test_without_the_packages(tmp_path: Path, package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_idx(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=name) as caught:
        open_set("mnist-m", tmp_path)
    assert "vitrail[photos]" in str(caught.value.hint)


@pytest.mark.soak
def test_real_mnist_m(mnist_root: Path) -> None:
    if (mnist_root / "photographs").exists():
        pytest.skip("there are other photographs beside MNIST")
    source, plain = open_set("mnist-m", mnist_root), open_set("mnist", mnist_root)
    assert [len(source.train), len(source.validation), len(source.test)] == [55_000, 5_000, 10_000]
    np.testing.assert_array_equal(labels_of(source.test), labels_of(plain.test))
    assert pixels(source, "test").shape == (10_000, 28, 28, 3)
    black = plain.test.inputs.pixels == 0
    mean = pixels(source, "test")[black].mean(axis=0)
    backgrounds = [each.mean(axis=(0, 1)) for each in packaged_photographs().test]
    np.testing.assert_allclose(mean, np.mean(backgrounds, axis=0), atol=4)


# The published files


def put_published(root: Path, train: int = 100, test: int = 10) -> None:
    for name, count in (("train", train), ("test", test)):
        folder = root / f"mnist_m_{name}"
        folder.mkdir(parents=True)
        rows = []
        for number in reversed(range(count)):
            Image.new("RGB", (32, 32), (number, 10 * (number % 10), 0)).save(folder / f"{number:08d}.png")
            rows.append(f"{number:08d}.png {number % 10}")
        (root / f"mnist_m_{name}_labels.txt").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("below", ["", "mnist_m"])
def test_published_files(tmp_path: Path, below: str) -> None:
    put_published(tmp_path / below)
    put_idx(tmp_path)
    source = open_set("mnist-m", tmp_path)
    (cut,) = source.notes
    assert "10 of 100" in cut
    assert [len(source.train), len(source.validation), len(source.test)] == [90, 10, 10]
    for split in (source.train, source.validation, source.test):
        for index, label in enumerate(labels_of(split)):
            red, green, _ = split.inputs.open(index).getpixel((0, 0))
            assert green == 10 * label
            assert split.inputs.name(index).endswith(f"/{red:08d}.png")
    assert source.test.inputs.name(0) == str(Path(below) / "mnist_m_test" / "00000009.png")
    assert open_set("mnist-m", Path(source.root), source.split_seed or 0).fingerprint == source.fingerprint
    preprocessing = Preprocessing(size=(28, 28))
    loader = open_loader(source.test.inputs, preprocessing, workers=1)
    assert isinstance(loader, ResidentLoader)
    assert loader.pixels.shape == (10, 3, 28, 28)
    assert loader.pixels[:, 0].flatten(1).tolist() == [[9 - number] * 784 for number in range(10)]


def test_images_without_a_label_are_ignored(tmp_path: Path) -> None:
    put_published(tmp_path)
    Image.new("RGB", (32, 32)).save(tmp_path / "mnist_m_train" / "extra.png")
    source = open_set("mnist-m", tmp_path)
    (ignored,) = source.notes[:-1]  # behind it stands what was cut off for validation
    assert re.search(r"\b1\b.*mnist_m_train\b.*mnist_m_train_labels\.txt", ignored)
    assert len(source.train) + len(source.validation) == 100


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "train_labels"),
        (b"00000000.png\n", "line 1 .*00000000.png"),
        (b"00000001.png 1\n\n00000000.png x\n", "line 3 .*00000000.png x"),
        (b"00000000.png 10\n", "line 1 is"),
        (b"00000000.png -1\n", "line 1 is"),
        (b"00000000.png 0\n00000000.png 1\n", "line 2 .*00000000.png"),
        (b"00000000.png 0\n00000199.png 1\n00000198.png 1\n", " 2 .*00000199.png"),
        (b"../mnist_m_test/00000000.png 0\n", " 1 .*mnist_m_test"),
        (b"\xff\xfe 0\n", "train_labels"),
    ],
)
def test_odd_label_files(tmp_path: Path, content: bytes, reason: str) -> None:
    put_published(tmp_path)
    (tmp_path / "mnist_m_train_labels.txt").write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        open_set("mnist-m", tmp_path)
    assert "\n" not in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("missing", ["mnist_m_test_labels.txt", "mnist_m_train_labels.txt"])
def test_published_files_that_are_not_complete(tmp_path: Path, missing: str) -> None:
    put_published(tmp_path)
    put_idx(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(DataError, match=missing):
        open_set("mnist-m", tmp_path)


def test_a_run_says_that_its_photographs_have_changed(tmp_path: Path) -> None:
    put_made(tmp_path / "data")
    options = vitrail.TrainOptions(epochs=1, image_size=28, threads=1, data_root=tmp_path / "data")
    run = tmp_path / "run"
    model = vitrail.train("mnist-m", run, options).model
    assert CHANGED not in open_for(model, Run(run), None).notes
    put_photograph(tmp_path / "data" / "photographs" / "train" / "new.png", 77)
    assert CHANGED in open_for(model, Run(run), None).notes
