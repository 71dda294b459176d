"""The catalogue, the tests of shortcuts, areas and rules, each against something else that knows the answer."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import distance_transform_cdt
from scipy.stats import binom, binomtest, t
from sklearn.datasets import load_digits

import vitrail
from tests.audit.marked import honest
from tests.errors import must_raise
from tests.photographs import make_photographs
from vitrail.audit import EDITS, Edit, box, places, sampling, shortcuts
from vitrail.audit.areas import shares
from vitrail.audit.changes import PartTest, changes_since, parts_since, read_audit
from vitrail.audit.edits import CELLS, SOFT, check_edits, coarse, passes_of, softened
from vitrail.audit.notes import areas_notes, unclear_notes, untested_notes
from vitrail.audit.request import AuditRequest
from vitrail.audit.rules import EXAMPLE, Figure, Rule, check_rules_of_classes, read_rules
from vitrail.audit.sampling import (
    OF_TEST,
    SIZES,
    STRANGERS,
    Trio,
    draw_trios,
    fitting_classes,
    halves,
    kinds_in,
    pairs_of_copies,
)
from vitrail.audit.swaps import Move, Swap, log_odds
from vitrail.data.columns import Column, Labels, Samples, Texts
from vitrail.data.images import ArrayImages
from vitrail.errors import DataError, UsageError
from vitrail.explain import Gridded
from vitrail.statistics import LEVEL, POWER, bootstrap_of_ratios, holm, least_mean, least_share, sign_test
from vitrail.tasks import Classes, MultiLabels
from vitrail.tasks.calibration import Calibration

BY_NAME = {edit.name: edit for edit in EDITS}
Effects = dict[int, dict[str, np.ndarray]]  # of a class, of each part, image by image
Beside = dict[int, list[tuple[int, int]]]  # for each class the classes of the other two images


@pytest.mark.parametrize("size", [(224, 224), (32, 48), (128, 112)])
def test_an_area_is_exchanged_and_runs_into_what_lies_around_it(size: tuple[int, int]) -> None:
    receivers, donors = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0)).split(1)
    generator = torch.Generator().manual_seed(1)
    for edit in EDITS:
        mixed = edit.mix(receivers, donors)
        torch.testing.assert_close(edit.mix(receivers, receivers), receivers, atol=1e-5, rtol=0)
        if edit.area is None:
            continue
        area = edit.area(*size)
        assert 0 < int(area.sum()) < area.numel()
        assert torch.equal(mixed[:, :, area], donors[:, :, area])
        weight, reach = softened(area), round(SOFT * min(size))
        assert torch.equal(mixed[:, :, weight == 0], receivers[:, :, weight == 0])
        torch.testing.assert_close(mixed, receivers + weight * (donors - receivers))
        step = edit.mix(torch.zeros(1, 3, *size), torch.ones(1, 3, *size))  # a sharp tear would be a mark by itself
        assert max(float(step.diff(dim=dim).abs().max()) for dim in (2, 3)) <= 12 / min(size) + 0.05, edit.name
        steps = distance_transform_cdt(~area.numpy(), "chessboard")
        torch.testing.assert_close(weight, (1 - torch.from_numpy(steps) / (reach + 1)).clamp(min=0).float())
        moved = edit.elsewhere(size, (16, 16), generator)
        other = edit.mix(receivers, donors, moved)
        changed = (other == donors).all(dim=1)[0]
        assert torch.equal(changed, area.roll(moved, (0, 1)) & ~area), edit.name
        assert 2 * int(changed.sum()) > int(area.sum()), edit.name


def test_near_copies_are_found_unless_strangers_look_as_much_alike(tmp_path: Path) -> None:
    def tied(images: list[Image.Image]) -> set[tuple[int, int]]:
        return {(first, second) for first, second in pairs_of_copies(images).tolist() if first != second}

    photographs = [Image.open(file) for file in make_photographs(tmp_path, ("a", "b"), per_class=20, seed=9)]
    smaller, flipped = photographs[3].resize((25, 25)), photographs[5].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert tied([*photographs, smaller, flipped]) == {(3, 40), (5, 41)}
    assert tied([*photographs[:6], smaller]) == {(3, 6)}
    pixels, labels = load_digits(return_X_y=True)
    ones = [Image.fromarray(one.astype(np.uint8).reshape(8, 8) * 16) for one in pixels[labels == 1]]
    assert len(ones) > STRANGERS
    assert tied(ones) == tied([]) == set()
    assert tied([*ones, ones[7].copy()]) == {(7, len(ones))}


def test_properties_of_the_whole_image_are_exchanged_and_their_rest_stays() -> None:
    receivers, donors = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0)).double().split(1)
    tint, fine, colour = (BY_NAME[name].mix(receivers, donors) for name in ("tint", "fine", "colour"))
    torch.testing.assert_close(tint.mean(dim=(2, 3)), donors.mean(dim=(2, 3)))
    torch.testing.assert_close(tint - tint.mean((2, 3), True), receivers - receivers.mean((2, 3), True))
    torch.testing.assert_close(fine - donors, coarse(receivers) - coarse(donors))
    torch.testing.assert_close(colour.mean(dim=1), receivers.mean(dim=1))
    torch.testing.assert_close(colour[:, 0] - colour[:, 1], donors[:, 0] - donors[:, 1])
    blocks = torch.rand(1, 1, CELLS, CELLS).repeat_interleave(4, 2).repeat_interleave(4, 3)
    small = torch.nn.functional.avg_pool2d(coarse(blocks), 4)
    assert float((small - torch.nn.functional.avg_pool2d(blocks, 4)).abs().mean()) < 0.15  # which is what it keeps


def test_a_catalogue_of_ones_own_is_checked() -> None:
    check_edits([*EDITS, Edit("band", "a band", box(0.4, 0, 0.6, 1))], (28, 28))
    nowhere, everywhere = (Edit("x", "x", area=box(0, 0, side, 1)) for side in (0.01, 1))
    for wrong in ([], [EDITS[0], EDITS[0]], [Edit("none", "nothing")], [nowhere], [everywhere]):
        with pytest.raises(UsageError):
            check_edits(wrong, (28, 28))
    check_edits([nowhere], (224, 224))


def test_the_tests_are_those_of_scipy_and_of_holm() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 5, 20, 64):
        effects = rng.normal(0.3, 1, count).round(1)
        above, below = int((effects > 0).sum()), int((effects < 0).sum())
        expected = binomtest(above, above + below, alternative="greater").pvalue
        assert sign_test(effects.tolist()) == sign_test([*effects]) == pytest.approx(expected, rel=1e-12)
    assert sign_test([]) == sign_test([0.0, 0.0]) == 1
    # the example of R's p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm")
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx([0.05, 0.08, 0.09, 0.09, 0.09])
    assert holm([0.03, 0.001]) == pytest.approx([0.03, 0.002])
    for images, tests in ((20, 1), (64, 5), (200, 10)):
        needed = int(binom.isf(LEVEL / tests, images, 0.5)) + 1
        share = least_share(images, tests)
        assert binom.sf(needed - 1, images, (1 + share) / 2) >= POWER > binom.sf(needed - 1, images, (0.98 + share) / 2)
    assert least_share(3, 1) > 1
    for images, spread in ((15, 2.0), (64, 3.0)):  # draws of a mean that is as small as is still found
        drawn = rng.normal(least_mean(1.0, spread, images), spread, (4000, images))
        lows = drawn.mean(axis=1) - 1.96 * drawn.std(axis=1, ddof=1) / math.sqrt(images)
        assert (lows >= 1.0).mean() == pytest.approx(POWER, abs=0.03)
    effects = rng.normal(2.0, 1.5, 60)
    low, high = bootstrap_of_ratios(np.stack([np.ones(60), effects], axis=1))[:, 0]
    inside = t.interval(0.95, 59, effects.mean(), effects.std(ddof=1) / math.sqrt(60))
    assert (low, high) == pytest.approx(inside, abs=0.06)
    swap = Swap(move(5.0, 4.0, False), move(2.0, 0.5, True))
    assert swap.effect == Swap.of(json.loads(json.dumps(swap))).effect == 6.5
    assert Swap(move(5.0, 3.0, False), None).effect == 5


def move(on: float, out: float, kept: bool, added: float = 1.0) -> Move:
    return Move(on, out, kept, added, taken=on > 1, otherwise=False)


def test_of_honest_halves_at_most_one_in_twenty_is_named() -> None:
    """All that is tested has no effect: by Holm's method some is named in at most 5 % of the audits."""
    rng = np.random.default_rng(1)
    named = sum(min(holm([sign_test(rng.normal(size=40).tolist()) for _ in range(6)])) <= LEVEL for _ in range(400))
    assert named <= binom.ppf(0.999, 400, LEVEL)


