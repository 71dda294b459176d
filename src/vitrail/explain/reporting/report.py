"""Images explained by one call, as values that know their JSON, their page and their files.

Overlays lie in a folder beside the page that has its name; the text chunks of a PNG state what it shows, with its
verdict. When the page is written again, overlays of the same image and method are too; no other file is touched.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import Samples
from vitrail.data.images import FileImages, NamedImage, open_image
from vitrail.data.sources import Items, format_of, is_passed, read_images
from vitrail.errors import DataError, Hint, UsageError, check_index, counted
from vitrail.explain.methods import DEFAULT, MethodLike
from vitrail.explain.reporting.explained import ExplainedImage, explain_in_batches
from vitrail.explain.reporting.known_masks import known_mask
from vitrail.explain.reporting.plan import (
    Class,
    ImageLike,
    Opener,
    ReportOptions,
    ReportPlan,
    TopLabels,
    patch_grid,
    plan_report,
    with_others,
)
from vitrail.explain.reporting.stored_maps import check_maps, read_map
from vitrail.io import WRITING, check_writable, page_at, write_file
from vitrail.jobs.precision import PrecisionOption
from vitrail.model import Model
from vitrail.model.facts import changes_of
from vitrail.model.model import each_of
from vitrail.nn.networks import weights_hash
from vitrail.pages.colour import overlay_of, png
from vitrail.pages.image_views import ImageView, MadeView, Rates
from vitrail.pages.render import explanation_page, in_frame
from vitrail.runs.beside import NONE, TrainingImages
from vitrail.statistics import wilson_interval
from vitrail.tasks.target import OfLogits
from vitrail.text import short_paths

FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\ud800-\udfff]')  # in the names of files, on some systems
LONGEST = 255 - len(WRITING)  # bytes of the name of a file, on most systems
SUPPORTED = "supported"
ORDER = ("no better than random", "cannot tell", "weak", "supported, tiny", SUPPORTED)  # the worst first


def rates(
    name: str, verdicts: Sequence[str | None], classes: Sequence[Rates] = (), title: str = "", bounded: bool = False
) -> Rates:
    """Of how many images explanations are supported, of the verdicts on them."""
    counts = {each: verdicts.count(each) for each in reversed(ORDER) if each in verdicts}
    supported = counts.get(SUPPORTED, 0)
    interval = wilson_interval(supported, len(verdicts))
    return Rates(name, supported, len(verdicts), interval, counts, tuple(classes), title, bounded)


# ---- the report


class Saved(NamedTuple):
    """The files of a report: the page, and of each image the overlays of its attributions."""

    page: Path
    overlays: list[list[str]]


@dataclass(frozen=True, eq=False)
class Report(Sequence[ExplainedImage]):
    """Images explained: a sequence of them, which knows its JSON and its page; in a notebook it shows itself.

    Attributes:
        images: In the order of the call.
        model: What the model is called.
        about: What to know of the model's probabilities and of how attributions were tested.
        left_out: Images that were not explained, with the reason, in words.
        command: The command line that made it, which the page shows; empty for a call in Python.
        made: When and with what it was made.
    """

    images: tuple[ExplainedImage, ...]
    model: str
    about: str = ""
    left_out: tuple[str, ...] = ()
    command: str = ""
    made: MadeView = field(default_factory=MadeView)

    def __repr__(self) -> str:
        """In a line; `page()` and `to_dict()` have all."""
        rates = "; ".join(f"{each.title}: {each.words}" for each in self.rates)
        return f"<Report of {counted(len(self), 'image')} by {self.model}{f': {rates}' if rates else ''}>"

    def __len__(self) -> int:
        """How many images are explained."""
        return len(self.images)

    def __getitem__(self, number: Any) -> Any:
        """One of the images, or several as a tuple; raises PlaceError, an `IndexError`, where there is none."""
        return self.images[number if isinstance(number, slice) else check_index("number", number, len(self))]

    @property
    def rates(self) -> tuple[Rates, ...]:
        """Of how many images each method's attributions are supported, also for each class; empty if not tested.

        A single verdict speaks of one image. Whether a network looks at the thing, and for which classes it does not,
        only many images show.
        """
        if any(None in one.verdicts for one in self):
            return ()
        found, every = [], [view for one in self for view in one.view.attributions]
        for first in {view.method: view for view in every}.values():
            own = [(view.target, view.trust) for view in every if view.method == first.method and view.trust]
            pairs = [(target, trust.verdict) for target, trust in own]
            targets = {
                view.target: f"{view.named}, why so {'low' if view.lowers else 'high'}"
                if view.in_data is not None
                else ""
                for view in every
            }
            bounded = all(each.evidence and each.minimum_effect is None for _, each in own)
            classes = [
                rates(name, [verdict for target, verdict in pairs if target == name], title=title)
                for name, title in targets.items()
            ]
            classes.sort(key=lambda each: (each.supported / each.images, -each.images, each.name))
            found.append(rates(first.method, [verdict for _, verdict in pairs], classes, first.title, bounded))
        return tuple(found)

    @property
    def least_trusted_first(self) -> list[ExplainedImage]:
        """The images in the order in which they are to be looked at: those whose maps are not to be trusted first.

        Of equals in the order of the call.
        """

        def rank(one: ExplainedImage) -> list[int]:  # how many maps are supported, then the worst verdict
            verdicts = sorted(ORDER.index(each) for each in one.verdicts if each is not None)
            return [one.verdicts.count(SUPPORTED), *verdicts]

        return sorted(self, key=rank)

    def to_dict(self, saved: Saved | None = None) -> dict[str, Any]:
        """All of it as plain values, for JSON; the keys are those of `AttributionView` and `TrustView`.

        Args:
            saved: Its files, which are named then.
        """
        files = [None] * len(self) if saved is None else saved.overlays
        return {
            "model": self.model,
            "page": None if saved is None else str(saved.page),
            "images": [one.to_dict(some) for one, some in zip(self, files, strict=True)],
            "left_out": list(self.left_out),
            "rates": [each.to_dict() for each in self.rates],
            "made": {**vars(self.made), "command": self.command},
        }

    def page(self) -> str:
        """One HTML page that shows everything, loads nothing, and can be read without a script.

        Of several images those whose maps are not to be trusted stand first.
        """
        views, rates = [one.view for one in self.least_trusted_first], self.rates if len(self) > 1 else ()
        short = short_names([view.name for view in views])
        images = [
            replace(view, name=name, labels=tuple(replace(each, name=name) for each in view.labels))
            for view, name in zip(views, short, strict=True)
        ]
        command = shlex.join(short_paths(word, 1) for word in shlex.split(self.command))
        about, left_out = short_paths(self.about, 1), [short_paths(words, 1) for words in self.left_out]
        return explanation_page(self.model, images, command, about, rates, left_out, self.made)

    @typed
    def save(self, out: str | Path) -> Saved:
        """Write the page, and beside it an overlay of each attribution, in a folder that has the page's name.

        Args:
            out: An `.html` file, or a folder for the page. Nothing but a page of a report is ever written over.

        Raises:
            UsageError: If that place is taken, or nothing can be written there.
        """
        page = page_at(Path(out))
        check_writable(page)
        write_file(page, self.page())
        overlays = [write_overlays(place, one.view, page.with_suffix("")) for place, one in enumerate(self, start=1)]
        return Saved(page, [list(map(str, files)) for files in overlays])

    def _repr_html_(self) -> str:
        """The page inside a notebook."""
        return in_frame(self.page())


@typed
def report(
    model: Model,
    images: ImageLike | NamedImage | Iterable[ImageLike | NamedImage] | Items,
    methods: MethodLike | Sequence[MethodLike] = DEFAULT,
    target: Class | Sequence[Class] | OfLogits | None = None,
    contrast: Class | None = None,
    *,
    top_labels: TopLabels | None = None,
    similar_to: ImageLike | None = None,
    options: Mapping[str, Any] | None = None,
    background: str | Path | Float[Tensor, "r c h w"] | None = None,
    trust: bool = True,
    full: bool = False,
    precision: PrecisionOption = "auto",
    nearest: str | Path = NONE,
    progress: Callable[[int, int], None] = lambda done, of: None,
    notify: Callable[[str], object] = lambda sentence: None,
) -> Report:
    """Explain the model's answer to each image by attributions, and test how far these can be trusted.

    Whatever ends it behind some images, an error or Ctrl-C, has an attribute `report`: of those that were explained.

    Args:
        model: From `vitrail.load`.
        images: One or several: paths, PIL images, pixels as `model.predict` takes them,
            `vitrail.data.images.NamedImage`, which has a name, the true class and a mask, or what else names images: a
            folder, a list, a named set (the test images where there are some), or an object as `vitrail.train` takes
            it. An image that cannot be read is left out, and named in `Report.left_out`.
        methods: One or several, by name, as the function or as `Method`; "usual" for four of different kinds, as
            `--compare` has them; "all" for every method that takes at most some tens of passes.
        target: What is explained. A class by name or index, or a list with one for each image; a function of the
            logits; for a model without classes, the index of one of its numbers. Each image's top class when None.
        contrast: A class by name or index: explained is then why the target rather than this class. Without a target,
            images whose top class is the contrast are left out.
        top_labels: Of an image that may have several labels, so many of those that reach their threshold are explained,
            each by itself, the most probable first; "all" for all; five when None. Of an image without any it is the
            most probable label.
        similar_to: An image: explained is then what makes each image similar to it, in the features before the head.
        options: Of the method, by name, such as {"layer": -1}; for one method only.
        background: What replaces masked patches in the test: a folder of images, another run, or a tensor (r, c, h, w)
            as the network reads images. When None, the model's own; without one, ten photographs for a model of
            ImageNet's classes, else the other images of this call.
        trust: Whether attributions are tested, which takes most of the time.
        full: Test the attributions of images without evidence as well; this changes no verdict. Else such an image
            ends there, and where it is one of several, no map of it is made.
        precision: Of the test's passes: "fp32", "bf16", or "auto" for bf16 where it is faster and answers alike.
        nearest: Where the nearest training images are looked for, which then are part of the page: "auto" for some of
            the run that the model was loaded from, which takes seconds when it is first asked for; a file of their
            features, made by `vitrail.embed`; or "none". How often the model is right when it is this sure, and whether
            it was trained on an image, is always there where the run knows it.
        progress: Called with the number of images done, and of all: of several images first of those that were asked
            for evidence, then, from those without, of those explained; of one alone, with the passes of its tests.
        notify: Called with a sentence on each image or method that is left out, and on a borrowed background.

    Returns:
        A sequence with an `ExplainedImage` for each image that was explained.

    Raises:
        UsageError: A method, class or option does not exist, two arguments exclude each other, or no image is left.
        DataError: No image can be read, the background, a mask or the file of features does not fit, or a file of the
            model's run is damaged.
    """
    if not isinstance(model, Model):
        problem = f"model must be a vitrail.Model, with classes and preprocessing, got {type(model).__name__}"
        raise UsageError(problem, "vitrail.load(folder), or vitrail.convert(network)")
    several: Iterable[tuple[int, Any]] = enumerate([images] if is_passed(images) else each_of(images), start=1)
    openers = [opener for place, one in several for opener in _openers(one, f"image {place}", model)]
    if not openers:
        raise UsageError("there is no image to explain", "report(model, ['photo.jpg'])")
    how = options, background, trust, full, precision
    wanted = ReportOptions(methods, target, contrast, top_labels, similar_to, *how)
    plan, training = replace(plan_report(model, wanted), bump=True), TrainingImages(model, nearest)
    if isinstance(plan.target, list) and len(plan.target) != len(openers):
        problem = f"a list of targets has one per image, got {len(plan.target)} for {len(openers)} images"
        raise UsageError(problem, "one class for all images, or one per image")
    readable, unread = open_named(openers, plan)
    if not readable:
        raise unread[0]
    if isinstance(plan.target, list):
        plan = replace(plan, target=[plan.target[place] for place in readable])
    left_out = [error.problem for error in unread.values()]
    found = explain_images(list(readable.values()), plan, progress=progress, notify=notify, left_out=left_out)
    return add_nearest(found, training)


def explain_images(
    images: Sequence[NamedImage],
    plan: ReportPlan,
    others: Sequence[Opener] | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
    notify: Callable[[str], object] = lambda sentence: None,
    left_out: Sequence[str] = (),
    show: Callable[[Report], object] = lambda so_far: None,
) -> Report:
    """The report of images that are open, on what was checked; arguments and errors are those of `report`.

    Args:
        images: At least one.
        plan: What is explained, and how.
        others: Images that may fill the masked patches of these, where nothing else does; these themselves when None.
        progress: Called with images done, and all.
        notify: Called with a sentence about what is left out or borrowed.
        left_out: Images that were left out before, with the reason.
        show: Called behind each image with the report so far.
    """
    if plan.methods:
        check_maps(plan.methods, [one.name for one in images], plan.model.preprocessing.size, patch_grid(plan.model))
    openers = [(one.name, one.image.copy) for one in images] if others is None else others
    plan, missing = with_others(plan, openers), list(left_out)
    found = _empty_report(plan)
    for note in plan.notes:
        notify(note)

    def leave_out(words: str) -> None:
        missing.append(words)
        notify(f"left out: {words}")

    try:
        for one in explain_in_batches(images, plan, progress, leave_out, evident_only=len(images) > 1):
            found = replace(found, images=(*found, one), left_out=tuple(missing))
            show(found)
    except (Exception, KeyboardInterrupt) as error:
        if found:
            vars(error)["report"] = found
        raise
    if not found:
        raise nothing_left(plan)
    return found


def add_nearest(
    found: Report, training: TrainingImages, progress: Callable[[int, int], None] = lambda done, of: None
) -> Report:
    """The report with the nearest training images of each image; what ends it has an attribute `report` as well.

    Args:
        found: Without them.
        training: Among which they are looked for.
        progress: Called with training images that are looked at, and all.
    """
    try:
        near = training.nearest([one.image for one in found], progress)
    except (Exception, KeyboardInterrupt) as error:
        vars(error)["report"] = found
        raise
    besides = [replace(one.view.beside, nearest=own) for one, own in zip(found, near, strict=True)]
    views = [replace(one.view, beside=own) for one, own in zip(found, besides, strict=True)]
    images = tuple(replace(one, view=view) for one, view in zip(found, views, strict=True))
    return replace(found, images=images, made=replace(found.made, near=training.words))


def nothing_left(plan: ReportPlan) -> UsageError:
    """That each image's top class is the one that it would be held against."""
    name = plan.model.output.name(plan.contrast or 0)
    remaining = [each for each in plan.model.output.names if each != name]
    hint = Hint({"target": remaining[0], "contrast": name}) if remaining else Hint(drop=["contrast"])
    return UsageError(plan.nothing_against("every image"), hint)


