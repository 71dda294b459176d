"""From words to a dataclass: where a word may stand, what it may begin with, and what is said of one that is wrong."""

import shlex
from pathlib import Path

import pytest

from tests.errors import command_in, must_raise
from vitrail.cli.args import Explain, Predict, Train
from vitrail.cli.main import VERBS
from vitrail.cli.parse import command_of, options_of, parse
from vitrail.cli.refusals import check_methods
from vitrail.errors import Hint, UsageError, check_bounds


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


def test_numbers_of_one_option_may_be_words_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = (0.485, 0.456, 0.4)
    for words in (
        "--mean 0.485,0.456,0.4",
        "--mean=0.485,0.456,0.4",
        "--mean 0.485 0.456 0.4",
        "--mean 0.485, 0.456, 0.4",
        "--mean [0.485, 0.456, .4]",
        "--mean (0.485,0.456,0.4)",
    ):
        for before, behind in (("run a.png", ""), ("run", "a.png"), ("", "run a.png")):
            typed = predict(*f"{before} {words} {behind}".split())
            assert (typed.run, typed.inputs, typed.mean) == ("run", ("a.png",), mean), words
    assert predict("run", "a.png", "--mean", "0.5 0.4 0.3").mean == (0.5, 0.4, 0.3)
    assert predict("run", "a.png", "--mean", ".5").mean == (0.5,)
    assert predict("run", "--assume", "heads=6", "norm_eps=1e-6", "a.png").assume == "heads=6,norm_eps=1e-6"
    for words in ("32x160", "32 160", "32,160", "(32, 160)"):
        assert train("digits", "--image-size", *words.split()).image_size == (32, 160)
    assert train("--image-size", "32", "digits").image_size == 32
    monkeypatch.chdir(tmp_path)
    (tmp_path / "5").mkdir()  # a folder of images is no number
    typed = predict("run", "--image-size", "28", "5")
    assert (typed.image_size, typed.inputs) == (28, ("5",))
    for words in ("many", "1x2x3", "3.5"):
        with must_raise(UsageError, "--image-size"):
            train("digits", "--image-size", words)


def test_a_value_may_begin_with_a_hyphen() -> None:
    assert train("digits", "--split-seed", "-1").split_seed == -1
    assert parse(Explain, "explain", ["run", "a.png", "--target", "-a", "--option=layer=-1"]).target == "-a"
    assert train("--out", "--strange--", "digits").out == Path("--strange--")


def test_a_configuration_file_may_name_the_weights_of_which_something_is_assumed() -> None:
    for words in (["--assume", "heads=3"], ["--mean", "0.5"], ["--std", "0.5"]):
        assert train("--config", "config.yaml", *words).config == Path("config.yaml")
        assert train("digits", "--init", "w.npz", *words).init == "w.npz"
        with must_raise(UsageError, f"{words[0]} .*--init") as caught:
            train("digits", *words)
        assert "init" in caught.value.hint.flags


def test_the_methods_of_a_comparison_are_not_refused_at_once() -> None:
    for names in ("usual", "all", "rollout, legrad", "mine:METHOD"):
        check_methods(names, "methods")
    with must_raise(UsageError, "rolout") as caught:
        check_methods("legrad,rolout", "methods")
    assert caught.value.hint.flags == {"methods": "legrad,rollout"}


def test_spelling_and_repetition() -> None:
    assert train("digits", "--batch_size", "3", "--batch-size=4").batch_size == 4


