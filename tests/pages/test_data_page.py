"""The page of data shows each finding with its images, and what is not shown by name."""

import re

from tests.pages import samples
from tests.pages.structure import PAYLOADS, Structure


def test_all_that_is_given_is_on_the_page() -> None:
    page = samples.data_page()
    text = " ".join(Structure(page).text)
    for each in (
        "a.png0",
        "a.png1",
        "a.png2: is empty",
        "advice a.png",
        "x a.png",
        "note a.png",
        "reason a.png",
        "0.75",
        "rather a.png",
        "96.0 %",
        "1.2 %",
        "0.457",
        "0.100 to 0.200",
        "66.0 % to 91.0 %",
    ):
        assert each in text
    assert "vitrail data check a.png" in text
    assert page.count("<circle") == 2 * 3  # accuracy, and both ends of its interval
    assert page.count("<img") == 5  # not of one that is not shown, nor of one that cannot be read
    assert re.findall(r'href="#(.*?)"', page) == re.findall(r'id="(finding-.*?)"', page) == ["finding-1", "finding-2"]
    assert page == samples.data_page()


def test_text_of_strangers_stays_text() -> None:
    wanted = Structure(samples.data_page()).elements
    assert [payload for payload in PAYLOADS if Structure(samples.data_page(payload)).elements != wanted] == []