def _empty_report(plan: ReportPlan) -> Report:
    """The report of no image so far."""
    model, about = plan.model, plan.model.about
    if "verified" in model.facts:
        about = " ".join(filter(None, (about, f"The weights: {model.facts['verified']}.")))
        about += "".join(f" Changed: {change}." for change in changes_of(model.facts))
    if plan.borrows and (plan.others is not None or model.borrows_background):
        about = " ".join(filter(None, (about, f"Maps are tested with {plan.borrowed}.")))
    made = MadeView(
        datetime.now().astimezone().isoformat(timespec="minutes"),
        {"vitrail": version("vitrail"), "torch": torch.__version__},
        weights_hash(model.network),
    )
    return Report((), _name_of(model), about, made=made)


def _name_of(model: Model) -> str:
    """What a report calls a model: known weights by their name, others by the run, the file or the name opened."""
    where, facts = model.loaded_from, model.facts
    if "verified" in facts and (known := facts.get("name") or ("" if where else facts.get("origin"))):
        return str(known)
    if where and Path(where).expanduser().exists():
        return Path(where).expanduser().resolve().name or where  # also where a link leads there
    return where or "a model in memory"


def short_names(names: Sequence[str]) -> list[str]:
    """Names without absolute folders; with the nearest folder where two would be called alike."""
    short = [short_paths(name, 1) for name in names]
    alike = {name for name, count in Counter(short).items() if count > 1}
    return ["/".join(Path(name).parts[-2:]) if last in alike else last for name, last in zip(names, short, strict=True)]


