"""Texts become ids and come back, whatever stands in them; what is unknown is named."""

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.errors import must_raise
from vitrail.data.columns import BEGIN, END, FIRST, PADDING, Labels, Texts, Vocabulary
from vitrail.errors import DataError, UsageError
from vitrail.tasks import Classes

DIGITS = Vocabulary(tuple("0123456789"))
LETTERS = st.text(alphabet="abcé 猫", min_size=1, max_size=12)


def test_the_three_ids_that_are_no_words_come_first() -> None:
    assert (PADDING, BEGIN, END, FIRST) == (0, 1, 2, 3)
    assert DIGITS.outputs == 13
    assert DIGITS.encode("907") == [12, 3, 10]
    assert DIGITS.decode([BEGIN, 12, 3, 10, END, 5, PADDING]) == "907"


@settings(deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=6))
def test_texts_come_back(texts: list[str]) -> None:
    vocabulary = Vocabulary.of(texts)
    assert [vocabulary.decode(vocabulary.encode(text)) for text in texts] == texts
    rows = vocabulary.rows(texts, framed=True)
    assert rows.shape == (len(texts), max(map(len, texts)) + 2)
    assert [vocabulary.decode(row) for row in rows.tolist()] == texts
    assert (rows[:, 0] == BEGIN).all()
    assert ((rows == END).sum(axis=1) == 1).all()
    np.testing.assert_array_equal((rows != PADDING).sum(axis=1), [len(text) + 2 for text in texts])
    assert Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict()))) == vocabulary


def test_words_instead_of_characters() -> None:
    vocabulary = Vocabulary.of(["the cat", "a cat sat"], separator=" ")
    assert vocabulary.tokens == ("a", "cat", "sat", "the")
    assert vocabulary.decode(vocabulary.encode("the cat sat")) == "the cat sat"


def test_an_unknown_token_is_named_with_its_place() -> None:
    with pytest.raises(DataError, match=r"'12x4' .*'x' .*3"):
        DIGITS.encode("12x4")
    with pytest.raises(DataError):
        DIGITS.encode("")
    with pytest.raises(UsageError, match="13"):
        DIGITS.decode([3, 13])


@pytest.mark.parametrize("tokens", [(), ("a", "a"), ("",), ("ab",)])
def test_what_no_text_can_be_cut_into_is_refused(tokens: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        Vocabulary(tokens)


@pytest.mark.parametrize("values", [{}, {"tokens": "abc"}, {"tokens": ["a"], "size": 3}, {"tokens": ["a", "a"]}])
def test_a_damaged_file_is_said(values: dict) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        Vocabulary.from_dict(values)


# ---- one form of names and texts

NFC, NFD, LATIN = "caf\u00e9", "cafe\u0301", "caf\udce9"  # the last: bytes of a folder's name that are no UTF-8


def test_a_name_has_one_form_wherever_it_comes_in() -> None:
    assert len({NFC, NFD}) == 2
    given = Labels.of([NFD, "x", NFC])
    assert given.names == (NFC, "x")
    assert given.values.tolist() == [0, 1, 0]
    assert Labels(np.array([1, 0]), (NFD, "x")).names == (NFC, "x")
    assert Texts((NFD,)).values == (NFC,)
    classes = Classes((NFD, "x"))
    assert classes.names == (NFC, "x")
    assert classes.match(Labels(np.array([0, 1, 1]), (NFD, "x"))).unknown == {}
    with must_raise(UsageError, "twice"):
        Classes((NFC, NFD))
    vocabulary = Vocabulary.of([NFD])
    assert vocabulary.tokens == tuple(sorted(NFC))
    assert vocabulary.encode(NFD) == vocabulary.encode(NFC)
    assert Vocabulary(("e\u0301",)).tokens == ("\u00e9",)


def test_a_name_that_is_no_utf8_can_be_stored() -> None:
    names = Labels.of([LATIN, "\ud800", "x"]).names
    assert len({*names}) == 3
    assert NFC in names, "as it is read"
    assert json.loads("\n".join(names).join('""').replace("\n", " "))
    assert Labels.of(names).names == names
    assert Classes(names).match(Labels.of([LATIN, "x"])).unknown == {}