def lines_of(
    effects: dict[int, dict[str, np.ndarray]], others: dict[int, list[tuple[int, int]]]
) -> list[dict[str, Any]]:
    """Lines of the second half: of each class what each part did, image by image, beside images of which classes."""
    found = list[dict[str, Any]]()
    for label, parts in effects.items():
        for row, beside in enumerate(others[label]):
            elsewhere = {part: None if part == "fine" else move(0.0, 0.0, True) for part in parts}
            swaps = {part: Swap(move(float(own[row]), 0.0, False), elsewhere[part]) for part, own in parts.items()}
            trio = Trio(row, 100 + row, 200 + row, label, beside)
            found.append({"trio": list(trio), "right": True, "taken": False, "swaps": swaps})
    return found


def after_the_tests(effects: Effects, others: Beside) -> list[Any]:
    proposed = {label: dict.fromkeys(parts, 2.0) for label, parts in effects.items()}
    return shortcuts.tested_parts(lines_of(effects, others), proposed, EDITS, str, (224, 224))


def test_a_part_is_named_where_its_moves_are_a_nat_at_the_lower_end_and_most_images_show_it() -> None:
    """Things reach into the rim of some classes: an honest network moves a little, and by every image."""
    steps = np.linspace(-1, 1, 32)
    few = np.where(steps > 0.2, 30.0, -0.1)  # the mean is large, and most images show nothing
    cases = (("rim", 1.5 + 0.3 * steps), ("rim", 2.5 + 0.3 * steps), ("fine", 1.5 + 0.3 * steps))
    for (part, effects), named in zip(
        (*cases, ("rim", 2.5 + 2.4 * np.sign(steps)), ("rim", few)), (False, True, True, False, False), strict=True
    ):
        (one,) = after_the_tests({0: {part: effects}}, {0: [(1, 2)] * 32})
        assert one.moves == (1 if part == "fine" else 2)
        assert (one.named, one.same_place) == (named, False)
    assert one.interval[0] > 2
    halves_of = {part: np.full(4, effect) for part, effect in (("rim", 0.9), ("top", 1.1), ("fine", 0.6))}
    lines = lines_of({0: halves_of}, {0: [(1, 2)] * 4})
    proposed = places.propose(places.seen_places(lines, [BY_NAME[part] for part in halves_of], (224, 224)))
    assert proposed == {0: {"top": pytest.approx(1.1), "fine": pytest.approx(0.6)}}  # half a nat a move
    both = after_the_tests({0: {"fine": 9 + steps, "rim": 5 + steps, "top": 1 + steps}}, {0: [(1, 2)] * 32})
    assert [(one.part, one.named, one.same_place) for one in both] == [
        ("rim", True, False),  # where it lies says more than that edges are there
        ("fine", True, False),
        ("top", False, False),
    ]


