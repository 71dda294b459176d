"""`vitrail explain RUN PICTURES`: where on a picture a prediction comes from, as a page and as picture files."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.cli.parse import Positional, parse
from vitrail.errors import DataError, UsageError

if TYPE_CHECKING:
    from vitrail.cli.explain_maps import Result


@dataclass(frozen=True, kw_only=True)
class Explain:
    """What can be typed behind `vitrail explain`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files or folders of them; or one named set, manifest or the run's own data, whose test pictures (or
    validation pictures, where there is no test) are taken. Planted pictures, whose evidence is known, may show no
    digit or two: planted:empty, planted:double, planted:mnist,double,2x3"""
    method: str | None = None
    """How to explain: raw_attention, head_view, rollout, gradient_rollout, attention_grad_cam, generic_attention,
    legrad, attcat, tam, saliency, input_x_gradient, smooth_grad, integrated_gradients, grad_cam, hires_cam, occlusion,
    rise, kernel_shap, conservative; generic_attention when left out. A model that writes has cross_attention."""
    layer: str | None = None
    """The layer that the method reads, where it reads one: a number, -1 for the last, or a name such as
    blocks.3.norm1."""
    head: int | None = None
    """The head that the method reads, where it can; all together when left out."""
    compare: bool = False
    """Several methods side by side, on one colour scale."""
    methods: str | None = None
    """Which ones --compare shows, with commas between; all but those that take long when left out."""
    target: str | None = None
    """The class to explain, by name; each picture's top class when left out."""
    rather_than: str | None = None
    """The class that it is held against: why this one rather than that one."""
    no_trust: bool = False
    """Only the maps, without the test on the model that says how far to trust each; far quicker."""
    reference: Path | None = None
    """Pictures that cover squares in that test: a folder of them, or another run; the model's own when left out."""
    masks: Path | None = None
    """A folder with a PNG for each picture, of the same name, not black where the evidence lies."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the passes that test a map; auto times bf16 against fp32 on a wide network, and takes the faster."""
    count: int = 8
    """How many pictures of a set or folder, evenly spread over it."""
    out: Path | None = None
    """The page (.html), or a folder for it; explanation.html here when left out. Pictures go into a folder of the same
    name beside the page."""
    data_root: Path | None = None
    """Where named sets lie."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
    threads: int | None = None
    """Processor threads; chosen by the size of the work when left out."""
    json: bool = False
    """Print a JSON list with the values of every map."""


def run(words: Sequence[str]) -> int:
    """Explain, write the page and the pictures, and say where they are."""
    says = "Show where on a picture a prediction comes from. Example: vitrail explain runs/latest photo.jpg"
    typed = parse(Explain, "explain", words, says)
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail explain {typed.run} photo.jpg")
    if typed.count < 1:
        raise UsageError(f"--count must be at least 1, got {typed.count}", "--count 4")
    page, command = _page(typed.out), shlex.join(["vitrail", "explain", *words])

    from vitrail.cli.explain_maps import BATCH
    from vitrail.cli.models_on import load_on
    from vitrail.sequence_model import SequenceModel

    model = load_on(typed.run, typed.device, typed.threads, BATCH)
    if isinstance(model, SequenceModel):
        from vitrail.cli.explain_written import explain_written

        return explain_written(model, typed, page, command)

    from vitrail.cli.explain_asked import check_asked
    from vitrail.cli.explain_maps import explain
    from vitrail.cli.explain_pictures import read_pictures, with_masks

    asked = check_asked(model, typed)
    problems: list[str] = []
    shown = read_pictures(model, typed.run, typed.pictures, typed.count, typed.data_root, problems)
    if not shown:
        raise DataError(problems[0], "another picture")
    shown = with_masks(shown, typed.masks) if typed.masks is not None else shown
    _write(typed, page, command, explain(model, shown, asked))
    leave_out(problems)
    return 0


def leave_out(problems: Sequence[str]) -> None:
    """Name the pictures that could not be read, when all others are done.

    Raises:
        DataError: If there is one.
    """
    from vitrail.cli.output import warn

    for problem in problems[:-1]:
        warn(f"left out: {problem}")
    if problems:
        raise DataError(problems[-1], "leave it out, or replace it by a picture that can be read")


def _write(typed: Explain, page: Path, command: str, results: Sequence["Result"]) -> None:
    """The page and the pictures, and what is said of them."""
    from vitrail.cli.explain_json import explained_json
    from vitrail.cli.output import print_json, say
    from vitrail.cli.pictures import write_pictures
    from vitrail.pages.explanation_page import write_explanation_page
    from vitrail.pages.views import ExplanationPage

    title, explained = f"What {folder_name(typed.run)} looked at", [one for _, one in results]
    shown = ExplanationPage(title, typed.run, command, explained, one_scale=typed.compare)
    write_explanation_page(page, shown)
    files = write_pictures(page.with_suffix(""), shown)
    if typed.json:
        print_json([explained_json(p, one, page, some) for (p, one), some in zip(results, files, strict=True)])
        return
    _tell(typed, results)
    say("")
    say(f"the page      {page}")
    say(f"the pictures  {page.with_suffix('')}")


def _tell(typed: Explain, results: Sequence["Result"]) -> None:
    """The answers and the verdicts: those of a comparison in a table, others as sentences below it."""
    from vitrail.cli.output import print_table, say, share, warn
    from vitrail.pages.words import parts_words, several_words, shared_words

    explained = [one for _, one in results]
    rows, sentences = [], []
    for prediction, one in results:
        truth = "" if one.true_label in (None, prediction.label) else f"(it is {one.true_label})"
        rows.append((one.name, prediction.label, share(prediction.probability, 1), truth))
        tested = [(view.title, view.trust) for view in one.heats if view.trust is not None]
        if typed.compare:
            rows += [("", title, trust.verdict) for title, trust in tested]
            sentences += [f"{one.name}: {words}" for words in shared_words(one.heats)]
        else:
            sentences += [f"{one.name}: {trust.sentence}" for _, trust in tested]
    if typed.target is not None or typed.rather_than is not None:
        against = "" if typed.rather_than is None else f" rather than {typed.rather_than}"
        say(f"explained: {typed.target or 'the class that the model chose'}{against}")
    several = several_words(explained[0].heats)
    if several:
        say(several)
    print_table(rows, left=3 if typed.compare else 2)
    for sentence in ["", *sentences] if sentences else []:
        say(sentence)
    summed = [f"{one.name}: {parts_words(view)}" for one in explained for view in one.heats if view.parts]
    for sentence in ["", *summed] if summed else []:
        say(sentence)
    if any(view.trust is not None and view.trust.fill != "donor" for one in explained for view in one.heats):
        warn(f"{typed.run} carries no reference pictures, so nothing can be told; --reference DIR names some")


def folder_name(run: str) -> str:
    """A run's name in a headline: that of its folder, also where it is reached by a link; its path stands elsewhere."""
    return Path(run).resolve().name or run


def _page(out: Path | None) -> Path:
    """Where the page goes; nothing but a page is ever written over.

    Raises:
        UsageError: If that place is taken, or its ending is that of another kind of file.
    """
    if out is None:
        return _free(Path("explanation.html"))
    if out.is_dir() or not out.suffix:
        return _free(out / "explanation.html")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"an explanation is an HTML page, not {out.name}", f"--out {out.with_suffix('.html')}")
    if out.exists() and b"vitrail" not in out.read_bytes():
        raise UsageError(f"{out} exists and is no page of vitrail", f"--out {_free(out)}")
    if out.with_suffix("").exists() and not out.exists():
        raise UsageError(f"{out.with_suffix('')}, where the pictures would go, exists", f"--out {_free(out)}")
    return out


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of pictures exists."""
    free, number = page, 2
    while free.exists() or free.with_suffix("").exists():
        free, number = page.with_stem(f"{page.stem}-{number}"), number + 1
    return free
