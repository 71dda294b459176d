"""References: patches at their places, no picture whole, the same ones for the same seed, and never above 300 KB."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from tests.damage import damage
from tests.errors import must_raise
from tests.photographs import make_photographs
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.reference_files import (
    REFERENCES,
    References,
    compress,
    decompress,
    misfit,
    read_references,
    references_file,
)
from vitrail.data.references import (
    about_references,
    draw_references,
    make_references,
    open_references,
    references_of,
    said_of_references,
)
from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.errors import DataError, UsageError

Make = Callable[[Tensor, tuple[int, int], int], Tensor]


def noise(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)


def numbered(count: int, side: int = 8) -> Tensor:
    """Picture i has the value i everywhere, so that a patch says where it comes from."""
    assert count <= 256
    return torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, side, side).contiguous()


def sources(references: Tensor, patch: tuple[int, int]) -> np.ndarray:
    """(r, rows, columns): from which of the numbered pictures each patch comes; each patch must be of one."""
    cut = references[:, 0].unflatten(2, (-1, patch[1])).unflatten(1, (-1, patch[0])).movedim(3, 2).flatten(3).numpy()
    assert (cut == cut[..., :1]).all()
    return cut[..., 0].astype(int)


# what they are made of


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 40),
    channels=st.sampled_from([1, 3]),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_every_patch_is_one_of_the_pictures_at_the_same_place(
    count: int, channels: int, grid: tuple[int, int], patch: tuple[int, int], seed: int
) -> None:
    """Any grid, rectangular patches; and no two references have the same picture's patch at a place."""
    pictures = noise(count, channels, grid[0] * patch[0], grid[1] * patch[1])
    made = make_references(pictures, patch, seed)
    assert made.dtype == torch.uint8
    assert made.is_contiguous()
    kept = 0 if grid[0] * grid[1] < 4 else min(64, count // 4)
    assert made.shape == (kept, *pictures.shape[1:])
    for row in range(grid[0]):
        for column in range(grid[1]):
            place = np.s_[:, :, row * patch[0] : (row + 1) * patch[0], column * patch[1] : (column + 1) * patch[1]]
            there = Counter(one.numpy().tobytes() for one in pictures[place])
            here = Counter(one.numpy().tobytes() for one in made[place])
            assert all(here[one] <= there[one] for one in here), "each picture is used once at most"
    assert torch.equal(made, make_references(pictures.clone(), patch, seed))


def shares(make: Make, count: int = 200, patch: tuple[int, int] = (2, 2), seeds: int = 40) -> np.ndarray:
    """For every pair of neighbouring positions: how often both patches are of the same picture.

    Returns:
        (pairs,), over all references of several seeds; those below each other, then those beside each other.
    """
    found = np.concatenate([sources(make(numbered(count), patch, seed), patch) for seed in range(seeds)])
    below = (found[:, 1:] == found[:, :-1]).mean(0)
    beside = (found[:, :, 1:] == found[:, :, :-1]).mean(0)
    return np.concatenate([below.ravel(), beside.ravel()])


def check_shares(make: Make, count: int = 200) -> None:
    """Neighbours are of the same picture in 1 of `count` cases; within 5 standard deviations for each of 24 pairs."""
    found, chance = shares(make, count), 1 / count
    draws = 40 * min(64, count // 4)
    assert len(found) == 24
    assert np.abs(found - chance).max() <= 5 * np.sqrt(chance * (1 - chance) / draws)
    assert abs(found.mean() - chance) <= 5 * np.sqrt(chance / draws / 24)


@pytest.mark.parametrize("count", [8, 20, 200])
def test_neighbours_are_of_the_same_picture_by_chance_only(count: int) -> None:
    check_shares(make_references, count)


def whole_pictures(pictures: Tensor, patch: tuple[int, int], seed: int) -> Tensor:
    """The fault of one permutation for all positions."""
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
    return pictures[order[: references_of(len(pictures), 1, (8, 8), patch)]]


def row_by_row(pictures: Tensor, patch: tuple[int, int], seed: int) -> Tensor:
    """The fault of one permutation for each row of patches."""
    rows = [
        whole_pictures(pictures, patch, seed * 97 + top)[:, :, top : top + patch[0]] for top in range(0, 8, patch[0])
    ]
    return torch.cat(rows, dim=2)


@pytest.mark.parametrize("fault", [whole_pictures, row_by_row])
def test_planted_permutations_that_are_shared_are_noticed(fault: Make) -> None:
    with pytest.raises(AssertionError):
        check_shares(fault)


def test_no_picture_can_be_put_together_again() -> None:
    """Even who knows the pictures finds a quarter of the patches of each, on average, and no two that belong together.

    16 positions, 64 of 256 pictures each: a picture gives 4 patches on average; all 16 have a chance of 4 ** -16.
    """
    count, patch = 256, (2, 2)
    found = sources(make_references(numbered(count), patch, 7), patch)
    given_away = np.bincount(found.ravel(), minlength=count)
    assert given_away.mean() == 4
    assert given_away.max() <= 11
    within = [np.bincount(one.ravel(), minlength=count).max() for one in found]
    assert max(within) <= 3, "patches of one picture in one reference"


def test_the_original_has_no_near_reference() -> None:
    """Every picture is as far from its nearest reference as a picture that is in none."""
    pictures, others = noise(256, 3, 8, 8), noise(256, 3, 8, 8, seed=1)
    made = make_references(pictures, (2, 2), 0).flatten(1).double()
    nearest, strange = (torch.cdist(each.flatten(1).double(), made).amin(1) for each in (pictures, others))
    assert nearest.min() > 0.6 * strange.min()
    assert torch.cdist(whole_pictures(pictures, (2, 2), 0).flatten(1).double(), pictures.flatten(1).double()).min() == 0


def test_the_seed_decides() -> None:
    pictures = noise(80, 1, 8, 8)
    made = [make_references(pictures, (2, 2), seed) for seed in (0, 1, -5)]
    assert torch.equal(made[0], make_references(pictures, (2, 2), 0))
    assert len({one.numpy().tobytes() for one in made}) == 3
    state = torch.get_rng_state()
    make_references(pictures, (2, 2), 0)
    assert torch.equal(state, torch.get_rng_state()), "no stream of random numbers is moved"


def test_these_bits_stay() -> None:
    """On every machine and with every version: a run that is made again has the same file."""
    found = sources(make_references(numbered(16, 4), (2, 2), 0), (2, 2))
    assert found.tolist() == [[[3, 13], [6, 10]], [[6, 6], [5, 9]], [[7, 15], [4, 14]], [[13, 11], [9, 4]]]


def test_patches_that_do_not_divide_are_refused() -> None:
    with must_raise(UsageError, "8x8 pixels cannot be cut into patches of 3x2"):
        make_references(noise(8, 1, 8, 8), (3, 2), 0)


EIGHT = Preprocessing((8, 8), channels=1, mean=(0.4,), std=(0.5,))

# how many


@pytest.mark.parametrize(
    ("count", "channels", "side", "patch", "kept"),
    [
        (10_000, 1, 28, 7, 64),
        (10_000, 3, 32, 4, 64),
        (10_000, 3, 64, 8, 64),
        (10_000, 3, 224, 16, 64),
        (10_000, 3, 384, 16, 28),  # 12 MB
        (10_000, 3, 512, 16, 16),
        (10_000, 3, 2048, 16, 1),
        (10_000, 3, 2064, 16, 0),
        (255, 1, 8, 2, 63),
        (40, 1, 8, 2, 10),
        (4, 1, 8, 2, 1),
        (3, 1, 8, 2, 0),
        (10_000, 1, 28, 14, 64),
        (10_000, 1, 28, 28, 0),  # the patch is the picture
    ],
)
def test_how_many_are_put_together(count: int, channels: int, side: int, patch: int, kept: int) -> None:
    assert references_of(count, channels, (side, side), (patch, patch)) == kept


def test_what_is_said_of_them() -> None:
    for count, what in ((1, "1 reference, shuffled"), (9, "9 references, shuffled"), (10, "10 references, shuffled")):
        drawn = References(torch.zeros(count, 1, 8, 8, dtype=torch.uint8))
        said = said_of_references(drawn, EIGHT, (2, 2), 100)
        assert said.startswith(what)
        assert "JPEG" not in said
        assert "--no-background" in said
        assert ("so few say little" in said) == (count < 10)
        drawn = drawn._replace(compressed=compress(drawn.pixels, (2, 2)))
        said = said_of_references(drawn, EIGHT, (2, 2), 100)
        assert "training pictures (stored as JPEG of quality 95), will travel" in said
    large = said_of_references(None, Preprocessing((384, 384)), (16, 16), 100)
    assert "384 x 384 pixels has more than 300 KB, even as JPEG of quality 60" in large
    assert "from 4 training pictures or more" in said_of_references(None, Preprocessing((384, 384)), (16, 16), 3)
    assert "in patches of 8 x 4" in said_of_references(None, EIGHT, (8, 4), 100)
    assert "from 4 training pictures or more" in said_of_references(None, EIGHT, (2, 2), 3)


def test_what_a_card_says() -> None:
    for count, what in ((1, "holds a picture"), (9, "holds 9 pictures")):
        text = about_references(torch.zeros(count, 1, 8, 8, dtype=torch.uint8))
        assert what in text
        assert "--no-background" in text
        assert text.count(".") == 2, "one sentence, and the point in the file's name"
        assert "JPEG" not in text


def test_a_card_says_what_is_lost() -> None:
    compressed = compress(noise(6, 1, 8, 8), (4, 4))
    assert compressed is not None
    pixels = decompress(compressed, 1, (8, 8))
    text = about_references(pixels, compressed)
    assert "holds 6 pictures (as JPEG of quality 95, with a small loss) put together" in text
    assert text.count(".") == 2
    assert "JPEG" not in about_references(255 - pixels, compressed), "others are stored as they are"


# from the training pictures


def drawn_pixels(drawn: References | None) -> Tensor:
    assert drawn is not None
    assert drawn.compressed is None
    return drawn.pixels


def test_they_are_drawn_from_all_pictures_by_the_seed() -> None:
    pictures = ArrayImages(noise(1000, 1, 8, 8)[:, 0].numpy())
    made = drawn_pixels(draw_references(pictures, EIGHT, (2, 2), 5))
    assert made.shape == (64, 1, 8, 8)
    assert torch.equal(made, drawn_pixels(draw_references(pictures, EIGHT, (2, 2), 5, threads=3)))
    assert not torch.equal(made, drawn_pixels(draw_references(pictures, EIGHT, (2, 2), 6)))
    corners = {one.tobytes(): number for number, one in enumerate(pictures.pixels[:, :2, :4])}
    patches = {one.tobytes(): number for number, one in enumerate(pictures.pixels[:, :2, :2])}
    drawn = [patches[one.numpy().tobytes()] for one in made[:, 0, :2, :2]]
    assert len(set(drawn)) == 64
    assert max(drawn) > 800
    assert min(drawn) < 200
    assert not {one.numpy().tobytes() for one in made[:, 0, :2, :4]} & corners.keys()


def test_they_go_through_the_models_own_preprocessing(tmp_path: Path) -> None:
    """Files of other sizes and modes: each patch is that of a picture as the model sees it, cut at the middle."""
    make_photographs(tmp_path, ("a", "b"), per_class=12, seed=0)
    files = sorted(tmp_path.rglob("*.*"))
    shape = Preprocessing((32, 48), "crop", 0.8)
    made = drawn_pixels(draw_references(FileImages(files), shape, (8, 16), 0))
    assert made.shape == (6, 3, 32, 48)
    seen = torch.stack([shape.to_uint8(FileImages(files).open(number)) for number in range(len(files))])
    for row in range(0, 32, 8):
        for column in range(0, 48, 16):
            place = np.s_[:, :, row : row + 8, column : column + 16]
            there = {one.numpy().tobytes() for one in seen[place]}
            assert all(one.numpy().tobytes() in there for one in made[place])


def test_pictures_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    make_photographs(tmp_path, ("a", "b"), per_class=12, seed=0)
    files = sorted(tmp_path.rglob("*.*"))
    for file in files[::2]:
        file.write_bytes(b"")
    made = drawn_pixels(draw_references(FileImages(files), Preprocessing((8, 8)), (2, 2), 0))
    assert len(made) == 3
    assert (made.flatten(1).float().std(1) > 0).all(), "no black ones for those that are missing"
    for file in files:
        file.write_bytes(b"")
    assert draw_references(FileImages(files), Preprocessing((8, 8)), (2, 2), 0) is None


def test_none_where_none_can_be_kept() -> None:
    few = ArrayImages(noise(3, 1, 8, 8)[:, 0].numpy())
    assert draw_references(few, EIGHT, (2, 2), 0) is None
    many = ArrayImages(noise(30, 1, 8, 8)[:, 0].numpy())
    assert draw_references(many, EIGHT, (8, 8), 0) is None
    assert draw_references(many, Preprocessing((2064, 2064)), (16, 16), 0) is None


# files


def saved(place: Path, references: Tensor | None = None) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    references = noise(5, 1, 8, 8) if references is None else references
    (place / REFERENCES).write_bytes(with_checksum({"references": references}))
    return place / REFERENCES


def test_a_file_gives_its_bits_back(tmp_path: Path) -> None:
    read = read_references(saved(tmp_path), EIGHT)
    assert torch.equal(read.pixels, noise(5, 1, 8, 8))
    assert read.compressed is None


def test_a_file_of_before_there_was_compression_is_read(tmp_path: Path) -> None:
    """And what is stored as it is has the same bytes as then."""
    (tmp_path / REFERENCES).write_bytes(with_checksum({"references": noise(5, 1, 8, 8)}))
    assert torch.equal(read_references(tmp_path / REFERENCES, EIGHT).pixels, noise(5, 1, 8, 8))
    assert (tmp_path / REFERENCES).read_bytes() == references_file(noise(5, 1, 8, 8))


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "flipped", "folder"])
def test_a_damaged_file_is_refused(tmp_path: Path, how: str) -> None:
    file = saved(tmp_path)
    damage(file, how)
    words = {"missing": "is missing", "flipped": "do not have the checksum"}.get(how, "is damaged")
    with must_raise(DataError, words):
        read_references(file, EIGHT)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (noise(5, 1, 8, 12), "5 x 1 x 8 x 12 of uint8, the model takes r x 1 x 8 x 8 of uint8"),
        (noise(5, 3, 8, 8), "5 x 3 x 8 x 8 of uint8"),
        (noise(5, 1, 8, 8).float(), "5 x 1 x 8 x 8 of float32"),
        (noise(5, 1, 8, 8)[0], "references are 1 x 8 x 8"),
        (noise(5, 1, 8, 8)[:0], "there is not one reference"),
    ],
)
def test_references_of_another_size_are_refused(tmp_path: Path, tensor: Tensor, words: str) -> None:
    with must_raise(DataError, words):
        read_references(saved(tmp_path, tensor), EIGHT)
    assert misfit(tensor, EIGHT)


