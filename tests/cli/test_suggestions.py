"""Whoever types what an answer suggests gets on: hundreds of wrong commands, and the command that each one leads to.

`wrong_commands.txt` has a line for each: its exit code, what is typed, and what is to be tried.

    2  predict {run} {photo} --jsno  =>  predict {run} {photo} --json      and that is done
    2  evaluate  ->  evaluate runs/latest                                  which has another problem, and leads on
    3  train {empty}  =>                                                   a sentence, or a command of another program
    2~ ...                                                                 takes long: in `make soak` alone

`{...}` stands for a place of `put_places`: `run` tells photographs of a, b and c (`trained`) apart, `reads` writes
what an image shows, `sorts` reads texts. `...` is the help of the verb. Here a suggested training is read and not
begun, and an explanation ends where maps would be computed; `make soak` goes on to where a network would be made, and
computes maps.
"""

import contextlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import vitrail
from tests import shared_runs as runs
from tests.cli.command import ROOT, Answer, Cli
from tests.shared_runs import stamps
from vitrail.arguments import guesses
from vitrail.cli.main import VERBS

FILE = Path(__file__).with_name("wrong_commands.txt")
MOST = 6  # suggestions, one behind the other


class Wrong(NamedTuple):
    """A line of the file.

    Attributes:
        kind: Of the mistake: the heading above it.
        code: The exit code.
        slow: Whether it is left to `make soak`.
        typed: Behind `vitrail`.
        done: Whether the suggestion is done, or is a sentence.
        wanted: The suggestion, behind `vitrail`; empty for a sentence.
    """

    kind: str
    code: int
    slow: bool
    typed: str
    done: bool
    wanted: str


def corpus() -> Iterator[Wrong]:
    """The lines of the file."""
    kind = ""
    for line in FILE.read_text("utf-8").splitlines():
        if line.startswith("# "):
            kind = line[2:]
        elif line:
            code, slow, typed, arrow, wanted = re.fullmatch(r"(\d)(~?) +(.*?)  ([=-])>(?:  (.*))?", line).groups("")
            help_of = f"{typed.split()[0]} --help" if typed.split()[0] in VERBS else "--help"
            yield Wrong(kind, int(code), bool(slow), typed, arrow == "=", wanted.replace("...", help_of))


CORPUS = [*corpus()]


