"""The page of the nearest images shows what it is given, and a patch that is pointed at marks its partner."""

import json

import numpy as np
import pytest

from tests.pages.browser import CHROMIUM, Browser
from tests.pages.structure import PAYLOADS, Structure
from vitrail.pages.similar_page import (
    PairView,
    QueryView,
    SideView,
    SimilarPage,
    similar_page,
    write_similar_page,
)


def side(seed: int, rows: int = 3, columns: int = 4) -> SideView:
    draw = np.random.default_rng(seed)
    cosines = draw.uniform(0.3, 0.9, (rows, columns))
    return SideView(draw.permutation(rows * columns).reshape(rows, columns), cosines, cosines - 0.2)


def page_of(text: str = "a.png", shown: bool = True) -> SimilarPage:
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8) if shown else None
    sides = (side(1), side(2)) if shown else ()
    pairs = [PairView(f"{text}{i}", "train", text, 0.125 + i, picture, sides) for i in range(2)]
    queries = [
        QueryView(text, text, picture, pairs, f"vitrail explain m {text} --similar-to b"),
        QueryView("q", None, None, pairs),
    ]
    return SimilarPage(f"model {text}", text, "class", True, 398, queries, (f"note {text}",), f"vitrail similar {text}")


def test_all_that_is_given_is_on_the_page() -> None:
    page = similar_page(page_of())
    text = " ".join(Structure(page).text)
    for each in ("0.125", "1.125", "a.png1", "398", "class", "note a.png", "vitrail explain m a.png --similar-to b"):
        assert each in text
    assert page == similar_page(page_of())
    partners = ",".join(map(str, side(1).partners.ravel()))
    assert page.count(f'data-partners="{partners}"') == 2  # of two pairs, and none where a picture is not at hand
    without = similar_page(page_of(shown=False))
    assert "data-partners=" not in without
    assert "1.125" in without


def test_text_of_strangers_stays_text() -> None:
    wanted = Structure(similar_page(page_of())).elements
    assert [payload for payload in PAYLOADS if Structure(similar_page(page_of(payload))).elements != wanted] == []


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
def test_pointing_at_a_patch_marks_its_partner(tmp_path) -> None:
    file, own = tmp_path / "similar.html", side(1)
    write_similar_page(file, page_of())
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
            const place = (stage) => [...stage.querySelectorAll(".square:not(.dark)")].map((mark) => ["x", "y"].map(
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
