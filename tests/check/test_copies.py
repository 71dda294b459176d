"""Copies: planted ones are found, strangers are not, and where strangers are as near as copies nobody guesses."""

import collections
from pathlib import Path

import numpy as np
import pytest

from tests.check.planted import PLANTED, plant, plant_crop
from tests.photographs import make_photographs
from tests.real import real_data
from vitrail.check import copies as copies_module
from vitrail.check.copies import (
    KINDS,
    Copies,
    chains_of,
    disagreeing,
    find_copies,
    near_pairs,
)
from vitrail.check.survey import Survey, survey
from vitrail.data import pictures
from vitrail.data.columns import ALL, RawDataset, Samples
from vitrail.data.dataset import label_inputs
from vitrail.data.images import ArrayImages, FileImages
from vitrail.data.pictures import ALIKE, ALIKE_FIRST, differing_bits, picture_hashes, random_spread
from vitrail.data.sources import read

LISTED = Path(__file__).with_name("flowers128_copies.txt")
RNG = np.random.default_rng(0)


def looked_at(files: list[Path], root: Path, workers: int | None = 0) -> Survey:
    return survey(RawDataset(str(root), {ALL: Samples(FileImages(files, root), {})}), workers=workers, cache=False)


def named_pairs(found: Copies, of: Survey) -> dict[tuple[str, str], str]:
    """The kind of each pair, by the names of both, sorted."""
    names = [tuple(sorted(of.names[row] for row in pair)) for pair in found.pairs]
    return {(one, other): KINDS[kind] for (one, other), kind in zip(names, found.kinds, strict=True)}


def test_planted_copies_are_found_and_nothing_else(tmp_path: Path) -> None:
    originals = make_photographs(tmp_path / "train", ("a", "b", "c"), per_class=12, seed=0)
    planted = {file: plant(file, tmp_path / "val") for file in originals[::4]}
    files = [*originals, *(copy for each in planted.values() for copy in each.values())]
    of = looked_at(files, tmp_path)
    found = find_copies(of)
    family = {str(file.relative_to(tmp_path)): file.name for file in originals}
    family |= {str(copy.relative_to(tmp_path)): file.name for file, each in planted.items() for copy in each.values()}
    assert {frozenset(of.names[row] for row in rows) for rows in found.groups()} == {
        frozenset(name for name, of_whom in family.items() if of_whom == file.name) for file in planted
    }
    assert found.by_picture
    assert sum(kind == "exact" for kind in named_pairs(found, of).values()) == len(planted)
    for pair, kind in named_pairs(found, of).items():
        assert (kind == "mirrored") == (sum("mirrored" in name for name in pair) == 1)
    labels = [name.split("/")[-1] if name.startswith("train/a") else "same" for name in of.names]
    wrong = disagreeing(found.groups(), labels)
    assert {of.names[rows[0]].split("/")[1] for rows in wrong} == {"a"}
    assert len(wrong) == 3


def test_a_mirror_turns_half_of_the_bits_and_no_other() -> None:
    grey = RNG.integers(0, 256, (50, 32, 32), dtype=np.uint8)
    hashes = picture_hashes(np.concatenate([grey, grey[:, :, ::-1]]))
    pairs = np.stack([np.arange(50), np.arange(50) + 50], 1)
    plain, turned = differing_bits(hashes, pairs)
    assert (turned == 0).all()
    assert (plain == 128).all()
    assert (hashes[:50, 0] == hashes[50:, 0]).all()
    first, second = RNG.integers(0, 50, (2, 200))
    apart = np.array(
        [bin(int(a) ^ int(b)).count("1") for a, b in zip(hashes[first, 1], hashes[second, 1], strict=True)]
    )
    rest = [0, 2, 3]
    for word in rest:
        apart += [
            bin(int(a) ^ int(b)).count("1") for a, b in zip(hashes[first, word], hashes[second, word], strict=True)
        ]
    assert (differing_bits(hashes, np.stack([first, second], 1))[0] == apart).all()