def put_places(root: Path) -> None:
    """A run, photographs, and what is neither."""
    shutil.copytree(runs.photographs() / "abc", root / "photos")
    shutil.copytree(runs.run_of("photos"), root / "runs" / "photos")
    shutil.copytree(root / "runs" / "photos", root / "runs" / "stopped", ignore=shutil.ignore_patterns("model"))
    (root / "runs" / "stopped" / "evaluation.json").unlink()
    photo = root / "photos" / "val" / "a" / "a_000.jpg"
    for folder in ("empty", "my photos"):
        (root / folder).mkdir()
    shutil.copy(photo, root / "my photos" / "é ü.jpg")
    texts = {"page.html": "<p>mine</p>", "broken.jpg": "no image", "list.csv": "path\nphotos/val/a/a_000.jpg\n"}
    for name, text in {**texts, "small.yaml": "optimization: {epochs: 2}\n", "features.npz": "no features"}.items():
        (root / name).write_text(text)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The paths that `{...}` stands for, by name, in a folder of this test."""
    root, here = tmp_path / "places", tmp_path / "here"
    root.mkdir()
    here.mkdir()
    put_places(root)
    named = {"root": root, "runs": root / "runs", "run": root / "runs" / "photos", "blank": root / "my photos/é ü.jpg"}
    named |= {name: root / name for name in ("photos", "empty")} | {"photo": root / "photos/val/a/a_000.jpg"}
    files = {"page": "page.html", "broken": "broken.jpg", "list": "list.csv", "features": "features.npz"}
    named |= {name: root / file for name, file in {**files, "config": "small.yaml"}.items()}
    return named | {
        "trained": runs.photographs() / "abc",
        "here": here,
        "stopped": root / "runs" / "stopped",
        "reads": runs.run_of("strings"),
        "sorts": runs.run_of("sort-digits"),
        "string": runs.strings() / "3.png",
    }


def begun(*given: object, **named: object) -> None:
    raise SystemExit(0)


TRAINING = (  # what a training calls when all that it refuses without its network is right
    "vitrail.training.setup.prepare_run",
    "vitrail.training.distributed.launch.elastic_launch",
    "vitrail.deploy.server.launch.serve",  # and a server
)
LONG = (  # the same of other verbs
    "vitrail.cli.explain.TrainingImages",
    "vitrail.explain.reporting.job.explain_all",
    "vitrail.cli.doctor.sanity_check",
    "vitrail.cli.doctor.examine",
    "vitrail.cli.export.export",
)
REQUESTS = [f"vitrail.cli.train.{name}" for name in ("train", "distill", "plan_training")]
REQUESTS += ["vitrail.jobs.on_ray.join_cluster"]


@pytest.fixture
def end_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_a_user: None) -> Callable[..., None]:
    """Ends commands, well done, where they call one of these; nothing is timed or downloaded, no set has files."""
    monkeypatch.setattr("vitrail.training.distributed.launch.cores", lambda: 2)
    monkeypatch.setattr("vitrail.cli.inputs.pick_threads", lambda work: (1, ""))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))

    def end(*names: str) -> None:
        for name in names:
            monkeypatch.setattr(name, begun)

    return end


def command_in(answer: Answer) -> list[str] | None:
    """The words behind `vitrail` of the whole command that an answer leads to; None for a sentence."""
    return shlex.split(answer.hint, comments=True)[1:] if answer.hint.startswith("vitrail ") else None


def words_of(text: str, places: dict[str, Path]) -> list[str]:
    return shlex.split(text.format(**places))


def typed_in(folder: Path, cli: Cli, words: Sequence[str]) -> tuple[Answer, list[str]]:
    """The answer to a command in an empty folder, which it is again afterwards, and what it left there."""
    with contextlib.chdir(folder):
        answer = cli(*words)
    if left := sorted(path.name for path in folder.iterdir()):
        shutil.rmtree(folder)
        folder.mkdir()
    return answer, left


def trail_of(answer: Answer, type_it: Callable[[tuple[str, ...]], Answer]) -> list[str]:
    """The problems that somebody meets who types what is suggested, one behind the other; empty where that is done.

    Raises:
        AssertionError: A problem comes a second time, or there is no end.
    """
    met, words = [answer.problem], command_in(answer)
    while words is not None and (answer := type_it(tuple(words))).code:
        assert answer.problem not in met, f"{words} ends in the same: {answer.problem}"
        met.append(answer.problem)
        assert len(met) <= MOST, met
        words = command_in(answer)
    return met[1:]


def walk(corpus: Sequence[Wrong], places: dict[str, Path], cli: Cli, briefly: Callable[[], object]) -> list[str]:
    """What is wrong with the answers to wrong commands, and with what they suggest.

    Args:
        corpus: The commands.
        places: What `{...}` stands for.
        cli: Runs a command.
        briefly: Called before the first suggestion is typed.
    """
    answers, faults, folder, before = list[Answer](), list[str](), places["here"], stamps(places["root"])
    for wrong in corpus:
        answer, left = typed_in(folder, cli, words_of(wrong.typed, places))
        wanted = words_of(wrong.wanted, places) if wrong.wanted else None
        found = answer.code, command_in(answer) if answer.code else None, left
        if found != (wrong.code, wanted, []):
            faults.append(f"{wrong.typed}: {found}")
        answers.append(answer)
    assert stamps(places["root"]) == before
    briefly()

    @cache
    def type_it(words: tuple[str, ...]) -> Answer:
        return typed_in(folder, cli, words)[0]

    for wrong, answer in zip(corpus, answers, strict=True):
        try:
            if answer.code and trail_of(answer, type_it) and wrong.done:
                faults.append(f"{wrong.typed}: {answer.hint} is not done")
        except AssertionError as error:
            faults.append(f"{wrong.typed}: {error}")
    return faults


def test_every_suggestion_works_when_typed(
    places: dict[str, Path], cli: Cli, end_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    end_at(*TRAINING, *LONG)
    loaded = cache(vitrail.load)
    monkeypatch.setattr(
        "vitrail.cli.inputs.load",
        lambda path, device, **stated: vitrail.load(path, device=device, **stated) if stated else loaded(path),
    )
    quick = [wrong for wrong in CORPUS if not wrong.slow]
    assert walk(quick, places, cli, lambda: end_at(*REQUESTS)) == []


@pytest.mark.soak
def test_every_suggestion_does_what_it_says(places: dict[str, Path], cli: Cli, end_at: Callable[..., None]) -> None:
    end_at(*TRAINING)
    assert walk(CORPUS, places, cli, lambda: None) == []


def test_a_planted_guess_is_noticed(
    places: dict[str, Path], cli: Cli, end_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By letters alone, as it was, --threshold meant --threads and --save meant --sample."""
    corpus = [wrong for wrong in CORPUS if wrong.typed.endswith(("{photo} --threshold 0.9", "{photo} --save"))]
    assert walk(corpus, places, cli, lambda: None) == []
    near = {"--threshold": "threads", "--save": "sample"}
    monkeypatch.setattr("vitrail.cli.parse._meant", lambda flag, follows, options: (options[near[flag]], None))
    assert len(walk(corpus, places, cli, lambda: None)) >= len(corpus) == 2


def test_what_ends_in_the_same_is_noticed() -> None:
    one, two = (Answer(2, "", f"vitrail: {name}\ntry: vitrail train {name}") for name in ("one", "two"))
    done, says = Answer(0, "", ""), Answer(3, "", "vitrail: three\ntry: another file")
    assert trail_of(one, lambda words: done) == trail_of(says, lambda words: done) == []
    assert trail_of(one, {("train", "one"): two, ("train", "two"): says}.__getitem__) == [
        "vitrail: two",
        "vitrail: three",
    ]
    for circle in ({("train", "one"): one}, {("train", "one"): two, ("train", "two"): one}):
        with pytest.raises(AssertionError, match="one"):
            trail_of(one, circle.__getitem__)


def test_every_verb_and_every_guess_is_there() -> None:
    assert len({wrong.typed for wrong in CORPUS}) == len(CORPUS) >= 500
    assert len([wrong for wrong in CORPUS if not wrong.slow]) >= 400
    assert {wrong.typed.split()[0] for wrong in CORPUS} >= VERBS.keys()
    assert {wrong.wanted.split()[0] for wrong in CORPUS if wrong.wanted} >= VERBS.keys()
    known = {each.name.replace("_", "-") for verb in VERBS.values() for each in fields(verb.options)}
    assert {each.partition("=")[0] for meaning in guesses("options").values() for each in meaning.split()} <= known
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "limits.md").read_text("utf-8"), re.MULTILINE)
    assert {heading.lower().replace(" ", "-") for heading in headings} >= {*guesses("missing").values()}
