"""Templates show text as text: of any alphabet as it is, of a stranger's hand as nothing more than text."""

from collections.abc import Iterator

import pytest
from jinja2 import Environment, Undefined, UndefinedError, meta, nodes
from markupsafe import Markup

from tests.pages.samples import PAGES
from tests.pages.shown import line_chart
from tests.pages.structure import PAYLOADS, Structure
from vitrail.pages import chart, render
from vitrail.pages.render import escape, template_environment

ALPHABETS = (
    "狗与猫",
    "كلب صغير",
    "कुत्ता",
    "🐕‍🦺 👩🏽‍🔬 ☕️",
    "ἑλληνικά ёлка",
    "עִבְרִית",
    "ไทย ភាសាខ្មែរ",
    "e\u0301 naïve Ǆ",
    "نمی\u200cخواهم\u200f",
)
LITERALS = (
    "<script>alert(1)</script>",
    "{{ 7*7 }}",
    "{{ page.title }}{% raw %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}",
    "{# gone #} ${7*7} <%= x %>",
    "# line ## line",
    "&amp; &lt;b&gt;",
)
PLAIN = "qwx"  # a name that no page has of itself
SOURCES = {
    name: template_environment().loader.get_source(template_environment(), name)[0]
    for name in template_environment().list_templates()
}


def texts(page: str) -> str:
    return "".join(Structure(page).text)


@pytest.mark.parametrize("name", PAGES)
def test_names_of_any_alphabet_are_shown_as_they_are(name: str) -> None:
    page = PAGES[name](PLAIN)
    shown, labels = texts(page).count(PLAIN), sum(PLAIN in value for *_, value in Structure(page).values)
    assert shown >= 5
    for text in ALPHABETS:
        page = PAGES[name](text)
        assert texts(page).count(text) >= shown, text
        assert sum(text in value for *_, value in Structure(page).values) >= labels, text


@pytest.mark.parametrize("name", PAGES)
def test_markup_and_templates_in_a_name_are_shown_literally(name: str) -> None:
    shown, elements = texts(PAGES[name](PLAIN)).count(PLAIN), Structure(PAGES[name](PLAIN)).elements
    for text in LITERALS:
        page = PAGES[name](text)
        assert Structure(page).elements == elements, text
        assert texts(page).count(text) >= shown, text


def made_with(monkeypatch: pytest.MonkeyPatch, **other: object) -> None:
    """Make the templates anew with other options."""
    monkeypatch.setattr(render, "Environment", lambda **given: Environment(**{**given, **other}))
    template_environment.cache_clear()


@pytest.fixture
def _own_environment() -> Iterator[None]:
    yield
    template_environment.cache_clear()


@pytest.mark.usefixtures("_own_environment")
@pytest.mark.parametrize("name", PAGES)
def test_a_planted_environment_without_escaping_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made_with(monkeypatch, autoescape=False)
    with pytest.raises(AssertionError):
        assert Structure(PAGES[name](PAYLOADS[0])).elements == Structure(PAGES[name](PLAIN)).elements


@pytest.mark.usefixtures("_own_environment")
@pytest.mark.parametrize("name", PAGES)
def test_what_cannot_stand_in_a_page_is_replaced_by_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unwritable = ("\x00", "\x1b", "\x7f", "\ud800", "\udcff", "\u202e", "\u2066", "\uffff")
    page = PAGES[name](f"a{''.join(unwritable)}b")
    assert not any(each in page for each in unwritable)
    assert f"a{len(unwritable) * chr(0xFFFD)}b" in page
    made_with(monkeypatch, finalize=None)  # the planted fault
    assert any(each in PAGES[name](f"a{''.join(unwritable)}b") for each in unwritable)


@pytest.mark.parametrize("text", PAYLOADS)
def test_a_chart_of_hostile_text_is_finished_html_without_any_of_it(text: str) -> None:
    series = [chart.Series(text, [1.0, 2.0])]
    drawn = line_chart(text, [1, 2], series, write=lambda value: text)
    plain = line_chart(PLAIN, [1, 2], [chart.Series(PLAIN, [1.0, 2.0])], write=lambda value: PLAIN)
    assert Structure(drawn).elements == Structure(plain).elements
    assert template_environment().from_string("{{ chart }}").render(chart=drawn) == drawn


def unsafe(source: str) -> list[str]:
    """What a template says to be finished HTML, which only Python may."""
    tree = template_environment().parse(source)
    found = [node.name for node in tree.find_all(nodes.Filter) if node.name in ("safe", "forceescape", "urlize")]
    found += [type(node).__name__ for node in tree.find_all((nodes.MarkSafe, nodes.ScopedEvalContextModifier))]
    return found + [name.name for name in tree.find_all(nodes.Name) if name.name == "Markup"]


def test_no_template_says_of_a_value_that_it_is_safe() -> None:
    assert len(SOURCES) >= 8
    assert {name: unsafe(source) for name, source in SOURCES.items() if unsafe(source)} == {}
    for planted in ("{{ x|safe }}", "{% autoescape false %}{{ x }}{% endautoescape %}", "{{ Markup(x) }}"):
        assert unsafe(planted), planted


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        template_environment().from_string("{{ nothing }}").render()
    assert issubclass(template_environment().undefined, Undefined)
    shared = [name for name, source in SOURCES.items() if "{% block" not in source]
    assert {"maps.html", "parts.html", "tables.html", "trust.html"} <= set(shared)
    for name in shared:  # what a macro does not get by its arguments is the environment's
        assert meta.find_undeclared_variables(template_environment().parse(SOURCES[name])) <= set(
            template_environment().globals
        ), name


def test_finished_html_is_shown_as_it_is_and_text_is_not() -> None:
    show = template_environment().from_string("{{ value }}|{{ value ~ '<' }}").render
    assert show(value=Markup("<b>")) == "<b>|<b>&lt;"
    assert show(value="<b>") == "&lt;b&gt;|&lt;b&gt;&lt;"
    assert show(value=escape("<b>")).startswith("&amp;lt;"), "a string is text, whoever made it"
