"""The page of images as a network sees them shows each beside its original, whose lost part is faded."""

import re

import pytest

from tests.pages import samples
from tests.pages.structure import PAYLOADS, Structure


@pytest.mark.parametrize("classes", [True, False])
def test_all_that_is_given_is_on_the_page(classes: bool) -> None:
    page = samples.show_page(classes=classes)
    text = " ".join(Structure(page).text)
    for each in ("a.png0", "a.png1", "a.png class", "1,234", "56", "7", "32 x 48", "epoch 2", "0.25"):
        assert each in text, each
    assert "epoch 3" not in text
    assert "vitrail data show a.png" in text
    assert page.count("<img") == 2 * 3
    (lost,) = re.findall(r'class="lost" d="M0 0H24V12H0Z(.*?)"', page)  # of the first; all of the second is seen
    assert lost == "M6 0H18V12H6Z"
    assert page.count("outline dark") == 1
    assert len(re.findall("<section><h2>", page)) == (4 if classes else 3)


def test_text_of_strangers_stays_text() -> None:
    wanted = Structure(samples.show_page()).elements
    assert [payload for payload in PAYLOADS if Structure(samples.show_page(payload)).elements != wanted] == []
