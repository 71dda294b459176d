"""The page of an explanation shows the values that it is given, and no more than is known of them."""

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest

from tests.pages import samples
from tests.pages.shown import macro
from tests.pages.structure import Structure
from vitrail.features.similar import Neighbour
from vitrail.pages import AttributionView, ImageView, explanation_page
from vitrail.pages.colour import TICKS
from vitrail.pages.image_views import BesideView, MadeView, Sureness

ATTRIBUTION = AttributionView(
    "generic_attention", "Generic attention", "7", 8.2, np.array([[0.1, 0.4], [0.2, 0.3]]), False, True
)
TOP = (("7", 0.991), ("1", 0.009))


def page_of(
    *attributions: AttributionView, top=TOP, label: str | None = "7", one_scale: bool = False, about: str = ""
) -> str:
    maps = [dataclasses.replace(each, method=f"method {i}") for i, each in enumerate(attributions)]
    explained = ImageView("a.png", samples.an_image(), label, list(top), maps if one_scale else list(attributions))
    return explanation_page("model", [explained], "vitrail explain", about)


def text_of(page: str) -> str:
    joined = "".join(part if part.strip() else " " for part in Structure(page).text)
    return re.sub(r"\s+", " ", joined)


def ends_of(page: str) -> list[str]:
    """What stands below the first and the last colour of a map's scale, and between them."""
    return re.findall(r"<span>(.*?)</span>", re.search(r'<p class="ends">.*?</p>', page).group())


def test_the_answer_the_method_and_the_number_that_is_explained():
    shown = text_of(page_of(ATTRIBUTION))
    for each in ("99.1 %", "Generic attention", "8.2", "a.png", "model", "vitrail explain"):
        assert each in shown
    contrast = text_of(page_of(dataclasses.replace(ATTRIBUTION, contrast="1", logit=3.5)))
    assert re.search(r"7 [a-z ]*1 .*3\.5", contrast)
    assert text_of(explanation_page("m", []))
    assert text_of(page_of(ATTRIBUTION, top=())) != shown


def test_what_stands_below_the_maps_of_an_image():
    """Each number that is known is there; what is not known is not made up."""
    trust = dataclasses.replace(samples.trust(), score=2.25, interval=(2.0, 2.5))
    tested = dataclasses.replace(ATTRIBUTION, trust=trust)
    plain = ImageView("a.png", samples.an_image(), "7", [("7", 0.991), ("-1 a", 0.009)], [tested])
    sure, near = (
        Sureness(0.95, 0.99, 1391, 1400, (0.9878, 0.9966), "validation", "A note."),
        Neighbour("n.png", "", "6", 0.125),
    )
    beside = BesideView("0123abcd", 1.0, sure, True, [near])
    made = MadeView("2026-11-26T10:57+01:00", {"vitrail": "9.8.7"}, "feed0123", "of 160 of 9")

    def shown(view: ImageView, made: MadeView | None = None) -> str:
        return text_of(explanation_page("m", [view], "vitrail explain", made=made)).replace("\u00a0", " ")

    found = shown(dataclasses.replace(plain, beside=beside), made)
    for each in (
        "95 % to 99 %",
        "1 400 validation",
        "1 391",
        "99.4 %",
        "98.8 % to 99.7 %",
        "A note.",
    ):
        assert each in found
    for each in (
        "--contrast='-1 a'",
        "0123abcd",
        "2026-11-26 10:57+01:00",
        "vitrail 9.8.7",
        "feed0123",
        "of 160 of 9",
        "0.125",
    ):
        assert each in found
    bare = shown(plain)
    for each in ("1 391", "0123abcd", "2026-11-26", "0.125", "--nearest", "spot in its middle"):
        assert each not in bare
    bumps = [macro("about_answer.html", "bump_line")(bump, [trust]).strip() for bump in (1.0, 2.1, 2.6)]
    assert len(set(bumps)) == 3
    assert [re.findall(r"\d\.\d\d", words)[:2] for words in bumps] == [
        ["1.00", "2.25"],
        ["2.10", "2.25"],
        ["2.60", "2.25"],
    ]
    for maps, is_said in (([tested], True), ([ATTRIBUTION], False)):
        beside = BesideView(bump=1.0)
        assert ("spot in its middle" in shown(dataclasses.replace(plain, attributions=maps, beside=beside))) == is_said


