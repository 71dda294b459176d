"""The pages in a real browser: nothing is refused or fetched, the script runs, and what it tells is what was given."""

import base64
import dataclasses
import re

import numpy as np
import pytest

from tests.audit.marked import digits, hanging
from tests.pages import samples
from tests.pages.browser import CHROMIUM, Browser
from tests.pages.samples import PAGES
from tests.pages.structure import PAYLOADS
from vitrail.audit import EDITS, audit, sampling
from vitrail.audit.changes import Change, PartChange, PartTest
from vitrail.explain.reporting.explained import ExplainedImage
from vitrail.explain.reporting.report import Report
from vitrail.pages import ImageView, explanation_page, run_page
from vitrail.pages.image_views import AreasView
from vitrail.tasks import ClassPrediction
from vitrail.text import times_words

NAMES = ("run", "explanation", "similar", "show")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine"),
]


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name in NAMES:
        (folder / f"{name}.html").write_text(PAGES[name]("plain"), encoding="utf-8")
    return folder


def calm(browser: Browser, path) -> None:
    """No message of the console, and no request but for the page itself and data inside it."""
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.as_uri()]


@pytest.mark.parametrize("name", NAMES)
def test_script_runs_and_nothing_is_refused_or_fetched(browser, pages, name):
    path = pages / f"{name}.html"
    browser.open(path)
    assert browser.ask("document.documentElement.dataset.script") == "ran"
    calm(browser, path)
    assert browser.ask("[...document.images].every((image) => image.naturalWidth > 0)")
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"


def test_policy_refuses_a_foreign_script_and_an_inline_style(browser, pages, tmp_path):
    """The planted fault: without the policy both would act, and `calm` must see the refusal."""
    text = (pages / "run.html").read_text(encoding="utf-8")
    planted = tmp_path / "planted.html"
    planted.write_text(
        text.replace("</h1>", '</h1><script>window.bad = 1</script><b id="b" style="color:red">b</b>', 1)
    )
    browser.open(planted)
    assert browser.ask("window.bad === undefined")
    assert browser.ask("getComputedStyle(document.getElementById('b')).color !== 'rgb(255, 0, 0)'")
    assert len(browser.errors) == 2
    with pytest.raises(AssertionError):
        calm(browser, planted)


def test_hostile_text_runs_nothing(browser, tmp_path):
    text = "<img src=x onerror='document.title=1'></script><script>document.title=2</script>"
    for name, page in (("run.html", run_page(samples.run(text))), ("explanation.html", samples.explanation(text))):
        (tmp_path / name).write_text(page, encoding="utf-8")
        browser.open(tmp_path / name)
        assert text in browser.ask("document.title")
        calm(browser, tmp_path / name)


SEEN = """(() => {
    document.querySelectorAll(".controls, .readout, .cursor").forEach((only) => only.remove());
    const seen = [...document.querySelectorAll("main *:not(button)")].filter((each) => each.checkVisibility());
    return [seen.map((each) => each.tagName).join(" "), document.querySelector("main").innerText];
})()"""


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_complete_without_the_script(browser, pages, name):
    """What is seen with the script is seen without it, but for controls and readouts, which do nothing then."""
    browser.open(pages / f"{name}.html")
    elements, text = browser.ask(SEEN)
    try:
        browser.open(pages / f"{name}.html", script=False)
        assert browser.ask("document.documentElement.dataset.script") is None
        assert not browser.ask(
            "[...document.querySelectorAll('.controls, .map .readout')].some((e) => e.checkVisibility())"
        )
        assert browser.ask(SEEN) == [elements, text]
        for part in {
            "run": (".lead", ".charts svg", ".confusion td", ".classes td", ".numbers td", ".example img"),
            "explanation": (
                ".verdict",
                ".trusted .verdict-name",
                ".glance .sign",
                ".glance td svg",
                ".map .overlay",
                ".scale",
                ".top td",
            ),
            "similar": (".pair .photo", ".agreed .overlay", ".scale"),
            "show": (".lead", ".original .photo", ".original .lost", ".together img"),
        }[name]:
            assert browser.ask(f"document.querySelectorAll('{part}').length"), part
            if part != ".numbers td":  # in a fold of the page, which opens without a script
                assert browser.ask(f"[...document.querySelectorAll('{part}')].some((e) => e.checkVisibility())"), part
        if name == "explanation":
            assert browser.ask("document.querySelectorAll('.overlay').length") == 4
            assert browser.ask("document.querySelectorAll('.values td').length") >= 2 * 3 * 12
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_seen_as_it_is(browser, tmp_path, name):
    text = "狗与猫 كلب صغير कुत्ता 🐕‍🦺 {{ 7*7 }} <script>x</script>"
    (tmp_path / "p.html").write_text(PAGES[name](text), encoding="utf-8")
    browser.open(tmp_path / "p.html")
    assert browser.ask("document.body.innerText").count(text) >= 5
    calm(browser, tmp_path / "p.html")


