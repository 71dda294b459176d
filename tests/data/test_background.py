"""What a model keeps of its training images: patches of many, each where it stood, in one small file; nothing else."""

import contextlib
import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch import Tensor

from vitrail.data import background
from vitrail.data.background import (
    BACKGROUND,
    MOST,
    background_bytes,
    card_text,
    draw_background,
    from_jpeg,
    make_background,
    open_background,
    read_background,
    settle,
    to_jpeg,
)
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sets.mnist_m import packaged_photographs
from vitrail.data.tensor_files import tensors_to_bytes
from vitrail.errors import DataError, UsageError

ONE_MB = 2**20


def photographs(count: int, side: int) -> Tensor:
    """(n, 3, side, side): cut-outs of real photographs."""
    found, rng = packaged_photographs(), np.random.default_rng(0)
    cut = []
    for number in range(count):
        pixels = (*found.train, *found.test)[number % 7]
        image = Image.fromarray(pixels)
        scale = max(1.0, side / min(image.size))
        image = image.resize((round(image.width * scale) + 1, round(image.height * scale) + 1))
        left, top = (int(rng.integers(0, length - side + 1)) for length in image.size)
        cut.append(np.asarray(image.crop((left, top, left + side, top + side))))
    return torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2).contiguous()


def patches_of(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(n, gh, gw, c, h, w)"""
    return images.unfold(2, patch[0], patch[0]).unfold(3, patch[1], patch[1]).permute(0, 2, 3, 1, 4, 5)


def written(pixels: Tensor, patch: tuple[int, int], folder: Path) -> Path:
    file = folder / BACKGROUND
    file.write_bytes(background_bytes(pixels, patch))
    return file


def like(pixels: Tensor) -> Preprocessing:
    channels = pixels.shape[1]
    size = (pixels.shape[2], pixels.shape[3])
    return Preprocessing(size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)


# Where patches come from


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(0, 40),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    patch=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 2**40),
)
def test_every_patch_is_one_of_the_images_at_its_own_position(count, grid, patch, seed) -> None:
    """A permutation for each position: no image gives one position twice, and each value names its image and place."""
    places = torch.arange(grid[0] * grid[1]).reshape(grid).repeat_interleave(patch[0], 0).repeat_interleave(patch[1], 1)
    images = torch.stack([torch.full_like(places, number) for number in range(count)] or [places[:0]])[:, None]
    images = (
        torch.cat([images, places.expand_as(images)], dim=1).to(torch.uint8)
        if count
        else torch.zeros(0, 2, *places.shape, dtype=torch.uint8)
    )
    made = make_background(images, patch, seed)
    assert len(made) == (0 if grid[0] * grid[1] < 4 else count // 4)
    for row in made:
        assert torch.equal(row[1], places.to(torch.uint8)), "a patch has moved"
    cut = patches_of(made, patch)[:, :, :, 0].flatten(3)
    assert bool((cut == cut[..., :1]).all()), "a patch of two images"
    for position in cut[..., 0].flatten(1).T:
        assert len(set(position.tolist())) == len(position)
    assert torch.equal(made, make_background(images, patch, seed))


def test_patches_belong_together_by_chance_only() -> None:
    """Of 64 made from 256 images, about one pair of patches in 256 is of one image; another seed gives others."""
    images = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8).contiguous()
    made = make_background(images, (2, 2), 0)
    assert made.shape == (MOST, 1, 8, 8)
    sources = made[:, 0, ::2, ::2].flatten(1).int()
    same = (sources[:, :, None] == sources[:, None]).float().mean() - 1 / 16
    assert float(same) < 0.02
    assert len(set(sources.flatten().tolist())) > 200, "nearly every image gives a little"
    assert int(torch.bincount(sources.flatten()).max()) <= 12, "4 of the 16 patches of an image, on average"
    assert not torch.equal(made, make_background(images, (2, 2), 1))


def test_patches_that_do_not_divide_the_images_are_refused() -> None:
    with pytest.raises(UsageError, match=r"8x8.*3x3"):
        make_background(torch.zeros(8, 1, 8, 8, dtype=torch.uint8), (3, 3), 0)


def test_images_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    for number in range(40):
        Image.fromarray(np.full((8, 8), 100 + number, np.uint8)).save(tmp_path / f"{number:02}.png")
    for number in range(0, 40, 8):
        (tmp_path / f"{number:02}.png").write_bytes(b"")
    shape = Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,))
    drawn, _ = draw_background(FileImages(sorted(tmp_path.iterdir())), shape, (4, 4), seed=0)
    assert drawn is not None
    assert len(drawn) == 8
    assert int(drawn.min()) > 100


@pytest.mark.parametrize(("count", "patch"), [(3, (4, 4)), (400, (8, 4)), (400, (8, 8))])
def test_where_there_is_none_it_is_said_why(count: int, patch: tuple[int, int]) -> None:
    images = ArrayImages(np.zeros((count, 8, 8), np.uint8))
    shape = Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,))
    drawn, note = draw_background(images, shape, patch, seed=0)
    assert drawn is None
    assert note


# The file


@pytest.mark.parametrize(
    ("side", "patch", "least"),
    [
        *((28, 7, 64), (96, 16, 37)),
        *(pytest.param(*rest, marks=pytest.mark.soak) for rest in ((64, 8, 64), (224, 16, 40), (384, 16, 10))),
    ],
)
def test_photographs_fit_in_one_megabyte_and_come_back_to_the_bit(
    side: int, patch: int, least: int, tmp_path: Path
) -> None:
    """Whatever the size: what is settled is what is stored, and what is saved again is the same bytes."""
    made = make_background(photographs(256 if side < 100 else 4 * (least + 4), side), (patch, patch), seed=0)
    kept = settle(made, (patch, patch))
    assert len(kept) >= least
    file = written(kept, (patch, patch), tmp_path)
    assert file.stat().st_size <= ONE_MB
    again = read_background(file, like(kept))
    assert torch.equal(again, kept)
    assert background_bytes(again, (patch, patch)) == file.read_bytes()
    assert torch.equal(settle(kept, (patch, patch)), kept)
    loss = (kept.float() - made[: len(kept)].float()).abs().mean()
    assert float(loss) == 0 if kept.numel() < ONE_MB - 4096 else float(loss) < 5


@pytest.mark.parametrize("patch", [(16, 16), (14, 14), (32, 8)])
def test_nothing_of_a_patch_shows_in_another(patch: tuple[int, int]) -> None:
    """Black patches beside noise stay black to the bit, as they are alone, and noise is what it is alone."""
    size = (224, 224) if patch != (14, 14) else (210, 210)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (16, 3, *size), generator=generator, dtype=torch.uint8)
    rows, columns = torch.arange(size[0]) // patch[0], torch.arange(size[1]) // patch[1]
    black = ((rows[:, None] + columns) % 2 == 0).expand_as(noise)
    mixed = torch.where(black, torch.zeros_like(noise), noise)
    alone = torch.stack([from_jpeg(to_jpeg(image, patch), patch, 3, size) for image in noise])
    together = torch.stack([from_jpeg(to_jpeg(image, patch), patch, 3, size) for image in mixed])
    assert not together[black].any()
    assert torch.equal(together[~black], alone[~black])


def test_the_planted_fault_is_seen_where_patches_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BLOCK", 1)
    with pytest.raises(AssertionError):
        test_nothing_of_a_patch_shows_in_another((14, 14))


def test_noise_settles_too(tmp_path: Path) -> None:
    """The hardest to compress: fewer fit, and these come back."""
    noise = torch.randint(0, 256, (12, 3, 224, 224), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    kept = settle(noise, (16, 16))
    assert 6 <= len(kept) <= 12
    assert torch.equal(read_background(written(kept, (16, 16), tmp_path), like(kept)), kept)


def test_a_background_of_one_s_own_is_stored_as_it_is_where_it_fits(tmp_path: Path) -> None:
    own = torch.randint(0, 256, (5, 1, 12, 18), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    assert torch.equal(read_background(written(own, (12, 18), tmp_path), like(own)), own)
    many = own.repeat(20, 1, 1, 1)
    assert len(read_background(written(many, (12, 18), tmp_path), like(own))) == MOST


def jpeg(pixels: Tensor, **options: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(content, "JPEG", **options)
    return content.getvalue()


def packed(files: list[bytes], patch: tuple[int, ...] = (16, 16), **more: Tensor) -> dict[str, Tensor]:
    return {
        "jpeg": torch.frombuffer(bytearray(b"".join(files) or b"x"), dtype=torch.uint8),
        "lengths": torch.tensor([len(file) for file in files], dtype=torch.int64),
        "patch": torch.tensor(patch, dtype=torch.int64),
        **more,
    }


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    images = photographs(2, 32)
    shape, good = like(images), [jpeg(image, quality=85, subsampling=0) for image in images]
    wide = jpeg(photographs(1, 64)[0], quality=85)
    cases: list[dict[str, Tensor]] = [
        packed([good[0], good[1][:100]]),
        packed([good[0], wide]),
        packed([good[0]] * 65),
        packed(good, (5, 16)),
        packed(good, (0, 16)),
        packed(good, (16,)),
        packed(good, (1, 1)),
        packed([]),
        packed(good, quality=torch.zeros(1)),
        {**packed(good), "lengths": torch.tensor([1, 2])},
        {**packed(good), "lengths": torch.tensor([-1, len(b"".join(good)) + 1])},
        {"background": images.float()},
        {"background": images[:, :1].contiguous()},
        {"background": images[:0]},
        {"something": images},
        packed([np.random.default_rng(0).bytes(2**20)]),
    ]
    file = tmp_path / BACKGROUND
    for tensors in cases:
        file.write_bytes(tensors_to_bytes(tensors))
        with pytest.raises(DataError, match=BACKGROUND) as caught:
            read_background(file, shape)
        assert len(str(caught.value).splitlines()) == 2
    whole = background_bytes(images, (16, 16))
    for content in (b"", whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        file.write_bytes(content)
        with pytest.raises(DataError):
            read_background(file, shape)


def test_random_damage_under_a_right_checksum_never_crashes(tmp_path: Path) -> None:
    images, draw = photographs(2, 32), random.Random(0)
    shape, good = like(images), [jpeg(image, quality=85, subsampling=0) for image in images]
    read = 0
    for _ in range(150):
        first = bytearray(good[0])
        for _ in range(draw.randint(1, 6)):
            first[draw.randrange(len(first))] = draw.randrange(256)
        (tmp_path / BACKGROUND).write_bytes(tensors_to_bytes(packed([bytes(first), good[1]])))
        with contextlib.suppress(DataError):
            read += len(read_background(tmp_path / BACKGROUND, shape)) == 2
    assert 0 < read < 150


# A person's own


def test_a_folder_of_images_and_a_single_one(tmp_path: Path) -> None:
    for number in range(130):
        Image.fromarray(np.full((9, 7, 3), number, np.uint8)).save(tmp_path / f"{number:03}.png")
    shape, notes = Preprocessing((8, 6)), []
    assert len(open_background(tmp_path, shape, notes.append)) == MOST
    assert notes == []
    (tmp_path / "000.png").write_bytes(b"")
    assert len(open_background(tmp_path, shape, notes.append)) == MOST - 1
    assert "000.png" in notes[0]
    assert open_background(tmp_path / "001.png", Preprocessing((16, 16)), notes.append).shape == (1, 3, 16, 16)
    assert "16 x 16" in notes[-1]
    with pytest.raises(DataError, match=r"000\.png"):
        open_background(tmp_path / "000.png", shape)
    with pytest.raises(DataError, match="nowhere"):
        open_background(tmp_path / "nowhere", shape)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        open_background(tmp_path / "empty", shape)


@pytest.mark.parametrize("below", ["", "model"])
def test_that_of_another_model(below: str, tmp_path: Path) -> None:
    images = photographs(4, 32)
    (tmp_path / below).mkdir(exist_ok=True)
    file, shape = written(images, (16, 16), tmp_path / below), like(images)
    for place in (tmp_path, file):
        assert torch.equal(open_background(place, shape), shape.normalise(images))
    with pytest.raises(DataError):
        open_background(tmp_path, Preprocessing((16, 16)))


def test_words_count_the_images() -> None:
    shape = Preprocessing((8, 8), channels=1, mean=(0.5,), std=(0.5,))
    small, of_small = draw_background(ArrayImages(np.zeros((4, 8, 8), np.uint8)), shape, (4, 4), seed=0)
    colour = ArrayImages(np.zeros((80, 224, 224, 3), np.uint8))
    large, of_large = draw_background(colour, Preprocessing((224, 224)), (16, 16), seed=0)
    assert small is not None
    assert large is not None
    assert "1 image (" in of_small
    assert "JPEG" in of_large
    assert "JPEG" in card_text(large)
    assert "JPEG" not in card_text(small)
    assert all("--no-background" in each for each in (card_text(small), of_small, of_large))


def test_a_file_of_other_tensors_is_refused_in_a_few_words(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(tensors_to_bytes({f"blocks.{number}.weight": torch.zeros(2) for number in range(100)}))
    with pytest.raises(DataError, match=r"blocks\.0\.weight") as caught:
        open_background(file, Preprocessing((8, 8)))
    assert len(caught.value.problem.removeprefix(str(file))) < 150