HELP = "vitrail {} --help"
REFUSED = [  # what is typed, what the problem names, and the command of the hint
    ("train digits --batch-sise 3", "--batch-sise", "train digits --batch-size 3"),
    ("train digits --epoch=3", "--epoch", "train digits --epochs 3"),
    ("train digits --epocs 3 --json", "--epocs", "train digits --epochs 3 --json"),
    ("train --background digits", "--background", "train digits"),
    ("train --epochs", "--epochs", HELP),
    ("train --epochs --json", "--epochs", HELP),
    ("train digits --epochs 3.5", "--epochs .* '3.5'", "train digits --epochs 20"),
    ("train digits --precision fp16", "--precision .* bf16, got 'fp16'", "train digits --precision bf16"),
    ("train --json=yes", "--json", "train --json"),
    ("train digits --json=off", "--json", "train digits"),
    ("train digits more and", "more and", HELP),
    ("train digits -x", "-x", HELP),
    ("train digits --epoch", "train .* --epoch", "train digits --epochs 20"),
    ("train --epochs 3", "DATA", "train --epochs 3 digits"),
    ("train digits --resume auto", "--resume auto", "train digits --resume auto --out runs/latest"),
    ("train digits --mean 0.5", "--mean 0.5 .* --init", "train digits --mean 0.5 --init weights.safetensors"),
    ("distill digits", "--teacher", "distill digits --teacher runs/latest"),
    ("distill digits --size=Ti/4", "--size", "distill digits --student Ti/4"),
    ("predict", "RUN", "predict runs/latest photo.jpg"),
    ("predict run", "INPUTS", "predict run photo.jpg"),
    ("predict run a --beam 2 --sample", "--beam .* --sample", "predict run a --sample"),
    ("predict run a --seed 3", "--seed", "predict run a --seed 3 --sample"),
    ("predict run a --sample --temperature nan", "--temperature .* nan", "predict run a --sample --temperature 0.7"),
    ("predict run a.png --count 3", "predict .* --count", HELP),
    ("predict run a.png --output x.csv", "predict .* --output", "predict run a.png --out x.csv"),
    (
        "predict run a --out x.csv --deadline 5",
        "--deadline 5 .* --ray",
        "predict run a --out x.csv --deadline 5 --ray local",
    ),
    ("explain run", "IMAGES", "explain run photo.jpg"),
    ("explain run a --count 0", "--count .* 0", "explain run a --count 8"),
    ("explain run a --methods legrad", "--methods legrad .* --compare", "explain run a --methods legrad --compare"),
    ("explain run a --compare --method rollout", "--method .* --compare", "explain run a --compare"),
    ("explain run a --method all", "--method .* all", "explain run a --compare --methods all"),
    ("explain run a --method rollout --methods tam", "--method .* --methods", "explain run a --methods tam"),
    ("explain run a --masks m --no-trust", "--masks .* --no-trust", "explain run a --no-trust"),
    ("explain run a --ray local --out p.html", "--ray .* p.html", "explain run a --ray local --out maps.jsonl"),
    ("explain run a --option x=1 --option y=2 --option x=3", "--option x", "explain run a --option x=3 --option y=2"),
    ("explain run a --option a-b=1 --option a_b=3", "--option a_b", "explain run a --option a_b=3"),
    ("explain run a --optoin x=1 --option y=2", "--optoin", "explain run a --option x=1 --option y=2"),
    ("explain run a --out=", "--out .* ''", "explain run a --out maps.jsonl"),
    ("train digits --image 28", "--image", HELP),
    ("train digits --heads 3", "--heads", HELP),
    ("predict --source a.png --model run b.png", "--source", "predict run a.png b.png"),
    ("predict a.png --model run", "--model", "predict run a.png"),
    ("predict run a.png --iou 0.9", "--iou", HELP),
    ("explain run a --trust", "--trust", "explain run a"),
    ("train digits \u2013epochs 3", "epochs", "train digits --epochs 3"),
    ("explain run a.png --no-open", "explain .* --no-open", HELP),
    (
        "explain run a --ray local --out a.jsonl --workers 0",
        "--workers .* 0",
        "explain run a --ray local --out a.jsonl --workers 1",
    ),
    ("embed run --json", "embed .* DATA", "embed run --json ./photos --out features.npz"),
    ("doctor --channels 1", "--channels 1 .* RUN", "doctor --channels 1 runs/latest"),
    ("data pak photos --out packed", "pak", "data pack photos --out packed"),
    ("data photos --out packed", "photos", "data pack photos --out packed"),
    (
        "data pack photos --out x --quality 80",
        "--quality 80 .* --shorter-side",
        "data pack photos --out x --quality 80 --shorter-side 256",
    ),
]


@pytest.mark.parametrize(("typed", "named", "wanted"), REFUSED, ids=[typed for typed, _, _ in REFUSED])
def test_what_is_wrong_is_named_and_the_hint_is_a_command_that_is_taken(typed: str, named: str, wanted: str) -> None:
    """Before the verb is imported."""
    verb, *words = shlex.split(typed)
    with must_raise(UsageError, named) as caught:
        parse(VERBS[verb].options, verb, words)
    if wanted == HELP:
        assert command_of(caught.value.hint, VERBS[verb].options, verb, words) == wanted.format(verb)
    else:
        assert command_in(caught.value, typed) == shlex.split(wanted)


