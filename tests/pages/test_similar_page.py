"""The page of the nearest images shows what it is given, and a patch that is pointed at marks its partner."""

import json

import pytest

from tests.pages import samples
from tests.pages.browser import CHROMIUM, Browser
from tests.pages.structure import PAYLOADS, Structure


def test_all_that_is_given_is_on_the_page() -> None:
    page = samples.similar_page()
    text = " ".join(Structure(page).text)
    for each in (
        "0.125",
        "1.125",
        "a.png1",
        "398",
        "class",
        "note a.png",
        "vitrail explain 'model a.png' a.png --similar-to a.png0",
    ):
        assert each in text
    assert page == samples.similar_page()
    partners = ",".join(map(str, samples.side(1).partners.ravel()))
    assert page.count(f'data-partners="{partners}"') == 2  # of two pairs, and none where an image is not at hand
    without = samples.similar_page(shown=False)
    assert "data-partners=" not in without
    assert "1.125" in without


def test_text_of_strangers_stays_text() -> None:
    wanted = Structure(samples.similar_page()).elements
    assert [payload for payload in PAYLOADS if Structure(samples.similar_page(payload)).elements != wanted] == []


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_pointing_at_a_patch_marks_its_partner(tmp_path) -> None:
    file, own = tmp_path / "similar.html", samples.side(1)
    file.write_text(samples.similar_page(), encoding="utf-8")
    browser = Browser()
    try:
        browser.open(file)
        assert browser.ask("document.documentElement.dataset.script") == "ran"
        assert browser.errors == []
        assert [url for url in browser.requests if not url.startswith("data:")] == [file.as_uri()]
        marked = """(() => {
            const [own, other] = document.querySelectorAll(".agreed .stage");
            own.focus();
            const press = (key) => own.dispatchEvent(new KeyboardEvent("keydown", { key }));
            press("Home"); press("ArrowDown"); press("ArrowRight");
            const place = (stage) => [...stage.querySelectorAll(".patch:not(.dark)")].map((mark) => ["x", "y"].map(
                (name) => Number(mark.getAttribute(name))));
            const told = own.closest(".agreed").querySelector(".readout").textContent;
            return JSON.stringify([place(own), place(other), told]);
        })()"""
        (here,), (there,), told = json.loads(browser.ask(marked))
        row, column = divmod(int(own.partners[1, 1]), 4)
        assert here == [10, 10]
        assert there == [10 * column, 10 * row]
        assert f"{own.cosines[1, 1]:.2f}" in told
        assert f"{own.usual[1, 1]:.2f}" in told
    finally:
        browser.close()