def test_values_in_the_page_are_the_values_given(browser, pages):
    browser.open(pages / "explanation.html")
    shown = browser.ask(
        "[...document.querySelectorAll('.values')].map((t) => [...t.tBodies[0].rows].map("
        "(r) => [...r.querySelectorAll('td')].map((c) => Number(c.textContent))))"
    )
    given = [attribution.values for explained in samples.explained() for attribution in explained.attributions]
    np.testing.assert_allclose(np.array(shown), np.stack(given), rtol=5e-4)


def test_arrow_keys_and_pointer_tell_the_patch_in_every_map(browser, pages):
    browser.open(pages / "explanation.html")
    told = "[...document.querySelectorAll('.case:first-of-type .readout')].map((line) => line.textContent)"
    given = [attribution.values for attribution in samples.explained()[0].attributions]
    browser.ask("document.querySelector('.map .stage').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert browser.ask(told) == [f"Row 3, column 2: {values[2, 1]:.4g}" for values in given]
    browser.ask("document.activeElement.blur()")
    assert all(line.startswith("Point at") for line in browser.ask(told))
    x, y = browser.ask(
        "(() => { const b = document.querySelector('.map .stage').getBoundingClientRect();"
        "return [b.left + b.width * 0.99, b.top + b.height * 0.01] })()"
    )
    browser.point(x, y)
    assert browser.ask(told) == [f"Row 1, column 4: {values[0, 3]:.4g}" for values in given]
    browser.point(1, 1)
    assert browser.ask("document.querySelectorAll('.patch').length") == 0


def test_controls_change_the_maps(browser, pages):
    browser.open(pages / "explanation.html")
    assert browser.ask("document.querySelector('.controls').checkVisibility()")
    browser.ask("document.getElementById('numbers').click()")
    assert browser.ask("document.querySelectorAll('.values-on text').length") == 6 * 12
    browser.ask("document.getElementById('numbers').click()")
    assert browser.ask("document.querySelectorAll('.values-on text').length") == 0
    look = "getComputedStyle(document.querySelector('.overlay')).imageRendering"
    assert browser.ask(look) == "pixelated"
    browser.ask("document.getElementById('smooth').click()")
    assert browser.ask(look) == "auto"
    browser.ask("document.getElementById('strength').focus()")
    browser.press("ArrowLeft")
    assert browser.ask("getComputedStyle(document.querySelector('.overlay')).opacity") == "0.64"
    browser.ask("document.getElementById('lines').click()")
    assert browser.ask("getComputedStyle(document.querySelector('.lines')).display") == "none"


def test_without_colour_the_image_shows_where_a_map_is_high(browser, pages):
    browser.open(pages / "explanation.html")
    seen = "['.veil', '.overlay'].map((kind) => getComputedStyle(document.querySelector(kind)).display)"
    assert browser.ask(seen) == ["none", "inline"]
    browser.ask("document.getElementById('colourless').click()")
    assert browser.ask(seen) == ["inline", "none"]


def test_an_image_is_printed_on_two_sides_and_the_button_prints(browser, tmp_path):
    image = dataclasses.replace(
        samples.explained()[1], attributions=samples.attributions()[:1], summary=("It is. " * 30,)
    )
    (tmp_path / "p.html").write_text(explanation_page("m", [image], "vitrail explain m a.png"), encoding="utf-8")
    browser.open(tmp_path / "p.html")
    browser.ask("window.print = () => { window.printed = true }")
    browser.ask("document.getElementById('print').focus()")
    browser.press("Enter")
    assert browser.ask("window.printed")
    printed = base64.b64decode(browser.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 2


def test_audits_are_printed_on_two_sides_with_changes_or_two_shortcuts_and_many_small_classes(
    browser, tmp_path, monkeypatch
):
    monkeypatch.setattr(sampling, "PASSES", 10**9)
    edits = [edit for edit in EDITS if edit.name in ("upper-left", "lower-right")]
    found = audit(hanging(), digits(True), count=1, method="occlusion", edits=edits)
    (shortcut,) = found.named
    assert len(shortcut.proofs) == 10
    large = dataclasses.replace(found.supported, images=12)
    rates = tuple(dataclasses.replace(large, name=f"a class {number}") for number in range(5))
    small = tuple(dataclasses.replace(large, name=f"of few {number}", images=1 + number % 2) for number in range(40))
    border = {
        "images": 58,
        "size": 0.26,
        "share": 0.5,
        "interval": (0.4, 0.6),
        "moved": 0.4,
        "moved_interval": (0.3, 0.5),
    }
    proofs = tuple(one._replace(on=0.5, out=1.5 + at, added=2.0 + at) for at, one in enumerate(shortcut.proofs))
    found = dataclasses.replace(
        found,
        verdicts={"all": rates[:1], "prediction": rates[:2], "class": (*small[:20], *rates, *small[20:])},
        areas={"border": border},
        command="vitrail audit runs/planted ./photos --fail-under 'supported>=0.7,shortcuts<=0' --out audit.html",
        shortcuts=(
            dataclasses.replace(
                shortcut,
                proofs=proofs,
                also=("the rim (19 % are recognised without it)", "the left edge (5 % are recognised without it)"),
            ),
        ),
    )
    changes = [Change(name, 0.3, 0.2, -0.1, (-0.2, 0.0)) for name in (*found.figures, *found.class_figures)]
    test, rules = PartTest(True, 2.5, (1.5, 3.5)), {"supported>=0.7": "supported>=0.7: supported is 0.1", "weak<1": ""}
    parts = (PartChange("3", "the upper left corner", test, test, 0.0, (-1.0, 1.0)),)
    later = dataclasses.replace(found, changes=tuple(changes), parts_changed=parts, rules=rules)
    (one,) = found.shortcuts
    pictures = dict.fromkeys((("3", "upper-left"), ("7", "upper-left")), found.pictures["3", "upper-left"])
    two = dataclasses.replace(found, shortcuts=(one, dataclasses.replace(one, label="7")), pictures=pictures)
    for name, each in {"later": later, "two": two, "audit": found}.items():
        (tmp_path / f"{name}.html").write_text(each.page(), encoding="utf-8")
        browser.open(tmp_path / f"{name}.html")
        for width, height in ((8.27, 11.69), (8.5, 11.0))[: 1 if name == "later" else 2]:  # A4, and letter paper
            printed = base64.b64decode(browser.send("Page.printToPDF", paperWidth=width, paperHeight=height)["data"])
            assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2, (name, height)
    names = "[...document.querySelectorAll('.rates th[scope=row]')].filter(one => one.checkVisibility())"
    shown = [*rates[:1], *rates[:2], *rates]  # of all, right and wrong, and the classes of more than two images
    assert browser.ask(f"{names}.map(one => one.textContent)") == [one.name for one in shown]
    told = "[...document.querySelectorAll('.proof')].map(one => [...one.querySelectorAll('figcaption')].slice(1)"
    captions = browser.ask(f"{told}.map(each => each.textContent))")
    for (without, with_it), proof in zip(captions, proofs, strict=True):  # of the two images that are shown, no third
        assert times_words(proof.out) in without
        assert times_words(proof.added) in with_it


def test_charts_tell_values(browser, pages):
    browser.open(pages / "run.html")
    browser.ask("document.querySelector('.chart > svg').focus()")
    browser.press("ArrowLeft")
    told = browser.ask("document.querySelector('.chart .readout').textContent")
    assert told == "epoch 4, training (plain images): 0.5, plain: 0.55"


def test_confusion_cells_are_reached_by_keys(browser, pages):
    browser.open(pages / "run.html")
    assert browser.ask("document.querySelectorAll('.confusion [tabindex=\"0\"]').length") == 1
    browser.ask("document.querySelector('.confusion [tabindex=\"0\"]').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    confusion = samples.confusion_of(4)
    count, total = confusion[1, 2], confusion[1].sum()
    told = browser.ask("document.querySelector('.confusion').closest('section').querySelector('.readout').textContent")
    assert re.findall(r"plain\d|[\d.]+", told) == [
        "plain1",
        "plain2",
        f"{count}",
        f"{total}",
        f"{100 * count / total:.1f}",
    ]


def test_class_table_sorts_both_ways(browser, pages):
    browser.open(pages / "run.html")
    recall = "[...document.querySelectorAll('.classes tbody tr')].map((row) => Number(row.cells[3].dataset.value))"
    given = [row["recall"] for row in samples.class_rows(samples.confusion_of(4), ("a", "b", "c", "d"))]
    for expected, direction in ((sorted(given), "ascending"), (sorted(given, reverse=True), "descending")):
        browser.ask("document.querySelectorAll('.classes th button')[3].focus()")
        browser.press("Enter")
        assert browser.ask(recall) == pytest.approx(expected, rel=1e-5)
        assert browser.ask("document.querySelectorAll('.classes thead th')[3].getAttribute('aria-sort')") == direction


@pytest.mark.parametrize("name", NAMES)
def test_no_sideways_scrolling_on_narrow_screens(browser, pages, name):
    try:
        for width in (360, 800):
            about = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
            browser.send("Emulation.setDeviceMetricsOverride", **about)
            browser.open(pages / f"{name}.html")
            assert browser.ask("document.documentElement.scrollWidth") <= width
    finally:
        browser.send("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("maps", [2, 17])
def test_a_table_of_maps_hides_nothing_on_any_screen(browser, tmp_path, maps):
    """Below 700 pixels it may be pushed sideways, beside the names of the methods; the page itself never."""
    areas = AreasView(0.1, 0.9, 0.4, 0.5)
    attribution = dataclasses.replace(
        samples.attributions()[0], title="Conservative propagation", contrast=None, areas=areas
    )
    verdicts = ("no better than random", "supported", "cannot tell")
    attributions = [
        dataclasses.replace(attribution, method=f"method {i}", trust=samples.trust(verdicts[i % 3]))
        for i in range(maps)
    ]
    explained = ImageView("a.png", samples.an_image(), "7", [("7", 0.9), ("1", 0.1)], attributions)
    (tmp_path / "p.html").write_text(explanation_page("m", [explained], "c"), encoding="utf-8")
    inside = "(() => { const s = document.querySelector('.glance .scroll'); return s.scrollWidth - s.clientWidth })()"
    try:
        for width in (360, 375, 500, 720, 768, 900, 1000, 1280):
            about = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
            browser.send("Emulation.setDeviceMetricsOverride", **about)
            browser.open(tmp_path / "p.html")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            assert browser.ask(inside) <= 0 or width < 700, width
            assert browser.ask("[...document.querySelectorAll('.glance td')].every((e) => e.checkVisibility())"), width
            browser.ask("document.querySelector('.glance .scroll').scrollLeft = 1000")
            left = "document.querySelector('.glance tbody th').getBoundingClientRect().left"
            assert browser.ask(f"{left} >= document.querySelector('.glance').getBoundingClientRect().left"), width
    finally:
        browser.send("Emulation.clearDeviceMetricsOverride")


def test_a_verdict_stays_below_its_own_image(browser, tmp_path):
    tested = dataclasses.replace(samples.attributions()[0], trust=samples.trust("no better than random"))
    image = ImageView("a.png", samples.an_image(), "7", [("7", 0.9)], [tested])
    answer = ClassPrediction("a.png", "7", 0.9, (("7", 0.9),), ())
    images = (ExplainedImage(answer, answer, (), image),) * 12
    verdicts = Report(images, "a model")
    (tmp_path / "run.html").write_text(
        run_page(dataclasses.replace(samples.run(), verdicts=verdicts)), encoding="utf-8"
    )
    beyond = "[...document.querySelectorAll('.example .mark')].map((mark) => mark.getBoundingClientRect().right"
    beyond += " - mark.closest('figure').getBoundingClientRect().right)"
    browser.open(tmp_path / "run.html")
    found = browser.ask(beyond)
    assert len(found) == 12
    assert max(found) < 1


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_sees_the_same_elements_whatever_the_text(browser, tmp_path, name):
    """A browser repairs markup in ways that the standard library's parser does not know."""
    look = "JSON.stringify([...document.querySelectorAll('*')].map((e) => [e.tagName, ...e.getAttributeNames()]))"
    path = tmp_path / "page.html"
    path.write_text(PAGES[name]("plain"), encoding="utf-8")
    browser.open(path)
    harmless = browser.ask(look)
    for payload in PAYLOADS:
        path.write_text(PAGES[name](payload), encoding="utf-8")
        browser.open(path)
        assert browser.ask(look) == harmless, payload
        calm(browser, path)
