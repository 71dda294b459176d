"""The flags of every verb are a promise: a change is made here first, on purpose."""

import re

import pytest

from tests.cli.command import Cli
from vitrail.cli.args import Distill, Train
from vitrail.cli.main import VERBS
from vitrail.cli.parse import options_of
from vitrail.options import LEARNT
from vitrail.tasks.choice import trainable_tasks
from vitrail.training.configuration.resolve import RECIPES

ASSUME = {"--mean", "--std", "--class-names", "--assume"}
WEIGHTS = {*ASSUME, "--image-size", "--channels", "--bits"}
JOB = {"--ray", "--workers", "--deadline"}
COLUMNS = {"--path-column", "--label-column", "--split-column"}
LAYOUT = {*COLUMNS, "--group-column", "--group-pattern"}
FLAGS = {
    "train": {
        *LAYOUT,
        "--fractions",
        "--task",
        "--recipe",
        "--mean",
        "--std",
        "--assume",
        "--init",
        "--probe",
        "--lora",
        "--size",
        "--image-size",
        "--resize",
        "--bits",
        "--unreadable",
        "--epochs",
        "--max-time",
        "--patience",
        "--keep",
        "--batch-size",
        "--lr",
        "--weight-decay",
        "--accumulate",
        "--asymmetric",
        "--class-weights",
        "--balance",
        "--logit-adjustment",
        "--seed",
        "--split-seed",
        "--device",
        "--threads",
        "--precision",
        "--compile",
        "--shard",
        "--workers",
        "--no-background",
        "--no-calibration",
        "--data-root",
        "--config",
        "--verdicts",
        "--resume",
        "--no-check",
        "--out",
        "--devices",
        "--print-launch",
        "--dry-run",
        "--json",
    },
    "distill": {
        *LAYOUT,
        "--fractions",
        *ASSUME,
        "--task",
        "--teacher",
        "--student",
        "--distillation",
        "--temperature",
        "--alpha",
        "--distillation-token",
        "--cache",
        "--fit-head",
        "--teacher-weights",
        "--teacher-size",
        "--recipe",
        "--image-size",
        "--resize",
        "--bits",
        "--unreadable",
        "--epochs",
        "--max-time",
        "--patience",
        "--batch-size",
        "--lr",
        "--weight-decay",
        "--accumulate",
        "--asymmetric",
        "--class-weights",
        "--balance",
        "--logit-adjustment",
        "--seed",
        "--split-seed",
        "--device",
        "--threads",
        "--precision",
        "--compile",
        "--shard",
        "--workers",
        "--no-background",
        "--no-calibration",
        "--data-root",
        "--config",
        "--resume",
        "--no-check",
        "--out",
        "--devices",
        "--print-launch",
        "--dry-run",
        "--json",
    },
    "evaluate": {
        *LAYOUT,
        *WEIGHTS,
        "--neighbours",
        "--out",
        "--precision",
        "--split",
        "--data-root",
        "--strict",
        "--device",
        "--threads",
        "--json",
    },
    "predict": {
        *COLUMNS,
        *WEIGHTS,
        *JOB,
        "--precision",
        "--beam",
        "--top",
        "--sample",
        "--temperature",
        "--seed",
        "--out",
        "--device",
        "--coverage",
        "--data-root",
        "--threads",
        "--json",
    },
    "explain": {
        *COLUMNS,
        *WEIGHTS,
        *JOB,
        "--similar-to",
        "--method",
        "--option",
        "--compare",
        "--methods",
        "--target",
        "--top-labels",
        "--contrast",
        "--no-trust",
        "--full",
        "--background",
        "--masks",
        "--nearest",
        "--precision",
        "--count",
        "--out",
        "--data-root",
        "--device",
        "--threads",
        "--json",
    },
    "audit": {
        *LAYOUT,
        *WEIGHTS,
        *JOB,
        "--out",
        "--precision",
        "--masks",
        "--count",
        "--method",
        "--split",
        "--background",
        "--max-time",
        "--fail-under",
        "--against",
        "--data-root",
        "--device",
        "--threads",
        "--json",
    },
    "embed": {
        *COLUMNS,
        *WEIGHTS,
        *JOB,
        "--out",
        "--precision",
        "--patches",
        "--split",
        "--strict",
        "--data-root",
        "--device",
        "--threads",
        "--json",
    },
    "similar": {
        *COLUMNS,
        *WEIGHTS,
        "--neighbours",
        "--pooling",
        "--queries",
        "--out",
        "--data-root",
        "--device",
        "--threads",
        "--json",
    },
    "serve": {
        *WEIGHTS,
        "--token-file",
        "--host",
        "--port",
        "--workers",
        "--explainers",
        "--queue",
        "--timeout",
        "--features",
        "--watch",
        "--device",
        "--threads",
        *("--check", "--print", "--out", "--json"),
    },
    "data": {
        *LAYOUT,
        *("--out", "--shorter-side", "--quality", "--shard-size", "--model", "--fix-split", "--crops", "--data-root"),
        *("--device", "--json"),
        *("--recipe", "--image-size", "--resize", "--init", "--seed", "--config", "--task", "--count"),
    },
    "export": {
        *(WEIGHTS - {"--image-size"}),
        *("--to", "--out", "--size", "--check", "--weights", "--explain", "--conservative", "--json"),
    },
    "models": {*WEIGHTS, "--classes", "--json"},
    "completion": set(),
    "doctor": {*WEIGHTS, "--json"},
}
POSITIONALS = {
    "completion": ["SHELL"],
    "train": ["[DATA]"],
    "distill": ["[DATA]"],
    "evaluate": ["RUN", "[DATA]"],
    "predict": ["RUN", "INPUTS"],
    "explain": ["RUN", "IMAGES"],
    "audit": ["RUN", "[DATA]"],
    "embed": ["RUN", "DATA"],
    "similar": ["RUN", "IMAGES", "DATA"],
    "export": ["RUN"],
    "serve": ["[MODELS]"],
    "data": ["ACTION", "DATA"],
    "models": ["[SIZE]"],
    "doctor": ["[RUN]"],
}
REQUIRED = {
    "distill": ["--teacher WEIGHTS"],
    "embed": ["--out PATH"],
    "export": ["--to {onnx,transformers,timm,torchvision}"],
}


