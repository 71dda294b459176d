"""The nearest images of some, how near they are, and where they agree: `vitrail.similar`.

Where two images agree, for each patch the one of the other most like it:

    cosine    of two patch tokens behind the last norm
    usual     the cosine that the patch reaches, at best, in a middle one of other images: tokens in which a network
              keeps what is the same for every image (sinks) have it as high as can be, and agree with nothing
    beyond    cosine less usual: what this pair has and a middle one has not

A pair of patches that agree is no evidence of what the likeness of the images depends on: tokens mix what all patches
know, and nothing is masked here. What it depends on is what an explanation of that likeness tests.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from vitrail.arguments import typed
from vitrail.data.columns import ALL, TRAIN, RawDataset, Samples
from vitrail.data.dataset import Split
from vitrail.data.images import evenly
from vitrail.data.layout import AS_FOUND, Layout
from vitrail.data.sources import files_of, format_of, read_images
from vitrail.errors import DataError, Hint, UsageError, check_count, some_of
from vitrail.features.embed import Progress, embed_samples, identity
from vitrail.features.file import FeatureSet, check_same_model, is_features, read_features
from vitrail.features.poolings import LabelledFeatures, check_pooling, check_vit, numbers_read, read_by_head
from vitrail.jobs.precision import Precision, cast_model
from vitrail.model import Model, open_first
from vitrail.nn import evaluating, features
from vitrail.pages.render import similar_page
from vitrail.statistics import wilson_interval
from vitrail.text import ShortRepr

NEIGHBOURS = 5
ROWS = 1024  # whose neighbours are looked for at a time

Grid = Float[Tensor, "gh gw d"]


@dataclass(frozen=True, eq=False, repr=False)
class PatchAgreement(ShortRepr):
    """For each patch of an image, its partner in another.

    Attributes:
        partners: (rows, columns) number of the most similar patch of the other, in reading order.
        cosines: (rows, columns) of both.
        usual: (rows, columns) what the patch reaches in a middle one of other images; 0 where there were none.
    """

    partners: Int[np.ndarray, "rows columns"]
    cosines: Float[np.ndarray, "rows columns"]
    usual: Float[np.ndarray, "rows columns"]

    @property
    def beyond(self) -> Float[np.ndarray, "rows columns"]:
        """What the pair has above the usual."""
        return self.cosines - self.usual

    def to_dict(self) -> dict[str, Any]:
        """Plain values; partners as (row, column) are those of the other's grid in reading order."""
        return {name: getattr(self, name).tolist() for name in ("partners", "cosines", "usual")}


def agreement(own: Grid, other: Grid, others: Sequence[Grid] = ()) -> PatchAgreement:
    """The partner of each patch of an image in another.

    Args:
        own: (rows, columns, d) patch tokens of the image.
        other: Those of the other.
        others: Those of images by which the usual cosine is measured.
    """
    best = _cosines(own, other).max(dim=1)
    usual = torch.zeros_like(best.values)
    if others:
        usual = torch.stack([_cosines(own, each).max(dim=1).values for each in others]).quantile(0.5, dim=0)
    shape = own.shape[:2]
    partners, cosines, usual = (each.reshape(shape).cpu().numpy() for each in (best.indices, best.values, usual))
    return PatchAgreement(partners, cosines, usual)


def _cosines(own: Grid, other: Grid) -> Float[Tensor, "n m"]:
    """The cosine of each patch of one with each of the other."""
    return F.normalize(own.flatten(0, 1), dim=1) @ F.normalize(other.flatten(0, 1), dim=1).T


THUMBNAIL = 112  # pixels on a side, about
QUERIES = 8  # of many, evenly spread
OTHERS = 8  # images that say how alike patches usually are