def test_a_class_is_not_named_where_the_mark_of_another_only_takes_something_from_it() -> None:
    """The mark of class 0 is exchanged beside images of it alone: there the odds of class 1 move, too."""
    beside = [(0, 2), (2, 2)] * 32
    rival = np.array([8.0, 0.1] * 32)
    others = {0: [(1, 2)] * 64, 1: beside}
    strong = np.full(64, 9.0)
    (first, second) = after_the_tests({0: {"rim": strong}, 1: {"rim": rival}}, others)
    assert (first.label, first.named, first.against) == ("0", True, ("1",))
    assert (second.label, second.named, second.same_place) == ("1", False, True)
    own = np.array([8.0, 6.0] * 32)  # it carries the mark, too
    assert [(one.named, one.against) for one in after_the_tests({0: {"rim": strong}, 1: {"rim": own}}, others)] == [
        (True, ()),
        (True, ()),
    ]
    apart = after_the_tests(
        {0: {"lower-right": strong}, 1: {"upper-left": rival}}, others
    )  # nothing of class 0 lies there
    assert [(one.named, one.against) for one in apart] == [(True, ()), (True, ())]
    few = [(0, 2)] * 55 + [(2, 2)] * 9  # beside no image of class 0 eight of nine show it: p is 0.02, of two tests 0.04
    shown = np.array([8.0] * 63 + [-0.1])
    for parts, named in ((("rim",), True), (("rim", "bottom", "fine"), False)):
        found = after_the_tests({0: dict.fromkeys(parts, strong), 1: {"rim": shown}}, {0: [(1, 2)] * 64, 1: few})
        assert [one.named for one in found if one.label == "1"] == [named]


