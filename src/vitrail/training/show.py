"""`vitrail data show`: images of each class as a network sees them, beside what they were, before anything is trained.

A training with the same data and options sees these very images, before it mixes them with others where a recipe asks
for it: what is changed at random depends on seed, epoch and image alone, and the code that changes them is the same.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitrail.arguments import typed
from vitrail.check.findings import thumbnail
from vitrail.check.survey import quick_survey
from vitrail.data.augmentation import apply, draw
from vitrail.data.columns import TRAIN, Labels, RawDataset
from vitrail.data.images import evenly, what_to_try
from vitrail.data.layout import Layout
from vitrail.data.loader import StreamedLoader
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources import Data, name_passed
from vitrail.errors import DataError, counted
from vitrail.features.embed import Progress
from vitrail.options import TrainOptions
from vitrail.pages.render import in_frame, show_page
from vitrail.runs.settings import Settings
from vitrail.text import ShortRepr
from vitrail.training.configuration.request import Own, Request
from vitrail.training.configuration.resolve import with_file
from vitrail.training.prepared import shapes_of
from vitrail.training.setup import CHECK_SECONDS, decide

CLASSES, IMAGES, DRAWS = 12, 3, 4  # classes that are shown, images of each, and epochs of a training
SIDE, SEEN = 160, 128  # pixels of the longer side on the page: of an original, and of what is seen of it, at most


@dataclass(frozen=True, eq=False, repr=False)
class SeenImage(ShortRepr):
    """An image, and what a network sees of it.

    Attributes:
        name: Of the image.
        label: What is learnt of it, in words.
        part: What an evaluation sees of it: left, top, right and bottom as fractions of its sides.
        original: A small copy.
        views: As an evaluation sees it; then as the first epochs of a training see it, where they see anything else.
    """

    name: str
    label: str
    part: tuple[float, float, float, float]
    original: UInt8[np.ndarray, "h w *c"]
    views: tuple[UInt8[np.ndarray, "high wide *d"], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without pixels."""
        return {"file": self.name, "label": self.label or None, "part": list(self.part)}


@dataclass(frozen=True, eq=False, repr=False)
class ShownData(ShortRepr):
    """Data as a network sees them.

    Attributes:
        data: What is shown.
        settings: Of the training.
        input: How an evaluation reads an image.
        classes: Training images of each class; empty where an image has no class, or several labels.
        images: Training images, some of each class, class by class; that first of which most is cut away.
        lost: How many training images lose more than a `tenth` and a `third` of their length in an evaluation, as their
            proportions are others than those of the network; `of` how many, of which the sizes were looked at.
        notes: On the data and on each choice, one sentence each.
    """

    data: str
    settings: Settings
    input: Preprocessing
    classes: Mapping[str, int]
    images: tuple[SeenImage, ...]
    lost: Mapping[str, int]
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        return in_frame(self.page())

    @property
    def sentence(self) -> str:
        """How much is cut away."""
        images = counted(self.lost["of"], "image")
        if not self.lost["tenth"]:
            return f"None of {images} loses more than a tenth of its length."
        some = f"{self.lost['tenth']:,} of {images} lose more than a tenth of their length"
        return f"A long image loses its ends: {some}, {self.lost['third']:,} more than a third."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without pixels."""
        settings, reads = self.settings, self.input
        how = {"recipe": settings.recipe, "seed": settings.seed, "size": list(reads.size), "resize": reads.resize}
        found = {"classes": dict(self.classes), "lost": dict(self.lost), "notes": list(self.notes)}
        changes = {"augmentation": asdict(settings.augmentation)}
        return {"data": self.data, **how, **changes, **found, "images": [each.to_dict() for each in self.images]}

    def page(self, command: str = "") -> str:
        """One HTML page with the images, which loads nothing.

        Args:
            command: That made it.
        """
        return show_page(self, command)


@typed
def show_data(
    data: Data,
    options: TrainOptions = TrainOptions(),  # noqa: B008  # a frozen value
    *,
    images: int = IMAGES,
    progress: Progress = lambda done, total: None,
) -> ShownData:
    """Training images of each class as a training with these options would see them; nothing is trained or written.

    Args:
        data: As for `train`: images of any task.
        options: As for `train`, of which those of data, size, recipe, pretrained weights and seed count.
        images: Of each class, of at most 12 classes; likewise of those that have a label, or a number near another.
        progress: Called with images of which the size was looked at, and all.

    Raises:
        UsageError: An option is wrong.
        DataError: The data cannot be used, or hold texts; or no image that is to be shown can be read.
    """
    name, reader = name_passed(data, None, Layout.of(options))
    request, notes = with_file(Request(data=name, options=options, own=Own(reader=reader))), list[str]()
    settings, dataset, *_ = decide(request, lambda event: None, lambda *sentences: notes.extend(sentences))
    if dataset.reads_text:
        raise DataError(f"{name} contains texts, but images are wanted", "name a folder or list of images")
    train, a, (shape, fetched) = dataset.train, settings.augmentation, shapes_of(settings)
    column = train.column(dataset.column)
    of = quick_survey(RawDataset(dataset.root, {TRAIN: train}), CHECK_SECONDS, progress)
    rows, (high, wide) = of.rows[of.readable], shape.size
    ratio = rows["width"] * high / (rows["height"] * wide)
    lost = 1 - np.minimum(ratio, 1 / ratio) if shape.resize == "crop" else np.zeros(len(rows))
    index, strata = rows["index"][np.argsort(-lost, kind="stable")], column.strata()
    kinds, many = (index * 0, 4 * images) if strata is None else (strata[index], images)
    some = [evenly(index[kinds == kind].tolist(), many) for kind in evenly(np.unique(kinds).tolist(), CLASSES)]
    if not some:
        raise DataError(f"none of {counted(len(train), 'image')} of {name} can be read", what_to_try(train.images))
    ids, drawn = np.concatenate(some), list[Tensor]()
    got = StreamedLoader(train.images, fetched, workers=0, whole=a.crops).read(ids)
    for epoch in range(DRAWS if a.words else 0):
        draws = draw(a, ids, seed=settings.seed, epoch=epoch, aspect=wide / high, extents=got.extents)
        drawn.append(apply(a, got.pixels, draws, shape.size, got.extents).round().clamp(0, 255).byte())
    shown = list[SeenImage]()
    for place, row in enumerate(ids.tolist()):
        image = train.images.open(row)
        part = np.array(shape.part(*image.size)) / [*image.size, *image.size]
        views = (_small(pixels) for pixels in (shape.to_uint8(image), *(each[place] for each in drawn)))
        about = train.name(row), column.word(row), tuple(part.tolist())
        shown.append(SeenImage(*about, thumbnail(image, SIDE), tuple(views)))
    counts = {"of": len(lost), "tenth": int((lost > 1 / 10).sum()), "third": int((lost > 1 / 3).sum())}
    classes = column.counts() if isinstance(column, Labels) else {}
    return ShownData(name, settings, shape, classes, tuple(shown), counts, tuple(notes))


def _small(pixels: UInt8[Tensor, "c h w"]) -> UInt8[np.ndarray, "high wide *c"]:
    """Pixels as they are shown: of an image that is longer than `SEEN`, means of some."""
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    return np.asarray(image.reduce(-(-max(image.size) // SEEN)))
