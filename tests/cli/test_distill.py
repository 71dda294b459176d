"""`vitrail distill`: a teacher by name or folder, a student that stands alone, and what is said when it cannot be."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.command import BACKGROUND, DATA, USAGE, Cli, must_be_understood, must_refuse, retyped
from tests.photographs import make_photographs
from tests.shared_runs import copy_of, once, photographs, stamps
from vitrail.runs.settings import read_yaml, settings_from_dict
from vitrail.training.configuration.resolve import RECIPES

SHORT = ("--epochs", 1, "--batch-size", 200, "--threads", 1)
PHOTOS = ("--epochs", 1, "--batch-size", 12, "--threads", 1, "--image-size", 32)  # a few such batches are timed


def settings_of(run: Path):
    return settings_from_dict(read_yaml(run / "config.yaml"))


def agreement(output: str) -> float:
    """In how many per cent of the validation images the teacher is right, as its line says."""
    line = next(line for line in output.splitlines() if line.startswith("teacher "))
    found = re.search(r"([\d.]+) ?%", line)
    assert found is not None, line
    return float(found[1])


def test_a_run_teaches_and_is_needed_no_more(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, run = copy_of("digits", tmp_path), tmp_path / "student"
    before = stamps(teacher)
    answer = cli("distill", "digits", "--teacher", teacher, *SHORT, "--out", run)
    assert answer.code == 0, answer.err
    assert str(teacher.resolve()) in answer.out
    assert 0 <= agreement(answer.out) <= 100
    assert (run / "command.txt").read_text().startswith("vitrail distill digits --teacher ")
    assert "temperature 3" in (run / "run.html").read_text()
    assert (run / "model" / BACKGROUND).exists()
    assert stamps(teacher) == before
    shutil.rmtree(teacher)
    assert json.loads(cli("evaluate", run, "--json").out)["images"] == 359
    monkeypatch.chdir(tmp_path)
    must_refuse(cli("distill", "digits", "--teacher", "digits", "--out", run, "--resume", "auto"), DATA, "teacher")


def test_a_student_with_a_token_of_its_own_and_without_a_background(cli: Cli, digits_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "student"
    words = (
        "--distillation",
        "hard",
        "--alpha",
        0.7,
        "--distillation-token",
        "yes",
        "--no-background",
        "--out",
        run,
        "--json",
    )
    answer = cli("distill", "digits", "--teacher", digits_run, *SHORT, *words)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["run"] == str(run)
    how = settings_of(run).distillation
    assert how is not None
    assert (how.kind, how.alpha) == ("hard", 0.7)
    assert json.loads((run / "model" / "config.json").read_text())["vitrail"]["network"]["distillation_token"]
    assert not (run / "model" / BACKGROUND).exists()


def test_the_student_asked_for(cli: Cli, photo_run: Path, tmp_path: Path) -> None:
    """A network of the table has a class token, so it gets a distillation token."""
    run = tmp_path / "student"
    words = (photographs() / "abc", "--teacher", photo_run, "--student", "Ti/16", "--precision", "fp32", *PHOTOS)
    assert cli("distill", *words, "--out", run).code == 0
    network = settings_of(run).network
    assert (network.width, network.patch, network.distillation_token) == (192, (16, 16), True)


def test_a_foreign_teacher_gets_a_new_head(cli: Cli, tmp_path: Path) -> None:
    """It knows a thousand other classes, and is shown larger images than the student's."""
    run = tmp_path / "student"
    teacher = ("--teacher", "torchvision:resnet18", "--teacher-weights", "random", "--teacher-size", 64)
    words = ("distill", photographs() / "abc", *teacher, "--out", run)
    answer = cli(*words, *PHOTOS)
    assert answer.code == 0, answer.err
    assert agreement(answer.out) > 50  # random features, a fitted head
    assert any(line.startswith("warning: ") and "random" in line for line in answer.out.splitlines())
    assert any("32 x 32" in line and "64 x 64" in line for line in answer.out.splitlines())
    how = settings_of(run).distillation
    assert how is not None
    assert how.fit_head
    assert cli(*words, "--resume", "auto").code == 0


