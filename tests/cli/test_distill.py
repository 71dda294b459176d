"""`vitrail distill`: a teacher by name or folder, a student that stands alone, and what is said when it cannot be."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from vitrail.training.sequence_settings import SEQUENCE_RECIPES

from tests.cli.command import Answer, hashes
from tests.photographs import make_photographs
from vitrail.training.recipes import RECIPES
from vitrail.training.settings import read_yaml, settings_from_dict

Says = Callable[..., Answer]
SHORT = ("--epochs", 1, "--batch-size", 400, "--threads", 1)


def stored(run: Path):
    how = settings_from_dict(read_yaml(run / "config.yaml")).distillation
    assert how is not None
    return how


def test_a_run_teaches_and_is_needed_no_more(
    vitrail_says: Says, digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, run = shutil.copytree(digits_run, tmp_path / "teacher"), tmp_path / "student"
    before = hashes(teacher)
    answer = vitrail_says("distill", "digits", "--teacher", teacher, *SHORT, "--out", run)
    assert answer.code == 0, answer.err
    assert f"teacher {teacher.resolve()}: " in answer.out
    assert "% of 180 validation pictures right" in answer.out
    assert "distillation: soft (temperature 3), weight 0.5, on the class head" in answer.out
    assert "test accuracy" in answer.out
    assert "enlarged to its" not in answer.out  # both see 8 x 8
    assert (run / "command.txt").read_text().startswith("vitrail distill digits --teacher ")
    assert "temperature 3" in (run / "run.html").read_text()
    assert hashes(teacher) == before
    shutil.rmtree(teacher)
    evaluated = json.loads(vitrail_says("evaluate", run, "--json").out)
    assert evaluated["images"] == 359
    monkeypatch.chdir(tmp_path)
    again = vitrail_says("distill", "digits", "--teacher", "teacher", "--out", run, "--resume", "auto")
    assert again.code == 3
    assert "the teacher cannot be loaded" in again.problem


def test_a_student_carries_references_unless_that_is_refused(
    vitrail_says: Says, digits_run: Path, tmp_path: Path
) -> None:
    for flags, there in (((), True), (("--no-references",), False)):
        run = tmp_path / f"student{len(flags)}"
        answer = vitrail_says("distill", "digits", "--teacher", digits_run, *SHORT, "--out", run, *flags)
        assert answer.code == 0, answer.err
        assert (run / "model" / "references.safetensors").exists() == there
        assert ("references, shuffled patches of training pictures" in answer.out) == there


def test_a_student_with_a_token_of_its_own(vitrail_says: Says, digits_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "student"
    words = ("--kind", "hard", "--weight", 0.7, "--token", "yes", "--out", run, "--json")
    answer = vitrail_says("distill", "digits", "--teacher", digits_run, *SHORT, *words)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["run"] == str(run)
    assert "distillation: hard (its first choice), weight 0.7, on the head of a distillation token" in answer.err
    assert (stored(run).kind, stored(run).weight) == ("hard", 0.7)
    assert json.loads((run / "model" / "config.json").read_text())["network"]["distillation_token"]


def test_the_student_asked_for(vitrail_says: Says, photographs: Path, photo_run: Path, tmp_path: Path) -> None:
    """A network of the table has a class token, so it gets a distillation token."""
    run = tmp_path / "student"
    words = ("--student", "Ti/16", "--image-size", 32, "--epochs", 1, "--threads", 1, "--precision", "fp32")
    assert vitrail_says("distill", photographs / "abc", "--teacher", photo_run, *words, "--out", run).code == 0
    network = settings_from_dict(read_yaml(run / "config.yaml")).network
    assert (network.width, network.patch, network.distillation_token) == (192, (16, 16), True)


def test_a_foreign_teacher_gets_a_new_head(vitrail_says: Says, tmp_path: Path) -> None:
    """One-channel digits, a three-channel network of 1000 other classes."""
    run = tmp_path / "student"
    words = ("--teacher", "torchvision:resnet18", "--teacher-weights", "random", "--teacher-size", 32, "--out", run)
    answer = vitrail_says("distill", "digits", *words, *SHORT)
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("teacher "))
    assert line.startswith("teacher torchvision:resnet18 with a new head for the 10 classes here: ")
    assert float(line.rpartition(": ")[2].partition("%")[0]) > 70  # random features, a fitted head
    assert "warning: the teacher has random weights" in answer.out
    assert "is shown the student's pictures of 8 x 8, enlarged to its 32 x 32: it sees no more than" in answer.out
    assert "--image-size makes them larger for both" in answer.out
    assert stored(run).fit_head
    assert vitrail_says("distill", "digits", *words, "--resume", "auto").code == 0


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of x, y and z."""
    root = tmp_path_factory.mktemp("others")
    make_photographs(root / "train", ("x", "y", "z"), per_class=8, seed=3)
    make_photographs(root / "val", ("x", "y", "z"), per_class=4, seed=4)
    return root