def flags_of(text: str) -> set[str]:
    """The flags that a help text explains (not those that its sentences mention)."""
    return set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))


def test_every_verb_is_in_the_table() -> None:
    assert set(FLAGS) == set(POSITIONALS) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_flags_of_a_verb(verb: str, cli: Cli) -> None:
    answer = cli(verb, "--help")
    assert answer.code == 0
    assert answer.err == ""
    assert flags_of(answer.out) == FLAGS[verb]
    usage = ["usage: vitrail", verb, *POSITIONALS[verb], *REQUIRED.get(verb, ()), "[--flags]"]
    assert answer.out.splitlines()[0] == " ".join(usage)
    assert re.findall(r"^  ([A-Z]+) ", answer.out, re.MULTILINE) == [name.strip("[]") for name in POSITIONALS[verb]]
    assert "default: None" not in answer.out


def test_the_options_of_a_training_stand_in_groups(cli: Cli) -> None:
    parts = re.split(r"^(\S.*):$", cli("train", "--help").out, flags=re.MULTILINE)
    groups = [flags_of(text) for text in parts[2::2]]
    assert {"--size", "--image-size", "--resize"} in groups
    assert {"--init", "--probe", "--lora"} in groups
    assert all(len(flags) <= 7 for flags in groups)


def test_a_planted_flag_would_be_seen(cli: Cli) -> None:
    text = cli("doctor", "--help").out.replace(" --json ", " --jsonl ")
    assert flags_of(text) != FLAGS["doctor"]


def listed(text: str) -> set[str]:
    """The names of a list in a help text: from a colon to the next stop."""
    return set(re.split(r", ", re.split(r"[;.]", text.partition(": ")[2])[0]))


def test_help_names_what_the_tables_hold_and_nothing_else() -> None:
    """These files import nothing heavy, so they cannot read the tables."""
    helps = {kind: {name: option.help for name, option in options_of(kind).items()} for kind in (Train, Distill)}
    classes, texts = helps[Train]["recipe"].split("For sequences")
    kinds = {name: recipe.kind for name, recipe in RECIPES.items()}
    assert listed(classes) == {name for name, kind in kinds.items() if kind == "ViT"}
    assert listed(texts) == kinds.keys() - listed(classes)
    assert listed(helps[Distill]["recipe"]) == listed(classes)
    tasks = re.findall(r"([\w-]+) \(a column (\w+)\)", helps[Train]["task"])
    assert set(tasks) == {(task.name, task.column) for task in trainable_tasks().values()}
    assert trainable_tasks().keys() == {*LEARNT}


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_first_page(words: tuple[str, ...], cli: Cli) -> None:
    answer = cli(*words)
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.splitlines() if re.match(r"  [a-z]", line)] == list(VERBS)
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert answer.out.splitlines()[-1] == "try: vitrail train digits"


def test_help_of_a_verb_in_two_ways(cli: Cli) -> None:
    assert cli("help", "doctor") == cli("doctor", "--help")


def test_flags_are_read_before_and_after_names(cli: Cli) -> None:
    plain = cli("models", "Ti/16", "--classes", 10, "--json")
    assert cli("models", "--json", "--classes=10", "Ti/16") == plain
    assert plain.code == 0


def test_version(cli: Cli) -> None:
    assert re.fullmatch(r"vitrail \d+\.\d+\.\d+\S*\n", cli("--version").out)