def test_disjoint_names_and_the_way_out(cli: Cli, photo_run: Path, tmp_path: Path) -> None:
    def put(folder: Path) -> None:
        make_photographs(folder / "train", ("x", "y", "z"), per_class=8, seed=3)
        make_photographs(folder / "val", ("x", "y", "z"), per_class=4, seed=4)

    words = ("distill", once("others", put), "--teacher", photo_run, *PHOTOS)
    answer = cli(*words, "--out", tmp_path / "refused")
    must_refuse(answer, DATA, "0 3 x y z a b c")
    assert not (tmp_path / "refused").exists()
    assert answer.out == ""  # before anything was read, timed or said of the data
    again = retyped([*map(str, words), "--out", str(tmp_path / "taught")], answer)
    assert again is not None
    answer = cli(*again)
    assert answer.code == 0, answer.err
    assert agreement(answer.out) > 50


def test_some_of_a_teachers_classes(cli: Cli, photo_run: Path, tmp_path: Path) -> None:
    """A student of b and c learns from a teacher of a, b and c; one of b, c and d cannot."""
    for split in ("train", "val"):
        for name in "bc":
            shutil.copytree(photographs() / "abc" / split / name, tmp_path / "bc" / split / name)
    answer = cli("distill", tmp_path / "bc", "--teacher", photo_run, *PHOTOS, "--out", tmp_path / "student")
    assert answer.code == 0, answer.err
    assert agreement(answer.out) >= 87.5  # by number instead of by name it would be low
    answer = cli("distill", photographs() / "bcd", "--teacher", photo_run, *PHOTOS, "--out", tmp_path / "refused")
    must_refuse(answer, DATA, "2 3 d")


@pytest.mark.parametrize(
    "teacher", ["nowhere", "torchvision:resnet81", "torchvision:resnet18 --teacher-weights no.pth"]
)
def test_a_teacher_that_is_not_there_is_said_before_anything_else(cli: Cli, tmp_path: Path, teacher: str) -> None:
    words = ("distill", "digits", "--teacher", *teacher.split(), "--out", tmp_path / "run")
    answer = cli(*words)
    assert answer.code != 0
    assert answer.out == ""
    with_json = cli(*words, "--json")
    assert with_json.out == ""
    assert len(with_json.err.splitlines()) == 2


def test_the_help_lists_what_a_teacher_can_teach(cli: Cli) -> None:
    taught, trained = (
        set(re.split(r"[^\w-]+", cli(verb, "--help").out.partition("--recipe")[2].partition("--")[0]))
        for verb in ("distill", "train")
    )
    assert {name for name, recipe in RECIPES.items() if recipe.kind == "ViT"} == set(RECIPES) & taught
    assert set(RECIPES) <= trained


BAD = [
    ("digits", USAGE, "teacher"),
    ("--teacher {run}", USAGE, "DATA"),
    ("digits --teacher nowhere", DATA, "teacher nowhere"),
    ("digits --teacher torchvision:resnet81", USAGE, "torchvision resnet81"),
    ("digits --teacher hub:x/y", USAGE, "hub:x/y"),
    ("digits --teacher torchvision:resnet18 --teacher-weights gone.pth", DATA, "gone.pth"),
    ("digits --teacher torchvision:resnet18 --teacher-weights random --fit-head never", DATA, "resnet18 0 10"),
    ("digits --teacher {run} --mean 0.5", USAGE, "{run} mean"),
    ("digits --teacher torchvision:resnet18 --teacher-weights random --assume heads=3", USAGE, "resnet18 assume"),
    ("digits --teacher {run} --assume heads", USAGE, "--assume heads"),
    ("digits --teacher {run} --class-names gone.txt", DATA, "gone.txt"),
    ("digits --teacher {run} --temperature 0", USAGE, "temperature 0"),
    ("digits --teacher {run} --alpha 1.5", USAGE, "alpha 1.5"),
    ("digits --teacher {run} --distillation medium", USAGE, "--distillation medium soft hard"),
    ("digits --teacher {run} --size Ti/4", USAGE, "--size"),
    ("digits --teacher {run} --student Tiny/4", USAGE, "Tiny/4"),
    ("digits --teacher {run} --cache on", USAGE, ""),
    ("sort-digits --teacher {run}", USAGE, ""),
    ("digits --teacher {run} --resume auto", USAGE, "--resume"),
]


@pytest.mark.parametrize(("words", "code", "given"), BAD, ids=[case[0] for case in BAD])
def test_what_cannot_be_is_said_in_two_lines(
    words: str, code: int, given: str, cli: Cli, digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["distill", *(word.format(run=digits_run) for word in words.split())]
    answer = cli(*typed)
    must_refuse(answer, code, given.format(run=digits_run))
    again = retyped(typed, answer)
    if again is not None:
        must_be_understood(again)
    assert not list(tmp_path.iterdir())