def test_another_file_of_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(with_checksum({"weight": torch.zeros(2), "bias": torch.zeros(2)}))
    with must_raise(DataError, "holds bias, weight, not references"):
        read_references(tmp_path / "x.safetensors", EIGHT)
    (tmp_path / "x.safetensors").write_bytes(with_checksum({"one\ntwo": torch.zeros(2)}))
    with must_raise(DataError, "holds one two, not references"):
        read_references(tmp_path / "x.safetensors", EIGHT)


def test_a_file_of_another_program_needs_no_checksum(tmp_path: Path) -> None:
    content = with_checksum({"references": noise(2, 1, 8, 8)}).replace(b"sha256", b"sha-26")
    (tmp_path / REFERENCES).write_bytes(content)
    assert len(read_tensors(tmp_path / REFERENCES, "another file")["references"]) == 2


# a person's own


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    make_photographs(tmp_path / "photos", ("a", "b"), per_class=5, seed=0)
    return tmp_path / "photos"


def test_a_folder_of_pictures(photographs: Path) -> None:
    shape = Preprocessing((16, 24))
    notes: list[str] = []
    files = sorted(photographs.rglob("*.*"))
    wanted = torch.stack([shape(file) for file in files])
    assert torch.equal(open_references(photographs, shape, notes.append), wanted)
    assert torch.equal(open_references(files[0], shape), wanted[:1])
    assert notes == []


