import dataclasses
import re

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.structure import Structure
from vitrail.pages import ExplainedPicture, ExplanationPage, HeatView, write_explanation_page
from vitrail.pages.colour import TICKS
from vitrail.pages.explanation_page import explanation_page

HEAT = HeatView("generic_attention", "Generic attention", "7", 8.2, np.array([[0.1, 0.4], [0.2, 0.3]]), False, True)


def page_of(heat: HeatView, top=(("7", 0.991), ("1", 0.009)), label: str | None = "7") -> str:
    explained = ExplainedPicture("a.png", samples.picture(), label, list(top), [heat])
    return explanation_page(ExplanationPage("Why", "model", "vitrail explain", [explained]))


def text_of(page: str) -> str:
    joined = "".join(part if part.strip() else " " for part in Structure(page).text)
    return re.sub(r"\s+", " ", joined)


def test_the_sentences_of_a_class_specific_map():
    shown = text_of(page_of(HEAT))
    assert "The model says 7 (99.1 %)." in shown
    assert "That is its label." in shown
    assert "This map explains the score of 7 (logit 8.2) by generic attention." in shown
    assert "cannot tell classes apart" not in shown


def test_a_long_class_name_has_the_width_of_its_bar():
    page = page_of(HEAT, top=(("immunohistochemistry", 0.99999), ("1", 1e-5)))
    cell = r'<th scope="row">immunohistochemistry<svg class="bar".*?</svg></th><td class="figure">(.*?)</td>'
    assert re.findall(cell, page) == ["> 99.9 %"]
    assert "The model says immunohistochemistry (over 99.9 %)." in text_of(page)


def test_what_to_know_of_the_probabilities_is_said_once():
    explained = ExplainedPicture("a.png", samples.picture(), "7", [("7", 0.6)], [HEAT])
    page = ExplanationPage("Why", "model", "vitrail explain", [explained, explained], "at most about 91 %; <i>")
    assert explanation_page(page).count("<li>at most about 91 %; &lt;i&gt;</li>") == 1
    assert "<li></li>" not in page_of(HEAT)


def test_a_blind_method_says_so_beside_its_map_and_at_the_end():
    shown = text_of(page_of(dataclasses.replace(HEAT, method="rollout", class_specific=False)))
    assert (
        "This method cannot tell classes apart: it shows where information could flow from, not what speaks for 7."
        in shown
    )
    assert "explains the score" not in shown
    assert "It is no reason for the answer." in shown


def test_a_map_of_another_class_says_so():
    shown = text_of(page_of(dataclasses.replace(HEAT, target="1", logit=-2.0), label="1"))
    assert "the score of 1 (logit −2) by generic attention. This is not the class that the model chose." in shown
    assert "Its label is 1." in shown


def ends_of(page: str) -> list[str]:
    return re.findall(r"<span>(.*?)</span>", re.search(r'<p class="ends">.*?</p>', page).group())


def test_the_legend_states_the_range_in_raw_units():
    page = page_of(dataclasses.replace(HEAT, values=np.array([[0.1, 1.4, 0.2, 0.1]])))
    assert ends_of(page) == ["0", "", "1.4"]
    assert "Smallest value 0.1, largest 1.4." in text_of(page)
    assert "times the mean" not in text_of(page).split("How far to trust this")[0]
    signed = page_of(dataclasses.replace(HEAT, signed=True, values=np.array([[-0.5, 2.0]])))
    assert ends_of(signed) == ["−2.5 against", "0", "2.5 for"]
    assert "Smallest value −0.5, largest 2." in text_of(signed)


def test_a_nearly_flat_map_is_called_so():
    page = page_of(dataclasses.replace(HEAT, values=np.array([[0.020, 0.022, 0.020, 0.020]])))
    assert ends_of(page) == ["0", "", "0.0615"]
    assert "The largest is 1.07 times the mean. Full colour is 3 times, so an even map stays dull." in text_of(page)