@pytest.mark.parametrize(
    ("typed", "hint", "wanted"),
    [
        ("train digits --recipe d0-minst", Hint({"recipe": "d0-mnist"}), "train digits --recipe d0-mnist"),
        ("explain run a.png --target -a", Hint({"target": "a b"}), "explain run a.png --target 'a b'"),
        ("explain run a --image-size 9", Hint({"image_size": (16, 24)}), "explain run a --image-size 16x24"),
        ("explain run a --full", Hint({"full": False, "json": True}), "explain run a --json"),
        (
            "explain run a.png --option layer=9 --option head=1",
            Hint({"option": {"layer": 3}}),
            "explain run a.png --option layer=3 --option head=1",
        ),
        ("predict w a --mean 1", Hint({"mean": 0.5, "std": (0.5, 1.0)}), "predict w a --mean 0.5 --std 0.5,1.0"),
        (
            "predict w a --assume norm_eps=1e-6,head=5",
            Hint({"assume": {"heads": "N"}}, ["assume.head"], "where N is a number"),
            "predict w a --assume norm_eps=1e-6,heads=N",
        ),
        ("predict w a --assume head=5 --json", Hint(drop=["assume.head"]), "predict w a --json"),
        ("similar 'my run' a b", Hint({"data": "c d"}), "similar 'my run' a 'c d'"),
        ("train --json digits --lora 8 --no-background", Hint(drop=["lora", "background"]), "train --json digits"),
        ("explain run a --option x=1 --option y=2", Hint(drop=["option"]), "explain run a"),
        ("explain run a --option x=1 --option y=2", Hint(drop=["option.x"]), "explain run a --option y=2"),
        (
            "predict run a --out x.csv --ray auto",
            Hint(drop=["ray"], text="which continues"),
            "predict run a --out x.csv",
        ),
    ],
)
def test_a_hint_becomes_the_whole_command(typed: str, hint: Hint, wanted: str) -> None:
    assert command_in(UsageError("a problem", hint), typed) == shlex.split(wanted)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("train digits", Hint(drop=["lora"])),
        ("train digits", Hint(text="another folder")),
        ("train digits", Hint({"model": "x"})),
    ],
)
def test_what_cannot_be_put_into_the_command_stands_alone(typed: str, hint: Hint) -> None:
    """An option that is not there, and none of this verb."""
    verb, *words = typed.split()
    assert command_of(hint, VERBS[verb].options, verb, words) == str(hint)


def test_a_command_of_many_files_names_some_of_them() -> None:
    words = ["run", *(f"{i}.png" for i in range(200)), "--json"]
    text = command_of(Hint({"beam": 4}, text="or fewer"), VERBS["predict"].options, "predict", words)
    assert text.startswith("vitrail predict run 0.png 1.png ")
    assert text.endswith(" ... --json --beam 4  # or fewer")
    assert len(text) < 200


def test_every_bound_of_an_option_is_held_and_the_hint_is_inside() -> None:
    outside, seen = {"least": -1, "above": 0, "most": 1, "below": 0}, 0
    for verb, row in VERBS.items():
        options = options_of(row.options)
        names = [str(one.choices[0] if one.choices else "x") for one in options.values() if one.positional]
        for option in options.values():
            for bound in (each for each in outside if option.stated(each) is not None and option.hidden is None):
                others = [one for one in options.values() if one.required and not one.positional]
                given = [word for one in others for word in one.typed([str(one.choices[0] if one.choices else "x")])]
                given += [f"{option.flag}={{}}"]
                typed = shlex.join([*names, *given]).format(option.stated(bound) + outside[bound])
                with must_raise(UsageError, option.flag) as caught:
                    parse(row.options, verb, shlex.split(typed))
                inside = list(caught.value.hint.flags.values())
                assert inside or option.name in caught.value.hint.drop
                for value in inside:
                    check_bounds(option.name, value, option.metadata)
                seen += 1
    assert seen > 80
