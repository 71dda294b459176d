"""The sheet of a picture as a picture: everything is on it, and it says no more than is known."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.pages import samples
from tests.pages.structure import PAYLOADS
from vitrail.pages import ExplainedPicture, ExplanationPage, HeatView
from vitrail.pages.colour import SEQUENTIAL, heat_picture
from vitrail.pages.lettering import _without_middle, drawable, font, shorten, wrap
from vitrail.pages.sheet import ACROSS, ALONE, BESIDE, MAP, MARGIN, _below, draw_map, draw_map_file, draw_sheet
from vitrail.pages.sheet_column import BLUE, FRAME, SOFT, SUNK, TONES, Column
from vitrail.pages.trust import score_axis
from vitrail.pages.words import STEP_TOLD, TWO_SCORES

VERDICTS = ("supported", "supported, tiny", "weak", "no better than random", "cannot tell")
HEAT = HeatView("generic_attention", "Generic attention", "7", 8.2, np.eye(4), False, True, (), None, samples.trust())


def sheet_of(*heats: HeatView, picture: np.ndarray | None = None, name: str = "a.png", one_scale: bool = False):
    shown = samples.picture() if picture is None else picture
    explained = ExplainedPicture(name, shown, "7", [("7", 0.9), ("1", 0.1)], list(heats))
    return draw_sheet(explained, ExplanationPage("Why", "model", "c", [explained], one_scale=one_scale))


def has(sheet: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(sheet) == colour).all(axis=2).any())


def test_the_same_values_give_the_same_pixels() -> None:
    assert sheet_of(HEAT).tobytes() == sheet_of(HEAT).tobytes()
    assert sheet_of(HEAT).tobytes() != sheet_of(dataclasses.replace(HEAT, title="Another")).tobytes()


def test_the_verdict_has_its_colour_and_a_shape_of_its_own() -> None:
    signs = []
    for verdict in VERDICTS:
        if verdict in TONES:
            assert has(sheet_of(dataclasses.replace(HEAT, trust=samples.trust(verdict))), TONES[verdict])
        column = Column(60)
        column.verdict(verdict)
        signs.append((np.asarray(column.finished().crop((0, 0, 44, 40)).convert("L")) < 200).tobytes())
    assert len(set(signs)) == len(VERDICTS)


def test_a_map_without_evidence_is_pale_and_framed() -> None:
    """Its colours stay nearer to the grey picture, both on the sheet and in its own file."""
    explained = ExplainedPicture("a", samples.picture(), None, [], [HEAT])
    plain = heat_picture(explained.picture, np.zeros((4, 4)), False)
    distances = [
        np.abs(
            draw_map(dataclasses.replace(HEAT, trust=samples.trust(verdict)), explained, False)[0] - 1.0 * plain
        ).mean()
        for verdict in VERDICTS
    ]
    assert distances[0] == distances[1] == distances[2] > 2.5 * distances[3] == 2.5 * distances[4] > 0
    untested = dataclasses.replace(HEAT, trust=None)
    assert np.abs(draw_map(untested, explained, False)[0] - 1.0 * plain).mean() == distances[0]
    pale, bold = (sheet_of(dataclasses.replace(HEAT, trust=samples.trust(v))) for v in ("cannot tell", "supported"))
    assert pale.tobytes() != bold.tobytes()


@pytest.mark.parametrize("verdict", ["supported", "cannot tell", None])
def test_a_map_in_a_file_of_its_own_has_its_verdict_below_it(verdict: str | None) -> None:
    heat = dataclasses.replace(HEAT, trust=None if verdict is None else samples.trust(verdict))
    explained = ExplainedPicture("a", samples.picture(), None, [("7", 0.9)], [heat])
    file = draw_map_file(heat, explained, False)
    pixels = np.asarray(file)
    assert file.width == MAP + 2 * MARGIN
    footer = pixels[MARGIN + MAP :]
    assert 110 < len(footer) < 270
    assert (footer[:30] == SEQUENTIAL[-1]).all(axis=2).any() or heat.pale  # the scale
    assert (footer < 200).any()
    if verdict in TONES:
        assert (footer == TONES[verdict]).all(axis=2).any()
    hatched = (pixels[MARGIN : MARGIN + FRAME, MARGIN:-MARGIN] == SOFT).all(axis=2).mean() > 0.1
    assert hatched == heat.pale
    inside = draw_map(heat, explained, False)[0][0, 0]  # as pale as on the sheet
    edge = MARGIN + (FRAME if heat.pale else 0)
    np.testing.assert_array_equal(pixels[edge + 4, edge + 4], inside)


def test_the_footer_of_a_map_names_method_and_class() -> None:
    explained = ExplainedPicture("a", samples.picture(), None, [], [HEAT])
    others = [
        HEAT,
        dataclasses.replace(HEAT, title="Rollout"),
        dataclasses.replace(HEAT, target="3"),
        dataclasses.replace(HEAT, rather_than="1"),
        dataclasses.replace(HEAT, class_specific=False),
    ]
    assert len({draw_map_file(heat, explained, False).tobytes() for heat in others}) == len(others)


def test_the_sheet_holds_the_parts_of_a_score() -> None:
    assert sheet_of(HEAT).tobytes() != sheet_of(dataclasses.replace(HEAT, parts=(("squares", 8.2),))).tobytes()


def test_one_scale_gives_the_same_share_the_same_colour() -> None:
    one, other = np.array([[1.0, 3.0]]), np.array([[50.0, 150.0]])
    heats = [dataclasses.replace(HEAT, values=values) for values in (one, other, np.array([[0.0, 1.0]]))]
    explained = ExplainedPicture("a", samples.picture(), None, [], heats)
    same = [draw_map(heat, explained, True)[0].tobytes() for heat in heats]
    assert same[0] == same[1] != same[2]


def test_what_all_maps_are_told_alike_stands_once() -> None:
    """Below the picture, so that the columns of the maps are shorter."""
    long = "a reason that is told in many words, " * 6
    reasons = {"alike": [long] * 19, "each its own": [f"{long}{number}" for number in range(19)]}
    heights = {}
    for name, each in reasons.items():
        trusts = [
            dataclasses.replace(samples.trust("cannot tell"), reason=reason, sentence=f"Cannot tell: {reason}.")
            for reason in each
        ]
        heights[name] = sheet_of(*(dataclasses.replace(HEAT, trust=trust) for trust in trusts), one_scale=True).height
    assert heights["alike"] < heights["each its own"] - 200


def test_what_is_to_be_known_of_scores_and_sentences_stands_once() -> None:
    for count in (1, 3):
        explained = ExplainedPicture("a", samples.picture(), None, [], [HEAT] * count)
        words = _below(explained, ExplanationPage("t", "m", "c", [explained]))
        assert words.count(TWO_SCORES) == words.count(STEP_TOLD) == 1
        untested = dataclasses.replace(explained, heats=[dataclasses.replace(HEAT, trust=None)] * count)
        assert len(_below(untested, ExplanationPage("t", "m", "c", [untested]))) == 1


def test_the_lines_of_several_maps_have_one_axis() -> None:
    """A map whose own line would look the same is drawn elsewhere when it stands beside one with larger falls."""
    small = samples.trust()
    large = dataclasses.replace(small, paired=20.0)
    alone, beside = Column(300), Column(300)
    alone.score(small)
    beside.score(small, score_axis([small, large]))
    assert alone.finished().tobytes() != beside.finished().tobytes()
    again = Column(300)
    again.score(small, score_axis([small]))
    assert again.finished().tobytes() == alone.finished().tobytes()


@pytest.mark.parametrize(("share", "length"), [(0.0, 0), (0.5, 51), (1.0, 102)])
def test_a_bar_is_as_long_as_its_probability(share: float, length: int) -> None:
    column = Column(300)
    column.share("a", share, "some")
    row = np.asarray(column.finished())[14]
    assert (row == BLUE).all(axis=1).sum() == pytest.approx(length, abs=2)
    assert ((row == BLUE) | (row == SUNK)).all(axis=1).sum() == pytest.approx(102, abs=2)


def test_the_maps_stand_in_even_rows() -> None:
    for count in (1, 2, 5, 17):
        sheet = sheet_of(*(dataclasses.replace(HEAT, title=str(i)) for i in range(count)), one_scale=True)
        width = ALONE if count == 1 else BESIDE
        columns = 3 if count == 1 else -(-(count + 1) // -(-(count + 1) // ACROSS))
        assert columns * width < sheet.width < columns * (width + 60) + 250
        assert sheet.height < 6000


@pytest.mark.parametrize(
    ("picture", "values", "signed"),
    [
        (samples.picture(9, 40, colour=True), np.array([[np.nan, 1.0, 2.0]]), False),
        (samples.picture(300, 200, colour=True), np.array([[-1.0], [2.0]]), True),
        (samples.picture(200, 4), np.full((3, 1), np.nan), False),
        (samples.picture(), np.zeros((1, 1)), True),
    ],
)
def test_odd_pictures_and_maps(picture: np.ndarray, values: np.ndarray, signed: bool) -> None:
    for trust in (None, samples.trust("cannot tell")):
        heat = dataclasses.replace(HEAT, values=values, signed=signed, trust=trust, notes=("not finite",))
        assert sheet_of(heat, picture=picture).width > 3 * ALONE
        assert sheet_of(heat, heat, picture=picture, one_scale=True).width > 3 * BESIDE
    assert sheet_of(picture=picture).width > 300


def test_any_text_is_written_and_never_as_an_empty_box() -> None:
    missing = bytes(font(40).getmask("\uffff"))
    for text in (*PAYLOADS, "", " ", "長い名前", "x" * 3000, "Größe café naïve Łódź", "\u0301"):
        for letter in set(drawable(text)) - {" "}:
            assert bytes(font(40).getmask(letter)) != missing, letter
        assert all(font(25).getlength(line) <= 300 for line in wrap(text, 25, 300))
        assert font(25).getlength(shorten(text, 25, 300)) <= 300
    hostile = dataclasses.replace(HEAT, title="長" * 90, target=PAYLOADS[-2], trust=samples.trust("weak", "x" * 300))
    assert sheet_of(hostile, name="\u0301" * 99).width == sheet_of(HEAT).width


def test_letters_that_the_font_lacks() -> None:
    assert drawable("Größe −3 × café") == "Grosse -3 x cafe"
    assert drawable("数") == "\\u6570"
    assert drawable("a\nb\tc") == "a b c"
    assert shorten("abcdefghijklmnop", 25, 100).count("…") == 1
    assert shorten("abc", 25, 100) == "abc"
    longest = next(kept for kept in range(40, 2, -1) if font(25).getlength(_without_middle("w" * 40, kept)) <= 300)
    assert shorten("w" * 40, 25, 300) == _without_middle("w" * 40, longest)
    assert wrap("one 93.1\u00a0% two", 25, 95) == ["one", "93.1 %", "two"]
    assert " ".join(wrap("one two three four five", 25, 120)) == "one two three four five"