def test_disjoint_names_and_the_way_out(vitrail_says: Says, others: Path, photo_run: Path, tmp_path: Path) -> None:
    words = ("distill", others, "--teacher", photo_run, "--epochs", 1, "--threads", 1, "--image-size", 32)
    answer = vitrail_says(*words, "--out", tmp_path / "refused")
    assert answer.code == 3
    assert "knows 0 of the 3 classes here: it lacks x, y, z, it has a, b, c" in answer.problem
    assert "--fit-head always" in answer.hint
    assert not (tmp_path / "refused").exists()
    assert answer.out == ""  # before anything was read, timed or said of the data
    answer = vitrail_says(*words, "--out", tmp_path / "taught", "--fit-head", "always")
    assert answer.code == 0, answer.err
    assert "with a new head for the 3 classes here" in answer.out


def test_some_of_a_teachers_classes(vitrail_says: Says, photographs: Path, photo_run: Path, tmp_path: Path) -> None:
    """A student of b and c learns from a teacher of a, b and c; one of b, c and d cannot."""
    for split in ("train", "val"):
        for name in "bc":
            shutil.copytree(photographs / "abc" / split / name, tmp_path / "bc" / split / name)
    words = ("--teacher", photo_run, "--epochs", 1, "--threads", 1, "--image-size", 32)
    answer = vitrail_says("distill", tmp_path / "bc", *words, "--out", tmp_path / "student")
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if line.startswith("teacher "))
    assert float(line.rpartition(": ")[2].partition("%")[0]) >= 87.5  # by number instead of by name it would be low
    answer = vitrail_says("distill", photographs / "bcd", *words, "--out", tmp_path / "refused")
    assert answer.code == 3
    assert "knows 2 of the 3 classes here: it lacks d" in answer.problem


@pytest.mark.parametrize(
    "teacher", ["nowhere", "torchvision:resnet81", "torchvision:resnet18 --teacher-weights no.pth"]
)
def test_a_teacher_that_is_not_there_is_said_before_anything_else(
    vitrail_says: Says, tmp_path: Path, teacher: str
) -> None:
    words = ("distill", "digits", "--teacher", *teacher.split(), "--out", tmp_path / "run")
    answer = vitrail_says(*words)
    assert answer.code != 0
    assert answer.out == ""
    with_json = vitrail_says(*words, "--json")
    assert with_json.out == ""
    assert len(with_json.err.splitlines()) == 2


def test_timing_comes_after_the_teacher(vitrail_says: Says, digits_run: Path, tmp_path: Path) -> None:
    answer = vitrail_says("distill", "digits", "--teacher", digits_run, *SHORT, "--out", tmp_path / "run")
    lines = answer.out.splitlines()
    taught, timed = (
        next(place for place, line in enumerate(lines) if line.startswith(start))
        for start in ("teacher ", "timing a few steps")
    )
    assert abs(taught - timed) <= 3
    assert answer.out.count("timing a few steps") == 1


def test_the_help_lists_what_a_teacher_can_teach(vitrail_says: Says) -> None:
    taught, trained = (
        set(re.split(r"[^\w-]+", vitrail_says(verb, "--help").out.partition("--recipe")[2].partition("--")[0]))
        for verb in ("distill", "train")
    )
    assert set(RECIPES) <= taught
    assert not set(SEQUENCE_RECIPES) & taught
    assert {*RECIPES, *SEQUENCE_RECIPES} <= trained


BAD = [
    ("digits", 2, "no teacher given", "--teacher with a run folder"),
    ("--teacher {run}", 2, "no data given", "vitrail distill digits"),
    ("digits --teacher nowhere", 3, "the teacher cannot be loaded: there is no run or model at", "the folder"),
    ("digits --teacher torchvision:resnet81", 2, "no classifier 'resnet81'", "torchvision:resnet18"),
    ("digits --teacher hf:x/y", 2, "no kind of teacher 'hf:'", "torchvision:NAME"),
    ("digits --teacher torchvision:resnet18 --teacher-weights gone.pth", 3, "no file of weights", ".pth"),
    ("digits --teacher torchvision:resnet18 --teacher-weights random --fit-head never", 3, "knows 0 of", "--fit-head"),
    ("digits --teacher {run} --temperature 0", 2, "temperature must be above 0", "--temperature 3"),
    ("digits --teacher {run} --weight 1.5", 2, "weight must be from 0 to 1", "--weight 0.5"),
    ("digits --teacher {run} --kind medium", 2, "'medium'", "vitrail distill --help"),
    ("digits --teacher {run} --size Ti/4", 2, "no option --size", "--"),
    ("digits --teacher {run} --student Tiny/4", 2, "unknown size 'Tiny/4'", "/4"),
    ("digits --teacher {run} --cache on", 2, "pictures are mixed", "--cache off"),
    ("sort-digits --teacher {run}", 2, "a teacher of classes cannot teach sequences", "vitrail train"),
    ("digits --teacher {run} --resume auto", 2, "--resume auto needs the run", "--out"),
]


@pytest.mark.parametrize(("words", "code", "problem", "hint"), BAD, ids=[case[0] for case in BAD])
def test_what_cannot_be_is_said_in_two_lines(
    words: str,
    code: int,
    problem: str,
    hint: str,
    vitrail_says: Says,
    digits_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = vitrail_says("distill", *(word.format(run=digits_run) for word in words.split()))
    assert answer.code == code
    assert problem in answer.problem
    assert hint in answer.hint
    assert not list(tmp_path.iterdir())