@dataclass(frozen=True, eq=False, repr=False)
class Neighbour(ShortRepr):
    """One of the nearest images.

    Attributes:
        name: What it is called in its data.
        split: Which split it belongs to.
        label: Its class, labels or numbers; None where the data name none.
        distance: 1 less the cosine of both images' vectors: 0 for the same direction.
        here: Where the query agrees with it; None where the images are not at hand.
        there: The same of its own patches.
        image: As the model sees it; None likewise.
        file: Its path; None when it is no file.
    """

    name: str
    split: str
    label: str | None
    distance: float
    here: PatchAgreement | None = None
    there: PatchAgreement | None = None
    image: np.ndarray | None = None
    file: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the image."""
        facts = {"file": self.name, "split": self.split, "label": self.label, "distance": self.distance}
        agreed = (None if each is None else each.to_dict() for each in (self.here, self.there))
        return {**facts, **dict(zip(("here", "there"), agreed, strict=True))}


@dataclass(frozen=True, eq=False, repr=False)
class SimilarImages(ShortRepr):
    """The nearest images of one.

    Attributes:
        name: What it is called.
        label: Its class, where known.
        neighbours: The nearest first.
        among: What these have, in words, as the model's codec puts it; empty where nobody knows.
        image: As the model sees it; None where it is not at hand.
        file: Its path; None when it is no file.
    """

    name: str
    label: str | None
    neighbours: tuple[Neighbour, ...]
    among: str = ""
    image: np.ndarray | None = None
    file: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the images."""
        near = [one.to_dict() for one in self.neighbours]
        return {"file": self.name, "label": self.label, "among": self.among, "neighbours": near}