def test_odds_are_those_of_the_probabilities_that_the_model_states() -> None:
    outputs = torch.randn(6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names, calibration = honest().output.names, Calibration("validation", 100, 2.5)
    for output in (Classes(names, calibration=calibration), MultiLabels(names, calibration=calibration)):
        found = log_odds(replace(honest(), output=output), outputs, 3)
        expected = torch.logit(output.probabilities(outputs)[:, 3])
        torch.testing.assert_close(found - found[0], expected - expected[0], rtol=1e-5, atol=1e-5)


def test_a_mark_in_a_corner_has_one_name_though_both_edges_hold_it_and_another_mark_has_its_own() -> None:
    trios = [Trio(row, 100 + row, 200 + row, 0, (1, 2)) for row in range(32)]
    elsewhere, weak = move(0.0, 0.0, True), Swap(move(0.0, 0.0, True), move(0.1, 0.0, True))
    effects = {"left": 7.5, "top": 7.4, "upper-left": 7.0, "lower-right": 6.0, "bottom": 0.0}
    swaps = {part: Swap(move(4.0, size - 4, False), elsewhere) if size else weak for part, size in effects.items()}
    lines = [{"trio": list(trio), "right": True, "taken": False, "swaps": swaps} for trio in trios]
    for least, expected in ((effects, ["upper-left", "lower-right"]), (("left", "top"), ["left", "top"])):
        proposed = {0: dict.fromkeys(least, 5.0)}
        found = shortcuts.tested_parts(lines, proposed, EDITS, str, (224, 224))
        assert [one.part for one in found if one.named] == expected
        assert sorted(one.part for one in found) == sorted(least)  # what has another name is still told
        if len(expected) < len(least):
            assert set(found[0].also) == {
                f"{BY_NAME[part].words} (0 % are recognised without it)" for part in ("left", "top")
            }


def test_of_each_place_the_strongest_part_and_its_best_name_are_proposed() -> None:
    """A corner is proposed though three larger parts that hold it do more by chance, and another mark beside it."""
    effects = (
        {"rim": 7.6, "left": 7.5, "top": 7.4, "upper-left": 7.0, "fine": 3.0, "lower-right": 2.5, "centre": 9.0},
        {"rim": 8.0, "left": 3.5, "bottom": 3.0, "fine": 2.0, "lower-right": 1.5},  # a frame
        {"rim": 9.5, "upper-left": 7.5, "left": 6.0, "top": 4.7, "fine": 4.7, "right": 3.6, "lower-right": 3.2},
        {"left": 9.0, "rim": 8.5, "upper-left": 5.0, "lower-left": 4.6, "top": 1.5},  # a band
        {"fine": 5.0, "upper-left": 4.0, "upper-right": 3.0, "lower-left": 2.0, "lower-right": 1.5},
        {"rim": 9.0, "right": 8.5, "top": 4.6, "bottom": 4.6, "upper-right": 4.0},  # a band, and two edges with some
        {"left": 0.9, "fine": 0.4, "rim": 0.1},
    )
    names = ["rim, left, upper-left, fine, lower-right", "rim, left, fine", "rim, upper-left, fine, right, lower-right"]
    names += ["left, upper-left, top", "fine, upper-left, upper-right", "rim, right", ""]
    swaps = [
        {
            edit.name: Swap(move(own.get(edit.name, 0.0), 0.0, True), edit.area and move(0.0, 0.0, True))
            for edit in EDITS
        }
        for own in effects
    ]
    lines = [
        {"trio": list(Trio(row, 100 + row, 200 + row, label, (8, 9))), "swaps": own}
        for label, own in enumerate(swaps)
        for row in range(4)
    ]
    reads = replace(honest().preprocessing, size=(224, 224))
    seen = places.seen_places(lines, EDITS, (224, 224))
    assert [len(own) for own in seen.values()] == [3, 2, 3, 2, 5, 1, 0]
    found = places.propose(seen)
    assert [", ".join(found.get(label, ())) for label in range(len(effects))] == names
    for label, parts in found.items():
        assert parts == {part: pytest.approx(effects[label][part]) for part in parts}
    asked = AuditRequest(replace(honest(), input=reads, background=None), None, None, EDITS, None, {})
    (note,) = untested_notes(asked, lines)
    assert BY_NAME["lower-left"].words in note
    assert BY_NAME["lower-right"].words in note
    assert BY_NAME["upper-right"].words not in note


def test_why_nothing_can_be_told_of_an_image_is_told_unless_it_holds_no_evidence() -> None:
    def line(verdict: str, reason: str, p: float | None, effect: float | None = 5.0) -> dict[str, Any]:
        test = {"verdict": verdict, "reason": reason, "evidence_p": p, "effect": effect, "minimum_effect": 4.0}
        return {"attributions": [{"trust": test}]}

    lines = [
        line("supported", "", 0.01),
        line("cannot tell", "no evidence", 0.3),
        line("cannot tell", "little", 0.01, 3.0),
        {"problem": "broken"},
    ]
    assert unclear_notes(lines) == []
    lines += [line("cannot tell", "no background", None)] * 3 + [line("cannot tell", "not finite", 0.03)]
    notes = unclear_notes(lines)
    assert ["3 images" in notes[0], "no background" in notes[0], "not finite" in notes[1], len(notes)] == [
        *[True] * 3,
        2,
    ]
    several = unclear_notes([line("cannot tell", f"reason {number}", None) for number in range(9)])
    assert "6 more" in several[-1]


def test_the_smallest_area_with_half_of_the_effect_gives_the_name_and_whole_images_have_no_elsewhere() -> None:
    trios = [Trio(row, 100 + row, 200 + row, 0, (1, 2)) for row in range(32)]
    for share, expected in ((0.6, "upper-left"), (0.4, "rim")):
        effects = {"rim": 6.0, "upper-left": share * 6.0}
        swaps = {part: Swap(move(size, 0.0, False), move(0.0, 0.0, True)) for part, size in effects.items()}
        swaps["fine"] = Swap(move(2.0, 0.5, False), None)
        proofs = {
            3: swaps | {"fine": Swap(move(9.0, 0.5, False, -0.1), None)},
            5: swaps | {"fine": Swap(move(9.0, -0.1, False), None)},
        }
        proofs[7] = swaps | {"fine": Swap(move(8.0, 0.1, False), None)}
        lines = [
            {"trio": list(trio), "right": row < 24, "taken": row < 8, "swaps": proofs.get(row, swaps)}
            for row, trio in enumerate(trios)
        ]
        area, whole, other = shortcuts.tested_parts(lines, {0: dict.fromkeys(swaps, 5.0)}, EDITS, str, (224, 224))
        assert [(one.part, one.named) for one in (area, whole)] == [(expected, True), ("fine", True)]
        assert not other.named
        assert other.same_place
        assert (area.recall, area.without, area.elsewhere, area.share_elsewhere, area.moves) == (0.75, 0, 1, 0, 2)
        assert (whole.recall, whole.without, whole.elsewhere, whole.share_elsewhere) == (0.75, 0, None, None)
        assert (len(area.intervals), len(whole.intervals), whole.moves) == (3, 2, 1)
        assert [(one.taken, one.taken_before, one.taken_otherwise) for one in (area, whole)] == [(1, 0.25, 0)] * 2
        assert [(proof.own, proof.on) for proof in whole.proofs][:2] == [(7, 8.0), (whole.proofs[1].own, 2.0)]
        assert not {3, 5} & {proof.own for proof in whole.proofs}  # with the part less, or without it more
        assert len(whole.proofs) == 10


def test_where_passes_are_few_all_classes_are_asked_with_fewer_images_before_one_is_left() -> None:
    counts = [200] * 5
    assert {fitting_classes(counts, 10**6, EDITS, each) for each in SIZES} == {5}
    for passes in range(0, 30_000, 500):
        fitting = [fitting_classes(counts, passes, EDITS, each) for each in SIZES]
        assert fitting == sorted(fitting)
        for (first, second), number in zip(SIZES, fitting, strict=True):
            cost = number * (first * passes_of(EDITS) + second * OF_TEST) + first * passes_of(EDITS)
            assert number == 0 or cost <= passes


def test_groups_stand_in_one_half_and_trios_are_of_three_classes_in_turn() -> None:
    units = [f"scene {row // 3}" for row in range(300)]
    side = halves(units, [[row % 2] for row in range(300)])
    assert sorted(side) == sorted(set(units))
    assert abs(sum(side.values()) - len(side) / 2) <= 1
    rare = [[0, 1] if row < 7 else [1] if row < 60 else [2] for row in range(300)]
    alone = [f"{row}" for row in range(300)]
    assert halves(alone[::-1], rare[::-1]) == halves(alone, rare)
    for rows in (range(7), range(7, 60), range(60, 300)):  # of each class every second one, the rarest first
        assert abs(sum(halves(alone, rare)[alone[row]] for row in rows) - len(rows) / 2) <= 0.5
    labels = np.arange(300) % 3
    known = np.eye(3, dtype=np.int8)[labels]
    rows = [row for row in range(300) if side[units[row]]]
    trios = draw_trios(known[rows], rows, [0, 2], 40, 0)
    assert [trio.label for trio in trios] == [0] * 40 + [2] * 40
    for label in (0, 2):  # else the effects of two trios would not be independent
        some = [row for trio in trios if trio.label == label for row in trio[:3]]
        assert len(set(some)) == len(some) == 120
    rows = [*range(0, 90, 3), 1, 2, 4, 5, 7]
    few = draw_trios(known[rows], rows, [0], 40, 0)
    assert len(few) == 2
    for trio in trios:
        assert labels[trio.own] == trio.label
        assert labels[trio.other] != trio.label != labels[trio.third]
        assert (labels[trio.other], labels[trio.third]) == trio.others
        assert trio.other != trio.third
        assert len({side[units[row]] for row in (trio.own, trio.other, trio.third)}) == 1


def searched_in(
    labels: list[int], scenes: list[int], groups: list[str], fine: bool = True, verdicts: int = 10**6
) -> sampling.SearchedImages:
    """Which images are searched of a set in memory.

    Args:
        labels: Of each image.
        scenes: What each shows; images of one scene are copies.
        groups: Of each; none where images belong to none.
        fine: Whether scenes are so fine that strangers are told from near copies: these are noisy, and every second is
            mirrored. Others are exact.
        verdicts: Which decide how many passes there are.
    """
    rng, shown = np.random.default_rng(0), Counter[int]()
    made = rng.integers(30, 226, (max(scenes) + 1, 32, 32, 3) if fine else (max(scenes) + 1, 8, 8, 3))
    pixels = made[scenes] if fine else made[scenes].repeat(4, 1).repeat(4, 2)
    for row, scene in enumerate(scenes if fine else ()):
        pixels[row] = pixels[row, :, :: -1 if shown[scene] % 2 else 1] + rng.integers(-4, 5, (32, 32, 3))
        shown[scene] += 1
    names = tuple(f"class {label}" for label in range(max(labels) + 1))
    columns: dict[str, Column] = {"label": Labels(np.array(labels, np.int64), names)}
    if groups:
        columns["group"] = Texts(tuple(groups))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, len(names)))
    model = vitrail.Model(Gridded(network.eval(), (4, 4)), vitrail.Preprocessing((32, 32)), vitrail.Classes(names))
    return sampling.choose_searched(
        model, Samples(ArrayImages(pixels.astype(np.uint8)), columns), verdicts, float("inf"), EDITS
    )