# ---- its images


def _openers(image: ImageLike | NamedImage | Items, name: str, model: Model) -> list[Callable[[], NamedImage]]:
    """What opens the image, or each of those that a word names; `name` is what one without a name is called."""
    if isinstance(image, NamedImage):
        return [lambda: image]
    if isinstance(image, str | Path) and format_of(str(image)) is None:
        return [partial(_open_file, image)]
    if not isinstance(image, str | Path) and not is_passed(image):
        return [lambda: NamedImage(name, open_image(image))]
    samples = read_images(image, flat=True).held_out
    return [partial(named_image, samples, number, model) for number in range(len(samples))]


def _open_file(file: str | Path) -> NamedImage:
    image, known = FileImages([Path(file)]).read(0)
    return NamedImage(str(file), image, fingerprint=known.hex())


def named_image(samples: Samples, number: int, model: Model) -> NamedImage:
    """A sample with its name, its true class or text as the model calls it, where it does, and its mask.

    Raises:
        DataError: It cannot be read.
    """
    (image, known), column, truth = samples.images.read(number), samples.columns.get(model.task.column or ""), None
    if column is not None:
        truth = column.word(number)
        with suppress(DataError):  # a text with a token that the model does not have
            match = model.output.match(column.select(np.array([number])))
            truth = truth if match.unknown else match.column.word(0)
    return NamedImage(samples.name(number), image, truth, known_mask(samples, number, image, model), known.hex())


