"""Planted images by their names: what shows two digits or none is looked at, and neither learnt nor counted."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import DATA, ROOT, USAGE, Cli, must_be_understood, must_refuse, retyped
from tests.cli.explain.shown import shown_of
from tests.data.lab import digit_patches
from tests.explain.planted_lab import NETWORKS, load_planted
from vitrail.data.sets.planted import planted_digits

RUN = NETWORKS / "mean-0"


def test_images_without_a_digit_have_no_evidence(cli: Cli, tmp_path: Path) -> None:
    answer = cli("explain", RUN, "planted:empty", "--count", 2, "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    rows = json.loads(answer.out)["images"]
    assert [row["file"] for row in rows] == [f"planted-empty/test/{i}" for i in (0, 1000)]
    for row in rows:
        trust = row["attributions"][0]["trust"]
        assert trust["verdict"] == "cannot tell"
        assert (trust["oracle"], row["true_label"]) == (None, None)  # no place is the true one


def test_two_digits_are_both_the_true_place(cli: Cli, tmp_path: Path) -> None:
    answer = cli("explain", RUN, "planted:double", "--count", 2, "--full", "--out", tmp_path / "p.html", "--json")
    assert answer.code == 0, answer.err
    assert all(row["attributions"][0]["trust"]["oracle"] is not None for row in json.loads(answer.out)["images"])
    made = planted_digits("test", 2000, "double")
    for one in shown_of(load_planted("mean-0"), RUN, "planted:double", 3)[0]:
        index = int(one.name.rsplit("/", 1)[1])
        np.testing.assert_array_equal(np.asarray(one.image), made.pixels[index])
        assert one.mask is not None
        np.testing.assert_array_equal(np.asarray(one.mask) > 0, digit_patches(made, 1)[index].any(axis=0))
        assert (np.asarray(one.mask) > 0).sum() == 2 * 64


@pytest.mark.parametrize(
    ("words", "code", "given"),
    [
        (("evaluate", RUN, "planted:double"), None, "planted:double"),
        (("train", "planted:empty"), None, "planted:empty"),
        (("explain", RUN, "planted:emty"), USAGE, "emty single empty double"),
        (("predict", RUN, "planted:duble"), USAGE, "duble double"),
        (("explain", RUN, "planted:empty", ROOT / "docs" / "images" / "chelsea.jpg"), USAGE, "planted:empty"),
    ],
)
def test_what_cannot_be_done(words: tuple, code: int | None, given: str, cli: Cli) -> None:
    answer = cli(*words)
    must_refuse(answer, code or answer.code, given)
    assert answer.code in (USAGE, DATA)
    again = retyped([*map(str, words)], answer)
    if again is not None:
        must_be_understood(again)
