"""The tables of methods in the docs are those of the rows."""

from tests.explain.methods_page import PAGE, tables_of, written
from tests.explain.outside import METHOD
from vitrail.explain import METHODS
from vitrail.explain.methods import METHODS_OF_TEXTS

ROWS = [*METHODS.values(), *METHODS_OF_TEXTS.values()]


def test_the_page_has_the_tables_of_the_rows() -> None:
    text = PAGE.read_text("utf-8")
    assert text == written(text, tables_of(ROWS)), "python -m tests.explain.methods_page writes them anew"


def test_a_row_more_is_two_lines_more_and_one_for_each_option() -> None:
    text = PAGE.read_text("utf-8")
    more = written(text, tables_of([*ROWS, METHOD])).splitlines()
    assert len(more) == len(text.splitlines()) + 2 + len(METHOD.options)
    assert [line for line in more if METHOD.summary in line]