def test_the_class_that_a_map_is_held_against_in_one_line():
    view = ImageView("a.png", samples.an_image(), None, list(TOP), [ATTRIBUTION])
    assert view.second == "1"
    for maps, second in (
        ([dataclasses.replace(ATTRIBUTION, target="1")], "7"),
        ([dataclasses.replace(ATTRIBUTION, contrast="1")], None),
        ([dataclasses.replace(ATTRIBUTION, function="number")], None),
        ([], None),
    ):
        assert dataclasses.replace(view, attributions=maps).second == second
    blind = dataclasses.replace(ATTRIBUTION, method="one_for_all", class_specific=False)
    for maps, named in (([ATTRIBUTION], False), ([ATTRIBUTION, blind], True)):
        page = explanation_page("m", [dataclasses.replace(view, attributions=maps)], "vitrail explain")
        assert ("without one_for_all" in text_of(page)) is named, "a contrast cannot be explained by it"


def test_of_several_labels_each_stands_beside_its_threshold_and_what_is_left_out_is_counted():
    tested = dataclasses.replace(samples.attributions()[0], target="car", contrast=None)
    sure = Sureness(0.4, 0.6, 21, 40, (0.375, 0.671), "report", of="label")
    car = ImageView(
        "a.png", samples.an_image(), "car, cup", [("car", 0.456), ("cup", 0.137)], [tested], "car, bus",
        summary=("First.", "Second."), limits={"car": 0.093, "cup": 0.229}, beside=BesideView(sureness=sure),
    )  # fmt: skip
    one = dataclasses.replace(car, labels=(car, car), unexplained=3)
    for page in (one, dataclasses.replace(car, unexplained=3)):
        shown = text_of(explanation_page("m", [page])).replace("\u00a0", " ")
        assert shown.index("First.") < shown.index("45.6 %"), "the answer in words stands before the bars"
        for each in (
            "said from 9.3 %",
            "said from 22.9 %",
            "3 more are",
            "40 times",
            "21 times",
            "52.5 %",
        ):
            assert each in shown, each
    blank = dataclasses.replace(tested, values=np.zeros((0, 0)), half=None, replaced=None)
    bare = dataclasses.replace(car, attributions=[blank], unexplained=0)
    folded = explanation_page("m", [dataclasses.replace(bare, labels=(bare, bare))])
    assert "Second." in text_of(folded)
    assert "Second." not in " ".join(Unfolded(folded).text), "one line for all labels without evidence"


class Unfolded(Structure):
    """The text that is seen while every fold is closed."""

    def handle_data(self, data):
        folded = self.open.count("details") > (self.open[-1:] == ["summary"])
        if not folded and self.open[-1:] not in (["style"], ["script"]):
            super().handle_data(data)


def test_a_page_begins_with_what_anybody_can_read_and_its_terms_are_folded_away():
    tested = dataclasses.replace(samples.attributions()[0], target="7", contrast=None, title="Generic attention")
    explained = ImageView("a.png", samples.an_image(), "7", list(TOP), [tested], summary=("In plain words.",))
    page = explanation_page("model", [explained], "vitrail explain")
    marks = (
        "In plain words.",
        'class="pictures"',
        ">99.1\xa0%<",
        ">8\xa0%<",
        ">86\xa0%<",
        'class="map"',
        "<summary>",
        'id="print"',
    )
    found = [page.split("</style>")[1].index(mark) for mark in marks]
    assert found == sorted(found), "as a screen reader tells it"
    terms = re.compile(r"logit|composite|surrogate|p-value|fill|masked|precision|smoothness|\bnats\b")
    seen = " ".join(Unfolded(page).text).partition("model")[2]
    assert not terms.search(seen), terms.search(seen)
    assert len(set(terms.findall(text_of(page).partition("model")[2]))) >= 6, "and all of it is there"
    assert page.count('class="outline"') == 3  # of both images, and of what carries half of the drop
    for other in ("cannot tell", "no better than random"):
        pale = dataclasses.replace(tested, trust=samples.trust(other))
        page = explanation_page("m", [dataclasses.replace(explained, attributions=[pale])])
        assert page.count('class="outline"') == 2, "nothing is known to carry anything"


def test_a_line_of_an_image_without_evidence_says_that_the_model_was_trained_on_it():
    none = dataclasses.replace(ATTRIBUTION, values=np.zeros((0, 0)), trust=samples.trust("cannot tell"))
    view = ImageView("a.png", samples.an_image(), "7", list(TOP), [none], summary=("An answer.", "No reason."))
    told = macro("about_answer.html", "learnt_line")()
    for learnt in (True, False):
        page = explanation_page("m", [dataclasses.replace(view, beside=BesideView(learnt=learnt))])
        assert page.count(told) == learnt


