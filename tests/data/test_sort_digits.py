"""Strings of digits to be put in order: what is held out is held out, and the easiest are not forgotten."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from vitrail.data.readers import sort_digits
from vitrail.data.readers.sort_digits import in_order, make_strings, split_of
from vitrail.errors import DataError

SPLITS = ("train", "validation", "test")


def test_no_string_that_is_tested_was_ever_trained_on() -> None:
    """Whatever the seeds: a string belongs to one split by itself."""
    made = {split: make_strings(3000, split, seed=seed) for seed, split in enumerate(SPLITS)}
    sets = {split: set(strings) for split, strings in made.items()}
    assert all(len(strings) == 3000 for strings in made.values())
    assert len(sets["validation"]) == len(sets["test"]) == 3000
    assert not sets["train"] & sets["validation"]
    assert not sets["train"] & sets["test"]
    assert not sets["validation"] & sets["test"]
    for split, strings in sets.items():
        assert set(split_of(sorted(strings))) == {split}
    assert set(make_strings(500, "test", seed=5)) != set(make_strings(500, "test", seed=6))


@settings(deadline=None)
@given(st.lists(st.text(alphabet="0123456789", min_size=1, max_size=18), min_size=1, max_size=20))
def test_a_string_s_split_does_not_depend_on_its_company(strings: list[str]) -> None:
    assert split_of(strings) == [split_of([string])[0] for string in strings]
    assert [sorted(one) == list(other) for one, other in zip(strings, in_order(strings), strict=True)]


def test_training_has_short_strings_and_equal_digits() -> None:
    """Else a network is wrong on the easiest inputs, and no average shows it."""
    made = make_strings(10_000, "train")
    lengths = np.bincount([len(string) for string in made], minlength=11)
    assert lengths[1:].min() > 800  # those of 1 and 2 are all here, of the others 80 %
    assert {string for string in made if len(string) == 1} == set("0123456789")
    assert sum(len(string) > 4 and len(set(string)) == 1 for string in made) > 300
    assert {len(string) for string in make_strings(2000, "test")} == set(range(3, 11))


def test_leading_zeros_count() -> None:
    """Else 7 and 07 were one string to the hash: over many, their splits differ."""
    sevens = [f"{'0' * zeros}{number}" for number in range(1, 40) for zeros in range(4)]
    pairs = np.array(split_of(sevens)).reshape(-1, 4)
    assert (pairs != pairs[:, :1]).any()


def test_too_few_strings_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_digits, "TURNS", 5)
    with pytest.raises(DataError, match="5,000"):
        make_strings(5000, "test", longest=2)