@dataclass(frozen=True, eq=False)
class Similar:
    """The nearest images of some.

    Attributes:
        pooling: Which vectors were compared.
        head: Whether these are what the network's head reads.
        explained: Whether likeness by them can be explained, since they are, and as many numbers as a token has.
        known: Among how many images.
        found: One for each query.
        notes: What to know of it, one sentence each.
    """

    pooling: str
    head: bool
    explained: bool
    known: int
    found: tuple[SimilarImages, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """In at most five lines: among how many images, and the nearest of the first of them."""
        near = [f"  {one.name}: {some_of([each.name for each in one.neighbours], 3)}" for one in self.found[:4]]
        return "\n".join([f"Similar: {len(self.found)} among {self.known:,} images, by {self.pooling}", *near])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without images."""
        queries = [one.to_dict() for one in self.found]
        return {"pooling": self.pooling, "images": self.known, "queries": queries, "notes": list(self.notes)}

    def page(self, model: str, data: str, command: str = "") -> str:
        """One HTML page that shows everything, and loads nothing.

        Args:
            model: The name of the model, for command lines.
            data: What the images are called.
            command: That made it.
        """
        return similar_page(self, model, data, command)

    def explain_command(self, one: SimilarImages, model: str) -> str:
        """The command that tests what the likeness to the nearest depends on; empty where none does."""
        other = one.neighbours[0].file
        if not self.explained or one.file is None or other is None:
            return ""
        return shlex.join(["vitrail", "explain", model, str(one.file), "--similar-to", str(other)])


@typed
def similar(
    model: str | Path | Model,
    images: str | Path,
    data: str | Path,
    *,
    neighbours: int = NEIGHBOURS,
    pooling: str | None = None,
    queries: int = QUERIES,
    layout: Layout = AS_FOUND,
    data_root: str | Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Similar:
    """The nearest images of an image, among those of data, by the cosine of what a network knows of them.

    An image that is itself among the data is no neighbour of its own.

    Args:
        model: A ViT: what `vitrail.load` opens, or a model that was loaded; the one that made the files.
        images: The queries: an image, a folder, a set, or a file of features.
        data: Among which neighbours are looked for: the same; a file of features is quicker.
        neighbours: How many.
        pooling: Which vectors are compared: `class`, `mean` or `pooled`; what the head reads when None.
        queries: How many of many images are queries, evenly spread.
        layout: Columns of the data, and of the images where they are a list or table, too; where they are named.
        data_root: The folder of named sets.
        progress: Called with images of the data that are embedded, and all.

    Raises:
        UsageError: There is no such pooling, or the model has no patches.
        DataError: Something cannot be read, or a file holds features of another model.
    """
    model = open_first(model, "similar(model, images, data)")
    network = check_vit(model.network)
    named = check_pooling(network, pooling)
    check_count("neighbours", neighbours, NEIGHBOURS)
    check_count("queries", queries, QUERIES)
    roots = {each: data_root if each is data or files_of(str(each)) else None for each in (images, data)}
    read = [each for each in roots if not is_features(Path(each).expanduser())]
    listed = [each for each in read if (row := format_of(str(each))) is not None and row.columns]
    if not listed:
        layout.check_columns(str(data))
    raw = {each: read_images(each, roots[each], layout=layout if each in listed else None) for each in read}
    known = open_known(data, raw.get(data), model, progress=progress)
    precision = known.features.about.get("precision", "fp32")  # which older files do not say
    wanted = open_known(images, raw.get(images), model, queries, precision=precision)
    vectors = [torch.from_numpy(each.features.values[named]) for each in (known, wanted)]
    cosines, places = nearest_rows(vectors[0], vectors[1], neighbours + 1)
    middle = evenly(range(len(known.features)), OTHERS)
    usual = dict(zip(middle, _tokens(model, [known.open(row) for row in middle]), strict=True))
    found = []
    for query in range(len(wanted.features)):
        own = wanted.key(query)  # the image itself is among its nearest, if it is there
        pairs = zip(places[query].tolist(), cosines[query].tolist(), strict=True)
        rows = [(row, cosine) for row, cosine in pairs if known.key(row) != own][:neighbours]
        if not rows:
            beside = Hint({"data": str(Path(data).resolve().parent)})
            raise DataError(f"{data} contains no image except the query", beside)
        others = (usual[row] for row in usual if known.key(row) != own and row not in dict(rows))
        there = [each for each in others if each is not None]
        found.append(_describe_query(model, wanted, query, known, rows, there))
    notes = tuple(dict.fromkeys((*known.notes, *wanted.notes)))
    head = named == read_by_head(network)
    explained = head and numbers_read(network) == network.config.width
    return Similar(named, head, explained, len(known.features), tuple(found), notes)


# ---- images with their features


@dataclass(frozen=True, eq=False)
class KnownImages:
    """Features, and the images that they are of.

    Attributes:
        features: One row an image.
        raw: The images; None where they are no longer as they were.
        notes: What to know of it, one sentence each.
    """

    features: FeatureSet
    raw: RawDataset | None
    notes: tuple[str, ...] = ()

    @cached_property
    def at(self) -> dict[tuple[str, str], int]:
        """By split and name, the number of an image in its split."""
        splits = {} if self.raw is None else self.raw.splits
        names = {split: samples.images.names() for split, samples in splits.items()}
        return {(split, name): row for split, own in names.items() for row, name in enumerate(own)}

    def _sample(self, row: int) -> tuple[Samples, int] | None:
        """Among which samples the image of a row is, and its number there; None where it is not at hand."""
        place = self.features.splits[row], self.features.ids[row]
        return (self.raw.splits[place[0]], self.at[place]) if self.raw is not None and place in self.at else None

    def open(self, row: int) -> Image.Image | None:
        """The image of a row; None where it is not at hand, or can no longer be read."""
        if (found := self._sample(row)) is not None:
            with suppress(DataError):
                return found[0].images.open(found[1])
        return None

    def file(self, row: int) -> Path | None:
        """The path of the image of a row; None when it is no file, or not at hand."""
        return None if (found := self._sample(row)) is None else found[0].images.file(found[1])

    def key(self, row: int) -> object:
        """Equal for the same image, wherever it is listed."""
        file = self.file(row)
        named = self.features.about["data"], self.features.splits[row], self.features.ids[row]
        return named if file is None else file.resolve()

    def neighbour(self, model: Model, row: int, distance: float) -> Neighbour:
        """A row as a neighbour at this distance, with a small image where that is at hand."""
        label = self.label(row, model.task.column)
        image, facts = self.open(row), (self.features.ids[row], self.features.splits[row], label, distance)
        shown = None if image is None else Image.fromarray(model.preprocessing.to_array(image))
        drawn = None if shown is None else np.asarray(shown.reduce(max(1, max(shown.size) // THUMBNAIL)))
        return Neighbour(*facts, image=drawn, file=self.file(row))

    def label(self, row: int, column: str | None) -> str | None:
        """The class of a row, or what this column has of it; None where that is not known or not at hand."""
        if self.features.labels is not None:
            return self.features.labels[row]
        found = self._sample(row)
        return None if found is None or column not in found[0].columns else found[0].column(column).word(found[1])

    def cells(self, row: int, column: str | None) -> Mapping[str, str]:
        """The same by the columns of a list; empty where it is not known."""
        found = self._sample(row)
        if found is None or column not in found[0].columns:
            label = self.label(row, column)
            return {} if label is None else {str(column): label}
        return found[0].column(column).cells(found[1], column)


def open_known(
    what: str | Path,
    raw: RawDataset | None,
    model: Model,
    most: int | None = None,
    progress: Progress = lambda done, total: None,
    precision: Precision = "fp32",
) -> KnownImages:
    """Features out of a file, or computed now of what was read; of at most so many images, evenly spread.

    Raises:
        DataError: A file holds those of another model.
    """
    path = Path(what).expanduser()
    if raw is not None:
        raw = raw if most is None else raw.spread(most)
        found = embed_samples(raw, model, progress=progress, precision=precision)
        return KnownImages(found, raw, (*raw.notes, *(f"Left out: {line}." for line in found.unreadable)))
    found = read_features(path)
    check_same_model(path, found.about, identity(model), str(model.loaded_from or "RUN"))
    raw = _reopen_images(found)
    gone = f"The images of {path} have changed in {found.about['data']} since, so they are not shown."
    found = found if most is None else found.select(evenly(range(len(found)), most))
    return KnownImages(found, raw, () if raw is not None else (gone,))


def _reopen_images(found: FeatureSet) -> RawDataset | None:
    """The images that features are of; None where they are no longer there, or others."""
    try:
        layout = Layout(**found.about.get("layout", {}))
        raw = read_images(found.about["data"], found.about["data_root"], layout=layout).only(found.splits)
        return raw if raw.digest() == found.about["images"] else None
    except (DataError, UsageError):
        return None


def _tokens(model: Model, images: Sequence[Image.Image | None]) -> list[Grid | None]:
    """The patch tokens of images, each as a grid; None of those that are not at hand."""
    if not (there := [each for each in images if each is not None]):
        return [None] * len(images)
    with evaluating(model.network), torch.no_grad():
        grids = iter(features(model.network, model.tensor(there)).patches.float())
    return [None if each is None else next(grids) for each in images]


def _describe_query(
    model: Model,
    wanted: KnownImages,
    query: int,
    known: KnownImages,
    rows: Sequence[tuple[int, float]],
    others: Sequence[Grid],
) -> SimilarImages:
    """One image with its neighbours, and where they agree, as far as the images are at hand."""
    column = model.task.column
    opened = [wanted.open(query), *(known.open(row) for row, _ in rows)]
    grids = _tokens(model, opened)
    shown = [None if each is None else model.preprocessing.to_array(each) for each in opened]
    neighbours = []
    for (row, cosine), grid, image in zip(rows, grids[1:], shown[1:], strict=True):
        own, here, there = grids[0], None, None
        if own is not None and grid is not None:
            here, there = agreement(own, grid, others), agreement(grid, own, others)
        facts = known.features.ids[row], known.features.splits[row], known.label(row, column), max(0.0, 1 - cosine)
        neighbours.append(Neighbour(*facts, here, there, image, known.file(row)))
    among = model.output.among([known.cells(row, column) for row, _ in rows])
    facts = wanted.features.ids[query], wanted.label(query, column), tuple(neighbours), among
    return SimilarImages(*facts, shown[0], wanted.file(query))


# ---- the nearest training images, which stand below an explanation

NEAREST = 3
EMBEDDED = 100  # training images, where no file has their features: fewer passes than a verdict takes
SAME = 1 - 1e-5  # a cosine that only the image itself has, or a copy of it


def evenly_by_class(samples: Samples, most: int = EMBEDDED) -> Samples:
    """At most so many samples, evenly spread over the classes and among those of a class."""
    rows = np.argsort(samples.labels or [""] * len(samples), kind="stable")
    return samples.select(np.sort(np.array(evenly(rows.tolist(), most), np.int64)))


@torch.no_grad()
def nearest_training(
    model: Model, images: Sequence[UInt8[np.ndarray, "h w *c"]], known: KnownImages
) -> list[list[Neighbour]]:
    """The nearest training images of each of some, by what the head reads; without the image itself.

    Args:
        model: A ViT.
        images: As the model sees them, with values 0..255.
        known: Among which they are looked for.
    """
    found, named = known.features, read_by_head(check_vit(model.network))
    network = check_vit(cast_model(model, found.about.get("precision", "fp32")).network)
    pixels = torch.stack([torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1) for image in images])
    inputs = model.preprocessing.normalise(pixels.to(model.device)).split(16)
    with evaluating(network):
        vectors = torch.cat([features(network, some).pooled.float().cpu() for some in inputs])
    near, answers = nearest_rows(torch.from_numpy(found.values[named]), vectors, NEAREST + 1), []
    for cosines, rows in zip(*(each.tolist() for each in near), strict=True):
        others = [(row, 1 - cosine) for row, cosine in zip(rows, cosines, strict=True) if cosine < SAME][:NEAREST]
        answers.append([known.neighbour(model, row, distance) for row, distance in others])
    return answers


# ---- the class that most of the nearest images have: the one k-NN


def nearest_rows(
    known: Float[Tensor, "m d"], queries: Float[Tensor, "n d"], count: int
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The known images that are nearest to each query, by cosine; all where there are fewer.

    Args:
        known: (m, d), one row an image.
        queries: (n, d).
        count: How many neighbours.

    Returns:
        Their cosines, at most 1 (the distance is 1 less that), and which of the known images they are; the nearest
        first.
    """
    unit, count = F.normalize(known, dim=1), min(count, len(known))
    found = [(F.normalize(some, dim=1) @ unit.T).topk(count, dim=1) for some in queries.split(ROWS)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def nearest_vote(
    vote: Callable[[Tensor, Tensor], Tensor],
    train: LabelledFeatures,
    held_out: LabelledFeatures,
    count: int = NEIGHBOURS,
) -> Float[Tensor, "n v"]:
    """What the nearest training images vote for, by cosine, as outputs (n, v).

    Args:
        vote: As of `Codec.vote`.
        train: Among which neighbours are looked for.
        held_out: Whose targets are wanted.
        count: How many neighbours.
    """
    alike, places = nearest_rows(train.values, held_out.values, count)
    return vote(train.labels[places], alike)


def neighbours_of(model: Model, train: Split, held_out: Split, count: int) -> dict[str, Any]:
    """How well nearest neighbours answer, in plain values; a pass over both splits.

    Args:
        model: A ViT, with `Codec.vote`.
        train: Among whose images neighbours are looked for.
        held_out: Whose targets are wanted.
        count: How many neighbours vote.

    Returns:
        `count`, `images` (held out), `train_images`, `seconds`, and `poolings`: `accuracy` and `interval` of each; the
        mean `error` where an error is a distance.

    Raises:
        UsageError: It is no ViT.
    """
    began, output = time.perf_counter(), model.output
    check_vit(model.network)
    raw = (RawDataset(each.name, {each.split: each.samples}) for each in (train, held_out))
    known, wanted = (embed_samples(each, model) for each in raw)
    both = (known, _targets(model, train, known)), (wanted, _targets(model, held_out, wanted))
    poolings = dict[str, dict[str, Any]]()
    for name in known.values:
        ours, theirs = (LabelledFeatures(torch.from_numpy(each.values[name]), targets) for each, targets in both)
        errors = output.error(nearest_vote(output.vote, ours, theirs, count), theirs.labels)
        poolings[name] = {"accuracy" if output.is_wrong else "error": output.score(errors)}
        if output.is_wrong:
            poolings[name]["interval"] = list(wilson_interval(int((errors == 0).sum()), len(wanted)))
    seconds = time.perf_counter() - began
    facts = {"count": count, "images": len(wanted), "train_images": len(known), "seconds": seconds}
    return {**facts, "poolings": poolings}


def check_splits(model: Model, held_out: Split, count: int) -> None:
    """Refuse neighbours of what has none.

    Args:
        model: Whose neighbours are wanted.
        held_out: The queries.
        count: How many.

    Raises:
        UsageError: Its codec has no vote, the data is not split, or the training images themselves are the queries.
    """
    check_count("neighbours", count, NEIGHBOURS)
    if model.output.vote is None or model.output.error is None:
        problem = f"neighbours have no vote in the task {model.task.name}"
        raise UsageError(problem, Hint(drop=["neighbours"]))
    check_vit(model.network)
    if held_out.split in (TRAIN, ALL):
        problem = f"neighbours of held-out images are wanted, but {held_out.name} is the split '{held_out.split}'"
        raise UsageError(problem, Hint(drop=["neighbours"]))


def _targets(model: Model, split: Split, found: FeatureSet) -> Tensor:
    """The targets of the images of a split that could be read, which keep their order."""
    names = iter(enumerate(split.samples.inputs.names()))
    rows = [next(row for row, name in names if name == wanted) for wanted in found.ids]
    column = split.samples.column(model.task.column)
    return model.output.targets(column.take(np.array(rows, dtype=np.int64)))
