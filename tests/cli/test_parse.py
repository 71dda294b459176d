"""From words to a dataclass: where a word may stand, what it may begin with, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from tests.errors import must_raise
from vitrail.cli.args import Distill, Explain, Predict, Train
from vitrail.cli.main import VERBS
from vitrail.cli.parse import parse
from vitrail.errors import UsageError


def predict(*words: str) -> Predict:
    return parse(Predict, "predict", words)


def train(*words: str) -> Train:
    return parse(Train, "train", words)


def test_names_may_stand_before_between_and_behind_options() -> None:
    wanted = Predict(run="run", inputs=("a.png", "b.png"), count=3, json=True)
    for words in (
        "run a.png b.png --count 3 --json",
        "--json --count=3 run a.png b.png",
        "run --count 3 a.png --json b.png",
    ):
        assert predict(*words.split()) == wanted


def test_every_kind_of_value() -> None:
    typed = train("digits", "--epochs", "3", "--lr", "1e-3", "--out", "runs/a", "--resume", "auto", "--no-background")
    assert (typed.data, typed.epochs, typed.lr, typed.out) == ("digits", 3, 0.001, Path("runs/a"))
    assert (typed.resume, typed.background, typed.json) == ("auto", False, False)
    assert train("digits") == Train(data="digits")


def test_a_value_may_begin_with_a_hyphen() -> None:
    assert train("digits", "--lr", "-1e-3").lr == -0.001
    assert parse(Explain, "explain", ["run", "a.png", "--target", "-a", "--option=layer=-1"]).target == "-a"
    assert train("--out", "--strange--", "digits").out == Path("--strange--")


def test_spelling_and_repetition() -> None:
    assert train("digits", "--batch_size", "3", "--batch-size=4").batch_size == 4


@pytest.mark.parametrize(
    ("words", "named", "hint"),
    [
        ("--batch-sise 3", "--batch-sise", "--batch-size"),
        ("--epoch=3", "--epoch", "--epochs"),
        ("--background", "--background", "--no-background"),
        ("--epochs", "--epochs", "vitrail train --help"),
        ("--epochs --json", "--epochs", "vitrail train --help"),
        ("--epochs 3.5", "--epochs .* '3.5'", "vitrail train --help"),
        ("--precision fp16", "--precision .* bf16, got 'fp16'", "--precision bf16"),
        ("--json=yes", "--json", "vitrail train --help"),
        ("digits more and", "more and", "vitrail train --help"),
        ("digits -x", "-x", "vitrail train --help"),
    ],
)
def test_what_is_wrong_is_named(words: str, named: str, hint: str) -> None:
    with must_raise(UsageError, named) as caught:
        train(*words.split())
    assert caught.value.hint == hint


def test_what_is_missing_and_what_is_another_verb_s() -> None:
    with must_raise(UsageError, "RUN"):
        predict()
    with must_raise(UsageError, "--size") as caught:
        parse(Distill, "distill", ["digits", "--size", "Ti/4"])
    assert caught.value.hint == "--student"


@pytest.mark.parametrize(
    ("verb", "words", "named", "hint"),
    [
        ("train", "", "no training data", "vitrail train digits"),
        ("train", "digits --resume auto", "--resume auto", "--out runs/latest"),
        ("distill", "digits", "no teacher", "--teacher runs/latest"),
        ("predict", "run", "no image or text", "vitrail predict run photo.jpg"),
        ("predict", "run a --beam 2 --sample", "--beam .* --sample", "one of the two"),
        ("predict", "run a --seed 3", "--seed", "--sample --seed 3"),
        ("predict", "run a --sample --temperature nan", "--temperature .* nan", "--temperature 0.7"),
        ("explain", "run", "no image", "vitrail explain run photo.jpg"),
        ("explain", "run a --count 0", "--count .* 0", "--count 4"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_verb_is_imported(
    verb: str, words: str, named: str, hint: str
) -> None:
    with must_raise(UsageError, named) as caught:
        parse(VERBS[verb].options, verb, words.split())
    assert hint in caught.value.hint
