"""Shares as percentages: never certain by rounding, neither in tables nor in sentences; and so with odds."""

import math

import pytest

from vitrail.text import number, percent, percent_in_words, plural, points, rounded, short_paths, times_words


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (1, "100 %"),
        (0.99999, "> 99.9 %"),
        (0.0, "0 %"),
        (1e-9, "< 0.1 %"),
        (0.5, "50.0 %"),
        (None, "–"),
        (0.991, "99.1 %"),
    ],
)
def test_percentages_never_round_to_certainty(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_so_many_decimals_as_are_asked_for() -> None:
    assert [percent(-0.002, 0), percent(-0.0002), percent(-0.02, 0)] == ["0 %", "0.0 %", "-2 %"]
    assert percent(0.97684, 2) == "97.68 %"
    assert [percent(value, 0) for value in (0.0, 0.004, 0.5, 0.996, 1.0)] == ["0 %", "< 1 %", "50 %", "> 99 %", "100 %"]


def test_shares_in_sentences() -> None:
    shares = [0.0, 1e-9, 0.0004, 0.004, 0.01, 0.5, 0.99, 0.995, 0.9999, 1.0]
    told = ["0", "under 0.1", "under 0.1", "0.4", "1", "50", "99", "99.5", "over 99.9", "100"]
    assert [percent_in_words(share) for share in shares] == [f"{words} %" for words in told]


def test_a_difference_of_shares_is_in_points_with_its_sign_and_never_below_nothing() -> None:
    differences = [0.034, -0.002, -0.0004, 0.0004, 0.0, -0.0, 1, -1.0, 0.00051]
    assert [points(each) for each in differences] == ["+3.4", "−0.2", *["0.0"] * 4, "+100.0", "−100.0", "+0.1"]


def test_odds_are_never_rounded_up_to_a_limit() -> None:
    for count in (2, 3, 10, 21, 1000, 21_841):
        assert times_words(math.log(count)) == (f"{count:,} times" if count >= 10 else f"{count}.0 times")
        assert times_words(math.log(count) - 1e-6) != times_words(math.log(count))
    assert [times_words(log) for log in (-1.0, 0.0, math.log(9.97), 13.9, 1e5)] == [
        *("0.3 times", "1.0 times", "9.9 times", "over a million times", "over a million times"),
    ]
    assert "nan" not in times_words(math.nan)


def test_a_number_has_the_digits_that_its_interval_leaves() -> None:
    told = [(87.86, 28.98), (87.86, 9.98), (0.12345, 0.031), (-1234.56, 290.0), (-0.01, 3.0), (87.86, None)]
    assert [rounded(*each) for each in told] == ["88", "87.9", "0.123", "−1\u202f235", "0.0", "87.86"]


def test_numbers() -> None:
    for value, shown in (
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (-2.5, "−2.5"),
        (0, "0"),
        (1234567, "1\u202f234\u202f567"),
        (0.00025, "2.5e−4"),
        (1e-7, "1e−7"),
        (0.0123456, "0.01235"),
        (123456.7, "1.235e5"),
        (3, "3"),
        (-0.0, "0"),
    ):
        assert number(value) == shown


def test_plural() -> None:
    assert [plural(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


@pytest.mark.parametrize(
    ("text", "one", "two"),
    [
        ("/data/my photos/a.jpg", "a.jpg", "…/my photos/a.jpg"),
        ("/home/me/a.jpg: no file (/home/me/b.jpg)", "a.jpg: no file (b.jpg)", "…/me/a.jpg: no file (…/me/b.jpg)"),
        ("--out=/tmp/x/p.html", "--out=p.html", "--out=…/x/p.html"),
        ("/x y/b and /z/u/v/c are one", "b and c are one", "/x y/b and …/v/c are one"),
        *[(same, same, same) for same in ("/a.jpg", "photos/cat/a.jpg", "../a/b.jpg: no", "https://host.org/a/b.tar")],
        *[(same, same, same) for same in ("hf:OWNER/NAME at 12/13", "digits/7", "~/a/b/c")],
    ],
)
def test_an_absolute_path_is_its_last_names(text: str, one: str, two: str) -> None:
    assert (short_paths(text, 1), short_paths(text)) == (one, two)