@pytest.mark.parametrize("value", [0.0, 0.25, np.nan])
def test_no_signal_is_said_and_nothing_is_coloured(value):
    page = page_of(dataclasses.replace(HEAT, values=np.full((2, 2), value)))
    assert "No signal." in text_of(page)
    assert 'class="heat"' not in page
    assert 'class="scale"' not in page


def test_squares_without_a_number_are_counted():
    assert "1 square without a number" in text_of(
        page_of(dataclasses.replace(HEAT, values=np.array([[np.nan, 1, 2.0]])))
    )


def test_notes_are_shown():
    assert "<li>a caveat</li>" in page_of(dataclasses.replace(HEAT, notes=("a caveat",)))


def test_the_closing_section_admits_that_nothing_was_tested():
    shown = text_of(page_of(HEAT))
    assert "How far to trust this" in shown
    assert "These maps were not tested." in shown
    assert "Every map was tested" not in shown
    assert "Generic attention (Chefer, Gur and Wolf, 2021)" in shown
    assert "Rollout" not in shown


def test_the_closing_section_says_how_it_was_tested():
    shown = text_of(page_of(dataclasses.replace(HEAT, trust=samples.trust())))
    assert "Every map was tested on the model itself." in shown
    assert "by what stands in the same place in reference pictures" in shown
    assert "39 random maps of the same smoothness" in shown
    assert "not tested" not in shown


def test_one_class_rather_than_another():
    shown = text_of(page_of(dataclasses.replace(HEAT, rather_than="1", logit=3.5)))
    assert "This map explains why 7 rather than 1 (difference of logits 3.5) by generic attention." in shown


@pytest.mark.parametrize(
    ("verdict", "pale"), [("supported", 0), ("weak", 0), ("no better than random", 1), ("cannot tell", 1)]
)
def test_a_map_that_the_evidence_does_not_support_is_pale_and_says_why(verdict, pale):
    page = page_of(dataclasses.replace(HEAT, trust=samples.trust(verdict)))
    assert page.count('<g class="pale"><image class="heat"') == pale
    assert page.count('class="frame hatched"') == pale
    assert page.count('class="scale faint"') == pale
    assert text_of(page).count(f"Drawn pale: {verdict}.") == pale


def test_one_scale_for_all_maps_of_a_picture():
    """The map with the largest share reaches the last colour; the legend of all says which share that is."""
    even = dataclasses.replace(HEAT, values=np.ones((2, 2)) + np.array([[0, 0.1], [0, 0]]))
    sharp = dataclasses.replace(HEAT, values=np.array([[0.0, 3.0], [1.0, 0.0]]))
    signed = dataclasses.replace(HEAT, values=np.array([[1.0, -1.0], [1.0, -1.0]]), signed=True)
    explained = ExplainedPicture("a.png", samples.picture(), "7", [("7", 0.9)], [even, sharp, signed])
    page = explanation_page(ExplanationPage("Why", "model", "c", [explained], one_scale=True))
    shown = text_of(page)
    assert shown.count("75.0 %") == 4  # two ends, and both ends of the map with signs
    assert shown.count("Of the map's total.") == 3
    assert "Own values: 1 to 1.1." in shown
    assert "All maps of a picture have one colour scale" in shown
    assert "Colours are scaled for each map by itself" not in shown
    assert "3" in re.search(r'<table class="values">.*?</table>', page.split("<figcaption>")[3]).group()


def test_many_maps_come_with_a_table():
    heats = [dataclasses.replace(HEAT, trust=samples.trust(v)) for v in ("supported", "weak", "cannot tell", "weak")]
    explained = ExplainedPicture("a.png", samples.picture(), "7", [("7", 0.9)], heats)
    page = explanation_page(ExplanationPage("Why", "model", "c", [explained], one_scale=True))
    table = re.search(r'<div class="glance">.*?</table>', page).group()
    assert re.findall(r'<tr class="trusted-row.*?</svg>([a-z ]+)</td>', table) == [
        "supported",
        "weak",
        "cannot tell",
        "weak",
    ]
    assert 'class="score"' not in page.split("</style>")[1]  # the lines stand in the table
    assert "4 maps were tested. Of maps that are random, one in twenty" in table
    assert table.index("do not pick the one that you like best") < table.index("<table")
    assert "glance" not in page_of(heats[0]).split("</style>")[1]


