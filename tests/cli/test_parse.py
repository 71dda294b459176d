"""From words to a dataclass: where a word may stand, what it may begin with, and what is said of one that is wrong."""

import shlex
from pathlib import Path

import pytest

from tests.errors import must_raise
from vitrail.cli.args import Distill, Explain, Predict, Train
from vitrail.cli.main import VERBS
from vitrail.cli.parse import parse, whole_command
from vitrail.errors import UsageError


def predict(*words: str) -> Predict:
    return parse(Predict, "predict", words)


def train(*words: str) -> Train:
    return parse(Train, "train", words)


def test_names_may_stand_before_between_and_behind_options() -> None:
    wanted = Predict(run="run", inputs=("a.png", "b.png"), beam=3, json=True)
    for words in (
        "run a.png b.png --beam 3 --json",
        "--json --beam=3 run a.png b.png",
        "run --beam 3 a.png --json b.png",
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


def test_a_configuration_file_may_name_the_weights_of_which_something_is_assumed() -> None:
    for words in (["--assume", "heads=3"], ["--mean", "0.5"], ["--std", "0.5"]):
        assert train("--config", "config.yaml", *words).config == Path("config.yaml")
        assert train("digits", "--init", "w.npz", *words).init == "w.npz"
        with must_raise(UsageError, f"{words[0]} .* needs --init") as caught:
            train("digits", *words)
        assert caught.value.hint == "--init FILE"


def test_spelling_and_repetition() -> None:
    assert train("digits", "--batch_size", "3", "--batch-size=4").batch_size == 4


@pytest.mark.parametrize(
    ("words", "named", "hint"),
    [
        ("--batch-sise 3", "--batch-sise", "--batch-size 3"),
        ("--epoch=3", "--epoch", "--epochs 3"),
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
    assert caught.value.hint == "--student Ti/4"


@pytest.mark.parametrize(
    ("verb", "words", "named", "hint"),
    [
        ("train", "--epochs 3", "DATA", "vitrail train --epochs 3 digits"),
        ("train", "digits --resume auto", "--resume auto", "--out runs/latest"),
        ("distill", "digits", "--teacher", "vitrail distill digits --teacher runs/latest"),
        ("predict", "run", "INPUTS", "vitrail predict run photo.jpg"),
        ("predict", "run a --beam 2 --sample", "--beam .* --sample", "the same without --beam"),
        ("predict", "run a --seed 3", "--seed", "--sample"),
        ("predict", "run a --sample --temperature nan", "--temperature .* nan", "--temperature 0.7"),
        ("explain", "run", "IMAGES", "vitrail explain run photo.jpg"),
        ("explain", "run a --count 0", "--count .* 0", "--count 1"),
        ("explain", "run a --methods legrad", "--methods legrad .* --compare", "--compare"),
        ("explain", "run a --compare --method rollout", "--method .* --compare", "the same without --method"),
        ("explain", "run a --method all", "--method .* all", "--compare --methods all"),
        (
            "explain",
            "run a --compare --method rollout --methods tam",
            "--method .* --methods",
            "the same without --method",
        ),
        ("explain", "run a --method rollout --methods tam", "--method .* --methods", "the same without --method"),
        ("explain", "run a --masks m --no-trust", "--masks .* --no-trust", "the same without --masks"),
        ("explain", "run a --ray local --out p.html", "--ray .* p.html", "--out maps.jsonl"),
        ("predict", "run a.png --count 3", "predict has no option --count", "vitrail predict --help"),
        ("predict", "run a.png --output x.csv", "predict has no option --output", "--out x.csv"),
        ("explain", "run a --option x=1 --option y=2 --option x=3", "--option x", "--option x=3"),
        ("explain", "run a --option a-b=1 --option a_b=3", "--option a_b", "--option a_b=3"),
        ("explain", "run a --out=", "--out .* ''", "vitrail explain --help"),
        ("explain", "run a.png --no-open", "explain has no option --no-open", "vitrail explain --help"),
        ("train", "digits --epoch", "train has no option --epoch", "--epochs N"),
        ("explain", "run a --ray local --out a.jsonl --workers 0", "--workers .* 0", "--workers 1"),
        ("embed", "run --json", "needs DATA", "vitrail embed run --json ./photos --out features.npz"),
        ("predict", "run a --out x.csv --deadline 5", "--deadline 5 .* --ray", "--ray local"),
        ("train", "digits --mean 0.5", "--mean 0.5 .* --init", "--init FILE"),
        ("doctor", "--channels 1", "--channels 1 .* RUN", "vitrail doctor runs/latest --channels 1"),
        ("data", "pak photos --out packed", "pak", "vitrail data pack photos --out packed"),
        ("data", "photos --out packed", "photos", "vitrail data pack photos --out packed"),
        ("data", "pack photos --out x --quality 80", "--quality 80 .* --shorter-side", "--shorter-side 256"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_verb_is_imported(
    verb: str, words: str, named: str, hint: str
) -> None:
    with must_raise(UsageError, named) as caught:
        parse(VERBS[verb].options, verb, words.split())
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("verb", "words", "hint", "wanted"),
    [
        ("train", "digits --epocs 3 --json", "--epochs 3", "vitrail train digits --epochs 3 --json"),
        ("train", "digits --recipe d0-minst", "--recipe d0-mnist", "vitrail train digits --recipe d0-mnist"),
        ("train", "digits", "--out runs/a --resume auto", "vitrail train digits --out runs/a --resume auto"),
        ("distill", "digits --size=Ti/4", "--student Ti/4", "vitrail distill digits --student Ti/4"),
        ("explain", "run a.png --target -a", "--target 'a b'", "vitrail explain run a.png --target 'a b'"),
        (
            "explain",
            "run a.png --option layer=9 --option head=1",
            "--option layer=3",
            "vitrail explain run a.png --option layer=3 --option head=1",
        ),
        ("predict", "w.npz a.png", "--mean 0.5 --std 0.5", "vitrail predict w.npz a.png --mean 0.5 --std 0.5"),
        (
            "predict",
            "w.npz a.png --assume norm_eps=1e-6,heads=5",
            "--assume heads=N, where N is the number it was trained with",
            "vitrail predict w.npz a.png --assume norm_eps=1e-6,heads=N, where N is the number it was trained with",
        ),
        (
            "similar",
            "'my run' a b",
            "vitrail similar RUN a c",
            "vitrail similar 'my run' a c",
        ),
        (
            "embed",
            "m photos",
            "--out x.npz, or x.parquet",
            "vitrail embed m photos --out x.npz, or x.parquet",
        ),
        ("train", "digits --json --lora 8", "leave --lora out", "vitrail train digits --json"),
        ("explain", "run a --option x=1 --option y=2", "no --option", "vitrail explain run a"),
        (
            "explain",
            "run a --option x=1 --option y=2 --option x=3",
            "--option x=3",
            "vitrail explain run a --option x=3 --option y=2",
        ),
        (
            "explain",
            "run a --compare --option x=1 --methods tam --json",
            "the same without --compare and --methods and --option x",
            "vitrail explain run a --json",
        ),
        (
            "explain",
            "run a --option x=1 --option y=2",
            "the same without --option x",
            "vitrail explain run a --option y=2",
        ),
        (
            "predict",
            "run a --out x.csv --ray auto",
            "the same without --ray, which continues",
            "vitrail predict run a --out x.csv, which continues",
        ),
        ("train", "digits", "leave --lora out", "leave --lora out"),
        ("train", "digits", "vitrail train --help", "vitrail train --help"),
        ("train", "digits", "another folder", "another folder"),
        ("train", "digits", "--model x", "--model x"),
        ("train", "digits", "--resume auto or --out runs/b", "--resume auto or --out runs/b"),
        ("predict", f"run {'a.png ' * 200}", "--beam 4", "--beam 4"),
    ],
)
def test_a_hint_of_options_becomes_the_whole_command(verb: str, words: str, hint: str, wanted: str) -> None:
    assert whole_command(hint, VERBS[verb].options, verb, shlex.split(words)) == wanted