def test_sinks_among_the_decisive_parts_are_counted_where_no_fold_hides_them():
    (tested, *_) = samples.attributions()
    decisive = tested.half | tested.replaced[0].mask
    some, figures = np.arange(decisive.size).reshape(decisive.shape) < 6, []
    for sinks in (None, ~decisive, some, decisive):
        view = ImageView("a.png", samples.an_image(), "7", list(TOP), [dataclasses.replace(tested, sinks=sinks)])
        figures.append(Counter(re.findall(r"\d+", " ".join(Unfolded(explanation_page("m", [view])).text))))
        inside, of = view.attributions[0].decisive_sinks
        assert of == (0 if sinks is None else decisive.sum())
        assert inside == (0 if sinks is None else (decisive & sinks).sum())
    of = int(decisive.sum())
    assert figures[1] == figures[0], "no sink is decisive"
    assert 0 < (decisive & some).sum() < of
    assert figures[2] - figures[0] == Counter([str((decisive & some).sum()), str(of)])
    assert figures[3] - figures[0] == Counter([str(of)] * 2)


def test_what_is_known_of_a_map_changes_what_is_said_of_it():
    """A blind method, a class that the model did not choose, a label that is another: each is said."""
    pages = [
        page_of(ATTRIBUTION),
        page_of(dataclasses.replace(ATTRIBUTION, class_specific=False)),
        page_of(dataclasses.replace(ATTRIBUTION, target="1")),
        page_of(ATTRIBUTION, label="1"),
        page_of(ATTRIBUTION, label=None),
        page_of(dataclasses.replace(ATTRIBUTION, trust=samples.trust())),
    ]
    assert len({text_of(page) for page in pages}) == len(pages)


def test_a_long_class_name_has_the_width_of_its_bar():
    page = page_of(ATTRIBUTION, top=(("immunohistochemistry", 0.99999), ("1", 1e-5)))
    cell = r'<th scope="row">immunohistochemistry<svg class="bar".*?</svg></th><td class="figure">(.*?)</td>'
    assert re.findall(cell, page) == ["&gt; 99.9 %"]


def test_what_to_know_of_the_probabilities_stands_there_once():
    assert (
        page_of(ATTRIBUTION, ATTRIBUTION, about="at most about 91 %; <i>").count("at most about 91 %; &lt;i&gt;") == 1
    )
    assert "<li></li>" not in page_of(ATTRIBUTION)


def test_what_a_method_leaves_out_stands_there_once():
    told = dataclasses.replace(ATTRIBUTION, about="Not the <b>values</b>.")
    assert page_of(told, told).count("Not the &lt;b&gt;values&lt;/b&gt;.") == 1
    assert page_of(told, dataclasses.replace(told, method="other", about="Nor")).count("<li>Nor</li>") == 1


def test_the_legend_states_the_range_in_raw_units():
    page = page_of(dataclasses.replace(ATTRIBUTION, values=np.array([[0.1, 1.4, 0.2, 0.1]])))
    assert ends_of(page) == ["0", "", "1.4"]
    against, zero, favour = ends_of(
        page_of(dataclasses.replace(ATTRIBUTION, signed=True, values=np.array([[-0.5, 2.0]])))
    )
    assert (against.split()[0], zero, favour.split()[0]) == ("−2.5", "0", "2.5")
    even = dataclasses.replace(ATTRIBUTION, values=np.array([[0.020, 0.022, 0.020, 0.020]]))
    assert ends_of(page_of(even)) == ["0", "", "0.0615"], "a nearly even map is not stretched"


@pytest.mark.parametrize("value", [0.0, 0.25, np.nan])
def test_a_map_without_signal_is_not_coloured(value):
    page = page_of(dataclasses.replace(ATTRIBUTION, values=np.full((2, 2), value)))
    assert 'class="overlay"' in page_of(ATTRIBUTION)
    assert 'class="overlay"' not in page
    assert 'class="scale"' not in page


def test_notes_are_shown_and_so_is_what_a_number_is_missing_for():
    assert "<li>a caveat</li>" in page_of(dataclasses.replace(ATTRIBUTION, notes=("a caveat",)))
    holes = dataclasses.replace(ATTRIBUTION, values=np.array([[np.nan, 1, 2.0]]))
    assert re.search(r"\b1 patch", text_of(page_of(holes)))
    assert not re.search(
        r"\b1 patch", text_of(page_of(dataclasses.replace(ATTRIBUTION, values=np.array([[0.5, 1, 2.0]]))))
    )


@pytest.mark.parametrize(
    ("verdict", "pale"), [("supported", 0), ("weak", 0), ("no better than random", 1), ("cannot tell", 1)]
)
def test_a_map_that_the_evidence_does_not_support_is_pale(verdict, pale):
    page = page_of(dataclasses.replace(ATTRIBUTION, trust=samples.trust(verdict)))
    assert page.count('<g class="pale"><image class="overlay"') == pale
    assert page.count('class="frame hatched"') == pale
    assert page.count('class="scale faint"') == pale
    assert verdict in text_of(page).lower()


