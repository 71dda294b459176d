"""Areas and places elsewhere, by a network that adds up brightness: what an area holds of it is what masking costs."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import vitrail
from tests.errors import must_raise
from vitrail.audit import Edit, box
from vitrail.audit.areas import area_drops, check_usable_masks, shares
from vitrail.audit.notes import areas_notes
from vitrail.audit.request import AuditRequest
from vitrail.audit.sampling import Trio
from vitrail.audit.swaps import swap_lines
from vitrail.data.images import ArrayImages, NamedImage
from vitrail.errors import DataError
from vitrail.explain import Gridded
from vitrail.explain.reporting.plan import ReportOptions, plan_report
from vitrail.jobs.parts import split_up

GRID, PATCH = (6, 8), 2
SIZE = GRID[0] * PATCH, GRID[1] * PATCH
FILLS, SCALE = 5, 1 / 8  # a white patch is worth 1 / 8
EDGE = np.pad(np.zeros((GRID[0] - 2, GRID[1] - 2), bool), 1, constant_values=True)

Grid = np.ndarray  # (rows, columns) of patches


class Brightness(nn.Module):
    """Logits are the brightness of all patches together, and its negative; it keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.scale = list[Tensor](), nn.Parameter(torch.tensor(SCALE))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        total = F.avg_pool2d(images, PATCH).sum(dim=(1, 2, 3)) * self.scale
        return torch.stack([total, -total], dim=1)

    def hidden(self) -> list[Grid]:
        """Which patches of each image that it was shown are black throughout."""
        return [*(F.max_pool2d(torch.cat(self.seen), PATCH)[:, 0] == 0).numpy()]


def made(background: bool = True) -> tuple[vitrail.Model, Brightness]:
    """A model that masks with black."""
    network = Brightness()
    reads = vitrail.Preprocessing(SIZE, channels=1, mean=(0.0,), std=(1.0,))
    black = torch.zeros(3, 1, *SIZE, dtype=torch.uint8) if background else None
    return vitrail.Model(Gridded(network, GRID), reads, vitrail.Classes(("a", "b")), background=black), network


def pictured(patches: Grid) -> Image.Image:
    """An image of one brightness a patch."""
    return Image.fromarray(patches.astype(np.uint8).repeat(PATCH, 0).repeat(PATCH, 1))


def rolls(area: Grid) -> set[bytes]:
    """The same area at every other place."""
    moves = [(down, right) for down in range(GRID[0]) for right in range(GRID[1])][1:]
    return {np.roll(area, move, (0, 1)).tobytes() for move in moves}


def test_an_area_costs_the_brightness_that_it_holds_and_as_large_a_one_is_masked_elsewhere() -> None:
    """Of images that are bright at random the patches that were masked are seen, and all costs follow from them."""
    rng, found, sums, (model, network) = np.random.default_rng(0), [], np.zeros(4), made()
    plan, met = plan_report(model, ReportOptions()), set[bytes]()
    for number in range(10):
        bright, mask = rng.integers(1, 256, GRID), np.zeros(GRID, bool)
        mask[1:3, 1 + number % 4] = mask[2, 1:6] = True  # an uneven shape that does not reach the border
        image = NamedImage(f"{number}.png", pictured(bright), mask=pictured(255 * mask))
        network.seen.clear()
        drops = area_drops(image, plan, None)
        assert {*drops} == {"all", "sizes", "border", "mask", "background"}
        masked, total = [one for one in network.hidden() if one.any()], bright.sum() / 255 * SCALE
        assert drops["all"] == pytest.approx(total, rel=1e-5)
        left = Counter(one.tobytes() for one in masked)
        areas = {"border": EDGE, "mask": mask, "background": ~mask}
        assert drops["sizes"] == pytest.approx({name: area.mean() for name, area in areas.items()})
        left.subtract({np.ones(GRID, bool).tobytes(): FILLS, **{one.tobytes(): FILLS for one in areas.values()}})
        assert min(left.values()) == 0
        assert left.total() == FILLS * len(areas)
        for name, area in areas.items():
            others = rolls(area)
            elsewhere = {where: count for where, count in left.items() if count and where in others}
            assert sum(elsewhere.values()) == FILLS, name
            assert len(elsewhere) >= 3, name  # each fill meets a place of its own
            met.update([b"".join(sorted(elsewhere))] * (name == "border"))
            places = [(np.frombuffer(where, bool).reshape(GRID), count) for where, count in elsewhere.items()]
            moved = sum(count * bright[where].sum() for where, count in places) / FILLS / 255 * SCALE
            assert drops[name] == pytest.approx([bright[area].sum() / 255 * SCALE, moved], rel=1e-5), name
        found.append(drops)
        sums += [total, *(bright[area].sum() / 255 * SCALE for area in areas.values())]
    rows = shares(found)
    assert [rows[name]["share"] for name in areas] == pytest.approx(sums[1:] / sums[0], rel=1e-5)
    assert rows["mask"]["share"] + rows["background"]["share"] == pytest.approx(1, rel=1e-5)
    assert area_drops(image, plan, None) == found[-1]
    assert len(met) > 5  # places are drawn for each image
    assert {*area_drops(NamedImage("x.png", image.image), plan, None)} == {"all", "sizes", "border"}
    assert area_drops(image, plan_report(made(background=False)[0], ReportOptions()), None) == {}


