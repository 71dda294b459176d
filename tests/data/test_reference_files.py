"""Compressed references: nothing of a neighbouring patch, nothing lost twice, at most 300 KB, no trust in a file."""

import importlib.util
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from tests.data.test_references import noise
from tests.errors import must_raise
from tests.photographs import make_photographs
from vitrail.data import reference_files
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.plan import uniforms
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.readers.photographs import PACKAGED_TEST, PACKAGED_TRAIN
from vitrail.data.reference_files import (
    MOST_BYTES,
    MOST_VALUES,
    REFERENCES,
    Compressed,
    References,
    compress,
    decompress,
    most_uncompressed,
    read_references,
    references_file,
    still_of,
)
from vitrail.data.references import draw_references, make_references, open_references
from vitrail.data.tensor_files import read_tensors, with_checksum
from vitrail.errors import DataError

Size = tuple[int, int]


def smooth(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Soft hills with a little noise: what photographs are like, for JPEG."""
    generator = torch.Generator().manual_seed(seed)
    hills = torch.rand(count, channels, 4, 4, generator=generator) * 255
    large = torch.nn.functional.interpolate(hills, (height, width), mode="bicubic", align_corners=False)
    return (large + 4 * torch.randn(large.shape, generator=generator)).round().clamp(0, 255).to(torch.uint8)


def compressed_of(pictures: Tensor, patch: Size) -> Compressed:
    compressed = compress(pictures, patch)
    assert compressed is not None
    return compressed


def through(pictures: Tensor, patch: Size) -> Tensor:
    """Images as they come back."""
    return decompress(compressed_of(pictures, patch), pictures.shape[1], tuple(pictures.shape[2:]))


# patches


def check_no_leak(patch: Size, grid: Size = (3, 4), channels: int = 3) -> None:
    """A patch is stored the same, to the bit, whatever the patches around it hold."""
    height, width = grid[0] * patch[0], grid[1] * patch[1]
    one, other = noise(4, channels, height, width), 255 * (noise(4, channels, height, width, 1) > 127).to(torch.uint8)
    for row in range(grid[0]):
        for column in range(grid[1]):
            place = np.s_[:, :, row * patch[0] : (row + 1) * patch[0], column * patch[1] : (column + 1) * patch[1]]
            other_here = other.clone()
            other_here[place] = one[place]
            assert torch.equal(through(one, patch)[place], through(other_here, patch)[place])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("patch", [(16, 16), (8, 8), (14, 14), (7, 9), (24, 5), (1, 1), (2, 32)])
def test_nothing_of_a_patch_shows_in_another(patch: Size, channels: int) -> None:
    check_no_leak(patch, channels=channels)


def test_a_planted_grid_that_patches_cross_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_files, "BLOCK", 1)
    check_no_leak((16, 16))
    with pytest.raises(AssertionError):
        check_no_leak((14, 14))


def test_planted_coarse_colour_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(sheet: np.ndarray, quality: int) -> bytes:
        content = io.BytesIO()
        Image.fromarray(sheet).save(content, "JPEG", quality=quality, subsampling=2)
        return content.getvalue()

    monkeypatch.setattr(reference_files, "_jpeg", coarse)
    with pytest.raises(AssertionError):
        check_no_leak((8, 8))


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 5),
    channels=st.sampled_from([1, 3]),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_pictures_come_back_at_their_places(count: int, channels: int, grid: Size, patch: Size) -> None:
    """Any patch: where each patch is of one colour, at most a little of it is lost, and nothing is moved."""
    generator = torch.Generator().manual_seed(count)
    colours = torch.randint(0, 256, (count, channels, *grid), generator=generator, dtype=torch.uint8)
    pictures = colours.repeat_interleave(patch[0], 2).repeat_interleave(patch[1], 3)
    back = through(pictures, patch)
    assert back.dtype == torch.uint8
    assert back.shape == pictures.shape
    assert (back.int() - pictures.int()).abs().max() <= 4


def test_each_is_a_plain_jpeg_picture_without_subsampling() -> None:
    for channels, mode in ((1, "L"), (3, "RGB")):
        pictures = smooth(5, channels, 28, 42)
        compressed = compressed_of(pictures, (14, 14))
        for file in compressed.pictures:
            with Image.open(io.BytesIO(file)) as picture:
                assert (picture.format, picture.mode, picture.size) == ("JPEG", mode, (48, 32))
                assert {(h, v) for _, h, v, _ in picture.layer} == {(1, 1)}


# how many, and how good


def sizes(pictures: Tensor, quality: int) -> np.ndarray:
    """Bytes of each picture as JPEG, by Pillow alone."""
    found = []
    for picture in pictures.movedim(1, 3).numpy():
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "JPEG", quality=quality, subsampling="4:4:4")
        found.append(len(content.getvalue()))
    return np.array(found)


def ordered(count: int, side: int, amount: float) -> Tensor:
    """Coloured pictures that hold some noise, so that they take more or less room."""
    grey = torch.full((count, 3, side, side), 128.0)
    generator = torch.Generator().manual_seed(side)
    return (grey + amount * torch.randn(grey.shape, generator=generator)).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize(
    ("side", "amount", "quality"),
    [
        (224, 2, 95),
        (224, 5, 90),
        (224, 8, 85),
        (224, 11, 80),
        (224, 14, 75),
        (224, 20, 75),
        (224, 24, 70),
        (224, 30, 65),
        (224, 35, 60),
        (224, 60, 60),
    ],
)
def test_the_quality_is_as_high_as_lets_sixteen_fit(side: int, amount: float, quality: int) -> None:
    """By the sizes that Pillow gives: 16 at 95 to 80, ten below; and as many as there is room for."""
    pictures = ordered(40, side, amount)
    compressed = compressed_of(pictures, (16, 16))
    room = MOST_BYTES - 2048
    fitting = {tried: int((sizes(pictures, tried).cumsum() <= room).sum()) for tried in range(60, 100, 5)}
    good = [tried for tried, kept in fitting.items() if kept >= (16 if tried > 75 else 10)]
    assert compressed.quality == max(good, default=60) == quality
    assert len(compressed.pictures) == fitting[quality]


def test_few_pictures_are_stored_well() -> None:
    """Where there are fewer than sixteen, all of them are enough."""
    compressed = compressed_of(ordered(3, 224, 30), (16, 16))
    assert len(compressed.pictures) == 3
    assert compressed.quality == 95
    assert compressed_of(ordered(40, 224, 30), (16, 16)).quality < 95


@settings(deadline=None, max_examples=25)
@given(
    channels=st.sampled_from([1, 3]),
    grid=st.tuples(st.integers(2, 6), st.integers(2, 6)),
    patch=st.tuples(st.integers(4, 70), st.integers(4, 70)),
    amount=st.sampled_from([0.0, 3.0, 40.0, 1000.0]),
)
def test_the_file_is_never_above_300_kb(channels: int, grid: Size, patch: Size, amount: float) -> None:
    """And never fewer than fit as they are; to the limit, from blank pictures to noise."""
    size = (grid[0] * patch[0], grid[1] * patch[1])
    values = np.random.default_rng(0).normal(128, amount, (40, *size, 3)[: 3 + (channels == 3)])
    drawn = draw_references(
        ArrayImages(np.clip(values.repeat(2, axis=0), 0, 255).astype(np.uint8)),
        Preprocessing(size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels),
        patch,
        0,
    )
    assert drawn is not None
    assert len(references_file(*drawn)) <= MOST_BYTES == 307_200
    assert len(drawn.pixels) >= min(20, most_uncompressed(channels, size))
    if most_uncompressed(channels, size) >= 20:
        assert drawn.compressed is None, "what fits as it is loses nothing"


def test_many_tiny_pictures_fill_the_file_to_the_brim() -> None:
    compressed = compressed_of(noise(64, 3, 64, 64), (8, 8))
    content = references_file(decompress(compressed, 3, (64, 64)), compressed)
    assert 0.9 * MOST_BYTES < len(content) <= MOST_BYTES


def test_what_cannot_be_compressed() -> None:
    assert compress(noise(1, 3, 1024, 1024), (16, 16)) is None, "not one fits, even at 60"
    assert compress(noise(1, 1, 8, 9000), (8, 1)) is None, "longer than a JPEG picture may be"
    assert compress(noise(1, 3, 512, 512), (1, 1)) is None, "64 times as many values"


def test_raw_ones_are_kept_where_compression_gives_no_more() -> None:
    """Patches of one pixel take a JPEG block each."""
    pictures = ArrayImages(noise(80, 3, 96, 96).movedim(1, 3).numpy())
    drawn = draw_references(pictures, Preprocessing((96, 96)), (1, 1), 0)
    assert drawn is not None
    assert drawn.compressed is None
    assert len(drawn.pixels) == most_uncompressed(3, (96, 96)) == 11


# from pictures


def test_what_is_drawn_is_what_is_stored(tmp_path: Path) -> None:
    """A model has the decoded values from the start: saving and loading it changes nothing."""
    files = make_photographs(tmp_path, ("a", "b"), per_class=40, seed=0)
    shape = Preprocessing((112, 112), "squash")
    drawn = draw_references(FileImages(files), shape, (14, 14), 3)
    assert drawn is not None
    assert drawn.compressed is not None
    assert len(drawn.pixels) == 20
    wanted = make_references(shaped(files, shape, 3), (14, 14), 3)
    assert not torch.equal(drawn.pixels, wanted)
    assert (drawn.pixels.int() - wanted.int()).abs().float().mean() < 2
    (tmp_path / REFERENCES).write_bytes(references_file(*drawn))
    read = read_references(tmp_path / REFERENCES, shape)
    assert torch.equal(read.pixels, drawn.pixels)
    assert read.compressed == drawn.compressed
    assert torch.equal(open_references(tmp_path, shape), shape.normalise(drawn.pixels))
    again = draw_references(FileImages(files), shape, (14, 14), 3, threads=2)
    assert again is not None
    assert again.compressed == drawn.compressed


def shaped(files: list[Path], shape: Preprocessing, seed: int) -> Tensor:
    """All pictures in the order in which they are drawn."""
    order = np.argsort(uniforms(np.arange(len(files)), 1, seed=seed, epoch=0, stream=20)[:, 0], kind="stable")
    return torch.stack([shape.to_uint8(FileImages(files).open(int(number))) for number in order])


def real_photographs(side: int, count: int = 256) -> np.ndarray:
    """Square cuts of real photographs, enlarged only where a photograph is smaller than `side`."""
    missing = [name for name in ("skimage", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the extra photos is not installed: {', '.join(missing)}")
    photographs = []
    for package, name in (*PACKAGED_TRAIN, *PACKAGED_TEST):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        with Image.open(Path(spec.origin).parent / name) as picture:
            photographs.append(picture.convert("RGB"))
    rng, cuts = np.random.default_rng(0), []
    for number in range(count):
        picture = photographs[number % len(photographs)]
        shorter = min(picture.size)
        width = int(rng.integers(min(side, shorter), shorter + 1))
        left, top = (int(rng.integers(0, length - width + 1)) for length in picture.size)
        cut = picture.crop((left, top, left + width, top + width))
        cuts.append(np.asarray(cut.resize((side, side), Image.Resampling.BICUBIC)))
    return np.stack(cuts)


@pytest.mark.parametrize(("side", "least", "quality"), [(224, 16, 80), (256, 16, 80), (384, 10, 60)])
def test_real_photographs(side: int, least: int, quality: int) -> None:
    """Enough for a test of explanations, and near what they were: in grey values of 0..255."""
    pictures = torch.from_numpy(real_photographs(side)).movedim(3, 1)
    made = make_references(pictures, (16, 16), 0)
    compressed = compressed_of(made, (16, 16))
    assert len(compressed.pictures) >= least
    assert compressed.quality >= quality
    lost = decompress(compressed, 3, (side, side)).int() - made[: len(compressed.pictures)].int()
    assert lost.abs().float().mean() < 3.5
    assert lost.float().mean().abs() < 0.2, "neither brighter nor darker"


# nothing is lost twice


def test_what_is_saved_again_has_the_same_bytes(tmp_path: Path) -> None:
    compressed = compressed_of(smooth(20, 3, 224, 224), (16, 16))
    shape, content = Preprocessing((224, 224)), b""
    references = References(decompress(compressed, 3, (224, 224)), compressed)
    for _ in range(3):
        content = references_file(*references)
        assert set(read_named(content, tmp_path)) == {"jpeg", "lengths", "patch", "quality"}
        references = read_references(tmp_path / REFERENCES, shape)
        assert references_file(*references) == content
    assert references.compressed == compressed


def read_named(content: bytes, place: Path) -> dict[str, Tensor]:
    (place / REFERENCES).write_bytes(content)
    return read_tensors(place / REFERENCES, "another file")


def test_compressing_again_would_lose_again() -> None:
    """Why the bytes are kept: the quality alone does not bring them back."""
    first = compressed_of(noise(20, 3, 112, 112), (16, 16))
    second = compressed_of(decompress(first, 3, (112, 112)), (16, 16))
    assert second.quality == first.quality
    assert second.pictures != first.pictures
    assert not torch.equal(decompress(second, 3, (112, 112)), decompress(first, 3, (112, 112)))


def test_references_that_were_replaced_are_stored_as_they_are(tmp_path: Path) -> None:
    compressed = compressed_of(smooth(20, 1, 128, 128), (16, 16))
    pixels = decompress(compressed, 1, (128, 128))
    assert still_of(compressed, pixels) is compressed
    changed = pixels.clone()
    changed[-1, 0, -1, -1] += 1
    broken = replace(compressed, pictures=(*compressed.pictures[:-1], b"no picture"))
    for others in (changed, pixels[:3], pixels[:, :, :64], pixels.expand(-1, 3, -1, -1), 255 - pixels):
        assert still_of(compressed, others) is None
        assert torch.equal(read_named(references_file(others, compressed), tmp_path)["references"], others)
    assert still_of(broken, pixels) is None
    assert still_of(None, pixels) is None


# files of strangers


SIXTEEN = Preprocessing((16, 24), channels=1, mean=(0.5,), std=(0.5,))


def jpeg(size: Size, mode: str = "L", kind: str = "JPEG") -> bytes:
    content = io.BytesIO()
    Image.new(mode, size).save(content, kind)
    return content.getvalue()


def parts(*pictures: bytes) -> dict[str, Tensor]:
    """The tensors of a file with these pictures."""
    return {
        "jpeg": torch.frombuffer(bytearray(b"".join(pictures) or b"."), dtype=torch.uint8),
        "lengths": torch.tensor([len(picture) for picture in pictures], dtype=torch.int64),
        "patch": torch.tensor([8, 8]),
        "quality": torch.tensor([90]),
    }


GOOD = jpeg((24, 16))


def noisy(height: int, width: int) -> bytes:
    return compressed_of(noise(1, 1, height, width), (8, 8)).pictures[0]


def said_to_be(height: int, width: int) -> bytes:
    """A JPEG picture of a few bytes whose header promises that many pixels."""
    start = GOOD.index(b"\xff\xc0") + 5
    return GOOD[:start] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + GOOD[start + 4 :]


def changed(**tensors: Tensor) -> Callable[[], dict[str, Tensor]]:
    return lambda: {**parts(GOOD, GOOD), **tensors}


def without(name: str) -> dict[str, Tensor]:
    tensors = parts(GOOD, GOOD)
    del tensors[name]
    return tensors


def must_refuse(file: Path, shape: Preprocessing, words: str) -> None:
    with must_raise(DataError, words) as caught:
        read_references(file, shape)
    assert caught.value.problem.startswith(str(file))
    assert caught.value.hint.startswith("delete the file")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (lambda: parts(GOOD, noisy(16, 24)[:-80]), "picture 2 cannot be used: image file is truncated"),
        (lambda: parts(GOOD, GOOD[:-20]), "picture 2 cannot be used"),
        (lambda: parts(GOOD, GOOD[:30]), "picture 2 cannot be used"),
        (lambda: parts(b"\xff\xd8\xff", GOOD), "picture 1 cannot be used"),
        (lambda: parts(b"no picture at all"), "picture 1 cannot be used: not a JPEG file"),
        (lambda: parts(GOOD, jpeg((24, 16), kind="PNG")), "picture 2 cannot be used: not a JPEG file"),
        (lambda: parts(jpeg((24, 24))), "24 x 24 pixels of mode L, the model takes 16 x 24 of mode L"),
        (lambda: parts(jpeg((16, 24))), "24 x 16 pixels of mode L"),
        (lambda: parts(jpeg((24, 16), "RGB")), "mode RGB, the model takes 16 x 24 of mode L"),
        (lambda: parts(jpeg((24, 16), "CMYK")), "mode CMYK"),
        (lambda: parts(said_to_be(9600, 9600)), "picture 1 cannot be used: it has 9600 x 9600 pixels"),
        (lambda: parts(said_to_be(65500, 65500)), "picture 1 cannot be used: it has 65500 x 65500 pixels"),
        (lambda: parts(said_to_be(16, 0)), "picture 1 cannot be used"),
        (lambda: parts(jpeg((3000, 3000))), "it has 3000 x 3000 pixels"),
        (lambda: parts(*[GOOD] * 65), "it holds 65 pictures"),
        (lambda: parts(GOOD + bytes(MOST_BYTES)), "more than a model has"),
        (lambda: parts(), "its 0 pictures do not have the 1 bytes"),
        (changed(lengths=torch.tensor([len(GOOD), len(GOOD) + 1])), "do not have the"),
        (changed(lengths=torch.tensor([len(GOOD), len(GOOD) - 1])), "do not have the"),
        (changed(lengths=torch.tensor([2 * len(GOOD) + 1, -1])), "do not have the"),
        (changed(lengths=torch.tensor([2 * len(GOOD), 0])), "do not have the"),
        (changed(lengths=torch.tensor([2**62, 2**62, 2**62, 2**62])), "do not have the"),
        (changed(lengths=torch.tensor([len(GOOD) - 5, len(GOOD) + 5])), "picture 1 cannot be used"),
        (changed(lengths=torch.tensor([[len(GOOD), len(GOOD)]])), "other tensors"),
        (changed(lengths=torch.tensor([1.0])), "other tensors"),
        (changed(jpeg=torch.zeros(8)), "other tensors"),
        (changed(more=torch.zeros(8)), "other tensors"),
        (lambda: without("lengths"), "other tensors"),
        (lambda: without("patch"), "other tensors"),
        (changed(patch=torch.tensor([8])), "does not say the patch"),
        (changed(patch=torch.tensor([0, 8])), "patches of 0 x 8 pixels do not divide"),
        (changed(patch=torch.tensor([-8, 8])), "patches of -8 x 8 pixels do not divide"),
        (changed(patch=torch.tensor([8, 2**62])), "do not divide pictures of 16 x 24"),
        (changed(patch=torch.tensor([5, 8])), "patches of 5 x 8 pixels do not divide pictures of 16 x 24"),
        (changed(patch=torch.tensor([1, 1])), "16 x 24 pixels of mode L, the model takes 128 x 192"),
        (changed(quality=torch.tensor([0])), "the quality"),
        (changed(quality=torch.tensor([90, 90])), "the quality"),
    ],
)
def test_a_hostile_file_is_two_lines(tmp_path: Path, tensors: Callable[[], dict[str, Tensor]], words: str) -> None:
    """With a checksum that is right, since a stranger can compute it."""
    (tmp_path / REFERENCES).write_bytes(with_checksum(tensors()))
    must_refuse(tmp_path / REFERENCES, SIXTEEN, words)


def test_the_file_that_hostile_ones_are_made_of_is_good(tmp_path: Path) -> None:
    (tmp_path / REFERENCES).write_bytes(with_checksum(parts(GOOD, GOOD)))
    assert read_references(tmp_path / REFERENCES, SIXTEEN).pixels.shape == (2, 1, 16, 24)


def test_a_model_of_huge_pictures_does_not_decode_more_than_any_model_has(tmp_path: Path) -> None:
    """Blank JPEG pictures take few bytes: 64 of 6 megapixels would be a gigabyte."""
    (tmp_path / REFERENCES).write_bytes(with_checksum(parts(*[jpeg((2048, 2048), "RGB")] * 2)))
    assert MOST_VALUES == 2048 * 2048 * 3
    must_refuse(tmp_path / REFERENCES, Preprocessing((2048, 2048)), "there are 2 references of 2048 x 2048 pixels")
    must_refuse(tmp_path / REFERENCES, Preprocessing((4096, 4096)), "4096 x 4096 pixels is too large")
    must_refuse(tmp_path / REFERENCES, Preprocessing((65_520, 8)), "65520 x 8 pixels is too large")


def test_damage_is_noticed_by_the_checksum(tmp_path: Path) -> None:
    content = bytearray(with_checksum(parts(GOOD, GOOD)))
    content[-300] ^= 1
    (tmp_path / REFERENCES).write_bytes(content)
    must_refuse(tmp_path / REFERENCES, SIXTEEN, "do not have the checksum")


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_random_damage_under_a_right_checksum_never_crashes(data: st.DataObject, tmp_path_factory) -> None:
    """Bytes changed anywhere in the pictures give other pictures or two lines; nothing else."""
    content = bytearray(data.draw(st.sampled_from([GOOD, noisy(16, 24)])))  # mostly tables, and mostly values
    damage = st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255))
    for place, value in data.draw(st.lists(damage, min_size=1, max_size=5)):
        content[place] = value
    file = tmp_path_factory.mktemp("damage") / REFERENCES
    file.write_bytes(with_checksum(parts(GOOD, bytes(content))))
    try:
        found = read_references(file, SIXTEEN).pixels
    except DataError as error:
        lines = str(error).splitlines()
    else:
        lines = ["good", "good"]
        assert found.shape == (2, 1, 16, 24)
    assert len(lines) == 2