def test_one_scale_for_all_maps_of_an_image():
    """The map with the largest fraction reaches the last colour; the legend of all says which fraction that is."""
    even = dataclasses.replace(ATTRIBUTION, values=np.ones((2, 2)) + np.array([[0, 0.1], [0, 0]]))
    sharp = dataclasses.replace(ATTRIBUTION, values=np.array([[0.0, 3.0], [1.0, 0.0]]))
    signed = dataclasses.replace(ATTRIBUTION, values=np.array([[1.0, -1.0], [1.0, -1.0]]), signed=True)
    page = page_of(even, sharp, signed, one_scale=True)
    assert text_of(page).count("75.0 %") == 4  # two ends, and both ends of the map with signs
    assert text_of(page) != text_of(page_of(even, sharp, signed))
    assert "3" in re.search(r'<table class="values">.*?</table>', page.split("<figcaption>")[3]).group()
    named = re.findall(r'<text x="([\d.]+)%" y="16">(\d+ %)</text>', page_of(sharp, sharp, one_scale=True))
    assert named[:3] == [
        (f"{100 * (fraction / 0.75) ** 0.5:.1f}", f"{fraction:.0%}".replace("%", " %")) for fraction in TICKS
    ]
    assert 'class="ticks"' not in page_of(sharp)


def test_many_maps_come_with_a_table_and_two_with_a_warning():
    verdicts = ["supported", "weak", "cannot tell", "weak"]
    attributions = [dataclasses.replace(ATTRIBUTION, trust=samples.trust(verdict)) for verdict in verdicts]
    page = page_of(*attributions, one_scale=True)
    table = re.search(r'(?s)<div class="glance">.*?</table>', page).group()
    assert re.findall(r'<tr class="trusted-row.*?</svg>([a-z ]+)</td>', table) == verdicts
    assert 'class="score"' not in page.split("</style>")[1]  # the lines stand in the table
    assert "glance" not in page_of(attributions[0]).split("</style>")[1]
    two = page_of(attributions[1], attributions[3])
    assert text_of(two).count("2 maps") == 1
    assert two.index('<div class="glance">') < two.index('<div class="maps">')  # beside the image


def test_the_parts_of_a_score_stand_with_the_map_that_shares_it_out():
    parts = (("patches", 6.2), ("positions", 0.4), ("biases of the head", 1.0), ("biases of the norms", 0.6))
    shown = text_of(page_of(dataclasses.replace(ATTRIBUTION, logit=8.2, parts=parts)))
    for figure in ("8.20", "6.20", "0.40", "1.60"):
        assert figure in shown
    assert 'class="parts"' not in page_of(ATTRIBUTION)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (5, 11)])
def test_values_stand_in_the_table_in_their_place(rows, columns):
    values = np.random.default_rng(0).normal(size=(rows, columns)) * 10.0 ** np.arange(-columns, 0)
    table = re.search(
        r'<table class="values">.*?</table>', page_of(dataclasses.replace(ATTRIBUTION, values=values))
    ).group()
    body = table.split("<tbody>")[1]
    shown = [[float(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in body.split("</tr>")[:-1]]
    np.testing.assert_allclose(shown, values, rtol=5e-4)


@pytest.mark.parametrize("colour", [False, True])
def test_each_image_is_stored_once_however_many_maps(colour):
    image = samples.an_image(64, 64, colour)
    one, six = (len(explanation_page("m", [ImageView("n", image, None, [], [ATTRIBUTION] * n)])) for n in (1, 6))
    assert six - one < 5 * 2500


def test_ids_are_unique():
    ids = [value for _, name, value in Structure(samples.explanation()).values if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', samples.explanation()))
    assert used <= set(ids)


def test_budget_and_same_bytes():
    """Eight images of 224 pixels with six maps of 16 by 16 patches stay below 2 MB, noise images aside."""
    y, x = np.mgrid[:224, :224]
    image = np.stack([x, y, (x + y) // 2], -1).astype(np.uint8)
    attributions = [
        dataclasses.replace(ATTRIBUTION, values=np.random.default_rng(i).random((16, 16))) for i in range(6)
    ]
    images = [ImageView(str(i), image, None, [("a", 1.0)], attributions) for i in range(8)]
    one, two = (explanation_page("m", images, "c") for _ in range(2))
    assert one == two
    assert len(one.encode()) < 2_000_000
