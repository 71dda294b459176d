"""The images that names mean for a model, to be shown and explained: files, folders, data sets, and the run's own data.

A run remembers its data, so this stands with trainings; `read_images` gives each image its name, true class and mask.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vitrail.data import formats
from vitrail.data.columns import Classes
from vitrail.data.dataset import Samples
from vitrail.data.images import FileImages, Images, NamedImage, evenly
from vitrail.data.readers import parse_planted, planted_test_images
from vitrail.errors import DataError, UsageError
from vitrail.explain.reporting.explained import sample_images
from vitrail.explain.reporting.request import Opener
from vitrail.model import Model
from vitrail.training.evaluate import is_own_data, open_for, own_reader, remembered_data

SHOWN = 8  # images of a set, without a number

Notify = Callable[[str], object]


def read_images(
    model: Model,
    run: str,
    names: Sequence[str],
    count: int | None = None,
    data_root: Path | None = None,
    problems: list[DataError] | None = None,
    notify: Notify = lambda sentence: None,
) -> tuple[list[NamedImage], list[Opener]]:
    """The images that can be read; and all that are named, unopened, which may fill masked patches.

    Args:
        model: Will answer them.
        run: Its folder or name; a run remembers its data.
        names: Files and folders, or one data set.
        count: How many of a set or of folders, evenly spread; 8 when None.
        data_root: Folder of the named sets.
        problems: Gets an error for each image that cannot be read.
        notify: Called with a sentence when images are left out by their number, or scaled.

    Raises:
        UsageError: A set stands beside other images, or there is nothing to count.
        DataError: There is no image at all.
    """
    first, most = names[0], SHOWN if count is None else count
    formats.check_root(first, data_root)
    if is_own_data(run, first) and (reader := own_reader(run)):
        raise UsageError(
            f"{first} was read by a reader of your own, {reader}",
            f"in Python: model = vitrail.load({run!r}), then vitrail.explain.occlusion(model.network, "
            f"model.tensor(images), 0) with images of {reader}({first!r}, None)",
        )
    is_set = is_a_set(run, first)
    if is_set and len(names) > 1:
        problem = f"{first} is a data set, which cannot be combined with other images"
        raise UsageError(problem, f"vitrail explain {run} {first}")
    if not is_set and count is not None and not any(Path(name).expanduser().is_dir() for name in names):
        raise UsageError(
            f"--count {count} is for a data set or a folder, not for single images", "the same without --count"
        )
    planted = parse_planted(first) if formats.is_planted(first) and isinstance(model.output, Classes) else None
    if planted is not None and planted.size != tuple(model.preprocessing.size):
        has, reads = (f"{width} x {height}" for height, width in (planted.size, model.preprocessing.size))
        unmarked = ", and the positions of their digits are not marked" if planted.variant == "single" else ""
        notify(f"images of {first} have {has} pixels, but the model reads {reads}: they are scaled{unmarked}")
    if planted is not None and planted.variant != "single":
        numbers = _spread(range(planted.count("test")), most, notify)
        return planted_test_images(planted, numbers, planted_root(run, data_root)), []
    if is_set:
        samples = open_for(model, run, first, data_root).samples
        numbers = _spread(range(len(samples)), most, notify)
    else:
        files, numbers = spread_files(names, most, notify)
        samples = Samples(FileImages(files), {})
    images = samples.inputs
    if not isinstance(images, Images):
        raise DataError(f"{first} contains texts, but only images can be explained", "a set of images")
    shown = list(sample_images(samples, numbers, model, [] if problems is None else problems))
    every = range(0 if formats.is_planted(first) else len(images))
    return shown, [(images.name(i), partial(images.open, i)) for i in every]


def is_a_set(run: str, name: str) -> bool:
    """Whether a name means a whole set of samples, rather than an image or a folder of images."""
    listed = Path(name).suffix.lower() in formats.MANIFESTS
    return listed or formats.is_named(name) or formats.is_packed(name) or is_own_data(run, name)


def spread_files(
    names: Sequence[str], count: int | None, notify: Notify = lambda sentence: None
) -> tuple[list[Path], list[int]]:
    """The image files of names and folders, and the numbers of those that count.

    Args:
        names: Files, which all count, and folders.
        count: How many images of the folders count, evenly spread; all when None.
        notify: Called with a sentence when some do not.
    """
    files = formats.named_files(names)
    loose = [number for number, (_, named) in enumerate(files) if not named]
    found = set(loose if count is None else _spread(loose, count, notify))
    return [file for file, _ in files], [number for number, (_, named) in enumerate(files) if named or number in found]


def planted_root(run: str, data_root: Path | None) -> Path | None:
    """The folder of MNIST, of which planted images are made: `data_root`, or where the run read it."""
    remembered = {} if data_root is not None else remembered_data(run)
    name, root = remembered.get("name", ""), Path(remembered.get("root", ""))
    return root if (name == "mnist" or formats.is_planted(name)) and root.is_dir() else data_root


def _spread(numbers: Sequence[int], most: int, notify: Notify) -> list[int]:
    """At most so many of them, evenly spread."""
    if len(numbers) > most:
        notify(f"{most} of {len(numbers):,} images; --count {len(numbers)} for all")
    return evenly(numbers, most)
