"""An attribution shows itself in a notebook: small, static, escaped, with the range of its colours."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from vitrail.explain.attribution import Attribution, caveats
from vitrail.pages.colour import MISSING, SEQUENTIAL, patch_colours, scaled, value_range
from vitrail.pages.render import MOST_MAPS, attribution_html


def attribution_of(values: torch.Tensor, signed: bool = False, **more: object) -> Attribution:
    images = len(values)
    given: dict[str, object] = {
        "target": torch.arange(images),
        "logit": torch.full((images,), 2.5),
        "method": "generic_attention",
        "class_specific": True,
        "notes": caveats(values) if values.dim() == 3 else (),
    }
    return Attribution(values, signed=signed, **{**given, **more})


def colours(text: str) -> list[tuple[int, ...]]:
    found = re.findall(r'<rect [^>]*fill="rgb\((\d+),(\d+),(\d+)\)"', text)
    return [tuple(map(int, each)) for each in found]


def tags(text: str) -> list[str]:
    seen: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append(f"{tag} {[name for name, _ in attributes]}")
    parser.feed(text)
    return seen


@pytest.mark.parametrize("signed", [False, True])
def test_every_patch_has_the_colour_that_a_page_gives_it(signed: bool) -> None:
    values = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    shown = torch.tensor(colours(attribution_of(values, signed)._repr_html_())).reshape(2, 3, 4, 3)
    for one, drawn in zip(values, shown, strict=True):
        wanted = torch.from_numpy(patch_colours(one.numpy(), signed))
        assert (drawn - wanted.int()).abs().max() <= 1


def test_the_range_and_what_is_explained_stand_beside_the_map() -> None:
    text = attribution_of(torch.tensor([[[0.25, 4.0]]]))._repr_html_()
    assert "generic attention" in text
    for shown in ("0 (2.5)", "4.25", "2: 4"):
        assert shown in text
    signed = attribution_of(torch.tensor([[[-1.0, 0.5]]]), True, contrast=torch.tensor([3]), class_specific=False)
    assert re.search(r"−1\.5 \w+, 1\.5 ", signed._repr_html_())
    assert re.search(r"class 0 [a-z ]*3", signed._repr_html_())
    assert "class-agnostic" in signed._repr_html_()
    assert "class 0" not in attribution_of(torch.ones(1, 1, 2), target=torch.tensor([-1]))._repr_html_()


def test_a_map_of_nothing_has_no_colours() -> None:
    constant = attribution_of(torch.full((1, 2, 2), 0.5))._repr_html_()
    assert set(colours(constant)) == {MISSING}
    assert re.search(r"no signal.* 0\.5\b", constant)
    nothing = attribution_of(torch.full((1, 2, 2), torch.nan))._repr_html_()
    assert set(colours(nothing)) == {MISSING}
    some = colours(attribution_of(torch.tensor([[[torch.nan, 0.0, 1.0]]]))._repr_html_())
    assert some == [MISSING, SEQUENTIAL[0], SEQUENTIAL[-1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 1e-14, 1e-12, 1e-7, 1e-5, 1e-4, 2e-4, 1e-2])
def test_a_map_has_colours_exactly_where_its_note_does_not_say_that_there_is_no_signal(
    dtype: torch.dtype, spread: float
) -> None:
    """At 1e-5 of single precision the note said so, and the legend stated a range."""
    attribution = attribution_of(1 + spread * torch.linspace(0, 1, 4, dtype=dtype).reshape(1, 2, 2))
    silent = attribution.notes == (("no signal",),)
    assert value_range(attribution.values[0].numpy(), False).flat == silent
    assert scaled(attribution.values[0].numpy(), False, 0.5)[0].flat == silent
    text = attribution._repr_html_()
    assert (set(colours(text)) == {MISSING}) == ("no signal" in text) == silent


def test_written_tokens_have_a_map_each() -> None:
    values = torch.rand(2, 3, 2, 2)
    shape = torch.zeros(2, 3)
    text = attribution_of(values, target=shape.long(), logit=shape, notes=((), ("a caveat",)))._repr_html_()
    assert len(colours(text)) == 2 * 3 * 4
    assert "image 1, token 2: 0" in text
    assert text.count("a caveat") == 3


def test_text_of_strangers_is_text() -> None:
    bad = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    harmless, harmful = (
        attribution_html(word, [(word, np.array([[0.0, 1.0]]), [word])], False, True) for word in ("a", bad)
    )
    assert tags(harmless) == tags(harmful)
    assert "<script" not in harmful
    assert "http" not in harmful


def test_it_stays_small() -> None:
    text = attribution_of(torch.rand(100, 14, 14))._repr_html_()
    assert len(colours(text)) == MOST_MAPS * 196
    assert f"{100 - MOST_MAPS} more" in text
    assert len(text) < 400_000
    assert len(colours(attribution_of(torch.rand(3, 128, 128))._repr_html_())) == 128 * 128
    assert colours(attribution_of(torch.rand(0, 4, 4))._repr_html_()) == []