def test_hashes_are_of_the_cosine_transform() -> None:
    from scipy.fft import dctn

    grey = RNG.integers(0, 256, (20, 32, 32), dtype=np.uint8)
    waves = dctn(grey.astype(float), axes=(1, 2))[:, :16, :16].reshape(20, -1)[:, 1:]
    ones = np.bitwise_count(picture_hashes(grey)).sum(axis=1)
    assert (np.abs(ones.astype(int) - (waves > 0).sum(axis=1)) <= 1).all()


def test_all_pairs_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copies_module, pictures):
        monkeypatch.setattr(module, "TILE", (7, 33))
    waves = RNG.normal(size=(80, 32, 32))
    grey = RNG.integers(0, 256, (80, 32, 32))
    for row in range(0, 80, 3):  # of a few kinds, changed a little more each time
        grey[row] = np.clip(grey[row % 9] + row * waves[row], 0, 255)
    grey[1::6] = grey[0:80:6, :, ::-1]
    grey = grey.astype(np.uint8)
    hashes = picture_hashes(grey)
    found = near_pairs(grey, hashes)
    wanted = {}
    for one in range(80):
        for other in range(one + 1, 80):
            own, second = grey[one].astype(float), grey[other].astype(float)
            bits = differing_bits(hashes, np.array([[one, other]]))[:, 0]
            second = second[:, ::-1] if bits[1] < bits[0] else second
            cosine = np.corrcoef(own.ravel(), second.ravel())[0, 1]
            low = bin(int(hashes[one, 0]) ^ int(hashes[other, 0])).count("1")
            if bits.min() <= ALIKE and cosine >= copies_module.COSINE and low <= ALIKE_FIRST:
                wanted[one, other] = (bits.min(), bits[1] < bits[0])
    assert 20 < len(wanted) < 800
    assert (
        dict(zip(map(tuple, found.pairs.tolist()), zip(found.differing, found.mirrored, strict=True), strict=True))
        == wanted
    )
    monkeypatch.setattr(copies_module, "MOST", 2)
    few = near_pairs(grey, hashes)
    assert max(collections.Counter(few.pairs[:, 0].tolist()).values()) == 2
    assert {tuple(pair) for pair in few.pairs.tolist()} < set(wanted)
    kept = {(one, bits) for one, bits in zip(few.pairs[:, 0].tolist(), few.differing.tolist(), strict=True)}
    assert all(
        min(bits for (a, _), (bits, _) in wanted.items() if a == one) in {b for a, b in kept if a == one}
        for one, _ in kept
    )


def test_chains_are_those_of_a_walk() -> None:
    pairs = RNG.integers(0, 300, (170, 2))
    pairs = np.concatenate([pairs, np.stack([np.arange(300, 399), np.arange(301, 400)], 1)[::-1]])
    beside = collections.defaultdict[int, set[int]](set)
    for one, other in pairs.tolist():
        beside[one].add(other)
        beside[other].add(one)
    chains = chains_of(401, pairs)
    for row in range(401):
        seen, waiting = {row}, [row]
        while waiting:
            new = beside[waiting.pop()] - seen
            seen |= new
            waiting += new
        assert chains[row] == min(seen)
    assert (chains_of(3, pairs[:0]) == np.arange(3)).all()


def test_of_digits_only_exact_copies_are_named() -> None:
    pixels = read("digits").splits["train"].images.pixels
    pixels = np.concatenate([pixels[:300], pixels[5:8]])
    samples = label_inputs(ArrayImages(pixels), np.zeros(len(pixels), np.int64), ("a",))
    of = survey(RawDataset("digits", {ALL: samples}), workers=0, cache=False)
    found = find_copies(of)
    assert not found.by_picture
    assert found.pairs.tolist() == [[5, 300], [6, 301], [7, 302]]
    assert found.groups() == found.pairs.tolist()
    guessed = find_copies(of, near=True)
    assert (guessed.kinds > 0).sum() > 200  # strangers, and why nobody guesses