def open_named(
    openers: Sequence[Callable[[], NamedImage]], plan: ReportPlan
) -> tuple[dict[int, NamedImage], dict[int, DataError]]:
    """The images that can be read, by their places, as their stored maps can; and why others cannot."""
    found, unread = dict[int, NamedImage](), dict[int, DataError]()
    folders = [each.folder for each in plan.methods if each.folder is not None]
    for place, opener in enumerate(openers):
        try:
            one = opener()
            for folder in folders:
                read_map(folder, one.name, plan.model.preprocessing.size, patch_grid(plan.model))
            found[place] = one
        except DataError as error:
            unread[place] = error
    return found, unread


# ---- its files


def write_overlays(number: int, one: ImageView, folder: Path) -> list[Path]:
    """Write the overlay of each attribution of an image, and give the files; none where it has no maps."""
    files, name = list[Path](), short_paths(one.name, 1)
    stem = f"{number:03d}-{FORBIDDEN.sub('_', Path(one.name).stem)}"
    methods = [view.method for view in one.attributions]
    for place, view in enumerate(one.attributions if one.drawn else (), start=1):
        several = f"-{place}" if methods.count(view.method) > 1 else ""
        against = "" if view.contrast is None else f" rather than {view.contrast}"
        tested = "not tested" if view.trust is None else view.trust.sentence
        texts = {"Title": view.title, "Description": f"{name}: {view.target}{against}", "Comment": tested}
        ending = f"-{view.method}{several}.png"
        short = stem.encode()[: LONGEST - len(ending.encode())].decode(errors="ignore")
        files.append(folder / f"{short}{ending}")
        write_file(files[-1], png(overlay_of(view, one), texts))
    return files
