"""`vitrail generate RUN INPUTS`: what a model writes for pictures or texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.cli.parse import Positional, parse
from vitrail.errors import DataError, UsageError

if TYPE_CHECKING:
    from vitrail.nn import Search
    from vitrail.sequence_model import SequenceModel, Written

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Generate:
    """What can be typed after `vitrail generate`."""

    run: Positional[str]
    """A run or model folder"""
    inputs: Positional[tuple[str, ...]] = ()
    """Texts; or picture files and folders of them, for a model that reads pictures"""
    beam: int | None = None
    """Search with so many hypotheses; greedy when left out."""
    sample: bool = False
    """Draw from the model's probabilities instead of searching."""
    temperature: float | None = None
    """Of --sample: below 1 bolder, above 1 more varied; 1 when left out."""
    seed: int | None = None
    """Of --sample; 0 when left out."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    json: bool = False
    """Print a JSON list: input, text, probability, ended, notes, about_probabilities."""


def run(words: Sequence[str]) -> int:
    """Generate, and print a line for each input."""
    says = "Let a model write, for pictures or texts. Example: vitrail generate runs/latest 30713"
    typed = parse(Generate, "generate", words, says)
    if not typed.inputs:
        raise UsageError("nothing to read", f"vitrail generate {typed.run} picture.png, or a text in its place")
    _check_search(typed)

    from vitrail.cli.models_on import check_sources, files_of, load_on, writer
    from vitrail.cli.output import count, print_json, print_table, warn
    from vitrail.shares import percent

    batch = min(BATCH, len(typed.inputs))
    model = writer(load_on(typed.run, typed.device, typed.threads, batch), typed.run, "generate")
    check_sources(model, typed.run, typed.inputs)
    inputs = [str(file) for file, _ in files_of(typed.inputs)] if model.reads_pictures else list(typed.inputs)
    problems: list[DataError] = []
    found = _written(model, inputs, _search(typed), problems)
    if typed.json:
        facts, about = ("text", "probability", "ended", "notes"), {"about_probabilities": model.about_probabilities}
        print_json([{"input": each.name, **{fact: getattr(each, fact) for fact in facts}, **about} for each in found])
    else:
        print_table([(each.name, each.shown, percent(each.probability, 1)) for each in found], left=2)
        if found and model.about_probabilities:
            warn(model.about_probabilities)
    for each in found:
        for note in each.notes:
            warn(f"{each.name}: {note}")
        if not each.ended:
            warn(f"{each.name}: cut after {count(len(each.ids), 'token')}, the most that this model writes")
    for problem in problems[:-1]:
        warn(f"left out: {problem.problem}")
    if problems:
        raise problems[-1]
    return 0


def _check_search(typed: Generate) -> None:
    """Refuse options that speak of two searches at once, and values that no search has.

    Raises:
        UsageError: Names the options.
    """
    if typed.sample and typed.beam is not None:
        raise UsageError("--beam searches and --sample draws", "one of the two")
    for name, value in (("--temperature", typed.temperature), ("--seed", typed.seed)):
        if value is not None and not typed.sample:
            raise UsageError(f"{name} is for drawing, and --sample is not given", f"--sample {name} {value}")
    if typed.beam is not None and typed.beam < 1:
        raise UsageError(f"--beam must be at least 1, got {typed.beam}", "--beam 4")
    if typed.temperature is not None and not 0 < typed.temperature < math.inf:
        raise UsageError(
            f"--temperature must be above 0 and finite, got {typed.temperature}",
            "--temperature 0.7; or leave --sample and --temperature out for the likeliest text",
        )
    if typed.seed is not None and typed.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {typed.seed}", "--seed 0")


def _search(typed: Generate) -> "Search":
    """How the next id is chosen."""
    from vitrail.nn import Beam, Greedy, Sampling

    if typed.beam is not None:
        return Beam(width=typed.beam)
    if typed.sample:
        temperature = 1.0 if typed.temperature is None else typed.temperature
        return Sampling(temperature=temperature, seed=typed.seed or 0)
    return Greedy()


def _written(model: "SequenceModel", inputs: list[str], search: "Search", problems: list[DataError]) -> list["Written"]:
    """What is written for the inputs that can be read, a batch at a time; the others stand in `problems`."""
    tokens = "" if model.source_vocabulary is None else model.source_vocabulary.says()
    found: list[Written] = []
    for first in range(0, len(inputs), BATCH):
        some = inputs[first : first + BATCH]
        try:
            found += model.generate(some, search.from_row(first))
        except DataError:
            for row, one in enumerate(some, start=first):
                if not one:
                    problems.append(DataError(f"text {row + 1} of {len(inputs)} is empty", f"at least one of {tokens}"))
                    continue
                try:
                    found += model.generate([one], search.from_row(row))
                except DataError as error:
                    problems.append(error)
    return found