def test_what_shows_nothing_is_no_copy() -> None:
    pixels = np.full((30, 20, 20), 7, np.uint8)
    pixels[np.arange(30), np.arange(30) // 2, 0] = 11 + np.arange(30) % 2
    samples = label_inputs(ArrayImages(pixels), np.zeros(30, np.int64), ("a",))
    found = find_copies(survey(RawDataset("flat", {ALL: samples}), workers=0, cache=False))
    assert len(found.pairs) == 0
    empty = label_inputs(ArrayImages(pixels[:0]), np.zeros(0, np.int64), ("a",))
    assert len(find_copies(survey(RawDataset("none", {ALL: empty}), workers=0, cache=False)).pairs) == 0


def listed() -> dict[tuple[str, str], str]:
    lines = (line.split() for line in LISTED.read_text().splitlines())
    return {(one, other): kind for one, other, kind in lines}


def test_the_copies_of_flowers128_are_found_among_others() -> None:
    root = real_data() / "flowers128"
    known = listed()
    inside = {name for pair in known for name in pair}
    others = [file for file in sorted(root.glob("*/*.jpg")) if str(file.relative_to(root)) not in inside][::40]
    of = looked_at([*(root / name for name in sorted(inside)), *others], root)
    found = find_copies(of)
    assert 7.5 < random_spread(picture_hashes(of.rows["grey"]))[1] < 9
    assert named_pairs(found, of) == known
    labels = [name.split("/")[0] for name in of.names]
    assert {frozenset(labels[row] for row in rows) for rows in disagreeing(found.groups(), labels)} == {
        frozenset(("rose", "tulip"))
    }
    assert len(disagreeing(found.groups(), labels)) == 4


def test_parts_are_found_where_they_are_looked_for(tmp_path: Path) -> None:
    root, draw = real_data() / "photos", np.random.default_rng(3)
    originals = sorted((root / "imagenet100").glob("*.jpg"))
    made = [plant_crop(file, tmp_path, draw, same_aspect=number % 2 == 0) for number, file in enumerate(originals[:40])]
    of = looked_at([*originals, *made], root)
    found = find_copies(of, crops=True)
    pairs = {tuple(pair) for pair, kind in zip(found.pairs.tolist(), found.kinds, strict=True) if KINDS[kind] == "part"}
    wanted = {(number, len(originals) + number) for number in range(len(made))}
    assert len(wanted & pairs) >= 36
    assert pairs <= wanted
    assert {KINDS[kind] for kind in find_copies(of).kinds} <= {"near"}


@pytest.mark.soak
def test_planted_copies_are_found_among_all_photographs(tmp_path: Path) -> None:
    """Of every third photograph; all of them are looked at, and show no other copies than those that are known."""
    root = real_data()
    places = (root / "flowers128", root / "photos", root / "coco256" / "images")
    originals = sorted(file for place in places for file in place.rglob("*.jpg"))
    alone = looked_at(originals, root, None)
    found = find_copies(alone)
    true = {(f"flowers128/{one}", f"flowers128/{other}") for one, other in listed()}
    false = set(named_pairs(found, alone)) - true
    assert len(false) <= len(originals) / 1000, false
    planted = {
        str(file.relative_to(root)): plant(file, tmp_path / "val" / str(number))
        for number, file in enumerate(originals[::3])
    }
    of = looked_at([*originals, *(copy for each in planted.values() for copy in each.values())], root, None)
    chains = find_copies(of).chains
    row = {name: number for number, name in enumerate(of.names)}
    for kind in PLANTED:
        missed = [name for name, each in planted.items() if chains[row[str(each[kind])]] != chains[row[name]]]
        assert len(missed) <= (0 if kind == "bytes" else 0.001 * len(planted)), (kind, missed)
