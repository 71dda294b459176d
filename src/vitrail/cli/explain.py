"""`vitrail explain RUN PICTURES`: where on a picture a prediction comes from, as a page and as picture files."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.parse import Positional, parse
from vitrail.cli.pictures import write_pictures
from vitrail.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.explain import Method
    from vitrail.model import Model, Prediction
    from vitrail.pages.explanation_page import ExplainedPicture

DEFAULT_METHOD = "generic_attention"
BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Explain:
    """What can be typed behind `vitrail explain`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files or folders of them; or one named set, manifest or the run's own data, whose test pictures (or
    validation pictures, where there is no test) are taken"""
    method: str = DEFAULT_METHOD
    """How to explain: raw_attention, rollout, generic_attention."""
    compare: bool = False
    """All methods side by side."""
    target: str | None = None
    """The class to explain, by name; each picture's top class when left out."""
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


@dataclass(frozen=True)
class Shown:
    """A picture to explain."""

    name: str
    picture: "Image.Image"
    true_label: str | None


def run(words: Sequence[str]) -> int:
    """Explain, write the page and the pictures, and say where they are."""
    says = "Show where on a picture a prediction comes from. Example: vitrail explain runs/latest photo.jpg"
    typed = parse(Explain, "explain", words, says)
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail explain {typed.run} photo.jpg")
    if typed.count < 1:
        raise UsageError(f"--count must be at least 1, got {typed.count}", "--count 4")
    page = _page(typed.out)

    from vitrail.cli.models_on import load_on
    from vitrail.cli.output import print_json, print_table, say, share, warn
    from vitrail.explain import METHODS
    from vitrail.pages.explanation_page import ExplanationPage, write_explanation_page
    from vitrail.sequence_model import SequenceModel

    model = load_on(typed.run, typed.device, typed.threads, BATCH)
    if isinstance(model, SequenceModel):
        from vitrail.cli.explain_written import explain_written

        return explain_written(model, typed, page, shlex.join(["vitrail", "explain", *words]))
    if typed.method not in METHODS:
        guess = nearest(typed.method, METHODS) or DEFAULT_METHOD
        raise UsageError(f"unknown method '{typed.method}', there are {', '.join(METHODS)}", f"--method {guess}")
    methods = list(METHODS.values()) if typed.compare else [METHODS[typed.method]]
    target = _class_index(model, typed.target)
    problems: list[str] = []
    shown = list(_pictures(model, typed, problems))
    if not shown:
        raise DataError(problems[0], "another picture")
    results = [
        result
        for first in range(0, len(shown), BATCH)
        for result in _explain(model, shown[first : first + BATCH], methods, target)
    ]
    title, command = f"What {typed.run} looked at", shlex.join(["vitrail", "explain", *words])
    explained = [one for _, one in results]
    write_explanation_page(page, ExplanationPage(title, str(typed.run), command, explained))
    files = write_pictures(page.with_suffix(""), explained)
    if typed.json:
        print_json([_as_json(p, one, page, some) for (p, one), some in zip(results, files, strict=True)])
    else:
        truths = ["" if one.true_label in (None, p.label) else f"(it is {one.true_label})" for p, one in results]
        print_table(
            [(o.name, p.label, share(p.probability, 1), t) for (p, o), t in zip(results, truths, strict=True)], left=2
        )
        say("")
        say(f"the page      {page}")
        say(f"the pictures  {page.with_suffix('')}")
    for problem in problems[:-1]:
        warn(f"left out: {problem}")
    if problems:
        raise DataError(problems[-1], "leave it out, or replace it by a picture that can be read")
    return 0


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


def _pictures(model: "Model", typed: Explain, problems: list[str]) -> Iterator[Shown]:
    """The pictures asked for that can be read; the others are named in `problems`."""
    from vitrail.cli.models_on import files_of
    from vitrail.data.decode import open_picture
    from vitrail.data.source import MANIFESTS, NAMED
    from vitrail.jobs import is_own_data, open_for

    first = typed.pictures[0]
    is_set = first in NAMED or is_own_data(typed.run, first) or Path(first).suffix.lower() in MANIFESTS
    if is_set and len(typed.pictures) > 1:
        raise UsageError(f"{first} is a whole set, and stands alone", f"vitrail explain {typed.run} {first}")
    if is_set:
        split = open_for(model, typed.run, first, typed.data_root).split
        for i in spread(range(len(split)), typed.count):
            try:
                yield Shown(split.pictures.name(i), split.pictures.open(i), model.classes[split.labels[i]])
            except DataError as error:
                problems.append(error.problem)
        return
    files = files_of(typed.pictures)
    found = set(spread([file for file, named in files if not named], typed.count))
    for file in [file for file, named in files if named or file in found]:
        try:
            yield Shown(str(file), open_picture(file), None)
        except DataError as error:
            problems.append(error.problem)


def spread(things: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the things, evenly spread; says so when some are left out."""
    if len(things) <= most:
        return list(things)

    from vitrail.cli.output import warn

    warn(f"{most} of {len(things):,} pictures; --count {len(things)} takes all")
    return [things[index * len(things) // most] for index in range(most)]


def _class_index(model: "Model", name: str | None) -> int | None:
    if name is None:
        return None
    if name not in model.classes:
        guess = nearest(name, model.classes) or model.classes[0]
        raise UsageError(f"the model has no class '{name}'", f"--target {guess}")
    return model.classes.index(name)


def _explain(
    model: "Model", shown: list[Shown], methods: list["Method"], target: int | None
) -> list[tuple["Prediction", "ExplainedPicture"]]:
    """What the model says of each picture, and the picture with its maps as values of a page."""
    import numpy as np

    from vitrail.pages.explanation_page import ExplainedPicture, HeatView
    from vitrail.report import as_picture

    pictures = [one.picture for one in shown]
    images, predictions = model.tensor(pictures), model.predict(pictures)
    heats = [method.function(model.network, images, target) for method in methods]
    results = []
    for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True)):
        views = [
            HeatView(
                method=method.name,
                title=method.title,
                target=model.classes[int(heat.target[row])],
                logit=float(heat.logit[row]),
                values=np.asarray(heat.values[row].cpu().numpy(), dtype=np.float32),
                signed=heat.signed,
                class_specific=heat.class_specific,
                notes=heat.notes[row],
            )
            for method, heat in zip(methods, heats, strict=True)
        ]
        picture = as_picture(model.preprocessing.to_uint8(one.picture))
        results.append((prediction, ExplainedPicture(one.name, picture, one.true_label, list(prediction.top), views)))
    return results


def _as_json(prediction: "Prediction", one: "ExplainedPicture", page: Path, files: list[str]) -> dict[str, Any]:
    return {
        "file": one.name,
        "label": prediction.label,
        "probability": prediction.probability,
        "true_label": one.true_label,
        "page": str(page),
        "heats": [
            {
                "method": view.method,
                "target": view.target,
                "logit": view.logit,
                "signed": view.signed,
                "class_specific": view.class_specific,
                "values": view.values.tolist(),
                "notes": list(view.notes),
                "picture": file,
            }
            for view, file in zip(one.heats, files, strict=True)
        ],
    }


def _free(page: Path) -> Path:
    """The page, or the first with a number for which neither it nor its folder of pictures exists."""
    free, number = page, 2
    while free.exists() or free.with_suffix("").exists():
        free, number = page.with_stem(f"{page.stem}-{number}"), number + 1
    return free
