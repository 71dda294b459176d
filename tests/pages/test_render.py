import base64
import dataclasses
import hashlib
import io
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from tests.pages import samples
from tests.pages.samples import PAGES
from tests.pages.structure import PAYLOADS, Structure, without_data
from vitrail.io import is_page, write_file
from vitrail.pages import Confusion, explanation_page, run_page
from vitrail.pages.render import asset, data_uri, document, escape, in_frame
from vitrail.tasks import Result
from vitrail.tasks.task import Metric


@pytest.mark.parametrize("name", PAGES)
def test_hostile_text_adds_no_element_and_no_attribute(name):
    harmless = Structure(PAGES[name]("plain")).elements
    for payload in PAYLOADS:
        hostile = PAGES[name](payload)
        assert Structure(hostile).elements == harmless, payload
        hostile.encode("utf-8")


@pytest.mark.parametrize("payload", ["plain", *PAYLOADS])
def test_a_page_in_a_frame_is_one_attribute_and_runs_nothing(payload):
    page = PAGES["evaluation"](payload)
    frame = Structure(in_frame(page))
    assert list(frame.elements) == [("iframe", ("sandbox", "srcdoc", "style"))]
    assert frame.attribute("iframe", "sandbox") == [""], "no script is allowed"
    assert frame.attribute("iframe", "srcdoc") == [page]


@settings(max_examples=300)
@given(st.text(st.characters(codec=None)))
def test_escaped_text_is_text(text):
    safe = escape(text)
    assert not set(safe) & set("<>\"'")
    page = Structure(f'<p title="{safe}">{safe}</p>')
    assert list(page.elements) == [("p", ("title",))]
    safe.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_arrives_unchanged(text):
    page = Structure(f'<p title="{escape(text)}">{escape(text)}</p>')
    assert "".join(page.text) == text
    assert page.attribute("p", "title") == [text]


@pytest.mark.parametrize("name", PAGES)
def test_no_network_address(name):
    page = PAGES[name]("plain")
    bare = without_data(page).lower()
    for word in (
        "http:",
        "https:",
        "//",
        "@import",
        "url(http",
        "srcset",
        "xmlns",
        "javascript:",
        "<link",
        "<base",
        "refresh",
    ):
        assert word not in bare, word
    structure = Structure(page)
    for _, attribute, value in structure.values:
        if attribute in ("src", "href"):
            assert value.startswith(("data:image/png;base64,", "#"))
        assert not attribute.startswith("on")
        assert attribute != "style", "an inline style is refused by the policy"


@pytest.mark.parametrize("name", PAGES)
def test_policy_names_the_style_and_script_that_are_there(name):
    page = Structure(PAGES[name]("plain"))
    (policy,) = [value for value in page.attribute("meta", "content") if "default-src" in value]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for kind in ("style", "script"):
        found = base64.b64encode(hashlib.sha256(page.content[kind].encode()).digest()).decode()
        assert re.findall(rf"{kind}-src '(.*?)';", policy) == [f"sha256-{found}"]
    assert "unsafe" not in policy


def test_assets_cannot_end_their_own_element():
    assert "</" not in asset("page.js")
    assert "</" not in asset("page.css")
    assert len(asset("page.js")) + len(asset("page.css")) < 40_000


def test_dark_and_light_text_has_enough_contrast():
    """WCAG 2 AA: 4.5 to 1 for text, for every ink on every ground, in both modes."""
    light, dark = re.findall(r":root \{(.*?)\}", asset("page.css"), re.S)[:2]

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for mode in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", mode))
        assert len(colours) >= 10
        for ink in ("ink", "soft", "blue", "orange", "green"):
            for ground in ("paper", "card", "sunk"):
                low, high = sorted(luminance(colours[name]) for name in (ink, ground))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4), (1, 1)])
def test_images_come_back_from_their_address_without_metadata(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    address = data_uri(image)
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), image)
    chunks = re.findall(rb"(IHDR|IDAT|IEND|tEXt|zTXt|iTXt|eXIf|iCCP|tIME|pHYs)", data)
    assert set(chunks) == {b"IHDR", b"IDAT", b"IEND"}
    assert data_uri(image[:, ::-1][:, ::-1]) == address


def test_a_share_that_reads_less_than_is_text() -> None:
    """`< 0.1 %`, of a probability, of a cell and of an epoch."""
    run, explained = samples.run(), samples.explained()
    rare = np.array([[2000, 1], [0, 5]])
    history = [{"epoch": 1, "waiting_fraction": 1e-4}]
    rarely = (dataclasses.replace(run.evaluation.examples[0], probability=1e-4),)
    tables = (Confusion("c", rare, ("a", "b")),)
    evaluation = Result(Metric("a", "a"), 0.99, 2006, 0.0, {}, "", tables=tables, examples=rarely)
    run = dataclasses.replace(run, history=history, evaluation=evaluation)
    images = [dataclasses.replace(explained[0], top=[("a", 0.9999), ("b", 0.0001)])]
    for page in (run_page(run), explanation_page("m", images)):
        body = page[page.index("<main>") : page.index("<script>")]
        assert "&lt; 0.1 %" in body
        assert not re.search("<(?![a-z/])", body)


def test_document_is_well_formed_and_has_a_language():
    page = Structure(document("page.html", "a <title>", "kind", {}))
    assert page.attribute("html", "lang") == ["en"]
    assert page.content["title"] == "a <title>"


def test_writing_replaces_in_one_step_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_file(path, run_page(samples.run("one")))
    write_file(path, run_page(samples.run("two ü")))
    assert path.read_text(encoding="utf-8") == run_page(samples.run("two ü"))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_known_again_by_what_made_it_and_by_nothing_that_it_says(name):
    text = PAGES[name]("plain")
    assert Structure(text).attribute("meta", "name").count("generator") == 1
    assert [kind for kind in (*PAGES, "other") if is_page(text, kind)] == [name]
    (mark,) = re.findall("<meta name=.generator.[^>]*>", text)
    mine = f"<html><head><title>My notes on vitrail</title></head><body>Its pages say {mark}.</body></html>"
    assert not is_page(mine, name)
    assert not is_page(document("page.html", mark, "other", {}), name)
