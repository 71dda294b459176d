"""`vitrail explain RUN PICTURES`: where on a picture a prediction comes from, as a page and as picture files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.parse import Positional, parse
from vitrail.errors import UsageError, nearest

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.explain import Heat, Method
    from vitrail.model import Model, Prediction

DEFAULT_METHOD = "generic_attention"


@dataclass(frozen=True, kw_only=True)
class Explain:
    """What can be typed behind `vitrail explain`."""

    run: Positional[str]
    """A run or model folder"""
    pictures: Positional[tuple[str, ...]] = ()
    """Picture files or folders of them; or one named set, whose test pictures are taken"""
    method: str = DEFAULT_METHOD
    """How to explain: generic_attention, rollout, raw_attention."""
    compare: bool = False
    """All methods side by side."""
    target: str | None = None
    """The class to explain, by name; each picture's top class when left out."""
    count: int = 8
    """How many pictures of a named set or folder."""
    out: Path | None = None
    """The page; explanation.html here when left out. Pictures go into a folder of the same name beside it."""
    data_root: Path | None = None
    """Where named sets lie."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps."""
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
    typed = parse(Explain, "explain", words, "Show where on a picture a prediction comes from.")
    if not typed.pictures:
        raise UsageError("no picture given", f"vitrail explain {typed.run} photo.jpg")

    import sys

    from vitrail.cli.models_on import load_on
    from vitrail.cli.output import print_json
    from vitrail.explain import METHODS
    from vitrail.pages.explanation_page import ExplanationPage, write_explanation_page

    if typed.method not in METHODS:
        guess = nearest(typed.method, METHODS) or DEFAULT_METHOD
        raise UsageError(f"unknown method '{typed.method}', there are {', '.join(METHODS)}", f"--method {guess}")
    methods = list(METHODS.values()) if typed.compare else [METHODS[typed.method]]
    model = load_on(typed.run, typed.device)
    target = _class_index(model, typed.target)
    shown = _pictures(model, typed)
    page = typed.out or _free(Path("explanation.html"))
    images = model.tensor([one.picture for one in shown])
    predictions = model.predict([one.picture for one in shown])
    heats = [method.function(model.network, images, target) for method in methods]
    explained = [
        _explained(model, one, p, methods, heats, row)
        for row, (one, p) in enumerate(zip(shown, predictions, strict=True))
    ]
    write_explanation_page(
        page,
        ExplanationPage(
            title=f"What {typed.run} looked at",
            model=str(typed.run),
            command=_command(sys.argv),
            pictures=explained,
        ),
    )
    folder = page.with_suffix("")
    files = _write_pictures(folder, explained)
    if typed.json:
        print_json(_as_json(shown, predictions, methods, heats, model, page, files))
        return 0
    for one, prediction in zip(shown, predictions, strict=True):
        truth = "" if one.true_label is None or one.true_label == prediction.label else f"   (it is {one.true_label})"
        print(f"{one.name}  {prediction.label}  {100 * prediction.probability:.1f} %{truth}")
    print(f"the page      {page}\nthe pictures  {folder}/")
    return 0


def _pictures(model: "Model", typed: Explain) -> list[Shown]:
    from vitrail.cli.models_on import files_of
    from vitrail.data.decode import open_picture
    from vitrail.data.source import NAMED
    from vitrail.jobs import open_for

    if typed.count < 1:
        raise UsageError(f"--count must be at least 1, got {typed.count}", "--count 4")
    first = typed.pictures[0]
    if first in NAMED:
        split = open_for(model, typed.run, first, typed.data_root).split
        rows = range(min(typed.count, len(split)))
        return [Shown(split.pictures.name(i), split.pictures.open(i), model.classes[split.labels[i]]) for i in rows]
    files = files_of(typed.pictures)
    if any(Path(name).is_dir() for name in typed.pictures):
        files = files[: typed.count]
    return [Shown(str(file), open_picture(file), None) for file in files]


def _class_index(model: "Model", name: str | None) -> int | None:
    if name is None:
        return None
    if name not in model.classes:
        guess = nearest(name, model.classes) or model.classes[0]
        raise UsageError(f"the model has no class '{name}'", f"--target {guess}")
    return model.classes.index(name)


def _explained(
    model: "Model", one: Shown, prediction: "Prediction", methods: list["Method"], heats: list["Heat"], row: int
) -> Any:
    """One picture as values of a page."""
    import numpy as np

    from vitrail.pages.explanation_page import ExplainedPicture, HeatView
    from vitrail.report import as_picture

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
    return ExplainedPicture(one.name, picture, one.true_label, list(prediction.top), views)


def _write_pictures(folder: Path, explained: list[Any]) -> list[list[str]]:
    """One PNG for each picture and method, large enough to look at."""
    from PIL import Image

    from vitrail.pages.colour import heat_picture

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, one in enumerate(explained, start=1):
        files = []
        for view in one.heats:
            drawn = Image.fromarray(heat_picture(one.picture, view.values, view.signed))
            larger = max(1, round(448 / max(drawn.size)))
            drawn = drawn.resize((drawn.width * larger, drawn.height * larger), Image.Resampling.NEAREST)
            file = folder / f"{number:03d}-{Path(one.name).stem}-{view.method}.png"
            drawn.save(file)
            files.append(str(file))
        written.append(files)
    return written


def _as_json(
    shown: list[Shown],
    predictions: list["Prediction"],
    methods: list["Method"],
    heats: list["Heat"],
    model: "Model",
    page: Path,
    files: list[list[str]],
) -> list[dict[str, Any]]:
    return [
        {
            "file": one.name,
            "label": prediction.label,
            "probability": prediction.probability,
            "true_label": one.true_label,
            "page": str(page),
            "heats": [
                {
                    "method": method.name,
                    "target": model.classes[int(heat.target[row])],
                    "logit": float(heat.logit[row]),
                    "signed": heat.signed,
                    "class_specific": heat.class_specific,
                    "values": heat.values[row].tolist(),
                    "notes": list(heat.notes[row]),
                    "picture": file,
                }
                for method, heat, file in zip(methods, heats, files[row], strict=True)
            ],
        }
        for row, (one, prediction) in enumerate(zip(shown, predictions, strict=True))
    ]


def _free(path: Path) -> Path:
    """The path, or the first with a number that does not exist."""
    free, number = path, 2
    while free.exists():
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def _command(arguments: list[str]) -> str:
    import shlex

    return shlex.join(["vitrail", *arguments[1:]])