def test_two_maps_come_with_the_warning_and_one_without():
    heat = dataclasses.replace(HEAT, trust=samples.trust())
    explained = ExplainedPicture("a.png", samples.picture(), "7", [("7", 0.9)], [heat, heat])
    page = explanation_page(ExplanationPage("Why", "model", "c", [explained]))
    assert text_of(page).count("2 maps were tested.") == 1
    assert page.index('<div class="shown"><div class="glance">') < page.index(
        '<div class="maps">'
    )  # beside the picture
    assert "maps were tested. Of maps" not in text_of(page_of(heat))


def test_the_parts_of_a_score_stand_with_the_map_that_shares_it_out():
    parts = (("squares", 6.2), ("positions", 0.4), ("biases of the head", 1.0), ("biases of the norms", 0.6))
    page = page_of(dataclasses.replace(HEAT, logit=8.2, parts=parts))
    assert "Of the score 8.20: squares 6.20, positions 0.40, biases 1.60." in text_of(page)
    assert 'class="parts"' not in page_of(HEAT)


def test_the_common_scale_names_shares_where_their_colours_are():
    sharp = dataclasses.replace(HEAT, values=np.array([[0.0, 3.0], [1.0, 0.0]]))
    explained = ExplainedPicture("a.png", samples.picture(), "7", [("7", 0.9)], [sharp, sharp])
    page = explanation_page(ExplanationPage("Why", "model", "c", [explained], one_scale=True))
    named = re.findall(r'<text x="([\d.]+)%" y="16">(\d+ %)</text>', page)
    assert named[:3] == [(f"{100 * (share / 0.75) ** 0.5:.1f}", f"{share:.0%}".replace("%", " %")) for share in TICKS]
    assert 'class="ticks"' not in page_of(sharp)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (7, 7), (5, 11)])
def test_values_stand_in_the_table_in_their_place(rows, columns):
    values = np.random.default_rng(0).normal(size=(rows, columns)) * 10.0 ** np.arange(-columns, 0)
    table = re.search(r'<table class="values">.*?</table>', page_of(dataclasses.replace(HEAT, values=values))).group()
    body = table.split("<tbody>")[1]
    shown = [[float(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in body.split("</tr>")[:-1]]
    np.testing.assert_allclose(shown, values, rtol=5e-4)


@pytest.mark.parametrize("colour", [False, True])
def test_each_picture_is_stored_once_however_many_maps(colour):
    picture = samples.picture(64, 64, colour)
    one, six = (
        len(explanation_page(ExplanationPage("t", "m", "", [ExplainedPicture("n", picture, None, [], [HEAT] * n)])))
        for n in (1, 6)
    )
    assert six - one < 5 * 2500


def test_ids_are_unique():
    ids = [value for _, name, value in Structure(explanation_page(samples.explanation())).values if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', explanation_page(samples.explanation())))
    assert used <= set(ids)


def test_no_pictures_and_no_answer():
    assert "No picture." in text_of(explanation_page(ExplanationPage("t", "m", "", [])))
    assert "The model gave no answer." in text_of(page_of(HEAT, top=()))


def test_budget_and_same_bytes(tmp_path):
    """Eight pictures of 224 pixels with six maps of 16 by 16 squares stay below 2 MB, noise pictures aside."""
    y, x = np.mgrid[:224, :224]
    picture = np.stack([x, y, (x + y) // 2], -1).astype(np.uint8)
    heats = [dataclasses.replace(HEAT, values=np.random.default_rng(i).random((16, 16))) for i in range(6)]
    page = ExplanationPage(
        "t", "m", "c", [ExplainedPicture(str(i), picture, None, [("a", 1.0)], heats) for i in range(8)]
    )
    for name in ("one.html", "two.html"):
        write_explanation_page(tmp_path / name, page)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert (tmp_path / "one.html").stat().st_size < 2_000_000