def test_where_all_evidence_lies_in_one_area_its_share_is_one_and_it_is_less_elsewhere() -> None:
    plan, mask = plan_report(made()[0], ReportOptions()), np.zeros(GRID, bool)
    mask[2, 2] = mask[3, 2:5] = True
    areas = {"border": EDGE, "mask": mask, "background": ~mask}
    shared = {"border": (1, 0, 1), "mask": (0, 1, 0), "background": (24 / 44, 0, 1)}  # 24 patches of 48 are the border
    for where, expected in shared.items():
        image = NamedImage("x.png", pictured(200 * areas[where]), mask=pictured(255 * mask))
        rows = shares([area_drops(image, plan, None)] * 10)
        for name, share in zip(areas, expected, strict=True):
            assert [rows[name]["share"], *rows[name]["interval"]] == pytest.approx([share] * 3, abs=1e-5), (where, name)
        assert rows[where]["moved"] < 1 - 1e-3


def test_an_audit_reads_the_masks_of_a_folder_and_counts_every_image_with_a_verdict(tmp_path: Path) -> None:
    """The last images hold all of their brightness at the border; of the others none lies there."""
    count, rng, sums = 22, np.random.default_rng(1), Counter[str]()
    for folder in ("photos/a", "masks"):
        (tmp_path / folder).mkdir(parents=True)
    for number in range(count):
        mask = np.zeros(GRID, bool)
        mask[2:4, 2:5] = True
        bright = rng.integers(150, 256, GRID) * (EDGE if number >= 16 else ~EDGE)
        pictured(bright).save(tmp_path / "photos" / "a" / f"{number:02}.png")
        pictured(255 * mask).save(tmp_path / "masks" / f"{number:02}.png")
        sums.update({"all": bright.sum(), "border": bright[EDGE].sum(), "mask": bright[mask].sum()})
        sums.update({"background": bright[~mask].sum()})
    found = vitrail.audit.audit(
        made()[0], str(tmp_path / "photos"), masks=tmp_path / "masks", count=count, method="occlusion"
    )
    assert {name: row["images"] for name, row in found.areas.items()} == dict.fromkeys(
        ("border", "mask", "background"), count
    )
    for name, row in found.areas.items():
        assert row["share"] == pytest.approx(sums[name] / sums["all"], rel=1e-4), name
        assert found.figures[name].value == row["share"]


def test_masks_that_cannot_be_used_are_told_and_refused_where_there_are_no_others(tmp_path: Path) -> None:
    plan, bright = plan_report(made()[0], ReportOptions()), pictured(np.full(GRID, 200))
    images = [NamedImage(f"{name}.png", bright) for name in ("small", "good", "none")]
    Image.new("L", (4, 3), 255).save(tmp_path / "small.png")
    problems = [area_drops(image, plan, tmp_path).get("problem", "") for image in images]
    assert ["small" in problem for problem in problems] == [True, False, False]
    with must_raise(DataError, "small"):
        check_usable_masks(images, plan, tmp_path)
    check_usable_masks(images[1:], plan, tmp_path)  # an image without a mask is no fault
    mask = np.zeros(GRID, bool)
    mask[2:4, 2:5] = True
    pictured(255 * mask).save(tmp_path / "good.png")
    check_usable_masks(images, plan, tmp_path)
    alone, beside = (area_drops(images[1], plan, masks) for masks in (None, tmp_path))
    assert alone["border"] == beside["border"]  # its places elsewhere do not hang on the mask
    notes = areas_notes(
        AuditRequest(*[None] * 4, tmp_path, {}), [area_drops(image, plan, tmp_path) for image in images]
    )
    assert "1 mask" in notes[0]
    assert "small" in notes[0]


def test_each_trio_meets_a_place_elsewhere_of_its_own_whatever_else_is_moved_and_wherever_its_range_begins() -> None:
    """Of a white image and two black ones the places are seen: where the patch of a part is taken out of the white."""
    trios = [Trio(3 * row, 3 * row + 1, 3 * row + 2, 0, (1, 1)) for row in range(24)]
    pixels = np.zeros((3 * len(trios), *SIZE), np.uint8)
    pixels[::3] = 255
    part = Edit("corner", "a corner", box(0, 0, 1 / GRID[0], 1 / GRID[1]))
    strips = [Edit(f"strip {row}", "a strip", box(row / GRID[0], 0, (row + 1) / GRID[0], 1)) for row in range(3)]
    seen, lines = list[list[int]](), list[list[object]]()
    for rows, first, parts in ((3 * len(trios), 0, [part]), (9, 0, [part]), (9, 5, [*strips, part])):
        model, network = made()
        ranges, some = split_up([ArrayImages(pixels[3 * first :])], rows), trios[first:]
        names = [[one.name for one in parts]] * len(some)
        lines.append([line for found in swap_lines(model, parts, some, names, ranges) for line in found])
        places = [int(one.argmax()) for one in network.hidden() if one.sum() == 1]
        assert places.count(0) == len(some)
        seen.append([place for place in places if place])
    assert seen[0] == seen[1]
    assert seen[2] == seen[0][5:]
    assert json.dumps(lines[0]) == json.dumps(lines[1])
    assert len({*seen[0]}) >= len(trios) // 3  # of 47 places; by chance some meet the same