def test_64_evenly_spread(tmp_path: Path) -> None:
    for number in range(130):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number:03d}.png")
    values = EIGHT.denormalise(open_references(tmp_path, EIGHT))[:, 0, 0, 0].tolist()
    assert len(values) == 64
    assert values == sorted(values)
    assert (values[0], values[-1]) == (0, 127)
    assert set(np.diff(values)) == {2, 3}


def test_pictures_that_cannot_be_read_are_named(photographs: Path) -> None:
    files, notes = sorted(photographs.rglob("*.*")), []
    files[2].write_bytes(b"")
    assert len(open_references(photographs, Preprocessing((16, 24)), notes.append)) == 9
    assert len(notes) == 1
    assert notes[0].startswith("left out: ")
    assert str(files[2]) in notes[0]
    for file in files:
        file.write_text("no picture")
    with must_raise(DataError, r"no reference can be read: .*and 9 more that cannot be read"):
        open_references(photographs, EIGHT)
    with must_raise(DataError, "no reference can be read"):
        open_references(files[0], EIGHT)


def test_small_pictures_are_enlarged_and_said(tmp_path: Path) -> None:
    for number, size in enumerate([(1, 1), (1, 400), (7, 8), (8, 8), (3000, 2)]):
        Image.new("RGB", size, (number, 0, 0)).save(tmp_path / f"{number}.png")
    for rule in ("crop", "squash", "pad"):
        notes: list[str] = []
        found = open_references(
            tmp_path, Preprocessing((8, 8), rule, channels=1, mean=(0.0,), std=(1.0,)), notes.append
        )
        assert found.shape == (5, 1, 8, 8)
        assert notes == ["4 of 5 reference pictures are smaller than 8 x 8 pixels: they are enlarged"]


def test_places_without_pictures(tmp_path: Path) -> None:
    with must_raise(DataError, "there is no folder .*gone"):
        open_references(tmp_path / "gone", EIGHT)
    with must_raise(DataError, "has no reference picture"):
        open_references(tmp_path, EIGHT)
    (tmp_path / "notes.txt").write_text("no picture")
    with must_raise(DataError, "has no reference picture"):
        open_references(tmp_path, EIGHT)
    with must_raise(DataError, "no reference can be read"):
        open_references(tmp_path / "notes.txt", EIGHT)


def test_the_references_of_another_model(tmp_path: Path) -> None:
    file = saved(tmp_path / "run" / "model")
    Image.new("L", (8, 8)).save(tmp_path / "run" / "drawn.png")
    wanted = EIGHT.normalise(noise(5, 1, 8, 8))
    for place in (file, file.parent, file.parent.parent):
        assert torch.equal(open_references(place, EIGHT), wanted)
        with must_raise(DataError, "the model takes r x 3 x 8 x 8"):
            open_references(place, Preprocessing((8, 8)))