def test_of_near_copies_and_of_a_group_one_image_is_a_witness() -> None:
    """Copies of one scene stand in all classes, and groups hold images of two; all others are witnesses of their own.

    What is asked of each class is known: each scene, or each group, at most once, in one half.
    """
    labels = [row % 3 for row in range(132)]
    scenes = [row if row % 4 else 0 for row in range(132)]
    groups = [f"group {row // 4}" for row in range(240)]
    of_groups = [(row // 4 + (row % 4 == 3)) % 3 for row in range(240)]
    for own, found, families in (
        (labels, searched_in(labels, scenes, []), scenes),
        (labels, searched_in(labels, scenes, [], fine=False), scenes),
        (of_groups, searched_in(of_groups, [*range(240)], groups), groups),
    ):
        assert {*found.asked} == {0, 1, 2}
        assert found.left == ()
        rows = [{row for trio in half for row in trio[:3]} for half in found.halves]
        assert not rows[0] & rows[1]
        asked = Counter(families[row] for half in rows for row in half)
        assert {*asked.values()} == {1}
        for half, counts in zip(found.halves, zip(*found.asked.values(), strict=True), strict=True):
            for label, count in zip(found.asked, counts, strict=True):
                assert sampling.LEAST_SIZE <= sum(trio.label == label for trio in half) <= count
            assert len({trio.own for trio in half}) == len(half)
            for trio in half:
                assert len({families[row] for row in trio[:3]}) == 3
                assert own[trio.own] == trio.label
        assert sum(map(sum, found.asked.values())) <= len({*families})
        assert len(asked) > len({*families}) / 2  # strangers are no copies


def test_a_class_of_few_groups_is_too_small_also_where_passes_are_few() -> None:
    labels = [row % 3 for row in range(180)]
    groups = [f"patient {row % 12}" if row % 3 == 2 else f"patient {row + 12}" for row in range(180)]
    own, others = sampling.SIZES[-1]
    passes = own * passes_of(EDITS) * 2 + others * sampling.OF_TEST  # of one class and its patches
    found = searched_in(labels, [*range(180)], groups, verdicts=-(-passes // (sampling.PASSES - sampling.OF_VERDICT)))
    ((asked, (first, second)),) = found.asked.items()
    assert (first, second) == (own, others)
    assert found.left == (2, 1 - asked)
    assert [[f"“class {label}”" in note for label in range(3)] for note in found.notes] == [
        [False, False, True],
        [asked == 1, asked == 0, False],
    ]


def test_of_several_labels_each_is_asked_against_images_that_are_known_not_to_have_it() -> None:
    rng = np.random.default_rng(0)
    known = rng.choice(np.array([-1, 0, 1], np.int8), size=(400, 3), p=(0.2, 0.5, 0.3))
    trios = draw_trios(known, range(400), range(3), 400, 0)
    counts = np.minimum((known == 1).sum(axis=0), (known == 0).sum(axis=0) // 2)
    assert [sum(trio.label == label for trio in trios) for label in range(3)] == counts.tolist()
    kinds = kinds_in(known)
    for trio in trios:
        assert [int(known[row, trio.label]) for row in trio[:3]] == [1, 0, 0]
        assert trio.label not in trio.others
        assert trio.others == kinds[trio.other] + kinds[trio.third]
    assert kinds_in(np.array([[0, 0], [-1, -1], [1, 1], [-1, 0]], np.int8)) == [(2,), (), (0, 1), (2,)]


def test_shares_are_ratios_of_sums_with_an_interval_around_them() -> None:
    rows = [
        {"all": 10.0, "sizes": {"border": 0.25}, "border": [1.0, 4.0]},
        {"all": 30.0, "sizes": {"border": 0.35, "mask": 0.5}, "border": [5.0, 4.0], "mask": [20.0, 2.0]},
    ] * 20
    found = shares(rows)
    assert found["border"]["share"] == pytest.approx(6 / 40)
    assert found["border"]["moved"] == pytest.approx(8 / 40)
    low, high = found["border"]["interval"]
    assert 0.1 < low < 0.15 < high < 1 / 6
    assert found["border"]["size"] == pytest.approx(0.3)
    assert found["mask"] == {
        "images": 20,
        "size": 0.5,
        "share": 20 / 30,
        "interval": [20 / 30] * 2,
        "moved": 2 / 30,
        "moved_interval": [2 / 30] * 2,
    }
    assert shares([]) == {}


def test_of_few_images_it_is_told_that_there_is_no_figure_and_how_many_have_a_mask() -> None:
    nothing: Any = None
    asked = AuditRequest(nothing, nothing, nothing, (), Path("masks"), {})
    for images, masks, size, notes in (
        (4, 4, 0.3, 1),
        (4, 1, 0.3, 2),
        (0, 0, 0.3, 1),
        (12, 12, 0.3, 0),
        (12, 11, 0.3, 1),
        (12, 3, 0.3, 1),
        (12, 12, 0.98, 1),
    ):
        of_mask: dict[str, Any] = {"mask": [0.5, 0.1], "sizes": {"mask": size}}
        drops = [{"all": 1.0, **(of_mask if row < masks else {})} for row in range(images)]
        told = areas_notes(asked, drops)
        assert len(told) == notes, (images, masks)
        assert all(str(images) in note for note in told if size < 0.9)
        assert not 0 < masks < images or str(masks) in told[-1]


def test_the_worse_end_of_an_interval_decides_a_rule() -> None:
    figures = {"supported": Figure(0.75, (0.68, 0.81), 100), "border": Figure(0.05, (0.02, 0.09), 90)}
    for text, holds in (
        ("supported>=0.68", True),
        ("supported>=70%", False),
        ("border<0.1", True),
        ("border<0.09", False),
        ("border<=9%", True),
        ("supported:tulip>0.5", False),
    ):
        (rule,) = read_rules(text)
        assert (not rule.failure(figures)) == holds, text
    assert [rule.name for rule in read_rules("supported>=0.7, border<0.1")] == ["supported", "border"]
    assert read_rules("supported>=0.7; border<0.1") == read_rules("supported>=0.7,border<0.1")
    assert read_rules("supported>=0,7,border<0,1 %") == read_rules("supported>=0.7,border<0.1 %")
    for name in ("7; eleven", "route 66, north", ">5 cm and more", "0.5, or less"):
        assert read_rules(f"supported:{name}>=0.5; weak<1 %") == [
            Rule(f"supported:{name}", ">=", 0.5),
            Rule("weak", "<", 0.01),
        ]
    commas = read_rules("supported:tench, Tinca tinca>=50%,border<0.1")
    assert [rule.name for rule in commas] == ["supported:tench, Tinca tinca", "border"]
    for wrong, mended in (
        ("supported", EXAMPLE),
        ("supported>=", EXAMPLE),
        ("", EXAMPLE),
        ("border<1.2.3", EXAMPLE),
        ("accuracy>0.5", EXAMPLE),
        ("supported=0.7,border<0.2", "border<0.2"),
        ("supportd>=0.7", "supported>=0.7"),
        ("supported=>0.7", "supported>=0.7"),
        ("border =< 5%", "border<=0.05"),
        ("supported>=70", "supported>=0.7"),
        ("supported>=7000", EXAMPLE),
        ("supported>=170%", EXAMPLE),
        ("supported<=1.5", EXAMPLE),
        ("supported>=2,border<1.99", "supported>=0.02"),
        ("supported:>=0.7", EXAMPLE),
        ("border<0.1,supported: >=70", "border<0.1"),
        ("supported: tulip>=50", "supported:tulip>=0.5"),
        ("supported>=0.7 border<0.1", "supported>=0.7,border<0.1"),
        ("supported>=0.7 and bordr<10% && weak<0.3,accuracy>1", "supported>=0.7,border<0.1,weak<0.3"),
        ("border < 1 % and weak < 5 %", "border<0.01,weak<0.05"),
        ("border<1 % weak<1 %", "border<0.01,weak<0.01"),
        ("supported:tulip >= 0.7 border < 0.1", "supported:tulip>=0.7,border<0.1"),
        ("supported:tulip>=0.7 and supported:rose>=70 %", "supported:tulip>=0.7,supported:rose>=0.7"),
        ("supported>>0.7", "supported>0.7"),
        ("supported=>=0.7", "supported>=0.7"),
        ("shortcuts<=0,bordr=<20,accuracy>0.5, weak < .3", "shortcuts<=0,border<=0.2,weak < .3"),
    ):
        with pytest.raises(UsageError) as refused:
            read_rules(wrong)
        assert refused.value.hint.flags == {"fail_under": mended}, wrong
        read_rules(mended)
    with must_raise(UsageError, "'=>'"):
        read_rules("border<0.1,supported=>0.7")
    assert read_rules("supported: tulip>=0.5") == read_rules("supported:tulip>=0.5")
    classes = read_rules("supported:tench, Tinca tinca>=50%,border<0.1")
    check_rules_of_classes(classes, ["goldfish", "tench, Tinca tinca"])
    with must_raise(UsageError, "tench") as caught:
        check_rules_of_classes(classes, ["goldfish", "tench, tinca"])
    assert caught.value.hint.flags == {"fail_under": "supported:tench, tinca>=0.5,border<0.1"}
    with must_raise(UsageError, "tench") as caught:
        check_rules_of_classes(classes, [])
    assert caught.value.hint.flags == {"fail_under": "border<0.1"}
    assert read_rules("mask>0.5") == read_rules("mask>0.5", masks=True)
    with must_raise(UsageError, "mask") as caught:
        read_rules("border<.1,mask>0.5", masks=False)
    assert caught.value.hint.flags == {"fail_under": "border<.1"}


def test_a_change_has_newcombes_interval(tmp_path: Path) -> None:
    """His example: 56 of 70 against 48 of 80 gives 0.2, from 0.0524 to 0.3339."""
    now, before = Figure(56 / 70, (0.6918, 0.8769), 70), {"value": 48 / 80, "interval": [0.4906, 0.7004], "images": 80}
    (found,) = changes_since({"supported": now, "border": now}, {"supported": before})
    assert found.difference == pytest.approx(0.2)
    assert found.interval == pytest.approx((0.0524, 0.3339), abs=2e-3)
    assert found.clear
    assert not changes_since({"supported": Figure(0.61, (0.5, 0.71), 80)}, {"supported": before})[0].clear
    number = Figure(0, (0, 0), 3)
    assert changes_since({"shortcuts": number, "weak": now}, {"shortcuts": number.to_dict(), "weak": before}) == [
        found._replace(name="weak")
    ]
    good = {"figures": {"border": now.to_dict()}, "fingerprints": {"data": "x"}, "asked": {"cat": [6, 6]}}
    test = {"named": True, "moves": 2, "effect": 6.0, "interval": [4.0, 8.0]}
    good["shortcuts"] = [{"label": "cat", "words": "the rim", **test}]
    wrong = [{}, [], {**good, "asked": 3}, {**good, "fingerprints": "ab"}, {**good, "options": 5}]
    wrong += [{**good, "shortcuts": [{**good["shortcuts"][0], name: "x"}]} for name in ("moves", "effect", "interval")]
    rows = [3, {}, {"value": "x"}, {**now.to_dict(), "interval": [0.1]}, {**now.to_dict(), "value": None}]
    rows += [
        {**now.to_dict(), "value": 5},
        {**now.to_dict(), "interval": [0.9, 0.1]},
        {**now.to_dict(), "value": math.nan},
    ]
    wrong += [{**good, "figures": {}}, {**good, "shortcuts": [{"label": "cat"}]}, {**good, "shortcuts": None}]
    wrong += [{**good, "figures": {"border": row}} for row in rows] + [{**good, "figures": 3}]
    for number, each in enumerate((good, *wrong)):
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    assert read_audit(tmp_path / "0.json") == good
    (tmp_path / "folder.json").mkdir()
    for file in ("none.json", "folder.json", *(f"{number + 1}.json" for number in range(len(wrong)))):
        with pytest.raises(DataError):
            read_audit(tmp_path / file)
    (tmp_path / "0.html").write_text("<!doctype html>")
    with must_raise(DataError, "0.json") as caught:
        read_audit(tmp_path / "0.html")
    assert caught.value.hint.flags == {"against": str(tmp_path / "0.json")}
    assert math.isfinite(found.interval[0])
    tests = PartTest.of(test), PartTest(False, 0.5, (-0.3, 1.1)), PartTest(False, 0.1, (0.0, 0.2))
    assert tests[0] == (True, 3.0, (2.0, 4.0))
    rim, top, left = (("cat", part) for part in ("rim", "top", "left"))
    gone, new, _ = parts_since({rim: tests[1], top: tests[0]}, {rim: tests[0], left: tests[0]}, ("cat",))
    assert (gone.words, gone.before, gone.now, gone.difference) == ("rim", tests[0], tests[1], -2.5)
    assert gone.interval == pytest.approx((-2.5 - math.hypot(0.8, 1.0), -2.5 + math.hypot(0.6, 1.0)))
    assert (new.words, new.before, new.now, new.difference) == ("top", None, tests[0], None)
    assert parts_since({rim: tests[2]}, {rim: tests[1]}, ("cat",)) == []  # named by neither
    assert parts_since({rim: tests[0]}, {}, ("dog",)) == []  # searched by one alone
